"""Connects to a server, and makes a channel of the connection.

redis-py makes the connection (TCP, unix socket, TLS, AUTH, SELECT, credential providers); then the transport gets
the channel as its protocol instead of redis-py's stream. That needs one private attribute of redis-py,
`Connection._writer`, in `_transport_of` alone.

This module imports redis-py, which takes longer than the rest of apressure: import it where a connection is opened.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AuthenticationError as RedisAuthenticationError
from redis.exceptions import RedisError, ResponseError

from apressure.concurrency.awake import awake_timeout
from apressure.connection.addresses import Address
from apressure.connection.parsing import NAMELESS, host_check
from apressure.connection.wire.channel import FULL, RESPChannel, no_room
from apressure.exceptions import AuthenticationError, ServerError, ServerUnavailableError

WORKS_WITH = "redis>=5.0.2,<9"
"""The versions of redis-py that have the private attribute of `_transport_of`; the same as in pyproject.toml."""


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
    check = host_check(address.connection_class, address.connection_options)
    # Timeouts of redis-py would count the time for which this process stood still.
    options = {"socket_connect_timeout": None, **check, **address.connection_options}
    connection = address.connection_class(**{**options, "socket_timeout": None, "protocol": 2, **NAMELESS})
    # No CLIENT SETINFO: two round trips, and Redis 6 and 7.0 answer with errors.
    connection.driver_info = connection.lib_name = connection.lib_version = None
    try:
        async with awake_timeout(connect_timeout):
            await connection.connect()
    except RedisAuthenticationError as error:
        raise AuthenticationError(
            f"the server at {address.text} refused the credentials: {error}", code="WRONGPASS"
        ) from None
    except ResponseError as error:
        raise ServerError(f"the server at {address.text} refused the connection: {error}") from None
    except (RedisError, OSError) as error:
        connection._close()  # noqa: SLF001
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
    channel = RESPChannel(transport, address, response_timeout)
    # redis-py's objects would warn of an unclosed connection when they are collected.
    channel.on_end.append(connection._close)  # noqa: SLF001 (the synchronous one; its public twin is a coroutine)
    transport.set_protocol(channel)
    if transport.is_closing():
        channel.abort("the connection was closed at once")
    return channel


def _transport_of(connection: Any) -> asyncio.Transport:
    transport: asyncio.Transport | None = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None:
        raise ServerError(
            f"apressure cannot use redis-py {redis.__version__}: its connections do not show their transport. "
            f"Install a version that works: pip install '{WORKS_WITH}'"
        )
    return transport
