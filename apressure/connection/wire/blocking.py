"""A client for code without asyncio: Spark's workers.

Its connections are those of every client, on an event loop in a thread of its own. So it finds the server, follows a
failover and reconnects as they do. After a loss it sends a command again, for up to `retry_timeout` seconds, so **use
it for repeatable commands only**: a script that recognizes its repeat, or a write that sets a value.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from apressure.concurrency import background
from apressure.concurrency.loop_thread import LoopThread
from apressure.concurrency.settle import raised, set_result_once
from apressure.connection.addresses import Address
from apressure.connection.server import Node, Server
from apressure.connection.settings import Settings
from apressure.connection.wire.channel import Channel, reply_of
from apressure.connection.wire.command import NO_HEAD, Argument, Head, Packed
from apressure.connection.wire.reconnecting import ReconnectingConnection, scan
from apressure.connection.wire.script import Call, Request

R = TypeVar("R")


class Blocking:
    """A client of a server, a primary of Sentinels, or a cluster, for one thread at a time.

    Args:
        settings: The same as a `Client`'s, but not those of fakeredis.

    Attributes:
        settings: As given, without those that have no meaning here.
        id: The client's identity.

    Raises:
        TypeError: The settings are those of fakeredis.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.fake is not None:
            raise TypeError("fakeredis works in one process only: give the url of a real server")
        self.settings = settings._replace(durability=None, max_connections=None)
        self.id = settings.identity()
        self._server = _Server(self.settings)
        self._server.reached = True  # a server that does not answer yet is tried again, too
        self._connections: dict[Node, ReconnectingConnection] = {}
        self._thread: LoopThread | None = None
        self._opened = contextlib.ExitStack()

    def __repr__(self) -> str:
        return f"<Blocking {self.id!r} at {self.settings.address.text}>"

    def close(self) -> None:
        """Release the connections. The next command opens others."""
        self._thread = None
        self._opened.close()

    def run(self, call: Call, *arguments: Any) -> Any:
        """Run a script and return its answer.

        Raises:
            ServerUnavailableError: The server could not be reached for `retry_timeout` seconds.
            OutcomeUnknownError: Nor could it after it had been sent the script.
            ServerError: It refused the script.
        """
        return self.run_all([(call, arguments)])[0]

    def run_all(self, calls: Sequence[tuple[Call, Sequence[Any]]]) -> list[Any]:
        """Run scripts on any keys, each with its arguments, in one round trip to each server, and return their answers.

        Raises:
            ServerUnavailableError, OutcomeUnknownError: A server could not be reached for `retry_timeout` seconds.
            ServerError: It refused a script. The others were executed, or not.
        """
        return self._repeatedly(lambda: self._run_all(calls))

    def ask(self, *command: Any) -> Any:
        """Send one command that may be sent twice, and return its reply. (It may block for a short time.)"""
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands that may be sent twice, on any keys, in one round trip to each server. Return their replies."""
        if not commands:
            return []
        return self._repeatedly(
            lambda: _all(self._at(words[:1]).ask(name, *words, reads=True) for name, *words in commands)
        )

    def together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands that may be sent twice as one transaction, and return the replies.

        All keys belong to one queue. The first command's first argument is a key.
        """
        send = functools.partial(_transaction, [(NO_HEAD, command) for command in commands])
        return self._repeatedly(lambda: self._at(commands[0][1:2]).repeat(send, reads=True))

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
            ConnectionError: The connection broke: the transaction was executed, or not.
            ServerError: The server refused it.
        """
        push = Packed(count + 2, b"$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (len(key), key), packed)
        send = functools.partial(_transaction, [(push, ()), (NO_HEAD, (b"PEXPIRE", key, milliseconds))])
        return int(self._repeatedly(lambda: self._at((key,)).repeat(send))[0])

    def scan(self, pattern: bytes) -> list[bytes]:
        """Return the keys of strings that match the pattern, from every node."""

        async def keys_at(channel: Channel) -> set[bytes]:
            return {key async for key in scan(channel.ask, pattern, b"string")}

        async def every_node() -> list[bytes]:
            nodes = [node async for node in self._server.nodes()]
            return sorted(set().union(*[await self._to(node).repeat(keys_at, reads=True) for node in nodes]))

        return self._repeatedly(every_node)

    def _repeatedly(self, send: Callable[[], Awaitable[R]]) -> R:
        """Send commands, and again after a loss."""
        if self._thread is None:
            self._thread = self._opened.enter_context(LoopThread())
            end = functools.partial(_end, self._connections, self._server.opened)
            self._opened.callback(self._thread.run, end)
            forgotten = weakref.finalize(self, self._thread.stop, end)  # without `close`
            forgotten.atexit = False
            self._opened.callback(forgotten.detach)
        return self._thread.call(send)

    def _at(self, keys: Iterable[Any]) -> ReconnectingConnection:
        """Return the connection for these keys; without any, that of any node."""
        return self._to(self._server.node_of(keys))

    def _to(self, node: Node) -> ReconnectingConnection:
        if node not in self._connections:
            node.written = True  # READONLY comes from a failover: it is tried again, also before the first write
            self._connections[node] = ReconnectingConnection(node)
        return self._connections[node]

    async def _run_all(self, calls: Sequence[tuple[Call, Sequence[Any]]]) -> list[Any]:
        replies: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in calls]
        for (call, arguments), reply in zip(calls, replies, strict=True):
            request = Request(call, [*arguments], functools.partial(set_result_once, reply), resend=True)
            self._at(call.keys).send(request)
        return [raised(await reply) for reply in replies]


class _Server(Server):
    """A server, or a cluster with one connection to each of its nodes: not one for each slot.

    Attributes:
        opening: What opens the connections, by their addresses.
        opened: The connections that were opened last.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.opening: dict[str, background.Shared[Channel]] = {}
        self.opened: dict[str, Channel] = {}

    async def open(self, address: Address, response_timeout: float) -> Channel:
        where = address.text
        if where not in self.opened or not self.opened[where].up:
            work = functools.partial(self._open, address, response_timeout)
            await self.opening.setdefault(where, background.Shared(work, "connecting to a server")).wait()
        return self.opened[where]

    async def _open(self, address: Address, response_timeout: float) -> Channel:
        channel = self.opened[address.text] = await super().open(address, response_timeout)
        return channel


def _end(connections: dict[Node, ReconnectingConnection], opened: dict[str, Channel]) -> None:
    for connection in connections.values():
        connection.end()
    for channel in opened.values():
        channel.abort("the client was closed")
    connections.clear()
    opened.clear()


async def _all(replies: Iterable[Awaitable[Any]]) -> list[Any]:
    return [raised(reply) for reply in await asyncio.gather(*replies, return_exceptions=True)]


async def _transaction(commands: Sequence[tuple[Head, Sequence[Argument]]], channel: Channel) -> list[Any]:
    """Send commands between MULTI and EXEC, and return their replies."""
    words = [(NO_HEAD, (b"MULTI",)), *commands, (NO_HEAD, (b"EXEC",))]
    replies = await _all(reply_of(channel, command, head) for head, command in words)
    return [raised(reply) for reply in replies[-1]]
