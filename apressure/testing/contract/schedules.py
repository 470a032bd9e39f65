"""The part of the contract that is about schedules."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from apressure.exceptions import QueueClosedError, QueueEmptyError, QueueFullError, ScheduleDoesNotExistError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import Opener, drained, fails, in_time

NEVER = "0 0 29 2 *"
"""A time that does not come while a test runs. (Almost.)"""


async def drive(queue: Any, until: float) -> None:
    """Drive a queue's schedules until so many seconds since 1970."""
    while time.time() < until:
        pause = await queue.drive_schedules()
        await asyncio.sleep(max(0.0, min(pause, until - time.time())))


class ScheduleContract:
    """Each occasion of a schedule is put once, at its time, however many drive it."""

    async def test_each_occasion_is_put_once_whoever_drives(self, open_queue: Opener) -> None:
        queues = [await open_queue() for _ in range(3)]
        await queues[0].create()
        begun = time.time()
        made = await asyncio.gather(*(queue.every("tick", "* * * * * *", b"1") for queue in queues))
        assert {schedule.name for schedule in made} == {"tick"}
        assert all(begun - 1 < schedule.next < time.time() + 2 for schedule in made)
        await in_time(asyncio.gather(*(drive(queue, begun + 3.5) for queue in queues)))
        (schedule,) = await queues[1].schedules()
        assert schedule.count >= 2
        assert schedule.next > schedule.last >= begun - 1
        assert await drained(queues[2]) == [b"1"] * schedule.count

    async def test_nothing_is_put_before_its_time(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        schedule = await queue.every("report", NEVER, b"1", timezone="Europe/Berlin")
        assert schedule.next > time.time()
        assert (schedule.when, schedule.timezone, schedule.missed) == (NEVER, "Europe/Berlin", "one")
        assert (schedule.raw, schedule.last, schedule.count, schedule.paused) == (b"1", None, 0, False)
        assert 0 < await queue.drive_schedules() <= 5
        await fails(QueueEmptyError, queue.get_nowait())
        assert await queue.schedules() == [schedule]

    async def test_the_same_definition_changes_nothing_and_another_one_begins_now(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        first = await queue.every("report", 3600, b"1")
        assert await other.every("report", 3600, b"1") == first
        changed = await other.every("report", 7200, b"2", missed="all")
        assert (changed.when, changed.raw, changed.missed) == (7200, b"2", "all")
        await queue.every("another", NEVER, b"3")
        assert [schedule.name for schedule in await queue.schedules()] == ["another", "report"]
        assert (await other.statistics()).schedules == 2

    async def test_missed_occasions(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        begun = time.time()
        await queue.every("all", 1, b"all", missed="all")
        await queue.every("one", 1, b"one")
        await queue.every("none", 1, b"none", missed="none")
        await asyncio.sleep(3.2)
        assert 0 <= await queue.drive_schedules() <= 5
        assert sorted(await drained(queue))[-2:] == [b"none", b"one"]  # the last one is not a minute late
        while await queue.drive_schedules() == 0:
            pass
        counts = {schedule.name: schedule.count for schedule in await queue.schedules()}
        assert counts["all"] >= math.floor(time.time() - begun) - 1
        assert counts["all"] > counts["one"]

    async def test_pausing_running_and_deleting(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.every("tick", 1, b"1", missed="all")
        assert await other.pause_schedule("tick")
        assert not await other.pause_schedule("tick")
        assert (await queue.schedules())[0].paused
        await asyncio.sleep(1.5)
        await queue.drive_schedules()
        await fails(QueueEmptyError, queue.get_nowait())
        before = await queue.every("tick", 1, b"1", missed="all")
        assert before.paused
        await queue.run_schedule("tick")
        assert await in_time(other.get()) == b"1"
        assert (await queue.schedules())[0].count == 1
        assert await queue.resume_schedule("tick")
        assert not await queue.resume_schedule("tick")
        (resumed,) = await queue.schedules()
        assert resumed.next > before.next
        await other.delete_schedule("tick")
        assert await queue.schedules() == []
        for call in (queue.pause_schedule, queue.resume_schedule, queue.run_schedule, queue.delete_schedule):
            await fails(ScheduleDoesNotExistError, call("tick"))

    async def test_an_occasion_waits_for_room(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=1)
        await queue.put(b"full")
        await queue.every("tick", 1, b"1", missed="all")
        await fails(QueueFullError, queue.run_schedule("tick"))
        await asyncio.sleep(2.2)
        assert 0 < await queue.drive_schedules() <= 5  # it does not try over and over
        assert (await queue.schedules())[0].count == 0
        assert await in_time(queue.get()) == b"full"
        await queue.drive_schedules()
        assert await in_time(queue.get()) == b"1"

    async def test_a_closed_queue_gets_nothing_and_keeps_its_schedules(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.every("tick", 1, b"1")
        await queue.purge()
        await queue.close()
        await asyncio.sleep(1.2)
        assert 0 < await queue.drive_schedules() <= 5
        await fails(QueueClosedError, queue.run_schedule("tick"))
        (schedule,) = await queue.schedules()
        assert schedule.count == 0
        await queue.delete()

    async def test_a_queue_that_is_deleted_and_made_again_has_none(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.every("tick", 1, b"1")
        await queue.delete()
        again = await open_queue()
        await again.create()
        assert await again.schedules() == []

    async def test_a_cancelled_change_was_made_or_not(self, open_queue: Opener) -> None:
        async def change(queue: Any) -> None:
            await queue.every("x", NEVER, b"1")
            await queue.run_schedule("x")
            await queue.pause_schedule("x")
            await queue.resume_schedule("x")
            await queue.every("x", NEVER, b"2")
            await queue.delete_schedule("x")

        async def check(queue: Any, _: Any) -> None:
            put = (await drained(queue))[3:]
            assert put in ([], [b"1"])
            for schedule in await queue.schedules():
                assert schedule.count == len(put)
            again = await queue.every("x", NEVER, b"3")
            assert (again.raw, again.count) in ((b"3", 0), (b"3", len(put)))

        await everywhere(open_queue, change, check)

    async def test_what_is_no_schedule_is_refused(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for wrong in ("", "* * *", "61 * * * *", "0 0 30 2 *", "x" * 300, 0, 0.5, -1, math.nan, math.inf):
            await fails(ValueError, queue.every("name", wrong, b"1"))
        for other in (None, True, b"* * * * *", object()):
            await fails(TypeError, queue.every("name", other, b"1"))
        for name in ("", "x" * 201, "a\nb"):
            await fails(ValueError, queue.every(name, 1, b"1"))
            await fails(ValueError, queue.delete_schedule(name))
        await fails(TypeError, queue.every(1, 1, b"1"))
        await fails(ValueError, queue.every("name", 1, b"1", timezone="Mars/Base"))
        await fails(ValueError, queue.every("name", 1, b"1", timezone="Europe/Berlin"))
        await fails(TypeError, queue.every("name", 1, b"1", timezone=1))
        await fails(ValueError, queue.every("name", 1, b"1", missed="some"))
        await fails(TypeError, queue.every("name", 1, object()))
        assert await queue.schedules() == []
