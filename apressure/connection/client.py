"""A client: one identity, one connection for steps, and the waiters' connections, shared by any number of queues."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Unpack

from apressure import logs, validation
from apressure.concurrency.settle import left_of, wait_for_answer
from apressure.connection.renewer import Renewer
from apressure.connection.server import Node, Server
from apressure.connection.settings import MAX_NAME, ClientOptions, OtherOptions, settings_from
from apressure.connection.waiting.rounds import Rounds
from apressure.connection.wire.reconnecting import ReconnectingConnection, scan
from apressure.connection.wire.script import Script
from apressure.core.objects import FAREWELL, SharedClient


class Client(SharedClient):
    """A client of one server, of a primary that Sentinels watch, or of a cluster.

    Constructing it does no I/O: it connects when the first operation needs it, or with `async with`. It belongs to
    the event loop that it was first used on, and to the process.

    Args:
        url: `redis://…`, `redis+sentinel://…`, `redis+cluster://…`, `unix://…`, `embedded://`, …; see `ClientOptions`.
        **options: See `OtherOptions`.

    Attributes:
        scan_share: The part of the time in which `queues` and `scan` may keep a server busy; 1 for no pauses.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option is invalid; the message says why.
    """

    def __init__(self, url: str | None = None, **options: Unpack[OtherOptions]) -> None:
        super().__init__()
        all_options: ClientOptions = {**options, "url": url}
        self.settings = settings_from(all_options)
        self.server = Server(self.settings)
        self.renewer = Renewer(self.server)
        self._connections: dict[Node, ReconnectingConnection] = {}
        self.connection: ReconnectingConnection = self._connection_at(self.server.node_of(()))
        self._rounds: dict[ReconnectingConnection, Rounds] = {}
        self.scan_share = 1.0

    @functools.cached_property
    def id(self) -> str:
        """The value of `:producer` and `:consumer` while this client holds the role (specification, "Clients")."""
        return self.settings.identity()

    @property
    def prefix(self) -> str:
        """The prefix of every key of this client's queues."""
        return self.settings.prefix

    @property
    def replicas(self) -> int | None:
        """How many replicas must confirm each write.

        With `durability="all"` it is None until the client has connected and counted them. In a cluster it is the
        smallest number of all slots that were used so far.
        """
        counted = [connection.node.replicas for connection in self._connections.values()]
        return min((replicas for replicas in counted if replicas is not None), default=None)

    def __repr__(self) -> str:
        return f"<Client {self.id!r} at {self.server.address}>"

    async def _release(self) -> None:
        for rounds in self._rounds.values():
            rounds.end()
        logs.closing(len(self._connections))
        unfinished = asyncio.gather(*self._unfinished, return_exceptions=True)
        loop, timeout = asyncio.get_running_loop(), left_of(self.settings.settle_timeout)
        end = loop.time() + timeout
        try:
            await wait_for_answer(unfinished, timeout, timeout)
        finally:
            connections, timeout = list(self._connections.values()), max(0.0, end - loop.time())
            try:
                await asyncio.gather(self.renewer.aclose(timeout), *(one.aclose(timeout) for one in connections))
            finally:
                for connection in connections:
                    connection.end()  # its aclose does not begin if a cancellation comes first
            await wait_for_answer(unfinished, FAREWELL, FAREWELL)

    def connection_for(self, keys: Iterable[bytes]) -> ReconnectingConnection:
        """Return the connection for steps on these keys: one for all, in a cluster one for each slot.

        Raises:
            ValueError: The server is a cluster, and the keys are in several slots.
        """
        return self._connection_at(self.server.node_of(keys))

    def _connection_at(self, node: Node) -> ReconnectingConnection:
        if node not in self._connections:
            self._connections[node] = ReconnectingConnection(node)
            self.server.add_reclaimer(self._connections[node].close_if_idle, node)
        return self._connections[node]

    def rounds_on(self, connection: ReconnectingConnection, script: Callable[[], Script]) -> Rounds:
        """Return the looks at the queues in which this client waits, one for each connection for steps.

        Args:
            connection: The connection for steps.
            script: Returns the script that looks.
        """
        return self._rounds.setdefault(connection, Rounds(connection, script))

    async def queues(self) -> list[str]:
        """Return the names of the queues that exist under the client's prefix, sorted.

        A queue exists if its `:bound` does (specification, Create). Keys with an empty name, or a name that is too long
        for a queue, are left out. This scans all keys of the server, in chunks.
        """
        self.check()
        head, tail = f"{self.prefix}:".encode(errors="surrogateescape"), b":bound"
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in head) + b"*" + tail
        names: set[str] = set()
        async for key in self.scan(pattern, b"string"):
            if len(head) + len(tail) < len(key) <= MAX_NAME + len(tail):
                names.add(key[len(head) : -len(tail)].decode(errors="surrogateescape"))
        return sorted(names)

    async def scan(self, pattern: bytes, kind: bytes) -> AsyncIterator[bytes]:
        """Yield keys of a type that match, from every node; a key may come more than once."""
        async for node in self.server.nodes():
            async for key in scan(self._connection_at(node).ask, pattern, kind, self.scan_share):
                yield key


def client_of(kind: type, client: Client | None, options: ClientOptions) -> Client:
    """Return the client of a queue: the one that was given, or one of its own.

    Args:
        kind: The class of the queue. Its keyword arguments are options, too.
        client: The client that it shares; None for one of its own.
        options: The options of a client of its own.

    Raises:
        TypeError: An option is unknown or of the wrong type, or there are options beside a client.
        ValueError: An option is invalid.
    """
    own = kind.__init__.__kwdefaults__  # type: ignore[misc] # the class is one of ours
    validation.known(options, (*own, *ClientOptions.__annotations__))
    if client is None:
        return Client(**options)
    if options:
        raise TypeError(f"give either client= or {', '.join(options)}: the client has its own settings")
    return client
