"""What is behind the operations on a `FileQueue` as a whole, those that only it has, and its dead letters."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from apressure import dead_letters, validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.added_letters import Added
from apressure.core.browsing import MOST_READ
from apressure.core.errors import closed
from apressure.core.letters import Letters
from apressure.core.letters_beside import LettersBeside
from apressure.core.reviving import Chosen
from apressure.core.searching import Read
from apressure.core.statistics import BoundedStatistics, figures
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.core import Core
from apressure.files.schedules import FileSchedules
from apressure.files.storage import lifecycle, names
from apressure.files.storage.directory import Directory
from apressure.files.storage.index import Index
from apressure.files.storage.messages.reasons import Reason
from apressure.files.storage.store import Steps

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileQueueStatistics(BoundedStatistics):
    """A snapshot of a `FileQueue`: what `BoundedStatistics` says, and more. Its bound is that of this object.

    Attributes:
        path: Its directory.
        unfinished: Messages that are being written, or whose writer died.
        oldest: When the oldest message was put, as its name says; None if there is none.
        next_expiry: Seconds until the next lease ends, and its message may be received again; None if there is none.
        notified: Whether the kernel tells of changes; otherwise the directory is listed repeatedly.
    """

    path: str
    unfinished: int
    oldest: datetime | None
    next_expiry: float | None
    notified: bool

    @property
    def _occupied(self) -> int:
        # A message in flight is a file of the directory, and so is one that is being written.
        return self.length + self.delayed + self.in_flight + self.unfinished


class _Looked(NamedTuple):
    """What a look at the directory tells, as `figures` takes it."""

    waiting: int
    bound: int
    closed: bool
    paused: bool
    delayed: int
    next_due: float | None
    expired: int


class QueueSteps(Steps):
    """The steps that are about the queue as a whole. Each is one call of the thread."""

    async def create(self, bound: int) -> bool:
        """Make the directory, with its bound in it, unless something has its name. Returns whether it is new."""
        with self.operation():
            new = await self._worker.in_thread(lifecycle.create, self.store.beside(self.settings.name), bound)
            self.store.auto_create = False  # if another process deletes it, a put does not make it again
            await self.store.reopen()
        return new

    async def close(self, expected: bool = True) -> None:
        """Close the queue. Raises QueueClosedError where it is closed already."""
        if not await self._call(Directory.close_queue):
            raise closed(self.settings.name)

    async def pause(self, pausing: bool, expected: bool = True) -> bool:
        """Pause the queue, or resume it. Returns whether that is new."""
        return bool(await self._call(Directory.pause if pausing else Directory.resume))

    async def set_bound(self, bound: int) -> None:
        """Have the directory say another bound."""
        await self._call(lifecycle.set_bound, bound)

    async def delete(self) -> None:
        """Delete the directory, if it contains nothing but a queue."""
        await self._call(lifecycle.delete)


class Administration(LettersBeside[T], Core[T], Generic[T]):
    """The part of `FileQueue` that is about the queue as a whole."""

    _max_bound: ClassVar[int] = names.MAX_BOUND

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> FileQueueStatistics:
        """Return a snapshot of the queue.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            StorageError: The directory cannot be read.
        """
        with self._operation():
            await self.breathe()
            await self._store.refresh()
            index, expired = self._store.index, 0
            if names.EXPIRED_COUNT in index.beside:
                expired = await self._store.worker.do(self._store.directory.expired)
        oldest, expiry, due = index.oldest(), index.taken.first(), index.delayed.next_due()
        next_due = None if due is None else max(0.0, (due - self._store.now) / 1e3)
        looked = _Looked(
            index.waiting, self._store.bound, index.closed, index.paused, len(index.delayed), next_due, expired
        )
        waiting = len(self._waits.putters), len(self._waits.receivers) + len(self._waits.drainers)
        return FileQueueStatistics(
            **figures(self.name, looked, waiting, self._waits.blocked, self._store.counts.fields()),
            path=str(self.path),
            in_flight=index.in_flight,
            unfinished=len(index.unfinished),
            oldest=None if oldest is None else datetime.fromtimestamp(names.time_of(oldest) / 1e6, UTC),
            next_expiry=None if expiry is None else max(0.0, (expiry[0] - self._store.now) / 1e6),
            notified=self._store.watcher.ordered,
            **await self._kept_beside(),
        )

    @property
    def put_count(self) -> int:
        """How many messages this object has put."""
        return self._store.counts.put_count

    @with_deadline()
    async def ack(self, message_id: str, *, deadline: float | None = None) -> bool:
        """Acknowledge a message by its id: it is deleted, also if another process has received it, or none has.

        Returns:
            Whether it was there (specification: Deleted).

        Raises:
            TypeError, ValueError: It is not a message's id.
            QueueDoesNotExistError: There is no such queue.
            StorageError: The file system refused.

        Cancelled, it is deleted or not.
        """
        key = names.key_of(validation.text(message_id, "a message's id"))
        if key is None:
            raise ValueError(f"not a message's id: {message_id!r}")
        with self._operation():
            await self.breathe()
            return await self._receiver.delete(key)

    @with_deadline()
    async def give_back_in_flight(self, *, deadline: float | None = None) -> int:
        """Give back every message that is in flight in any process, before its lease ends.

        Returns:
            How many were given back.

        Cancelled, some of them are given back.
        """
        index = self._store.index
        return await self._each(self._receiver.requeue, lambda: index.taken.oldest_first())  # noqa: PLW0108 (a listing replaces it)

    # What is behind the operations of every kind.

    async def _set_bound(self, bound: int) -> None:
        await self._administration.set_bound(bound)

    @property
    def _administration(self) -> QueueSteps:
        return QueueSteps(self._store, self._operation)

    @property
    def _schedules(self) -> FileSchedules:
        return FileSchedules(self._store, self._operation, self._putter, self.registry)

    async def _check_exists(self) -> None:
        with self._operation():
            await self._store.refresh(create=True)

    async def _look(self) -> Index:
        with self._operation():
            await self._store.refresh()
        return self._store.index

    async def _exists(self) -> bool:
        with self._operation():
            return await self._store.worker.in_thread(self._store.directory.exists)

    async def _purge(self) -> int:
        index = self._store.index
        return await self._each(self._receiver.remove, lambda: index.waiting_names() + index.delayed.names())

    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        with self._operation():
            await self._store.refresh()
            await self._putter.promote()
            delayed = self._store.index.delayed
            if ids is None:
                chosen = delayed.names()[:most]
            else:
                keys = (names.key_of(one) for one in ids)
                chosen = [delayed.by_key[key] for key in keys if key in delayed.by_key]
            return await self._putter.bring([(one, delayed[one].key) for one in chosen]) if chosen else 0

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        with self._operation(), self._dead(source) as dead:
            return await self._store.worker.in_thread(_read_letters, dead, limit, self._items.decode)

    def source_of(self, other: Letters[Any], source: str | None) -> str | None:
        if not isinstance(other, Administration) or other.path.parent.resolve() != self.path.parent.resolve():
            return None
        dead = source or other.dead_letter_queue or f"{other.name}.dead"
        return dead if (self.path.parent / dead).is_dir() else None

    async def _bury(self, letters: Sequence[Added]) -> None:
        with self._operation(), self._dead(None) as dead:
            await self._store.worker.in_thread(_add_letters, dead, letters)

    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        with self._operation(), self._dead(source) as dead:
            return await self._store.worker.in_thread(_read_page, dead, passed, most, self._items.decode)

    @contextlib.asynccontextmanager
    async def _revival(self, chosen: Chosen) -> AsyncIterator[_Revived]:
        ids = None if chosen.ids is None else dict.fromkeys(chosen.names)
        with self._operation(), self._dead(chosen.source) as dead:
            if not chosen.discard:
                await self._store.refresh()
            must_exist = chosen.source is not None and not chosen.discard
            found = await self._store.worker.in_thread(_oldest_first, dead, must_exist)
            if ids is not None:
                found = [filename for filename in found if filename in ids]

            async def act(filename: str) -> bool | None:
                await self.breathe()
                if chosen.discard:
                    return await self._store.worker.do(dead.discard, filename)
                return await self._putter.adopt(dead, filename)

            yield _Revived(act, found[: chosen.most][::-1], ids or {})

    async def _each(self, act: Callable[[str], Awaitable[bool | None]], names_of: Callable[[], list[str]]) -> int:
        """Do something with all messages that have these names. Returns with how many of them it was possible."""
        count = 0
        with self._operation():
            await self._store.refresh()
            for filename in names_of():
                await self.breathe()
                count += bool(await act(filename))
                note_sent()
        return count


def _oldest_first(dead: Directory, must_exist: bool = False) -> list[str]:
    """Open a directory, and return the names of its dead letters. Reasons of those that are gone are deleted.

    Where the directory does not exist, there are no dead letters yet, unless it must.
    """
    try:
        dead.open(create=False)
        index = Index.of(dead.list()[0], 0.0)
    except QueueDoesNotExistError:
        if must_exist:
            raise
        return []
    dead.forget_orphans(index.orphans())
    return index.waiting_names()


def _read_letters(dead: Directory, limit: int | None, decode: Callable[[bytes], T]) -> list[DeadLetter[T]]:
    """Return the oldest dead letters, at most `limit`."""
    shown = (_shown(dead, filename, decode) for filename in _oldest_first(dead))
    return list(itertools.islice((letter for letter in shown if letter is not None), limit))


def _add_letters(dead: Directory, letters: Sequence[Added]) -> None:
    """Write dead letters, the oldest first, into a directory, which is made if need be."""
    dead.open(create=True)
    newest = Index.of(dead.list()[0], 0.0).newest
    for count, letter in enumerate(letters):
        reason = None
        if letter.attempts is not None:
            reason = Reason(letter.error, letter.attempt, letter.attempts, letter.when * 1000)
        try:
            while True:
                newest = names.following(newest, time.time(), "us")
                if dead.add_letter(newest, letter.raw, reason):
                    break
        except StorageError as error:
            error.accepted = count
            raise


def _read_page(dead: Directory, passed: int, most: int, decode: Callable[[bytes], T]) -> Read[T]:
    """Read dead letters behind the `passed` oldest ones, up to about 1 MiB of them."""
    found = _oldest_first(dead)
    letters: list[DeadLetter[T]] = []
    looked = size = 0
    for filename in found[passed : passed + most]:
        if size >= MOST_READ:
            break
        looked += 1
        if (letter := _shown(dead, filename, decode)) is not None:
            size += len(letter.raw)
            letters.append(letter)
    return Read(letters, looked, len(found))


def _shown(dead: Directory, message_id: str, decode: Callable[[bytes], T]) -> DeadLetter[T] | None:
    """Return a dead letter; None if another client has taken it meanwhile."""
    if (letter := dead.letter(message_id)) is None:
        return None
    data, reason, refused = letter
    if refused is not None:
        decode = functools.partial(_refuse, refused)
    if not (reason.attempts or reason.when):
        return DeadLetter(message_id, data, None, None, None, decode)
    error = dead_letters.decode(reason.error, reason.attempt) if reason.attempt or reason.error else None
    return DeadLetter(message_id, data, reason.attempts, error, reason.when / 1e6, decode)


def _refuse(error: StorageError, data: bytes) -> Any:  # noqa: ARG001
    raise error


@dataclasses.dataclass(eq=False)
class _Revived:
    """Dead letters on their way back to the end of the queue, or to be deleted.

    Attributes:
        act: Moves or deletes the one with this name; returns whether it was there, or None if there is no room.
        left: The names of those that are left, the oldest last.
        not_found: The ids that were asked for, and that no dead letter has (any more).
        moved: How many have been moved, or deleted.
    """

    act: Callable[[str], Awaitable[bool | None]]
    left: list[str]
    not_found: dict[str, None]
    moved: int = 0

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return bool(self.left)

    async def step(self) -> Wait | None:
        """Move all for which there is room, or delete all. What waits for room keeps its place in the line."""
        while self.left:
            done = await self.act(self.left[-1])
            if done is None:
                return FULL
            filename = self.left.pop()
            if done:
                self.moved += 1
                self.not_found.pop(filename, None)
        return None
