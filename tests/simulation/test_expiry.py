"""Events that expire, while clients crash, stand still and lose replies: nobody gets one too late, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from apressure import EventQueue, LeaseLostError
from tests.simulation.crowd import USUAL, Crowd, Trouble
from tests.simulation.ledger import Ledger
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"


class Perishable:
    """A queue of events, those that put some which expire, and those that handle them or give them back.

    `sim.server.state` sees that each event is in one place, that none is handed out when it has expired, and that none
    expires before its time.

    Args:
        sim: The world.
    """

    def __init__(self, sim: Sim) -> None:
        sim.server.state.watch_events(NAME)
        self.sim = sim
        self.ledger = Ledger()
        self.ledger.timely = False  # `state` looks at times
        self.troubles: tuple[Trouble, ...] = (("reset",), USUAL, USUAL, ("clock", *USUAL))[sim.draw(4)]
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self._producers = 0

    async def put(self) -> None:
        """Put events that expire soon, late or never, some of them for later, until the queue is closed."""
        self._producers += 1
        me = self._producers
        async with connected() as client:
            await self.crowd.put_some(EventQueue[bytes](NAME, client=client), self.ledger, me, self._when)

    def _when(self, _: list[bytes]) -> dict[str, Any]:
        sim = self.sim
        when: dict[str, Any] = {}
        if sim.draw(4):
            when["expires"] = (0.05, 0.2 + sim.seconds(3), 3000.0)[sim.draw(3)]
        if sim.draw(3) == 0:
            when["delay"] = 0.02 + sim.seconds(min(2.0, when.get("expires", 2.0) - 0.04))
        return when

    async def consume(self) -> None:
        """Handle what comes until the queue is drained; give some back, at once or for later."""
        sim, prefetch = self.sim, (None, 1, 3)[self.sim.draw(3)]
        async with connected() as client:
            queue = EventQueue[bytes](NAME, client=client)
            while True:
                try:
                    async with queue.consumer("manual", lease=self.crowd.lease, prefetch=prefetch) as consumer:
                        async for delivery in consumer:
                            self.ledger.handed_out(delivery.raw, delivery.attempts)
                            await asyncio.sleep(sim.seconds((0, 0.1, 0.4)[sim.draw(3)]))
                            how = sim.draw(6)
                            if how == 0:
                                await delivery.nack("not yet", delay=0.02 + sim.seconds(2))
                            elif how == 1:
                                await delivery.nack()
                            else:
                                await delivery.ack()
                                self.ledger.acked(delivery.raw, delivery.attempts)
                    return
                except LeaseLostError:
                    continue

    async def check(self) -> None:
        """Each event was acknowledged or has expired."""
        async with EventQueue[bytes](NAME, url=URL) as queue:
            letters = [letter.item for letter in await queue.dead_letters(1000)]
            seen = await queue.statistics()
            assert (seen.length, seen.in_flight, seen.delayed) == (0, 0, 0), seen
            assert len(letters) == len(set(letters)) == seen.expired, f"{seen.expired} expired: {sorted(letters)}"
            expired = set(letters)
            both = expired & self.ledger.acknowledged
            assert not both, f"acknowledged, and expired: {sorted(both)}"
            lost = self.ledger.put - self.ledger.handed_out_to_somebody - expired
            assert not lost, f"lost: {sorted(lost)}"
            strangers = expired - self.ledger.put - self.ledger.perhaps
            assert not strangers, f"never put: {sorted(strangers)}"
            await queue.delete()
        left = self.sim.server.lasting_keys()
        assert not left, f"keys left: {left}"


async def perishing(sim: Sim) -> None:
    """Somebody closes the queue at some time: what has not expired then is handed out all the same."""
    perishable = Perishable(sim)
    crowd = perishable.crowd
    async with EventQueue[bytes](NAME, url=URL) as queue:
        await queue.create((0, 1, 3, 10)[sim.draw(4)])
    for _ in range(3 + sim.draw(8)):
        while len(crowd.alive("producer")) < 1 + sim.draw(2):
            crowd.add("producer", perishable.put)
        while len(crowd.alive("consumer")) < 1 + sim.draw(3):
            crowd.add("consumer", perishable.consume)
        await asyncio.sleep(sim.seconds(2))
        crowd.trouble(perishable.troubles)
    async with EventQueue[bytes](NAME, url=URL) as queue:
        await queue.close()
    crowd.add("consumer", perishable.consume)
    await crowd.ended()
    await sim.process("the one who looks", perishable.check)


def test_expiry(seed: int) -> None:
    run(perishing, seed)
