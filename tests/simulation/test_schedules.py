"""Schedules that several services drive, while they crash, stand still and lose replies: each occasion is put once."""

from __future__ import annotations

import asyncio
import contextlib

from apressure import AsyncQueue, OutcomeUnknownError, QueueClosedError, QueueFullError, ScheduleDoesNotExistError
from apressure.core.occasions import Missed, Schedule
from tests.simulation.crowd import BROKEN, USUAL, Crowd, Trouble
from tests.simulation.ledger import check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


class Timetable:
    """A queue, whose messages only its schedules put, and the services that drive them.

    `sim.server.state` sees that each put is an occasion, that each occasion is a put, and that none is early.

    Args:
        sim: The world.
    """

    def __init__(self, sim: Sim) -> None:
        sim.server.state.watch(NAME, scheduled=True)
        self.sim = sim
        kinds: tuple[tuple[Trouble, ...], ...] = (BROKEN, USUAL, ("clock", *USUAL), ("failover", *USUAL))
        self.troubles = kinds[sim.draw(4)]
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        missed: tuple[Missed, ...] = ("none", "one", "all", "all")
        self._schedules = [
            (name, float(2 + sim.draw(3)), missed[sim.draw(4)]) for name in ("a", "b", "c")[: 1 + sim.draw(3)]
        ]
        self.ending = False

    async def drive(self) -> None:
        """Have the schedules, and drive them, until the queue is closed or the process is cancelled."""
        sim = self.sim
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while not await queue.closed():
                # After a failover, the server may not know of a schedule.
                with contextlib.suppress(OutcomeUnknownError, ScheduleDoesNotExistError):
                    for name, period, missed in self._schedules:
                        await queue.every(name, period, name.encode(), missed=missed)
                    while not await queue.closed():
                        if sim.draw(4) == 0 and not self.ending:
                            await self._change(queue)  # at the time of an occasion, which others put
                        pause = await queue.drive_schedules()
                        # Sometimes it looks shortly before the next occasion.
                        await asyncio.sleep(min(pause, (0.2, 1, 5, max(0, pause - 0.02))[sim.draw(4)]))

    def is_late(self, schedule: Schedule) -> bool:
        """Whether something is due, and has not been put."""
        return not schedule.paused and self.sim.server.now() > (schedule.next or 0) + 3

    async def _change(self, queue: AsyncQueue[bytes]) -> None:
        """Have an occasion more, or change something that others may change at the same time."""
        name, period, _ = self._schedules[self.sim.draw(len(self._schedules))]
        match self.sim.draw(5):
            case 0:
                with contextlib.suppress(QueueFullError, QueueClosedError):
                    await queue.run_schedule(name)
            case 1 | 2:
                await queue.pause_schedule(name)
                await asyncio.sleep(self.sim.seconds(2))
                await queue.resume_schedule(name)
            case 3:
                await queue.every(name, period, name.encode(), missed="all")
            case _:
                await queue.resume_schedule(name)

    async def consume(self) -> None:
        """Take what comes, sometimes more slowly than that."""
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    await queue.get()
                except QueueClosedError:
                    return
                except OutcomeUnknownError:
                    continue
                await asyncio.sleep(self.sim.seconds((0, 0.5, 3)[self.sim.draw(3)]))


async def driven(sim: Sim) -> None:
    """After the last trouble, a service drives what is left: nothing that is due stays out."""
    timetable = Timetable(sim)
    crowd = timetable.crowd
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 0, 1, 3)[sim.draw(4)])
    if "failover" in timetable.troubles:
        sim.server.replicate(0.05 + sim.seconds(1))
    for _ in range(3 + sim.draw(8)):
        while len(crowd.alive("service")) < 1 + sim.draw(3):
            crowd.add("service", timetable.drive)
        if not crowd.alive("consumer"):
            crowd.add("consumer", timetable.consume)
        await asyncio.sleep(sim.seconds(4))
        crowd.trouble(timetable.troubles)
    timetable.ending = True
    crowd.add("service", timetable.drive)
    crowd.add("consumer", timetable.consume)
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        # Where consumers are slower than the schedules, a full queue keeps those back.
        while await queue.bound() == 0 and any(map(timetable.is_late, await queue.schedules())):
            await asyncio.sleep(1)
        await queue.close()
    await crowd.ended()
    # A get that was cancelled may have given back what it had after the other consumers had ended.
    crowd.add("consumer", timetable.consume)
    await crowd.ended()
    await check_left(sim, jobs=None)


def test_schedules(seed: int) -> None:
    run(driven, seed)
