"""A queue's operations as the specification's plain commands with BRPOP, for servers that refuse scripts.

An operation takes its role, works step by step, and gives the role back, on a connection of its own. Inside one
client the operations of a role take turns, so a queue needs two connections at most, whatever waits.

Cancel-safe: an operation runs in a task that nobody cancels. Its caller's cancellation ends a blocking BRPOP by CLIENT
UNBLOCK; then the operation sees what it popped, pushes that back while it still has the role, gives the role back,
and ends. What this cannot do is survive the death of its process: the role stays taken, as with every client that
follows the specification step by step. That, leases and repeats after a lost reply are what scripts are for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from apressure.connection import background
from apressure.connection.client import Client
from apressure.connection.server import AnyChannel
from apressure.connection.settle import settled
from apressure.connection.waiter import SLICE
from apressure.exceptions import (
    ConnectionLimitError,
    OutcomeUnknownError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    Role,
    ServerError,
    ServerUnavailableError,
)
from apressure.queue.keys import Keys
from apressure.queue.waits import Wait, Waits

T = TypeVar("T")


class _Interrupted(Exception):
    """The caller was cancelled, or unblocked, while the operation was blocked; everything was put back."""


class _Turn:
    """One operation in a role: its connection, and how to end its blocking command.

    Attributes:
        interrupted: The operation is to end as soon as it can, leaving everything as it was.
    """

    def __init__(self, plain: Plain, role: Role, deadline: float | None) -> None:
        self._plain = plain
        self._role = role
        self._deadline = deadline
        self._channel: AnyChannel | None = None
        self.interrupted = False
        self.blocked_on: Wait | None = None
        self.error: PressureError | None = None

    async def open(self) -> None:
        self._channel = await self._plain.connection()

    async def ask(self, *command: bytes | str | int) -> Any:
        """Run a command on this turn's connection."""
        assert self._channel is not None
        try:
            return await self._channel.ask(*command)
        except ServerUnavailableError as error:
            raise OutcomeUnknownError(
                f"{error}; the operation may have been carried out, and its role may be taken still"
            ) from None

    async def pop(self, wait: Wait, *keys: bytes) -> list[bytes] | None:
        """BRPOP: [key, element], or None when the time is up or the operation is interrupted."""
        loop = asyncio.get_running_loop()
        while not self.interrupted:
            remaining = SLICE if self._deadline is None else min(SLICE, self._deadline - loop.time())
            if remaining <= 0:
                return None
            self.blocked_on = wait
            try:
                popped: list[bytes] | None = await self.ask(b"BRPOP", *keys, f"{remaining:.3f}")
            finally:
                self.blocked_on = None
            if popped is not None:
                return popped
            if not await self.ask(b"EXISTS", self._plain.keys.bound):
                return None
        return None

    async def unblock(self) -> None:
        """End a blocking command, now or as soon as it has begun."""
        identity = self._plain.connection_ids.get(self._channel) if self._channel is not None else None
        if identity is not None and self.blocked_on is not None:
            await self._plain.client.link.ask(b"CLIENT", b"UNBLOCK", identity)

    @property
    def out_of_time(self) -> bool:
        """Nothing may be waited for any more."""
        overdue = self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline
        return overdue or self.interrupted

    def close(self) -> None:
        if self._channel is not None:
            self._plain.done_with(self._channel)

    async def __aenter__(self) -> None:
        """Take the role."""
        keys = self._plain.keys
        if not await self.ask(b"EXISTS", keys.bound):
            raise self._plain.missing()
        token = await self.ask(b"RPOP", keys.free(self._role))
        if token is None:
            token = await self.pop(Wait(self._role), keys.free(self._role))
        if token is None:
            if self.interrupted:
                raise _Interrupted
            if not await self.ask(b"EXISTS", keys.bound):
                raise self._plain.missing()
            holder = await self.ask(b"GET", keys.holder(self._role))
            raise Wait(self._role, (holder or b"").decode(errors="replace") or None).error(self._plain.name)
        await self.ask(b"SET", keys.holder(self._role), self._plain.client.id)

    async def __aexit__(self, *_: object) -> None:
        """Give the role back, on every way out."""
        await self.ask(b"LPUSH", self._plain.keys.free(self._role), 0)


