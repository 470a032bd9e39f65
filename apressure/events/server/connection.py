"""One client's connection: commands come in, replies go out in the same order.

The rule that this module keeps: memory for one client is bounded. Commands are read ahead up to a number and a size;
then reading stops until they are done, so that TCP makes the client wait. No command runs while the client does not
read its replies.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from apressure.events.server.commands import Commands, Pending
from apressure.events.server.operations import Operations, Session
from apressure.events.server.outcomes import Answer, Outcome, Polling, Replies
from apressure.events.server.settings import ServerSettings
from apressure.events.server.wire import ErrorReply, Limits, ProtocolError, RequestParser, encode

logger = logging.getLogger("apressure.events.server")

UNAUTHENTICATED: Final = Limits(bulk=16 * 1024, command=64 * 1024, arguments=16, inline=16 * 1024)
"""What a client may send before AUTH."""

READ_AHEAD: Final = 1 << 20
"""Bytes of commands that are read while others run."""

LOOK: Final = 1.0
"""Seconds between two looks at the clients: who is idle, who does not read."""

LINGER: Final = 2.0
"""Seconds for which a client that was told the reason may still send, before the connection is closed."""


class Clients:
    """The clients of a server, and what they share.

    Args:
        settings: What the server was told.
        operations: What the commands for events do.

    Attributes:
        commands: Carries commands out.
        limits: What a client may use.
        polling: Keeps the event loop awake after a command.
        connections: The clients that are connected.
    """

    def __init__(self, settings: ServerSettings, operations: Operations) -> None:
        self.commands = Commands(settings.password, operations, self._counts)
        self.limits = settings.limits
        self.polling = Polling()
        self.connections: set[Connection] = set()
        self._operations = operations
        self._total = 0
        self._needs_password = settings.password is not None

    def add(self, connection: Connection) -> bool:
        """Give a new client its session, and count it. Returns False if there are too many."""
        peer = connection.transport.get_extra_info("peername")
        text = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "local"
        connection.session = Session(self._total + 1, text, not self._needs_password)
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        self._total += 1
        return True

    def discard(self, connection: Connection) -> None:
        """The client has gone."""
        self.connections.discard(connection)
        self._operations.forget(connection.session)

    async def look_after(self) -> None:
        """Disconnect clients that are idle, do not read, or send on while they wait. It ends when it is cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            for connection in list(self.connections):
                connection.look()

    async def drain(self, timeout: float) -> None:
        """Let commands under way end, and disconnect everybody.

        Commands that wait for events get nil; pushes that wait for room get an error, and have pushed nothing.

        Args:
            timeout: Seconds after which clients whose commands still run are disconnected.
        """
        running = [one for one in list(self.connections) if one.stop()]
        await _wait_until(lambda: not any(one.is_busy for one in running), timeout)
        if late := [one for one in running if one.is_busy]:
            logger.warning("commands were still running when the server stopped", extra={"commands": len(late)})
            for one in late:
                one.cancel()
            await _wait_until(lambda: not any(one.is_busy for one in late), math.inf)
        self.abort()
        await _wait_until(lambda: not self.connections, LOOK)  # each end deregisters a consumer

    def abort(self) -> None:
        """Disconnect everybody at once."""
        for connection in list(self.connections):
            connection.transport.abort()

    def _counts(self) -> dict[str, int]:
        return {"connected_clients": len(self.connections), "total_connections_received": self._total}


