"""Operations of plain commands: one at a time for each role of a queue, where no cancellation reaches them.

An operation runs in a task that nobody cancels. Its caller's cancellation ends a blocking BRPOP by CLIENT UNBLOCK;
then the operation sees what it popped, pushes that back while it still has the role, gives the role back, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from apressure.connection import background
from apressure.connection.client import Client
from apressure.connection.link import Link, insist
from apressure.connection.replies import PASSES
from apressure.connection.server import AnyChannel
from apressure.connection.settle import settled
from apressure.connection.waiter import SLICE
from apressure.exceptions import (
    OutcomeUnknownError,
    PressureError,
    QueueDoesNotExistError,
    Role,
    ServerError,
    ServerUnavailableError,
)
from apressure.queue.keys import Keys
from apressure.queue.waits import Wait

T = TypeVar("T")


class Interrupted(Exception):
    """The caller was cancelled, or unblocked, while the operation was blocked; everything was put back."""


class Turn:
    """One operation in a role, and as an async context manager the role itself.

    Attributes:
        interrupted: The operation is to end as soon as it can, leaving everything as it was.
        blocked: It is in a blocking command.
        error: What its caller is to raise when it was interrupted; None where the caller was cancelled.
    """

    def __init__(self, turns: Turns, role: Role, deadline: float | None) -> None:
        self._turns = turns
        self._role = role
        self._deadline = deadline
        self._channel: AnyChannel | None = None
        self.interrupted = False
        self.blocked = False
        self.error: PressureError | None = None

    async def open(self) -> None:
        """Take a connection."""
        await self._connected()

    def close(self) -> None:
        """Give the connection back."""
        if self._channel is not None:
            self._turns.done_with(self._channel)

    async def ask(self, *command: bytes | str | int) -> Any:
        """Run a command on this turn's connection."""
        try:
            return await insist(self._turns.link.place, self._connected, self._drop, command)
        except ServerUnavailableError as error:
            raise OutcomeUnknownError(
                f"{error}; the operation may have been carried out, and its role may be taken still"
            ) from None

    async def _connected(self) -> AnyChannel:
        if self._channel is None:
            self._channel = await self._turns.connection()
        return self._channel

    def _drop(self, channel: AnyChannel) -> None:
        self._channel = None
        self._turns.drop(channel)

    async def exists(self) -> bool:
        """The queue exists."""
        return bool(await self.ask(b"EXISTS", self._turns.keys.bound))

    async def pop(self, *keys: bytes, deleting: bool = False) -> list[bytes] | None:
        """BRPOP: [key, element], or None when the time is up, the queue is gone, or the operation is interrupted."""
        loop = asyncio.get_running_loop()
        while not self.interrupted:
            remaining = SLICE if self._deadline is None else min(SLICE, self._deadline - loop.time())
            if remaining <= 0:
                return None
            self.blocked = True
            try:
                popped: list[bytes] | None = await self.ask(b"BRPOP", *keys, f"{max(remaining, 0.001):.3f}")
            finally:
                self.blocked = False
            if popped is not None:
                return popped
            if not deleting and not await self.exists():
                return None
        return None

    async def in_use(self, role: Role) -> PressureError:
        """What to raise when somebody kept a role for too long."""
        holder = await self.ask(b"GET", self._turns.keys.holder(role))
        return Wait(role, (holder or b"").decode(errors="replace") or None).error(self._turns.name)

    async def unblock(self) -> None:
        """End a blocking command, if there is one."""
        if self._channel is not None and self.blocked:
            await self._turns.link.ask(b"CLIENT", b"UNBLOCK", self._turns.identities[self._channel])

    async def __aenter__(self) -> None:
        """Take the role."""
        keys = self._turns.keys
        if not await self.exists():
            raise self._turns.missing()
        # Changes nothing; but a server that is out of memory refuses it, and would refuse to take the token back.
        await self.ask(b"SETRANGE", keys.holder(self._role), 0, b"")
        token = await self.ask(b"RPOP", keys.free(self._role))
        if token is None:
            if await self.pop(keys.free(self._role)) is None:
                if self.interrupted:
                    raise Interrupted
                raise await self.in_use(self._role) if await self.exists() else self._turns.missing()
            if not await self.exists():
                # Deleted while this client waited; whoever deletes it waits for the role.
                await self.restore(b"LPUSH", keys.free(self._role), 0)
                raise self._turns.missing()
        try:
            await self.ask(b"SET", keys.holder(self._role), self._turns.client.id)
            self._turns.link.place.written()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the role back, on every way out."""
        await self.restore(b"LPUSH", self._turns.keys.free(self._role), 0)

    async def restore(self, *command: bytes | str | int) -> None:
        """Put something back. A server that takes no writes refuses that, too: then as soon as it takes them."""
        try:
            await self.ask(*command)
        except ServerError as error:
            if error.code not in PASSES:
                raise
            background.start(self._turns.restore_later(command), "putting back what a full server refused")


class _Line:
    """Who comes next in a role inside this client: first come, first served."""

    def __init__(self) -> None:
        self.busy = False
        self.turn: Turn | None = None
        self.waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> None:
        """Hand the role to the first in line; it stays busy then."""
        self.turn = None
        while self.waiting:
            first = self.waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
        self.busy = False


class Turns:
    """The turns of one queue's two roles, and their connections.

    Args:
        client: Whose connections are used.
        link: Its connection for administration, where the keys are.
        keys: The queue's keys.
        name: The queue's name.

    Attributes:
        identities: The server's number of each connection, for CLIENT UNBLOCK.
    """

    def __init__(self, client: Client, link: Link, keys: Keys, name: str) -> None:
        self.client = client
        self.link = link
        self.keys = keys
        self.name = name
        self.identities: dict[AnyChannel, int] = {}
        self._lines: dict[Role, _Line] = {"producer": _Line(), "consumer": _Line()}
        self._idle: list[AnyChannel] = []
        self._released = False
        client.server.on_shortage(self._give_up_one)

    def missing(self) -> QueueDoesNotExistError:
        """What to raise when the queue does not exist."""
        return QueueDoesNotExistError(f"the queue {self.name!r} does not exist", name=self.name)

    def waiting(self, role: Role) -> int:
        """How many operations of a role are under way or wait for their turn."""
        return len(self._lines[role].waiting) + self._lines[role].busy

    async def run(
        self,
        role: Role,
        operation: Callable[[Turn], Awaitable[T]],
        timeout: float | None,
        blocked: Wait,
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Wait for this client's turn in the role, then run the operation.

        Args:
            role: The role.
            operation: What to do; it takes the role itself.
            timeout: Seconds after which nothing is waited for any more.
            blocked: What to say when another task of this client kept the role until then.
            undo: Undoes the result of an operation whose caller was cancelled at the last moment.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        line = self._lines[role]
        await self._my_turn(line, timeout, blocked)
        turn = Turn(self, role, deadline)
        line.turn = turn
        outcome: asyncio.Future[T] = loop.create_future()

        async def work() -> None:
            try:
                await turn.open()
                result = await operation(turn)
                if turn.interrupted and undo is not None:
                    await undo(result)
                outcome.set_result(result)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the caller's)
                outcome.set_exception(error)
            finally:
                turn.close()
                line.next()
                if not outcome.done():
                    outcome.cancel()

        background.start(work(), f"an operation on the queue {self.name!r}")
        try:
            await asyncio.wait((outcome,))
        except asyncio.CancelledError:
            if not outcome.done():
                turn.interrupted = True
                await self._settle(turn, outcome)
            elif not outcome.cancelled() and outcome.exception() is None and undo is not None:
                # In a task of its own: a second cancellation must not stop it half-way.
                undoing = background.start(undo(outcome.result()), "giving back what a cancelled operation took")
                await settled(undoing, self.client.settings.settle_timeout)
            raise
        try:
            return outcome.result()
        except Interrupted:
            raise turn.error or self.missing() from None

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits for its turn or is blocked; returns how many."""
        ended = self.end_waiting(error)
        for line in self._lines.values():
            if line.turn is not None and line.turn.blocked:
                line.turn.interrupted = True
                line.turn.error = error
                self.client.first(background.start(self._end(line.turn), "unblocking an operation"))
                ended += 1
        return ended

    def end_waiting(self, error: PressureError) -> int:
        """Fail every operation that waits for its turn; returns how many."""
        waiting = [future for line in self._lines.values() for future in line.waiting if not future.done()]
        for future in waiting:
            future.set_exception(error)
        return len(waiting)

    def release(self) -> None:
        """Let go of the connections that nothing uses."""
        self.client.server.forget(self._give_up_one)
        self._released = True
        while self._give_up_one():
            pass

    async def restore_later(self, command: tuple[bytes | str | int, ...]) -> None:
        """Repeat a command until the server takes writes again."""
        while True:
            await asyncio.sleep(0.2)
            try:
                await self.link.ask(*command)
            except ServerError as error:
                if error.code not in PASSES:
                    raise
            else:
                return

    async def connection(self) -> AnyChannel:
        """A connection for one operation, an idle one where there is one."""
        while self._idle:
            channel = self._idle.pop()
            if channel.up:
                return channel
            del self.identities[channel]
        channel = await self.link.place.connect(lambda: None, SLICE + self.client.settings.response_timeout)
        try:
            self.identities[channel] = int(str(await channel.ask(b"CLIENT", b"ID")))
        except ServerError:
            channel.abort("the server did not say who this connection is")
            raise
        return channel

    def done_with(self, channel: AnyChannel) -> None:
        """An operation has ended: keep its connection for the next one."""
        if channel.up and not self._released:
            self._idle.append(channel)
            return
        del self.identities[channel]
        channel.abort("the queue object was closed")

    def drop(self, channel: AnyChannel) -> None:
        """A connection leads to a server that does not have the queue (any more)."""
        self.identities.pop(channel, None)
        channel.abort("the server's data is elsewhere")

    def _give_up_one(self) -> bool:
        if not self._idle:
            return False
        channel = self._idle.pop()
        del self.identities[channel]
        channel.abort("the connection is not needed any more")
        return True

    async def _my_turn(self, line: _Line, timeout: float | None, blocked: Wait) -> None:
        if not line.busy:
            line.busy = True
            return
        if timeout is not None and timeout <= 0:
            raise blocked.error(self.name)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                line.next()
            future.cancel()
            raise
        if not done:
            future.cancel()
            raise blocked.error(self.name)
        future.result()

    async def _end(self, turn: Turn) -> None:
        """End what blocks a turn, again and again: the blocking command may be on its way still."""
        while turn.blocked:
            with contextlib.suppress(PressureError):  # what cannot be unblocked ends with its slice
                await turn.unblock()
            await asyncio.sleep(0.02)

    async def _settle(self, turn: Turn, outcome: asyncio.Future[Any]) -> None:
        """The caller was cancelled: end what blocks, and wait until everything is as it was."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.client.settings.settle_timeout
        while not outcome.done() and loop.time() < deadline:
            # Again and again: the blocking command may be on its way still.
            await settled(background.start(turn.unblock(), "unblocking a cancelled operation"), 1.0)
            await settled(outcome, 0.05)
        if outcome.done() and not outcome.cancelled():
            outcome.exception()  # retrieved: the caller raises its cancellation instead
