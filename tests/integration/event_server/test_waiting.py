"""Commands that wait: for events, for room, in the background; and what ends a wait."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from apressure import Client
from apressure.embedded import EmbeddedServer
from apressure.events.engine.steps import EventSteps
from apressure.events.server import queues
from tests import event_steps
from tests.integration.conftest import eventually
from tests.integration.event_server.conftest import Serve, Served, Wire, packed
from tests.servers import frozen

LONG = 80  # seconds: a wait that reaches it has missed its event, and the test fails


async def limited(url: str, name: str = "foo", bound: int = 1) -> None:
    async with Client(url) as client:
        await EventSteps(client, name).create(bound)


async def length(wire: Wire, name: str = "foo") -> int:
    total: int = (await wire("QSTATUS", name))[0][1]
    return total


async def test_notify_returns_at_once_when_a_registered_queue_has_an_event(okq: Served, wire: Wire) -> None:
    assert await wire("QLPUSH", "b", 1, "x") == b"OK"
    assert await wire("QREGISTER", "a", "b") == b"OK"
    assert await wire("QNOTIFY", LONG) == b"b"
    assert await wire("QNOTIFY", 0) == b"b"
    assert await wire("QREGISTER", "a") == b"OK"
    assert await wire("QNOTIFY", 0) is None
    assert await wire("QNOTIFY", "0.05") is None
    assert await wire("QREGISTER") == b"OK"
    assert await wire("QNOTIFY", "0.05") is None


async def test_a_client_registers_for_more_queues_than_are_kept(
    serve: Serve, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "KEPT", 3)
    monkeypatch.setattr(queues, "REFRESH", 0.05)
    okq = await serve()
    wire, other = await okq.connect(), await okq.connect()
    names = [f"q{number}" for number in range(10)]
    assert await wire("QREGISTER", *names, names[0]) == b"OK"
    assert await other("QRPOP", names[0], "WAIT", "0.05") is None
    wire.send("QNOTIFY", LONG)
    await asyncio.sleep(0.1)
    assert await other("QLPUSH", names[0], 1, "x") == b"OK"
    assert await wire.reply() == names[0].encode()

    keys = [f"queue:{{{name}}}:consumers" for name in names]
    db.delete(*keys)
    await eventually(lambda: db.exists(*keys) == len(keys))  # each gives a sign of life
    await wire.close()
    await eventually(lambda: not db.exists(*keys))


async def test_notify_checks_queues_in_random_order(wire: Wire) -> None:
    for name in "abcd":
        await wire("QLPUSH", name, 1, "x")
    assert await wire("QREGISTER", *"abcd") == b"OK"
    assert {await wire("QNOTIFY", 1) for _ in range(100)} == {b"a", b"b", b"c", b"d"}


@pytest.mark.parametrize("foreign", [False, True], ids=["through the server", "by an okq beside it"])
async def test_all_clients_in_notify_learn_of_an_event(okq: Served, db: redis.Redis, foreign: bool) -> None:
    waiting = [await okq.connect() for _ in range(10)]
    for one in waiting:
        assert await one("QREGISTER", "foo", "bar") == b"OK"
        one.send("QNOTIFY", LONG)
    await asyncio.sleep(0.1)
    if foreign:
        db.hset("queue:{bar}:items", "id", "x")
        db.lpush("queue:{bar}", "id")
        db.publish("queue:{bar}", "id")
    else:
        await (await okq.connect())("QLPUSH", "bar", "id", "x")
    assert [await one.reply() for one in waiting] == [b"bar"] * 10


async def test_pop_waits_for_an_event_and_clients_are_served_in_order(okq: Served, wire: Wire) -> None:
    waiting = [await okq.connect() for _ in range(5)]
    for one in waiting:
        one.send("QRPOP", "foo", "WAIT", LONG, "EX", 60)
        await one.writer.drain()
        await asyncio.sleep(0.05)
    for number, one in enumerate(waiting):
        assert await wire("QLPUSH", "foo", number, "x") == b"OK"
        assert await one.reply() == [b"%d" % number, b"x"]
    assert await wire("QRPOP", "foo", "WAIT", "0.05") is None
    assert await wire("QRPOP", "foo", "WAIT", "0.05", "COUNT", 3) == []


async def test_a_batch_wakes_as_many_waiting_clients_as_it_has_events(okq: Served, wire: Wire) -> None:
    waiting = [await okq.connect() for _ in range(6)]
    for one in waiting:
        one.send("QRPOP", "foo", "WAIT", LONG)
    await eventually(lambda: all(one.writer.transport.get_write_buffer_size() == 0 for one in waiting))
    assert await wire("QLPUSH", "foo", *(part for n in range(6) for part in (n, "x"))) == b"OK"
    assert sorted([(await one.reply())[0] for one in waiting]) == [b"%d" % n for n in range(6)]


async def test_an_event_for_a_client_that_has_gone_goes_to_the_next(okq: Served, wire: Wire) -> None:
    first, second = await okq.connect(), await okq.connect()
    for one in (first, second):
        one.send("QRPOP", "foo", "WAIT", LONG)
        await one.writer.drain()
        await asyncio.sleep(0.05)
    await first.close()
    await asyncio.sleep(0.05)
    assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
    assert await second.reply() == [b"1", b"x"]


@pytest.mark.parametrize("command", [("QRPOP", "foo", "WAIT", LONG), ("QNOTIFY", LONG)], ids=lambda one: one[0])
async def test_an_expired_event_wakes_those_who_wait(okq: Served, wire: Wire, command: tuple[object, ...]) -> None:
    waiting = await okq.connect()
    assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
    assert await wire("QRPOP", "foo", "EX", "0.3") == [b"1", b"x"]
    assert await waiting("QREGISTER", "foo") == b"OK"
    waiting.send(*command)  # type: ignore[arg-type]
    assert await waiting.reply() in (b"foo", [b"1", b"x"])


async def test_a_claim_of_a_server_that_died_comes_back(okq: Served, wire: Wire, url: str) -> None:
    async with Client(url) as client:
        steps = EventSteps(client, "foo")
        await event_steps.push(steps, [(b"1", b"x")])
        await event_steps.pop(steps, lease=0.3)
    assert await wire("QREGISTER", "foo") == b"OK"
    assert await wire("QNOTIFY", LONG) == b"foo"


async def test_push_waits_for_room_in_order(okq: Served, wire: Wire, url: str) -> None:
    await limited(url, bound=2)
    assert await wire("QLPUSH", "foo", "a", "x", "b", "x") == b"OK"
    pushing = [await okq.connect() for _ in range(4)]
    for number, one in enumerate(pushing):
        one.send("QLPUSH", "foo", number, "x")
        await one.writer.drain()
        await asyncio.sleep(0.05)
    assert await length(wire) == 2
    popped = []
    for one in pushing:
        popped.append((await wire("QRPOP", "foo", "EX", 0))[0])
        assert await one.reply() == b"OK"
        assert await length(wire) <= 2
    popped += [one[0] for one in await wire("QRPOP", "foo", "COUNT", 5, "EX", 0)]
    assert popped == [b"a", b"b", b"0", b"1", b"2", b"3"]


async def test_a_pipeline_into_a_full_queue_stays_in_order(okq: Served, wire: Wire, url: str) -> None:
    await limited(url, bound=3)
    pushing = await okq.connect()
    for number in range(50):
        pushing.send("QLPUSH", "foo", number, "x")
    pushing.send("PING")
    popped = []
    while len(popped) < 50:
        found = await wire("QRPOP", "foo", "EX", 0, "WAIT", LONG)
        popped.append(int(found[0]))
        assert await length(wire) <= 3
    assert popped == list(range(50))
    assert [await pushing.reply() for _ in range(51)] == [b"OK"] * 50 + [b"PONG"]


async def test_a_batch_larger_than_the_bound_goes_in_bit_by_bit(okq: Served, wire: Wire, url: str) -> None:
    await limited(url, bound=3)
    pushing = await okq.connect()
    pushing.send("QLPUSH", "foo", *(part for n in range(20) for part in (n, "x")))
    popped = [int((await wire("QRPOP", "foo", "EX", 0, "WAIT", LONG))[0]) for _ in range(20)]
    assert popped == list(range(20))
    assert await pushing.reply() == b"OK"


async def test_replies_of_pushes_before_one_that_waits_come_first(okq: Served, wire: Wire, url: str) -> None:
    await limited(url, bound=1)
    await wire.raw(packed("QLPUSH", "foo", 1, "x") + packed("QLPUSH", "foo", 2, "x"), b"+OK\r\n")
    assert await (await okq.connect())("QRPOP", "foo", "EX", 0) == [b"1", b"x"]
    assert await wire.reply() == b"OK"


async def test_a_client_that_goes_while_it_waits_for_room_pushes_nothing(okq: Served, wire: Wire, url: str) -> None:
    await limited(url)
    assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
    waiting = await okq.connect()
    waiting.send("QLPUSH", "foo", 2, "x")
    await asyncio.sleep(0.1)
    await waiting.close()
    await asyncio.sleep(0.1)
    assert await wire("QRPOP", "foo", "EX", 0) == [b"1", b"x"]
    assert await wire("QRPOP", "foo", "WAIT", "0.3") is None


async def test_noblock_is_refused_by_a_full_queue_and_a_closed_one(okq: Served, wire: Wire, url: str) -> None:
    await limited(url)
    assert await wire("QLPUSH", "foo", 1, "x", "NOBLOCK") == b"OK"
    assert await wire("QLPUSH", "foo", 2, "x", "NOBLOCK") == "ERR queue full: 0 of 1 events were added"
    assert await wire("QLPUSH", "foo", 1, "x", "NOBLOCK") == "ERR duplicate event 1"
    async with Client(url) as client:
        await EventSteps(client, "foo").close()
    assert await wire("QLPUSH", "foo", 3, "x", "noblock") == "ERR queue closed"
    assert await wire("QLPUSH", "foo", 3, "x") == "ERR queue closed"
    assert await wire("QRPOP", "foo", "EX", 0) == [b"1", b"x"]
    assert await wire("QRPOP", "foo") is None
    assert await wire("QRPOP", "foo", "WAIT", LONG) == "ERR queue closed"


async def test_noblock_answers_before_the_event_is_stored(serve: Serve, db: redis.Redis) -> None:
    served: Served = await serve(workers=3)
    wire = await served.connect()
    assert await wire("QLPUSH", "foo", 0, "x", "NOBLOCK") == b"OK"
    await eventually(lambda: db.llen("queue:{foo}") == 1)
    db.client_pause(1_000_000, all=False)
    try:
        assert [await wire("QRPUSH", "foo", n, "x", "NOBLOCK") for n in range(1, 4)] == [b"OK"] * 3
        assert await wire("QLPUSH", "foo", 9, "x", "NOBLOCK") == "ERR too busy to process NOBLOCK event"
    finally:
        db.client_unpause()
    await eventually(lambda: db.llen("queue:{foo}") == 4)
    async with asyncio.timeout(LONG):
        while await wire("QLPUSH", "foo", 9, "x", "NOBLOCK") != b"OK":
            await asyncio.sleep(0.01)


async def test_noblock_answers_while_redis_does_not(
    okq: Served, wire: Wire, db: redis.Redis, server: EmbeddedServer
) -> None:
    with frozen(server):
        assert await wire("QLPUSH", "foo", 1, "x", "NOBLOCK") == b"OK"  # after a second: its bound is not known
    await eventually(lambda: db.llen("queue:{foo}") == 1)


async def test_without_workers_there_is_no_noblock(serve: Serve) -> None:
    wire = await (await serve(workers=0)).connect()
    assert await wire("QLPUSH", "foo", 9, "x", "NOBLOCK") == "ERR too busy to process NOBLOCK event"


async def test_a_stopping_server_ends_waits_and_finishes_what_was_accepted(
    serve: Serve, url: str, db: redis.Redis
) -> None:
    served: Served = await serve()
    await limited(url)
    wires = [await served.connect() for _ in range(5)]
    popping, notified, pushing, noblock, idle = wires
    assert await noblock("QLPUSH", "foo", 1, "x") == b"OK"
    assert await notified("QREGISTER", "empty") == b"OK"
    popping.send("QRPOP", "empty", "WAIT", LONG)
    notified.send("QNOTIFY", LONG)
    pushing.send("QLPUSH", "foo", 2, "x")
    assert await idle("PING") == b"PONG"
    assert [await noblock("QLPUSH", "many", n, "x", "NOBLOCK") for n in range(100)] == [b"OK"] * 100
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await served.stop()
    assert time.monotonic() - began < LONG / 2
    assert await popping.reply() is None
    assert await notified.reply() is None
    assert "ERR the server stopped" in str(await pushing.reply())
    for one in wires:
        assert await one.ended() == b""
    assert db.llen("queue:{foo}") == 1
    assert db.llen("queue:{many}") == 100
    assert not db.exists("queue:{empty}:consumers")


async def test_registered_consumers_disappear_with_their_connection(okq: Served, wire: Wire) -> None:
    registered = [await okq.connect() for _ in range(3)]
    for one in registered:
        assert await one("QREGISTER", "foo", "bar") == b"OK"
    assert await registered[0]("QREGISTER", "bar") == b"OK"
    assert await wire("QSTATUS", "foo", "bar") == [[b"foo", 0, 0, 2], [b"bar", 0, 0, 3]]
    registered[1].send("QNOTIFY", LONG)
    await registered[1].writer.drain()
    await registered[1].close()
    registered[2].writer.transport.abort()
    async with asyncio.timeout(LONG):
        while await wire("QSTATUS", "foo", "bar") != [[b"foo", 0, 0, 0], [b"bar", 0, 0, 1]]:
            await asyncio.sleep(0.01)


async def test_two_servers_share_one_redis(serve: Serve, url: str) -> None:
    first, second = await serve(), await serve()
    here, there = await first.connect(), await second.connect()
    assert await there("QREGISTER", "foo") == b"OK"
    there.send("QNOTIFY", LONG)
    await asyncio.sleep(0.1)
    assert await here("QSTATUS", "foo") == [[b"foo", 0, 0, 1]]
    assert await here("QLPUSH", "foo", 1, "x") == b"OK"
    assert await there.reply() == b"foo"
    assert await there("QRPOP", "foo") == [b"1", b"x"]
    assert await here("QACK", "foo", 1) == 1
    await limited(url, "bound")
    assert await here("QLPUSH", "bound", 1, "x") == b"OK"
    here.send("QLPUSH", "bound", 2, "x")
    await asyncio.sleep(0.1)
    assert await there("QRPOP", "bound", "EX", 0) == [b"1", b"x"]
    assert await here.reply() == b"OK"
    here.send("QRPOP", "foo", "WAIT", LONG)
    await asyncio.sleep(0.1)
    assert await there("QRPUSH", "foo", 2, "y") == b"OK"
    assert await here.reply() == [b"2", b"y"]
    assert await there("QACK", "foo", 2, "REDO") == 1


async def test_waiting_goes_on_after_redis_was_gone(serve: Serve, make_server: object) -> None:
    own = make_server()  # type: ignore[operator]
    served: Served = await serve(url=own.url)
    wire, other = await served.connect(), await served.connect()
    assert await wire("QREGISTER", "foo") == b"OK"
    wire.send("QNOTIFY", LONG)
    other.send("QRPOP", "bar", "WAIT", LONG)
    await asyncio.sleep(0.1)
    with redis.Redis.from_url(own.url) as direct:
        direct.client_kill_filter(_type="pubsub")
        direct.client_kill_filter(_type="normal", skipme=True)
    third = await served.connect()
    assert await third("QLPUSH", "bar", 1, "x") == b"OK"
    assert await other.reply() == [b"1", b"x"]
    assert await third("QLPUSH", "foo", 1, "x") == b"OK"
    assert await wire.reply() == b"foo"
    await served.stop()  # before Redis, which ends before the fixture


async def test_a_server_stops_also_when_redis_is_gone(serve: Serve, make_server: object) -> None:
    own = make_server()  # type: ignore[operator]
    served: Served = await serve(url=own.url, drain=0.5)
    wires = [await served.connect() for _ in range(3)]
    assert await wires[0]("QREGISTER", "foo") == b"OK"
    own.stop()
    wires[1].send("QLPUSH", "foo", 1, "x")
    wires[2].send("QRPOP", "foo", "WAIT", LONG)
    await asyncio.sleep(0.3)
    await served.stop()
    for one in wires:
        await one.ended()
