"""QLIMIT: for what limits keep, QRPOP answers nil; those who wait get it when the limits let it through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import pytest
import redis

from apressure import EventQueue, QueueDoesNotExistError, QueueEmptyError, ServerTooOldError
from apressure.core.limits import UNLIMITED, Limits, Rate
from apressure.events.server import queues
from tests.integration.conftest import PATIENCE
from tests.integration.event_server.conftest import Served, Wire
from tests.okq_server import OkqServer

HOUR = 3600.0
HOUR_MS = 3_600_000
LONG = 80  # seconds: a wait that reaches it has missed what it waits for, and the test fails


class Open(Protocol):
    """`await open_queue()`: an open queue on the server of the test; each has a client of its own."""

    async def __call__(self, **options: Any) -> EventQueue[Any]: ...


@pytest.fixture
async def open_queue(okq: Served) -> AsyncIterator[Open]:
    async with contextlib.AsyncExitStack() as stack:

        async def opener(**options: Any) -> EventQueue[Any]:
            queue: EventQueue[Any] = EventQueue("foo", url=f"okq://127.0.0.1:{okq.address.port}", **options)
            return await stack.enter_async_context(queue)

        yield opener


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not look at its queues by itself: what wakes those who wait is what has been told."""
    monkeypatch.setattr(queues, "WATCH", 600.0)
    monkeypatch.setattr(queues, "REFRESH", 600.0)


async def in_time(operation: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await operation


# The commands.


async def test_a_limited_queue_hands_out_what_its_limits_allow(wire: Wire) -> None:
    assert await wire("QLIMIT", "foo", "count", 1, "per", 1000) == "ERR no such queue"
    assert await wire("QREGISTER", "foo") == b"OK"
    assert await wire("QLPUSH", "foo", 1, "a", 2, "b", 3, "c") == b"OK"
    assert await wire("QLIMIT", "foo", "COUNT", 2, "per", HOUR_MS, "burst", 2, "concurrency", 5) == b"OK"
    assert (await wire("QLOOK", "foo"))[12:] == [0, 2, HOUR_MS, 2, 5]
    assert await wire("QRPOP", "foo", "COUNT", 5) == [[b"1", b"a"], [b"2", b"b"]]
    assert await wire("QRPOP", "foo") is None
    assert await wire("QRPOP", "foo", "COUNT", 5) == []
    assert await wire("QRPOP", "foo", "WAIT", "0.05") is None
    assert await wire("QNOTIFY", "0.05") is None
    told = await wire("QRPOP", "foo", "TELL")
    assert told.startswith(b"limited due=")
    assert 0 < int(told.partition(b"=")[2]) <= HOUR_MS
    assert await wire("QSTATUS", "foo") == [[b"foo", 3, 2, 1]]
    assert await wire("QLIMIT", "foo", "count", "", "per", "", "burst", "", "concurrency", 2) == b"OK"
    assert await wire("QRPOP", "foo", "TELL") == b"limited"  # no time ends that
    assert await wire("QACK", "foo", 1) == 1
    assert await wire("QNOTIFY", LONG) == b"foo"
    assert await wire("QRPOP", "foo") == [b"3", b"c"]
    assert await wire("QLIMIT", "foo", "concurrency", 0, "held", HOUR_MS) == b"OK"
    assert 0 < (await wire("QLOOK", "foo"))[12] <= HOUR_MS
    assert await wire("QLIMIT", "foo", "held", 0) == b"OK"
    assert (await wire("QLOOK", "foo"))[12:] == [0] * 5


async def test_the_bound_is_changed(wire: Wire) -> None:
    assert await wire("QCREATE", "foo", 1) == 1
    assert await wire("QLPUSH", "foo", 1, "a") == b"OK"
    assert await wire("QLIMIT", "foo", "BOUND", 2) == b"OK"
    assert (await wire("QLOOK", "foo"))[2] == 2
    assert await wire("QLPUSH", "foo", 2, "b") == b"OK"
    assert await wire("QLIMIT", "foo", "bound", "") == b"OK"
    assert (await wire("QLOOK", "foo"))[2] == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("count", 1, "per"), "ERR missing args"),
        (
            ("speed", 1),
            'ERR syntax error: QLIMIT has the limits count, per, burst, concurrency, held, bound, not "speed"',
        ),
        (("count", "x", "per", 1), "ERR bad count value"),
        (("concurrency", -1), "ERR bad concurrency value"),
        (("held", 10**10), "ERR bad held value"),
        (("bound", 10**13), "ERR bad bound value"),
        (("bound", 5, "concurrency", 1), "ERR syntax error: QLIMIT changes the bound alone"),
        (("count", 1), "ERR a rate is given as a whole"),
        (("per", 1000), "ERR a rate is given as a whole"),
        (("burst", 1), "ERR a rate is given as a whole"),
        (("count", 5000, "per", 1), "ERR bad count value: a rate can be up to"),
    ],
)
async def test_what_is_wrong_changes_nothing(wire: Wire, arguments: tuple[Any, ...], error: str) -> None:
    assert await wire("QCREATE", "foo", 0) == 1
    assert (await wire("QLIMIT", "foo", *arguments)).startswith(error)
    assert (await wire("QLOOK", "foo"))[12:] == [0] * 5
    assert await wire("QDELETE", "foo") == b"OK"


