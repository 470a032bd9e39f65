"""A queue's directory and its index: opened, kept current, and swept.

The rule of this module: it moves no message.
"""

from __future__ import annotations

import asyncio
import errno
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from apressure import logs
from apressure.core.counts import Counts
from apressure.exceptions import StorageError
from apressure.files.options import Settings
from apressure.files.storage import inotify, names
from apressure.files.storage.directory import Directory
from apressure.files.storage.index import Index
from apressure.files.storage.messages import contents
from apressure.files.storage.watcher import Listed, Notified, Watcher, is_remote
from apressure.files.storage.worker import Worker

ABANDONED: Final = 30.0
"""Seconds after which a `.new` file is deleted if its publisher is known to have died."""

CLOSING: Final = 1.0
"""The same when the queue is closed, for FileQueue's own: consumers wait for them before they end."""

FORGOTTEN: Final = 3600.0
"""The same if nothing shows whether its publisher lives: it may be on another machine."""

_LATEST: Final = names.FIRST_MICROSECONDS // 1000 - 1
"""The last second that a name in milliseconds can say, in the year 5138."""

_WRONG_CLOCK: Final = f"the clock is wrong: clock() must return the seconds since 1970, from 0 to {_LATEST},"

_FORGET: Final = 60.0
"""Seconds after which the reason of a message that is gone is deleted."""

_ROUND: Final = 1.0
"""Seconds between two checks of what no notification tells: is the directory there, and is a publisher late?"""

_ALL: Final = (sys.maxsize,) * 4
"""All tasks of each line may try again."""

Operation = Callable[[], AbstractContextManager[None]]
"""Returns the context of an operation."""


