"""One client's connection: commands come in, replies go out in the same order.

The rule that this module keeps: memory for one client is bounded. Commands are read ahead up to a number and a size;
then reading stops until they are done, so that TCP makes the client wait. No command runs while the client does not
read its replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from apressure import background
from apressure.events.server.session import UNAUTHENTICATED, Session
from apressure.events.server.settings import ConnectionLimits
from apressure.events.server.wire.replies import ErrorReply, Reply, encode
from apressure.events.server.wire.requests import ProtocolError, RequestParser

logger = logging.getLogger("apressure.events.server")

READ_AHEAD: Final = 1 << 20
"""Bytes of commands that are read while others run."""

LINGER: Final = 2.0
"""Seconds for which a client that was told the reason may still send, before the connection is closed."""

Pending = deque[list[bytes] | ProtocolError]


class Host(Protocol):
    """What a connection needs of its server.

    Attributes:
        limits: What the client may use.
    """

    limits: ConnectionLimits

    def connected(self, connection: Connection) -> Session | None:
        """Return the new client's session, or None if there are too many clients."""

    def disconnected(self, connection: Connection) -> None:
        """The client has gone."""

    def execute(
        self, session: Session, command: list[bytes], following: Pending
    ) -> Sequence[Reply] | Coroutine[Any, Any, Sequence[Reply]]:
        """Carry out a command, and those of the following ones that it takes along.

        Returns:
            Their replies, or a coroutine that returns them. It raises no error of a command.
        """


class Connection(asyncio.Protocol):
    """One client, from connecting to its end.

    Args:
        host: The server.
    """

    __slots__ = (
        "_ahead", "_broken", "_eof", "_host", "_parser", "_parted", "_pending", "_runner", "_writable", "last_seen",
        "session", "stalled_since", "transport",
    )  # fmt: skip

    session: Session
    transport: Any

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = RequestParser(host.limits.wire)
        self._pending: Pending = deque()
        self._ahead = 0  # bytes of the commands that were read since none was pending
        self._runner: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._eof = False
        self._broken = False
        self._parted = False
        self.last_seen = 0.0
        self.stalled_since = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a command runs."""
        return self._runner is not None

    @property
    def is_blocked(self) -> bool:
        """Whether the client has sent more commands than may wait behind one that waits."""
        return self.session.waiter is not None and not self.transport.is_reading() and not self._broken

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.last_seen = asyncio.get_running_loop().time()
        session = self._host.connected(self)
        if session is None:
            self.refuse("ERR max number of clients reached")
            return
        self.session = session
        if not session.authenticated:
            self._parser.limits = UNAUTHENTICATED

    def data_received(self, data: bytes) -> None:
        if self._parted:
            return
        self.last_seen = asyncio.get_running_loop().time()
        self._parser.feed(data)
        self._read_commands()
        if self._pending and self._runner is None and not self._eof:
            self._runner = background.start(self._run(), "an event server's client")

    def eof_received(self) -> bool:
        # A client that has sent its last command may still read; one that has gone reads nothing. What was sent is
        # carried out; nothing waits for events or room any more.
        self._eof = True
        if hasattr(self, "session"):
            self.session.interrupt()
        return self._runner is not None  # keeps the connection open until the last reply

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._eof = True
        self._pending.clear()
        if not hasattr(self, "session"):
            return
        self.session.gone = True
        self.session.interrupt()
        self.resume_writing()
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        loop = asyncio.get_running_loop()
        self._writable, self.stalled_since = loop.create_future(), loop.time()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable, self.stalled_since = None, 0.0

    # The server calls these.

    def refuse(self, text: str) -> None:
        """Send an error, and close the connection."""
        logger.info("connection refused", extra={"client": self._peer(), "reason": text})
        self._write(encode(ErrorReply(text)))
        self._part()

    def drop(self, reason: str) -> None:
        """Close the connection at once; what the client has not read is lost."""
        logger.warning("connection dropped", extra={"client": self._peer(), "reason": reason})
        self.transport.abort()

    def abort(self) -> None:
        """Close the connection at once: the server stops."""
        self.transport.abort()

    def stop(self) -> asyncio.Task[None] | None:
        """Read no further command. Return the task of the ones that run, if there are any."""
        self.transport.pause_reading()
        self._eof = self._broken = True
        self.session.interrupt()
        if self._runner is None:
            self.transport.close()
        return self._runner

    # Commands and replies.

    def _has_room(self) -> bool:
        if not self.session.authenticated:
            return not self._pending  # the limits change with AUTH: what follows it is parsed after it
        return len(self._pending) < self._host.limits.pipeline and self._ahead < READ_AHEAD

    def _read_commands(self) -> None:
        """Parse what was fed, as far as there is room, and stop or go on reading."""
        if not self._pending:
            self._ahead = 0
        try:
            while not self._broken and self._has_room():
                command = self._parser.next_command()
                if command is None:
                    self.transport.resume_reading()
                    return
                self._ahead += self._parser.size
                self._pending.append(command)
        except ProtocolError as error:
            self._broken = True
            self._pending.append(error)
        self.transport.pause_reading()

    async def _run(self) -> None:
        """Carry out the commands that are pending, and those that come meanwhile."""
        replies: list[bytes] = []
        session = self.session
        try:
            while self._pending:
                if self._writable is not None:
                    self._flush(replies)
                    await self._writable
                command = self._pending.popleft()
                if isinstance(command, ProtocolError):
                    logger.info("protocol error", extra={"client": session.peer, "reason": str(command)})
                    replies.append(encode(ErrorReply(f"ERR {command}")))
                    session.leaving = True
                    break
                answers = self._host.execute(session, command, self._pending)
                if not isinstance(answers, Sequence):
                    self._flush(replies)
                    answers = await answers
                replies += [encode(answer, session.protocol) for answer in answers]
                if session.leaving:
                    break
                self._parser.limits = self._host.limits.wire if session.authenticated else UNAUTHENTICATED
                if not self._pending:
                    self._flush(replies)
                    if self._writable is not None:
                        await self._writable
                    if not (self._broken or self._parted):
                        self._read_commands()
            self._flush(replies)
        except BaseException:
            self.transport.abort()  # the client must not take the reply of one command for that of another
            raise
        finally:
            self._runner = None
            if session.leaving or self._eof:
                self._part()

    def _flush(self, replies: list[bytes]) -> None:
        if replies:
            self._write(replies[0] if len(replies) == 1 else b"".join(replies))
            replies.clear()

    def _part(self) -> None:
        """Close the connection after what was written last.

        A plain `close` would reset the connection if the client has sent more than was read, and the client would
        lose the last reply. So its input is read to the end, for a moment.
        """
        if self._parted:
            return
        self._parted = True
        if hasattr(self, "session"):
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
        limit = self._host.limits.output
        if self.transport.get_write_buffer_size() > limit:
            self.drop(f"the client has not read {limit} bytes of replies (--max-output-size)")

    def _peer(self) -> str:
        return peer_of(self.transport)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address, as text."""
    found = transport.get_extra_info("peername")
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) and len(found) >= 2 else "local"