class _Queueing:
    """The turns of one role inside this client, first come first served."""

    def __init__(self) -> None:
        self.current: _Turn | None = None
        self.queue: deque[asyncio.Future[None]] = deque()

    def free(self) -> None:
        self.current = None
        while self.queue:
            first = self.queue.popleft()
            if not first.done():
                first.set_result(None)
                return


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
        self._roles: dict[Role, _Queueing] = {"producer": _Queueing(), "consumer": _Queueing()}
        self._idle: list[AnyChannel] = []
        self.connection_ids: dict[AnyChannel, int] = {}
        self._waits = Waits(client.server, keys, lambda role: None)
        client.server.on_shortage(self._give_up_one)

    @property
    def waiting_putters(self) -> int:
        """Tasks that are putting."""
        return self._waiting("producer")

    @property
    def waiting_getters(self) -> int:
        """Tasks that are getting."""
        return self._waiting("consumer")

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
        await self._ask(b"DEL", *(key for key in self.keys.specified if key != self.keys.bound))
        for key in (self.keys.free("producer"), self.keys.free("consumer"), self.keys.not_full):
            await self._ask(b"LPUSH", key, 1)

    async def exists(self) -> bool:
        return bool(await self._ask(b"EXISTS", self.keys.bound))

    async def inspect(self) -> list[Any]:
        keys = self.keys
        bound = await self._ask(b"GET", keys.bound)
        if bound is None:
            raise self.missing()
        counters = [
            await self._ask(b"GET", key) or b"0"
            for role in ("producer", "consumer")
            for key in (keys.messages_count(role), keys.bytes_count(role))
        ]
        roles = [
            [await self._ask(b"GET", keys.holder(role)) or b"", await self._ask(b"LLEN", keys.free(role)), 0, b"", b"", b""]
            for role in ("producer", "consumer")
        ]
        length, closed = await self._ask(b"LLEN", keys.messages), await self._ask(b"EXISTS", keys.closed)
        return [bound, length, closed, 0, counters, *roles]

    async def peek(self, index: int) -> bytes:
        if not await self.exists():
            raise self.missing()
        message: bytes | None = await self._ask(b"LINDEX", self.keys.messages, index)
        if message is None:
            raise Wait("empty").error(self.name)
        return message

    async def put(self, messages: Sequence[bytes], timeout: float | None, force: bool, now: bool) -> None:
        done = 0

        async def one(turn: _Turn) -> None:
            nonlocal done
            while done < len(messages):
                async with turn:
                    await self._put_one(turn, messages[done], force, done)
                done += 1

        await self._run("producer", one, 0 if now else timeout, Wait("full"))

    async def get(self, max_items: int, timeout: float | None, now: bool) -> list[bytes]:
        async def some(turn: _Turn) -> list[bytes]:
            async with turn:
                return await self._get_some(turn, max_items)

        return await self._run("consumer", some, 0 if now else timeout, Wait("empty"), undo=self.give_back)

    async def give_back(self, messages: Sequence[bytes]) -> None:
        """Make messages that were got the first in line again, and undo the statistics."""
        if not messages:
            return
        await self._ask(b"RPUSH", self.keys.messages, *reversed(messages))
        await self._ask(b"DECRBY", self.keys.messages_count("consumer"), len(messages))
        await self._ask(b"DECRBY", self.keys.bytes_count("consumer"), sum(map(len, messages)))

    async def close(self, timeout: float | None) -> None:
        async def step(turn: _Turn) -> None:
            async with turn:
                if await turn.ask(b"EXISTS", self.keys.closed):
                    raise self.ended()
                await turn.ask(b"LPUSH", self.keys.closed, 0, 0)

        await self._run("producer", step, timeout, Wait("producer", self.client.id))

    async def wait_closed(self, timeout: float | None) -> None:
        async def look() -> bool | Wait:
            return bool((await self.inspect())[2]) or Wait("open")

        await self._waits.until(look, timeout, self.name)

    async def delete(self, timeout: float | None) -> None:
        keys = self.keys
        if not await self._ask(b"DEL", keys.bound):
            raise self.missing()
        await self._ask(b"LPUSH", keys.not_full, 0)
        await self._ask(b"LPUSH", keys.closed, 0, 0)
        self._end_waiting(QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name))

        async def step(turn: _Turn) -> None:
            await self._take_for_deletion(turn, "producer")
            try:
                await self._take_for_deletion(turn, "consumer")
            except BaseException:
                await turn.ask(b"LPUSH", keys.free("producer"), 0)
                raise
            await turn.ask(b"DEL", *keys.specified)

        await self._run("producer", step, timeout, Wait("producer", self.client.id))

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        ended = self._end_waiting(error) + self._waits.end(error)
        for role in self._roles.values():
            turn = role.current
            if turn is not None and turn.blocked_on is not None:
                turn.interrupted = True
                turn.error = error
                background.start(turn.unblock(), "unblocking an operation")
                ended += 1
        return ended

    def release(self) -> None:
        """Let go of the connections that nothing uses."""
        self._waits.close()
        while self._give_up_one():
            pass

    def missing(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} does not exist", name=self.name)

    def ended(self) -> QueueClosedError:
        return QueueClosedError(f"the queue {self.name!r} is closed", name=self.name)

    async def connection(self) -> AnyChannel:
        """A connection for one operation, an idle one where there is one."""
        while self._idle:
            channel = self._idle.pop()
            if channel.up:
                return channel
            self.connection_ids.pop(channel, None)
        try:
            channel = await self.client.server.connect(
                lambda: None, SLICE + self.client.settings.response_timeout
            )
        except ConnectionLimitError as error:
            raise ConnectionLimitError(f"{error} (without scripts, a queue needs one for each role)") from None
        try:
            self.connection_ids[channel] = int(str(await channel.ask(b"CLIENT", b"ID")))
        except ServerError:
            channel.abort("no identity")
            raise
        return channel

    def done_with(self, channel: AnyChannel) -> None:
        """An operation has ended: keep its connection for the next one."""
        if channel.up:
            self._idle.append(channel)
        else:
            self.connection_ids.pop(channel, None)

    def _give_up_one(self) -> bool:
        if not self._idle:
            return False
        channel = self._idle.pop()
        self.connection_ids.pop(channel, None)
        channel.abort("not needed any more")
        return True

    def _waiting(self, role: Role) -> int:
        return len(self._roles[role].queue) + (self._roles[role].current is not None)

    def _end_waiting(self, error: PressureError) -> int:
        ended = 0
        for role in self._roles.values():
            for future in role.queue:
                if not future.done():
                    future.set_exception(error)
                    ended += 1
        return ended

    async def _ask(self, *command: bytes | str | int) -> Any:
        return await self.client.link.ask(*command)

    async def _take_for_deletion(self, turn: _Turn, role: Role) -> None:
        popped = await turn.ask(b"RPOP", self.keys.free(role))
        while popped is None:
            popped = await turn.ask(b"BRPOP", self.keys.free(role), 1)
            if popped is None and turn.out_of_time:
                holder = await turn.ask(b"GET", self.keys.holder(role))
                raise Wait(role, (holder or b"").decode(errors="replace") or None).error(self.name)

    async def _put_one(self, turn: _Turn, message: bytes, force: bool, done: int) -> None:
        keys = self.keys
        if await turn.ask(b"EXISTS", keys.closed):
            raise self.ended()
        if not force and await turn.ask(b"RPOP", keys.not_full) is None:
            popped = await turn.pop(Wait("full"), keys.not_full)
            if not await turn.ask(b"EXISTS", keys.bound):
                raise self.missing()
            if popped is not None and turn.interrupted:
                await turn.ask(b"LPUSH", keys.not_full, 0)
            if turn.interrupted:
                raise _Interrupted
            if popped is None:
                raise Wait("full").error(self.name, done)
        length = await turn.ask(b"LPUSH", keys.messages, message)
        bound = int(await turn.ask(b"GET", keys.bound) or 0)
        if bound == 0 or length < bound:
            await turn.ask(b"LPUSH", keys.not_full, 0)
            await turn.ask(b"LTRIM", keys.not_full, 0, 0)
        await turn.ask(b"INCR", keys.messages_count("producer"))
        await turn.ask(b"INCRBY", keys.bytes_count("producer"), len(message))

    async def _get_some(self, turn: _Turn, max_items: int) -> list[bytes]:
        keys = self.keys
        messages = list(await turn.ask(b"RPOP", keys.messages, max_items) or ())
        if not messages and not await turn.ask(b"EXISTS", keys.closed):
            popped = await turn.pop(Wait("empty"), keys.messages, keys.closed)
            if popped is not None and popped[0] == keys.closed:
                await turn.ask(b"LPUSH", keys.closed, 0)  # or two such getters would open the queue again
            elif popped is not None:
                messages = [popped[1]]
            if turn.interrupted:
                if messages:
                    await turn.ask(b"RPUSH", keys.messages, *messages)
                raise _Interrupted
            if not await turn.ask(b"EXISTS", keys.bound):
                raise self.missing()
            if popped is None:
                raise Wait("empty").error(self.name)
            more = max_items - len(messages)
            if more:
                messages += await turn.ask(b"RPOP", keys.messages, more) or []
        if not messages:
            raise self.ended()
        bound = int(await turn.ask(b"GET", keys.bound) or 0)
        if bound == 0 or await turn.ask(b"LLEN", keys.messages) < bound:
            await turn.ask(b"LPUSH", keys.not_full, 0)
            await turn.ask(b"LTRIM", keys.not_full, 0, 0)
        await turn.ask(b"INCRBY", keys.messages_count("consumer"), len(messages))
        await turn.ask(b"INCRBY", keys.bytes_count("consumer"), sum(map(len, messages)))
        return messages

    async def _run(
        self,
        role: Role,
        operation: Callable[[_Turn], Awaitable[T]],
        timeout: float | None,
        blocked: Wait,
        undo: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Wait for this client's turn in the role, then run the operation where no cancellation reaches it."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        queueing = self._roles[role]
        await self._my_turn(queueing, timeout, blocked)
        turn = _Turn(self, role, deadline)
        queueing.current = turn
        outcome: asyncio.Future[T] = loop.create_future()

        async def work() -> None:
            try:
                await turn.open()
                result = await operation(turn)
                if turn.interrupted and undo is not None:
                    await undo(result)
                outcome.set_result(result)
            except Exception as error:
                outcome.set_exception(error)
            finally:
                turn.close()
                queueing.free()
                if not outcome.done():
                    outcome.cancel()

        background.start(work(), f"an operation on the queue {self.name!r}")
        try:
            await asyncio.wait((outcome,))
        except asyncio.CancelledError:
            if outcome.done():
                if undo is not None and not outcome.cancelled() and outcome.exception() is None:
                    await undo(outcome.result())
            else:
                turn.interrupted = True
                await self._settle(turn, outcome)
            raise
        try:
            return outcome.result()
        except _Interrupted:
            raise turn.error or self.missing() from None

    async def _my_turn(self, queueing: _Queueing, timeout: float | None, blocked: Wait) -> None:
        if queueing.current is None and not queueing.queue:
            return
        if timeout is not None and timeout <= 0:
            raise blocked.error(self.name)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queueing.queue.append(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                queueing.free()
            future.cancel()
            raise
        if not done:
            future.cancel()
            raise blocked.error(self.name)
        future.result()

    async def _settle(self, turn: _Turn, outcome: asyncio.Future[Any]) -> None:
        """The caller was cancelled: end what blocks, and wait until everything is as it was."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.client.settings.settle_timeout
        while not outcome.done() and loop.time() < deadline:
            unblocking = background.start(turn.unblock(), "unblocking a cancelled operation")
            await settled(unblocking, 1.0)
            await settled(outcome, 0.05)
        if outcome.done() and not outcome.cancelled():
            outcome.exception()  # retrieved: the caller raises its cancellation instead
