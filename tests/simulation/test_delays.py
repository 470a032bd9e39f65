"""Messages for later, and retries that wait on the server, while clients crash, stand still and lose replies."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from apressure import AsyncQueue, Backoff, Delivery, LeaseLostError, OutcomeUnknownError, QueueClosedError, Retry, serve
from tests.simulation.crowd import BROKEN, USUAL, Crowd, Trouble
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


class Later:
    """A queue, those that put some of its messages for later, and those that try some again later.

    Args:
        sim: The world.
    """

    def __init__(self, sim: Sim) -> None:
        sim.server.state.watch(NAME)
        self.sim = sim
        self.ledger = Ledger()
        kinds: tuple[tuple[Trouble, ...], ...] = (BROKEN, USUAL, (*BROKEN, *USUAL), ("clock", "clock", "clock", *USUAL))
        self.troubles = kinds[sim.draw(4)]
        self.ledger.exact = self.troubles == BROKEN
        self.ledger.timely = "clock" not in self.troubles
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self.consume = (self._deliver, self._serve, self._get)[sim.draw(3)]
        self._how: dict[str, Any] = {"lease": self.crowd.lease, "shared": sim.draw(2) == 0}
        self._producers = 0

    async def put(self) -> None:
        """Put messages for now and for later, one by one or in batches, until the queue is closed."""
        self._producers += 1
        me = self._producers
        async with connected() as client:
            await self.crowd.put_some(AsyncQueue[bytes](NAME, client=client), self.ledger, me, self._when)

    def _when(self, messages: list[bytes]) -> dict[str, Any]:
        sim = self.sim
        delay = (0.0, 0.01, sim.seconds(1), sim.seconds(8))[sim.draw(4)]
        if not delay:
            return {}
        moment = time.time() + delay
        self.ledger.due(messages, moment)
        return {"delay": delay} if sim.draw(2) else {"at": datetime.fromtimestamp(moment, UTC)}

    async def _work(self, delivery: Delivery[bytes]) -> float | None:
        """Handle a message. Returns None when it is acknowledged, or after how many seconds it is to be tried again."""
        sim = self.sim
        self.ledger.handed_out(delivery.raw, delivery.attempts)
        await asyncio.sleep(sim.seconds((0, 0.1, 0.4)[sim.draw(3)]))
        if sim.draw(4) == 0:
            return 0.02 + sim.seconds((0.05, 1, 4)[sim.draw(3)])
        await delivery.ack()
        self.ledger.acked(delivery.raw, delivery.attempts)
        return None

    async def _deliver(self) -> None:
        """Hand out until the queue is drained."""
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    async with queue.consumer("manual", **self._how) as consumer:
                        async for delivery in consumer:
                            pause, now = await self._work(delivery), time.time()
                            if pause is not None:
                                await delivery.nack("not yet", delay=pause)
                                self.ledger.due([delivery.raw], now + pause)
                    return
                except LeaseLostError:
                    self.ledger.lease_lost()

    async def _serve(self) -> None:
        """Handle until the queue is drained."""
        backoff, wrong, stop = Backoff(0.1, 2, jitter=False), list[AssertionError](), asyncio.Event()

        async def handle(delivery: Delivery[bytes]) -> None:
            try:
                pause, now = await self._work(delivery), time.time()
            except LeaseLostError:
                self.ledger.lease_lost()
                raise
            except AssertionError as error:  # it is no failure of the handler
                wrong.append(error)
                stop.set()
                raise
            if pause is None:
                return
            asked = self.sim.draw(2) == 0
            if self.ledger.exact:  # otherwise the lease may end before it is given back
                self.ledger.due([delivery.raw], now + (pause if asked else backoff.pause(delivery.attempts - 1)))
            raise Retry(after=pause) if asked else ValueError("as it happens")

        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            await serve(
                handle, queue, deliveries=True, concurrency=1 + self.sim.draw(4), retry=backoff, signals=(), stop=stop,
                **self._how,
            )  # fmt: skip
        for error in wrong:
            raise error

    async def _get(self) -> None:
        """Get until the queue is drained."""
        async with connected() as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    self.ledger.got(await queue.get())
                except QueueClosedError:
                    return
                except OutcomeUnknownError:
                    self.ledger.doubts += 1
                await asyncio.sleep(self.sim.seconds((0, 0.2, 0.5)[self.sim.draw(3)]))


async def at_its_time(sim: Sim) -> None:
    """Somebody closes the queue at some time: what is delayed then comes all the same, once, and not too early."""
    later = Later(sim)
    crowd = later.crowd
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 3, 10)[sim.draw(4)])
    for _ in range(3 + sim.draw(8)):
        while len(crowd.alive("producer")) < 1 + sim.draw(2):
            crowd.add("producer", later.put)
        while len(crowd.alive("consumer")) < 1 + sim.draw(2):
            crowd.add("consumer", later.consume)
        await asyncio.sleep(sim.seconds(2))
        # A message that a `get` takes is lost with its process.
        once = later.consume == later._get
        crowd.trouble(later.troubles, spared="consumer" if once else "nobody")
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.close()
    crowd.add("consumer", later.consume)
    await crowd.ended()
    later.ledger.check()
    await check_left(sim, jobs=None)


def test_delays(seed: int) -> None:
    run(at_its_time, seed)
