"""Publishing in one go, without waiting for room (specification: New).

A name is reserved by the file `.new`, with O_EXCL. Then every change that came before it is looked at: is the name
somebody else's, or older than another one, and was there room? Changes have one order that all processes see, so of two
that reserve the last place, both know who was first. What is written drops its extension by a rename that does not
overwrite.
"""

from __future__ import annotations

import copy
import errno
from collections import deque
from collections.abc import Sequence

from apressure.exceptions import StorageError
from apressure.files import marks, names
from apressure.files.directory import Directory, Reservation
from apressure.files.store import Store


class _Commit:
    """Reservations on their way to the disk."""

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self.reservations = reservations
        self.outcome: tuple[int, StorageError | None] | None = None


class Publisher:
    """Publishes to a store.

    Attributes:
        published: How many messages it has published.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = store.settings
        self._index = store.index
        self._directory = store.directory
        self._worker = store.worker
        self._commits: deque[_Commit] = deque()
        self._last = -1
        self.published = 0

    async def publish(self, messages: Sequence[bytes]) -> list[str]:
        """Publish as many of the messages as there is room for, the first ones (specification: New).

        Returns:
            Their ids; an empty list where there is no room.

        Raises:
            QueueDoesNotExistError: The directory is not there any more.
            StorageError: The file system refused. `accepted` says how many were published.

        Cancelled, the first ones are in the queue, or all, or none.
        """
        while True:
            reserved = await self._reserve(messages)
            if not reserved:
                return []
            done, error = await self._commit(reserved)
            if error is not None:
                error.accepted = done
                raise error
            if done:
                return [names.id_of(reservation.key) for reservation in reserved[:done]]

    async def _reserve(self, messages: Sequence[bytes]) -> list[Reservation]:
        """Reserve names for the first of the messages; for none where there is no room."""
        settings, index = self._settings, self._index
        while True:
            await self._store.refresh()
            watcher = self._store.watcher
            assert watcher is not None
            wanted = len(messages)
            if settings.capacity is not None:
                wanted = min(wanted, index.room(settings.capacity), wanted if watcher.ordered else 1)
                if wanted <= 0:
                    return []
            chosen = self._names(wanted)
            reserved = await self._worker.do(self._create, chosen, messages, undo=self._directory.abandon)
            kept = 0
            try:
                watcher.drain()
                if not watcher.ordered:
                    self._store.own.update(reservation.key for reservation in reserved)
                    await self._store.refresh()
                if watcher.stale and watcher.ordered:
                    continue  # too much happened at once to know who was first
                kept, full = self._keep(reserved, watcher.ordered)
                if kept or full:
                    self._store.own.update(reservation.key for reservation in reserved[:kept])
                    return reserved[:kept]
            finally:
                if kept < len(reserved):
                    try:
                        await self._abandon(reserved[kept:])
                    except BaseException:  # cancelled: nobody is told of the others
                        await self._abandon(reserved[:kept])
                        raise

    async def _abandon(self, reserved: Sequence[Reservation]) -> None:
        """Leave messages unwritten. Cancelled, that is done all the same."""
        self._forget(reserved)
        await self._worker.surely(self._directory.abandon, reserved)

    def _keep(self, reserved: Sequence[Reservation], ordered: bool) -> tuple[int, bool]:
        """Return how many of the names are good, the first ones, and whether the next one has no room."""
        index, capacity = self._index, self._settings.capacity
        for count, reservation in enumerate(reserved):
            key = reservation.key
            if index.filename_of(key) is not None or (ordered and key in index.behind):
                return count, False  # another message has that name, or a later one: they are given as they appear
            if capacity is not None and index.room(capacity, key, ordered) <= 0:
                return count, True  # somebody was quicker, or will be gone when this one tries again
        return len(reserved), False

    def _names(self, count: int) -> list[int]:
        """Names for new messages, which nobody has as far as the index knows."""
        settings = self._settings
        newest = max(self._index.newest, self._last, self._store.noted)
        keys = []
        now = settings.clock()
        for _ in range(count):
            try:
                newest = names.following(newest, now, settings.unit)
            except OverflowError as error:
                reason = f"cannot publish to the queue {settings.name!r}: {error}"
                raise StorageError(reason, name=settings.name, errno=errno.EOVERFLOW) from None
            keys.append(newest)
        self._last = newest
        return keys

    def _create(self, keys: Sequence[int], messages: Sequence[bytes]) -> list[Reservation]:
        reserved: list[Reservation] = []
        for key, message in zip(keys, messages, strict=False):
            try:
                reservation = self._directory.reserve(key, message)
            except StorageError:
                if reserved:
                    break  # these first; the next one to ask is told
                raise
            if reservation is None:
                break
            reserved.append(reservation)
        if reserved and names.time_of(reserved[-1].key) > self._store.now:
            marks.note(self._directory.fileno(), reserved[-1].key)
        return reserved

    def _forget(self, reservations: Sequence[Reservation]) -> None:
        for reservation in reservations:
            self._store.own.discard(reservation.key)
            self._index.finished(reservation.key)

    async def _commit(self, reserved: Sequence[Reservation]) -> tuple[int, StorageError | None]:
        commit = _Commit(reserved)
        try:
            if self._settings.fsync or self._worker.always:
                self._commits.append(commit)
                await self._worker.in_thread(self._commit_together, commit)
            else:
                commit.outcome = self._directory.commit(reserved)
            assert commit.outcome is not None
            return commit.outcome
        finally:
            if commit.outcome is not None:  # also of one that was cancelled
                self.published += commit.outcome[0]
            self._forget(reserved)

    def _commit_together(self, wanted: _Commit) -> None:
        """Bring to the disk, in the thread, all that is there to be brought: what came during the last round."""
        if wanted.outcome is not None:
            return
        commits = [self._commits.popleft() for _ in range(len(self._commits))]
        done, error = self._directory.commit([one for commit in commits for one in commit.reservations])
        for commit in commits:
            count = len(commit.reservations)
            commit.outcome = min(done, count), copy.copy(error)  # each task raises its own
            if done < count:
                error = None  # it is this one's; those behind it were abandoned, and try again
            done = max(0, done - count)

    async def adopt(self, other: Directory, filename: str) -> bool | None:
        """Move a message of another queue to the end of this one.

        Returns:
            Whether it was there; None where there is no room.
        """
        while True:
            reserved = await self._reserve([b""])
            if not reserved:
                return None
            try:
                mine = names.id_of(reserved[0].key)
                return await self._worker.do(other.move, filename, self._directory, mine)
            except FileExistsError:
                continue
            finally:
                await self._abandon(reserved)
