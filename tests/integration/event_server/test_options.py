"""QLPUSH with NOWAIT never waits for room, and QRPOP with WAIT 0 says that a queue is closed."""

from __future__ import annotations

from apressure import EventQueue
from tests.integration.event_server.conftest import Served, Wire


async def test_nowait(wire: Wire, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.create(bound=3)
        assert await wire("QLPUSH", "foo", 1, "x", "NOWAIT") == b"OK"
        assert await wire("QRPUSH", "foo", 0, "x", "nowait") == b"OK"
        assert await wire("QLPUSH", "foo", 1, "x", "NOWAIT") == "ERR duplicate event 1"
        full = "ERR queue full: the first {} of {} events are in the queue"
        assert await wire("QLPUSH", "foo", 1, "x", 2, "x", 3, "x", "NOWAIT") == full.format(2, 3)
        assert await wire("QLPUSH", "foo", 3, "x", "NOWAIT") == full.format(0, 1)
        assert await queue.get_many(10) == [b"x"] * 3
        await queue.close()
        assert await wire("QLPUSH", "foo", 3, "x", "NOWAIT") == "ERR queue closed"
    assert "neither NOBLOCK, nor NOWAIT" in await wire("QLPUSH", "foo", 3, "x", "LATER")


async def test_pipelined_nowait(wire: Wire, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        await queue.create(bound=50)
        for number in range(80):
            wire.send("QLPUSH", "foo", number, "x", "NOWAIT")
        replies = [await wire.reply() for _ in range(80)]
        assert replies[:50] == [b"OK"] * 50
        assert {str(reply) for reply in replies[50:]} == {"ERR queue full: the first 0 of 1 events are in the queue"}
        assert await queue.qsize() == 50


async def test_pop_with_wait_0_says_that_the_queue_is_closed(okq: Served, url: str) -> None:
    wire = await okq.connect()
    async with EventQueue("foo", url=url) as queue:
        await queue.put(b"x", id="1")
        await queue.close()
        assert await wire("QRPOP", "foo", "EX", 0, "WAIT", 0, "COUNT", 5) == [[b"1", b"x"]]
        assert await wire("QRPOP", "foo", "COUNT", 5) == []
        assert await wire("QRPOP", "foo", "WAIT", 0) == "ERR queue closed"
        for _ in range(3):  # also those that share a step
            wire.send("QRPOP", "foo", "WAIT", 0)
            wire.send("QRPOP", "foo")
        replies = [await wire.reply() for _ in range(6)]
        assert [str(reply) for reply in replies] == ["ERR queue closed", "None"] * 3
    assert await wire("QRPOP", "bar", "WAIT", 0) is None
