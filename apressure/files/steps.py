"""What steps on a queue in a directory have in common, and those on the queue as a whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from apressure.exceptions import QueueClosedError
from apressure.files.storage import lifecycle
from apressure.files.storage.store import Store


class Steps:
    """Steps on the queue of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = store.settings
        self._index = store.index
        self._directory = store.directory
        self._worker = store.worker


class QueueSteps(Steps):
    """The steps that are about the queue as a whole. Each is one call of the thread.

    Args:
        store: The queue.
        operation: Returns the context of an operation.
    """

    def __init__(self, store: Store, operation: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(store)
        self._operation = operation

    async def create(self, bound: int) -> bool:
        """Make the directory, with its bound in it, unless something has its name. Returns whether it is new."""
        with self._operation():
            place = self._store.beside(self._settings.name)
            new = await self._worker.in_thread(lifecycle.create, place, bound)
            self._store.auto_create = False  # if another process deletes it, a put does not make it again
            await self._store.reopen()
        return new

    async def close(self, expected: bool = True) -> None:  # noqa: ARG002 (a directory must be there)
        """Close the queue. Raises QueueClosedError where it is closed already."""
        if not await self._call(self._directory.close_queue):
            name = self._settings.name
            raise QueueClosedError(f"the queue {name!r} is closed", name=name)

    async def pause(self, pausing: bool, expected: bool = True) -> bool:  # noqa: ARG002
        """Pause the queue, or resume it. Returns whether that is new."""
        return bool(await self._call(self._directory.pause if pausing else self._directory.resume))

    async def delete(self) -> None:
        """Delete the directory, if it contains nothing but a queue."""
        await self._call(lifecycle.delete, self._directory)

    async def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        with self._operation():
            await self._store.refresh()
            return await self._worker.in_thread(call, *arguments)
