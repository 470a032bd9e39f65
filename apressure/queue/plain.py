"""A queue's operations as the specification's plain commands with BRPOP, for servers that refuse scripts.

An operation takes its role, works step by step, and gives the role back, on a connection of its own. Inside one
client the operations of a role take turns, so a queue needs two such connections at most, whatever waits.

What this cannot do is survive the death of its process: the role stays taken, as with every client that follows the
specification step by step. That, leases and repeats after a lost reply are what scripts are for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from apressure.connection.client import Client
from apressure.exceptions import (
    PermissionDeniedError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    Role,
    ServerError,
)
from apressure.queue.batching import Put
from apressure.queue.keys import Keys
from apressure.queue.turns import Interrupted, Turn, Turns
from apressure.queue.waits import Wait, Waits


class Plain:
    """The operations of one queue.

    Args:
        client: Whose connections they use.
        keys: The queue's keys.
        name: Its name, for errors.
    """

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        self.client = client
        self.keys = keys
        self.name = name
        self._link = client.link_for(keys.specified)
        self._turns = Turns(client, self._link, keys, name)
        self._waits = Waits(self._link.place, keys, lambda _: None)  # nothing is claimed here

    @property
    def waiting_putters(self) -> int:
        """Tasks that are putting."""
        return self._turns.waiting("producer")

    @property
    def waiting_getters(self) -> int:
        """Tasks that are getting."""
        return self._turns.waiting("consumer")

    async def create(self, bound: int) -> None:
        collisions = self.keys.collisions()
        for key in collisions:
            if await self._ask(b"EXISTS", key):
                other = key.removesuffix(b":bound").decode(errors="replace")
                raise QueueAlreadyExistsError(
                    f"the queue {self.name!r} would share a key with the existing queue at {other!r}: "
                    "choose another name",
                    name=self.name,
                )
        if not await self._ask(b"SETNX", self.keys.bound, bound):
            raise QueueAlreadyExistsError(f"the queue {self.name!r} exists already", name=self.name)
        await self._clear_ours()
        await self._ask(b"DEL", *(key for key in self.keys.specified if key != self.keys.bound))
        for key in (self.keys.free("producer"), self.keys.free("consumer"), self.keys.not_full):
            await self._ask(b"LPUSH", key, 1)

    async def exists(self) -> bool:
        return bool(await self._ask(b"EXISTS", self.keys.bound))

    async def inspect(self) -> list[Any]:
        keys = self.keys
        bound = await self._ask(b"GET", keys.bound)
        if bound is None:
            raise self._turns.missing()
        counters = [
            await self._ask(b"GET", key) or b"0"
            for role in ("producer", "consumer")
            for key in (keys.messages_count(role), keys.bytes_count(role))
        ]
        roles = [
            [
                await self._ask(b"GET", keys.holder(role)) or b"",
                await self._ask(b"LLEN", keys.free(role)),
                0,
                b"",
                b"",
                b"",
            ]
            for role in ("producer", "consumer")
        ]
        length, closed = await self._ask(b"LLEN", keys.messages), await self._ask(b"EXISTS", keys.closed)
        return [bound, length, closed, 0, counters, *roles]

    async def peek(self, index: int) -> bytes:
        if not await self.exists():
            raise self._turns.missing()
        message: bytes | None = await self._ask(b"LINDEX", self.keys.messages, index)
        if message is None:
            raise Wait("empty").error(self.name)
        return message

    async def put(self, put: Put, timeout: float | None, force: bool, now: bool) -> None:
        async def one(turn: Turn) -> None:
            while put.done < len(put.messages):
                if turn.interrupted:
                    raise Interrupted
                async with turn:
                    await self._put_one(turn, put.messages[put.done], force, put.done)
                    put.done += 1

        try:
            await self._turns.run("producer", one, 0 if now else timeout, Wait("full"))
        except PressureError as error:
            error.accepted = put.done
            raise

    async def get(self, max_items: int, timeout: float | None, now: bool) -> list[bytes]:
        async def some(turn: Turn) -> list[bytes]:
            async with turn:
                return await self._get_some(turn, max_items)

        return await self._turns.run("consumer", some, 0 if now else timeout, Wait("empty"), undo=self.give_back)

    async def give_back(self, messages: Sequence[bytes], first: int = 0, end: int | None = None) -> None:
        """Make those from the first to the end of the messages that were got the first in line again, not counted."""
        messages = messages[first:end]
        if not messages:
            return
        await self._ask(b"RPUSH", self.keys.messages, *reversed(messages))
        await self._ask(b"DECRBY", self.keys.messages_count("consumer"), len(messages))
        await self._ask(b"DECRBY", self.keys.bytes_count("consumer"), sum(map(len, messages)))

    async def close(self, timeout: float | None) -> None:
        async def step(turn: Turn) -> None:
            async with turn:
                if await turn.ask(b"EXISTS", self.keys.closed):
                    raise self._ended()
                await turn.ask(b"LPUSH", self.keys.closed, 0, 0)

        await self._turns.run("producer", step, timeout, Wait("producer", self.client.id))

    async def wait_closed(self, timeout: float | None) -> None:
        async def look() -> bool | Wait:
            return bool((await self.inspect())[2]) or Wait("open")

        await self._waits.until(look, timeout, self.name)

    async def delete(self, timeout: float | None) -> None:
        keys = self.keys
        if not await self._ask(b"DEL", keys.bound):
            raise self._turns.missing()
        await self._ask(b"LPUSH", keys.not_full, 0)
        await self._ask(b"LPUSH", keys.closed, 0, 0)
        self._turns.end_waiting(QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name))

        async def step(turn: Turn) -> None:
            await self._take_for_deletion(turn, "producer")
            try:
                await self._take_for_deletion(turn, "consumer")
            except BaseException:
                await turn.restore(b"LPUSH", keys.free("producer"), 0)
                raise
            await self._clear_ours()
            await turn.ask(b"DEL", *keys.specified)

        await self._turns.run("producer", step, timeout, Wait("producer", self.client.id))

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        return self._turns.end(error) + self._waits.end(error)

    def release(self, error: PressureError) -> None:
        """Let go of the connections that nothing uses; what would wait from now on gets the error."""
        self._waits.close(error)
        self._turns.release()

    def _ended(self) -> QueueClosedError:
        return QueueClosedError(f"the queue {self.name!r} is closed", name=self.name)

    async def _ask(self, *command: bytes | str | int) -> Any:
        return await self._link.ask(*command)

    async def _clear_ours(self) -> None:
        """Remove what clients with scripts left behind, where this user may touch keys outside the prefix."""
        with contextlib.suppress(PermissionDeniedError):
            await self._ask(b"DEL", *self.keys.ours)

    async def _take_for_deletion(self, turn: Turn, role: Role) -> None:
        if await turn.ask(b"RPOP", self.keys.free(role)) is not None:
            return
        popped = await turn.pop(self.keys.free(role), deleting=True)
        if turn.interrupted:
            if popped is not None:
                await turn.restore(b"LPUSH", self.keys.free(role), 0)
            raise Interrupted
        if popped is None:
            raise await turn.in_use(role)

    async def _put_one(self, turn: Turn, message: bytes, force: bool, done: int) -> None:
        keys = self.keys
        if await turn.ask(b"EXISTS", keys.closed):
            raise self._ended()
        # The overfilling put takes the permit, too, where there is one: left behind in a queue that is full now, it
        # would let the next put in.
        permit = await turn.ask(b"RPOP", keys.not_full) is not None
        if not permit and not force:
            popped = await turn.pop(keys.not_full)
            if not await turn.exists():
                raise self._turns.missing()
            if popped is not None and turn.interrupted:
                await turn.restore(b"LPUSH", keys.not_full, 0)
            if turn.interrupted:
                raise Interrupted
            if popped is None:
                raise Wait("full").error(self.name, done)
            permit = True
        try:
            bound = await self._bound(turn)
            await self._count(turn, "producer", [message])  # first: a statistic that is no number stops it here
            try:
                length = await turn.ask(b"LPUSH", keys.messages, message)
            except ServerError:
                await self._count(turn, "producer", [message], -1)
                raise
        except ServerError:
            if permit:
                await turn.restore(b"LPUSH", keys.not_full, 0)
            raise
        if bound == 0 or length < bound:
            await turn.ask(b"LPUSH", keys.not_full, 0)
            await turn.ask(b"LTRIM", keys.not_full, 0, 0)

    async def _get_some(self, turn: Turn, max_items: int) -> list[bytes]:
        keys = self.keys
        messages = list(await turn.ask(b"RPOP", keys.messages, max_items) or ())
        if not messages and not await turn.ask(b"EXISTS", keys.closed):
            popped = await turn.pop(keys.messages, keys.closed)
            if popped is not None and popped[0] == keys.closed:
                await turn.ask(b"LPUSH", keys.closed, 0)  # or two such getters would open the queue again
            elif popped is not None:
                messages = [popped[1]]
            if turn.interrupted:
                if messages:
                    await turn.ask(b"RPUSH", keys.messages, *messages)
                raise Interrupted
            if not await turn.exists():
                raise self._turns.missing()
            if popped is None:
                raise Wait("empty").error(self.name)
            more = max_items - len(messages)
            if more:
                messages += await turn.ask(b"RPOP", keys.messages, more) or []
        if not messages:
            raise self._ended()
        try:
            bound = await self._bound(turn)
            await self._count(turn, "consumer", messages)
        except ServerError:
            await turn.ask(b"RPUSH", keys.messages, *reversed(messages))
            raise
        if bound == 0 or await turn.ask(b"LLEN", keys.messages) < bound:
            await turn.ask(b"LPUSH", keys.not_full, 0)
            await turn.ask(b"LTRIM", keys.not_full, 0, 0)
        return messages

    async def _bound(self, turn: Turn) -> int:
        text = await turn.ask(b"GET", self.keys.bound) or b"0"
        try:
            return int(text)
        except ValueError:
            raise ServerError(
                f"the queue {self.name!r} is damaged: its key :bound is not an integer; set the key right"
            ) from None

    async def _count(self, turn: Turn, role: Role, messages: Sequence[bytes], sign: int = 1) -> None:
        await turn.ask(b"INCRBY", self.keys.messages_count(role), sign * len(messages))
        try:
            await turn.ask(b"INCRBY", self.keys.bytes_count(role), sign * sum(map(len, messages)))
        except ServerError:
            await turn.ask(b"DECRBY", self.keys.messages_count(role), sign * len(messages))
            raise
