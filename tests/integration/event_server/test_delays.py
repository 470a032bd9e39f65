"""QDELAY and QLATER: events for later, which okq does not have."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from apressure import EventQueue
from apressure.embedded import EmbeddedServer
from apressure.events.engine.letters import read
from apressure.events.server import queues
from tests.integration.conftest import eventually
from tests.integration.event_server.conftest import Serve, Served, Wire, packed
from tests.okq import Okq

LONG = 80  # seconds: a wait that reaches it has missed its event, and the test fails
FULL = "ERR queue full: the first {} of {} events are in the queue"
HOUR = 3_600_000
NO_OPTION = "the last argument is neither CREATED, nor the contents of an event"
WHEN = "milliseconds from now (up to 315360000000), nor @ and milliseconds since 1970, within ten years"

DELAYED = "apressure:queue:{foo}:delayed"
LATER = "apressure:queue:{foo}:later"


async def delayed(wire: Wire, name: str = "foo") -> int:
    count: int = (await wire("QLOOK", name))[9]
    return count


# The two commands.


async def test_delay_and_later(wire: Wire) -> None:
    await wire.raw(packed("QDELAY", "foo", "300", "b", "two"), b"+OK\r\n")
    await wire.raw(packed("qdelay", "foo", "1", "a", "one"), b"+OK\r\n")
    assert await wire("QRPOP", "foo", "WAIT", LONG) == [b"a", b"one"]
    await wire.raw(packed("QRPOP", "foo"), b"$-1\r\n")
    await wire.raw(packed("QLATER", "foo", "600", "a", "not yet"), b":1\r\n")
    await wire.raw(packed("QLATER", "foo", "600", "a", ""), b":0\r\n")  # nobody has it
    await wire.raw(packed("QACK", "foo", "a"), b":0\r\n")
    assert await wire("QRPOP", "foo", "WAIT", LONG, "TELL") == [b"b", b"two", 1]
    assert await wire("QRPOP", "foo", "WAIT", LONG, "TELL") == [b"a", b"one", 2]
    assert await wire("QACK", "foo", "a", "b") == 2
    assert await wire("QLOOK", "foo") == [*[0] * 10, None, *[0] * 6]


async def test_what_is_delayed_is_told(wire: Wire) -> None:
    assert await wire("QDELAY", "foo", HOUR, "a", "x", "b", "y") == b"OK"
    *others, count, next_due = (await wire("QLOOK", "foo"))[:11]
    assert (others, count) == ([1, 0, 0, 0, 0, 0, 0, 0, 0], 2)
    assert HOUR - 60_000 < next_due <= HOUR + 1  # due times are rounded up, to whole milliseconds
    assert await wire("QSTATUS", "foo") == [[b"foo", 0, 0, 0]]  # okq's counts are of okq's events
    assert await wire("QRPEEK", "foo") is None
    assert await wire("QLPUSH", "foo", "a", "x") == "ERR duplicate event a"
    assert await wire("QDELAY", "foo", 5, "a", "x") == "ERR duplicate event a"
    assert await wire("QPURGE", "foo", 1) == 1
    assert await delayed(wire) == 1
    assert await wire("QFLUSH", "foo") == b"OK"
    assert await wire("QLOOK", "foo") == [*[0] * 10, None, *[0] * 6]


async def test_an_absolute_time(wire: Wire) -> None:
    begun = time.time()
    assert await wire("QDELAY", "foo", f"@{begun * 1000 + 400:.0f}", "b", "y") == b"OK"
    assert await wire("QDELAY", "foo", "@0", "a", "x") == b"OK"  # it has passed
    assert await wire("QRPOP", "foo", "EX", 0) == [b"a", b"x"]
    assert await wire("QRPOP", "foo", "WAIT", LONG) == [b"b", b"y"]
    assert time.time() - begun > 0.39
    begun = time.time()
    assert await wire("QLATER", "foo", f"@{begun * 1000 + 300:.0f}", "b", "") == 1
    assert await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0) == [b"b", b"y"]
    assert time.time() - begun > 0.29


async def test_the_bound_and_the_end(wire: Wire) -> None:
    assert await wire("QDELAY", "foo", 5, "a", "x", "created") == "ERR no such queue"
    assert await wire("QCREATE", "foo", 2) == 1
    assert await wire("QDELAY", "foo", HOUR, "a", "x", "b", "y", "c", "z", "CREATED") == FULL.format(2, 3)
    assert await wire("QDELAY", "foo", HOUR, "c", "z") == FULL.format(0, 1)
    assert await wire("QLPUSH", "foo", "c", "z", "NOWAIT") == FULL.format(0, 1)
    assert await wire("QPURGE", "foo", 2) == 2
    some = "ERR duplicate event a (1 of 2 events are in the queue already; the others were added)"
    assert await wire("QDELAY", "foo", 200, "a", "x") == b"OK"
    assert await wire("QDELAY", "foo", 200, "a", "x", "b", "y") == some
    assert await wire("QCLOSE", "foo") == 1
    assert await wire("QDELAY", "foo", 5, "c", "z") == "ERR queue closed"
    assert await wire("QRPOP", "foo", "WAIT", 0, "TELL") == b"draining created"
    assert await wire("QRPOP", "foo", "WAIT", 0) is None
    assert await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0) == [b"a", b"x"]
    assert await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0) == [b"b", b"y"]
    assert await wire("QRPOP", "foo", "WAIT", LONG) == "ERR queue closed"
    assert await wire("QDELETE", "foo") == b"OK"


async def test_errors_of_later_ones_are_kept(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", 1, "x", 2, "y") == b"OK"
    assert await wire("QRPOP", "foo", "COUNT", 2) == [[b"1", b"x"], [b"2", b"y"]]
    assert await wire("QLATER", "foo", 20, 1, "\tfirst", 2, "", 3, "nobody has it") == 2
    got = [await wire("QRPOP", "foo", "WAIT", LONG, "TELL") for _ in range(2)]
    assert sorted(got) == [[b"1", b"x", 2], [b"2", b"y", 2]]
    assert (
        await wire("QLATER", "foo", 20, 1, "e" * 1001) == "ERR bad error value: it has 1001 bytes, and the most is 1000"
    )
    assert await wire("QACK", "foo", 1, "REDO") == 1
    assert await wire("QRPOP", "foo", "LIMIT", 2) is None
    (letter,) = await wire("QDEAD", "foo", 0, 10)
    assert read(letter, bytes).id == "1"
    assert read(letter, bytes).reason.startswith("first (attempt 1; ")
    assert await wire("QDELETE", "foo") == b"OK"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("QDELAY foo 5 id", "ERR missing args"),
        ("QLATER foo 5 id", "ERR missing args"),
        ("QLATER foo 5 id why id", "ERR missing args"),
        ("QDELAY foo 5 id x NOWAIT", f"ERR syntax error: {NO_OPTION}"),
        ("QDELAY a}b 5 id x", "ERR a queue's name must not contain '}', which ends the name in its keys"),
        *[
            (f"{verb} foo {when} id x", f'ERR bad when value: "{when}" is neither {WHEN}')
            for verb in ("QDELAY", "QLATER")
            for when in ("", "soon", "-1", "1.5", "1_0", "@", "@-1", "@@1", "315360000001", "@9999999999999", "9" * 16)
        ],
    ],
)  # fmt: skip
async def test_errors(wire: Wire, command: str, error: str) -> None:
    assert await wire(*command.split(" ")) == error
    assert await wire("QLOOK", "foo") == [*[0] * 10, None, *[0] * 6]


async def test_ten_years(wire: Wire) -> None:
    longest = 315_360_000_000
    for number, when in enumerate((longest, f"@{time.time() * 1000 + longest:.0f}")):
        assert await wire("QDELAY", "foo", when, number, "x") == b"OK"
    assert await delayed(wire) == 2
    assert (await wire("QLOOK", "foo"))[10] > longest - 60_000
    assert await wire("QFLUSH", "foo") == b"OK"


async def test_pipelined_ones_share_steps_and_each_has_its_reply(wire: Wire) -> None:
    assert await wire("QCREATE", "foo", 6) == 1
    for number in range(5):
        wire.send("QDELAY", "foo", 5 + number, number, "x", "CREATED")
    wire.send("QDELAY", "foo", 5, 3, "x", "CREATED")
    wire.send("QDELAY", "foo", 5, 5, "x", "CREATED")
    wire.send("QDELAY", "foo", 5, 6, "x", "CREATED")
    wire.send("QDELAY", "foo", "never", 7, "x", "CREATED")
    wire.send("QDELAY", "foo", 5, 8, "x", 9, "x")
    replies = [str(await wire.reply()) for _ in range(10)]
    assert replies[:5] == ["b'OK'"] * 5
    assert replies[5:8] == ["ERR duplicate event 3", "b'OK'", FULL.format(0, 1)]
    assert 'bad when value: "never"' in replies[8]
    assert replies[9] == FULL.format(0, 2)
    got = [(await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0))[0] for _ in range(6)]
    assert sorted(got) == [b"%d" % number for number in range(6)]
    assert await wire("QDELETE", "foo") == b"OK"


async def test_very_many_in_one_command(wire: Wire) -> None:
    """More than one step takes. Those that are due together stay in order."""
    ids = [b"%d" % number for number in range(4500)]
    assert await wire("QDELAY", "foo", 500, *(word for event in ids for word in (event, b"x"))) == b"OK"
    got: list[bytes] = []
    while len(got) < len(ids):
        got += [event for event, _ in await wire("QRPOP", "foo", "WAIT", LONG, "COUNT", 1000, "EX", 60)]
    assert sorted(got, key=int) == ids
    assert await wire("QLATER", "foo", 100, *(word for event in ids for word in (event, b"why"))) == 4500
    again: list[Any] = []
    while len(again) < len(ids):
        again += await wire("QRPOP", "foo", "WAIT", LONG, "COUNT", 1000, "EX", 0, "TELL")
    assert sorted(again, key=lambda one: int(one[0])) == [[event, b"x", 2] for event in ids]


# Who waits for them.


@pytest.mark.parametrize("command", [("QRPOP", "foo", "WAIT", LONG), ("QNOTIFY", LONG)], ids=lambda one: one[0])
@pytest.mark.parametrize("by", ["this server", "another server", "a program"])
@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
async def test_those_who_wait_get_what_is_due(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str | int, ...], by: str, absolute: bool
) -> None:
    """Whoever has put it, and although they wait for a later one already."""
    monkeypatch.setattr(queues, "REFRESH", 600.0)
    served: Served = await serve()
    wire = await served.connect()
    other = await (await serve() if by == "another server" else served).connect()
    assert await other("QDELAY", "foo", 60_000, "late", "x") == b"OK"
    assert await wire("QREGISTER", "foo", "bar") == b"OK"
    wire.send(*command)
    await asyncio.sleep(0.7)
    begun = time.time()
    if by == "a program":
        async with EventQueue("foo", url=url) as queue:
            await queue.put(b"y", id="soon", delay=0.3)
    else:
        assert await other("QDELAY", "foo", f"@{begun * 1000 + 300:.0f}" if absolute else 300, "soon", "y") == b"OK"
    assert await wire.reply() in (b"foo", [b"soon", b"y"])
    assert time.time() - begun > 0.29
    assert await delayed(wire) == 1


async def test_several_who_wait_get_one_each(okq: Served, wire: Wire) -> None:
    waiting = [await okq.connect() for _ in range(5)]
    for one in waiting:
        one.send("QRPOP", "foo", "WAIT", LONG)
    await asyncio.sleep(0.1)
    assert await wire("QDELAY", "foo", 200, *(word for number in range(5) for word in (number, "x"))) == b"OK"
    assert sorted([(await one.reply())[0] for one in waiting]) == [b"%d" % number for number in range(5)]


async def test_those_who_wait_at_a_closed_queue_learn_of_the_end(
    okq: Served, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them gets the last one, which was delayed; nobody tells the others."""
    monkeypatch.setattr(queues, "REFRESH", 600.0)
    assert await wire("QCREATE", "foo", 0) == 1
    assert await wire("QDELAY", "foo", 700, "a", "x") == b"OK"
    assert await wire("QCLOSE", "foo") == 1
    waiting = [await okq.connect() for _ in range(3)]
    for one in waiting:
        one.send("QRPOP", "foo", "WAIT", LONG, "EX", 0)
    replies = sorted([str(await one.reply()) for one in waiting])
    assert replies == ["ERR queue closed"] * 2 + ["[b'a', b'x']"]
    assert await wire("QDELETE", "foo") == b"OK"


