"""Messages that are put once, while clients crash, stand still, are cancelled and lose replies.

Each put notes when it began and ended. So it shows which of two puts with the same dedup id could come first, and
whether one that was refused can have been a repeat: never of itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, NamedTuple

from apressure import AsyncQueue, DuplicateMessageError, EventQueue, LeaseLostError, QueueClosedError
from tests.simulation.crowd import USUAL, Crowd, Trouble
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"
SLACK = 0.002
"""Seconds: times on the server are whole milliseconds."""


class Try(NamedTuple):
    """A put that has ended, or whose process has died.

    Attributes:
        dedup_id: Its dedup id.
        message: Its message.
        begun, ended: When, in seconds.
    """

    dedup_id: str
    message: bytes
    begun: float
    ended: float


class Once:
    """A queue, those that put messages once, and those that handle them.

    Args:
        sim: The world.
    """

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.window = (None, 0.2 + sim.seconds(1), 0.5 + sim.seconds(4))[sim.draw(3)]
        """Seconds; None until the message is done."""
        self.replaces = self.window is None and sim.draw(2) == 0
        self.kind: Any = EventQueue if self.window is None or sim.draw(2) else AsyncQueue
        self.troubles: tuple[Trouble, ...] = (("reset",), USUAL)[sim.draw(2)]
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self.accepted: dict[bytes, Try] = {}
        self.refused: list[Try] = []
        self.begun: dict[bytes, tuple[str, float]] = {}
        self.done: dict[bytes, tuple[float, float]] = {}
        """When a message may have been done first, and when it was for certain."""
        self._ids = 1 + sim.draw(6)
        self._putters = 0

    async def put(self) -> None:
        """Put messages, several at a time, until there are many or the queue is closed."""
        self._putters += 1
        me, sim, number = self._putters, self.sim, 0
        async with connected() as client:
            queue = self.kind(NAME, client=client)
            while number < 40:
                count = (1, 1, 2, 5)[sim.draw(4)]
                puts = [self._put_one(queue, b"%d.%d" % (me, number + place)) for place in range(count)]
                number += count
                if not all(await asyncio.gather(*puts)):
                    return
                await asyncio.sleep(sim.seconds((0, 0.2, 0.5)[sim.draw(3)]))

    async def _put_one(self, queue: Any, message: bytes) -> bool:
        """Returns whether the queue is still open."""
        dedup_id, begun = f"{self.sim.draw(self._ids)}", time.time()
        more: dict[str, Any] = {"delay": self.sim.seconds(2)} if self.sim.draw(4) == 0 else {}
        self.begun[message] = dedup_id, begun
        more |= {"replace": True} if self.replaces else {"dedup_window": self.window}
        try:
            await queue.put(message, dedup_id=dedup_id, **more)
        except DuplicateMessageError:
            self.refused.append(Try(dedup_id, message, begun, time.time()))
        except QueueClosedError:
            return False
        else:
            self.accepted[message] = Try(dedup_id, message, begun, time.time())
        return True

    async def consume(self) -> None:
        """Handle what comes until the queue is drained."""
        sim, options = self.sim, {"shared": True} if self.kind is AsyncQueue else {}
        async with connected() as client:
            queue = self.kind(NAME, client=client)
            while True:
                try:
                    async with queue.consumer("manual", lease=self.crowd.lease, **options) as consumer:
                        async for delivery in consumer:
                            await asyncio.sleep(sim.seconds((0, 0.1, 0.4)[sim.draw(3)]))
                            if sim.draw(5) == 0:
                                await delivery.nack()
                                continue
                            first, _ = self.done.get(delivery.raw, (time.time(), 0.0))
                            self.done[delivery.raw] = first, math.inf
                            await delivery.ack()
                            self.done[delivery.raw] = first, time.time()
                    return
                except LeaseLostError:
                    continue

    def check(self) -> None:
        """Look at what has happened."""
        strangers = self.done.keys() - self.begun.keys()
        assert not strangers, f"never put: {sorted(strangers)}"
        put_all_the_same = self.done.keys() & {one.message for one in self.refused}
        assert not put_all_the_same, f"refused, and put: {sorted(put_all_the_same)}"
        lost = self.accepted.keys() - self.done.keys()
        if self.replaces:
            assert not self.refused, f"refused for nothing: {self.refused}"
            lost = {message for message in lost if not self._may_be_replaced(self.accepted[message])}
        assert not lost, f"lost: {sorted(lost)}"
        if self.replaces:
            return
        by_id: dict[str, list[Try]] = {}
        for one in self.accepted.values():
            by_id.setdefault(one.dedup_id, []).append(one)
        for tries in by_id.values():
            for place, one in enumerate(tries):
                for other in tries[:place]:
                    assert self._may_follow(one, other) or self._may_follow(other, one), f"both put: {one}, {other}"
        for one in self.refused:
            assert any(self._may_refuse(message, one) for message in self.begun), f"refused for nothing: {one}"

    def _may_be_replaced(self, one: Try) -> bool:
        """Whether a message that was done, of the same id, can have been put behind this one."""
        for message in self.done:
            dedup_id, _ = self.begun[message]
            ended = self.accepted[message].ended if message in self.accepted else math.inf
            if dedup_id == one.dedup_id and ended + SLACK >= one.begun:
                return True
        return False

    def _may_follow(self, later: Try, earlier: Try) -> bool:
        """Whether two that were put can have been put in this order."""
        if self.window is None:
            return later.ended + SLACK >= self.done[earlier.message][0]
        return later.ended - earlier.begun + SLACK >= self.window

    def _may_refuse(self, message: bytes, refused: Try) -> bool:
        """Whether this message can be one that the refused one repeats."""
        dedup_id, begun = self.begun[message]
        if message == refused.message or dedup_id != refused.dedup_id or begun > refused.ended:
            return False
        if self.window is not None:
            ended = self.accepted[message].ended if message in self.accepted else math.inf
            return refused.begun - ended - SLACK <= self.window
        _, done = self.done.get(message, (0.0, math.inf))
        return done + SLACK >= refused.begun


async def once(sim: Sim) -> None:
    """Somebody closes the queue at some time: what was put by then is handled all the same."""
    one = Once(sim)
    crowd = one.crowd
    async with one.kind(NAME, url=URL) as queue:
        await queue.create((0, 1, 3, 10)[sim.draw(4)])
    for _ in range(3 + sim.draw(8)):
        while len(crowd.alive("producer")) < 1 + sim.draw(3):
            crowd.add("producer", one.put)
        while len(crowd.alive("consumer")) < 1 + sim.draw(2):
            crowd.add("consumer", one.consume)
        await asyncio.sleep(sim.seconds(2))
        crowd.trouble(one.troubles)
    async with one.kind(NAME, url=URL) as queue:
        await queue.close()
    crowd.add("consumer", one.consume)
    await crowd.ended()
    one.check()

    async def delete() -> None:
        async with one.kind(NAME, url=URL) as queue:
            seen = await queue.statistics()
            assert (seen.length, seen.in_flight, seen.delayed) == (0, 0, 0), seen
            await queue.delete()
        left = sim.server.lasting_keys()
        assert not left, f"keys left: {left}"

    await sim.process("the one who looks", delete)


def test_dedup(seed: int) -> None:
    run(once, seed)
