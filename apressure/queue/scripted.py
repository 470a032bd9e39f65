"""A queue's operations by scripts: one atomic step each, and waits that take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Sequence
from typing import Any

from apressure.connection import background
from apressure.connection.client import Client
from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueDoesNotExistError,
    Role,
)
from apressure.queue.batching import GetLane, Got, Put, PutLane
from apressure.queue.dead import DeadLetters
from apressure.queue.keys import Keys
from apressure.queue.portions import MAX_MESSAGES
from apressure.queue.steps import Steps
from apressure.queue.waits import Reason, Wait, Waits


class Scripted:
    """The operations of one queue.

    Args:
        client: Whose connections they use.
        keys: The queue's keys.
        name: Its name, for errors.
        dead: Where messages go that were delivered too often; None to deliver them for ever.
    """

    def __init__(self, client: Client, keys: Keys, name: str, dead: DeadLetters | None = None) -> None:
        self.client = client
        self.name = name
        self.dead = dead
        self.steps = Steps(client, keys, name)
        self.waits = Waits(self.steps.link.place, keys, self.steps.unclaim)
        self._put_lanes: set[PutLane] = set()
        self._puts = self.put_lane()
        self._forced = self.put_lane(force=True)
        self._gets = GetLane(self.steps, self.waits, client.settings.settle_timeout)
        self._others: set[Scripted] = set()

    @property
    def waiting_putters(self) -> int:
        """Tasks that are putting."""
        return sum(lane.waiting for lane in self._put_lanes)

    @property
    def waiting_getters(self) -> int:
        """Tasks that are getting."""
        return self._gets.waiting

    def put_lane(self, token: bytes = b"", force: bool = False) -> PutLane:
        """Return a lane for puts: the queue's own, or one under an exclusive producer's lease, which ends with it."""
        lane = PutLane(self.steps, self.waits, self.client.settings.settle_timeout, token, force)
        self._put_lanes.add(lane)
        return lane

    def drop_lane(self, lane: PutLane) -> None:
        """An exclusive producer's lease has ended, and its lane with it."""
        self._put_lanes.discard(lane)

    async def create(self, bound: int) -> None:
        await self.steps.create(bound)

    async def exists(self) -> bool:
        return await self.steps.exists()

    async def inspect(self) -> list[Any]:
        return await self.steps.inspect()

    async def peek(self, index: int) -> bytes:
        answer = await self.steps.peek(index)
        if isinstance(answer, Wait):
            raise answer.error(self.name)
        return answer

    def put(self, put: Put, timeout: float | None, force: bool, now: bool) -> Awaitable[None]:
        return (self._forced if force else self._puts).put(put, timeout, now)

    def get(self, max_items: int, timeout: float | None, now: bool) -> Awaitable[list[bytes]]:
        return self._gets.get(max_items, timeout, now)

    async def give_back(self, messages: Sequence[bytes], first: int = 0, end: int | None = None) -> None:
        """Make those from the first to the end of the messages that were got the first in line again."""
        if some := messages[first:end]:
            await asyncio.wait((self._gets.give_back(some, messages.order if isinstance(messages, Got) else None),))

    async def close(self, timeout: float | None, token: bytes = b"") -> None:
        await self.waits.until(lambda: self.steps.close(self.waits.take_claim("producer"), token), timeout, self.name)

    async def wait_closed(self, timeout: float | None) -> None:
        async def look() -> bool | Wait:
            return bool((await self.steps.inspect())[2]) or Wait("open")

        await self.waits.until(look, timeout, self.name)

    async def delete(self, timeout: float | None) -> None:
        await self.steps.doom()
        self.end(QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name))
        await self.waits.until(
            lambda: self.steps.bury(self.waits.take_claim("producer"), self.waits.take_claim("consumer")),
            timeout,
            self.name,
        )

    async def requeue(self, source: str, keys: Keys, max_items: int | None, timeout: float | None) -> int:
        """Move dead letters from the queue `source` to the end of this one; see `AsyncQueue.requeue`."""
        other = Scripted(self.client, keys, source)
        self._others.add(other)
        try:
            return await self._requeue(other, keys, max_items, timeout)
        finally:
            if other in self._others:
                self._others.discard(other)
                other.release(ClientClosedError("the operation has ended"))

    async def _requeue(self, other: Scripted, keys: Keys, max_items: int | None, timeout: float | None) -> int:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        series = self.steps.series()
        moved, most = 0, max_items

        async def attempt(reasons: tuple[Reason, ...]) -> list[int] | Wait | None:
            portion = MAX_MESSAGES if most is None else min(MAX_MESSAGES, most - moved)
            producer, consumer = self.waits.take_claim("producer"), other.waits.take_claim("consumer")
            try:
                answer = await self.steps.requeue(series, keys, producer, consumer, portion)
            except PressureError:
                if consumer == b"1":
                    other.steps.unclaim("consumer")
                raise
            return None if isinstance(answer, Wait) and answer.reason not in reasons else answer

        # Each of the two queues waits for what is its own; None says that it is the other one's turn to wait.
        here: tuple[Scripted, tuple[Reason, ...]] = (self, ("full", "producer"))
        there: tuple[Scripted, tuple[Reason, ...]] = (other, ("consumer",))
        try:
            while True:
                remaining = None if deadline is None else max(0.0, deadline - loop.time())
                step = functools.partial(attempt, here[1])
                answer = await here[0].waits.until(step, remaining, here[0].name)
                if answer is None:
                    here, there = there, here
                    continue
                now, left = answer
                # What dies while this goes on is not for this call: a message could go round for ever.
                most = now + left if most is None else min(most, moved + now + left)
                moved += now
                if moved >= most:
                    return moved
        except PressureError as error:
            error.accepted = moved
            if moved:
                error.add_note(f"{moved} dead letters were moved before")
            raise

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        others = sum(other.end(error) for other in self._others)
        puts = sum(lane.end(error) for lane in self._put_lanes)
        return puts + self._gets.end(error) + self.waits.end(error) + others

    def release(self, error: PressureError) -> None:
        """Let go of the waiters' connections; what would wait from now on gets the error."""
        while self._others:
            self._others.pop().release(error)
        roles = self.waits.close(error)
        if roles and self.client.here:
            self.client.first(background.start(self._hand_back(roles), "giving back a role that was waited for"))

    async def _hand_back(self, roles: list[Role]) -> None:
        """Give back what the server served to a wait that has ended, or the role would stand still for seconds."""
        with contextlib.suppress(PressureError):
            await asyncio.sleep(0)  # the connection ends in the next turn of the event loop;
            await asyncio.sleep(0)
            await self.steps.exists()  # after a round trip the server has seen that, too
            for role in roles:
                self.steps.unclaim(role)
