"""Leases of what a consumer has in hand: renewed, given up after `max_hold`, and given back at any moment."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from apressure import FileDelivery, FileQueue, LeaseLostError, StorageError, serve
from apressure.files.storage.directory import Directory
from tests.integration.files.conftest import MODES, Make, drain, files
from tests.integration.files.test_waiting import PATIENCE

THREADS = pytest.mark.parametrize("mode", [pytest.param(MODES["threads"], id="threads")])
"""A call of the file system is made in a thread: other tasks run meanwhile."""


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.01)


async def taken_over(queue: FileQueue[bytes], count: int) -> list[FileDelivery[bytes]]:
    """Receive what another consumer gives up."""
    async with asyncio.timeout(PATIENCE):
        return [await queue.receive(lease=600) for _ in range(count)]


async def stuck_here() -> None:
    await asyncio.Event().wait()


class Held:
    """Calls of a method of `Directory` that wait until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun = threading.Event()
        self._released = threading.Event()
        method = getattr(Directory, name)

        def held(*arguments: Any) -> Any:
            self.begun.set()
            self._released.wait(PATIENCE)
            return method(*arguments)

        monkeypatch.setattr(Directory, name, held)

    def release(self) -> None:
        self._released.set()


async def test_a_body_that_is_stuck_loses_what_it_has(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b"])
    lost: list[Exception] = []

    async def consume() -> None:
        async with queue.consumer(prefetch=2, lease=600, max_hold=0.5) as consumer:
            consumer.on_lost(lost.append)
            async for _ in consumer:
                await stuck_here()

    with caplog.at_level(logging.ERROR, "apressure"):
        consuming = asyncio.create_task(consume())
        await until(lambda: all("." in name for name in files(queue)))  # it has both
        again = await taken_over(other, 2)
        await until(lambda: lost)
    assert [(one.raw, one.attempts) for one in again] == [(b"a", 2), (b"b", 1)]  # no loop has seen the second one
    assert [type(error) for error in lost] == [LeaseLostError]
    (record,) = caplog.records
    assert (record.event, record.queue, record.seconds) == ("handler_stuck", "orders", 0.5)  # type: ignore[attr-defined]
    assert "stuck_here" in record.getMessage()
    consuming.cancel()
    await asyncio.wait((consuming,))
    for delivery in again:
        await delivery.ack()
    assert files(queue) == []


async def test_the_loop_and_the_deliveries_say_that_they_were_given_up(make: Make) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b"])
    async with queue.consumer(lease=600, max_hold=0.3) as consumer, other.consumer("manual", max_hold=0.3) as manual:
        assert await anext(consumer) == b"a"
        delivery = await anext(manual)
        first, second = await taken_over(make(), 2)
        with pytest.raises(LeaseLostError, match="max_hold"):
            await anext(consumer)
        with pytest.raises(LeaseLostError):
            await delivery.ack()
    await first.ack()
    await second.ack()
    assert files(queue) == []


async def test_who_waits_or_makes_progress_is_not_stuck(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Another consumer, which begins later, is: so the time is up."""
    queue, idle, stuck = make(), make("idle"), make("stuck")
    await idle.create()
    await queue.put_many(b"%d" % number for number in range(1000))
    await stuck.put(b"a")
    async with idle.consumer(max_hold=1) as waiting, queue.consumer(lease=0.3, max_hold=1) as busy:
        item = asyncio.create_task(anext(waiting))  # type: ignore[arg-type]
        await anext(busy)
        async with stuck.consumer("manual", max_hold=1) as consumer:
            lost: list[Exception] = []
            consumer.on_lost(lost.append)
            await anext(consumer)
            async with asyncio.timeout(PATIENCE):
                while not lost:
                    await asyncio.sleep(0.05)
                    await anext(busy)
        await idle.put(b"b")
        assert await asyncio.wait_for(item, PATIENCE) == b"b"
    assert [record.queue for record in caplog.records if "max_hold" in record.getMessage()] == ["stuck"]  # type: ignore[attr-defined]


async def test_the_time_that_a_program_asks_for_does_not_count(make: Make) -> None:
    """Another consumer, which begins later, has asked for none."""
    queue, stuck = make(), make("stuck")
    await queue.put_many([b"a", b"b"])
    await stuck.put(b"c")
    async with queue.consumer("manual", max_hold=0.5) as consumer:
        delivery, another = await anext(consumer), await anext(consumer)
        await delivery.extend(600)
        await another.extend(0.1)
        async with stuck.consumer("manual", max_hold=1) as late:
            lost: list[Exception] = []
            late.on_lost(lost.append)
            await anext(late)
            await until(lambda: lost)
        await delivery.ack()
        await another.ack()
    assert files(queue) == []


async def test_a_service_whose_handler_is_stuck_begins_anew(make: Make) -> None:
    queue = make()
    await queue.put_many([b"a", b"b"])
    await queue.close()
    called: list[bytes] = []

    async def handle(item: bytes) -> None:
        called.append(item)
        if len(called) == 1:
            await stuck_here()

    async with asyncio.timeout(PATIENCE):
        await serve(handle, queue, max_hold=0.5, signals=())
    assert called == [b"a", b"a", b"b"]


async def test_an_acknowledgement_that_fails_is_an_error_of_the_loop_and_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.put_many([b"a", b"b"])
    delete, failures = Directory.delete, [StorageError("the disk is away", name="orders", errno=5)]

    def stumbles(self: Directory, filename: str) -> bool:
        if failures:
            raise failures.pop()
        return delete(self, filename)

    monkeypatch.setattr(Directory, "delete", stumbles)
    async with queue.consumer() as consumer:
        assert await anext(consumer) == b"a"
        with pytest.raises(StorageError, match="the disk is away"):
            await anext(consumer)
        assert consumer.attempts == 1
        assert len(files(queue)) == 2
        assert await anext(consumer) == b"b"
        assert len(files(queue)) == 1


async def test_deliveries_that_have_come_are_taken_without_waiting(make: Make) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c"])
    async with queue.consumer("manual", prefetch=3) as consumer:
        first = await anext(consumer)
        assert [one.raw for one in (first, *consumer.take_ready(1))] == [b"a", b"b"]
    async with queue.consumer(prefetch=3) as another:
        assert await anext(another) == b"a"
        assert another.take_ready(3) == []
    left = [(one.raw, one.attempts) for one in await queue.receive_many(3)]
    assert left == [(b"b", 2), (b"c", 1)]


async def test_what_comes_when_the_block_has_ended_goes_back(make: Make) -> None:
    queue = make()
    await queue.create()
    async with queue.consumer() as consumer:
        iterating = asyncio.create_task(anext(consumer))  # type: ignore[arg-type]
        await until(lambda: len(queue._waits.receivers))
    await queue.put(b"a")
    with pytest.raises(RuntimeError, match="inside the consumer's block"):
        await asyncio.wait_for(iterating, PATIENCE)
    assert [(one.raw, one.attempts) for one in await queue.receive_many(1)] == [(b"a", 1)]


@THREADS
async def test_two_who_extend_a_lease_at_the_same_time(make: Make, mode: dict[str, Any]) -> None:
    queue = make()
    await queue.put(b"a")
    delivery = await queue.receive()
    await asyncio.gather(delivery.extend(60), delivery.extend(90))
    await delivery.ack()
    assert files(queue) == []


@THREADS
async def test_a_block_that_ends_while_its_leases_are_renewed(
    make: Make, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.put_many([b"a", b"b"])

    async def consume() -> None:
        async with queue.consumer("manual", prefetch=2, lease=1.5) as consumer:
            await anext(consumer)
            renaming = Held(monkeypatch, "rename")
            await until(renaming.begun.is_set)
            asyncio.get_running_loop().call_later(0.1, renaming.release)  # when the block is ending

    async with asyncio.timeout(PATIENCE):
        await consume()
    assert all(name.isdigit() for name in files(queue))  # nobody has to wait until a lease ends


@THREADS
async def test_a_block_that_ends_while_it_gives_up_what_it_has(
    make: Make, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.put(b"a")
    putting_back = Held(monkeypatch, "put_back")
    async with asyncio.timeout(PATIENCE), queue.consumer("manual", lease=600, max_hold=0.3) as consumer:
        await anext(consumer)
        await until(putting_back.begun.is_set)
        asyncio.get_running_loop().call_later(0.1, putting_back.release)
    assert all(name.isdigit() for name in files(queue))


@THREADS
async def test_a_pause_while_a_lease_is_renewed(
    make: Make, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b"])
    renaming, paused = Held(monkeypatch, "rename"), asyncio.Event()

    async def consume() -> None:
        async with queue.consumer("manual", prefetch=2, lease=6) as consumer:
            await (await anext(consumer)).ack()
            await paused.wait()
            await anext(consumer)

    consuming = asyncio.create_task(consume())
    await until(renaming.begun.is_set)  # of the one that no loop has seen
    await other.pause()
    queue._store.watcher.drain()
    paused.set()
    (consumer,) = queue.blocks
    await until(lambda: not consumer.hand.buffer)
    await asyncio.sleep(0.1)  # it is about to be given back
    renaming.release()
    async with asyncio.timeout(PATIENCE):
        while not await other.qsize():
            await asyncio.sleep(0.01)
    consuming.cancel()
    await asyncio.wait((consuming,))
    await other.resume()
    assert [(one.raw, one.attempts) for one in await other.receive_many(1)] == [(b"b", 1)]


@THREADS
async def test_a_loop_that_is_cancelled_while_it_gives_back_for_a_pause(
    make: Make, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c"])
    putting_back = Held(monkeypatch, "put_back")

    async def consume() -> None:
        async with queue.consumer(prefetch=3, lease=600) as consumer:
            await anext(consumer)
            await queue.pause()
            await queue.statistics()  # notifications are read now and then
            await anext(consumer)

    consuming = asyncio.create_task(consume())
    await until(putting_back.begun.is_set)
    consuming.cancel()
    asyncio.get_running_loop().call_later(0.1, putting_back.release)
    await asyncio.wait((consuming,))
    assert consuming.cancelled()
    await queue.resume()
    assert await drain(queue) == [b"b", b"c"]
    assert files(queue) == []
