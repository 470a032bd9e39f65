"""The part of the contract that is about `deadline=`."""

from __future__ import annotations

from typing import Any

from apressure.exceptions import DeadlineError
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, drained, fails, in_time
from apressure.testing.contract.verbs import call


class DeadlineContract:
    """What waits for the queue ends at its deadline, and it is certain that nothing was done."""

    async def test_a_wait_ends_at_its_deadline(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create(bound=1)
        deadline = 0.1
        await _waits_until_its_deadline(queue, "receive")
        await _waits_until_its_deadline(queue, "receive_many")
        await queue.put(b"0", deadline=20)
        await _waits_until_its_deadline(queue, "put")
        assert await drained(queue) == ITEMS[:1]
        while getattr(await fails(DeadlineError, queue.put_many(ITEMS, deadline=deadline)), "accepted", 0) != 1:
            await drained(queue)
            deadline *= 2
            assert deadline < PATIENCE
        assert await drained(queue) == ITEMS[:1]

    async def test_waiting_to_get_ends_at_its_deadline(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await _waits_until_its_deadline(queue, "get")
        await _waits_until_its_deadline(queue, "get_many")
        await queue.put(b"0")
        assert await in_time(queue.get(deadline=20)) == b"0"

    async def test_waiting_for_the_end_ends_at_its_deadline(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await _waits_until_its_deadline(queue, "wait_closed")


async def _waits_until_its_deadline(queue: Any, verb: str) -> None:
    deadline = 0.05
    while type(await fails(DeadlineError, call(queue, verb, deadline=deadline))) is not DeadlineError:
        deadline *= 2  # on a busy machine, the answer to a step may have been on its way
        assert deadline < PATIENCE
