"""Messages of an index that are named with a time: which is first, and how many there are. No I/O, as in `index`."""

from __future__ import annotations

import heapq

from apressure.files.storage.names import FileName

_SLACK = 64
"""The heap is rebuilt when it has more entries than twice the current ones and this number."""


class Timed:
    """Messages that wait for their time, or in flight. The cost of a change grows with the logarithm of their number.

    Attributes:
        held: Before that time, in microseconds since 1970, none is tried: the file system has refused.
    """

    def __init__(self) -> None:
        self._there: dict[str, FileName] = {}
        self._names: dict[int, str] = {}
        """Their names, by their keys."""
        self._line: list[tuple[int, int, str]] = []
        """A heap of when they are due, of keys and of names, and of some that are gone."""
        self.held = 0

    def __len__(self) -> int:
        return len(self._there)

    def add(self, filename: str, name: FileName) -> None:
        """Note that a name appeared."""
        if filename not in self._there:
            self._there[filename] = name
            self._names[name.key] = filename
            heapq.heappush(self._line, (name.expires, name.key, filename))
            if len(self._line) > 2 * len(self._there) + _SLACK:
                self._line = sorted((one.expires, one.key, text) for text, one in self._there.items())

    def discard(self, filename: str, name: FileName) -> None:
        """Note that a name went."""
        if self._there.pop(filename, None) and self._names.get(name.key) == filename:
            del self._names[name.key]

    def filename_of(self, key: int) -> str | None:
        """Return the name of a message; None if it is not one of these."""
        return self._names.get(key)

    def oldest(self) -> int | None:
        """Return the key of the oldest one; None if there is none. The cost grows with their number."""
        return min(self._names, default=None)

    def oldest_first(self) -> list[str]:
        """Return all names, the oldest first."""
        return sorted(self._there, key=lambda filename: self._there[filename].key)

    def names(self) -> list[str]:
        """Return all names, in the order in which they are due."""
        return sorted(self._there, key=lambda filename: (self._there[filename].expires, self._there[filename].key))

    def first(self) -> tuple[int, str] | None:
        """Return when the first one is due, in microseconds since 1970, and its name; None if there is none."""
        while self._line:
            due, _, filename = self._line[0]
            if filename in self._there:
                return due, filename
            heapq.heappop(self._line)
        return None

    def next_due(self) -> int | None:
        """Return when the first one is due, in microseconds since 1970; None if there is none."""
        return None if (first := self.first()) is None else first[0]

    def postpone(self, filename: str, until: int) -> None:
        """Count the first one as if it were due later: its lease has ended, but it cannot be given back."""
        if self._line and self._line[0][2] == filename:
            heapq.heapreplace(self._line, (until, *self._line[0][1:]))

    def next_try(self) -> int | None:
        """Return the same, but not before `held`."""
        due = self.next_due() if self._there else None
        return None if due is None else max(due, self.held)

    def are_due(self, now: int) -> bool:
        """Whether some should be brought into the queue at `now`, in microseconds since 1970."""
        due = self.next_try()
        return due is not None and due <= now

    def due(self, now: int, most: int) -> list[tuple[str, int]]:
        """Return the names and keys of those that are due, in order, at most so many."""
        taken: list[tuple[int, int, str]] = []
        while len(taken) < most and (due := self.next_due()) is not None and due <= now:
            entry = heapq.heappop(self._line)
            if not taken or entry != taken[-1]:  # a name that came back has two entries
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._line, entry)
        return [(filename, key) for _, key, filename in taken]
