"""Queues whose limits an operator changes, while consumers hold them, give back, crash, stand still and lose replies.

In half of the runs nobody is in trouble, and no client looks for itself: then a limited wait that nobody wakes does not
end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import pytest

from apressure import (
    AsyncQueue,
    Delivery,
    Hold,
    LeaseLostError,
    OutcomeUnknownError,
    QueueClosedError,
    QueueEmptyError,
    QueueInUseError,
    Retry,
    serve,
)
from tests.patience import be_patient
from tests.simulation.crowd import USUAL, Crowd, Trouble
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"
CLOCK: Final[tuple[Trouble, ...]] = ("clock", "clock", "clock", *USUAL)
FAILOVER: Final[tuple[Trouble, ...]] = ("failover", "failover", "failover", *USUAL)
LONG: Final = 1000.0
"""Seconds: nobody waits for as long."""
PATIENCE: Final = 400.0
"""Seconds after which a consumer of a closed queue is stuck."""

MOST: Final = 10_000
"""So many commands do if nobody polls."""


class Limits:
    """A queue with limits, those who work on it, and who changes the limits.

    Args:
        sim: The world.
        troubles: What happens to them; nothing if it is empty.
    """

    def __init__(self, sim: Sim, troubles: tuple[Trouble, ...]) -> None:
        self.sim = sim
        self.troubles = troubles
        self.options: dict[str, Any] = {"url": URL, "durability": 1 if "failover" in troubles else None}
        self.ledger = Ledger()
        self.ledger.exact = not troubles
        self.ledger.overtaken = "clock" in troubles
        # On the slowest network, a lease of a second is lost now and then.
        self.crowd = Crowd(sim, (1 if troubles else 5) + sim.seconds(2))
        self._ways = (
            (self._deliver, self._automatic, self._serve),
            (self._deliver, self._serve, self._receive),
            (self._get,),
        )[sim.draw(3)]
        self.once = self._ways == (self._get,)
        """A message that a `get` takes is lost with its process."""
        self._shared = self._automatic in self._ways
        self._ends_holds = sim.draw(2) == 0
        self._delays = "clock" not in troubles
        """Where the clock is set back by hours, what is delayed waits for as long."""
        self._producers = 0
        self._over = False
        sim.server.state.watch(NAME)
        sim.server.state.watch_limits(NAME, held_to_the_end=not self._ends_holds)

    def queue(self) -> AsyncQueue[bytes]:
        """Return a queue object with a client of its own."""
        return AsyncQueue(NAME, **self.options)

    async def begin(self) -> None:
        """Create the queue, and start those that work on it."""
        async with self.queue() as queue:
            await queue.create((0, 1, 3, 10)[self.sim.draw(4)])
        self.go_on()
        for _ in range(self.sim.draw(5)):
            self.add()

    def go_on(self) -> None:
        """There are a producer, consumers, and an operator again."""
        while len(self.crowd.alive("producer")) < 1 + self.sim.draw(2):
            self.crowd.add("producer", self._put)
        while len(self.crowd.alive("consumer")) < 2 + self.sim.draw(2):
            self.add()
        if not self.crowd.alive("operator"):
            self.crowd.add("operator", self._operate)

    def add(self) -> None:
        """Start a consumer."""
        self.crowd.add("consumer", self._ways[self.sim.draw(len(self._ways))])

    def trouble(self) -> None:
        """Something happens."""
        sim = self.sim
        if not self.troubles:
            return
        if "clock" in self.troubles and sim.draw(4) == 0:
            sim.set_clock(LONG * (sim.draw(3) - 1))
        if not self.once and sim.draw(4) == 0:
            self.crowd.add("getter", self._get_beside)
        self.crowd.trouble(self.troubles, spared="consumer" if self.once else "nobody")

    async def end(self) -> None:
        """Set limits that let all go on, close the queue, and see that all consumers end."""
        sim, first = self.sim, self.sim.draw(2)
        self._over = True
        while self.crowd.alive("operator"):
            await asyncio.sleep(1)
        if self.troubles:
            await asyncio.sleep(10)  # steps may come late
        if "clock" in self.troubles and sim.draw(2):
            await self._set_back()
        async with self.queue() as queue:
            if first:
                await queue.close()
            if self._ends_holds:
                await queue.hold(0)
            if sim.draw(2):
                await queue.set_rate(None)
            else:
                await queue.set_rate((5, 50, 200)[sim.draw(3)], burst=(None, 2)[sim.draw(2)])
            await queue.set_concurrency((None, 1, 1, 2, 5)[sim.draw(5)])
            if not first:
                await asyncio.sleep(sim.seconds(2))
                await queue.close()
        if self.troubles:
            self.add()  # somebody is there in the end
        try:
            async with asyncio.timeout(PATIENCE):
                await self.crowd.ended()
        except TimeoutError:
            raise AssertionError(f"stuck: {self.crowd.alive()} wait for a closed queue without end") from None
        commands = sim.server.state.commands
        assert self.troubles or commands < MOST, f"{commands:,} commands: somebody polls"
        self.ledger.check()
        await check_left(sim, jobs=None)

    async def _set_back(self) -> None:
        """The server's clock is set back while limits keep a message, which waits no longer for that."""
        async with self.queue() as queue:
            await queue.set_rate(1, per=5)
            if not self._ends_holds:
                await queue.hold(2)
            await asyncio.sleep(self.sim.seconds(2))
        self.sim.set_clock(-LONG)

    async def _put(self) -> None:
        """Put messages, one by one or in batches, some of them for later, until the queue is closed."""
        self._producers += 1
        me, sim = self._producers, self.sim
        async with connected(**self.options) as client:
            await self.crowd.put_some(
                AsyncQueue[bytes](NAME, client=client), self.ledger, me,
                lambda _: {"delay": 0.01 + sim.seconds(2)} if self._delays and sim.draw(4) == 0 else {},
            )  # fmt: skip

    async def _operate(self) -> None:
        """Change the limits, again and again."""
        sim = self.sim
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while not self._over:
                what = sim.draw(5)
                if what == 0:
                    await queue.set_concurrency((None, 1, 2, 3, 8)[sim.draw(5)])
                elif what == 1:
                    seconds = sim.seconds((0.2, 3)[sim.draw(2)])
                    await queue.hold(0 if self._ends_holds and sim.draw(2) else 0.001 + seconds)
                elif what == 2 and sim.draw(2):
                    await queue.set_rate(None)
                elif what == 2 and not self.troubles:
                    await queue.set_rate(1, per=LONG)
                elif what == 3 and sim.draw(2):
                    await queue.spend((1, 3, 20)[sim.draw(3)])  # so that less is handed out, and never more
                else:
                    per, burst = (0.1, 1.0, 3.0)[sim.draw(3)], (None, None, 1, 4)[sim.draw(4)]
                    await queue.set_rate((1, 3, 10, 120)[sim.draw(4)], per=per, burst=burst)
                await asyncio.sleep(sim.seconds(3))

    async def _work(self, delivery: Delivery[bytes], serving: bool = False) -> None:
        """Handle a message. While serving, some are held or tried again later; otherwise that is done by hand."""
        sim, ledger = self.sim, self.ledger
        ledger.handed_out(delivery.raw, delivery.attempts)
        await asyncio.sleep(sim.seconds((0, 0.1, 1)[sim.draw(3)]))
        what = sim.draw(10)
        if what == 0:
            ledger.released(delivery.raw, delivery.attempts)
            if serving and sim.draw(2):
                raise Hold(0.001 + sim.seconds(1))
            await delivery.release()
        elif what == 1 and serving:
            raise Retry(after=sim.seconds(1) if self._delays else 0)
        elif what == 1:
            await delivery.nack(delay=0.5 if self._delays and sim.draw(2) else None)
        else:
            await delivery.ack()
            ledger.acked(delivery.raw, delivery.attempts)

    def _how(self) -> dict[str, Any]:
        """How a block consumes."""
        prefetch = (None, 1, 3, 10)[self.sim.draw(4)]
        return {"shared": self._shared, "lease": self.crowd.lease, "prefetch": prefetch}

    async def _deliver(self) -> None:
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    async with queue.consumer("manual", **self._how()) as consumer:
                        async for delivery in consumer:
                            await self._work(delivery)
                            if not self._shared and self.sim.draw(8) == 0:
                                break  # another one gets the role
                        else:
                            return
                except LeaseLostError:
                    continue  # what it had comes again

    async def _automatic(self) -> None:
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    async with queue.consumer(**self._how()) as consumer:
                        async for item in consumer:
                            self.ledger.handed_out(item, consumer.attempts)
                            await asyncio.sleep(self.sim.seconds((0, 0.1, 1)[self.sim.draw(3)]))
                    return
                except LeaseLostError:
                    continue

    async def _receive(self) -> None:
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    await self._work(await queue.receive(lease=self.crowd.lease))
                except LeaseLostError:
                    continue
                except QueueClosedError:
                    return

    async def _serve(self) -> None:
        wrong, stop = list[AssertionError](), asyncio.Event()

        async def handle(delivery: Delivery[bytes]) -> None:
            try:
                await self._work(delivery, serving=True)
            except AssertionError as error:  # it is no failure of the handler
                wrong.append(error)
                stop.set()
                raise

        async with connected(**self.options) as client:
            await serve(
                handle, AsyncQueue[bytes](NAME, client=client), deliveries=True, concurrency=1 + self.sim.draw(4),
                signals=(), stop=stop, lease=self.crowd.lease, shared=self._shared,
            )  # fmt: skip
        for error in wrong:
            raise error

    async def _get(self) -> None:
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            while True:
                try:
                    for item in await queue.get_many((1, 1, 5)[self.sim.draw(3)]):
                        self.ledger.got(item)
                except QueueClosedError:
                    return
                except OutcomeUnknownError:
                    self.ledger.doubts += 5
                await asyncio.sleep(self.sim.seconds((0, 0.2, 0.5)[self.sim.draw(3)]))

    async def _get_beside(self) -> None:
        """A `get` is busy while a consumer has the role."""
        async with connected(**self.options) as client:
            queue = AsyncQueue[bytes](NAME, client=client)
            with contextlib.suppress(QueueEmptyError, QueueInUseError, QueueClosedError):
                try:
                    self.ledger.got(await queue.get(timeout=self.sim.seconds(2)))
                except OutcomeUnknownError:
                    self.ledger.doubts += 1


async def work(limits: Limits) -> None:
    """Somebody works, and changes limits, until all troubles are over."""
    sim = limits.sim
    await limits.begin()
    for _ in range(3 + sim.draw(6)):
        await asyncio.sleep(sim.seconds(3))
        limits.go_on()
        limits.trouble()
    await limits.end()


async def limited(sim: Sim) -> None:
    """Nobody is in trouble, and no client looks for itself; or there is trouble of all kinds."""
    troubles: tuple[Trouble, ...] = ((), (), USUAL, CLOCK)[sim.draw(4)]
    with pytest.MonkeyPatch.context() as patch:
        if not troubles:
            be_patient(patch)
        await work(Limits(sim, troubles))


async def taken_over(sim: Sim) -> None:
    """Replicas take over that are behind, and clients wait for them."""
    sim.server.replicate(lag=(0.01, 0.3, 1.0)[sim.draw(3)])
    await work(Limits(sim, FAILOVER))


def test_limits(seed: int) -> None:
    run(limited, seed)


def test_limits_and_failovers(seed: int) -> None:
    run(taken_over, seed)
