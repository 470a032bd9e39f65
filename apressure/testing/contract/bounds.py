"""The part of the contract that is about changes of the bound."""

from __future__ import annotations

import asyncio
from typing import Any

from apressure.exceptions import QueueDoesNotExistError, QueueFullError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time


class BoundContract:
    """The bound of a queue that is used can be changed, and nothing is lost by that."""

    async def test_puts_that_wait_go_on_when_the_bound_grows(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(ITEMS[0])
        putting = [await begun((await open_queue()).put(item)) for item in ITEMS[1:4]]
        await other.set_bound(3)
        done, waiting = await in_time(asyncio.wait(putting, return_when=asyncio.FIRST_COMPLETED))
        while len(done) < 2:
            done, waiting = await in_time(asyncio.wait(putting, timeout=0.05))
        assert (await other.bound(), await other.qsize(), len(waiting)) == (3, 3, 1)
        await other.set_bound(4)
        await in_time(asyncio.gather(*putting))
        assert sorted(await drained(queue)) == ITEMS[:4]

    async def test_puts_that_wait_go_on_when_there_is_no_bound_any_more(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        putting = [await begun((await open_queue()).put_many(ITEMS[number::5])) for number in range(5)]
        await other.set_bound(0)
        await in_time(asyncio.gather(*putting))
        assert await other.bound() == 0
        assert sorted(await drained(queue)) == ITEMS

    async def test_puts_behind_delayed_items_go_on(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(ITEMS[0], delay=3600)
        putting = [await begun((await open_queue()).put(item)) for item in ITEMS[1:3]]
        await other.set_bound(2)
        await in_time(asyncio.wait(putting, return_when=asyncio.FIRST_COMPLETED))
        await other.set_bound(0)
        await in_time(asyncio.gather(*putting))
        assert sorted(await drained(queue)) == ITEMS[1:3]

    async def test_its_statistics_say_for_how_many_there_is_room(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=4)
        await queue.put_many(ITEMS[:3])
        await queue.put(ITEMS[3], delay=3600)
        assert (await queue.statistics()).room == 0
        await fails(QueueFullError, queue.put_nowait(b"x"))
        delivery = await in_time(queue.receive())
        room = (await queue.statistics()).room  # of a directory, none: what is in flight counts
        for item in ITEMS[4 : 4 + room]:
            await queue.put_nowait(item)
        await fails(QueueFullError, queue.put_nowait(b"x"))
        await delivery.ack()
        assert (await queue.statistics()).room == 1 - room
        await queue.set_bound(2)
        assert (await queue.statistics()).room == 0
        await queue.set_bound(0)
        assert (await queue.statistics()).room is None

    async def test_a_lower_bound_loses_nothing(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:5])
        await other.set_bound(3)
        await fails(QueueFullError, queue.put_nowait(b"x"))
        assert await in_time(queue.get_many(2)) == ITEMS[:2]
        await fails(QueueFullError, queue.put_nowait(b"x"))
        assert await in_time(queue.get()) == ITEMS[2]
        await queue.put_nowait(ITEMS[5])
        await fails(QueueFullError, queue.put_nowait(b"x"))
        assert await drained(queue) == ITEMS[3:6]

    async def test_the_same_bound_changes_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=2)
        for bound in (2, 5, 5, 1, 2):
            await queue.set_bound(bound)
        await queue.put_many(ITEMS[:2])
        await queue.set_bound(2)
        await fails(QueueFullError, queue.put_nowait(b"x"))
        assert await drained(queue) == ITEMS[:2]

    async def test_many_changes_at_a_time_leave_one_of_them(self, open_queue: Opener) -> None:
        queues = [await open_queue() for _ in range(5)]
        await queues[0].create(bound=9)
        await in_time(asyncio.gather(*(queue.set_bound(1 + number) for number, queue in enumerate(queues))))
        assert await queues[0].bound() in range(1, 6)

    async def test_only_a_queue_that_exists_has_a_bound_to_change(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await fails(QueueDoesNotExistError, queue.set_bound(1))
        await queue.create()
        await other.delete()
        await fails(QueueDoesNotExistError, queue.set_bound(1))
        assert not await other.exists()

    async def test_a_closed_queue_may_get_another_bound(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=1)
        await queue.close()
        await queue.set_bound(7)
        assert await queue.bound() == 7
        assert await queue.closed()

    async def test_a_cancelled_change_of_the_bound_was_made_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            assert await queue.bound() in (0, 2)
            await queue.set_bound(0)
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, lambda queue: queue.set_bound(2), check)