async def test_what_is_due_waits_for_the_end_of_a_pause(okq: Served, wire: Wire) -> None:
    other = await okq.connect()
    assert await wire("QLPUSH", "foo", "b", "y") == b"OK"
    assert await wire("QPAUSE", "foo") == 1
    assert await wire("QDELAY", "foo", 5, "a", "x") == b"OK"
    assert await other("QREGISTER", "foo") == b"OK"
    other.send("QNOTIFY", LONG)
    await eventually_waiting(wire)
    assert await wire("QRPOP", "foo") is None
    assert await wire("QRESUME", "foo") == 1
    assert await other.reply() == b"foo"
    assert await wire("QRPOP", "foo", "COUNT", 5, "EX", 0) == [[b"b", b"y"], [b"a", b"x"]]


async def eventually_waiting(wire: Wire) -> None:
    async with asyncio.timeout(60):
        while await delayed(wire):
            await asyncio.sleep(0.01)


# Trouble.


async def test_an_okq_beside_gets_what_is_due_at_its_time(wire: Wire, db: redis.Redis) -> None:
    """No client of ours is registered or waits: the server that has taken it makes it wait."""
    okq = Okq(db)
    assert await wire("QDELAY", "foo", 100, "a", "x") == b"OK"
    assert okq.pop("foo") is None
    await eventually(lambda: db.llen("queue:{foo}") == 1)
    assert okq.pop("foo") == ("a", b"x")
    assert await wire("QLATER", "foo", 100, "a", "why") == 1  # whoever has it
    await eventually(lambda: db.llen("queue:{foo}") == 1)
    assert await wire("QRPOP", "foo", "TELL", "EX", 0) == [b"a", b"x", 2]


