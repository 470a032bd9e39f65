"""One connection to the server: commands go out, replies come back in order to whoever asked.

The rule that this module keeps: nothing of a channel can be cancelled half-way. Replies are handed out from
`data_received`, which no task owns; a caller that stops listening does not disturb the replies of others.

redis-py makes the connection (TCP, unix socket, TLS, AUTH, SELECT, credential providers); then the transport gets
this protocol instead of redis-py's stream. That leans on one private attribute of redis-py, `Connection._writer`,
in `_transport_of` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AuthenticationError as RedisAuthenticationError
from redis.exceptions import RedisError, ResponseError

from apressure.connection.addresses import NAMELESS, Address
from apressure.connection.command import NO_HEAD, Argument, Head, pack
from apressure.connection.replies import error_from_reply
from apressure.exceptions import AuthenticationError, ServerError, ServerUnavailableError

OnReply = Callable[[Any], None]
"""Receives a reply, a `ServerError` for an error reply, or `ConnectionLost` where no reply will come."""

FULL = "max number of clients reached"
"""What a server says to a connection before it hangs up, where it has as many as it takes."""


PIECE = 1 << 18
"""About how many bytes of a large argument a transport is given at a time."""


class ConnectionLost(Exception):
    """The connection ended before the reply came: the command was carried out, or not."""


class Channel(asyncio.Protocol):
    """A connection that is up, speaking RESP2.

    Args:
        connection: redis-py's connection, which keeps the transport alive.
        transport: Its transport.
        address: Where the server is.
        response_timeout: Seconds of silence after which a missing reply ends the connection.
        on_lost: Called once when the connection has ended.
    """

    def __init__(
        self,
        connection: Any,
        transport: asyncio.Transport,
        address: Address,
        response_timeout: float,
        on_lost: Callable[[], None],
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
        self._on_lost = on_lost
        self._reason = "the connection was closed"
        self._retired = False
        self.up = True

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        """Send a command; `on_reply` is called exactly once, never from within this call.

        A command goes out at once where no other is on its way; others leave together, once in a turn of the loop.

        Args:
            command: The command, or what comes behind its head.
            on_reply: Receives the reply.
            head: How the command begins.
        """
        if not self.up:
            self._loop.call_soon(on_reply, ConnectionLost(self._reason))
            return
        pieces = pack(head, command)
        if not self._pending and not self._outgoing and len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._outgoing += pieces
            if self._turn is None:
                self._turn = self._loop.call_soon(self._next_turn)
        self._pending.append((on_reply, self._loop.time()))
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._response_timeout, self._watch)

    async def ask(self, *command: bytes | str | int) -> Any:
        """Send a command and return its reply; for administration, not for steps (a cancellation drops the reply).

        Raises:
            ServerError: The server refused it.
            ServerUnavailableError: The connection ended first.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.call(command, lambda reply: None if future.done() else future.set_result(reply))
        reply = await future
        if isinstance(reply, ConnectionLost):
            raise ServerUnavailableError(str(reply))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def abort(self, reason: str) -> None:
        """End the connection at once; pending replies become `ConnectionLost`."""
        if self.up:
            self._reason = reason
            self._transport.abort()
            self._end()

    def retire(self) -> None:
        """End the connection as soon as the replies on their way have come."""
        self._retired = True
        self._loop.call_soon(self._end_retired)

    def _end_retired(self) -> None:
        if not self._pending:
            self.abort("the server's data is elsewhere")

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._fed += len(data)
        self._reader.feed(data)
        while (reply := self._next_reply()) is not False:
            on_reply, _ = self._pending.popleft()
            on_reply(reply)
        if self._fed > PIECE and not self._pending:
            # It would keep the room for the largest reply of all until the next one comes. (In the middle of a reply it
            # has to stay, and does not tell.)
            self._reader, self._fed = _reader(), 0
        if self._retired:
            self._end_retired()

    def _next_reply(self) -> Any:
        """The next whole reply, or False."""
        try:
            reply = self._reader.gets()
        except ValueError:
            reply = None
        else:
            if reply is False or self._pending:
                return reply
        # Not RESP, or a reply that nobody asked for: whatever is at the other end, it is no Redis.
        self.abort("the server does not speak the Redis protocol")
        return False

    def _next_turn(self) -> None:
        self._turn = None
        self._write()

    def _write(self) -> None:
        """Hand over what has gathered, small pieces as one, large ones bit by bit, as the transport takes them.

        It copies what it cannot send at once, and that again and again: too much for a message of many megabytes.
        """
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
        self._heard = self._loop.time()  # the server takes what is sent: that is a sign of life, too
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = f"the connection was lost: {exc}"
            self._hear_last_words()
        self._end()

    def _hear_last_words(self) -> None:
        """Where writing failed, why the server hung up may be in the socket, unread: the message is too large, say.

        asyncio's plain transport has its socket until this is over. Others may have closed it before (uvloop), or what
        is in it is encrypted.
        """
        transport = self._transport
        if self._pending and type(transport).__module__ == "asyncio.selector_events":
            with contextlib.suppress(OSError):
                self.data_received(os.read(transport.get_extra_info("socket").fileno(), PIECE))

    def _end(self) -> None:
        if not self.up:
            return
        self.up = False
        if self._watchdog is not None:
            self._watchdog.cancel()
        # redis-py's objects would warn of an unclosed connection when they are collected.
        self._connection._close()  # noqa: SLF001 (the synchronous one; its public twin is a coroutine)
        self._outgoing.clear()
        pending, self._pending = self._pending, deque()
        for on_reply, _ in pending:
            on_reply(ConnectionLost(self._reason))
        self._on_lost()

    def _watch(self) -> None:
        """One timer for all replies: looks at the oldest, and comes back when that would be due.

        Commands of one connection are carried out one after the other. Those behind one that takes its time (WAIT)
        are late, and yet the server is there: it has answered the one before.
        """
        self._watchdog = None
        if not self._pending:
            return
        due = max(self._pending[0][1], self._heard) + self._response_timeout
        if self._loop.time() >= due:
            self.abort(f"the server did not answer for {self._response_timeout:g} seconds")
        else:
            self._watchdog = self._loop.call_at(due, self._watch)


