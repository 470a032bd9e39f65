"""The life of a queue object: its operations, its waits, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import ClassVar, Final, Generic, Self, TypeVar

from apressure import validation
from apressure.concurrency.blocked import Blocked, Cause
from apressure.concurrency.lifetime import LoopBound
from apressure.core.objects import Block
from apressure.core.queue import Queue
from apressure.core.waiting import Wait
from apressure.exceptions import (
    ClientClosedError,
    OperationUnblockedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueError,
    QueueFullError,
    QueueOpenError,
)
from apressure.files.delivery import FileDelivery
from apressure.files.options import Settings, check_lease
from apressure.files.putting import Putter
from apressure.files.receiving import Got, Receiver
from apressure.files.storage.directory import Directory
from apressure.files.storage.store import Store
from apressure.files.waits import Line, Waits

T = TypeVar("T")
A = TypeVar("A")

_BREATH: Final = 0.002
"""Seconds after which an operation lets other tasks of the event loop run."""


class Core(LoopBound, Queue[T, FileDelivery[T]], Generic[T]):
    """The part of `FileQueue` that is about the object: its life, its operations, its waits."""

    _KIND = "queue object"
    _a_kind: ClassVar[str] = "a FileQueue"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.name = settings.name
        self.path = settings.parent / settings.name
        self.max_attempts = settings.max_attempts
        self._auto_create = settings.auto_create
        self._store = Store(settings)
        self._putter = Putter(self._store)
        self._receiver = Receiver(self._store)
        self._waits = Waits(self._store.look, self._store.attend)
        self._blocked = Blocked()
        self.blocks: set[Block] = set()
        self._running = 0
        self._breathed = 0.0

    def __repr__(self) -> str:
        return f"<FileQueue {str(self.path)!r}>"

    @property
    def _where(self) -> str:  # type: ignore[override]
        return f": {self.path}"

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of the dead-letter queue, in a directory beside this one; None without `max_attempts`."""
        return None if self.max_attempts is None else self._store.settings.dead_letters

    @property
    def opened(self) -> bool:
        """Whether the object has been used."""
        return self._loop is not None

    async def __aenter__(self) -> Self:
        with self._operation():
            try:
                with contextlib.suppress(QueueDoesNotExistError):  # `create`, or a put, may make it
                    await self._store.refresh()
            except BaseException:
                await self.aclose()  # the block is not entered, so its end does not do it
                raise
        return self

    async def aclose(self) -> None:
        """Release this object's descriptors; the queue stays as it is. Closing twice is allowed.

        Tasks that still wait get ClientClosedError. A step under way ends before the descriptors are closed, and what
        it received is given back. So is what a consumer's block has in hand. What was received by hand and not settled
        comes again when its lease ends; `nack` gives it back earlier.

        Raises:
            RuntimeError: The object belongs to another event loop, which is still running.
        """
        if self._closed or self._loop is None:
            pass
        elif self._pid != os.getpid():
            self._store.release()  # of the forked process's copies: the thread is not in it
        elif self._loop.is_closed():
            self._store.close()
        else:
            self.check()
            try:
                for consumer in [*self.blocks]:
                    await consumer.end()
            finally:
                self._closed = True
                self._waits.close(ClientClosedError("the queue object was closed (aclose) while the operation waited"))
                if not self._running:
                    self._store.close()
        self._closed = True

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        Returns:
            How many operations were blocked.
        """
        self.check()
        return self._waits.fail(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )

    async def prepare(self) -> None:
        with self._operation():
            await self._make()

    async def _make(self) -> None:
        """Open the directory for putting or receiving, and make it if it is missing and the options allow that."""
        if self._store.watcher is None:
            await self._store.open(self._auto_create)

    async def _take(
        self, most: int, timeout: float | None, lease: float | None, idle: Callable[[], bool] | None = None
    ) -> list[Got]:
        """Take one to `most` messages, waiting while there is none; for the rest see `FileQueue.receive`.

        Args:
            most: How many at most.
            timeout: Seconds to wait at most.
            lease: Seconds; None for the queue's own lease.
            idle: In a drained queue, wait for messages in flight while this returns True.
        """
        until = self._end_of(timeout)
        if lease is not None:
            check_lease(lease, none=True)
        ticket = self._waits.ticket()
        with self._operation():
            await self._breathe()
            await self._make()
            while not (got := await self._receiver.take(most, lease)):
                line = self._waits.receivers
                if self._store.drained and not self._store.index.paused:
                    if idle is None or not idle() or not self._store.index.in_flight:
                        raise QueueClosedError(
                            f"the queue {self.name!r} is closed and nothing waits in it", name=self.name
                        )
                    line = self._waits.drainers
                await self._wait(line, ticket, until)
            if self._closed:  # they could not be settled
                await self._receiver.undo(got)
                self.check()
        return got

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        until, ticket = self._end_of(timeout), self._waits.ticket()
        with self._operation():
            while isinstance(answer := await step(), Wait):
                line = self._waits.closers if answer.reason == "open" else self._waits.putters
                await self._wait(line, ticket, until)
        return answer

    def _end_of(self, timeout: float | None) -> float | None:
        """Return when a timeout ends that begins now, by the event loop's clock."""
        self.check()
        validation.timeout(timeout)
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def _wait(self, line: Line, ticket: int, until: float | None) -> None:
        """Wait in a line. At the end of the timeout, raise the error of this line."""
        self.check()
        if until is not None and asyncio.get_running_loop().time() >= until:
            raise self._too_late(line)
        with self._blocked.by(self._cause(line)):
            await self._waits.wait(line, ticket, until)
        self.check()  # the object may have been closed meanwhile

    def _cause(self, line: Line) -> Cause | None:
        """Return what blocks the tasks of a line."""
        if line is self._waits.closers:
            return None
        if line is self._waits.putters:
            return "full"
        return "paused" if self._store.index.paused else "empty"

    def _too_late(self, line: Line) -> QueueError:
        if line is self._waits.putters:
            bound = self._store.bound
            return QueueFullError(f"the queue {self.name!r} is full: it has {bound} messages", name=self.name)
        if line is self._waits.closers:
            return QueueOpenError(f"the queue {self.name!r} is still open", name=self.name)
        state = "paused" if self._store.index.paused else "empty"
        return QueueEmptyError(f"the queue {self.name!r} is {state}", name=self.name)

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        """The context of each operation: it keeps descriptors and the thread open, and wakes other tasks at its end."""
        self.check()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._waits.nudge()
            if self._closed and not self._running:
                self._store.close()

    @contextlib.contextmanager
    def _beside(self, name: str) -> Iterator[Directory]:
        """The directory of another queue beside this one. It is closed when no call uses it any more."""
        directory = self._store.beside(name)
        try:
            yield directory
        finally:
            self._store.worker.after(directory.close)

    async def _breathe(self) -> None:
        """Let other tasks run now and then: an operation that need not wait does not suspend."""
        assert self._loop is not None
        if self._loop.time() - self._breathed > _BREATH:
            await asyncio.sleep(0)
            self._breathed = self._loop.time()
            self.check()

    take, breathe = _take, _breathe
    """What a consumer calls."""
