"""A pattern as something to look at: from time to time, it finds the queues whose names match."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any, Final, Protocol

from apressure.concurrency import background
from apressure.exceptions import PressureError
from apressure.monitor.finding import Finder
from apressure.queue_addresses import QueueAddress

_REST: Final = 30.0
"""Seconds between two searches, at least: a search looks at all keys of the server."""

_RESTS: Final = 20
"""A search that took so many seconds is followed by so many times as many without one."""

_AT_A_TIME: Final = 50
"""So many queues are opened before other tasks have their turn."""


class Shown(Protocol):
    """What shows queues that were found."""

    def add(self, queue: Any) -> object:
        """Show this queue, too."""

    def discard(self, queue: Any) -> None:
        """Show this queue no more."""


class QueuePattern:
    """A pattern as something to look at: the queues whose names match are shown, and those that are gone are not.

    Args:
        pattern: The pattern.
        shown: What shows them.
        finder: Finds and opens them.

    Attributes:
        name: The pattern without its server, whose URL may have a password.
        queues: The queues that were found.
        error: What the latest search has failed with.
    """

    def __init__(self, pattern: str, shown: Shown, finder: Finder) -> None:
        self.name = str(finder.read_pattern(pattern)[0])
        self.queues: dict[QueueAddress, Any] = {}
        self.error: Exception | None = None
        self._pattern = pattern
        self._shown = shown
        self._finder = finder
        self._next = -math.inf
        self._searching: asyncio.Task[None] | None = None

    @property
    def searched(self) -> bool:
        """Whether a search has ended."""
        return self._next > -math.inf

    async def statistics(self) -> object:
        """Begin to search, if it is time; raise what the latest search has failed with."""
        if self._searching is None and time.monotonic() >= self._next:
            await asyncio.wait((self._begin(),), timeout=1.0)  # most servers have few keys
        if self.error is not None:
            raise self.error
        return self

    async def search(self) -> None:
        """Find the queues that there are now. An error is kept for `statistics`, and what was found stays."""
        await asyncio.wait((self._searching or self._begin(),))

    def _begin(self) -> asyncio.Task[None]:
        self._searching = background.start(self._search(), "searching for queues")
        return self._searching

    async def _search(self) -> None:
        began = time.monotonic()
        try:
            found = set(await self._finder.find(self._pattern))
            self.error = None
            await self._show(found)
        except Exception as error:  # noqa: BLE001 (it is shown as that of a look)
            self.error = error
        finally:
            ended = time.monotonic()
            rest = max(_REST, _RESTS * (ended - began)) if self.error is None else 0.0
            self._next, self._searching = ended + rest, None

    async def aclose(self) -> None:
        """End a search that is under way, and close the queues that were found."""
        if (searching := self._searching) is not None:
            searching.cancel()
            await asyncio.wait((searching,))
        for queue in self.queues.values():
            with contextlib.suppress(PressureError):
                await queue.aclose()

    async def _show(self, found: set[QueueAddress]) -> None:
        for number, address in enumerate(found - self.queues.keys()):
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            with contextlib.suppress(ValueError):  # no name of a queue
                self.queues[address] = self._finder.open(address)
                self._shown.add(self.queues[address])
        for address in self.queues.keys() - found:
            queue = self.queues.pop(address)
            self._shown.discard(queue)
            await queue.aclose()
