"""Puts messages, without waiting for room (specification: New, where it is called publishing).

A `.new` file, created with O_EXCL, reserves a name. Then all changes before it are read: does another message have the
name, or a later one, and was there room? All processes see changes in the same order. So if two processes reserve the
last place, both know which one was first. A rename that never overwrites drops the extension of a written message.

A delayed message gets another name instead. When it is due, it gets the name that a put would give it then.
"""

from __future__ import annotations

import copy
import errno
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from apressure.core.due import Due
from apressure.core.waiting import FULL, Wait
from apressure.exceptions import QueueClosedError, StorageError
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from apressure.files.storage.messages import contents
from apressure.files.storage.messages.reasons import Reason
from apressure.files.storage.store import Operation, Steps, Store
from apressure.files.storage.writing import Reservation
from apressure.items import Progress

logger = logging.getLogger("apressure")

_MOST_DUE: Final = 100
"""How many delayed messages one operation brings into the queue."""

_BURST: Final = 10_000
"""Microseconds within which puts of delayed messages bring what is due into the queue only once.

They need not come behind it, and to bring many at a time is cheaper.
"""

_LATER: Final = 1_000_000
"""Microseconds until the next try to bring delayed messages into the queue, after the file system refused."""


class _Commit:
    """Reservations on their way to the disk."""

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self.reservations = reservations
        self.outcome: tuple[int, StorageError | None] | None = None


