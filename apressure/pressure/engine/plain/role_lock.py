"""Runs the operations of plain commands: one at a time for each role of a queue, out of reach of cancellations.

An operation runs in a task that is never cancelled. When its caller is cancelled, CLIENT UNBLOCK ends a blocking BRPOP.
The operation then pushes back what it popped, while it still has the role, gives the role back, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import note_sent, wait_shielded
from apressure.connection.client import Client
from apressure.connection.waiting.waiter import SLICE
from apressure.connection.wire.channel import Channel
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.core.waiting import Wait
from apressure.exceptions import (
    OutcomeUnknownError,
    PermissionDeniedError,
    PressureError,
    Role,
    ServerError,
    ServerUnavailableError,
)
from apressure.pressure.engine import waits
from apressure.pressure.engine.answers import missing
from apressure.pressure.engine.keys import Keys

T = TypeVar("T")


class OwnConnections:
    """The connections of one queue.

    Args:
        client: The client that they belong to.
        connection: Its connection for commands that do not block.

    Attributes:
        client, connection: As given.
        numbers: The server's number of each connection, for CLIENT UNBLOCK.
    """

    def __init__(self, client: Client, connection: ReconnectingConnection) -> None:
        self.client = client
        self.connection = connection
        self._idle: list[Channel] = []
        self.numbers: dict[Channel, int] = {}
        self._released = False
        client.server.add_reclaimer(self._give_up_one)

    async def take(self) -> Channel:
        """Return a connection for one operation, an idle one if there is one."""
        while self._idle:
            channel = self._idle.pop()
            if channel.up:
                return channel
            del self.numbers[channel]
        channel = await self.connection.node.connect(SLICE + self.client.settings.response_timeout)
        try:
            self.numbers[channel] = int(str(await channel.ask(b"CLIENT", b"ID")))
        except ServerError:
            channel.abort("the server did not say who this connection is")
            raise
        return channel

    def put_back(self, channel: Channel) -> None:
        """Keep the connection of an operation that has ended for the next one."""
        if channel.up and not self._released:
            self._idle.append(channel)
        else:
            self.drop(channel, "the queue object was closed")

    def drop(self, channel: Channel, reason: str) -> None:
        """Close a connection."""
        self.numbers.pop(channel, None)
        channel.abort(reason)

    def release(self) -> None:
        """Close the connections that no operation uses, and the others when their operations end."""
        self.client.server.remove_reclaimer(self._give_up_one)
        self._released = True
        while self._give_up_one():
            pass

    def _give_up_one(self) -> bool:
        if idle := bool(self._idle):
            self.drop(self._idle.pop(), "the connection is not needed any more")
        return idle


class Interrupted(Exception):
    """The caller was cancelled, or unblocked, while the operation waited. Everything was put back."""


class RoleLock:
    """One operation in a role, and as an async context manager the role itself.

    Attributes:
        interrupted: The operation must end as soon as it can, and leave everything as it was.
        blocked: It is in a blocking command.
        begun: It has a connection, and may have sent something.
        error: What the caller of an interrupted operation raises; None where the caller was cancelled.
    """

    def __init__(self, line: RoleLine, deadline: float | None) -> None:
        self._line = line
        self._connections = line.connections
        self._deadline = deadline
        self._channel: Channel | None = None
        self.interrupted = False
        self.blocked = False
        self.begun = False
        self.error: PressureError | None = None

    async def begin(self) -> None:
        """Take a connection, unless the caller was cancelled before there was one."""
        await self._connected()
        if self.interrupted:
            raise Interrupted
        self.begun = True

    def close(self) -> None:
        """Give the connection back."""
        if self._channel is not None:
            self._connections.put_back(self._channel)

    async def ask(self, *command: bytes | str | int) -> Any:
        """Run a command on this operation's connection."""
        node = self._connections.connection.node
        try:
            return await node.ask(self._connected, self._drop, lambda channel: channel.ask(*command))
        except ServerUnavailableError as error:
            raise OutcomeUnknownError(
                f"{error}; the operation may have been carried out, and its role may be taken still"
            ) from None

    async def _connected(self) -> Channel:
        if self._channel is None:
            self._channel = await self._connections.take()
        return self._channel

    def _drop(self, channel: Channel) -> None:
        self._channel = None
        self._connections.drop(channel, "the server's data is elsewhere")

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return bool(await self.ask(b"EXISTS", self._line.keys.bound))

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

    async def take(self, role: Role, deleting: bool = False) -> None:
        """Take the token of a role, waiting for it.

        Args:
            role: The role.
            deleting: This operation deletes the queue, which need not exist any more.
        """
        free, name = self._line.keys.free(role), self._line.name
        if await self.ask(b"RPOP", free) is not None:
            return
        telling = background.start(self._tell(role), "finding out who holds a role")
        try:
            popped = await self.pop(free, deleting=deleting)
        finally:
            telling.cancel()
        gone = not deleting and not self.interrupted and not await self.exists()
        if popped is not None and (gone or self.interrupted):
            await self.restore(b"LPUSH", free, 0)  # also for a client that deletes the queue: it waits for the role
        if self.interrupted:
            raise Interrupted
        if gone:
            raise missing(name)
        if popped is None:
            holder = await self.ask(b"GET", self._line.keys.holder(role)) or b""
            raise Wait(role, holder=holder.decode(errors="replace") or None).error(name)

    def interrupt(self, error: PressureError | None = None) -> None:
        """End the operation as soon as it can: its caller was cancelled, or is to raise the error."""
        self.interrupted, self.error = True, error
        if self.blocked:
            unblocking = background.start(self._unblock(), "unblocking an operation")
            self._connections.client.finish_before_close(unblocking)

    async def _unblock(self) -> None:
        """End the blocking command. It may be on its way to the server still, so this tries until it has ended."""
        while self.blocked:
            try:
                if self._channel is not None:
                    number = self._connections.numbers[self._channel]
                    await self._connections.connection.ask(b"CLIENT", b"UNBLOCK", number)
            except PermissionDeniedError:
                raise  # to the event loop's exception handler
            except PressureError:
                pass  # the command ends with its slice, if the server cannot be reached before
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> None:
        """Take the role."""
        keys = self._line.keys
        if not await self.exists():
            raise missing(self._line.name)
        # Changes nothing; but a server that is out of memory refuses it, and would refuse to take the token back.
        await self.ask(b"SETRANGE", keys.holder(self._line.role), 0, b"")
        await self.take(self._line.role)
        try:
            await self.ask(b"SET", keys.holder(self._line.role), self._connections.client.id)
            self._connections.connection.node.written = True
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the role back, on every way out."""
        await self.restore(b"LPUSH", self._line.keys.free(self._line.role), 0)

    async def restore(self, *command: bytes | str | int) -> None:
        """Put something back; where the server takes no writes, as soon as it does again."""
        try:
            await self.ask(*command)
        except ServerError as error:
            if not error.temporary:
                raise
            background.start(self._restore_later(command), "putting back what a full server refused")

    async def _restore_later(self, command: tuple[bytes | str | int, ...]) -> Any:
        while True:
            await asyncio.sleep(0.2)
            try:
                return await self._connections.connection.ask(*command)
            except ServerError as error:
                if not error.temporary:
                    raise

    async def _tell(self, role: Role) -> None:
        """Say in the log that a role is waited for, and again when its holder changes, until this is cancelled."""
        await asyncio.sleep(waits.PATIENCE)
        told: str | None = ""
        while True:
            with contextlib.suppress(PressureError):  # the operation itself will raise it
                answer: bytes | None = await self._connections.connection.ask(b"GET", self._line.keys.holder(role))
                holder = (answer or b"").decode(errors="replace") or None
                if holder != told:
                    told = holder
                    waits.tell(self._line.name, role, holder)
            await asyncio.sleep(SLICE)


class RoleLine:
    """The operations of one role of a queue in this client, which take turns: first come, first served.

    Attributes:
        role: The role.
        connections: The connections of the operations.
        keys: The queue's keys.
        name: The queue's name.
    """

    def __init__(self, role: Role, connections: OwnConnections, keys: Keys, name: str) -> None:
        self.role = role
        self.connections = connections
        self.keys = keys
        self.name = name
        self._busy = False
        self._role_lock: RoleLock | None = None  # of the operation whose turn it is
        self._turns: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many operations are under way or wait for the role."""
        return len(self._turns) + self._busy

    async def run(
        self, operation: Callable[[RoleLock], Awaitable[T]], timeout: float | None, blocked: Wait,
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:  # fmt: skip
        """Wait until no other operation of this client is in the role, then run one.

        Args:
            operation: The operation; it takes the role itself.
            timeout: Seconds after which it waits no longer.
            blocked: Its error is raised when other operations of this client took longer than that.
            undo: Undoes the result of an operation whose caller was cancelled at the last moment.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        if not await self._enter(timeout):
            raise blocked.error(self.name)
        role_lock = self._role_lock = RoleLock(self, deadline)
        outcome: asyncio.Future[T] = loop.create_future()

        async def work() -> None:
            try:
                await role_lock.begin()
                result = await operation(role_lock)
                if role_lock.interrupted and undo is not None:
                    await undo(result)
                outcome.set_result(result)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the caller's)
                outcome.set_exception(error)
            finally:
                role_lock.close()
                self._next()
                if not outcome.done():
                    outcome.cancel()

        working = background.start(work(), f"an operation on the queue {self.name!r}")
        try:
            await asyncio.wait((outcome,))
        except asyncio.CancelledError:
            if not outcome.done():
                role_lock.interrupt()
                # Retrieved, whenever it comes: the caller raises its cancellation instead.
                outcome.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
                if role_lock.begun:
                    await wait_shielded(outcome, self.connections.client.settings.settle_timeout)
                    if not outcome.done():
                        self.connections.client.finish_before_close(working)  # it gives the role back
            elif not outcome.cancelled() and outcome.exception() is None and undo is not None:
                # In a task of its own: a second cancellation must not stop it half-way.
                undoing = background.start(undo(outcome.result()), "giving back what a cancelled operation took")
                await wait_shielded(undoing, self.connections.client.settings.settle_timeout)
            else:
                note_sent()
            raise
        try:
            return outcome.result()
        except Interrupted:
            raise role_lock.error or missing(self.name) from None

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits for its turn, and the one that is blocked; returns how many."""
        ended = self.end_waiting(error)
        if self._role_lock is not None and self._role_lock.blocked:
            self._role_lock.interrupt(error)
            ended += 1
        return ended

    def end_waiting(self, error: PressureError) -> int:
        """Fail every operation that waits for its turn; returns how many."""
        waiting = [turn for turn in self._turns if not turn.done()]
        for turn in waiting:
            turn.set_exception(error)
        return len(waiting)

    async def _enter(self, timeout: float | None) -> bool:
        """Wait for the operation's turn; False where it did not come in time."""
        if not self._busy:
            self._busy = True
            return True
        if timeout is not None and timeout <= 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            done, _ = await asyncio.wait((turn,), timeout=timeout)
        except asyncio.CancelledError:
            if turn.done() and turn.exception() is None:
                self._next()
            turn.cancel()
            raise
        if done:
            turn.result()
        else:
            turn.cancel()
        return bool(done)

    def _next(self) -> None:
        """Give the turn to the first in line."""
        self._role_lock = None
        while self._turns:
            first = self._turns.popleft()
            if not first.done():
                first.set_result(None)
                return
        self._busy = False
