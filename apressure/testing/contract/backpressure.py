"""The part of the contract that is about producers that wait for room."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import UTC, datetime

import pytest

from apressure.core import backpressure, registration
from apressure.testing.contract.steps import QUICK, Opener, begun, in_time, waiting


class BackpressureContract:
    """Producers that wait since a queue is full are seen there, as long as they wait.

    Attributes:
        together: Puts of several objects can wait at a time, and delayed ones with them.
    """

    together = True

    @pytest.fixture(autouse=True)
    def quick_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have looks and beats come quickly."""
        for name in ("PATIENCE", "BEAT", "SPREAD", "CHANGED"):
            monkeypatch.setattr(backpressure, name, QUICK)
        monkeypatch.setattr(registration, "BEAT", QUICK)

    async def test_a_producer_is_seen_while_its_put_waits_and_no_longer(self, open_queue: Opener) -> None:
        queue, full = await open_queue(), await open_queue()
        await queue.create(1)
        await queue.put(b"1")
        began = datetime.now(UTC)
        put = await begun(full.put(b"2"))
        (producer,) = await waiting(queue)
        assert producer.id == registration.worker_id()
        assert (producer.host, producer.pid, producer.puts) == (socket.gethostname(), os.getpid(), 1)
        assert producer.version
        assert abs((producer.since - began).total_seconds()) < 30
        (later,) = await waiting(queue, lambda found: found[0].seen > producer.seen)
        assert abs((later.since - producer.since).total_seconds()) < 0.5
        statistics = await queue.statistics()
        assert statistics.workers == ()
        assert await queue.drain(producer.id) == 0
        assert await queue.get(timeout=5) == b"1"
        await in_time(put)
        await waiting(queue, lambda found: not found)

    async def test_the_puts_of_an_object_are_one_producer(self, open_queue: Opener) -> None:
        queue, one, other = await open_queue(), await open_queue(), await open_queue()
        await queue.create(1)
        await queue.put(b"1")
        puts = [
            await begun(one.put(b"2")),
            await begun(one.put_many([b"3", b"4"])),
            await begun(one.put(b"5", **({"delay": 1} if self.together else {}))),
        ]
        await waiting(queue, lambda found: [producer.puts for producer in found] == [3])
        if self.together:
            puts.append(await begun(other.put(b"6")))
            first, second = await waiting(queue, lambda found: len(found) == 2)
            assert (first.puts, second.puts) == (3, 1)
            assert first.since < second.since
        for put in puts:
            put.cancel()
        await in_time(asyncio.wait(puts))
        await waiting(queue, lambda found: not found)
        assert await queue.get(timeout=5) == b"1"
        assert (await queue.statistics()).length == 0

    async def test_what_does_not_change_is_told_seldom_and_what_changes_soon(
        self, open_queue: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backpressure, "BEAT", 3600.0)
        queue, full = await open_queue(), await open_queue()
        await queue.create(1)
        await queue.put(b"1")
        puts = [await begun(full.put(b"2"))]
        (first,) = await waiting(queue)
        (later,) = await waiting(queue, lambda found: found[0].waited > first.waited + 5 * QUICK)
        assert (later.seen, later.since, later.puts) == (first.seen, first.since, 1)
        puts.append(await begun(full.put(b"3")))
        await waiting(queue, lambda found: found[0].puts == 2)
        assert await queue.get(timeout=5) == b"1"
        done, left = await in_time(asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED))
        (after,) = await waiting(queue, lambda found: found and found[0].puts == 1)
        assert ((after.since - first.since).total_seconds() > 2 * QUICK) == (puts[0] in done)
        await queue.get(timeout=5)
        await in_time(asyncio.gather(*left))
        await waiting(queue, lambda found: not found)

    async def test_a_put_that_waits_for_less_tells_nothing(
        self, open_queue: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue, full = await open_queue(), await open_queue()
        await queue.create(1)
        beats: list[bytes] = []
        monkeypatch.setattr(full.registry, "beat", lambda name, *_: beats.append(name))
        monkeypatch.setattr(backpressure, "PATIENCE", 0.5)
        for number in range(20):
            await queue.put(b"%d" % number)
            put = await begun(full.put(b"more"))
            assert await queue.get(timeout=5) == b"%d" % number
            await in_time(put)
            assert await queue.get(timeout=5) == b"more"
        await asyncio.sleep(0.6)
        assert beats == []

    async def test_a_producer_whose_object_is_closed_is_not_seen(self, open_queue: Opener) -> None:
        queue, full = await open_queue(), await open_queue()
        await queue.create(1)
        await queue.put(b"1")
        put = await begun(full.put(b"2"))
        await waiting(queue)
        await full.aclose()
        await in_time(asyncio.wait((put,)))
        await waiting(queue, lambda found: not found)

    async def test_a_timeout_ends_the_wait(self, open_queue: Opener) -> None:
        queue, full = await open_queue(), await open_queue()
        await queue.create(1)
        await queue.put(b"1")
        put = await begun(full.put(b"2", timeout=4 * QUICK))
        await waiting(queue)
        await in_time(asyncio.wait((put,)))
        await waiting(queue, lambda found: not found)

    async def test_a_consumer_that_waits_is_no_waiting_producer(self, open_queue: Opener) -> None:
        queue, empty = await open_queue(), await open_queue()
        await queue.create(1)
        get = await begun(empty.get())
        await asyncio.sleep(3 * QUICK)
        assert (await queue.statistics()).waiting_producers == ()
        await queue.put(b"1")
        assert await in_time(get) == b"1"
