"""A client for code without asyncio: Spark's workers.

It has one connection, for one thread at a time. After a loss it reconnects and sends the command again, for up to
`retry_timeout` seconds, so **use it for repeatable commands only**: a script that recognizes its repeat, or a write
that sets a value.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import redis
from redis import connection as connections
from redis import exceptions as errors
from redis.asyncio import connection as twins
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from apressure.connection.addresses import NAMELESS, host_check
from apressure.connection.settings import RECONNECT_BACKOFF, Settings, settings_from
from apressure.connection.wire.command import NO_HEAD, pack
from apressure.connection.wire.outages import Outages
from apressure.connection.wire.replies import NOT_EXECUTED, error_from_reply
from apressure.connection.wire.script import Call
from apressure.exceptions import AuthenticationError, PressureError, ServerUnavailableError

_MULTI, _EXEC = pack(NO_HEAD, (b"MULTI",)), pack(NO_HEAD, (b"EXEC",))

_TWINS: dict[type[Any], type[Any]] = {
    twins.Connection: connections.Connection,
    twins.SSLConnection: connections.SSLConnection,
    twins.UnixDomainSocketConnection: connections.UnixDomainSocketConnection,
}

_PASSING = (
    errors.AskError, errors.ClusterError, errors.ReadOnlyError, errors.RedisClusterException, errors.ConnectionError,
    errors.TimeoutError, errors.TryAgainError,
)  # fmt: skip
"""Errors that may be gone at the next try. (MovedError is an AskError; RedisClusterException is no RedisError.)"""


class Blocking:
    """A client of a server, a primary of Sentinels, or a cluster, for one thread.

    Args:
        settings: The same as a `Client`'s, but not those of fakeredis.

    Raises:
        TypeError: The settings are those of fakeredis.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.fake is not None:
            raise TypeError("fakeredis works in one process only: give the url of a real server")
        self.settings = settings
        self._tags = itertools.count(1)
        self._redis: Any = None
        self._reached = False
        self._outages = Outages()

    def __repr__(self) -> str:
        return f"<Blocking {self.settings.client_id!r} at {self.settings.address.text}>"

    def close(self) -> None:
        """Release the connection. The next command opens another."""
        server, self._redis = self._redis, None
        if server is not None:
            server.close()

    def run(self, call: Call, *arguments: Any) -> Any:
        """Run a script and return its answer.

        Raises:
            ServerUnavailableError: The server could not be reached for `retry_timeout` seconds.
            ServerError: It refused the script.
        """
        return self._repeatedly(lambda server: self._run(server, call, arguments))

    def ask(self, *command: Any) -> Any:
        """Send one command that may be sent twice, and return its reply. (It may block for a short time.)"""
        name = command[0].decode()  # redis-py needs a str to find the keys in a cluster
        return self._repeatedly(lambda server: server.execute_command(name, *command[1:]))

    def run_all(self, calls: Sequence[tuple[Call, Sequence[Any]]]) -> list[Any]:
        """Run scripts on any keys, each with its arguments, in one round trip to each server, and return their answers.

        Raises:
            ServerUnavailableError: A server could not be reached for `retry_timeout` seconds.
            ServerError: It refused a script. The others were executed, or not.
        """
        return self._repeatedly(lambda server: self._run_all(server, calls))  # type: ignore[no-any-return]

    def ask_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands that may be sent twice, on any keys, in one round trip to each server. Return their replies."""
        if not commands:
            return []
        return self._repeatedly(lambda server: [_raised(reply) for reply in _replies(server, commands)])  # type: ignore[no-any-return]

    def together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands that may be sent twice as one transaction, and return the replies.

        All keys belong to one queue. The first command's first argument is a key.
        """
        packed = [piece for command in commands for piece in pack(NO_HEAD, command)]
        return self._repeatedly(lambda _: self._transaction(commands[0][1], len(commands), *packed))  # type: ignore[no-any-return]

    def push_once(self, key: bytes, count: int, packed: Any, milliseconds: int) -> int:
        """Push packed messages and make the list expire: a transaction that must not be repeated.

        Args:
            key: The list.
            count: How many messages there are.
            packed: A buffer with the messages in RESP, each as `$LENGTH`, the message, and line ends.
            milliseconds: When the list expires.

        Returns:
            The length of the list.

        Raises:
            ConnectionError: The connection broke, or the key is on another node now: the transaction was executed, or
                not. The next command connects again.
            ServerError: The server refused it.
        """
        push = b"*%d\r\n$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (count + 2, len(key), key)
        try:
            replies = self._transaction(key, 2, push, packed, *pack(NO_HEAD, (b"PEXPIRE", key, milliseconds)))
        except _PASSING as error:
            self.close()
            raise ConnectionError(str(error)) from None
        except errors.RedisError as error:
            _refuse(error)
        return int(replies[0])

    def _transaction(self, key: bytes, count: int, *commands: Any) -> list[Any]:
        """Send `count` packed commands between MULTI and EXEC to the key's node, and return their replies."""
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
            if isinstance(reply, errors.RedisError):
                raise reply
        return replies

    def scan(self, pattern: bytes) -> list[bytes]:
        """Return the keys of strings that match the pattern, from every node."""
        return self._repeatedly(lambda server: sorted(set(server.scan_iter(match=pattern, count=1000, _type="string"))))  # type: ignore[no-any-return]

    def _run(self, server: Any, call: Call, arguments: Sequence[Any]) -> Any:
        tag = b"%d" % next(self._tags)
        words = (len(call.keys), *call.keys, *arguments, tag)
        try:
            reply = server.execute_command("EVALSHA", call.script.sha, *words)
        except errors.ResponseError as error:
            if not _is_unknown_script(error):
                raise
            reply = server.execute_command("EVAL", call.script.source, *words)
        return _answer(reply, tag)

    def _run_all(self, server: Any, calls: Sequence[tuple[Call, Sequence[Any]]]) -> list[Any]:
        answers: list[Any] = [None] * len(calls)
        left = list(range(len(calls)))
        while left:
            tags = [b"%d" % next(self._tags) for _ in left]
            found = [
                (call.script.sha, len(call.keys), *call.keys, *arguments)
                for call, arguments in map(calls.__getitem__, left)
            ]
            replies = _replies(server, [(b"EVALSHA", *words, tag) for words, tag in zip(found, tags, strict=True)])
            unknown = []
            for index, tag, reply in zip(left, tags, replies, strict=True):
                if _is_unknown_script(reply):
                    unknown.append(index)
                else:
                    answers[index] = _answer(_raised(reply), tag)
            if unknown:  # a server learns a script from its first call
                answers[unknown[0]] = self._run(server, *calls[unknown[0]])
            left = unknown[1:]
        return answers

    def _repeatedly(self, send: Callable[[Any], Any]) -> Any:
        deadline = time.monotonic() + self.settings.retry_timeout
        failures = 0
        while True:
            pause = RECONNECT_BACKOFF.pause(failures)
            try:
                answer = send(self._connected())
                self._reached = True
                self._outages.connected(self, self.settings.address)
                return answer
            except (errors.RedisError, errors.RedisClusterException) as raised:
                error = _reason(raised)
                broken = isinstance(error, _PASSING) or _code(error) == "READONLY"
                passing = broken or _code(error) in NOT_EXECUTED
                wrong = isinstance(error, errors.AuthenticationError)
                if broken:
                    self.close()
                    if self._reached and not wrong and isinstance(error, (errors.ConnectionError, errors.TimeoutError)):
                        self._outages.lost(self, self.settings.address, str(error))
                if not passing or wrong or time.monotonic() + pause > deadline:
                    _refuse(error, self.settings.address.text, self.settings.retry_timeout)
            time.sleep(pause)
            failures += 1

    def _connected(self) -> Any:
        if self._redis is None:
            self._redis = self._open()
        return self._redis

    def _open(self) -> Any:
        settings = self.settings
        if settings.embedded:
            from apressure import embedded

            settings = settings_from({"url": embedded.shared(settings.embedded_directory).url}, {})
        address = settings.address
        check = host_check(address.connection_class, address.connection_options)
        common: dict[str, Any] = {
            **check,
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
            asked = {**check, **address.sentinel_options, **tls, "socket_timeout": settings.connect_timeout}
            sentinel: Any = Sentinel(list(address.nodes), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
            return sentinel.master_for(address.service, **common, **tls)
        if address.nodes:
            common.pop("db", None)
            del common["retry"]
            nodes = [ClusterNode(*node) for node in address.nodes]  # type: ignore[no-untyped-call]
            return RedisCluster(startup_nodes=nodes, **common, ssl=issubclass(kind, connections.SSLConnection))
        return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **common))


