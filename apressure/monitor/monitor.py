"""`Monitor`: watches queues for a display, and keeps what it saw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from apressure import validation
from apressure.concurrency import background
from apressure.core.history import Minute
from apressure.monitor.finding import Finder, server_at
from apressure.monitor.recorder import Recorder
from apressure.monitor.search import QueuePattern
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.reader import Reader
from apressure.telemetry.sampler import Sample, Sampler
from apressure.telemetry.states import State

_SHARE: Final = 0.2
"""Of the time, while it searches, it may scan a server's keys."""


class Seen(NamedTuple):
    """What a monitor knows of a queue.

    Attributes:
        address: Its address.
        queue: The object that looks at it.
        sampler: What looks, and remembers.
        sample: What the latest look saw.
    """

    address: QueueAddress
    queue: Any
    sampler: Sampler
    sample: Sample

    @property
    def state(self) -> State:
        """What matters most."""
        return self.sample.states[0]

    @property
    def server(self) -> str:
        """Where it is, without a password; "" for a directory."""
        client = getattr(self.queue, "client", None)
        return "" if client is None else str(client.server.address)

    @property
    def named(self) -> str:
        """The same as its URL names it, also after a failover; see `server_at`."""
        client = getattr(self.queue, "client", None)
        return "" if client is None else str(client.settings.address.text)


class Monitor:
    """Watches queues of any kind, on any number of servers and in directories, while the block is open.

    A look at a queue is a round trip or two. There are at most 50 a second, so a server with a thousand queues spends
    1 % of a core on them, and each of a thousand queues is looked at every twenty seconds. Those that are shown come
    first.

    Args:
        *queues: Addresses and patterns, such as `orders`, `events:*` or `redis://host:6379/0/*`; none for all queues of
            the server. What has one of `*?[` is a pattern.
        url: The server of addresses that name none; None for the environment's.
        prefix: The prefix of all keys of AsyncQueues; None for the environment's.
        interval: Seconds between two looks at a queue.
        timeout: Seconds for a look.
        history: Write what it sees, a short record a minute for each queue that is not idle, so that charts need no
            other service: see `history` of a queue.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """

    def __init__(
        self, *queues: str, url: str | None = None, prefix: str | None = None, interval: float = 2.0,
        timeout: float = 5.0, history: bool = True,
    ) -> None:  # fmt: skip
        self.reader = Reader(
            validation.seconds(interval, "interval", above=True), validation.seconds(timeout, "timeout", above=True)
        )
        self.finder = Finder(url, prefix, _SHARE)
        self._named: dict[QueueAddress, Any] = {}
        self._patterns: list[QueuePattern] = []
        self._samplers: dict[int, Sampler] = {}
        self._recorder = Recorder(self.reader, writes=history)
        self._urls: set[str | None] = set()
        self._running: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        for queue in queues or ("*",):
            if any(sign in queue for sign in "*?["):
                pattern = QueuePattern(queue, self, self.finder)
                self._patterns.append(pattern)
                self.reader.add(pattern)
                self._note_urls(self.finder.read_pattern(queue))
            else:
                self._named[address := self.finder.read(queue)] = None
                self._note_urls([address])

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        await self._stack.__aenter__()
        await self._stack.enter_async_context(self.finder)
        for address in self._named:
            self._named[address] = self.finder.open(address)
            self._stack.push_async_callback(self._named[address].aclose)
            self.add(self._named[address])
        for pattern in self._patterns:
            self._stack.push_async_callback(pattern.aclose)
        self._running = background.start(self.reader.run(), "watching queues")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it. Cancelled, it waits until all connections are closed all the same."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        await self._recorder.aclose()
        await self._stack.__aexit__(kind, error, traceback)

    def add(self, queue: Any) -> None:
        """Watch this queue, too."""
        self._samplers[id(queue)] = self._recorder.add(queue)

    def discard(self, queue: Any) -> None:
        """Watch this queue no more."""
        self._samplers.pop(id(queue), None)
        self._recorder.discard(queue)

    async def minutes(self, seen: Seen) -> list[Minute]:
        """Return the last day of a queue: what others have written, and what this monitor saw."""
        return await self._recorder.minutes(seen.sampler)

    async def look(self) -> None:
        """Search, and look at every queue once."""
        await asyncio.gather(*(pattern.search() for pattern in self._patterns))
        await self.reader.sample()

    def seen(self) -> list[Seen]:
        """Return the queues that it has looked at, those that need somebody first, and then by address."""
        found = dict(self._named)
        for pattern in self._patterns:
            found.update(pattern.queues)
        seen = filter(None, (self._seen(address, queue) for address, queue in found.items()))
        return sorted(seen, key=lambda one: (-one.state.severity, str(one.address)))

    @property
    def known(self) -> int:
        """How many queues it watches, those included that it has not looked at yet."""
        return len(self._samplers)

    @property
    def searched(self) -> bool:
        """Whether it has searched for all patterns."""
        return all(pattern.searched for pattern in self._patterns)

    def find(self, address: QueueAddress, server: str = "") -> Seen | None:
        """Return what it knows of a queue; None of one that it has not looked at.

        Args:
            address: The queue. With a URL, only on that server.
            server: The `server` of what is returned; "" for any.

        Raises:
            TypeError, ValueError: The URL is none of a server.
        """
        named = None if address.url is None else server_at(address.url)
        places = [address._replace(url=url) for url in {None, *self._urls}]
        for queues in (self._named, *(pattern.queues for pattern in self._patterns)):
            for place in places:
                seen = self._seen(place, queues[place]) if place in queues else None
                if seen and server in ("", seen.server) and named in (None, seen.named):
                    return seen
        return None

    @property
    def many_servers(self) -> bool:
        """Whether it watches queues of several servers: then an address alone does not say which queue it is."""
        return len(self._urls) > 1

    def _note_urls(self, addresses: Iterable[QueueAddress]) -> None:
        self._urls.update(address.url for address in addresses if address.kind != "files")

    def _seen(self, address: QueueAddress, queue: Any) -> Seen | None:
        sampler = self._samplers.get(id(queue))
        return None if sampler is None or sampler.latest is None else Seen(address, queue, sampler, sampler.latest)

    def failures(self) -> list[str]:
        """Return why searches have failed, for people."""
        return [f"{pattern.name}: {pattern.error}" for pattern in self._patterns if pattern.error is not None]

    def errors(self) -> list[Exception]:
        """Return why searches have failed, as errors."""
        return [pattern.error for pattern in self._patterns if pattern.error is not None]
