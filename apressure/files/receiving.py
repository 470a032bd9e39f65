"""Receiving, deleting and giving back in one go, without waiting (specification: Ready, Deleted, Requeuing).

Whose time has run out is given back first; then the oldest message is taken by a rename, which one of several wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files import names
from apressure.files.directory import Directory, NotAMessageError, Taken
from apressure.files.store import Store

logger = logging.getLogger("apressure")

_LATER: Final = 1_000_000
"""Microseconds after which to try again to give back what cannot be given back."""


class Got(NamedTuple):
    """A message that was received.

    Attributes:
        key: Which one.
        filename: What it is called now.
        data: What is in it.
        attempts: How often it has been handed out, this time included.
        expires: Until when it is ours, in seconds since 1970.
    """

    key: int
    filename: str
    data: bytes
    attempts: int
    expires: float


class Receiver:
    """Receives from a store.

    Attributes:
        received, deleted, buried: How many messages it has received, deleted, and moved to the dead-letter queue.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = store.settings
        self._index = store.index
        self._directory = store.directory
        self._worker = store.worker
        self._dead: Directory | None = None
        self._place = -1
        """The last name in the dead-letter queue that was not the message's own."""
        self.received = 0
        self.deleted = 0
        self.buried = 0

    def until(self, seconds: float | None) -> float:
        """Return when a visibility timeout ends that begins now, in seconds since 1970; None for the queue's own."""
        return self._settings.clock() + (self._settings.visibility_timeout if seconds is None else seconds)

    async def take(self, most: int, visibility: float | None) -> list[Got]:
        """Take the oldest messages that wait, after giving back whose time has run out (specification: Requeuing).

        Raises:
            QueueDoesNotExistError: The directory is not there any more.
            StorageError: The file system refused. Nothing was taken.

        Cancelled, nothing was taken, or it has been given back.
        """
        got: list[Got] = []
        most_often = self._settings.max_attempts
        try:
            await self._store.refresh()
            await self._requeue_expired()
            while len(got) < most and (key := self._index.head()) is not None:
                until = self.until(visibility)
                filename = names.taken_name(key, until)
                try:
                    taken = await self._worker.do(
                        self._directory.take, key, filename, most_often, undo=self._put_back(key, filename)
                    )
                except NotAMessageError:
                    self._index.discard(names.id_of(key))
                    continue
                except StorageError:
                    if got:
                        break  # these first; the next one to ask is told
                    raise
                self._store.went(names.id_of(key))
                if taken is None:
                    if not got:
                        await self._store.refresh()
                        await self._requeue_expired()
                elif most_often is not None and taken.before >= most_often:
                    await self._bury(key, filename, taken.before)
                else:
                    got.append(Got(key, filename, taken.data, taken.before + 1, until))
        except BaseException:
            await self.give_back(got)
            raise
        self.received += len(got)
        return got

    async def give_back(self, got: list[Got]) -> None:
        """Undo a `take`, of which nobody has heard. Cancelled, that is done all the same."""
        await self._worker.surely(self._put_all_back, got)

    def _put_all_back(self, got: list[Got]) -> None:
        for one in got:
            self._directory.put_back(one.filename, one.key, one.attempts - 1)

    def _put_back(self, key: int, filename: str) -> Callable[[Taken | None], object]:
        def undo(taken: Taken | None) -> None:
            if taken is not None:
                self._directory.put_back(filename, key, taken.before)

        return undo

    async def _requeue_expired(self) -> None:
        index, requeued = self._index, 0
        while (expiry := index.next_expiry()) is not None and expiry[0] <= self._store.now:
            outcome = await self.requeue(expiry[1])
            if outcome is None:
                index.postpone(expiry[1], self._store.now + _LATER)
            requeued += 1
            if requeued % 64 == 0:
                await asyncio.sleep(0)
        if requeued:
            await self._store.refresh()

    async def requeue(self, filename: str) -> bool | None:
        """Let a message be received again that was taken; see `Directory.requeue`."""
        name = names.parse(filename)
        assert name is not None
        outcome = await self._worker.do(self._directory.requeue, filename, name.key)
        if outcome is not None:
            self._store.went(filename)
        return outcome

    async def _bury(self, key: int, filename: str, times: int) -> None:
        """Move what was handed out too often to the dead-letter queue."""
        settings, place, step, moved = self._settings, key, 1, False
        while True:
            if self._dead is None:
                dead = self._store.beside(settings.dead_letters)
                await self._worker.do(dead.open, True)
                self._dead = dead
            try:
                there = names.id_of(place)
                moved = await self._worker.do(self._directory.move, filename, self._dead, there)
                if not moved:
                    self._dead.check()
            except FileExistsError:  # several queues may have one for their dead letters
                place = self._place = names.following(max(place, self._place) + step, 0, "us" if key & 1 else "ms")
                step *= 2
            except QueueDoesNotExistError:
                self._dead = None  # it was deleted, and is made again
            else:
                break
        if moved:
            self.buried += 1
            logger.warning(
                "message %s of the queue %r was delivered %d times and never acknowledged: it is in %r now",
                names.id_of(key), settings.name, times, settings.dead_letters,
            )  # fmt: skip

    async def rename(self, before: str, after: str) -> bool:
        """Call a message that was taken something else. False where it is not there any more."""
        try:
            renamed = await self._worker.do(self._directory.rename, before, after)
        except FileExistsError:  # another one has its id: this one comes again when its time runs out
            return True
        if renamed:
            self._store.went(before)
        return renamed

    async def remove(self, filename: str) -> bool:
        """Delete a message that is called so. False where it is not there any more."""
        removed = await self._worker.do(self._directory.remove, filename)
        if removed:
            self.deleted += 1
            self._store.went(filename)
        return removed

    async def delete(self, key: int) -> bool:
        """Delete a message, waiting or in flight (specification: Deleted). False where there is none."""
        for _ in range(100):
            await self._store.refresh()
            filename = self._index.filename_of(key)
            if filename is None:
                return False
            if await self.remove(filename):
                return True
            self._store.went(filename)  # it is called something else by now
        return False
