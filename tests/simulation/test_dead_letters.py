"""Messages that fail too often while consumers crash, stand still and come back: each ends in one place."""

from __future__ import annotations

import asyncio
import time

from apressure import AsyncQueue, Client, LeaseLostError
from tests.simulation.crowd import Crowd
from tests.simulation.ledger import Ledger, check_left
from tests.simulation.world import URL, Sim, connected, run

NAME, DEAD = "jobs", "jobs:dead"


class Failing:
    """A queue whose messages fail, and its consumers.

    Args:
        sim: The world.
    """

    def __init__(self, sim: Sim) -> None:
        sim.server.state.watch(NAME, DEAD)
        self.sim = sim
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self.ledger = Ledger()
        self.limit = 1 + sim.draw(3)
        self.poisonous = True
        """Every fourth message fails each time."""
        self.perhaps_acked: set[bytes] = set()
        self._shared = sim.draw(2) == 0

    def queue(self, client: Client) -> AsyncQueue[bytes]:
        """Return the queue."""
        return AsyncQueue(NAME, client=client, max_attempts=self.limit, dead_letters=DEAD)

    async def consume(self) -> None:
        """Consume until the queue is drained."""
        async with connected() as client:
            while True:
                try:
                    await self._consume(self.queue(client))
                    return
                except LeaseLostError:
                    continue

    async def _consume(self, queue: AsyncQueue[bytes]) -> None:
        sim, ledger = self.sim, self.ledger
        async with queue.consumer("manual", shared=self._shared, lease=self.crowd.lease) as consumer:
            async for delivery in consumer:
                message = delivery.raw
                ledger.handed_out(message, delivery.attempts)
                assert delivery.attempts <= self.limit, f"{message!r} came as attempt {delivery.attempts}"
                await asyncio.sleep(sim.seconds((0, 0.1, 1)[sim.draw(3)]))
                if (self.poisonous and int(message) % 4 == 0) or sim.draw(8) == 0:
                    error = ValueError("as it happens") if sim.draw(2) else None
                    delay, now = (None, 0.05, sim.seconds(3))[sim.draw(3)], time.time()
                    await delivery.nack(error, delay=delay)
                    if delay and delivery.attempts < self.limit:
                        ledger.due([message], now + delay)
                    continue
                self.perhaps_acked.add(message)
                await delivery.ack()
                ledger.acked(message, delivery.attempts)

    async def emptied(self) -> None:
        """Let consumers have trouble, and wait until every message is consumed or dead."""
        async with connected() as client:
            queue = self.queue(client)
            troubles = 2 + self.sim.draw(6)
            while True:
                while len(self.crowd.alive("consumer")) < 2:
                    self.crowd.add("consumer", self.consume)
                await asyncio.sleep(self.sim.seconds(2))
                if troubles:
                    troubles -= 1
                    self.crowd.trouble()
                    continue
                seen = await queue.statistics()
                if not (seen.length or seen.in_flight or seen.delayed):
                    return

    async def dead(self) -> list[bytes]:
        """Return the dead letters, after a look at each."""
        async with connected() as client:
            letters = await self.queue(client).dead_letters()
        for letter in letters:
            assert letter.attempts == self.limit, letter
            assert letter.raw not in self.ledger.acknowledged, f"{letter.raw!r} was acknowledged, and is a dead letter"
        found = [letter.raw for letter in letters]
        assert len(set(found)) == len(found), f"dead letters: {sorted(found)}"
        missing = self.ledger.put - set(found) - self.perhaps_acked
        assert not missing, f"neither acknowledged nor dead: {sorted(missing)}"
        return found

    async def requeue(self) -> None:
        """Move the dead letters back."""
        async with connected() as client:
            await self.queue(client).requeue()


async def given_up(sim: Sim) -> None:
    """Messages become dead letters; some of these are tried again."""
    failing = Failing(sim)
    messages = [b"%d" % number for number in range(5 + sim.draw(15))]
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.create()
        await queue.put_many(messages)
    failing.ledger.put.update(messages)
    await failing.emptied()
    dead = await failing.dead()
    again = dead if sim.draw(2) else []
    if again:
        failing.poisonous = False
        failing.ledger.begin_again(again)
        failing.crowd.add("administrator", failing.requeue)
        resets = 5
        while failing.crowd.alive("administrator"):
            await asyncio.sleep(sim.seconds(0.2))
            if resets:
                resets -= 1
                failing.crowd.trouble(("reset",))
        await failing.emptied()
        dead = await failing.dead()
    async with AsyncQueue[bytes](NAME, url=URL) as queue:
        await queue.close()
    await failing.crowd.ended()
    # A consumer that crashed may have received them, and handed nothing out.
    failing.ledger.put.difference_update(dead)
    failing.ledger.perhaps.update(dead)
    failing.ledger.check()
    async with AsyncQueue[bytes](DEAD, url=URL) as queue:
        assert await queue.purge() == len(dead)
    await check_left(sim, **{NAME: len(messages) + len(again), DEAD: None})


def test_dead_letters(seed: int) -> None:
    run(given_up, seed)
