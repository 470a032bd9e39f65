"""Those that work on a queue in a directory: one file of ours, with the registrations by their names.

It is written where it is, under a lock, so that no other process is notified, and nobody lists the directory again. A
process that is killed meanwhile leaves a damaged file: then all register again with their next beats.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final

from apressure.concurrency import background
from apressure.core import registrations
from apressure.core.registration import Wish
from apressure.core.registrations import Kept
from apressure.exceptions import PressureError, StorageError
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from apressure.files.storage.place import READ, opened
from apressure.files.storage.store import Steps
from apressure.files.storage.writing import lock_patiently

_MOST_BYTES: Final = 16 * 1024 * 1024
"""The largest file that is read."""

_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW

_PATIENCE: Final = 0.2
"""Seconds to wait for the lock, which others hold for milliseconds."""


class FileRegistry(Steps):
    """The registrations of a queue; see `core.registration.Registry`. Times are by the clock of each machine."""

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        self._start(on_answer, registrations.beat, name, letter, record, int(lasts * 1000))

    def leave(self, name: bytes) -> None:
        self._start(lambda _: None, registrations.leave, name)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        with self.operation():
            return await self._change(registrations.ask, worker_id, what)

    async def read(self) -> tuple[int, Kept]:
        """Return the time in milliseconds since 1970, and the registrations. Call it in an operation."""
        found: Kept = {}
        if names.WORKERS in self._index.beside:
            with contextlib.suppress(StorageError):  # it is only told, and nobody depends on it
                found = await self._worker.in_thread(_read, self._directory)
        return int(self.store.time() * 1000), found

    def _start(self, on_answer: Callable[[Any], None], change: Callable[..., int], *arguments: Any) -> None:
        """Change the file in a task. The operation begins at once, so that the object is not closed before its end."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.operation())

        async def run() -> None:
            answer: Any
            with stack:
                try:
                    answer = await self._change(change, *arguments)
                except PressureError as error:
                    answer = error
                on_answer(answer)

        background.start(run(), f"registering at the queue {self.settings.name!r}")

    async def _change(self, change: Callable[..., int], *arguments: Any) -> int:
        """Change the file. Call it in an operation."""
        await self.store.refresh()
        now = int(self.store.time() * 1000)
        return int(await self._worker.in_thread(_change, self._directory, change, now, *arguments))


def _change(directory: Directory, change: Callable[..., int], *arguments: Any) -> int:
    """Change the registrations."""
    with directory.errors("register at"), opened(names.WORKERS, _WRITE, directory.fileno()) as fd:
        lock_patiently(fd, directory.name, "workers", _PATIENCE)
        before = _registrations(fd)
        kept = dict(before)
        answer = change(kept, *arguments)
        if kept != before:
            told = {name.decode("latin-1"): value.decode("latin-1") for name, value in kept.items()}
            data = json.dumps(told).encode()
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
    return answer


def _read(directory: Directory) -> Kept:
    with directory.errors("read the workers of"):
        try:
            with opened(names.WORKERS, READ, directory.fileno()) as fd:
                lock_patiently(fd, directory.name, "workers", _PATIENCE)
                return _registrations(fd)
        except FileNotFoundError:
            return {}


def _registrations(fd: int) -> Kept:
    """Return the registrations; none where another program, or one that was killed, has damaged the file."""
    try:
        found = json.loads(os.pread(fd, _MOST_BYTES, 0))
        return {name.encode("latin-1"): value.encode("latin-1") for name, value in found.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}
