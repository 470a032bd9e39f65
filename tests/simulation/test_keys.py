"""Messages with keys, while clients crash, stand still, are cancelled and lose replies, and the server starts again.

`sim.server.state` sees after each command that no more of a key are handled at a time than may be, that they are in
order, and that none is lost. In some runs nobody is in trouble, and no client looks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

import pytest

from apressure import (
    Delivery,
    EventQueue,
    LeaseLostError,
    OutcomeUnknownError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
)
from apressure.events.engine import waits
from tests.patience import be_patient
from tests.simulation.crowd import USUAL, Crowd, Trouble, put_those
from tests.simulation.world import URL, Sim, connected, run

NAME = "jobs"
PATIENCE: Final = 300.0
"""Seconds after which a consumer of a closed queue is stuck."""
RESTARTS: Final[tuple[Trouble, ...]] = ("restart", "restart", *USUAL)
MANY: Final = 20
"""So many messages are put by a producer at most."""


class Customers:
    """A queue of messages with keys, those who put and handle some, and an operator.

    Args:
        sim: The world.
        troubles: What happens to them; nothing if it is empty.
    """

    def __init__(self, sim: Sim, troubles: tuple[Trouble, ...]) -> None:
        self.sim = sim
        self.troubles = troubles
        # Patient clients see that a lease has ended when it is too late.
        self.crowd = Crowd(sim, (0.5 if troubles else 30) + sim.seconds(2))
        self.keys = 1 + sim.draw(5)
        self.pointer = (None, "/customer")[sim.draw(2)]
        self.said = ((1,), (1,), (1,), (3,), (1, 3), (1, 2, None))[sim.draw(6)]
        """How many of a key may be handled, one after the other."""
        self.limit = (None, None, 1, 2)[sim.draw(4)]
        self.gets = sim.draw(4) == 0
        self.purges = sim.draw(6) == 0
        self.fronts = sim.draw(8) == 0
        self.put: set[bytes] = set()
        self.acking: set[bytes] = set()
        """Those that somebody began to acknowledge."""
        self.certain: set[bytes] = set()
        """Those whose acknowledgement was confirmed."""
        self.busy: dict[str, list[bytes]] = {}
        self.over = self.deleted = False
        self.seen = sim.server.state.watch_keys(NAME, self.pointer is not None, not self.fronts)
        self._producers = 0

    def queue(self, client: Any) -> EventQueue[bytes]:
        """Return a queue object."""
        return EventQueue(NAME, client=client, max_attempts=self.limit)

    async def set_key(self, queue: EventQueue[bytes]) -> None:
        """Say how many of a key may be handled at a time."""
        at_most = self.said[self.sim.draw(len(self.said))]
        await queue.set_key(self.pointer, at_most, fair=self.sim.draw(3) > 0)

    def go_on(self) -> None:
        """There are producers, consumers, and an operator again."""
        while len(self.crowd.alive("producer")) < 1 + self.sim.draw(2):
            self.crowd.add("producer", self._put)
        while len(self.crowd.alive("consumer")) < 1 + self.sim.draw(3):
            self.add()
        if not self.crowd.alive("operator"):
            self.crowd.add("operator", self._operate)

    def add(self) -> None:
        """Start a consumer."""
        ways = (self._deliver, self._deliver, self._receive, self._get)
        way = ways[self.sim.draw(4 if self.gets else 3)]

        async def consume() -> None:
            try:
                await way()
            except QueueDoesNotExistError:
                assert self.deleted

        self.crowd.add("consumer", consume)

    def _terms(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """How a message is put, and what it says of that."""
        sim = self.sim
        terms: dict[str, Any] = {}
        said: dict[str, Any] = {}
        if sim.draw(5):
            said["customer"] = f"c{sim.draw(self.keys)}"
        if sim.draw(2):
            said["key"] = terms["key"] = f"c{sim.draw(self.keys)}"
        if sim.draw(6) == 0:
            terms["delay"] = 0.01 + sim.seconds(2)
        return terms, said

    async def _put(self) -> None:
        """Put messages, one by one or in batches, until there are many or the queue is closed."""
        self._producers += 1
        me, sim, number = self._producers, self.sim, 0
        async with connected() as client:
            queue = self.queue(client)
            while number < MANY:
                count = (1, 1, 3, 6)[sim.draw(4)]
                terms, said = self._terms()
                messages = [json.dumps({"m": f"{me}.{number + i}", **said}).encode() for i in range(count)]
                number += count
                if self.fronts and "key" not in terms and "delay" not in terms and sim.draw(2):
                    terms["front"], messages = True, messages[:1]
                if not await put_those(queue, messages, self.put, **terms):
                    return
                await asyncio.sleep(sim.seconds((0, 0.2, 1)[sim.draw(3)]))

    async def _operate(self) -> None:
        """Say other limits, purge, and have dead letters handled again."""
        sim = self.sim
        async with connected() as client:
            queue = self.queue(client)
            while not self.over:
                await asyncio.sleep(sim.seconds(2))
                what = sim.draw(4)
                if what == 0:
                    await self.set_key(queue)
                elif what == 1:
                    with contextlib.suppress(OutcomeUnknownError, QueueFullError):
                        await queue.requeue(timeout=0)
                elif what == 2 and self.purges and sim.draw(3) == 0:
                    self.seen.purging = True  # until the end: it may come late
                    await queue.purge()

    async def _work(self, delivery: Delivery[bytes]) -> None:
        """Handle a message, and settle it in some way."""
        sim, message = self.sim, delivery.raw
        # A process that stood still cannot know that another one has had the message meanwhile.
        timely = self.troubles in {(), ("reset",)}
        assert not timely or message not in self.certain, f"{message!r} came after it was acknowledged"
        key = str(json.loads(message).get("key") or (json.loads(message).get("customer", "") if self.pointer else ""))
        busy = self.busy.setdefault(key, [])
        busy.append(message)
        most = None in self.said or max(one or 0 for one in self.said)
        assert self.troubles or not key or most is True or len(busy) <= most, f"{key} is handled {len(busy)} times"
        try:
            await asyncio.sleep(sim.seconds((0, 0.1, 1)[sim.draw(3)]))
        finally:
            busy.remove(message)
        how = sim.draw(10)
        if how == 0:
            await delivery.nack()
        elif how == 1:
            await delivery.nack("it failed", delay=0.01 + sim.seconds(2))
        elif how == 2:
            await delivery.release()
        elif how == 3 and self.limit:
            await delivery.nack(ValueError("as it happens"))
        else:
            self.acking.add(message)
            await delivery.ack()
            self.certain.add(message)

    async def _deliver(self) -> None:
        async with connected() as client:
            queue = self.queue(client)
            while True:
                try:
                    prefetch = (None, 1, 3, 10)[self.sim.draw(4)]
                    async with queue.consumer("manual", lease=self.crowd.lease, prefetch=prefetch) as consumer:
                        async for delivery in consumer:
                            await self._work(delivery)
                            if self.sim.draw(20) == 0:
                                break
                        else:
                            return
                except (LeaseLostError, OutcomeUnknownError):
                    continue  # what it had comes again

    async def _receive(self) -> None:
        async with connected() as client:
            queue = self.queue(client)
            while True:
                try:
                    await self._work(await queue.receive(lease=self.crowd.lease))
                except (LeaseLostError, OutcomeUnknownError):
                    continue
                except QueueClosedError:
                    return

    async def _get(self) -> None:
        async with connected() as client:
            queue = self.queue(client)
            while True:
                try:
                    async with asyncio.timeout((None, 0.5, 0.01)[self.sim.draw(3)]):
                        await queue.get_many((1, 1, 5)[self.sim.draw(3)])
                except QueueClosedError:
                    return
                except (OutcomeUnknownError, TimeoutError):
                    pass
                await asyncio.sleep(self.sim.seconds((0, 0.2, 0.5)[self.sim.draw(3)]))

    async def end(self) -> None:
        """Close the queue, and see that everything is handled."""
        sim = self.sim
        self.over = True
        while self.crowd.alive("operator"):
            await asyncio.sleep(1)
        async with EventQueue[bytes](NAME, url=URL) as queue:
            await queue.close()
        self.add()  # somebody is there in the end
        try:
            async with asyncio.timeout(PATIENCE):
                await self.crowd.ended()
        except TimeoutError:
            raise AssertionError(f"stuck: {self.crowd.alive()} wait for a closed queue without end") from None
        await sim.process("the one who looks", self._check)

    async def _check(self) -> None:
        async with EventQueue[bytes](NAME, url=URL) as queue:
            seen = await queue.statistics()
            letters = [letter.raw for letter in await queue.dead_letters(1000)]
            assert (seen.length, seen.in_flight, seen.delayed) == (0, 0, 0), seen
            left = [key for key in self.sim.server.lasting_keys() if key.rpartition(b":")[2] in LINES]
            assert not left, f"keys left: {left}"
            done = self.seen.acked | self.seen.vanished | set(letters)
            assert not (lost := self.put - done), f"lost: {sorted(lost)}"
            assert self.gets or not (lost := self.seen.acked - self.acking), f"acknowledged by nobody: {sorted(lost)}"
            if not self.gets and not self.purges:
                assert not (lost := self.seen.vanished), f"they went while they waited: {sorted(lost)}"
            assert len(letters) == len(set(letters)), f"dead: {sorted(letters)}"
            both = set(letters) & self.certain
            assert not both, f"acknowledged, and dead: {sorted(both)}"
            await queue.delete()
        left = self.sim.server.lasting_keys()
        assert not left, f"keys left: {left}"

    async def delete(self) -> None:
        """Delete the queue while messages wait and are handled."""
        self.over = self.deleted = True
        for name in [*self.crowd.alive("producer"), *self.crowd.alive("operator")]:
            self.sim.crash(name)
        if self.troubles:
            await asyncio.sleep(60)  # steps may come late
        async with EventQueue[bytes](NAME, url=URL) as queue:
            await queue.delete()
        await asyncio.sleep(self.sim.seconds(20))
        self.sim.raise_failures()
        for name in self.crowd.alive():
            self.sim.crash(name)
        await asyncio.sleep(60)
        left = [key for key in self.sim.server.lasting_keys() if key.rpartition(b":")[2] != b"consumers"]
        assert not left, f"keys left: {left}"


LINES: Final = {b"keyed", b"lines", b"ring"}


async def in_turn(sim: Sim) -> None:
    """Somebody closes the queue at some time, or deletes it."""
    troubles: tuple[Trouble, ...] = ((), ("reset",), USUAL, RESTARTS)[sim.draw(4)]
    with pytest.MonkeyPatch.context() as patch:
        if not troubles:
            be_patient(patch, waits)
        customers = Customers(sim, troubles)
        async with EventQueue[bytes](NAME, url=URL) as queue:
            await queue.create((0, 1, 3, 10)[sim.draw(4)])
            if customers.pointer or sim.draw(2):
                await customers.set_key(queue)
        for _ in range(3 + sim.draw(6)):
            customers.go_on()
            await asyncio.sleep(sim.seconds(2))
            if troubles:
                customers.crowd.trouble(troubles)
        await (customers.delete() if sim.draw(10) == 0 else customers.end())


def test_keys(seed: int) -> None:
    run(in_turn, seed)
