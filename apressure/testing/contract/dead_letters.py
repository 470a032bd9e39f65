"""The part of the contract that is about dead letters."""

from __future__ import annotations

import time

from apressure import Backoff, serve
from apressure.dead_letters import Failure
from apressure.testing.contract.steps import ITEMS, Opener, drained, fails, in_time


class DeadLetterContract:
    """Dead letters tell why, and chosen ones come back."""

    async def test_dead_letters_tell_why(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=2)
        await queue.create()
        assert await queue.dead_letters() == []
        await queue.put_many(ITEMS[:3])
        for item in ITEMS[:2]:
            for error in (LookupError("first"), ValueError("it\nfailed") if item == b"0" else None):
                delivery = await in_time(queue.receive())
                assert delivery.raw == item
                await delivery.nack(error)
        assert await drained(queue) == ITEMS[2:3]
        first, second = await queue.dead_letters()
        assert [letter.item for letter in (first, second)] == ITEMS[:2]
        assert (first.attempts, first.error) == (2, Failure("ValueError", "it failed", 2))
        assert (second.attempts, second.error) == (2, Failure("LookupError", "first", 1))
        assert abs(first.when - time.time()) < 3600
        assert await queue.dead_letters(limit=1) == [first]
        await fails(ValueError, queue.dead_letters(limit=0))

    async def test_what_a_block_and_a_handler_raise_is_why(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        await queue.put_many(ITEMS[:2])

        async def fail() -> None:
            async with queue.consumer() as consumer:
                async for item in consumer:
                    raise LookupError(item.decode())

        await fails(LookupError, fail())

        async def handle(item: bytes) -> None:
            raise ValueError(item.decode())

        await queue.close()
        await in_time(serve(handle, queue, retry=Backoff(0.01), signals=()))
        errors = [letter.error for letter in await queue.dead_letters()]
        assert errors == [Failure("LookupError", "0", 1), Failure("ValueError", "1", 1)]

    async def test_chosen_dead_letters_come_back(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        assert (await queue.requeue(ids=["none"])).not_found == ("none",)
        await queue.put_many(ITEMS[:3])
        for _ in range(3):
            await (await in_time(queue.receive())).nack("broken")
        assert await drained(queue) == []
        first, second, third = await queue.dead_letters()
        done = await queue.requeue(ids=[third.id, "none", first.id, third.id])
        assert (done, done.not_found) == (2, ("none",))
        assert await queue.dead_letters() == [second]
        assert await drained(await open_queue()) == [b"0", b"2"]
        assert (await queue.requeue(ids=[third.id])).not_found == (third.id,)
        await fails(ValueError, queue.requeue(1, ids=[second.id]))
        await fails(TypeError, queue.requeue(ids=second.id))
        assert await queue.requeue() == 1
        assert await queue.dead_letters() == []
