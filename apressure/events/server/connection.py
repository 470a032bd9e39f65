"""One client's connection: commands come in, replies go out in the same order.

The rule that this module keeps: memory for one client is bounded. Commands are read ahead up to a number and a size;
then reading stops until they are done, so that TCP makes the client wait. No command runs while the client does not
read its replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

from apressure.concurrency.settle import set_result_once
from apressure.events.server.commands import Commands, Pending
from apressure.events.server.outcomes import Answer, Outcome, Replies
from apressure.events.server.polling import Polling
from apressure.events.server.session import UNAUTHENTICATED, Session
from apressure.events.server.settings import ServerSettings
from apressure.events.server.wire.replies import ErrorReply, encode
from apressure.events.server.wire.requests import ProtocolError, RequestParser

logger = logging.getLogger("apressure.events.server")

READ_AHEAD: Final = 1 << 20
"""Bytes of commands that are read while others run."""

LINGER: Final = 2.0
"""Seconds for which a client that was told the reason may still send, before the connection is closed."""


class Clients:
    """The clients of a server, and what they share.

    Args:
        settings: What the server was told.

    Attributes:
        commands: Carries commands out; set before the first client connects.
        limits: What a client may use.
        polling: Keeps the event loop awake after a command.
        connections: The clients that are connected.
        total: How many there have been.
        gone: No client is connected.
    """

    commands: Commands

    def __init__(self, settings: ServerSettings) -> None:
        self.limits = settings.limits
        self.polling = Polling()
        self.connections: set[Connection] = set()
        self.total = 0
        self.gone = asyncio.Event()
        self.gone.set()
        self._needs_password = settings.password is not None

    def add(self, connection: Connection) -> bool:
        """Give a new client its session, and count it. Returns False if there are too many."""
        connection.session = Session(self.total + 1, peer_of(connection.transport), not self._needs_password)
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        self.gone.clear()
        self.total += 1
        return True

    def discard(self, connection: Connection) -> None:
        """The client has gone."""
        self.connections.discard(connection)
        if not self.connections:
            self.gone.set()
        self.commands.forget(connection.session)

    def counts(self) -> dict[str, int]:
        """Return figures for INFO."""
        return {"connected_clients": len(self.connections), "total_connections_received": self.total}


class Connection(asyncio.Protocol):
    """One client, from connecting to its end.

    Args:
        clients: All clients of the server.

    Attributes:
        session: What the client has said.
        transport: The connection itself.
        last_seen: When the client has sent something, by the event loop's clock.
        stalled_since: Since when the client reads nothing; 0 if it does.
    """

    __slots__ = (
        "_answer", "_clients", "_ended", "_eof", "_full", "_parser", "_parted", "_pending", "last_seen", "session",
        "stalled_since", "transport",
    )  # fmt: skip

    session: Session
    transport: Any

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._parser: RequestParser | None = RequestParser(UNAUTHENTICATED)  # None: no further command is read
        self._pending: Pending = deque()  # those that run are the first of them
        self._full = False  # so many are pending that reading has stopped
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._eof = False
        self._parted = False
        self.last_seen = 0.0
        self.stalled_since = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a command runs, or waits until the client reads."""
        return self._full or bool(self._pending)

    @property
    def is_blocked(self) -> bool:
        """Whether the client has sent more commands than may wait behind one that waits."""
        return self.session.waiter is not None and self._full

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.last_seen = asyncio.get_running_loop().time()
        if not self._clients.add(self):
            self.refuse("ERR max number of clients reached")

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self.last_seen = asyncio.get_running_loop().time()
        self._clients.polling.command()
        self._parser.feed(data)
        self._read_commands()
        self._go_on()

    def eof_received(self) -> bool:
        # A client that has sent its last command may still read; one that has gone reads nothing. What was sent is
        # carried out; nothing waits for events or room any more.
        self._eof = True
        self.session.interrupt()
        return self.is_busy  # keeps the connection open until the last reply

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._eof = self.session.gone = True
        self._forget()
        self.session.interrupt()
        if self._answer is None:
            self._end()
        self._clients.discard(self)

    def pause_writing(self) -> None:
        self.stalled_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self.stalled_since = 0.0
        if not self._parted:
            self._go_on()

    # The server calls these.

    def refuse(self, text: str) -> None:
        """Send an error, and close the connection."""
        logger.info("connection refused", extra={"client": self.session.peer, "reason": text})
        self._write(encode(ErrorReply(text)))
        self._part()

    def drop(self, reason: str) -> None:
        """Close the connection at once; what the client has not read is lost."""
        logger.warning("connection dropped", extra={"client": self.session.peer, "reason": reason})
        self.transport.abort()

    def stop(self) -> asyncio.Future[None] | None:
        """Read no further command. Return what completes when those that were read have ended, if there are any."""
        self._set_reading(False)
        self._eof, self._parser, self._full = True, None, False
        self.session.interrupt()
        if not self._pending:
            self.transport.close()
            return None
        self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def cancel(self) -> None:
        """Cancel the commands that run, and carry out no other: the server stops."""
        self._forget()
        if self._answer is not None:
            self._answer.future.cancel()
        else:
            self._end()

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
            while len(pending) <= most and parser.taken < READ_AHEAD:
                command = parser.next_command()
                if command is None:
                    if self._full:
                        self._full = False
                        self._set_reading(True)
                    return
                pending.append(command)
        except ProtocolError as error:
            pending.append(error)
            self._parser, self._full = None, False
            self._set_reading(False)
        else:
            if not self._full:
                self._full = True
                self._set_reading(False)

    def _set_reading(self, on: bool) -> None:
        if not self.transport.is_closing():  # uvloop's transports would raise
            (self.transport.resume_reading if on else self.transport.pause_reading)()

    def _go_on(self, done: Answer | None = None) -> None:
        """Carry out what is pending, until a command has to wait, or until the client has to read.

        Args:
            done: What the first of the pending commands waited for, and is done now.
        """
        try:
            answer = None if done is None else done.replies()
            while answer is not None or (self._answer is None and not self.stalled_since):
                if answer is None:
                    if not self._pending and self._full:
                        self._read_commands()
                    if not self._pending:
                        break
                self._execute(answer)
                answer = None
        except BaseException:
            self.transport.abort()  # the client must not take the reply of one command for that of another
            raise
        if not self.is_busy:
            if self._eof or self.session.leaving:
                self._part()
            self._end()

    def _execute(self, answer: Replies | Answer | None) -> None:
        """Carry out what is pending, as far as it has come, and write the replies."""
        replies: list[bytes] = []
        pending, commands, session = self._pending, self._clients.commands, self.session
        while answer or pending:
            if answer is None:
                answer = commands.execute(session, pending)
            if isinstance(answer, Answer):
                self._answer = answer
                answer.future.add_done_callback(self._answered)
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

    def _answered(self, future: Outcome[Any] | asyncio.Future[Any]) -> None:
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

    def _end(self) -> None:
        if self._ended is not None:
            set_result_once(self._ended, None)

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
            self.drop(f"the client has not read {limit} bytes of replies (--max-output-size)")


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address, as text."""
    found = transport.get_extra_info("peername")
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) and len(found) >= 2 else "local"
