"""The part of the contract that says what each verb does, beside `QueueContract`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from apressure.exceptions import (
    DecodeError,
    LeaseLostError,
    OperationUnblockedError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueOpenError,
)
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, Words, begun, drained, fails, in_time, unblocked
from apressure.testing.contract.verbs import call


class VerbContract(Words):
    """Each verb does what its docstring says."""

    # Taking items

    async def test_get_takes_the_oldest_item_for_good(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create(bound=10)
        await queue.put_many(ITEMS)
        assert await in_time(queue.get()) == b"0"
        assert await in_time(queue.get(timeout=0)) == b"1"
        assert await in_time(queue.get_nowait()) == b"2"
        assert await in_time(queue.get_many(3)) == ITEMS[3:6]
        seen = await owner.statistics()
        assert (seen.length, seen.in_flight) == (4, 0)
        assert await in_time(queue.get_many(100)) == ITEMS[6:]
        more: dict[str, Any]
        for verb, more in (("get", {"timeout": 0.05}), ("get_nowait", {}), ("get_many", {"timeout": 0})):
            self.says(await fails(QueueEmptyError, call(queue, verb, **more)), "the queue %r is empty$")
        waiting = await begun(queue.get())
        await owner.put(b"10")
        assert await in_time(waiting) == b"10"
        await owner.close()
        for verb in ("get", "get_nowait", "get_many"):
            await fails(QueueClosedError, call(queue, verb))

    async def test_iterating_ends_when_the_queue_is_closed_and_drained(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()

        async def take() -> list[bytes]:
            return [item async for item in queue]

        taking = await begun(take())
        await owner.put_many(ITEMS)
        await owner.close()
        assert await in_time(taking) == ITEMS

    async def test_get_gives_back_what_stands_behind_an_undecodable_item(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(codec="json"), await open_queue()
        await owner.create()
        await owner.put_many([b"1", b"2", b"{", b"4"])
        assert await in_time(queue.get_many(10)) == [1, 2]
        error: Any = await fails(DecodeError, queue.get_many(10))
        assert error.raw == b"{"
        assert await in_time(queue.get()) == 4
        assert (await owner.statistics()).in_flight == 0

    async def test_what_random_cancellations_of_get_leave_is_all_there(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        taken: list[bytes] = []

        async def take(number: int) -> None:
            taken.extend([await queue.get()] if number % 2 else await queue.get_many(2))

        for number in range(60):
            await owner.put(b"%d" % number)
            taking = asyncio.ensure_future(take(number))
            for _ in range(number % 11):
                await asyncio.sleep(0)
            if number % 3 == 0:
                await asyncio.sleep(0.001)
            taking.cancel()
            await asyncio.wait((taking,))
            assert taking.cancelled() or taking.exception() is None
        taken += await drained(owner)
        assert sorted(taken, key=int) == [b"%d" % number for number in range(60)]

    # The queue as a whole

    async def test_a_full_an_empty_and_an_open_queue_say_so(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create(bound=1)
        more: dict[str, Any]
        for verb, more in (("receive", {"timeout": 0.05}), ("peek", {}), ("peek_newest", {})):
            self.says(await fails(QueueEmptyError, call(queue, verb, **more)), "the queue %r is empty$")
        await owner.put(b"0")
        for verb, more in (("put", {"timeout": 0.05}), ("put_nowait", {}), ("put_many", {"timeout": 0})):
            error = await fails(QueueFullError, call(queue, verb, **more))
            self.says(error, "the queue %r is full")
        assert await in_time(queue.peek()) == await in_time(queue.peek_newest()) == b"0"
        assert await queue.qsize() == 1

    async def test_it_is_created_once(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        assert await queue.create(bound=3) is True
        self.says(await fails(QueueAlreadyExistsError, owner.create()), "the queue %r exists already")
        self.says(await fails(QueueAlreadyExistsError, queue.create()), "the queue %r exists already")
        assert await queue.create(bound=5, exist_ok=True) is False
        assert await queue.bound() == 3
        assert await queue.exists() is True

    async def test_it_is_deleted_once(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.delete(timeout=1)
        assert await queue.exists() is False
        self.says(await fails(QueueDoesNotExistError, queue.delete()), "the queue %r ")

    async def test_a_put_does_not_make_a_deleted_queue_again(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.delete()
        self.says(await fails(QueueDoesNotExistError, queue.put(b"1")), "the queue %r ")

    async def test_it_is_closed_once(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        assert await queue.closed() is False
        await fails(QueueOpenError, queue.wait_closed(timeout=0.05))
        waiting = await begun(queue.wait_closed())
        await queue.close(timeout=1)
        await in_time(waiting)
        assert await queue.closed() is True
        self.says(await fails(QueueClosedError, queue.close()), "the queue %r is closed$")
        self.says(await fails(QueueClosedError, queue.put(b"1")), "the queue %r is closed")

    async def test_a_look_sees_the_end(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        assert await queue.closed() is False
        await owner.close()
        assert await queue.closed() is True

    async def test_it_is_paused_and_resumed_once(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        assert await owner.paused() is False
        assert [await queue.pause(), await queue.pause()] == [True, False]
        assert await owner.paused() is True
        assert [await queue.resume(), await queue.resume()] == [True, False]
        assert await owner.paused() is False

    async def test_purge_never_touches_what_is_in_flight(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await queue.put_many(ITEMS)
        delivery = await in_time(queue.receive())
        assert await in_time(queue.purge()) == 9
        seen = await owner.statistics()
        assert (seen.length, seen.in_flight) == (0, 1)
        await delivery.nack()
        assert await drained(queue) == ITEMS[:1]
        assert await in_time(queue.purge()) == 0

    async def test_a_paused_or_closed_queue_can_be_purged(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await queue.put_many(ITEMS)
        await owner.pause()
        assert await in_time(queue.purge()) == 10
        await queue.put_many(ITEMS)
        await owner.close()
        assert await in_time(queue.purge()) == 10

    async def test_unblock_ends_what_waits(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create(bound=1)

        async def unblock(*waiting: asyncio.Task[Any]) -> None:
            await unblocked(queue, *waiting)
            for task in waiting:
                error = await fails(OperationUnblockedError, task)
                self.says(error, "the operation on the queue %r was unblocked$")
            assert await queue.unblock() == 0

        await unblock(await begun(queue.receive()), await begun(queue.receive_many(2)))
        await queue.put(b"0")
        await unblock(await begun(queue.put(b"1")))
        assert await drained(queue) == ITEMS[:1]

    async def test_dead_letters_say_why_and_come_back(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(max_attempts=1), await open_queue()
        await owner.create()
        await queue.put_many(ITEMS[:3])
        for error in (LookupError("first"), "second", None):
            await (await in_time(queue.receive())).nack(error)
        await fails(QueueEmptyError, queue.receive(timeout=0))
        letters = await queue.dead_letters()
        assert [letter.item for letter in letters] == ITEMS[:3]
        assert [letter.error and letter.error.message for letter in letters][:2] == ["first", "second"]
        assert [letter.item for letter in await queue.dead_letters(limit=2)] == ITEMS[:2]
        moved = await queue.requeue(ids=[letters[1].id, letters[1].id])
        assert (moved, moved.not_found) == (1, ())
        assert await queue.requeue(1, timeout=0) == 1
        assert await queue.requeue() == 1
        assert await drained(queue) == [b"1", b"0", b"2"]

    async def test_the_time_that_a_program_asks_for_does_not_count(self, open_queue: Opener) -> None:
        """Another consumer, which begins later and is more patient, has asked for none."""
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await owner.put_many([b"1", b"2"])
        options: dict[str, Any] = {"prefetch": 1, "lease": 1, "shared": True}
        async with queue.consumer("manual", max_hold=0.5, **options) as consumer:
            delivery = await anext(consumer)
            await delivery.extend(600)
            with contextlib.suppress(LeaseLostError):  # at the end of the block, of some kinds
                async with owner.consumer("manual", max_hold=1, **options) as late:
                    lost: list[Exception] = []
                    late.on_lost(lost.append)
                    await anext(late)
                    async with asyncio.timeout(PATIENCE):
                        while not lost:  # noqa: ASYNC110 (nothing tells)
                            await asyncio.sleep(0.01)
                    await delivery.ack()
        assert await owner.qsize() == 1