async def test_damaged_limits_are_an_error_and_lose_nothing(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QREGISTER", "foo") == b"OK"
    assert await wire("QLPUSH", "foo", 1, "a") == b"OK"
    control = "apressure:queue:{foo}:control"
    db.hset(control, "count", "many")
    for command in (("QRPOP", "foo"), ("QRPOP", "foo", "WAIT", "0.05"), ("QNOTIFY", "0.05")):
        assert "is not a number" in await wire(*command)
    db.delete(control)
    db.set(control, "x")
    for command in (("QRPOP", "foo"), ("QLIMIT", "foo", "held", "5"), ("QLOOK", "foo")):
        assert "WRONGTYPE" in await wire(*command)
    db.delete(control)
    assert await wire("QRPOP", "foo") == [b"1", b"a"]


# Clients that wait.


async def line_of(okq: Served, count: int, *command: str | int) -> list[Wire]:
    """Have clients wait, one behind the other."""
    wires = [await okq.connect() for _ in range(count)]
    for one in wires:
        one.send(*command)
        await asyncio.sleep(0.05)
    return wires


async def test_clients_that_wait_are_served_in_order_as_the_rate_allows(seldom: None, okq: Served, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.create()
        await queue.set_rate(1, 0.1)
        wires = await line_of(okq, 5, "QRPOP", "foo", "WAIT", LONG)
        await queue.put_many([b"%d" % number for number in range(5)])
        assert [(await one.reply())[1] for one in wires] == [b"%d" % number for number in range(5)]
        await queue.delete()


CHANGES: dict[str, Callable[[EventQueue[Any]], Awaitable[Any]]] = {
    "rate": lambda queue: queue.set_rate(None),
    "hold": lambda queue: queue.hold(0),
    "concurrency": lambda queue: queue.set_concurrency(None),
}


@pytest.mark.parametrize("limit", CHANGES)
@pytest.mark.parametrize("command", [("QNOTIFY", LONG), ("QRPOP", "foo", "WAIT", LONG)], ids=["QNOTIFY", "QRPOP"])
async def test_those_who_wait_learn_of_a_change(
    seldom: None, okq: Served, url: str, limit: str, command: tuple[str | int, ...]
) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.put_many([b"0", b"1", b"2", b"3"])
        await queue.set_rate(1, HOUR) if limit == "rate" else await queue.set_concurrency(1)
        delivery = await queue.receive()
        if limit == "hold":
            await queue.set_concurrency(None)
            await queue.hold(HOUR)
        waiting = [await okq.connect() for _ in range(3)]
        for one in waiting:
            assert await one("QREGISTER", "foo") == b"OK"
            one.send(*command)
        await asyncio.sleep(0.3)
        await CHANGES[limit](queue)
        replies = [await one.reply() for one in waiting]
        if command[0] == "QNOTIFY":
            assert replies == [b"foo"] * 3
        else:
            assert sorted(reply[1] for reply in replies) == [b"1", b"2", b"3"]
        await delivery.ack()


@pytest.mark.parametrize("by", ["the server", "a client of Redis", "the end of a lease"])
async def test_a_place_in_flight_goes_to_the_next_client(
    seldom: None, okq: Served, wire: Wire, url: str, by: str
) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.put_many([b"0", b"1", b"2"])
        await queue.set_concurrency(1)
        if by == "the end of a lease":
            assert (await wire("QRPOP", "foo", "EX", "0.3"))[1] == b"0"
        elif by == "the server":
            event = (await wire("QRPOP", "foo"))[0]
        else:
            delivery = await queue.receive()
        first, second = await line_of(okq, 2, "QRPOP", "foo", "WAIT", LONG)
        if by == "the server":
            assert await wire("QACK", "foo", event) == 1
        elif by == "a client of Redis":
            await delivery.ack()
        event, item = await first.reply()
        assert item == (b"0" if by == "the end of a lease" else b"1")
        assert await wire("QACK", "foo", event) == 1
        assert (await second.reply())[1] == (b"1" if by == "the end of a lease" else b"2")


async def test_a_client_that_gives_up_leaves_its_turn_to_the_next_one(seldom: None, okq: Served, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.put_many([b"0", b"1"])
        await queue.hold(HOUR)
        wires = await line_of(okq, 3, "QRPOP", "foo", "WAIT", LONG)
        for one in wires[:2]:
            await one.close()
        await queue.hold(0)
        assert (await wires[2].reply())[1] == b"0"


async def test_a_closed_queue_waits_for_what_its_limits_keep(okq: Served, wire: Wire, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.create()
        await queue.put(b"1")
        await queue.hold(HOUR)
        await queue.close()
        assert (await wire("QRPOP", "foo", "WAIT", 0, "TELL")).startswith(b"limited created due=")
        wire.send("QRPOP", "foo", "WAIT", LONG)
        await asyncio.sleep(0.1)
        await queue.hold(0)
        event, item = await wire.reply()
        assert (item, await wire("QACK", "foo", event)) == (b"1", 1)
        assert await wire("QRPOP", "foo", "WAIT", LONG) == "ERR queue closed"
        await queue.delete()


# EventQueue with the address of a server.


async def test_a_remote_queue_is_limited_as_any_other(seldom: None, open_queue: Open, url: str) -> None:
    one, other = await open_queue(), await open_queue()
    with pytest.raises(QueueDoesNotExistError):
        await one.set_rate(1)
    await one.put_many([b"0", b"1", b"2"])
    assert await one.limits() == UNLIMITED
    await one.set_rate(1, HOUR, burst=1)
    await one.set_concurrency(2)
    assert await other.limits() == Limits(Rate(1, HOUR, 1), 2)
    async with EventQueue("foo", url=url) as direct:
        assert await direct.limits() == Limits(Rate(1, HOUR, 1), 2)
    delivery = await one.receive()
    with pytest.raises(QueueEmptyError, match=r"the limits of the queue 'foo' keep its messages: try again in \d+"):
        await other.receive(timeout=0)
    waiting = asyncio.create_task(other.receive())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await one.set_rate(None)
    second = await in_time(waiting)
    assert (delivery.raw, second.raw) == (b"0", b"1")
    with pytest.raises(QueueEmptyError, match="when one of those in flight is settled"):
        await other.receive(timeout=0)
    waiting = asyncio.create_task(other.receive())
    await asyncio.sleep(0.2)
    await delivery.ack()
    third = await in_time(waiting)
    assert third.raw == b"2"
    assert other._driver.waits.blocked.seconds().limited > 0
    for left in (second, third):
        await left.ack()


async def test_remote_consumers_share_a_rate(seldom: None, open_queue: Open) -> None:
    one, other = await open_queue(), await open_queue()
    await one.create()
    await one.set_rate(1, 0.05)
    await one.put_many(items := [b"%d" % number for number in range(12)])
    await one.close()

    async def all_of(queue: EventQueue[bytes]) -> list[bytes]:
        async with queue.consumer() as consumer:
            return [item async for item in consumer]

    first, second = await in_time(asyncio.gather(all_of(one), all_of(other)))
    assert sorted(first + second) == sorted(items)
    await one.delete()


async def test_remote_consumers_give_back_what_they_have_read_ahead_at_a_hold(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(items := [b"%d" % number for number in range(8)])
    async with queue.consumer(prefetch=4) as mine, other.consumer(prefetch=4, lease=1.0) as theirs:
        assert [await anext(mine), await anext(theirs)] == [b"0", b"4"]
        await queue.hold(HOUR)
        async with asyncio.timeout(PATIENCE):  # the other one learns of it when it renews its leases
            while (await queue.statistics()).in_flight > 2:
                await asyncio.sleep(0.05)
        await queue.hold(0)
        left = [await queue.receive(timeout=0) for _ in range(6)]
        assert sorted(one.raw for one in left) == [*items[1:4], *items[5:]]
        assert {one.attempts for one in left} == {1}
        for one in left:
            await one.ack()


async def test_a_released_okq_knows_no_limits() -> None:
    server = OkqServer()
    await server.start()
    try:
        async with EventQueue("foo", url=server.url) as queue:
            await queue.put(b"1")
            for operation in (queue.set_rate(1), queue.set_concurrency(1), queue.hold(1.0)):
                with pytest.raises(ServerTooOldError, match="has no QLIMIT"):
                    await operation
            assert await queue.limits() == UNLIMITED
            assert await queue.get() == b"1"
    finally:
        await server.stop()