async def test_servers_that_stop_meanwhile_lose_nothing_and_nothing_comes_early(serve: Serve) -> None:
    first: Served = await serve()
    wire = await first.connect()
    begun = time.time()
    assert await wire("QDELAY", "foo", 1500, "a", "x") == b"OK"
    assert await wire("QLPUSH", "foo", "b", "y") == b"OK"
    assert await wire("QRPOP", "foo") == [b"b", b"y"]
    given_back = time.time()
    assert await wire("QLATER", "foo", 1000, "b", "why") == 1
    await first.stop()
    other = await (await serve()).connect()
    assert await other("QRPOP", "foo", "WAIT", LONG, "TELL", "EX", 0) == [b"b", b"y", 2]
    assert time.time() - given_back > 0.99
    assert await other("QRPOP", "foo", "WAIT", LONG, "TELL", "EX", 0) == [b"a", b"x", 1]
    assert time.time() - begun > 1.49


async def test_redis_restarts_during_the_delay(serve: Serve, own: EmbeddedServer) -> None:
    served: Served = await serve(url=own.url)
    wire = await served.connect()
    begun = time.time()
    assert await wire("QDELAY", "foo", 1000, "a", "x") == b"OK"
    with redis.Redis.from_url(own.url) as direct:
        direct.save()
    own.stop()
    own.start()
    assert await wire("QRPOP", "foo", "WAIT", LONG) == [b"a", b"x"]
    assert time.time() - begun > 0.99
    await served.stop()  # before Redis, which ends before the fixture