class Putter(Steps):
    """Puts messages into a store."""

    def __init__(self, store: Store, operation: Operation) -> None:
        super().__init__(store, operation)
        self._commits: deque[_Commit] = deque()
        self._last = -1
        self._promoted = 0

    async def put(self, messages: list[bytes], progress: Progress, due: Due | None = None) -> str | Wait:
        """Put messages, in order, as long as there is room (specification: New). What was put leaves the list.

        With `due`, they wait until then outside of the line, or expire.

        Returns:
            The id of the last one; a `Wait` if there is no room for the next one.

        Raises:
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: The directory was deleted.
            StorageError: The file system refused. The progress says how many were put.

        Cancelled, the first ones are in the queue, or all, or none.
        """
        delayed = due is not None and due.milliseconds > 0
        while True:
            reserved = await self._reserve(messages, pause=_BURST if delayed else 0)
            if not reserved:
                await self.promote()  # otherwise what is due would have it try again at once
                return FULL
            if due is not None and due.expires is not None:
                for reservation in reserved:
                    reservation.reason = Reason(expires=self.store.now + due.expires * 1000)
            if due is not None and delayed:
                when = due.at(math.ceil(self.store.time() * 1000))
                for reservation in reserved:
                    reservation.name = names.delayed_name(reservation.key, when)
            done, error = await self._commit(reserved)
            progress.accepted += done
            if error is not None:
                error.accepted = done
                raise error
            del messages[:done]
            if not messages:
                return names.id_of(reserved[-1].key)

    async def _reserve(
        self, messages: Sequence[bytes | None], inside: bool = False, pause: int = 0
    ) -> list[Reservation]:
        """Reserve names for the first of the messages; for none if there is no room. None is one that has a file.

        With `inside`, they are in the queue already: they need no room, and the queue may be closed. Otherwise, what is
        due comes before them, unless it has been brought within so many microseconds of `pause`.
        """
        index, store = self._index, self.store
        while True:
            await store.refresh(create=True)
            if not inside:
                if index.delayed:
                    await self.promote(pause)
                self._check_open()
            watcher, ordered = store.watcher, store.watcher.ordered
            wanted, bound = len(messages), 0 if inside else store.bound
            if bound:
                wanted = min(wanted, index.room(bound), wanted if ordered else 1)
                if wanted <= 0:
                    return []
            keys = self._names(wanted)
            reserved = await self._worker.do(self._create, keys, messages, undo=self._directory.abandon)
            kept = 0
            try:
                store.own.update([reservation.key for reservation in reserved])
                watcher.drain()
                if not ordered:
                    await store.refresh()
                elif watcher.stale:
                    continue  # the kernel dropped notifications, so the order is unknown
                if not inside:
                    self._check_open()  # consumers may have ended before they saw the reservation
                kept, full = self._keep(reserved, ordered, bound)
                if kept or full:
                    return reserved[:kept]
            finally:
                if kept < len(reserved):
                    try:
                        await self._abandon(reserved[kept:])
                    except BaseException:  # cancelled: the caller does not learn of the others
                        await self._abandon(reserved[:kept])
                        raise

    def _check_open(self) -> None:
        if self._index.closed:
            name = self.settings.name
            raise QueueClosedError(f"the queue {name!r} is closed: nothing can be put", name=name)

    async def _abandon(self, reserved: Sequence[Reservation]) -> None:
        """Delete reservations. Cancelled, they are deleted all the same."""
        self._forget(reserved)
        await self._worker.surely(self._directory.abandon, reserved)

    def _keep(self, reserved: Sequence[Reservation], ordered: bool, bound: int) -> tuple[int, bool]:
        """Return how many of the names may be used, the first ones, and whether the next one has no room."""
        index = self._index
        for count, reservation in enumerate(reserved):
            key = reservation.key
            if index.filename_of(key) is not None or (ordered and key in index.behind):
                return count, False  # another message has this name, or a later one
            if bound and index.room(bound, key, ordered) <= 0:
                return count, True  # another process was faster, or will have given up at the next try
        return len(reserved), False

    def _names(self, count: int) -> list[int]:
        """Return names for new messages that, as far as the index knows, are free."""
        name, unit, now = self.settings.name, self.settings.unit, self.store.time()
        newest = max(self._index.newest, self._last)
        try:
            keys = [newest := names.following(newest, now, unit) for _ in range(count)]
        except OverflowError as error:
            reason = f"cannot put into the queue {name!r}: {error}"
            raise StorageError(reason, name=name, errno=errno.EOVERFLOW) from None
        self._last = newest
        return keys

    def _create(self, keys: Sequence[int], messages: Sequence[bytes | None]) -> list[Reservation]:
        reserved: list[Reservation] = []
        directory, now = self._directory, self.store.now
        linked = messages[0] is None and directory.has_blank()
        for key, message in zip(keys, messages, strict=False):
            try:
                if message is None:
                    reservation = directory.reserve_name(key, linked)
                else:
                    reservation = directory.reserve(key, message)
            except StorageError:
                if reserved:
                    break  # these first; the next put raises it
                raise
            if reservation is None:
                break
            reserved.append(reservation)
        if reserved and names.time_of(reserved[-1].key) > now:
            contents.note_newest(directory.fileno(), reserved[-1].key)
        return reserved

    def _forget(self, reservations: Sequence[Reservation]) -> None:
        for reservation in reservations:
            self.store.own.discard(reservation.key)
            self._index.finished(reservation.key)

    async def _commit(self, reserved: Sequence[Reservation]) -> tuple[int, StorageError | None]:
        commit = _Commit(reserved)
        try:
            if self.settings.fsync or self._worker.always:
                self._commits.append(commit)
                await self._worker.in_thread(self._commit_together, commit)
            else:
                commit.outcome = self._directory.commit(reserved)
            assert commit.outcome is not None
            return commit.outcome
        finally:
            if commit.outcome is not None:  # also of one that was cancelled
                self.store.counts.put_count += commit.outcome[0]
            self._forget(reserved)

    def _commit_together(self, wanted: _Commit) -> None:
        """Bring all messages to the disk, in the thread, that came during the last round."""
        if wanted.outcome is not None:
            return
        commits = [self._commits.popleft() for _ in range(len(self._commits))]
        done, error = self._directory.commit([one for commit in commits for one in commit.reservations])
        for commit in commits:
            count = len(commit.reservations)
            commit.outcome = min(done, count), copy.copy(error)  # each task raises an error of its own
            if done < count:
                error = None  # the later ones were abandoned, and try again
            done = max(0, done - count)

    async def promote(self, pause: int = 0) -> None:
        """Bring delayed messages whose time has come to the end of the line, some of them if there are many.

        With `pause`, not within so many microseconds after it has done so.

        Names are reserved after the list of what is due was made, and given up as soon as another client has been
        faster. So several clients together keep the order.
        """
        index, store, now = self._index, self.store, self.store.now
        if not index.delayed.are_due(now) or abs(now - self._promoted) < pause:
            return
        self._promoted = now
        try:
            await self.bring(index.delayed.due(now, _MOST_DUE))
        except StorageError as error:
            index.delayed.held = store.now + _LATER  # a listing has perhaps replaced `index.delayed`
            logger.warning("delayed messages stay delayed for now: %s", error)
        await store.refresh()

    async def bring(self, due: Sequence[tuple[str, int]]) -> int:
        """Bring delayed messages with these names and keys to the end of the line, until another client is faster.

        Returns:
            How many are not delayed any more.
        """
        reserved = await self._reserve([None] * len(due), inside=True)
        try:
            keys = [reservation.key for reservation in reserved]
            gone = await self._worker.do(self._directory.promote, due, keys, self._index.reasons)
            for filename in gone:
                self.store.went(filename)
            return len(gone)
        finally:
            await self._abandon(reserved)

    async def adopt(self, other: Directory, filename: str) -> bool | None:
        """Move a dead letter of another queue to the end of this one.

        Returns:
            Whether it was there; None if there is no room.
        """
        while True:
            reserved = await self._reserve([None])
            if not reserved:
                return None
            try:
                return await self._worker.do(other.revive, filename, self._directory, names.id_of(reserved[0].key))
            except FileExistsError:
                continue
            finally:
                await self._abandon(reserved)
