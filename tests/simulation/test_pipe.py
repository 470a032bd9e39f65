"""Stages of a pipeline crash, stand still, are cut off and are cancelled: each result is there once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from apressure import AsyncQueue, Backoff, LeaseLostError, Many, QueueClosedError, pipe
from tests.simulation.crowd import USUAL, Crowd
from tests.simulation.ledger import check_left
from tests.simulation.world import URL, Sim, connected, run

SOURCE, DESTINATION = "raw", "done"


def results_of(item: bytes) -> list[bytes]:
    """What the transform makes of an item: none, one or two results."""
    number = int(item)
    return [] if number % 7 == 3 else [item, item + b"b"] if number % 5 == 0 else [item]


class Stages:
    """Processes that each run a stage from one queue to another.

    Args:
        sim: The world.
        close: Stages close the destination.
        durable: Clients wait until a replica has what they wrote.
    """

    def __init__(self, sim: Sim, close: bool = True, durable: bool = False) -> None:
        sim.server.state.watch(SOURCE, DESTINATION)
        self.sim = sim
        self.items = [b"%d" % number for number in range(5 + sim.draw(25))]
        self.expected = sorted(result for item in self.items for result in results_of(item))
        self.options: dict[str, Any] = {"url": URL, "durability": 1 if durable else None}
        self._batch = (None, None, 3)[sim.draw(3)]
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self._how: dict[str, Any] = {
            "batch": self._batch, "concurrency": 1 + sim.draw(4), "close": close, "exactly_once": True,
            "retry": Backoff(0.1), "lease": self.crowd.lease, "shared": sim.draw(3) == 0,
        }  # fmt: skip

    def begin(self, most: int) -> None:
        """Start stages until `most` are alive."""
        while len(self.crowd.alive()) < most:
            self.crowd.add("stage", self.stage)

    async def stage(self) -> None:
        """Work until the source is drained. A destination that another stage has closed is the end, too."""
        with contextlib.suppress(QueueClosedError):
            while True:
                async with connected(**self.options) as client:
                    source, end = (AsyncQueue[bytes](name, client=client) for name in (SOURCE, DESTINATION))
                    with contextlib.suppress(LeaseLostError):
                        await pipe(source, self._transform, end, **self._how)
                        return

    async def _transform(self, found: Any) -> Any:
        await asyncio.sleep(self.sim.seconds((0, 0.1, 1, 2)[self.sim.draw(4)]))
        if self.sim.draw(20) == 0:
            raise ValueError("as it happens")
        return Many([result for item in (found if self._batch else [found]) for result in results_of(item)])

    def check(self, arrived: list[bytes]) -> None:
        """Each result has arrived once."""
        wrong = sorted(set(arrived) ^ set(self.expected))
        assert sorted(arrived) == self.expected, f"lost or doubled: {wrong}, {len(arrived)} of {len(self.expected)}"


async def exactly_once(sim: Sim) -> None:
    """Stages come and go while the source is filled and the destination emptied."""
    stages = Stages(sim)
    arrived: list[bytes] = []

    async def feed() -> None:
        async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
            for item in stages.items:
                await queue.put(item)
                await asyncio.sleep(sim.seconds(0.5))
            await queue.close()

    async def read() -> None:
        async with AsyncQueue[bytes](DESTINATION, url=URL) as queue:
            async for item in queue:
                arrived.append(item)
                await asyncio.sleep(sim.seconds(0.2))

    async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
        await queue.create((0, 3, 10)[sim.draw(3)])
    async with AsyncQueue[bytes](DESTINATION, url=URL) as queue:
        await queue.create((0, 6, 10)[sim.draw(3)])
    reading, feeding = sim.process("reader", read), sim.process("feeder", feed)
    for _ in range(2 + sim.draw(8)):
        stages.begin(1 + sim.draw(2))
        await asyncio.sleep(sim.seconds(1.5))
        stages.crowd.trouble()
    stages.begin(len(stages.crowd.alive()) + 1)
    await asyncio.gather(reading, feeding)
    await stages.crowd.ended()
    stages.check(arrived)
    await check_left(sim, raw=len(stages.items), done=len(stages.expected))


async def taken_over(sim: Sim) -> None:
    """Replicas take over that have not heard of the latest moves: these are made again, and nothing is put twice.

    The source was filled before, and the destination is emptied afterwards. Where clients do not wait for replicas,
    what a stage has moved may be back in the source after that stage has ended: then there has to be another one.
    """
    durable = sim.draw(3) == 0
    stages = Stages(sim, close=durable, durable=durable)
    for name in (SOURCE, DESTINATION):
        async with AsyncQueue[bytes](name, url=URL) as queue:
            await queue.create()
    async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
        await queue.put_many(stages.items)
        await queue.close()
    sim.server.replicate(lag=(0.3, 1.0, 3.0)[sim.draw(3)])
    for _ in range(2 + sim.draw(6)):
        stages.begin(1 + sim.draw(2))
        await asyncio.sleep(sim.seconds(2))
        stages.crowd.trouble(("failover", "failover", "failover", *USUAL))
    async with AsyncQueue[bytes](SOURCE, url=URL) as queue:
        while True:
            stages.begin(1)
            await stages.crowd.ended()
            seen = await queue.statistics()
            if not (seen.length or seen.in_flight or seen.delayed):
                break
    arrived: list[bytes] = []
    async with AsyncQueue[bytes](DESTINATION, url=URL) as queue:
        with contextlib.suppress(QueueClosedError):
            await queue.close()
        async for item in queue:
            arrived.append(item)
    stages.check(arrived)
    await check_left(sim, raw=len(stages.items), done=len(stages.expected))


def test_pipe(seed: int) -> None:
    run(exactly_once, seed)


def test_failovers(seed: int) -> None:
    run(taken_over, seed)