class Connection(asyncio.Protocol):
    """One client, from connecting to its end.

    Args:
        clients: All clients of the server.

    Attributes:
        session: What the client has said.
        transport: The connection itself.
    """

    __slots__ = (
        "_answer", "_clients", "_eof", "_full", "_last_seen", "_parser", "_parted", "_pending", "_stalled_since",
        "session", "transport",
    )  # fmt: skip

    session: Session
    transport: Any

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._parser: RequestParser | None = RequestParser(UNAUTHENTICATED)  # None: no further command is read
        self._pending: Pending = deque()  # those that run are the first of them
        self._full = False  # so many are pending that reading has stopped
        self._answer: Answer | None = None
        self._eof = False
        self._parted = False
        self._last_seen = 0.0  # by the event loop's clock
        self._stalled_since = 0.0  # since when the client reads nothing; 0 if it does

    @property
    def is_busy(self) -> bool:
        """Whether a command runs, or waits until the client reads."""
        return self._full or bool(self._pending) or self._answer is not None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._last_seen = asyncio.get_running_loop().time()
        if not self._clients.add(self):
            self._refuse("ERR max number of clients reached")

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._last_seen = asyncio.get_running_loop().time()
        self._clients.polling.command()
        self._parser.feed(data)
        self._read_commands()
        self._go_on()

    def eof_received(self) -> bool:
        # A client that has sent its last command may still read; one that has gone reads nothing. What was sent is
        # carried out; nothing waits for events or room any more.
        self._eof = True
        self.session.interrupt()
        return self.is_busy and not self._parted  # keeps the connection open until the last reply

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._eof = self.session.gone = True
        self._forget()
        self.session.interrupt()
        self._clients.discard(self)

    def pause_writing(self) -> None:
        self._stalled_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self._stalled_since = 0.0
        if not self._parted:
            self._go_on()

    # The server calls these.

    def look(self) -> None:
        """Disconnect the client if it is idle, does not read, or sends on while it waits."""
        limits, now = self._clients.limits, asyncio.get_running_loop().time()
        if limits.stalled and self._stalled_since and now - self._stalled_since > limits.stalled:
            self._drop(f"the client has read nothing for {limits.stalled:g} seconds (--stalled-timeout)")
        elif self.session.waiter is not None and self._full:
            more = f"more than {limits.pipeline} commands, or {READ_AHEAD} bytes, came while a command waits"
            self._refuse(f"ERR {more}: read its reply first (--max-pipeline)")
        elif limits.idle and not self.is_busy and now - self._last_seen > limits.idle:
            self._refuse(f"ERR idle for {limits.idle:g} seconds: connection closed (--idle-timeout)")

    def _refuse(self, text: str) -> None:
        """Send an error, and close the connection."""
        logger.info("connection refused", extra={"client": self.session.peer, "reason": text})
        self._write(encode(ErrorReply(text)))
        self._part()

    def _drop(self, reason: str) -> None:
        """Close the connection at once; what the client has not read is lost."""
        logger.warning("connection dropped", extra={"client": self.session.peer, "reason": reason})
        self.transport.abort()

    def stop(self) -> bool:
        """Read no further command. Returns whether some that were read have not ended."""
        self._set_reading(False)
        self._eof, self._parser, self._full = True, None, False
        self.session.interrupt()
        if not self._pending:
            self.transport.close()
        return bool(self._pending)

    def cancel(self) -> None:
        """Cancel the commands that run, and carry out no other: the server stops."""
        self._forget()
        if self._answer is not None:
            self._answer.future.cancel()

    # Commands and replies.

    def _read_commands(self) -> None:
        """Parse what was fed, as far as there is room, and stop or go on reading."""
        pending, parser, limits = self._pending, self._parser, self._clients.limits
        if parser is None:
            return
        if not pending:
            parser.taken = 0
        # The limits change with AUTH: what follows it is parsed after it.
        most, parser.limits = (limits.pipeline, limits.wire) if self.session.authenticated else (0, UNAUTHENTICATED)
        try:
            while not (full := len(pending) > most or parser.taken >= READ_AHEAD):
                if (command := parser.next_command()) is None:
                    break
                pending.append(command)
        except ProtocolError as error:
            pending.append(error)
            self._parser, self._full = None, False
            self._set_reading(False)
        else:
            if full != self._full:
                self._full = full
                self._set_reading(not full)

    def _set_reading(self, on: bool) -> None:
        if not self.transport.is_closing():  # uvloop's transports would raise
            (self.transport.resume_reading if on else self.transport.pause_reading)()

    def _go_on(self, done: Answer | None = None) -> None:
        """Carry out what is pending, until a command has to wait, or until the client has to read.

        Args:
            done: What the first of the pending commands waited for, and is done now.
        """
        try:
            if done is not None:
                self._execute(done.replies())
            while self._answer is None and not self._stalled_since:
                if not self._pending and self._full:
                    self._read_commands()
                if not self._pending:
                    break
                self._execute(None)
        except BaseException:
            self.transport.abort()  # the client must not take the reply of one command for that of another
            raise
        if not self.is_busy and (self._eof or self.session.leaving):
            self._part()

    def _execute(self, answer: Replies | Answer | None) -> None:
        """Carry out what is pending, as far as it has come, and write the replies."""
        replies: list[bytes] = []
        pending, commands, session = self._pending, self._clients.commands, self.session
        while answer or pending:
            if answer is None:
                answer = commands.execute(session, pending)
            if isinstance(answer, Answer):
                self._answer, future = answer, answer.future
                (future.call_at_once if isinstance(future, Outcome) else future.add_done_callback)(self._answered)
                break
            for reply in answer:
                replies.append(encode(reply, session.protocol))
                if pending:  # not if the client has gone
                    pending.popleft()
            answer = None
            if session.leaving:
                self._forget()
        if replies:
            self._write(b"".join(replies))

    def _answered(self, future: asyncio.Future[Any]) -> None:
        answer, self._answer = self._answer, None
        if future.cancelled():
            answer = None
            self.transport.abort()
            self._forget()
        self._go_on(answer)

    def _forget(self) -> None:
        """Carry out nothing more of what the client has sent."""
        self._pending.clear()
        self._parser, self._full = None, False

    def _part(self) -> None:
        """Close the connection after what was written last.

        A plain `close` would reset the connection if the client has sent more than was read, and the client would
        lose the last reply. So its input is read to the end, for a moment.
        """
        if self._parted:
            return
        self._parted = True
        self._forget()
        self.session.interrupt()
        if self._eof or not self.transport.can_write_eof() or self.transport.is_closing():
            self.transport.close()
            return
        self.transport.write_eof()
        self.transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER, self.transport.abort)

    def _write(self, data: bytes) -> None:
        if self._parted or self.transport.is_closing():
            return
        self.transport.write(data)
        limit = self._clients.limits.output
        if self.transport.get_write_buffer_size() > limit:
            self._drop(f"the client has not read {limit} bytes of replies (--max-output-size)")


async def _wait_until(done: Callable[[], bool], timeout: float) -> None:
    """Wait until something is done, for so many seconds at most: the server stops."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while not done() and loop.time() < end:  # noqa: ASYNC110 - only once; events would cost each connection memory
        await asyncio.sleep(0.01)
