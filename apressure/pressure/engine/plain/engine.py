"""A queue's operations as the specification's plain commands with BRPOP, for servers that refuse scripts.

An operation takes its role, works step by step, and gives the role back, on a connection of its own. Inside one
client the operations of a role take turns, so a queue needs at most two such connections.

When the process dies during an operation, the role stays taken, as with every client that follows the specification
step by step. Only scripts survive that. Leases, and repeats after a lost reply, need scripts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from apressure import validation
from apressure.concurrency.settle import note_sent
from apressure.connection.client import Client
from apressure.core.backpressure import WaitingPuts
from apressure.core.browsing import MOST_READ, Asked, Found, Seen
from apressure.core.counts import Counts
from apressure.core.due import Due
from apressure.core.errors import closed
from apressure.core.limits import Changes
from apressure.core.waiting import Wait
from apressure.core.workers import Beside
from apressure.exceptions import (
    ROLES,
    PermissionDeniedError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    Role,
    ScriptingRefusedError,
    ServerError,
)
from apressure.pressure.engine.answers import collides, missing
from apressure.pressure.engine.batching import MAX_MESSAGES, Put
from apressure.pressure.engine.engine import Engine
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.plain.registry import PlainRegistry
from apressure.pressure.engine.plain.role_lock import Interrupted, OwnConnections, RoleLine, RoleLock
from apressure.pressure.engine.waits import Waits

_AT_A_TIME: Final = 100
"""How many messages of unknown size are read at a time."""


class Plain(Engine):
    """The engine of one queue object. Its arguments are those of `Engine`."""

    def __init__(self, client: Client, keys: Keys, name: str, owns_client: bool = False) -> None:
        super().__init__(client, keys, name, owns_client)
        connection = client.connection_for(keys.specified)
        self._ask = connection.ask
        self.counts = Counts()
        self._connections = OwnConnections(client, connection)
        self._producer, self._consumer = [RoleLine(role, self._connections, keys, name) for role in ROLES]
        self.waits = Waits(connection.node, keys, lambda _: None, lambda *_: None)  # nothing is claimed here
        self.registry: PlainRegistry = PlainRegistry(client, keys)
        self.waits.backpressure.registry = self.registry
        self._puts: dict[Put, None] = {}  # the first of them has its turn
        self._is_full = False

    def scripted(self, what: str) -> NoReturn:
        self.check()
        raise ScriptingRefusedError(f"{what} needs scripts on the server: open the queue without scripting=False")

    @property
    def waiting(self) -> tuple[int, int]:
        """How many tasks are putting, and how many are getting."""
        return self._producer.waiting, self._consumer.waiting

    @property
    def for_room(self) -> WaitingPuts | None:
        """The puts that wait, if the one whose turn it is waits for room."""
        if not (self._is_full and self._puts):  # one that was cancelled may still be on its way back
            return None
        now = asyncio.get_running_loop().time()
        for put in self._puts:
            put.since = put.since or now
        return WaitingPuts(len(self._puts), min(put.since or now for put in self._puts))

    async def kept_beside(self) -> Beside:
        """Return what is kept beside the queue."""
        return await self.registry.beside()

    async def create(self, bound: int) -> bool:
        for key in self.keys.collisions():
            if await self._ask(b"EXISTS", key):
                if await self.exists():
                    return False
                raise collides(self.name, key)
        note_sent()
        if not await self._ask(b"SETNX", self.keys.bound, bound):
            return False
        await self._clear_ours()
        await self._ask(b"DEL", *(key for key in self.keys.specified if key != self.keys.bound))
        for key in (self.keys.free("producer"), self.keys.free("consumer"), self.keys.not_full):
            await self._ask(b"LPUSH", key, 1)
        return True

    async def exists(self) -> bool:
        return bool(await self._ask(b"EXISTS", self.keys.bound))

    async def inspect(self) -> list[Any]:
        keys, ask = self.keys, self._ask
        bound = await ask(b"GET", keys.bound)
        if bound is None:
            raise missing(self.name)
        counters = [await ask(b"GET", key) or b"0" for key in keys.statistics]
        roles = [
            [await ask(b"GET", keys.holder(role)) or b"", await ask(b"LLEN", keys.free(role)), 0, b"", b"", b""]
            for role in ROLES
        ]
        length, ended = await ask(b"LLEN", keys.messages), await ask(b"EXISTS", keys.closed)
        paused, limits = False, (0, 0, 0, 0, 0)
        with contextlib.suppress(PermissionDeniedError):
            paused = await ask(b"HGET", keys.control, b"paused") is not None
        return [bound, length, ended, 0, counters, *roles, [], paused, *await self._delayed(), limits]

    async def _delayed(self) -> tuple[int, int]:
        """Return how many messages are delayed, and milliseconds until the first of them is due, or -1."""
        with contextlib.suppress(PermissionDeniedError):
            if delayed := await self._ask(b"ZCARD", self.keys.delayed):
                first = await self._ask(b"ZRANGE", self.keys.delayed, 0, 0, b"WITHSCORES")
                seconds, microseconds = map(int, await self._ask(b"TIME"))
                if first:
                    return delayed, max(0, int(float(first[1]) - seconds * 1000 - microseconds / 1000))
        return 0, -1

    async def peek(self, index: int) -> bytes | None:
        if not await self.exists():
            raise missing(self.name)
        return await self._ask(b"LINDEX", self.keys.messages, index)  # type: ignore[no-any-return]

    async def browse(self, asked: Asked) -> Found:
        if asked.place != "waiting":
            self.scripted(f"browse({asked.place!r})")
        if not await self.exists():
            raise missing(self.name)
        total = await self._ask(b"LLEN", self.keys.messages)
        most, seen, size = min(asked.limit, total - asked.passed), list[Seen](), 0
        while len(seen) < most and size < MOST_READ:
            first = asked.passed + len(seen)
            last = first + min(most - len(seen), 2 * len(seen) + 1, _AT_A_TIME) - 1
            span = (first, last) if asked.newest else (-last - 1, -first - 1)
            some = await self._ask(b"LRANGE", self.keys.messages, *span)
            if not some:
                break
            seen += [Seen(one[: asked.most_bytes], len(one)) for one in (some if asked.newest else reversed(some))]
            size += sum(map(len, some))
        return Found.of(seen, asked, len(seen), total)

    async def put(self, put: Put, timeout: float | None, force: bool = False, due: Due | None = None) -> None:
        if due is not None:  # another client of this kind would not know of the time
            self.scripted("a put with delay= or dedup_id=")
        validation.timeout(timeout)
        self.check("producer")

        async def one(role_lock: RoleLock) -> None:
            while put.done < len(put.items):
                if role_lock.interrupted:
                    raise Interrupted
                async with role_lock:
                    await self._put_one(role_lock, put, force)
                    put.done += 1
                    self.counts.put_count += 1

        self._puts[put] = None
        try:
            await self._producer.run(one, timeout, Wait("full"))
        except PressureError as error:
            error.accepted = put.done
            raise
        finally:
            del self._puts[put]

    async def get(self, max_items: int, timeout: float | None) -> list[bytes]:
        async def some(role_lock: RoleLock) -> list[bytes]:
            async with role_lock:
                got = await self._get_some(role_lock, max_items)
            self.counts.received_count += len(got)
            self.counts.deleted_count += len(got)
            return got

        return await self._consumer.run(some, timeout, Wait("empty"), undo=self.give_back)

    async def purge(self) -> int:
        """Get as many messages as wait now."""
        left = deleted = (await self.inspect())[1]
        with contextlib.suppress(QueueEmptyError, QueueClosedError):
            while left > 0:
                left -= len(await self.get(min(MAX_MESSAGES, left), 0))
        return int(deleted - left)

    async def give_back(self, messages: Sequence[bytes], first: int = 0, end: int | None = None) -> None:
        messages = messages[first:end]
        if not messages:
            return
        self.counts.deleted_count -= len(messages)
        await self._ask(b"RPUSH", self.keys.messages, *reversed(messages))
        await self._ask(b"DECRBY", self.keys.messages_count("consumer"), len(messages))
        await self._ask(b"DECRBY", self.keys.bytes_count("consumer"), sum(map(len, messages)))

    async def pause(self, pausing: bool, expected: bool = True) -> bool:  # noqa: ARG002
        self.scripted("pause" if pausing else "resume")

    async def limit(self, changes: Changes, expected: bool) -> None:  # noqa: ARG002
        self.scripted("set_bound, set_rate, set_concurrency and hold")

    async def close(self, expected: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002
        async def step(role_lock: RoleLock) -> None:
            async with role_lock:
                if await role_lock.ask(b"EXISTS", self.keys.closed):
                    raise closed(self.name)
                await role_lock.ask(b"LPUSH", self.keys.closed, 0, 0)

        await self._producer.run(step, timeout, Wait("producer", holder=self.client.id))

    async def delete(self, timeout: float | None = None) -> None:
        keys = self.keys
        note_sent()  # from the first command on
        if not await self._ask(b"DEL", keys.bound):
            raise missing(self.name)
        await self._ask(b"LPUSH", keys.not_full, 0)
        await self._ask(b"LPUSH", keys.closed, 0, 0)
        deleted = QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)
        self._producer.end_waiting(deleted)
        self._consumer.end_waiting(deleted)

        async def step(role_lock: RoleLock) -> None:
            await role_lock.take("producer", deleting=True)
            try:
                await role_lock.take("consumer", deleting=True)
            except BaseException:
                await role_lock.restore(b"LPUSH", keys.free("producer"), 0)
                raise
            await self._clear_ours()
            for key in keys.counters:
                with contextlib.suppress(ServerError):  # a list: the messages of another queue
                    if await role_lock.ask(b"GET", key) is not None:
                        await role_lock.ask(b"DEL", key)
            await role_lock.ask(b"DEL", *keys.specified)

        await self._producer.run(step, timeout, Wait("producer", holder=self.client.id))

    def _end(self, error: PressureError) -> int:
        return self._producer.end(error) + self._consumer.end(error) + self.waits.end(error)

    def _release(self, error: PressureError) -> None:
        self.waits.close(error)
        self._connections.release()

    async def _clear_ours(self) -> None:
        """Remove what clients with scripts left behind, if this user has the rights to those keys."""
        with contextlib.suppress(PermissionDeniedError):
            await self._ask(b"DEL", *self.keys.ours)

    async def _put_one(self, role_lock: RoleLock, put: Put, force: bool) -> None:
        keys, message, done = self.keys, put.items[put.done], put.done
        if await role_lock.ask(b"EXISTS", keys.closed):
            raise closed(self.name)
        # A forced put takes the permit, too, if there is one: in a queue that is now full it would let the next put in.
        permit = await role_lock.ask(b"RPOP", keys.not_full) is not None
        if not permit and not force:
            with self.waits.blocked.by("full"), self._waiting_for_room(put):
                popped = await role_lock.pop(keys.not_full)
            if not await role_lock.exists():
                raise missing(self.name)
            if popped is not None and role_lock.interrupted:
                await self._add_permit(role_lock)
            if role_lock.interrupted:
                raise Interrupted
            if popped is None:
                raise Wait("full").error(self.name, done)
            permit = True
        try:
            bound = await self._bound(role_lock)
            await self._count(role_lock, "producer", [message])  # first: a broken statistic stops it here
            try:
                length = await role_lock.ask(b"LPUSH", keys.messages, message)
            except ServerError:
                await self._count(role_lock, "producer", [message], -1)
                raise
        except ServerError:
            if permit:
                await self._add_permit(role_lock)
            raise
        if bound <= 0 or length < bound:
            await self._add_permit(role_lock)

    @contextlib.contextmanager
    def _waiting_for_room(self, put: Put) -> Iterator[None]:
        put.since = put.since or asyncio.get_running_loop().time()
        self._is_full = True
        self.waits.backpressure.note(self)
        try:
            yield
        finally:
            self._is_full = False

    async def _add_permit(self, role_lock: RoleLock) -> None:
        await role_lock.restore(b"LPUSH", self.keys.not_full, 0)
        await role_lock.restore(b"LTRIM", self.keys.not_full, 0, 0)  # a consumer may have brought another

    async def _get_some(self, role_lock: RoleLock, max_items: int) -> list[bytes]:
        keys = self.keys
        messages = list(await role_lock.ask(b"RPOP", keys.messages, max_items) or ())
        if not messages and not await role_lock.ask(b"EXISTS", keys.closed):
            with self.waits.blocked.by("empty"):
                popped = await role_lock.pop(keys.messages, keys.closed)
            if popped is not None and popped[0] == keys.closed:
                await role_lock.ask(b"LPUSH", keys.closed, 0)  # or two such getters would open the queue again
            elif popped is not None:
                messages = [popped[1]]
            if role_lock.interrupted:
                if messages:
                    await role_lock.ask(b"RPUSH", keys.messages, *messages)
                raise Interrupted
            if not await role_lock.exists():
                raise missing(self.name)
            if popped is None:
                raise Wait("empty").error(self.name)
            more = max_items - len(messages)
            if more:
                messages += await role_lock.ask(b"RPOP", keys.messages, more) or []
        if not messages:
            raise closed(self.name)
        try:
            bound = await self._bound(role_lock)
            await self._count(role_lock, "consumer", messages)
        except ServerError:
            await role_lock.ask(b"RPUSH", keys.messages, *reversed(messages))
            raise
        if bound <= 0 or await role_lock.ask(b"LLEN", keys.messages) < bound:
            await self._add_permit(role_lock)
        return messages

    async def _bound(self, role_lock: RoleLock) -> int:
        text = await role_lock.ask(b"GET", self.keys.bound) or b"0"
        try:
            return int(text)
        except ValueError:
            raise ServerError(
                f"the queue {self.name!r} is damaged: its key :bound is not an integer; correct it with redis-cli"
            ) from None

    async def _count(self, role_lock: RoleLock, role: Role, messages: Sequence[bytes], sign: int = 1) -> None:
        await role_lock.ask(b"INCRBY", self.keys.messages_count(role), sign * len(messages))
        try:
            await role_lock.ask(b"INCRBY", self.keys.bytes_count(role), sign * sum(map(len, messages)))
        except ServerError:
            await role_lock.ask(b"DECRBY", self.keys.messages_count(role), sign * len(messages))
            raise