def _reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=ValueError, replyError=error_from_reply)


def _transport_of(connection: Any) -> asyncio.Transport:
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None:
        raise ServerError(
            "this version of redis-py keeps its transport elsewhere than apressure knows: "
            "install a version that apressure's pyproject.toml allows"
        )
    found: asyncio.Transport = transport
    return found


def no_room(error: Exception) -> bool:
    """Whether one more connection is too many, there or here: the server is where it was."""
    return any(text in str(error) for text in (FULL, os.strerror(errno.EMFILE), os.strerror(errno.ENFILE)))


def unreachable(address: Address, cause: Exception) -> ServerUnavailableError:
    """The error for a server that cannot be reached, with what may be the reason."""
    reason = str(cause).rstrip(".") or type(cause).__name__
    if isinstance(cause, TimeoutError):
        reason = "it did not answer in time"
    question = "Is it running, and is the address right?"
    if FULL in reason:
        question = "Raise its maxclients, or give clients max_connections="
    elif no_room(cause):
        question = "Each connection is one: raise the limit (ulimit -n), or give the client max_connections="
    elif issubclass(address.connection_class, SSLConnection):
        question = "Is it running, is the address right, and does it speak TLS?"
    elif "host" in address.connection_options and isinstance(cause, (ConnectionResetError, ServerUnavailableError)):
        question = "Is it running, is the address right, and is that a port without TLS?"
    return ServerUnavailableError(f"cannot reach the server at {address.text}: {reason}. {question}")


async def connect(
    address: Address, connect_timeout: float, response_timeout: float, on_lost: Callable[[], None]
) -> Channel:
    """Connect to the server at an address.

    Raises:
        AuthenticationError: The server refused the credentials.
        ServerError: It refused something else, such as the number of the database.
        ServerUnavailableError: It could not be reached.
    """
    connection = address.connection_class(
        **{
            "socket_connect_timeout": connect_timeout,
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
        # redis-py names the address again, and wraps the system's own words.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise unreachable(address, cause) from None
    except Exception as error:  # the program's own code: a credential provider, say
        connection._close()  # noqa: SLF001
        raise ServerUnavailableError(f"cannot connect to the server at {address.text}: {error!r}") from error
    except BaseException:
        connection._close()  # noqa: SLF001
        raise
    transport = _transport_of(connection)
    channel = Channel(connection, transport, address, response_timeout, on_lost)
    transport.set_protocol(channel)
    if transport.is_closing():
        channel.abort("the connection was closed at once")
    return channel
