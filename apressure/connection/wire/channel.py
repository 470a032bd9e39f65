"""A channel is one connection to the server, from connecting to its loss: commands go out, replies come back in order.

The rule that this module keeps: a cancellation never disturbs a channel. Replies are handed out from `data_received`,
which no task owns, so a caller that stops listening does not affect the replies of others.

redis-py makes the connection (TCP, unix socket, TLS, AUTH, SELECT, credential providers); then the transport gets
this protocol instead of redis-py's stream. That needs one private attribute of redis-py, `Connection._writer`,
in `_transport_of` alone.
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
import redis
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AuthenticationError as RedisAuthenticationError
from redis.exceptions import RedisError, ResponseError

from apressure.concurrency.settle import set_result_once
from apressure.connection.addresses import NAMELESS, Address, host_check
from apressure.connection.wire.command import NO_HEAD, Argument, Head
from apressure.connection.wire.replies import error_from_reply
from apressure.exceptions import AuthenticationError, ServerError, ServerUnavailableError

OnReply = Callable[[Any], None]
"""Receives a reply, a `ServerError` for an error reply, or `ConnectionLost` if no reply will come."""

FULL = "max number of clients reached"
"""What a server that has reached its `maxclients` answers before it closes the connection."""

WORKS_WITH = "redis>=5.0.2,<9"
"""The versions of redis-py that have the private attribute of `_transport_of`; the same as in pyproject.toml."""

MUCH = 1 << 13
"""A command of at least this many bytes leaves at once: the server works on it while this turn of the loop goes on."""

PIECE = 1 << 18
"""How many bytes of a large argument a transport is given at a time."""


class ConnectionLost(Exception):
    """The connection ended before the reply came: the command was executed, or not."""


class Channel(Protocol):
    """One connection, from connecting to its loss.

    Attributes:
        up: It has not ended.
        address: Where the server is.
        lost: How it ended, unless this client ended it.
        on_end: Called when it has ended.
    """

    up: bool
    address: Address
    lost: str
    on_end: list[Callable[[], None]]

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
        connection: redis-py's connection, which keeps the transport open.
        transport: Its transport.
        address: Where the server is.
        response_timeout: Seconds of silence after which a missing reply ends the connection.

    Attributes:
        on_message: Receives the channel of each message, on a connection that subscribes; None on all others.
    """

    def __init__(
        self, connection: Any, transport: asyncio.Transport, address: Address, response_timeout: float
    ) -> None:
        self.address = address
        self._connection = connection
        self._transport = transport
        self._reader = _reader()
        self._fed = 0
        self._pending: deque[tuple[OnReply, float]] = deque()
        self._outgoing: deque[bytes | memoryview] = deque()
        self._turn: asyncio.Handle | None = None
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._response_timeout = response_timeout
        self._watchdog: asyncio.TimerHandle | None = None
        self._heard = 0.0
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
        pieces = head.pack(command)
        if not self._pending and not self._outgoing and len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._outgoing += pieces
            if len(pieces[0]) >= MUCH:
                self._write()
            elif self._turn is None:
                self._turn = self._loop.call_soon(self._write)
        self._pending.append((on_reply, self._loop.time()))
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._response_timeout, self._watch)

    def abort(self, reason: str, lost: bool = False) -> None:
        if self.up:
            self._transport.abort()
            self._end(reason, reason if lost else "")

    def retire(self) -> None:
        self._retired = True
        self._loop.call_soon(self._end_retired)

    def _end_retired(self) -> None:
        if not self._pending:
            self.abort("the queue is on another server now")

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._fed += len(data)
        self._reader.feed(data)
        while (reply := self._next_reply()) is not False:
            if self.on_message is not None and self._is_message(reply):
                self.on_message(reply[1])
                continue
            on_reply, _ = self._pending.popleft()
            on_reply(reply)
        if self._fed > PIECE and not self._pending:
            # A reader keeps memory for its largest reply. It cannot be replaced in the middle of a reply.
            self._reader, self._fed = _reader(), 0
        if self._retired:
            self._end_retired()

    def _is_message(self, reply: Any) -> bool:
        return self.on_message is not None and isinstance(reply, list) and reply[:1] == [b"message"]

    def _next_reply(self) -> Any:
        """The next whole reply, or False."""
        try:
            reply = self._reader.gets()
        except ValueError:
            reply = None
        else:
            if reply is False or self._pending or self._is_message(reply):
                return reply
        # Not RESP, or a reply without a command: the other end is no Redis.
        self.abort("the server does not speak the Redis protocol", lost=True)
        return False

    def _write(self) -> None:
        """Give the transport what has gathered: small pieces as one, large ones bit by bit, as it takes them.

        A transport copies what it cannot send at once, again and again: too slow for a message of many megabytes.
        """
        self._turn = None
        outgoing = self._outgoing
        while outgoing and not self._paused and not self._transport.is_closing():
            small = []
            while outgoing and len(outgoing[0]) <= PIECE:
                small.append(outgoing.popleft())
            if small:
                self._transport.write(b"".join(small))
            else:
                large = memoryview(outgoing[0])
                outgoing[0] = large[PIECE:]
                self._transport.write(large[:PIECE])

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._heard = self._loop.time()  # the server reads, so it is alive
        self._write()

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
        transport = self._transport
        if self._pending and type(transport).__module__ == "asyncio.selector_events":
            with contextlib.suppress(OSError):
                self.data_received(os.read(transport.get_extra_info("socket").fileno(), PIECE))

    def _end(self, reason: str, lost: str) -> None:
        if not self.up:
            return
        self.up, self._reason, self.lost = False, reason, lost
        if self._watchdog is not None:
            self._watchdog.cancel()
        # redis-py's objects would warn of an unclosed connection when they are collected.
        self._connection._close()  # noqa: SLF001 (the synchronous one; its public twin is a coroutine)
        self._outgoing.clear()
        pending, self._pending = self._pending, deque()
        for on_reply, _ in pending:
            on_reply(ConnectionLost(self._reason))
        for on_end in self.on_end:
            on_end()

    def _watch(self) -> None:
        """Check the oldest reply, and come back when that one is due: one timer for all replies.

        A server executes the commands of a connection one after the other. Replies behind a slow command (WAIT) are
        late, so the time counts from the last reply.
        """
        self._watchdog = None
        if not self._pending:
            return
        due = max(self._pending[0][1], self._heard) + self._response_timeout
        if self._loop.time() >= due:
            self.abort(f"the server did not answer for {self._response_timeout:g} seconds", lost=True)
        else:
            self._watchdog = self._loop.call_at(due, self._watch)