def _replies(server: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands in one round trip to each server, and return the replies, errors among them."""
    pipeline = server.pipeline(transaction=False)
    for name, *words in commands:
        pipeline.execute_command(name.decode(), *words)  # redis-py needs a str to find the keys in a cluster
    return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]


def _raised(reply: Any) -> Any:
    """Return a reply, or raise it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _is_unknown_script(error: Any) -> bool:
    return isinstance(error, errors.ResponseError) and "NOSCRIPT" in f"{type(error).__name__.upper()} {error}"


def _answer(reply: Any, tag: bytes) -> Any:
    """Return the answer of a script in the reply to the request with this tag."""
    if isinstance(reply, bytes):
        mine, _, number = reply.partition(b" ")
        answer: Any = int(number)
    else:
        mine, answer = reply[0], reply[1] if len(reply) > 1 else None
    if mine != tag:
        raise errors.ConnectionError("a reply came that belongs to another request")
    return answer


def _reason(error: Exception) -> Any:
    """Return the error of the last node if no node of a cluster could be asked, otherwise the error itself."""
    if not isinstance(error, errors.RedisClusterException):
        return error
    cause = error.__cause__
    if isinstance(cause, errors.RedisClusterException):  # "Cluster mode is not enabled", also for other refusals
        cause = cause.__context__
    return cause if isinstance(cause, errors.RedisError) else error


def _refuse(error: Exception, where: str = "the server", tried: float = 0.0) -> NoReturn:
    """Raise the error of this package that corresponds to one of redis-py."""
    known: PressureError
    passing = (errors.ClusterDownError, errors.TryAgainError)
    if isinstance(error, errors.AuthenticationError):
        known = AuthenticationError(f"{error} (check username and password)", code="NOAUTH")
    elif isinstance(error, errors.ResponseError) and not isinstance(error, passing):
        known = error_from_reply(_text_of(error))
    else:
        again = f" (tried again for {tried:g} seconds)" if tried else ""
        known = ServerUnavailableError(f"cannot reach {where}: {error}{again}")
    raise known from None


def _code(error: Exception) -> str:
    """Return the error's first word, its code. (redis-py removes the ERR of a proxy.)"""
    return str(error).partition(" ")[0]


def _text_of(error: errors.ResponseError) -> str:
    """Return the server's text: redis-py removes the code if it has an exception for it."""
    codes = {"NoPermissionError": "NOPERM", "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY"}
    code = codes.get(type(error).__name__)
    text = str(error)
    return text if code is None or text.startswith(code) else f"{code} {text}"
