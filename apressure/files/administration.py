"""What operators and displays ask of a queue, and the life of a queue object."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
)
from apressure.files import names
from apressure.files.directory import Directory
from apressure.files.options import Settings, deadline_of, positive
from apressure.files.publishing import Publisher
from apressure.files.receiving import Receiver
from apressure.files.statistics import FileQueueStatistics
from apressure.files.store import Store
from apressure.files.waits import Line, Waits

_BREATH: Final = 0.002
"""Seconds after which other tasks of the event loop get their turn, however much there is to do."""


class Administration:
    """The part of `FileQueue` that knows nothing of what items are."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.name
        self.path = settings.parent / settings.name
        self.capacity = settings.capacity
        self._settings = settings
        self._store = Store(settings)
        self._publisher = Publisher(self._store)
        self._receiver = Receiver(self._store)
        self._waits = Waits(self._store.look, self._store.fileno)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False
        self._running = 0
        self._breathed = 0.0

    def __repr__(self) -> str:
        return f"<FileQueue {str(self.path)!r}>"

    async def __aenter__(self) -> Self:
        with self._operation():
            try:
                await self._store.refresh()
            except BaseException:
                await self.aclose()  # the block is never entered, so nobody else would
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release this object's descriptors; the queue stays as it is. Closing twice is allowed.

        Tasks that still wait get ClientClosedError; a step that is being made is made to its end before the descriptors
        go, and what it received is given back. What was received before and not settled comes again when its
        visibility timeout ends; `nack` gives it back earlier.

        Raises:
            RuntimeError: The object belongs to another event loop, which goes on.
        """
        if self._closed or self._loop is None:
            pass
        elif self._pid != os.getpid():
            self._store.release()  # the descriptors were copied, and nothing goes on here
        elif self._loop.is_closed():
            self._store.close()
        else:
            self._check()
            self._waits.close(ClientClosedError("the queue object was closed (aclose) while the operation waited"))
            if not self._running:
                self._store.close()
        self._closed = True

    @property
    def published(self) -> int:
        """How many messages this object has published until now."""
        return self._publisher.published

    async def delete(self, message_id: str) -> bool:
        """Delete a message, whatever its state and whoever has received it (specification: Deleted).

        Returns:
            Whether it was there.

        Raises:
            TypeError, ValueError: It is not a message's id.
            QueueDoesNotExistError, StorageError: As for `publish`.

        Cancelled, it is deleted, or not at all.
        """
        if not isinstance(message_id, str):
            raise TypeError(f"a message's id must be a string, not {type(message_id).__name__}")
        key = names.key_of(message_id)
        if key is None:
            raise ValueError(f"not a message's id: {message_id!r}")
        with self._operation():
            await self._breathe()
            return await self._receiver.delete(key)

    async def qsize(self) -> int:
        """Return how many messages wait. Cancelled, nothing has changed."""
        return (await self.statistics()).length

    async def statistics(self) -> FileQueueStatistics:
        """Return a snapshot of the queue. Cancelled, nothing has changed."""
        with self._operation():
            await self._breathe()
            await self._store.refresh()
        index = self._store.index
        oldest, expiry = index.oldest(), index.next_expiry()
        return FileQueueStatistics(
            name=self.name,
            path=str(self.path),
            length=index.waiting,
            in_flight=index.in_flight,
            unfinished=len(index.unfinished),
            capacity=self.capacity,
            oldest=None if oldest is None else datetime.fromtimestamp(names.time_of(oldest) / 1e6, UTC),
            next_expiry=None if expiry is None else datetime.fromtimestamp(expiry[0] / 1e6, UTC),
            published=self.published,
            received=self._receiver.received,
            deleted=self._receiver.deleted,
            buried=self._receiver.buried,
            waiting_publishers=len(self._waits.publishers),
            waiting_receivers=len(self._waits.receivers),
            notified=self._store.notified,
        )

    async def purge(self, in_flight: bool = False) -> int:
        """Delete the messages that are there when it begins.

        Args:
            in_flight: Also those that were received and are not settled.

        Returns:
            How many it has deleted.

        Cancelled, some of them are deleted.
        """
        return await self._each(self._receiver.remove, waiting=True, in_flight=in_flight)

    async def release(self) -> int:
        """Give back every message that is in flight, whoever has received it and however long it may have it still.

        Returns:
            How many it has given back.

        Cancelled, some of them are given back.
        """
        return await self._each(self._receiver.requeue, waiting=False, in_flight=True)

    async def requeue(
        self, max_items: int | None = None, timeout: float | None = None, source: str | None = None
    ) -> int:
        """Move dead letters back to the end of the queue, the oldest first, those that are there when it begins.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait for room at most.
            source: The dead-letter queue's name; None for this queue's own.

        Returns:
            How many were moved.

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueDoesNotExistError: There is no queue of the name `source`.
            StorageError: The file system refused.

        Cancelled, each of them is in one of the two queues.
        """
        if max_items is not None:
            positive(max_items, "max_items")
        deadline = self._deadline(timeout)
        name = self._settings.dead_letters if source is None else names.check_queue_name(source)
        dead = self._store.beside(name)
        ticket = self._waits.publishers.ticket()
        moved = 0
        with self._operation(), contextlib.closing(dead):
            try:
                found = await self._store.worker.in_thread(_oldest_first, dead)
            except QueueDoesNotExistError:
                if source is not None:
                    raise
                return 0  # nothing has died yet
            try:
                for filename in found[:max_items]:
                    await self._breathe()
                    while (adopted := await self._publisher.adopt(dead, filename)) is None:
                        await self._wait(self._waits.publishers, ticket, deadline)
                    moved += adopted
            except PressureError as error:
                error.accepted = moved
                raise
        return moved

    def _deadline(self, timeout: float | None) -> float | None:
        self._check()
        return deadline_of(timeout)

    async def _wait(self, line: Line, ticket: int, deadline: float | None) -> None:
        """Wait in a line, or raise what has become of the wait at its deadline."""
        self._check()
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            if line is self._waits.receivers:
                raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
            raise QueueFullError(f"the queue {self.name!r} is full: it has {self.capacity} messages", name=self.name)
        await self._waits.wait(line, ticket, deadline)
        self._check()  # who was woken may find the object closed

    async def _each(self, act: Callable[[str], Any], *, waiting: bool, in_flight: bool) -> int:
        count = 0
        with self._operation():
            await self._store.refresh()
            for filename in self._store.index.filenames(waiting=waiting, in_flight=in_flight):
                await self._breathe()
                count += bool(await act(filename))
        return count

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        """What each operation is in: descriptors and the thread stay until it has ended, and then others may try."""
        self._check()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._waits.nudge()
            if self._closed and not self._running:
                self._store.close()

    async def _breathe(self) -> None:
        """Let other tasks run now and then: no operation suspends by itself where there is nothing to wait for."""
        assert self._loop is not None
        if self._loop.time() - self._breathed > _BREATH:
            await asyncio.sleep(0)
            self._breathed = self._loop.time()
            self._check()

    def _check(self) -> None:
        """Raise a clear error where the object cannot be used: closed, another event loop, after a fork, no asyncio."""
        if self._pid not in {0, os.getpid()}:
            raise RuntimeError("this queue object belongs to the process that forked: make one after the fork")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("apressure needs a running asyncio event loop (trio is not supported)") from None
        if self._closed:
            raise ClientClosedError("this queue object was closed (aclose); open a new one")
        if self._loop is None:
            self._loop, self._pid = loop, os.getpid()
        if self._loop is not loop:
            raise RuntimeError("this queue object belongs to another event loop: make one for each")


def _oldest_first(directory: Directory) -> list[str]:
    directory.open(create=False)
    keys = [name.key for filename in directory.list() if (name := names.parse(filename)) and name.state == "ready"]
    return [names.id_of(key) for key in sorted(keys)]
