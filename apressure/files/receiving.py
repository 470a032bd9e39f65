"""Receives, deletes and gives back messages, without waiting (specification: Ready, Deleted, Requeuing).

Messages whose lease has ended are requeued first. Then a rename takes the oldest message: one client wins it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from apressure import dead_letters, logs
from apressure.core.browsing import Asked, Found
from apressure.core.waiting import EMPTY, Wait
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError, StorageError
from apressure.files.storage import names
from apressure.files.storage.directory import Back, Directory, NotAMessageError, Taken
from apressure.files.storage.messages.contents import TooLargeError, look
from apressure.files.storage.store import Operation, Steps, Store

logger = logging.getLogger("apressure")

DRAINING: Final = Wait("draining")
PAUSED: Final = Wait("paused")

_LATER: Final = 1_000_000
"""Microseconds until the next try to requeue a message that could not be requeued."""


class Got(NamedTuple):
    """A message that was received.

    Attributes:
        key: The message.
        filename: Its present name.
        data: Its content.
        attempts: How often it has been handed out, this time included.
        until: When its lease ends, in seconds since 1970.
        expires: When it expires, in microseconds since 1970; 0 for never.
    """

    key: int
    filename: str
    data: bytes
    attempts: int
    until: float
    expires: int


class Receiver(Steps):
    """Receives from a store.

    Args:
        store, operation: As for `Steps`.
        promote: Brings delayed messages that are due into the queue.

    Attributes:
        keeps_errors: Keep why messages failed.
    """

    def __init__(self, store: Store, operation: Operation, promote: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, operation)
        self._promote = promote
        self._dead: Directory | None = None
        self._place = -1
        """The last id in the dead-letter queue that was not the message's own."""
        self.keeps_errors = store.settings.max_attempts is not None and store.settings.keep_errors

    async def take(self, most: int, lease: float, idle: Callable[[], bool] | None = None) -> list[Got] | Wait:
        """Take the oldest messages that wait, after requeuing those whose lease has ended (specification: Requeuing).

        Args:
            most: How many at most.
            lease: Seconds.
            idle: In a drained queue, wait for messages in flight if this returns True.

        Returns:
            The messages; a `Wait` if there is none, or if the queue is paused.

        Raises:
            QueueClosedError: The queue is closed and drained.
            QueueDoesNotExistError: The directory was deleted.
            StorageError: The file system refused. Nothing was taken.

        Cancelled, nothing was taken, or it has been given back.
        """
        got: list[Got] = []
        index, store, limit = self._index, self.store, self.settings.max_attempts
        try:
            await self._begin()
            while len(got) < most and not index.paused and (key := index.head()) is not None:
                message_id, until = names.id_of(key), store.time() + lease
                filename = names.taken_name(key, until)
                # A listing may have missed the file that says when it expires.
                now = store.now if key in index.reasons or not store.watcher.ordered else 0
                try:
                    undo = functools.partial(self._undo_take, key, filename)
                    taken = await self._worker.do(self._directory.take, key, filename, limit, now, undo=undo)
                except NotAMessageError:
                    index.discard(message_id)
                    continue
                except StorageError as error:
                    if isinstance(error.__cause__, TooLargeError) and self.keeps_errors:
                        await self.note(message_id, key, dead_letters.encode(error.__cause__.strerror or ""))
                    if got:
                        logger.warning("%s", error)
                        break  # these first; the next call raises it
                    raise
                store.went(message_id)
                if taken is None:
                    if not got:
                        await self._begin()
                elif 0 < taken.expires <= now:
                    await self._move_to_dead_letters(key, filename, taken, expired=True)
                elif limit is not None and taken.before >= limit:
                    await self._move_to_dead_letters(key, filename, taken)
                else:
                    attempts = taken.before + 1
                    got.append(Got(key, filename, taken.data, attempts, until, taken.expires))
                    if attempts > 1:
                        logs.redelivered("FileQueue", self.settings.name, message_id, attempts, taken.data)
        except BaseException:
            await self.undo(got)
            raise
        store.counts.received_count += len(got)
        return got or self._nothing(idle)

    def _nothing(self, idle: Callable[[], bool] | None) -> Wait:
        if self._index.paused:
            return PAUSED
        if not self._index.drained:
            return EMPTY
        if idle is None or not idle() or not self._index.in_flight:
            name = self.settings.name
            raise QueueClosedError(f"the queue {name!r} is closed and nothing waits in it", name=name)
        return DRAINING

    def _undo_take(self, key: int, filename: str, taken: Taken | None) -> None:
        if taken is not None:
            self._directory.put_back([Back(filename, key, taken.before)])

    async def undo(self, got: Sequence[Got]) -> None:
        """Give messages back as if they had not been received. Cancelled, they are given back all the same."""
        await self.give_back([Back(one.filename, one.key, one.attempts - 1) for one in got])

    async def give_back(self, taken: Sequence[Back]) -> None:
        """Give messages back; see `Directory.put_back`. Cancelled, they are given back all the same."""
        await self._worker.surely(self._directory.put_back, taken)

    async def count(self, filename: str, times: int) -> None:
        """Have a message count as handed out so often."""
        await self._worker.do(self._directory.count, filename, times)

    async def take_for_good(self, got: Sequence[Got], count: int) -> list[Got]:
        """Delete the first `count` of the messages that were received, and give back the others.

        Returns:
            Those that were deleted. The lease of each other one has ended, and others get it.

        Raises:
            StorageError: The file system refused to delete the first one. All of them have been given back.

        Cancelled, all of them go back, first in line.
        """
        done: list[Got] = []
        left = [*got]
        try:
            for one in got[:count]:
                try:
                    undo = functools.partial(self._undo_removal, one)
                    removed = await self._worker.do(self._directory.delete, one.filename, undo=undo)
                except StorageError as error:
                    if not done:
                        raise
                    logger.warning("%s", error)  # these first; the next call raises it
                    break
                left.remove(one)
                if removed:
                    done.append(one)
                    self.store.counts.deleted_count += 1
            back, left = left, []
            await self.undo(back)
            for one in done:
                await self._forget(one.filename)
        except BaseException:
            await self.restore(done)
            await self.undo(left)
            raise
        return done

    def _undo_removal(self, got: Got, removed: bool) -> None:
        if removed:
            self._directory.restore(got.key, got.data, got.attempts - 1, got.expires)

    async def restore(self, got: Sequence[Got]) -> None:
        """Put deleted messages back, first in line. Cancelled, they are put back all the same."""
        self.store.counts.deleted_count -= len(got)
        for one in got:
            await self._worker.surely(self._directory.restore, one.key, one.data, one.attempts - 1, one.expires)

    async def _begin(self) -> None:
        """Bring the index up to date, and back into the line what belongs there."""
        index, store, requeued = self._index, self.store, 0
        await store.refresh(create=True)
        while index.taken and (expiry := index.taken.first()) is not None and expiry[0] <= store.now:
            outcome = await self.requeue(expiry[1])
            if outcome is None:
                index.taken.postpone(expiry[1], store.now + _LATER)
            requeued += 1
            if requeued % 64 == 0:
                await asyncio.sleep(0)
        if requeued:
            await store.refresh()
        if index.delayed:
            await self._promote()

    async def requeue(self, filename: str) -> bool | None:
        """Make a message in flight wait again; see `Directory.requeue`."""
        outcome = await self._worker.do(self._directory.requeue, filename)
        if outcome is not None:
            self.store.went(filename)
        return outcome

    async def _move_to_dead_letters(self, key: int, filename: str, taken: Taken, expired: bool = False) -> None:
        """Move a message that has expired, or was handed out too often, to the dead-letter queue."""
        settings, place, step, moved = self.settings, key, 1, False
        times, data = taken.before, taken.data
        while True:
            if self._dead is None:
                dead = self.store.beside(settings.dead_letters)
                await self._worker.do(dead.open, True)
                self._dead = dead
            try:
                there, now = names.id_of(place), self.store.time()
                moved = await self._worker.do(
                    self._directory.bury, filename, key, self._dead, there, times, now, expired
                )
                if not moved:
                    self._dead.check()
            except FileExistsError:  # several queues may share a dead-letter queue
                place = self._place = names.following(max(place, self._place) + step, 0, "us" if key & 1 else "ms")
                step *= 2
            except QueueDoesNotExistError:
                self._dead = None  # it was deleted: make it again
            else:
                break
        if moved:
            self.store.counts.dead_lettered_count += 1
            logs.dead_letter("FileQueue", settings.name, names.id_of(key), times, data, settings.dead_letters)

    async def note(self, filename: str, key: int, error: bytes, attempt: int | None = None) -> None:
        """Keep why a message failed; see `Directory.note`. Cancelled, it is kept or not."""
        if await self._worker.do(self._directory.note, filename, key, error, attempt):
            self._index.reasons.add(key)  # `remove` may come before the notification

    async def rename(self, before: str, after: str, delayed: bool = False) -> bool:
        """Rename a message in flight; with `delayed`, it waits for its time. False if it is gone.

        Cancelled, it keeps its name.
        """
        directory, worker = self._directory, self._worker
        call = directory.delay if delayed else directory.rename
        do = worker.in_thread if delayed and self.settings.fsync else worker.do
        try:
            renamed = await do(call, before, after, undo=lambda renamed: renamed and directory.rename(after, before))
        except FileExistsError:  # another message has its id: this one comes again when its lease ends
            if delayed:
                raise
            return True
        if renamed:
            self.store.went(before)
        return renamed

    async def promote(self) -> None:
        """Bring delayed messages that are due into the queue, after a message was settled: that has been done."""
        with contextlib.suppress(PressureError):
            await self._promote()

    async def remove(self, filename: str) -> bool:
        """Delete the message of this name. False if it is gone."""
        removed = await self._worker.do(self._directory.delete, filename)
        if removed:
            self.store.counts.deleted_count += 1
            await self._forget(filename)
        return removed

    async def _forget(self, filename: str) -> None:
        """Forget a message that was deleted."""
        self.store.went(filename)
        if self._index.reasons and (name := names.parse(filename)) and name.key in self._index.reasons:
            self._index.reasons.discard(name.key)
            await self._worker.surely(self._directory.forget, name.key)

    async def delete(self, key: int) -> bool:
        """Delete a message, waiting or in flight (specification: Deleted). False if there is none."""
        for _ in range(100):
            await self.store.refresh()
            filename = self._index.filename_of(key)
            if filename is None:
                return False
            if await self.remove(filename):
                return True
            self.store.went(filename)  # it has another name now
        return False

    async def peek(self, newest: bool) -> bytes | None:
        """Return the oldest message that waits, or the newest one, without taking it. None if none waits."""
        while True:
            await self.store.refresh()
            key = self._index.newest_waiting() if newest else self._index.head()
            if key is None:
                return None
            filename = names.id_of(key)
            data = await self._worker.do(self._directory.read, filename)
            if data is not None:
                return data
            self.store.went(filename)

    async def browse(self, asked: Asked) -> Found:
        """Return a page of what is in a place of the queue. Messages that go meanwhile are left out."""
        await self.store.refresh()
        index, most = self._index, asked.passed + asked.limit
        if asked.place == "waiting":
            filenames, total = index.some_waiting(most, asked.newest), index.waiting
        else:
            of_place = {"in_flight": index.taken.oldest_first, "delayed": index.delayed.names}.get(asked.place, list)
            filenames = of_place()
            total = len(filenames)
            if asked.newest:
                filenames.reverse()
        chosen = filenames[asked.passed : most]
        looked, seen = await self._worker.in_thread(look, self._directory.fileno(), chosen, asked.most_bytes)
        return Found.of(seen, asked, looked, total)
