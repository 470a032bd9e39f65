"""What is in the directory, in memory: which message is next, whose time runs out next, and how many there are.

The rule of this module: no I/O. It is told names that appeared and names that went, in order, and being told twice
makes no difference. What it says is true for the moment that it was last told of; that something changed since shows
when a file that it names is not there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from apressure.files.names import NEW, FileName, id_of, key_of, parse

_SLACK = 64
"""Entries that a heap may have beyond twice those that are true, before it is made anew."""


class Index:
    """The messages of one directory. No operation's cost grows with their number, but for a logarithm.

    Attributes:
        newest: The newest key that was ever seen; -1 for none.
        unfinished: Messages that are being written, in the order in which they appeared, and when each was seen.
        behind: Those of them that appeared after a newer one, or after another one of that name.
    """

    def __init__(self) -> None:
        self.newest = -1
        self.unfinished: dict[int, float] = {}
        self.behind: set[int] = set()
        self._ready: set[int] = set()
        self._line: list[int] = []
        """A heap of the keys that wait, and of some that do not any more."""
        self._taken: dict[str, FileName] = {}
        self._names: dict[int, str] = {}
        """The names of those that were taken, by their keys."""
        self._expiries: list[tuple[int, str]] = []
        """A heap of times and names, also of some that have gone."""

    @classmethod
    def of(cls, filenames: Iterable[str], now: float) -> Index:
        """Return what a full listing shows, which takes some time; see `add`."""
        index = cls()
        for filename in filenames:
            index.add(filename, now)
        index.behind = set(index.unfinished)  # listings have no order: none of them was the first for sure
        return index

    def become(self, listed: Index) -> None:
        """Forget what is there, and take over what a listing shows, which is then of no use any more."""
        for key in listed.unfinished.keys() & self.unfinished.keys():
            listed.unfinished[key] = self.unfinished[key]
        listed.newest = max(listed.newest, self.newest)
        vars(self).update(vars(listed))

    def add(self, filename: str, now: float) -> None:
        """A name appeared.

        Args:
            filename: The name.
            now: Seconds on a clock that does not jump: from then on it is known.
        """
        if "." not in filename:
            key = key_of(filename)
            if key is None:
                return
            if key not in self._ready:
                self._ready.add(key)
                heapq.heappush(self._line, key)
                if len(self._line) > 2 * len(self._ready) + _SLACK:
                    self._line = sorted(self._ready)
        else:
            name = parse(filename)
            if name is None:
                return
            key = name.key
            if name.state == NEW:
                if key not in self.unfinished:
                    self.unfinished[key] = now
                    if key <= self.newest:
                        self.behind.add(key)
            elif filename not in self._taken:
                self._taken[filename] = name
                self._names[key] = filename
                heapq.heappush(self._expiries, (name.expires, filename))
                if len(self._expiries) > 2 * len(self._taken) + _SLACK:
                    self._expiries = sorted((name.expires, filename) for filename, name in self._taken.items())
        self.newest = max(self.newest, key)

    def discard(self, filename: str) -> None:
        """A name went."""
        number, dot, extension = filename.partition(".")
        if dot and extension != NEW:
            name = self._taken.pop(filename, None)
            if name is not None and self._names.get(name.key) == filename:
                del self._names[name.key]
            return
        key = key_of(number)
        if key is None:
            return
        if dot:
            self.finished(key)
        else:
            self._ready.discard(key)

    def finished(self, key: int) -> None:
        """A message is not being written any more."""
        self.unfinished.pop(key, None)
        self.behind.discard(key)

    @property
    def waiting(self) -> int:
        """How many messages wait to be received."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """How many messages were received, and neither deleted nor given back."""
        return len(self._taken)

    @property
    def empty(self) -> bool:
        """Nothing is there that counts."""
        return not (self._ready or self._taken)

    def head(self) -> int | None:
        """Return the oldest message that waits."""
        while self._line:
            if self._line[0] in self._ready:
                return self._line[0]
            heapq.heappop(self._line)
        return None

    def next_expiry(self) -> tuple[int, str] | None:
        """Return whose time runs out next, and when, in microseconds."""
        while self._expiries:
            expires, filename = self._expiries[0]
            if filename in self._taken:
                return expires, filename
            heapq.heappop(self._expiries)
        return None

    def postpone(self, filename: str, expires: int) -> None:
        """Look at a message that was taken again later, since its time has run out and it cannot be given back."""
        if self._expiries and self._expiries[0][1] == filename:
            heapq.heapreplace(self._expiries, (expires, filename))

    def filename_of(self, key: int) -> str | None:
        """Return what a message is called at the moment; None where it is not there, or not finished."""
        return id_of(key) if key in self._ready else self._names.get(key)

    def filenames(self, *, waiting: bool, in_flight: bool) -> list[str]:
        """Return what messages are called, those that wait in their order."""
        found = [id_of(key) for key in sorted(self._ready)] if waiting else []
        if in_flight:
            found += sorted(self._taken, key=lambda filename: self._taken[filename].key)
        return found

    def oldest(self) -> int | None:
        """Return the key of the oldest message that is there, in flight or not."""
        keys = [key for key in (self.head(), min(self._names, default=None)) if key is not None]
        return min(keys, default=None)

    def room(self, capacity: int, reserved: int | None = None, ordered: bool = True) -> int:
        """Return how many messages may be added at least, each of those being written counted as one that is there.

        Args:
            capacity: The most messages that may be there.
            reserved: A message that is being written: how much room there was when its file appeared, so that of
                several that ask, the first ones get what there is. None for how much there is now.
            ordered: That order is known. Otherwise all others count as earlier ones.
        """
        free = capacity - len(self._ready) - len(self._taken)
        ahead = len(self.unfinished)
        if not ordered:
            ahead -= reserved in self.unfinished
        elif reserved is not None and ahead >= free:  # otherwise there is room at any place
            first = itertools.islice(self.unfinished, max(free, 0))
            ahead = next((place for place, key in enumerate(first) if key == reserved), ahead)
        return free - ahead
