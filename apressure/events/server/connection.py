"""One client's connection: commands come in, replies go out in the same order.

The rule that this module keeps: memory for one client is bounded. Commands are read ahead up to a number and a size;
then reading stops until they are done, so that TCP makes the client wait. No command runs while the client does not
read its replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.events.server.outcomes import Outcome
from apressure.events.server.polling import Polling
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
Replies = list[Reply]


class Answer(NamedTuple):
    """What commands wait for.

    Attributes:
        future: The outcome of a step, or a task.
        read: Called with the future when it is done: the replies, or what else to wait for.
        commands: How many it answers.
    """

    future: Outcome[Any] | asyncio.Future[Any]
    read: Callable[[Any], Replies | Answer]
    commands: int = 1


def in_task(work: Coroutine[Any, Any, Replies]) -> Answer:
    """Carry out a command in a task."""

    async def caught() -> Replies | Exception:
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return error

    return Answer(background.start(caught(), "a client's command"), _result)


def _result(done: asyncio.Future[Replies | Exception]) -> Replies:
    result = done.result()
    if isinstance(result, Exception):
        raise result
    return result


class Executor(Protocol):
    """What carries out commands."""

    def execute(self, session: Session, pending: Pending) -> Replies | Answer:
        """Carry out the first of the pending commands, perhaps with some that follow it.

        Returns:
            A reply for each of them, or what they wait for. It raises no error of a command.
        """

    def read(self, answer: Answer) -> Replies | Answer:
        """Return the same, when what commands waited for is done."""


class Host(Protocol):
    """What a connection needs of its server.

    Attributes:
        limits: What the client may use.
        polling: Is told of each command.
    """

    limits: ConnectionLimits
    polling: Polling

    @property
    def commands(self) -> Executor:
        """What carries out the client's commands."""

    def connected(self, connection: Connection) -> Session | None:
        """Return the new client's session, or None if there are too many clients."""

    def disconnected(self, connection: Connection) -> None:
        """The client has gone."""


class Connection(asyncio.Protocol):
    """One client, from connecting to its end.

    Args:
        host: The server.
    """

    __slots__ = (
        "_ahead", "_answer", "_broken", "_ended", "_eof", "_full", "_host", "_parser", "_parted", "_pending",
        "last_seen", "session", "stalled_since", "transport",
    )  # fmt: skip

    session: Session
    transport: Any

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = RequestParser(host.limits.wire)
        self._pending: Pending = deque()  # those that run are the first of them
        self._ahead = 0  # bytes of the commands that were read since none was pending
        self._full = False  # so many are pending that reading has stopped
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._eof = False
        self._broken = False
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
        self._host.polling.command()
        self._parser.feed(data)
        self._read_commands()
        self._go_on()

    def eof_received(self) -> bool:
        # A client that has sent its last command may still read; one that has gone reads nothing. What was sent is
        # carried out; nothing waits for events or room any more.
        self._eof = True
        if hasattr(self, "session"):
            self.session.interrupt()
        return self.is_busy  # keeps the connection open until the last reply

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._eof = True
        self._forget()
        if not hasattr(self, "session"):
            return
        self.session.gone = True
        self.session.interrupt()
        if self._answer is None:
            self._end()
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        self.stalled_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self.stalled_since = 0.0
        if not self._parted:
            self._go_on()

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

    def stop(self) -> asyncio.Future[None] | None:
        """Read no further command. Return what completes when those that were read have ended, if there are any."""
        self._set_reading(False)
        self._eof = self._broken = True
        self._full = False
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
        pending, parser = self._pending, self._parser
        if not pending:
            self._ahead = 0
        # The limits change with AUTH: what follows it is parsed after it.
        most = self._host.limits.pipeline if self.session.authenticated else 0
        try:
            while not self._broken:
                if len(pending) > most or self._ahead >= READ_AHEAD:
                    if not self._full:
                        self._full = True
                        self._set_reading(False)
                    return
                command = parser.next_command()
                if command is None:
                    if self._full:
                        self._full = False
                        self._set_reading(True)
                    return
                self._ahead += parser.size
                pending.append(command)
        except ProtocolError as error:
            self._broken, self._full = True, False
            pending.append(error)
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
            answer = None if done is None else self._host.commands.read(done)
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
        pending, commands, session = self._pending, self._host.commands, self.session
        while answer or pending:
            if answer is None and isinstance(pending[0], ProtocolError):
                logger.info("protocol error", extra={"client": session.peer, "reason": str(pending[0])})
                replies.append(encode(ErrorReply(f"ERR {pending[0]}")))
                session.leaving = True
                self._forget()
                break
            if answer is None:
                answer = commands.execute(session, pending)
            if isinstance(answer, Answer):
                self._answer = answer
                answer.future.add_done_callback(self._answered)
                break
            self._add(answer, replies)
            answer = None
        if replies:
            self._write(b"".join(replies))

    def _answered(self, future: Outcome[Any] | asyncio.Future[Any]) -> None:
        answer, self._answer = self._answer, None
        if future.cancelled():
            answer = None
            self.transport.abort()
            self._forget()
        self._go_on(answer)

    def _add(self, answers: Replies, replies: list[bytes]) -> None:
        """Add the replies to commands that have ended."""
        session, pending = self.session, self._pending
        for answer in answers:
            replies.append(encode(answer, session.protocol))
            if pending:  # not if the client has gone
                pending.popleft()
        if session.leaving:
            self._forget()
        self._parser.limits = self._host.limits.wire if session.authenticated else UNAUTHENTICATED

    def _forget(self) -> None:
        """Carry out nothing more of what the client has sent."""
        self._pending.clear()
        self._broken, self._full = True, False

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
