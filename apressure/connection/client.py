"""A client: one identity, one connection for steps, and the waiters' connections, shared by any number of queues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Protocol, Self, Unpack

from apressure.connection.link import Link
from apressure.connection.server import Place, Server
from apressure.connection.settings import ClientOptions, OtherOptions, resolve
from apressure.connection.settle import settled
from apressure.exceptions import ClientClosedError, PressureError


class Dependent(Protocol):
    """A queue, as its client knows it."""

    def client_closed(self, error: PressureError) -> None:
        """Fail everything that waits, and let go of connections."""


class Client:
    """A client of one server, of a primary that Sentinels watch, or of a cluster.

    Constructing it does no I/O: it connects when the first operation needs it, or with `async with`. It belongs to
    the event loop that it was first used on, and to the process.

    Args:
        url: `redis://…`, `redis+sentinel://…`, `redis+cluster://…`, `unix://…`, `embedded://`, …; see `ClientOptions`.
        **options: See `OtherOptions`.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option is of no use; the message says why.
    """

    def __init__(self, url: str | None = None, **options: Unpack[OtherOptions]) -> None:
        all_options: ClientOptions = {**options, "url": url}
        self.settings = resolve(all_options)
        self.server = Server(self.settings)
        self._links: dict[Place, Link] = {}
        self.link = self._link_at(self.server.place_of(()))
        self._dependents: set[Dependent] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False

    @property
    def id(self) -> str:
        """Who this client is in `:producer` and `:consumer` (specification, "Clients")."""
        return self.settings.client_id

    @property
    def prefix(self) -> str:
        """What every key of this client's queues begins with."""
        return self.settings.prefix

    def __repr__(self) -> str:
        return f"<Client {self.id!r} at {self.server.address}>"

    async def __aenter__(self) -> Self:
        self.check()
        try:
            await self.link.connected()
        except asyncio.CancelledError:
            await self.aclose()  # the block is never entered, so nobody else would release the connection
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release the connections. Replies on their way are awaited for up to `settle_timeout` seconds.

        Operations that still wait raise ClientClosedError. Closing twice is allowed. When cancelled, the connections
        are released all the same.
        """
        if self._closed:
            return
        self._closed = True
        for dependent in list(self._dependents):
            dependent.client_closed(ClientClosedError("the client was closed while the operation waited"))
        if not self.here:
            return  # never used; or its connections are another loop's, or the parent's: not ours to touch
        endings = asyncio.gather(*self._endings, return_exceptions=True)
        try:
            await asyncio.wait((endings,), timeout=self.settings.settle_timeout)
        except asyncio.CancelledError:
            await settled(endings, self.settings.settle_timeout)
            raise
        finally:
            links = list(self._links.values())
            try:
                await asyncio.gather(*(link.aclose(self.settings.settle_timeout) for link in links))
            finally:
                for link in links:
                    link.end()  # where a cancellation came before the task of its aclose had begun

    def check(self) -> None:
        """Raise a clear error where the client cannot be used: closed, another event loop, after a fork, no asyncio.

        Raises:
            ClientClosedError: It was closed.
            RuntimeError: It is used on another event loop or in another process than before, or without asyncio.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("apressure needs a running asyncio event loop (trio is not supported)") from None
        pid = os.getpid()
        if self._loop is loop and self._pid == pid and not self._closed:
            return
        if self._closed:
            raise ClientClosedError("the client was closed; open a new one")
        if self._loop is None:
            self._loop, self._pid = loop, pid
        elif self._pid != pid:
            raise RuntimeError("this client was opened before a fork: open a new one in the child process")
        else:
            raise RuntimeError("this client belongs to another event loop: open one client for each event loop")

    @property
    def here(self) -> bool:
        """This is the event loop and the process that the client belongs to."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    def link_for(self, keys: Iterable[bytes]) -> Link:
        """The connection for steps on these keys: one for all, in a cluster one for each slot.

        Raises:
            ValueError: The server is a cluster, and the keys are in several slots.
        """
        return self._link_at(self.server.place_of(keys))

    def _link_at(self, place: Place) -> Link:
        if place not in self._links:
            self._links[place] = Link(place)
            self.server.may_rest(place, self._links[place].rest)
        return self._links[place]

    def add(self, dependent: Dependent) -> None:
        """A queue begins to use this client."""
        self._dependents.add(dependent)

    def first(self, ending: asyncio.Task[None]) -> None:
        """The end of an operation that has to come before the end of the connections."""
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def discard(self, dependent: Dependent) -> None:
        """A queue has ended."""
        self._dependents.discard(dependent)

    async def queues(self) -> list[str]:
        """Return the names of the queues that exist under the client's prefix, sorted.

        A queue exists where its `:bound` does (specification, Create). The whole key space is scanned, in portions.
        """
        self.check()
        head, tail = f"{self.prefix}:".encode(errors="surrogateescape"), b":bound"
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in head) + b"*" + tail
        names: set[str] = set()
        async for key in self.scan(pattern, b"string"):
            names.add(key[len(head) : -len(tail)].decode(errors="surrogateescape"))
        return sorted(names)

    async def scan(self, pattern: bytes, kind: bytes) -> AsyncIterator[bytes]:
        """Look for keys of a type, on every node; one may come more than once."""
        async for place in self.server.places():
            link = self._link_at(place)
            cursor = b"0"
            while True:
                cursor, keys = await link.ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 1000, b"TYPE", kind)
                for key in keys:
                    yield key
                if cursor == b"0":
                    break
