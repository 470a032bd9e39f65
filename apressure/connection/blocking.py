"""The same server for code that is not asyncio: Spark's workers.

One connection, used by one thread at a time. What breaks is connected again and sent again for `retry_timeout` seconds,
so **only repeatable commands belong here**: a script whose repeat sees what it did, or a write that sets.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import redis
from redis import connection as connections
from redis.asyncio import connection as twins
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    AuthenticationError as RedisAuthenticationError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from apressure.connection.addresses import NAMELESS
from apressure.connection.command import NO_HEAD, pack
from apressure.connection.replies import NOT_EXECUTED, error_from_reply
from apressure.connection.script import Call
from apressure.connection.settings import Settings, resolve
from apressure.exceptions import AuthenticationError, PressureError, ServerUnavailableError

_MULTI, _EXEC = pack(NO_HEAD, (b"MULTI",)), pack(NO_HEAD, (b"EXEC",))

_TWINS: dict[type[Any], type[Any]] = {
    twins.Connection: connections.Connection,
    twins.SSLConnection: connections.SSLConnection,
    twins.UnixDomainSocketConnection: connections.UnixDomainSocketConnection,
}

_PASSING = (
    AskError, ClusterError, ReadOnlyError, RedisClusterException, RedisConnectionError, RedisTimeoutError, TryAgainError
)  # fmt: skip
"""What may be over with the next connection. (MovedError is an AskError; RedisClusterException is no RedisError.)"""


class Blocking:
    """A server, primary of Sentinels, or cluster, for one thread.

    Args:
        settings: The same as a `Client`'s. `redis=` of fakeredis is not for this.

    Raises:
        TypeError: The settings are those of a fake server.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.fake is not None:
            raise TypeError("fakeredis is for one process: give the url of a real server")
        self.settings = settings
        self._tags = itertools.count(1)
        self._redis: Any = None

    def __repr__(self) -> str:
        return f"<Blocking {self.settings.client_id!r} at {self.settings.address.text}>"

    def close(self) -> None:
        """Release the connection. The next command opens one again."""
        server, self._redis = self._redis, None
        if server is not None:
            server.close()

    def run(self, call: Call, *arguments: Any) -> Any:
        """Run a script and return its answer.

        Raises:
            ServerUnavailableError: The server cannot be reached for `retry_timeout` seconds.
            ServerError: It refused.
        """
        return self._repeatedly(lambda server: self._run(server, call, arguments))

    def ask(self, *command: Any) -> Any:
        """Send one command that may be sent twice, and return its reply. (It may block, if not for long.)"""
        name = command[0].decode()  # as text: otherwise redis-py does not find the keys in a cluster
        return self._repeatedly(lambda server: server.execute_command(name, *command[1:]))

    def together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands that may be sent twice as one transaction on the keys of one queue, and return the replies.

        The first one's first argument is a key.
        """
        packed = [piece for command in commands for piece in pack(NO_HEAD, command)]
        return self._repeatedly(lambda _: self._transaction(commands[0][1], len(commands), *packed))  # type: ignore[no-any-return]

    def push_once(self, key: bytes, count: int, packed: Any, milliseconds: int) -> int:
        """Push messages that are packed already and have the list expire: a transaction that must not be repeated.

        Args:
            key: The list.
            count: How many messages there are.
            packed: A buffer with each of them as the protocol has it, `$LENGTH`, the message, and ends of lines.
            milliseconds: When the list expires.

        Returns:
            The length of the list.

        Raises:
            ConnectionError: The connection broke, or the key is elsewhere now: it was carried out, or not. The next
                command connects again.
            ServerError: The server refused.
        """
        push = b"*%d\r\n$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (count + 2, len(key), key)
        try:
            replies = self._transaction(key, 2, push, packed, *pack(NO_HEAD, (b"PEXPIRE", key, milliseconds)))
        except _PASSING as error:
            self.close()
            raise ConnectionError(str(error)) from None
        except RedisError as error:
            _refuse(error)
        return int(replies[0])

    def _transaction(self, key: bytes, count: int, *commands: Any) -> list[Any]:
        """Send so many packed commands between MULTI and EXEC to where the key is, and return their replies."""
        server = self._connected()
        if isinstance(server, RedisCluster):
            node = server.get_node_from_key(key.decode())  # type: ignore[no-untyped-call]
            server = server.get_redis_connection(node)
        connection = server.connection_pool.get_connection()
        try:
            connection.send_packed_command((*_MULTI, *commands, *_EXEC))
            replies: list[Any] = [connection.read_response() for _ in range(count + 2)][-1]
        except BaseException:
            connection.disconnect()
            raise
        finally:
            server.connection_pool.release(connection)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def scan(self, pattern: bytes) -> list[bytes]:
        """Look for strings, on every node of a cluster."""
        return self._repeatedly(lambda server: sorted(set(server.scan_iter(match=pattern, count=1000, _type="string"))))  # type: ignore[no-any-return]

    def _run(self, server: Any, call: Call, arguments: Sequence[Any]) -> Any:
        tag = b"%d" % next(self._tags)
        words = (len(call.keys), *call.keys, *arguments, tag)
        try:
            reply = server.execute_command("EVALSHA", call.script.sha, *words)
        except ResponseError as error:
            if "NOSCRIPT" not in f"{type(error).__name__.upper()} {error}":
                raise
            reply = server.execute_command("EVAL", call.script.source, *words)
        if isinstance(reply, bytes):
            mine, _, number = reply.partition(b" ")
            answer: Any = int(number)
        else:
            mine, answer = reply[0], reply[1] if len(reply) > 1 else None
        if mine != tag:
            raise RedisConnectionError("a reply came that belongs to another request")
        return answer

    def _repeatedly(self, send: Callable[[Any], Any]) -> Any:
        deadline = time.monotonic() + self.settings.retry_timeout
        pause = 0.05
        while True:
            try:
                return send(self._connected())
            except (RedisError, RedisClusterException) as raised:
                error = _reason(raised)
                broken = isinstance(error, _PASSING)
                passing = broken or str(error).partition(" ")[0] in NOT_EXECUTED
                wrong = isinstance(error, RedisAuthenticationError)
                if broken:
                    self.close()
                if not passing or wrong or time.monotonic() + pause > deadline:
                    _refuse(error, self.settings.address.text, self.settings.retry_timeout)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(1.0, 2 * pause)

    def _connected(self) -> Any:
        if self._redis is None:
            self._redis = self._open()
        return self._redis

    def _open(self) -> Any:
        settings = self.settings
        if settings.embedded:
            from apressure import embedded

            settings = resolve({"url": embedded.shared(settings.embedded_directory).url}, {})
        address = settings.address
        common: dict[str, Any] = {
            **address.connection_options,
            **NAMELESS,
            "socket_timeout": settings.response_timeout,
            "socket_connect_timeout": settings.connect_timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        kind = _TWINS.get(address.connection_class, connections.Connection)
        if address.service is not None:
            tls = {"ssl": True} if issubclass(kind, connections.SSLConnection) else {}
            asked = {**address.sentinel_options, **tls, "socket_timeout": settings.connect_timeout}
            sentinel: Any = Sentinel(list(address.nodes), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
            for one in ("host", "port"):
                common.pop(one, None)
            return sentinel.master_for(address.service, **common, **tls)
        if address.nodes:
            for one in ("db", "host", "port"):
                common.pop(one, None)
            del common["retry"]
            nodes = [ClusterNode(*node) for node in address.nodes]  # type: ignore[no-untyped-call]
            return RedisCluster(startup_nodes=nodes, **common, ssl=issubclass(kind, connections.SSLConnection))
        return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **common))


def _reason(error: Exception) -> Any:
    """Where no node of a cluster could be asked: what the last one said. Otherwise the error itself."""
    if not isinstance(error, RedisClusterException):
        return error
    cause = error.__cause__
    if isinstance(cause, RedisClusterException):  # "Cluster mode is not enabled", whatever the node refused
        cause = cause.__context__
    return cause if isinstance(cause, RedisError) else error


def _refuse(error: RedisError | RedisClusterException, where: str = "the server", tried: float = 0.0) -> NoReturn:
    """Raise what this error of redis-py's is called here."""
    known: PressureError
    if isinstance(error, RedisAuthenticationError):
        known = AuthenticationError(f"{error} (check username and password)", code="NOAUTH")
    elif isinstance(error, ResponseError) and not isinstance(error, (ClusterDownError, TryAgainError)):
        known = error_from_reply(_text_of(error))
    else:
        again = f" (tried again for {tried:g} seconds)" if tried else ""
        known = ServerUnavailableError(f"cannot reach {where}: {error}{again}")
    raise known from None


def _text_of(error: ResponseError) -> str:
    """The server's own words: redis-py cuts the code off where it has an exception of its own for it."""
    codes = {"NoPermissionError": "NOPERM", "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY"}
    code = codes.get(type(error).__name__)
    text = str(error)
    return text if code is None or text.startswith(code) else f"{code} {text}"
