"""What a queue in a directory does as a whole. Each step is one call of its thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from apressure.core.waiting import FULL, Wait
from apressure.exceptions import QueueClosedError
from apressure.files.putting import Putter
from apressure.files.storage import lifecycle
from apressure.files.storage.directory import Directory
from apressure.files.storage.store import Store


class FileSteps:
    """The steps that are about the queue as a whole.

    Args:
        store: The queue.
        operation: Returns the context of an operation.
        on_create: Called when the directory is there: from then on, nothing else makes it.
    """

    def __init__(
        self, store: Store, operation: Callable[[], AbstractContextManager[None]], on_create: Callable[[], None]
    ) -> None:
        self._store = store
        self._operation = operation
        self._on_create = on_create

    async def create(self, bound: int) -> bool:
        """Make the directory, with its bound in it, unless something has its name. Returns whether it is new."""
        with self._operation():
            new = await self._store.worker.in_thread(
                lifecycle.create, self._store.beside(self._store.settings.name), bound
            )
            self._on_create()
            await self._store.reopen()
        return new

    async def close(self, expected: bool = True) -> None:  # noqa: ARG002 (a directory must be there)
        """Close the queue. Raises QueueClosedError where it is closed already."""
        with self._operation():
            await self._store.refresh()
            try:
                await self._store.worker.in_thread(self._store.directory.close_queue)
            except FileExistsError:
                name = self._store.settings.name
                raise QueueClosedError(f"the queue {name!r} is closed", name=name) from None

    async def pause(self, pausing: bool, expected: bool = True) -> bool:  # noqa: ARG002
        """Pause the queue, or resume it. Returns whether that is new."""
        directory = self._store.directory
        with self._operation():
            await self._store.refresh()
            return await self._store.worker.in_thread(directory.pause if pausing else directory.resume)

    async def delete(self) -> None:
        """Delete the directory, if it contains nothing but a queue."""
        with self._operation():
            await self._store.refresh()
            await self._store.worker.in_thread(lifecycle.delete, self._store.directory)


class Revived:
    """Dead letters on their way back to the end of the queue.

    Args:
        putter: Puts them.
        dead: The directory that they are in.
        filenames: Their names, the oldest first.
        missing: The ids that were asked for, or nothing.
        breathe: Lets other tasks run now and then.

    Attributes:
        moved: How many have been moved.
        not_found: The ids that no dead letter has (any more).
    """

    def __init__(
        self,
        putter: Putter,
        dead: Directory,
        filenames: list[str],
        missing: dict[str, None],
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        self.moved = 0
        self.not_found = missing
        self._putter = putter
        self._dead = dead
        self._left = filenames[::-1]
        self._breathe = breathe

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return bool(self._left)

    async def step(self) -> Wait | None:
        """Move all for which there is room. What waits for room keeps its place in the line."""
        while self._left:
            await self._breathe()
            adopted = await self._putter.adopt(self._dead, self._left[-1])
            if adopted is None:
                return FULL
            filename = self._left.pop()
            if adopted:
                self.moved += 1
                self.not_found.pop(filename, None)
        return None