async def reply_of(channel: Channel, command: Sequence[Argument], head: Head = NO_HEAD) -> Any:
    """Send a command and return its reply, or raise its error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.call(command, functools.partial(set_result_once, future), head)
    reply = await future
    if isinstance(reply, ConnectionLost):
        raise ServerUnavailableError(str(reply))
    if isinstance(reply, Exception):
        raise reply
    return reply


def _reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=ValueError, replyError=error_from_reply)


def _transport_of(connection: Any) -> asyncio.Transport:
    transport: asyncio.Transport | None = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None:
        raise ServerError(
            f"apressure cannot use redis-py {redis.__version__}: its connections do not show their transport. "
            f"Install a version that works: pip install '{WORKS_WITH}'"
        )
    return transport


def no_room(error: Exception) -> bool:
    """Whether the server or this process has reached its limit of connections; the server has not moved then."""
    return any(text in str(error) for text in (FULL, os.strerror(errno.EMFILE), os.strerror(errno.ENFILE)))


def unreachable(address: Address, cause: Exception) -> ServerUnavailableError:
    """Return the error for a server that cannot be reached, with the probable cause and what to do."""
    reason = str(cause).rstrip(".") or type(cause).__name__
    if isinstance(cause, TimeoutError):
        reason = "it did not answer in time"
    question = "Is it running, and is the address right?"
    if FULL in reason:
        question = "Raise its maxclients, or limit the clients with max_connections="
    elif no_room(cause):
        question = "Each connection is an open file: raise the limit (ulimit -n), or give the client max_connections="
    elif issubclass(address.connection_class, SSLConnection):
        question = "Is it running, is the address right, and does it speak TLS?"
    elif "host" in address.connection_options and isinstance(cause, (ConnectionResetError, ServerUnavailableError)):
        question = "Is it running, is the address right, and is that a port without TLS?"
    return ServerUnavailableError(f"cannot reach the server at {address.text}: {reason}. {question}")


async def connect(address: Address, connect_timeout: float, response_timeout: float) -> RESPChannel:
    """Connect to the server at an address.

    Raises:
        AuthenticationError: The server refused the credentials.
        ServerError: It refused something else, such as the number of the database.
        ServerUnavailableError: It could not be reached.
    """
    connection = address.connection_class(
        **{
            "socket_connect_timeout": connect_timeout,
            **host_check(address.connection_class, address.connection_options),
            **address.connection_options,
            "socket_timeout": connect_timeout,
            "protocol": 2,
            **NAMELESS,
        }
    )
    # No CLIENT SETINFO: two round trips, and Redis 6 and 7.0 answer with errors.
    connection.driver_info = connection.lib_name = connection.lib_version = None
    try:
        await connection.connect()
    except RedisAuthenticationError as error:
        raise AuthenticationError(
            f"the server at {address.text} refused the credentials: {error}", code="WRONGPASS"
        ) from None
    except ResponseError as error:
        raise ServerError(f"the server at {address.text} refused the connection: {error}") from None
    except (RedisError, OSError) as error:
        # redis-py repeats the address, and wraps the system's error.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise unreachable(address, cause) from None
    except Exception as error:  # raised by the program's own code, such as a credential provider
        connection._close()  # noqa: SLF001
        raise ServerUnavailableError(f"cannot connect to the server at {address.text}: {error!r}") from error
    except BaseException:
        connection._close()  # noqa: SLF001
        raise
    transport = _transport_of(connection)
    channel = RESPChannel(connection, transport, address, response_timeout)
    transport.set_protocol(channel)
    if transport.is_closing():
        channel.abort("the connection was closed at once")
    return channel
