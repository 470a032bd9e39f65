"""The life of a queue object: its operations, its waits, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import ClassVar, Final, Generic, Self, TypeVar

from apressure import validation
from apressure.concurrency.lifetime import LoopBound
from apressure.core.backpressure import WaitForRoom
from apressure.core.delivery import Hand
from apressure.core.objects import Block
from apressure.core.queue import Queue
from apressure.core.waiting import Wait
from apressure.exceptions import ClientClosedError, OperationUnblockedError, QueueDoesNotExistError, QueueFullError
from apressure.files.delivery import FileDelivery
from apressure.files.options import Settings
from apressure.files.putting import Putter
from apressure.files.receiving import Got, Receiver
from apressure.files.registry import FileRegistry
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from apressure.files.storage.store import Store
from apressure.files.waits import Waits

T = TypeVar("T")
A = TypeVar("A")

_BREATH: Final = 0.002
"""Seconds after which an operation lets other tasks of the event loop run."""


class Core(LoopBound, Queue[T, FileDelivery[T]], Generic[T]):
    """The part of `FileQueue` that is about the object: its life, its operations, its waits."""

    _KIND = "queue object"
    _a_kind: ClassVar[str] = "a FileQueue"
    _unable_to_limit: ClassVar[str] = "a FileQueue"
    _keyless = "a FileQueue has no server that counts for all processes"
    _replyless = "a FileQueue has no server that could tell those who wait"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.name = settings.name
        self.path = settings.parent / settings.name
        self._where = f": {self.path}"
        self.max_attempts = settings.max_attempts
        self._store = Store(settings)
        self._putter = Putter(self._store, self._operation)
        self._receiver = Receiver(self._store, self._operation, self._putter.promote)
        self._waits = Waits(self._store)
        self._registry = self._waits.backpressure.registry = FileRegistry(self._store, self._operation)
        self.blocks: set[Block] = set()
        self._breathed = 0.0

    def __repr__(self) -> str:
        return f"<FileQueue {str(self.path)!r}>"

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of the dead-letter queue, in a directory beside this one; None without `max_attempts`."""
        return None if self.max_attempts is None else self._store.settings.dead_letters

    @property
    def registry(self) -> FileRegistry:
        return self._registry

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
                self._waits.backpressure.end()  # while an operation may still begin
                self._closed = True
                closed = ClientClosedError("the queue object was closed (aclose) while the operation waited")
                self._waits.close(closed)
        self._closed = True

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        It reaches what waits. An operation that makes a try at this moment may end as well, without being counted, or
        wait after it: to end a task for certain, repeat `unblock` until the task is done.

        Returns:
            How many operations were waiting.
        """
        self.check()
        return self._waits.fail(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )

    async def prepare(self) -> None:
        with self._operation():
            await self._store.open(create=True)

    async def take(
        self, most: int, timeout: float | None, lease: float, idle: Callable[[], bool] | None = None
    ) -> list[Got]:
        """Take one to `most` messages, waiting while there is none; for the rest see `FileQueue.receive`.

        Args:
            most: How many at most.
            timeout: Seconds to wait at most.
            lease: Seconds.
            idle: In a drained queue, wait for messages in flight while this returns True.
        """
        take = functools.partial(self._receiver.take, most, lease, idle)
        return await self._until(take, timeout, self._receiver.undo)

    def deliveries(self, received: Sequence[Got], in_hand: Hand | None = None) -> list[FileDelivery[T]]:
        """Return the deliveries of messages that were received; `in_hand` is what their consumer has in hand."""
        return [FileDelivery(self._receiver, self._items.decode, got, in_hand) for got in received]

    async def _until(
        self,
        step: Callable[[], Awaitable[A | Wait]],
        timeout: float | None,
        undo: Callable[[A], Awaitable[None]] | None = None,
    ) -> A:
        """See `Administration`. `undo` is for an answer that comes when the object has been closed."""
        operation, loop = self._operation(), self._loop
        assert loop is not None
        validation.timeout(timeout)
        until, ticket = None if timeout is None else loop.time() + timeout, next(operation.tickets)
        for_room: WaitForRoom | None = None
        try:
            with operation:
                await self.breathe()
                while isinstance(answer := await step(), Wait):
                    self.check()
                    if until is not None and loop.time() >= until:
                        if answer.reason == "full":
                            what = f"the queue {self.name!r} is full: it has {self._store.bound} messages"
                            raise QueueFullError(what, name=self.name)
                        raise answer.error(self.name)
                    if for_room is None and answer.reason == "full":
                        for_room = WaitForRoom(loop.time())
                        operation.backpressure.note(for_room)
                    await operation.wait(answer, ticket, until)
                    self.check()  # the object may have been closed meanwhile
                if self._closed and undo is not None:
                    await undo(answer)
                    self.check()
        finally:
            if for_room is not None:
                for_room.ended = True
        return answer

    def _operation(self) -> Waits:
        """Return the context of each operation, if the object can be used."""
        self.check()
        return self._waits

    @contextlib.contextmanager
    def _dead(self, source: str | None) -> Iterator[Directory]:
        """The directory of dead letters: of this queue's own, or of the queue of that name, which is beside this one.

        It is closed when no call uses it any more.
        """
        own = self._store.settings.dead_letters
        directory = self._store.beside(own if source is None else names.check_queue_name(source))
        try:
            yield directory
        finally:
            self._store.worker.after(directory.close)

    async def breathe(self) -> None:
        """Let other tasks run now and then: an operation that need not wait does not suspend."""
        assert self._loop is not None
        if self._loop.time() - self._breathed > _BREATH:
            await asyncio.sleep(0)
            self._breathed = self._loop.time()
            self.check()
