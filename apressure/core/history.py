"""The last day of a queue, a record for each minute: written by those who watch it, read by those who draw it."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Final, NamedTuple, Protocol, Self

from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration

KEPT: Final = 1440
"""Minutes: a day."""

_FIELDS: Final = 9
_LEAST: Final = 7
"""Fields of a record, and those that older versions wrote."""


class Minute(NamedTuple):
    """How a queue was at the end of a minute, and what has happened in it.

    Attributes:
        time: When the minute began, in seconds since 1970.
        length: Messages that waited.
        in_flight: Messages that were received, and not settled.
        delayed: Messages that waited for their time.
        put: Messages that were put in this minute; None where that is not known.
        taken: Messages that were got or settled for good; None where that is not known.
        oldest: The age of the next message, in seconds; None where that is not known.
        failed: Attempts of registered workers that failed in this minute; None where there was no worker.
        duration: For how many milliseconds their handlers ran for an attempt, in the mean; None where none ended.
    """

    time: int
    length: int
    in_flight: int
    delayed: int
    put: int | None
    taken: int | None
    oldest: int | None
    failed: int | None = None
    duration: int | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing was there, and nothing happened."""
        return not any(self[1:])

    def encode(self) -> bytes:
        """Return the record: its numbers in this order, with the minute's number first and `-` for None."""
        numbers = (self.time // 60, *self[1:])
        return " ".join("-" if number is None else str(number) for number in numbers).encode()

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return what a record says.

        Raises:
            ValueError: It is no record.
        """
        words = record[:200].split()
        if len(words) < _LEAST:
            raise ValueError(f"a minute of a queue's history is damaged: {record[:40]!r}")
        minute, length, in_flight, delayed = map(int, words[:4])
        more = (None if word == b"-" else int(word) for word in words[4:_FIELDS])
        return cls(minute * 60, length, in_flight, delayed, *more)


class HistoryStore(Protocol):
    """The steps of a kind of queue that are about its history."""

    async def read(self) -> list[bytes]:
        """Return the records that are kept, in order."""

    async def write(self, number: int, record: bytes) -> bool:
        """Keep the record of the minute of this number, unless there is one of it or of a later one already."""


class ObjectHistory:
    """The history of a queue whose store keeps none: that of one queue object."""

    def __init__(self) -> None:
        self._records: deque[bytes] = deque(maxlen=KEPT)
        self._latest = 0

    async def read(self) -> list[bytes]:
        return list(self._records)

    async def write(self, number: int, record: bytes) -> bool:
        if number <= self._latest:
            return False
        self._latest = number
        self._records.append(record)
        return True


class History(Administration):
    """A queue of which the last day is known, if somebody has watched it."""

    _object_history: ObjectHistory | None = None

    @property
    def _history(self) -> HistoryStore:
        """The steps. A kind that keeps a history for all programs has its own."""
        if self._object_history is None:
            self._object_history = ObjectHistory()
        return self._object_history

    @with_deadline()
    async def history(self, *, deadline: float | None = None) -> list[Minute]:
        """Return the last 24 hours, a record for each minute in which there was something, the oldest first.

        `apressure top`, `apressure web` and `apressure metrics` write it, while one of them watches the queue: there is
        none of a time when nobody did. The server keeps it for 25 hours, also when the queue has been deleted. Where
        the store keeps none (a directory, an okq server, memory), it is what this object has written.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            DeadlineError: The deadline has passed.
            PermissionDeniedError, ScriptingRefusedError: The user or the server does not allow it.
        """
        self.check()
        minutes = []
        for record in await self._history.read():
            with contextlib.suppress(ValueError):  # another program has written it
                minutes.append(Minute.decode(record))
        return minutes

    @with_deadline()
    async def write_history(self, minute: Minute, *, deadline: float | None = None) -> bool:
        """Keep the record of a minute that has ended, for a program that watches the queue.

        Args:
            minute: The record.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether it was kept: another program may have written this minute, or a later one, already.

        Raises:
            TypeError: It is not a `Minute`.
            DeadlineError: The deadline has passed.
            PermissionDeniedError, ScriptingRefusedError, ReadOnlyError: The user or the server does not allow it.
        """
        if not isinstance(minute, Minute):
            raise TypeError(f"minute must be a Minute, not {type(minute).__name__}")
        self.check()
        return await self._history.write(minute.time // 60, minute.encode())
