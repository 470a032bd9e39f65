"""Producers lose replies, crash and stand still; batches are cut by a close; and some clients work step by step."""

from __future__ import annotations

import asyncio

from apressure import AsyncQueue, LeaseLostError, QueueClosedError
from tests.simulation.crowd import Crowd, Trouble
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


class Ends:
    """Producers and consumers of one queue, each in a process of its own.

    Args:
        sim: The world.
        ledger: Has what they do.
    """

    def __init__(self, sim: Sim, ledger: Ledger) -> None:
        self.sim = sim
        self.ledger = ledger
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self._started = 0

    async def put(self, count: int, scripting: bool = True) -> None:
        """Put numbered messages, one by one or in batches, until the queue is closed."""
        sim, ledger, number = self.sim, self.ledger, 0
        self._started += 1
        me = self._started
        async with connected(scripting=scripting) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while number < count:
                messages = [b"%d.%d" % (me, number + i) for i in range((1, 1, 2, 7)[sim.draw(4)])]
                number += len(messages)
                ledger.perhaps.update(messages)
                try:
                    await (queue.put(messages[0]) if len(messages) == 1 else queue.put_many(messages))
                except QueueClosedError as error:
                    ledger.put.update(messages[: error.accepted])
                    return
                ledger.put.update(messages)
                await asyncio.sleep(sim.seconds((0, 0.2, 0.5)[sim.draw(3)]))

    async def consume(self, longest: float = 0.4) -> None:
        """Hand out until the queue is drained; a message takes up to `longest` seconds."""
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    async with queue.consumer("manual", lease=self.crowd.lease) as consumer:
                        async for delivery in consumer:
                            self.ledger.handed_out(delivery.raw, delivery.attempts)
                            await asyncio.sleep(self.sim.seconds((0, 0.1, longest)[self.sim.draw(3)]))
                            await delivery.ack()
                            self.ledger.acked(delivery.raw, delivery.attempts)
                    return
                except LeaseLostError:
                    continue

    async def get(self, scripting: bool) -> None:
        """Get until the queue is drained."""
        async with connected(scripting=scripting) as client:
            async for message in AsyncQueue[bytes](NAME, client=client):
                self.ledger.got(message)
                await asyncio.sleep(self.sim.seconds((0, 0.2, 0.5)[self.sim.draw(3)]))


async def replies_lost(sim: Sim) -> None:
    """Producers share a queue that somebody closes at some time: what was put is there once, and in order."""
    sim.server.state.watch(NAME)
    ends = Ends(sim, Ledger(in_order=True))
    crowd = ends.crowd
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 3, 10)[sim.draw(4)])
    crowd.add("consumer", ends.consume)
    for _ in range(3 + sim.draw(10)):
        while len(crowd.alive("producer")) < 1 + sim.draw(3):
            crowd.add("producer", lambda: ends.put(40))
        await asyncio.sleep(sim.seconds(1))
        crowd.trouble(("reset", "reset", "reset", "reset", "crash", "stop", "block"), spared="consumer")
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.close()
    await crowd.ended()
    ends.ledger.check()
    await check_left(sim, jobs=None)


async def by_steps(sim: Sim) -> None:
    """One end works step by step, the other one with scripts: the bound holds."""
    sim.server.state.watch(NAME, by_steps=True)
    ends = Ends(sim, Ledger())
    crowd, puts_by_steps = ends.crowd, sim.draw(2) == 0
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create(1 + sim.draw(3))
    for _ in range(2):
        crowd.add("producer", lambda: ends.put(15, scripting=not puts_by_steps))
    if puts_by_steps and sim.draw(2):
        crowd.add("consumer", lambda: ends.consume(longest=3))
    else:
        for _ in range(2):
            crowd.add("getter", lambda: ends.get(scripting=puts_by_steps))
    # One that works step by step must not die: its role stays taken.
    kinds: tuple[Trouble, ...] = ("stop", "block")
    for _ in range(2 + sim.draw(5)):
        await asyncio.sleep(sim.seconds(2))
        crowd.trouble(kinds)
    while crowd.alive("producer"):
        await asyncio.sleep(0.1)
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.close()
    await crowd.ended()
    ends.ledger.check()
    await check_left(sim, jobs=len(ends.ledger.put))


def test_puts(seed: int) -> None:
    run(replies_lost, seed)


def test_by_steps(seed: int) -> None:
    run(by_steps, seed)
