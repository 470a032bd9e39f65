"""Messages of an index that are named with a time: which is first, and how many there are. No I/O, as in `index`."""

from __future__ import annotations

import heapq

from apressure.files.storage.names import FileName

_SLACK = 64
"""The heap is rebuilt when it has more entries than twice the current ones and this number."""


class Timed(dict[str, FileName]):
    """Messages that wait for their time, or in flight, by their names. The cost of a change is logarithmic.

    Attributes:
        by_key: Their names, by their keys.
        held: Before that time, in microseconds since 1970, none is tried: the file system has refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[int, str] = {}
        self._line: list[tuple[int, int, str]] = []
        """A heap of when they are due, of keys and of names, and of some that are gone."""
        self.held = 0

    def add(self, filename: str, name: FileName) -> None:
        """Note that a name appeared."""
        if filename not in self:
            self[filename] = name
            self.by_key[name.key] = filename
            heapq.heappush(self._line, (name.expires, name.key, filename))
            if len(self._line) > 2 * len(self) + _SLACK:
                self._line = sorted((one.expires, one.key, text) for text, one in self.items())

    def discard(self, filename: str, name: FileName) -> None:
        """Note that a name went."""
        if self.pop(filename, None) and self.by_key.get(name.key) == filename:
            del self.by_key[name.key]

    def oldest(self) -> int | None:
        """Return the key of the oldest one; None if there is none. The cost grows with their number."""
        return min(self.by_key, default=None)

    def oldest_first(self) -> list[str]:
        """Return all names, the oldest first."""
        return sorted(self, key=lambda filename: self[filename].key)

    def names(self) -> list[str]:
        """Return all names, in the order in which they are due."""
        return sorted(self, key=lambda filename: (self[filename].expires, self[filename].key))

    def first(self) -> tuple[int, str] | None:
        """Return when the first one is due, in microseconds since 1970, and its name; None if there is none."""
        while self._line:
            due, _, filename = self._line[0]
            if filename in self:
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
        due = self.next_due() if self else None
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
