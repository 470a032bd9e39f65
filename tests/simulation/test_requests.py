"""Requests, while those who ask and those who reply crash, stand still, are cancelled and lose replies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from apressure import AsyncQueue, Envelope, EventQueue, LeaseLostError, NoReplyError, QueueClosedError, QueueFullError
from tests.simulation.crowd import USUAL, Crowd, Trouble
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"
LATE = 12.0
"""Seconds: so long a reply may take to an asker whose connections break; a wait that is not woken lasts five."""


class Asking:
    """A queue, those who ask, and those who reply.

    Args:
        sim: The world.
        enveloped: The queue is an AsyncQueue of envelopes, and no EventQueue.
    """

    def __init__(self, sim: Sim, enveloped: bool) -> None:
        self.sim = sim
        self.enveloped = enveloped
        self.consumer = {"shared": sim.draw(2) == 0} if enveloped else {}
        self.troubles: tuple[Trouble, ...] = (("reset",), USUAL)[sim.draw(2)]
        self.crowd = Crowd(sim, 1 + sim.seconds(2))
        self.replied: dict[bytes, float] = {}
        """When a reply had been sent for certain."""
        self.got = 0
        self._askers = 0

    def queue(self, **options: Any) -> Any:
        """Return the queue."""
        if self.enveloped:
            return AsyncQueue(NAME, codec="cloudevents", **options)
        return EventQueue(NAME, **options)

    def request(self, message: bytes) -> Any:
        """Return a message as it is asked."""
        return Envelope(message) if self.enveloped else message

    async def ask(self) -> None:
        """Ask, several questions at a time, until there are many or the queue is closed."""
        self._askers += 1
        me, sim, number = self._askers, self.sim, 0
        async with connected() as client:
            queue = self.queue(client=client)
            while number < 30:
                count = (1, 2, 5, 12)[sim.draw(4)]
                asked = [self._ask_one(queue, b"%d.%d" % (me, number + place)) for place in range(count)]
                number += count
                if not all(await asyncio.gather(*asked)):
                    return
                await asyncio.sleep(sim.seconds((0, 0.2, 0.5)[sim.draw(3)]))

    async def _ask_one(self, queue: Any, message: bytes) -> bool:
        """Returns whether the queue is still open."""
        begun, timeout = time.time(), 0.1 + self.sim.seconds((1, 5, 40)[self.sim.draw(3)])
        try:
            reply = await queue.ask(self.request(message), timeout)
        except QueueClosedError:
            return False
        except QueueFullError:
            return True
        except NoReplyError as error:
            if not any(words in str(error) for words in ("got no reply within", "could not be put within")):
                raise
            ended = time.time()
            assert ended + 0.001 >= begun + timeout, f"gave up after {ended - begun} s, and had {timeout} s"
            sent = self.replied.get(message, ended)
            late = self.troubles == ("reset",) and ended - sent > LATE
            assert not late, f"{message!r} was replied to {ended - sent} s before its asker gave up"
        else:
            assert reply == {"re": message.decode()}, (message, reply)
            self.got += 1
        return True

    async def reply(self) -> None:
        """Reply to what comes until the queue is drained."""
        sim = self.sim
        async with connected() as client:
            queue = self.queue(client=client)
            while True:
                try:
                    async with queue.consumer("manual", lease=self.crowd.lease, **self.consumer) as consumer:
                        async for delivery in consumer:
                            await asyncio.sleep(sim.seconds((0, 0.1, 0.4)[sim.draw(3)]))
                            if sim.draw(5) == 0:
                                await (delivery.nack(delay=sim.seconds(1)) if sim.draw(2) else delivery.nack())
                                continue
                            message = delivery.item.data if self.enveloped else delivery.raw
                            if sim.draw(3) == 0:
                                delivery.ack_soon(delivery.encode_reply({"re": message.decode()}))  # as `serve` does
                                continue
                            await delivery.reply({"re": message.decode()})
                            self.replied[message] = time.time()
                    return
                except LeaseLostError:
                    continue


async def asked(sim: Sim, enveloped: bool = False) -> None:
    """In the end, when nothing has trouble any more, each question gets its answer."""
    one = Asking(sim, enveloped)
    crowd = one.crowd
    async with one.queue(url=URL) as queue:
        await queue.create((0, 1, 3, 10)[sim.draw(4)])
    for _ in range(2 + sim.draw(6)):
        while len(crowd.alive("asker")) < 1 + sim.draw(3):
            crowd.add("asker", one.ask)
        while len(crowd.alive("replier")) < 1 + sim.draw(2):
            crowd.add("replier", one.reply)
        await asyncio.sleep(sim.seconds(3))
        crowd.trouble(one.troubles)
    crowd.add("replier", one.reply)

    async def ask_at_last() -> None:
        async with one.queue(url=URL) as queue:
            asked = [queue.ask(one.request(b"last %d" % number), 600.0) for number in range(5)]
            replies = await asyncio.gather(*asked)
            assert replies == [{"re": f"last {number}"} for number in range(5)], replies
            await queue.close()

    await sim.process("the last one who asks", ask_at_last)
    await crowd.ended()

    async def delete() -> None:
        async with one.queue(url=URL) as queue:
            seen = await queue.statistics()
            assert (seen.length, seen.in_flight, seen.delayed) == (0, 0, 0), seen
            letters = await queue.dead_letters()
            assert not letters, f"dead_letters: {letters}"
            await queue.delete()
        left = sim.server.lasting_keys()
        assert not left, f"keys left: {left}"

    await sim.process("the one who looks", delete)


def test_requests(seed: int) -> None:
    run(asked, seed)


async def asked_in_envelopes(sim: Sim) -> None:
    """The same on an AsyncQueue."""
    await asked(sim, enveloped=True)


def test_requests_in_envelopes(seed: int) -> None:
    run(asked_in_envelopes, seed)
