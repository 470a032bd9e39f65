"""A paused queue: QRPOP answers nil, QNOTIFY does not name it, and QSTATUS counts as usual."""

from __future__ import annotations

import asyncio

import pytest

from apressure import EventQueue
from tests.integration.event_server.conftest import Served, Wire

LONG = 80  # seconds: a wait that reaches it has missed the end of the pause, and the test fails


async def test_it_hands_out_nothing_until_it_is_resumed(wire: Wire, url: str) -> None:
    async with EventQueue("foo", url=url) as queue:
        assert await wire("QREGISTER", "foo", "bar") == b"OK"
        assert await queue.pause()
        assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
        assert await wire("QRPOP", "foo") is None
        assert await wire("QRPOP", "foo", "COUNT", 5) == []
        assert await wire("QRPOP", "foo", "WAIT", "0.05") is None
        assert await wire("QNOTIFY", "0.05") is None
        assert await wire("QSTATUS", "foo") == [[b"foo", 1, 0, 1]]
        assert await wire("QRPEEK", "foo") == [b"1", b"x"]
        assert await wire("QLPUSH", "bar", 2, "y") == b"OK"
        assert await wire("QNOTIFY", LONG) == b"bar"
        assert await wire("QREGISTER", "foo") == b"OK"
        await queue.resume()
        assert await wire("QNOTIFY", LONG) == b"foo"
        assert await wire("QRPOP", "foo") == [b"1", b"x"]
        await queue.pause()
        assert await wire("QEXTEND", "foo", 1, 20) == 1
        assert await wire("QACK", "foo", 1) == 1
        assert await wire("QRPOP", "bar") == [b"2", b"y"]


@pytest.mark.parametrize("command", [("QNOTIFY", LONG), ("QRPOP", "foo", "WAIT", LONG)], ids=["QNOTIFY", "QRPOP"])
async def test_clients_that_wait_learn_of_its_end(okq: Served, url: str, command: tuple[str | int, ...]) -> None:
    async with EventQueue("foo", url=url) as queue:
        waiting = [await okq.connect() for _ in range(3)]
        for one in waiting:
            assert await one("QREGISTER", "foo") == b"OK"
        await queue.pause()
        await queue.put_many([b"x", b"y", b"z"])
        for one in waiting:
            one.send(*command)
        await asyncio.sleep(0.2)
        await queue.resume()
        replies = [await one.reply() for one in waiting]
        if command[0] == "QNOTIFY":
            assert replies == [b"foo"] * 3
        else:
            assert sorted(reply[1] for reply in replies) == [b"x", b"y", b"z"]
