"""A channel is one connection to the server, from connecting to its loss: commands go out, replies come back in order.

The rule that this module keeps: a cancellation never disturbs a channel. Replies are handed out from `data_received`,
which no task owns, so a caller that stops listening does not affect the replies of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis

from apressure.concurrency.settle import raised, set_result_once
from apressure.connection.addresses import Address
from apressure.connection.wire.command import NO_HEAD, Argument, Head
from apressure.connection.wire.replies import error_from_reply
from apressure.exceptions import ServerUnavailableError

OnReply = Callable[[Any], None]
"""Receives a reply, a `ServerError` for an error reply, or `ConnectionLost` if no reply will come."""

FULL = "max number of clients reached"
"""What a server that has reached its `maxclients` answers before it closes the connection."""

MUCH = 1 << 13
"""A command of at least this many bytes leaves at once: the server works on it while this turn of the loop goes on."""

PIECE = 1 << 18
"""How many bytes of a large argument a transport is given at a time."""


class ConnectionLost(Exception):
    """The connection ended before the reply came: the command was executed, or not."""


class _NotRedisError(Exception):
    """What came is no RESP, or a reply without a command: the other end is no Redis."""


class Channel(Protocol):
    """One connection, from connecting to its loss.

    Attributes:
        up: It has not ended.
        address: Where the server is.
        lost: How it ended, unless this client ended it.
        on_end: Called when it has ended.
        extended: The server has more commands than others of its kind, as far as `Server.greet` has asked.
    """

    up: bool
    address: Address
    lost: str
    on_end: list[Callable[[], None]]
    extended: bool = False

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        """Send a command; `on_reply` is called exactly once, never from within this call.

        A command goes out at once if no other one is pending, or if it is large; others leave together, once per
        iteration of the loop.

        Args:
            command: The command, or the rest of it after the head.
            on_reply: Receives the reply.
            head: How the command begins.
        """

    async def ask(self, *command: bytes | str | int) -> Any:
        """Send a command and return its reply; for administration, not for steps (a cancellation drops the reply).

        Raises:
            ServerError: The server refused it.
            ServerUnavailableError: The connection ended first.
        """
        return await reply_of(self, command)

    def abort(self, reason: str, lost: bool = False) -> None:
        """End the connection at once; pending replies become `ConnectionLost`.

        Args:
            reason: Why.
            lost: It is not this client that ends it: it is lost.
        """

    def retire(self) -> None:
        """End the connection as soon as no reply is pending."""


class RESPChannel(asyncio.Protocol, Channel):
    """A channel to a server, speaking RESP2.

    Args:
        transport: The transport of redis-py's connection.
        address: Where the server is.
        response_timeout: Seconds of silence after which a missing reply ends the connection.

    Attributes:
        on_message: Receives the channel of each message, on a connection that subscribes; None on all others.
    """

    def __init__(self, transport: asyncio.Transport, address: Address, response_timeout: float) -> None:
        self.address = address
        self._outgoing = _Outgoing(transport)
        self._due = _Due(response_timeout, functools.partial(self.abort, lost=True))
        self._reader = _reader()
        self._fed = 0
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._retired = False
        self.on_message: Callable[[bytes], None] | None = None
        self.on_end: list[Callable[[], None]] = []
        self.up = True
        self.lost = ""

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        if not self.up:
            self._loop.call_soon(on_reply, ConnectionLost(self._reason))
            return
        pieces, due, outgoing = head.pack(command), self._due, self._outgoing
        if due or outgoing.pieces or len(pieces) > 1:
            outgoing.add(pieces)
        else:
            outgoing.transport.write(pieces[0])
        if not due:
            due.heard = self._loop.time()
        due.append(on_reply)
        if due.timer is None:
            due.watch()

    def abort(self, reason: str, lost: bool = False) -> None:
        if self.up:
            self._outgoing.transport.abort()
            self._end(reason, reason if lost else "")

    def retire(self) -> None:
        self._retired = True
        self._loop.call_soon(self._end_retired)

    def _end_retired(self) -> None:
        if not self._due:
            self.abort("the queue is on another server now")

    def data_received(self, data: bytes) -> None:
        due = self._due
        due.heard = self._loop.time()
        self._fed += len(data)
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if self.on_message is not None and isinstance(reply, list) and reply[:1] == [b"message"]:
                    self.on_message(reply[1])
                elif due:
                    due.popleft()(reply)
                else:
                    raise _NotRedisError  # noqa: TRY301 (a reply without a command)
        except _NotRedisError:
            self.abort("the server does not speak the Redis protocol", lost=True)
        if self._fed > PIECE and not due:
            # A reader keeps memory for its largest reply. It cannot be replaced in the middle of a reply.
            self._reader, self._fed = _reader(), 0
        if self._retired:
            self._end_retired()

    def pause_writing(self) -> None:
        self._outgoing.paused = True

    def resume_writing(self) -> None:
        self._due.heard = self._loop.time()  # the server reads, so it is alive
        self._outgoing.paused = False
        self._outgoing.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        reason, lost = "the connection was closed", "the server closed it"
        if exc is not None:
            reason, lost = f"the connection was lost: {exc}", str(exc)
            self._read_last_reply()
        self._end(reason, "" if self._retired else lost)

    def _read_last_reply(self) -> None:
        """Read the reply that a server sent before it closed the connection ("the message is too large").

        Only asyncio's plain transport still has its socket here: uvloop has closed it, and TLS is encrypted.
        """
        transport = self._outgoing.transport
        if self._due and type(transport).__module__ == "asyncio.selector_events":
            with contextlib.suppress(OSError):
                self.data_received(os.read(transport.get_extra_info("socket").fileno(), PIECE))

    def _end(self, reason: str, lost: str) -> None:
        if not self.up:
            return
        self.up, self._reason, self.lost = False, reason, lost
        self._outgoing.pieces.clear()
        for on_reply in self._due.end():
            on_reply(ConnectionLost(reason))
        for on_end in self.on_end:
            on_end()


class _Outgoing:
    """What a transport is yet to be given.

    Attributes:
        transport: The transport.
        pieces: The packed commands.
        paused: The transport takes no more for now.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.pieces: deque[bytes | memoryview] = deque()
        self.paused = False
        self._turn: asyncio.Handle | None = None

    def add(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a packed command: at once if it is large, or else together with later ones."""
        self.pieces += pieces
        if len(pieces[0]) >= MUCH:
            self.flush()
        elif self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Give the transport what has gathered: small pieces as one, large ones bit by bit, as it takes them.

        A transport copies what it cannot send at once, again and again: too slow for a message of many megabytes.
        """
        self._turn = None
        pieces = self.pieces
        while pieces and not self.paused and not self.transport.is_closing():
            small = []
            while pieces and len(pieces[0]) <= PIECE:
                small.append(pieces.popleft())
            if small:
                self.transport.write(b"".join(small))
            else:
                large = memoryview(pieces[0])
                pieces[0] = large[PIECE:]
                self.transport.write(large[:PIECE])


class _Due(deque[OnReply]):
    """Those that receive the replies that are due, in order. One timer watches all of them.

    A server executes the commands of a connection one after the other. Replies behind a slow command (WAIT) are late,
    so the time counts from the last reply.

    Args:
        timeout: Seconds of silence after which a reply is overdue.
        on_silence: Called then, with the reason.

    Attributes:
        heard: When the server gave the last sign of life, or the oldest of these commands was sent after it.
        timer: Looks whether they are overdue; None while it need not.
    """

    __slots__ = ("_on_silence", "_timeout", "heard", "timer")

    def __init__(self, timeout: float, on_silence: Callable[[str], object]) -> None:
        super().__init__()
        self.heard = 0.0
        self._timeout = timeout
        self._on_silence = on_silence
        self.timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look at the oldest reply, if there is one, and again when that one is overdue."""
        loop, self.timer = asyncio.get_running_loop(), None
        if self and loop.time() >= self.heard + self._timeout:
            self._on_silence(f"the server did not answer for {self._timeout:g} seconds")
        elif self:
            self.timer = loop.call_at(self.heard + self._timeout, self.watch)

    def end(self) -> list[OnReply]:
        """Return those that get no reply any more."""
        if self.timer is not None:
            self.timer.cancel()
        ended = list(self)
        self.clear()
        return ended


async def reply_of(channel: Channel, command: Sequence[Argument], head: Head = NO_HEAD) -> Any:
    """Send a command and return its reply, or raise its error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.call(command, functools.partial(set_result_once, future), head)
    reply = await future
    if isinstance(reply, ConnectionLost):
        raise ServerUnavailableError(str(reply))
    return raised(reply)


def _reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=_NotRedisError, replyError=error_from_reply)


def no_room(error: Exception) -> bool:
    """Whether the server or this process has reached its limit of connections; the server has not moved then."""
    return any(text in str(error) for text in (FULL, os.strerror(errno.EMFILE), os.strerror(errno.ENFILE)))