class Store:
    """The directory of one queue object, with all that its steps use.

    Attributes:
        settings: The queue's options.
        auto_create: Whether puts and takes make a missing directory.
        index: The messages in the directory, in memory.
        directory: The directory.
        worker: The thread for calls that may take long.
        watcher: Keeps the index current, once the directory is open.
        own: The keys of messages that this object is writing.
        counts: What this object has done so far.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.auto_create = settings.auto_create
        self.index = Index()
        # The process may change its working directory.
        self.directory = Directory(settings.parent.absolute(), settings.name, settings.max_message_size, settings.fsync)
        self.worker = Worker(settings.threads)
        self.watcher: Watcher = Watcher()
        self.own: set[int] = set()
        self.counts = Counts()
        self._local = False
        self._listing = asyncio.Lock()
        self._round = 0.0
        self._orphans: set[int] = set()
        self._looked = 0.0

    def beside(self, name: str) -> Directory:
        """Return the directory of another queue beside this one, or this one's once more, not opened."""
        return Directory(self.directory.path.parent, name, self.settings.max_message_size, self.settings.fsync)

    def close(self) -> None:
        """Stop watching, and close the descriptor when the thread has ended its calls."""
        self.watcher.close()
        self.worker.close(self.directory.close)

    def release(self) -> None:
        """Stop watching, and close the descriptor at once."""
        self.watcher.close()
        self.directory.close()

    @property
    def bound(self) -> int:
        """The most messages that may be there: the option, or else the directory's; 0 for no bound."""
        return self.index.bound if self.settings.bound is None else self.settings.bound

    def time(self) -> float:
        """Return the seconds since 1970, by the clock that was given.

        Raises:
            TypeError, ValueError: The clock returns no number, or one that a file's name cannot express.
        """
        now = self.settings.clock()
        if not isinstance(now, (int, float)):
            raise TypeError(f"{_WRONG_CLOCK} not {type(now).__name__}")
        if not 0 <= now <= _LATEST:  # NaN is neither
            raise ValueError(f"{_WRONG_CLOCK} not {now}")
        return now

    @property
    def now(self) -> int:
        """The time in microseconds since 1970."""
        return int(self.time() * 1e6)

    async def open(self, create: bool = False) -> Watcher:
        """Open the directory, unless it is open.

        Args:
            create: Make it if it is missing and the options allow that.

        Raises:
            QueueDoesNotExistError: It is missing.
            StorageError: It cannot be opened or made.
        """
        async with self._listing:
            if not self.watcher.opened:
                create = create and self.auto_create
                self._local = await self.worker.in_thread(self._open, create, undo=lambda _: self.directory.close())
                self.worker.always |= not self._local
                self.watcher = self._watch()
            return self.watcher

    async def reopen(self) -> None:
        """Forget a directory that was deleted, so that the next operation opens the one that has its name now."""
        async with self._listing:
            if self.watcher.opened and not self.directory.exists():
                self.release()
                self.watcher = Watcher()
                self.index.clear()

    async def refresh(self, create: bool = False) -> Watcher:
        """Bring the index up to date. The first time, open the queue; for `create` see `open`.

        Returns:
            What keeps it up to date.

        Raises:
            QueueDoesNotExistError: The directory does not exist, or was deleted.
            StorageError: It cannot be opened or listed, or has a state file of a later version.
        """
        watcher = self.watcher if self.watcher.opened else await self.open(create)
        watcher.drain()
        is_round = self._is_round()
        if watcher.gone:
            self.directory.check()
            watcher.close()  # the kernel may have ended the watch
        if watcher.gone or (is_round and self._local and not watcher.ordered):
            watcher = self.watcher = self._watch()
        if watcher.stale:
            await self._list_all()
        if is_round or not (self.index.waiting or self.index.in_flight):
            self.directory.check()
        if is_round:
            self._round = self.time()
            await self._sweep()
        if self.index.unknown is not None:
            raise StorageError(
                f"cannot use the queue {self.settings.name!r}: this version does not understand the file "
                f"{self.index.unknown!r} in {self.directory.path}. Use a newer version, or delete the file if it is a "
                "mistake",
                name=self.settings.name,
                errno=errno.EINVAL,
            )
        return self.watcher

    async def _list_all(self) -> None:
        async with self._listing:
            while (watcher := self.watcher).stale:
                watcher.prepare()
                watcher.bring(*await self.worker.in_thread(self._list, watcher))
                if not watcher.ordered:
                    break  # tasks that asked meanwhile make their own listing

    def _is_round(self) -> bool:
        return abs(self.time() - self._round) >= _ROUND

    def went(self, filename: str) -> None:
        """Note that this object has removed a name.

        After a call in the thread, another client may have brought the name back. Then the notifications decide.
        """
        if self.worker.always and self.watcher.ordered:
            self.watcher.drain()
            if not self.watcher.stale:
                return
        self.index.discard(filename)

    def _open(self, create: bool) -> bool:
        """Open the directory. Returns whether the kernel tells of all its changes, by whatever process."""
        self.directory.open(create)
        if self.settings.notify is not None:
            return self.settings.notify
        return sys.platform == "linux" and not is_remote(self.directory.fileno())

    def _watch(self) -> Watcher:
        """Watch the directory; list it for now, if the kernel has no watch left."""
        if self._local:
            try:
                return Notified(self.index, self.directory.fileno(), self.directory.path, self.own)
            except OSError as error:
                self.directory.check()  # it may have been deleted since
                logs.not_watched(self.settings.name, error, inotify.to_do(error), self.settings.poll_interval)
        return self.watcher if isinstance(self.watcher, Listed) else Listed(self.index)

    def _list(self, watcher: Watcher) -> tuple[Index, set[str]]:
        """Make a full listing, in the thread. Returns its index, and the names of what is not a file."""
        watcher.begin()
        files, others = self.directory.list()
        index = Index.of(files, time.monotonic())
        if index.drained and not watcher.ordered:  # it may have missed a delayed one that was being renamed
            files, others = self.directory.list()
            index = Index.of(files, time.monotonic())
        index.newest = max(index.newest, contents.newest_noted(self.directory.fileno()))
        return index, others

    async def _sweep(self) -> None:
        """Delete the files of publishers that died while they wrote."""
        for key, age in self._late(self.time()):
            filename, late = names.new_name(key), age > FORGOTTEN
            do = self.worker.in_thread if late else self.worker.do  # it may look at all processes
            if await do(self.directory.sweep, filename, self._local, late, age <= ABANDONED):
                self.index.discard(filename)

        if self.index.reasons and abs((now := time.monotonic()) - self._looked) >= _FORGET:
            before, self._looked = self._orphans, now
            self._orphans = self.index.orphans()
            if gone := self._orphans & before:  # others died before they could, or do not know of reasons
                self.index.reasons -= gone
                await self.worker.in_thread(self.directory.forget_orphans, gone)

    def _late(self, wall: float) -> list[tuple[int, float]]:
        """Return the messages whose publishers may have died, and for how many seconds they have been written.

        `wall` is the time in seconds since 1970.
        """
        limit = min(CLOSING, ABANDONED) if self.index.closed else ABANDONED
        now, unfinished = time.monotonic(), self.index.unfinished.items()
        ages = [(key, max(now - seen, wall - names.time_of(key) / 1e6)) for key, seen in unfinished]
        return [(key, age) for key, age in ages if age > limit and key not in self.own]

    def look(self, passed: bool) -> tuple[float, tuple[int, ...]]:
        """Say how many waiting tasks may try again.

        Args:
            passed: It is called since time has passed, and not since something has changed.

        Returns:
            Seconds after which to look again, even if nothing changes until then, and how many of those that wait for
            a message, for room, for the end of what is in flight, and for the close; see `Waits`.
        """
        index, watcher = self.index, self.watcher
        try:
            current, is_round = self.now, self._is_round()
        except Exception:  # noqa: BLE001 - of the clock: each waiting task tries again, and raises it
            return _ROUND, _ALL
        if watcher.ordered:
            watcher.drain()
            if passed and not self.directory.exists():
                watcher.gone = True
            tries, again = int(watcher.stale), _ROUND
        else:
            tries, again = int(passed), self.settings.poll_interval * random.uniform(0.8, 1.2)
        if watcher.gone or index.unknown is not None:  # each opens it again, or raises the error
            return _ROUND, _ALL
        bound, messages = self.bound, index.waiting
        room = index.room(bound) if bound else 0
        expiry = index.taken.first()
        for when in (expiry[0] if expiry else None, index.delayed.next_try()):
            if when is None:
                continue
            left = (when - current) / 1e6
            if left <= 0:
                messages = max(messages, 1)  # the task that tries brings it back into the line first
            else:
                again = min(again, left + 0.001)
        late = is_round and (bound or index.closed) and self._late(current / 1e6)
        if late or index.delayed.are_due(current):
            # The task that tries sweeps first, or brings into the line, for other programs, what fills the queue.
            messages, room = max(messages, 1), max(room, 1)
        ended = sys.maxsize if index.drained else 0
        if index.paused:
            messages = ended = 0
        closed = sys.maxsize if index.closed else 0
        return again, (
            max(messages, tries, ended),
            max(room, tries, closed) if bound or index.closed else sys.maxsize,
            max(messages, tries, 0 if index.in_flight else ended),
            max(tries, closed),
        )


class Steps:
    """Steps on the queue of a store.

    Args:
        store: The queue.
        operation: Opens each operation.

    Attributes:
        store, operation: As given.
        settings: The queue's options.
    """

    def __init__(self, store: Store, operation: Operation) -> None:
        self.store = store
        self.operation = operation
        self.settings = store.settings
        self._index = store.index
        self._directory = store.directory
        self._worker = store.worker

    async def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call on the directory, in the thread, when the index is up to date."""
        with self.operation():
            await self.store.refresh()
            return await self._worker.in_thread(call, self._directory, *arguments)
