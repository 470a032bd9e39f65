"""A queue in a directory, and what is known of it: opened, told of every change, and swept.

The rule of this module: it opens, looks and tidies up, and moves no message.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Final

from apressure.exceptions import QueueDoesNotExistError
from apressure.files import marks, names
from apressure.files.directory import Directory
from apressure.files.index import Index
from apressure.files.options import Settings
from apressure.files.waits import Outlook
from apressure.files.watcher import Listed, Notified, watch
from apressure.files.worker import Worker

ABANDONED: Final = 30.0
"""Seconds after which a message that is still being written, and is not locked, is one whose publisher has died. One
that lives, on a file system without locks, publishes it once more under another name."""

_ROUND: Final = 1.0
"""Seconds between two looks at what nobody tells of: is the directory there at all, and what have publishers left."""


class Store:
    """What the steps of one queue object work on.

    Args:
        settings: What it was told.

    Attributes:
        index: What is in the directory.
        directory: The directory.
        worker: What may take long is done there.
        watcher: What tells of changes; None before the first refresh.
        own: What this object is writing.
        noted: The newest key that the directory knew of when it was listed.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._parent = settings.parent.absolute()  # the process may go elsewhere
        self.index = Index()
        self.directory = self.beside(settings.name)
        self.worker = Worker(settings.threads)
        self.watcher: Notified | Listed | None = None
        self.own: set[int] = set()
        self.noted = -1
        self._listing = asyncio.Lock()
        self._round = 0.0

    def beside(self, name: str) -> Directory:
        """Return a directory beside this one, or this one; it is not opened."""
        return Directory(self._parent, name, self.settings.max_message_size, self.settings.fsync)

    def close(self) -> None:
        """Let go of descriptors, after what the thread is doing."""
        self.worker.close(self.release)

    def release(self) -> None:
        """Let go of descriptors at once."""
        if self.watcher is not None:
            self.watcher.close()
        self.directory.close()

    def fileno(self) -> int:
        """Return what is readable when something has changed; -1 for nothing, or for nothing before a listing."""
        return -1 if self.watcher is None or self.watcher.stale else self.watcher.fileno()

    @property
    def notified(self) -> bool:
        """The kernel tells of changes."""
        return self.watcher is not None and self.watcher.ordered

    @property
    def now(self) -> int:
        """The time in microseconds since 1970."""
        return int(self.settings.clock() * 1e6)

    async def refresh(self) -> None:
        """Tell the index of everything that has changed until now; open the queue, the first time.

        Raises:
            QueueDoesNotExistError: The directory is not there, or not there any more.
            StorageError: It cannot be opened, watched or listed.
        """
        watcher = self.watcher
        if watcher is None:
            async with self._listing:
                if self.watcher is None:
                    self.watcher = await self.worker.in_thread(self._open, undo=lambda _: self.release())
                    self.worker.always |= not self.watcher.ordered
                watcher = self.watcher
        watcher.drain()
        if watcher.gone:
            self.directory.check()
            watcher.gone = False
        if watcher.stale:
            async with self._listing:
                while watcher.stale:
                    bring = await self.worker.in_thread(watcher.listed, self._list)
                    bring()
                    if not watcher.ordered:
                        break  # whoever asked meanwhile lists for itself
        if self.index.empty or self._is_round():
            self.directory.check()
        if self._is_round():
            self._round = self.settings.clock()
            await self._sweep()

    def _is_round(self) -> bool:
        return abs(self.settings.clock() - self._round) >= _ROUND

    def went(self, filename: str) -> None:
        """A name went, by what this object did.

        After a call in the thread it may be back by now, and told of: then what the kernel tells says it all.
        """
        watcher = self.watcher
        if self.worker.always and watcher is not None and watcher.ordered:
            watcher.drain()
            if not watcher.stale:
                return
        self.index.discard(filename)

    def _open(self) -> Notified | Listed:
        settings = self.settings
        self.directory.open(settings.create)
        return watch(self.index, self.directory.fileno(), self.directory.path, settings.name, settings.notify)

    def _list(self) -> list[str]:
        found = self.directory.list()
        self.noted = marks.newest(self.directory.fileno())
        return found

    async def _sweep(self) -> None:
        """Delete what publishers left that died while they wrote."""
        now, wall = time.monotonic(), self.settings.clock()
        for key, seen in list(self.index.unfinished.items()):
            if key not in self.own and max(now - seen, wall - names.time_of(key) / 1e6) > ABANDONED:
                filename = names.new_name(key)
                if await self.worker.do(self.directory.sweep, filename):
                    self.index.discard(filename)

    def look(self, passed: bool) -> Outlook:
        """Say who of those who wait may try again; see `Waits`."""
        index, watcher, settings = self.index, self.watcher, self.settings
        assert watcher is not None
        if watcher.ordered:
            watcher.drain()
            if passed:
                try:
                    self.directory.check()
                except QueueDoesNotExistError:
                    watcher.gone = True
            if watcher.gone:
                return Outlook(sys.maxsize, sys.maxsize, _ROUND)
            again = _ROUND
        else:
            again = settings.poll_interval * random.uniform(0.8, 1.2)
        tries = int(watcher.stale if watcher.ordered else passed)
        messages, room = index.waiting, 0
        expiry = index.next_expiry()
        if expiry is not None:
            left = (expiry[0] - self.now) / 1e6
            if left <= 0:
                messages = max(messages, 1)  # whoever tries gives it back first
            else:
                again = min(again, left + 0.001)
        if settings.capacity is not None:
            room = index.room(settings.capacity)
            now = time.monotonic()
            if self._is_round() and any(
                now - seen > ABANDONED and key not in self.own for key, seen in index.unfinished.items()
            ):
                room = max(room, 1)  # whoever tries sweeps first
        return Outlook(max(messages, tries), max(room, tries), again)
