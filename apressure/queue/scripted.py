"""A queue's operations by scripts: one atomic step each, and waits that take nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from apressure.connection import background
from apressure.connection.client import Client
from apressure.exceptions import PressureError, QueueDoesNotExistError, Role
from apressure.queue.batching import GetLane, PutLane
from apressure.queue.keys import Keys
from apressure.queue.steps import Steps
from apressure.queue.waits import Wait, Waits


class Scripted:
    """The operations of one queue.

    Args:
        client: Whose connections they use.
        keys: The queue's keys.
        name: Its name, for errors.
    """

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        self.client = client
        self.name = name
        self.steps = Steps(client, keys, name)
        self.waits = Waits(client.server, keys, self.steps.unclaim)
        self._puts = self.put_lane()
        self._forced = self.put_lane(force=True)
        self._gets = GetLane(self.steps, self.waits, client.settings.settle_timeout)

    @property
    def waiting_putters(self) -> int:
        """Tasks that are putting."""
        return self._puts.waiting + self._forced.waiting

    @property
    def waiting_getters(self) -> int:
        """Tasks that are getting."""
        return self._gets.waiting

    def put_lane(self, token: bytes = b"", force: bool = False) -> PutLane:
        """Return a lane for puts: the queue's own, or one under an exclusive producer's lease."""
        return PutLane(self.steps, self.waits, self.client.settings.settle_timeout, token, force)

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

    async def put(self, messages: Sequence[bytes], timeout: float | None, force: bool, now: bool) -> None:
        await (self._forced if force else self._puts).put(messages, timeout, now)

    async def get(self, max_items: int, timeout: float | None, now: bool) -> list[bytes]:
        return await self._gets.get(max_items, timeout, now)

    async def give_back(self, messages: Sequence[bytes]) -> None:
        """Make messages that were got the first in line again."""
        await asyncio.wait((self._gets.give_back(messages),))

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

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        return self._puts.end(error) + self._forced.end(error) + self._gets.end(error) + self.waits.end(error)

    def release(self, error: PressureError) -> None:
        """Let go of the waiters' connections; what would wait from now on gets the error."""
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
