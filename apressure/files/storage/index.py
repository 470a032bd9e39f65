"""An index of the directory, in memory: the next message, the next lease to end, the next delayed message, and numbers.

The rule of this module: no I/O. It is told names that appeared and names that went, in order; a name may be told twice.
It may be out of date: then an operation on a file that it names finds no file.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from apressure.files.storage import names
from apressure.files.storage.names import LATER, NEW, READY, FileName, id_of, key_of, parse

_SLACK = 64
"""A heap is rebuilt when it has more entries than twice the current ones and this number."""


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

    def discard(self, filename: str, key: int) -> None:
        """Note that a name of this message went."""
        if self.pop(filename, None) and self.by_key.get(key) == filename:
            del self.by_key[key]

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


class State:
    """What the state files say.

    Attributes:
        closed: Whether the queue is closed; it stays so.
        paused: Whether it is paused.
        bound: The directory's bound, the smallest one if there are several; 0 for none.
        unknown: A state file that this version does not understand, or None.
    """

    exists = created = True
    """As `core.administration.Status` says them."""

    def __init__(self) -> None:
        self.closed = False
        self.paused = False
        self.bound = 0
        self.unknown: str | None = None
        self._files: set[str] = set()

    def note(self, filename: str, there: bool) -> None:
        """Note that a state file has appeared, or gone."""
        (self._files.add if there else self._files.discard)(filename)
        bounds = {name: int(matched[1]) for name in self._files if (matched := names.BOUND.fullmatch(name))}
        self.bound = min(bounds.values(), default=0)
        self.closed = self.closed or names.CLOSED in self._files
        self.paused = names.PAUSED in self._files
        self.unknown = min(self._files - bounds.keys() - {names.CLOSED, names.PAUSED}, default=None)


class Index(State):
    """The queue's state, and the messages in its directory.

    The cost of `add` and `discard` grows with the logarithm of the number of messages.

    Attributes:
        newest: The newest key that was ever seen; -1 for none.
        unfinished: Messages that are being written, in the order in which they appeared, and when each appeared.
        behind: Those of them that appeared after a newer message, or after another one of that name.
        reasons: The keys for which a file says why their message failed, or when it expires. The message may be gone.
        taken: The messages in flight.
        delayed: The messages that wait for their time.
        beside: The names of `names.OURS` that are there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest = -1
        self.unfinished: dict[int, float] = {}
        self.behind: set[int] = set()
        self.reasons: set[int] = set()
        self.taken = Timed()
        self.delayed = Timed()
        self.beside: set[str] = set()
        self._ready: set[int] = set()
        self._line: list[int] = []
        """A heap of the keys that wait, and of some that no longer do."""

    @classmethod
    def of(cls, filenames: Iterable[str], now: float) -> Index:
        """Return the index of a full listing. This may take long. For `now` see `add`."""
        index = cls()
        for filename in filenames:
            index.add(filename, now)
        index.behind = set(index.unfinished)  # a listing does not show which was first
        return index

    def become(self, listed: Index) -> None:
        """Replace everything by the index of a listing."""
        for key in listed.unfinished.keys() & self.unfinished.keys():
            listed.unfinished[key] = self.unfinished[key]
        listed.newest = max(listed.newest, self.newest)
        listed.closed |= self.closed
        listed.delayed.held = self.delayed.held
        vars(self).update(vars(listed))

    def clear(self) -> None:
        """Forget everything but the newest key: another directory has the name now."""
        vars(self).update(vars(Index()), newest=self.newest)

    def add(self, filename: str, now: float) -> None:
        """Note that a name appeared, at `now` seconds on a monotonic clock."""
        name = parse(filename)
        if name is None:
            self._note_other(filename, True)
            return
        key, state, _ = name
        if state == READY:
            if key not in self._ready:
                self._ready.add(key)
                heapq.heappush(self._line, key)
                if len(self._line) > 2 * len(self._ready) + _SLACK:
                    self._line = sorted(self._ready)
        elif state == NEW:
            if key not in self.unfinished:
                self.unfinished[key] = now
                if key <= self.newest:
                    self.behind.add(key)
        else:
            (self.delayed if state == LATER else self.taken).add(filename, name)
        self.newest = max(self.newest, key)

    def discard(self, filename: str) -> None:
        """Note that a name went."""
        name = parse(filename)
        if name is None:
            self._note_other(filename, False)
        elif name.state == READY:
            self._ready.discard(name.key)
        elif name.state == NEW:
            self.finished(name.key)
        else:
            (self.delayed if name.state == LATER else self.taken).discard(filename, name.key)

    def _note_other(self, filename: str, there: bool) -> None:
        if filename in names.OURS:
            (self.beside.add if there else self.beside.discard)(filename)
        elif not filename.startswith(names.REASON):
            if filename.startswith(names.PREFIX):
                self.note(filename, there)
        elif (key := key_of(filename.removeprefix(names.REASON))) is not None:
            (self.reasons.add if there else self.reasons.discard)(key)

    def finished(self, key: int) -> None:
        """Note that a message is no longer being written."""
        self.unfinished.pop(key, None)
        self.behind.discard(key)

    @property
    def waiting(self) -> int:
        """How many messages wait to be received."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """How many messages are in flight."""
        return len(self.taken)

    @property
    def drained(self) -> bool:
        """Whether the queue is closed, and nothing waits or is delayed. Messages in flight may come back."""
        return self.closed and not (self._ready or self.unfinished or self.delayed)

    def head(self) -> int | None:
        """Return the oldest message that waits; None if none does."""
        line, ready = self._line, self._ready
        while line and line[0] not in ready:
            heapq.heappop(line)
        return line[0] if line else None

    def filename_of(self, key: int) -> str | None:
        """Return a message's present name; None if it is gone, or not finished."""
        return id_of(key) if key in self._ready else self.taken.by_key.get(key) or self.delayed.by_key.get(key)

    def orphans(self) -> set[int]:
        """Return the keys for which there is a reason and no message. The cost grows with the number of reasons."""
        return {key for key in self.reasons if self.filename_of(key) is None and key not in self.unfinished}

    def waiting_names(self) -> list[str]:
        """Return the names of the messages that wait, the oldest first."""
        return [id_of(key) for key in sorted(self._ready)]

    def some_waiting(self, most: int, newest: bool) -> list[str]:
        """Return the names of the oldest messages that wait, or the newest ones. The cost grows with their number."""
        return [id_of(key) for key in (heapq.nlargest if newest else heapq.nsmallest)(most, self._ready)]

    def newest_waiting(self) -> int | None:
        """Return the newest message that waits. The cost grows with their number."""
        return max(self._ready, default=None)

    def oldest(self) -> int | None:
        """Return the oldest message, in flight or not; None if there is none. The cost grows with those in flight."""
        keys = [key for key in (self.head(), self.taken.oldest()) if key is not None]
        return min(keys, default=None)

    def room(self, bound: int, reserved: int | None = None, ordered: bool = True) -> int:
        """Return how many messages may be added; those that are being written count as messages.

        Args:
            bound: The most messages that may be there.
            reserved: A message that is being written. Only those whose files appeared before it count, so that the
                first ones get the room. None for the room that there is now.
            ordered: Whether that order is known. Otherwise all others count.
        """
        free = bound - len(self._ready) - len(self.taken) - len(self.delayed)
        ahead = len(self.unfinished)
        if not ordered:
            ahead -= reserved in self.unfinished
        elif reserved is not None and ahead >= free:  # otherwise there is room at every place
            first = itertools.islice(self.unfinished, max(free, 0))
            ahead = next((place for place, key in enumerate(first) if key == reserved), ahead)
        return free - ahead
