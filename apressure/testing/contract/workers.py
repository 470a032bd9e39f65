"""The part of the contract that is about those who work on a queue."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from apressure.core import registration
from apressure.core.workers import Letter, encode
from apressure.service.serve import serve
from apressure.testing.contract.steps import QUICK, Opener, in_time, seen


class WorkersContract:
    """What works on a queue is seen there, and can be drained."""

    @pytest.fixture(autouse=True)
    def quick_beats(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have beats come quickly."""
        monkeypatch.setattr(registration, "BEAT", QUICK)
        monkeypatch.setattr(registration, "FIRST", QUICK / 2)

    async def test_a_service_is_seen_while_it_works_and_no_longer(self, open_queue: Opener) -> None:
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        assert (await queue.statistics()).workers == ()
        allowed, began = asyncio.Event(), datetime.now(UTC)

        async def handle(item: bytes) -> None:
            if item == b"bad":
                raise ValueError(item)
            if item == b"slow":
                await allowed.wait()

        service = asyncio.ensure_future(serve(handle, working, concurrency=3, signals=(), shared=True))
        await queue.put_many([b"1", b"2", b"slow", b"slow"])
        (worker,) = await seen(queue, lambda found: found and found[0].handled == found[0].in_hand == 2)
        assert (worker.kind, worker.handler, worker.concurrency) == ("serve", "handle", 3)
        assert (worker.host, worker.pid) == (socket.gethostname(), os.getpid())
        assert worker.version
        assert not worker.draining
        assert abs((worker.since - began).total_seconds()) < 30
        assert worker.since <= worker.seen
        assert worker.oldest is not None
        assert worker.busy >= worker.oldest > 0
        await queue.put(b"bad")
        (worker,) = await seen(queue, lambda found: found[0].failed)
        allowed.set()
        (worker,) = await seen(queue, lambda found: found[0].handled == 4)
        assert worker.oldest is None
        assert worker.busy > 0
        service.cancel()
        await in_time(asyncio.wait((service,)))
        await seen(queue, lambda found: not found)

    async def test_a_drained_service_finishes_what_it_has_and_ends(self, open_queue: Opener) -> None:
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        allowed, handled = asyncio.Event(), []

        async def handle(item: bytes) -> None:
            await allowed.wait()
            handled.append(item)

        service = asyncio.ensure_future(serve(handle, working, prefetch=1, signals=(), shared=True))
        await queue.put(b"1")
        (worker,) = await seen(queue, lambda found: found and found[0].in_hand)
        assert await queue.drain(f"{worker.id}0") == await queue.drain(worker.id[:-1]) == await queue.drain("") == 0
        assert await queue.drain(worker.id) == 1
        assert (await queue.statistics()).workers[0].draining
        await asyncio.sleep(3 * QUICK)
        await queue.put(b"2")
        assert not service.done()
        allowed.set()
        served = await in_time(service)
        assert (served.handled, served.drained, served.signal) == (1, True, None)
        assert handled == [b"1"]
        await seen(queue, lambda found: not found)
        assert await queue.get(timeout=5) == b"2"
        assert await queue.drain(worker.id) == 0

    async def test_the_stack_of_a_handler_is_told_to_those_who_ask(self, open_queue: Opener) -> None:
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        allowed = asyncio.Event()

        async def wait_for_the_bank(secret: bytes) -> None:
            del secret
            await allowed.wait()

        async def handle(item: bytes) -> None:
            await wait_for_the_bank(item)

        service = asyncio.ensure_future(serve(handle, working, signals=(), shared=True))
        (worker,) = await seen(queue)
        assert worker.stack is None
        assert await queue.show_stack(worker.id) == 1
        (worker,) = await seen(queue, lambda found: found[0].stack is not None)
        assert worker.stack == ()
        await queue.put(b"card-4711")
        (worker,) = await seen(queue, lambda found: found[0].stack)
        outer, inner, *_ = worker.stack
        assert outer.startswith(f"{__file__}:")
        assert outer.endswith(".handle")
        assert inner.endswith(".wait_for_the_bank")
        assert worker.stack[-1].endswith(" in Event.wait")
        assert "4711" not in "".join(worker.stack)
        assert await queue.show_stack("nobody") == await queue.show_stack(worker.id[:-1]) == 0
        assert not worker.draining
        allowed.set()
        service.cancel()
        await in_time(asyncio.wait((service,)))

    async def test_the_stack_of_a_thread_is_told(self, open_queue: Opener) -> None:
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        allowed = threading.Event()

        def block(_: bytes) -> None:
            allowed.wait(60)

        with ThreadPoolExecutor(1) as executor:
            service = asyncio.ensure_future(serve(block, working, signals=(), shared=True, executor=executor))
            try:
                await queue.put(b"1")
                (worker,) = await seen(queue, lambda found: found and found[0].in_hand)
                assert await queue.show_stack(worker.id) == 1
                (worker,) = await seen(queue, lambda found: found[0].stack)
                assert [frame for frame in worker.stack if frame.endswith(".block")]
                assert worker.stack[-1].endswith(" in Event.wait") or "Condition" in worker.stack[-1]
            finally:
                allowed.set()
                service.cancel()
                await in_time(asyncio.wait((service,)))

    async def test_a_worker_that_shows_its_stack_drains(
        self, open_queue: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registration, "BEAT", 1.0)  # both are asked before the next beat
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        allowed = asyncio.Event()

        async def handle(_: bytes) -> None:
            await allowed.wait()

        service = asyncio.ensure_future(serve(handle, working, prefetch=1, signals=(), shared=True))
        await queue.put(b"1")
        (worker,) = await seen(queue)
        assert await queue.drain(worker.id) == await queue.show_stack(worker.id) == await queue.drain(worker.id) == 1
        assert (await queue.statistics()).workers[0].draining
        (worker,) = await seen(queue, lambda found: found[0].stack)
        assert worker.draining
        allowed.set()
        assert (await in_time(service)).drained

    async def test_a_block_is_seen_and_cannot_be_drained(self, open_queue: Opener) -> None:
        queue, working = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many([b"1", b"2"])
        async with working.consumer() as consumer:
            assert [await anext(consumer), await anext(consumer)] == [b"1", b"2"]
            (worker,) = await seen(queue, lambda found: found and found[0].handled)
            assert (worker.kind, worker.handler, worker.concurrency) == ("consumer", "", 1)
            assert (worker.handled, worker.oldest, worker.busy) == (1, None, 0)
            assert await queue.drain(worker.id) == await queue.show_stack(worker.id) == 0
            assert not (await queue.statistics()).workers[0].draining
        await seen(queue, lambda found: not found)

    async def test_one_id_is_drained_wherever_it_serves(self, open_queue: Opener) -> None:
        queue, first, second = await open_queue(), await open_queue(), await open_queue()
        await queue.create()

        async def handle(_: bytes) -> None:
            pass

        services = [asyncio.ensure_future(serve(handle, one, signals=(), shared=True)) for one in (first, second)]
        one, other = await seen(queue, lambda found: len(found) == 2)
        assert one.id == other.id
        assert await queue.drain(one.id) == 2
        assert [served.drained for served in await in_time(asyncio.gather(*services))] == [True, True]

    async def test_what_tells_nothing_any_more_is_not_seen(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        record = encode(
            {"kind": "serve", "handler": "handle", "host": "far", "pid": 7, "version": "1", "age": 60.5,
             **registration.Doing(3, 2, 1)._asdict()}
        )  # fmt: skip
        answers: asyncio.Queue[Any] = asyncio.Queue()
        for name, lasts in ((b"short/1", 0.3), (b"long/1", 60)):
            other.registry.beat(name, Letter.WORKS, record, lasts, answers.put_nowait)
            assert await in_time(answers.get()) == 0
        first, second = await seen(queue, lambda found: len(found) == 2)
        assert (first.id, second.id, first.pid, first.concurrency, first.in_hand) == ("long", "short", 7, 3, 2)
        assert (first.seen - first.since).total_seconds() == pytest.approx(60.5)
        assert [worker.id for worker in await seen(queue, lambda found: len(found) == 1)] == ["long"]
        assert await queue.drain("short") == 0
        assert await queue.drain("long") == 1
        other.registry.beat(b"long/1", Letter.WORKS, record, 60, answers.put_nowait)
        assert await in_time(answers.get()) == 1
        assert [worker.draining for worker in (await queue.statistics()).workers] == [True]
        other.registry.leave(b"long/1")
        await seen(queue, lambda found: not found)