async def test_flushall_takes_what_is_delayed(serve: Serve, own: EmbeddedServer) -> None:
    served: Served = await serve(url=own.url)
    wire = await served.connect()
    assert await wire("QDELAY", "foo", 200, "a", "x") == b"OK"
    with redis.Redis.from_url(own.url) as direct:
        direct.flushall()
    assert await wire("QRPOP", "foo", "WAIT", "0.5") is None
    assert await wire("QDELAY", "foo", 5, "a", "x") == b"OK"
    assert await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0) == [b"a", b"x"]
    await served.stop()


@pytest.mark.parametrize("key", [DELAYED, LATER])
async def test_a_key_of_another_type_is_an_error_and_nothing_is_lost(wire: Wire, db: redis.Redis, key: str) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QRPOP", "foo") == [b"a", b"x"]
    db.set(key, "x")
    assert await wire("QREGISTER", "foo") == b"OK"
    for command in (("QDELAY", "foo", 5, "b", "y"), ("QLATER", "foo", 5, "a", "why"), ("QRPOP", "foo")):
        assert "WRONGTYPE" in await wire(*command)
    assert await wire("QNOTIFY", 1) is None
    db.delete(key)
    assert await wire("QLATER", "foo", 5, "a", "why") == 1
    assert await wire("QRPOP", "foo", "WAIT", LONG, "TELL") == [b"a", b"x", 2]


async def test_a_full_redis_refuses_what_is_new_and_makes_the_rest_due(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QDELAY", "foo", 100, "a", "x") == b"OK"
    assert await wire("QLPUSH", "foo", "b", "y") == b"OK"
    assert await wire("QRPOP", "foo") == [b"b", b"y"]
    db.config_set("maxmemory", 1)
    try:
        assert "ERR" in await wire("QDELAY", "foo", 5, "c", "z")
        assert await wire("QLATER", "foo", 100, "b", "") == 1
        got = [await wire("QRPOP", "foo", "WAIT", LONG, "EX", 0) for _ in range(2)]
    finally:
        db.config_set("maxmemory", 0)
    assert sorted(got) == [[b"a", b"x"], [b"b", b"y"]]
    assert await delayed(wire) == 0
