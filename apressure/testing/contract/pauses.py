"""The part of the contract that is about pauses."""

from __future__ import annotations

import asyncio

from apressure.exceptions import QueueClosedError, QueueDoesNotExistError, QueueEmptyError, QueueFullError
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, begun, drained, fails, in_time, taken_by


class PauseContract:
    """A paused queue hands out nothing, and is otherwise as usual."""

    async def test_a_paused_queue_is_not_received_from(self, open_queue: Opener) -> None:
        await self._waits_until_resumed(open_queue, "receive")

    async def test_a_paused_queue_is_not_received_from_in_batches(self, open_queue: Opener) -> None:
        await self._waits_until_resumed(open_queue, "receive_many")

    async def test_a_paused_queue_is_not_consumed(self, open_queue: Opener) -> None:
        await self._waits_until_resumed(open_queue, "consumer")

    async def test_a_paused_queue_is_not_consumed_by_hand(self, open_queue: Opener) -> None:
        await self._waits_until_resumed(open_queue, "manual")

    async def test_a_paused_queue_is_not_served(self, open_queue: Opener) -> None:
        await self._waits_until_resumed(open_queue, "serve")

    async def _waits_until_resumed(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        got: list[bytes] = []
        taking = await begun(taken_by(queue, way, got))  # it waits before the pause
        assert await other.pause() is True
        await other.put_many(ITEMS[:3])
        await other.close()
        await asyncio.sleep(0.2)
        assert got == []
        assert not taking.done()
        assert (await other.statistics()).paused
        assert await other.resume() is True
        if way.startswith("receive"):
            await fails(QueueClosedError, taking)
        else:
            await in_time(taking)
        assert got == ITEMS[:3]

    async def test_pausing_says_whether_that_is_new(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await fails(QueueDoesNotExistError, queue.pause())
        await fails(QueueDoesNotExistError, queue.resume())
        await queue.create()
        assert not (await queue.statistics()).paused
        assert [await queue.resume(), await queue.pause(), await queue.pause()] == [False, True, False]
        assert (await queue.statistics()).paused
        assert [await queue.resume(), await queue.resume()] == [True, False]
        assert not (await queue.statistics()).paused

    async def test_a_paused_queue_is_otherwise_as_usual(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=3)
        await queue.put_many(ITEMS[:3])
        delivery = await in_time(queue.receive())
        await queue.pause()
        assert "paused" in str(await fails(QueueEmptyError, queue.receive(timeout=0)))
        await fails(QueueEmptyError, queue.receive_many(2, timeout=0.05))
        await delivery.extend(20)
        await delivery.ack()
        await queue.put(b"3")
        await fails(QueueFullError, queue.put_nowait(b"4"))
        assert (await queue.peek(), await queue.qsize()) == (b"1", 3)
        await queue.close()
        await fails(QueueEmptyError, queue.receive(timeout=0))
        assert await queue.purge() == 3
        await fails(QueueEmptyError, queue.receive(timeout=0))  # it is closed and empty, and paused
        await queue.resume()
        await fails(QueueClosedError, queue.receive())

    async def test_what_was_prefetched_goes_back_when_the_queue_is_paused(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:4])
        async with queue.consumer("manual", prefetch=4, lease=6) as consumer:
            first = await in_time(await begun(anext(consumer)))  # in a task of its own, as the next one
            await other.pause()
            async with asyncio.timeout(PATIENCE):
                while await other.qsize() < 3:  # noqa: ASYNC110 (nothing tells)
                    await asyncio.sleep(0.05)
            rest = await begun(anext(consumer))
            assert not rest.done()
            await first.ack()
            await other.resume()
            second = await in_time(rest)
            assert second.raw == b"1"
            await second.ack()
        assert await drained(other) == ITEMS[2:4]

    async def test_deleting_a_paused_queue_ends_what_waits(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.pause()
        waiting = await begun(queue.receive())
        await (await open_queue()).delete()
        await fails(QueueDoesNotExistError, waiting)
        await queue.create()
        assert not (await queue.statistics()).paused
