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
from tests.simulation.crowd import USUAL, Crowd, Trouble
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME, PRODUCER = "jobs", "producer"


class Members:
    """A queue with producers and members, each in a process of its own.

    Args:
        sim: The world.
        durable: Clients wait until a replica has what they wrote.
    """

    def __init__(self, sim: Sim, durable: bool = False) -> None:
        sim.server.state.watch(NAME)
        self.sim = sim
        self.options: dict[str, Any] = {"url": URL, "durability": 1 if durable else None}
        self.ledger = Ledger()
        self.crowd = Crowd(sim, 1 + sim.seconds(2))

    def queue(self) -> AsyncQueue[bytes]:
        """Return a queue object with a client of its own."""
        return AsyncQueue(NAME, **self.options)

    def add(self, shared: bool = True) -> None:
        """Start a member, or an exclusive consumer."""
        manual, prefetch = self.sim.draw(2) == 0, (None, 1, 3)[self.sim.draw(3)]

        async def work() -> None:
            async with connected(**self.options) as client:
                with contextlib.suppress(QueueDoesNotExistError):
                    await self._consume(AsyncQueue(NAME, client=client), shared, manual, prefetch)

        self.crowd.add("member" if shared else "alone", work)

    async def _consume(self, queue: AsyncQueue[bytes], shared: bool, manual: bool, prefetch: int | None) -> None:
        sim, ledger, lease = self.sim, self.ledger, self.crowd.lease
        while True:
            try:
                if manual:
                    async with queue.consumer("manual", shared=shared, lease=lease, prefetch=prefetch) as some:
                        async for delivery in some:
                            ledger.handed_out(delivery.raw, delivery.attempts)
                            await self._work()
                            if sim.draw(8) == 0:
                                await delivery.nack()
                                continue
                            await delivery.ack()
                            ledger.acked(delivery.raw, delivery.attempts)
                    return
                async with queue.consumer(shared=shared, lease=lease, prefetch=prefetch) as consumer:
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

    def put(self, count: int) -> None:
        """Start a process that puts messages until all are put, or the queue is closed or deleted."""

        async def work() -> None:
            async with connected(**self.options) as client:
                queue = AsyncQueue[bytes](NAME, client=client)
                for number in range(count):
                    message = b"%d" % number
                    self.ledger.perhaps.add(message)
                    try:
                        await queue.put(message)
                    except (QueueClosedError, QueueDoesNotExistError):
                        return
                    self.ledger.put.add(message)
                    await asyncio.sleep(self.sim.seconds(0.5))
                with contextlib.suppress(QueueClosedError, QueueDoesNotExistError):
                    await queue.close()

        self.crowd.add(PRODUCER, work)

    async def get_beside(self) -> None:
        """A `get` is busy while members are there; without them it takes messages, which are nobody else's then."""
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            with contextlib.suppress(QueueEmptyError, QueueInUseError, QueueClosedError, QueueDoesNotExistError):
                try:
                    self.ledger.got(await queue.get(timeout=self.sim.seconds(2)))
                except OutcomeUnknownError:
                    self.ledger.doubts += 1

    async def trouble(self, times: int, kinds: tuple[Trouble, ...] = USUAL) -> None:
        """Faults at random, one after the other, beside each other, and others that come and go."""
        sim = self.sim
        for _ in range(times):
            await asyncio.sleep(sim.seconds(1.5))
            what = sim.draw(9)
            if what == 0:
                self.add(shared=False)
            elif what == 1:
                self.crowd.add("getter", self.get_beside)
            else:
                self.crowd.trouble(kinds, spared=PRODUCER)
            if sim.draw(2):
                self.add()
        self.add()  # somebody is there in the end


async def together(sim: Sim) -> None:
    """The queue is closed at some time, by its producer or before."""
    members = Members(sim)
    await begin(members, 10 + sim.draw(20))
    await members.trouble(2 + sim.draw(8))
    if sim.draw(4) == 0:
        async with members.queue() as queue:
            with contextlib.suppress(QueueClosedError):
                await queue.close()
    await members.crowd.ended()
    members.ledger.check()
    await check_left(sim, jobs=len(members.ledger.put))


async def begin(members: Members, count: int) -> None:
    """Create the queue, and start its producer and some members."""
    sim = members.sim
    async with members.queue() as queue:
        await queue.create((0, 1, 2, 5)[sim.draw(4)])
    for _ in range(2 + sim.draw(3)):
        members.add()
    members.put(count)


async def deleted(sim: Sim) -> None:
    """The queue is deleted while members work: all of them end, and nothing stays behind."""
    members = Members(sim)
    await begin(members, 30)
    await members.trouble(sim.draw(5))

    async def delete() -> None:
        async with members.queue() as queue:
            await queue.delete()

    await sim.process("deleter", delete)
    await members.crowd.ended()
    left = sim.server.lasting_keys()
    assert not left, f"keys left: {left}"


async def durable(sim: Sim) -> None:
    """Replicas take over that are behind, and clients wait for them: nothing is lost, and nothing comes unmarked."""
    members = Members(sim, durable=True)
    sim.server.replicate(lag=(0.01, 0.3, 2.0)[sim.draw(3)])
    await begin(members, 10 + sim.draw(20))
    await members.trouble(2 + sim.draw(8), (*USUAL, "failover", "failover", "failover"))
    await members.crowd.ended()
    members.ledger.check()
    await check_left(sim, jobs=len(members.ledger.put))


def test_members(seed: int) -> None:
    run(together, seed)


def test_deletion(seed: int) -> None:
    run(deleted, seed)


def test_durable_members(seed: int) -> None:
    run(durable, seed)
