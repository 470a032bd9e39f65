"""Members that share the consumer role crash, stand still, are cut off, are cancelled and come back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from apressure import (
    AsyncQueue,
    LeaseLostError,
    OutcomeUnknownError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueInUseError,
)
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


class Members:
    """A queue with producers and members, each in a process of its own.

    Args:
        sim: The world.
        lease: Seconds.
    """

    def __init__(self, sim: Sim) -> None:
        sim.names = (NAME.encode(),)
        self.sim = sim
        self.lease = 1 + sim.seconds(2)
        self.ledger = Ledger()
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self._started = 0

    def add(self, shared: bool = True) -> str:
        """Start a member, or an exclusive consumer; returns its name."""
        self._started += 1
        name = f"{'member' if shared else 'alone'} {self._started}"
        manual, prefetch = self.sim.draw(2) == 0, (None, 1, 3)[self.sim.draw(3)]

        async def work() -> None:
            async with connected() as client:
                with contextlib.suppress(QueueDoesNotExistError):
                    await self._consume(AsyncQueue(NAME, client=client), shared, manual, prefetch)

        self.tasks[name] = self.sim.process(name, work)
        return name

    async def _consume(self, queue: AsyncQueue[bytes], shared: bool, manual: bool, prefetch: int | None) -> None:
        sim, ledger = self.sim, self.ledger
        while True:
            try:
                if manual:
                    async with queue.consumer("manual", shared=shared, lease=self.lease, prefetch=prefetch) as some:
                        async for delivery in some:
                            ledger.handed_out(delivery.raw, delivery.attempts)
                            await self._work()
                            if sim.draw(8) == 0:
                                await delivery.nack()
                                continue
                            await delivery.ack()
                            ledger.acked(delivery.raw, delivery.attempts)
                    return
                async with queue.consumer(shared=shared, lease=self.lease, prefetch=prefetch) as consumer:
                    async for item in consumer:
                        ledger.handed_out(item, consumer.attempts)
                        await self._work()
                        if not shared and sim.draw(4) == 0:
                            return  # it leaves, and members get in
                return
            except LeaseLostError:
                continue  # what it had comes again

    async def _work(self) -> None:
        await asyncio.sleep(self.sim.seconds((0, 0.1, 2, 2)[self.sim.draw(4)]))

    async def put(self, count: int) -> None:
        """Put messages until all are put, or the queue is closed or deleted."""
        async with AsyncQueue[bytes](NAME, url=URL) as queue:
            for number in range(count):
                message = b"%d" % number
                try:
                    await queue.put(message)
                except (QueueClosedError, QueueDoesNotExistError):
                    return
                self.ledger.put.add(message)
                await asyncio.sleep(self.sim.seconds(0.5))
            with contextlib.suppress(QueueClosedError, QueueDoesNotExistError):
                await queue.close()

    async def get_beside(self) -> None:
        """A `get` is busy while members are there; without them it takes messages, which are nobody else's then."""
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            with contextlib.suppress(QueueEmptyError, QueueInUseError, QueueClosedError, QueueDoesNotExistError):
                try:
                    self.ledger.got(await queue.get(timeout=self.sim.seconds(2)))
                except OutcomeUnknownError:
                    self.ledger.doubts += 1

    async def trouble(self, times: int) -> None:
        """Faults at random, one after the other, beside each other."""
        sim = self.sim
        background = []
        for number in range(times):
            await asyncio.sleep(sim.seconds(1.5))
            alive = [name for name in self.tasks if sim.alive(name)]
            what = sim.draw(9) if alive else 8
            name = alive[sim.draw(len(alive))] if alive else ""
            if what <= 1:
                sim.crash(name)
            elif what <= 3:
                background.append(asyncio.create_task(sim.stop(name, sim.seconds(3 * self.lease))))
            elif what == 4:
                background.append(asyncio.create_task(sim.stop(name, sim.seconds(3 * self.lease), threads=False)))
            elif what == 5:
                sim.reset(name)
            elif what == 6:
                self.tasks[name].cancel()
            elif what == 7:
                self.add(shared=False)
            else:
                getting = f"getter {number}"
                self.tasks[getting] = sim.process(getting, self.get_beside)
            if sim.draw(2):
                self.add()
        self.add()  # somebody is there in the end
        await asyncio.gather(*background)

    async def ended(self) -> None:
        """Wait for all who live, and see that none of them failed."""
        while waiting := [task for name, task in self.tasks.items() if self.sim.alive(name)]:
            await asyncio.wait(waiting, timeout=1)
        for task in self.tasks.values():
            if task.done() and not task.cancelled():
                task.result()


async def together(sim: Sim) -> None:
    """The queue is closed at some time, by its producer or before."""
    members = Members(sim)
    count = 10 + sim.draw(20)
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 2, 5)[sim.draw(4)])
    for _ in range(2 + sim.draw(3)):
        members.add()
    putting = sim.process("producer", lambda: members.put(count))
    await members.trouble(2 + sim.draw(8))
    if sim.draw(4) == 0:
        async with AsyncQueue[bytes](NAME, url=URL) as queue:
            with contextlib.suppress(QueueClosedError):
                await queue.close()
    await putting
    await members.ended()
    members.ledger.check()
    await check_left(sim, jobs=len(members.ledger.put))


async def deleted(sim: Sim) -> None:
    """The queue is deleted while members work: all of them end, and nothing stays behind."""
    members = Members(sim)
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 2, 5)[sim.draw(4)])
    for _ in range(2 + sim.draw(3)):
        members.add()
    putting = sim.process("producer", lambda: members.put(30))
    await members.trouble(sim.draw(5))

    async def delete() -> None:
        async with AsyncQueue[bytes](NAME, url=URL) as queue:
            await queue.delete()

    deleting = [sim.process(f"deleter {number}", delete) for number in range(1)]
    await asyncio.gather(*deleting)
    await putting
    await members.ended()
    left = sim.lasting_keys()
    assert not left, f"keys left: {left}"


def test_members(seed: int) -> None:
    run(together, seed)


def test_deletion(seed: int) -> None:
    run(deleted, seed)
