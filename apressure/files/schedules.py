"""The schedules of a queue in a directory.

One file has all records. A process that changes it holds a lock, and loses it when it is killed. An occasion is put in
this order:

1. The message is written to a file of ours, one of two: not the one that the records name as pending.
2. The file of records is replaced by one that has the next time, and names that file as pending.
3. A rename makes the pending file a delayed message that is due.

Each change begins with step 3 of the one before, whose process may have been killed. So an occasion is put once: before
the second step nothing has happened, and after it the message comes for certain.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Final, NamedTuple

from apressure.core.workers import Beside, told
from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.putting import Putter
from apressure.files.registry import FileRegistry
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from apressure.files.storage.messages import contents
from apressure.files.storage.place import CREATE, READ, opened
from apressure.files.storage.store import Operation, Steps, Store
from apressure.files.storage.writing import lock_patiently

_MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest file of records that is read."""

_PATIENCE: Final = 5.0
"""Seconds to wait for the lock, which others hold for milliseconds."""


class _Records(NamedTuple):
    """What the file of records says.

    Attributes:
        by_name: The records.
        pending: The file that is to become a message; empty for none.
    """

    by_name: dict[str, str]
    pending: str = ""


class FileSchedules(Steps):
    """The steps of a queue that are about its schedules. Each is one call of the thread."""

    def __init__(self, store: Store, operation: Operation, putter: Putter, registry: FileRegistry) -> None:
        super().__init__(store, operation)
        self._putter = putter
        self._registry = registry

    async def read(self) -> tuple[int, dict[str, bytes]]:
        with self.operation():
            try:
                await self.store.refresh()
            except QueueDoesNotExistError:
                if not self.store.auto_create:
                    raise
                return int(self.store.time() * 1000), {}  # the first put, or `every`, makes it
            records = await self._worker.in_thread(_read, self._directory)
            now = int(self.store.time() * 1000)
        return now, {name: record.encode() for name, record in sorted(records.by_name.items())}

    async def beside(self) -> Beside:
        with self.operation():
            await self.store.refresh()
            schedules = 0
            if names.SCHEDULES in self._index.beside:
                with contextlib.suppress(StorageError):  # the other operations say that it is damaged
                    schedules = len((await self._worker.in_thread(_read, self._directory)).by_name)
            now, registered = await self._registry.read()
        return Beside(schedules, 0, *told(now, registered.items()))

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        return bool(await self._call(_change, name, was, becomes, self.store.now))

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        with self.operation():
            await self.store.refresh()
            if self._index.closed:
                return "closed"
            bound = self.store.bound
            if bound and self._index.room(bound) <= 0:
                return "full"
            done = await self._worker.in_thread(_change, self._directory, name, was, becomes, self.store.now, message)
            if done:
                self.store.counts.put_count += 1
                await self.store.refresh()
                await self._putter.promote()  # otherwise the next one that looks does it
        return "put" if done else "changed"


def _change(
    directory: Directory, name: str, was: bytes | None, becomes: bytes | None, now: int, message: bytes | None = None
) -> bool:
    """Write a record, or delete it, if it was that before, and put a message. Returns whether it was.

    `now` is in microseconds since 1970.
    """
    locking = opened(names.SCHEDULES_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, directory.fileno())
    with directory.errors("change the schedules of"), locking as lock:
        lock_patiently(lock, directory.name, "schedules", _PATIENCE)
        records = _read(directory)
        if records.pending:
            _publish(directory, records.pending, now)
        kept = records.by_name.get(name)
        if kept != (None if was is None else was.decode()):
            return False
        changed = {other: record for other, record in records.by_name.items() if other != name}
        if becomes is not None:
            changed[name] = becomes.decode()
        pending = ""
        if message is not None:
            pending = next(filename for filename in names.OCCASIONS if filename != records.pending)
            _write(directory, pending, message)
        _replace(directory, _Records(changed, pending))
        if message is not None:
            _publish(directory, pending, now)
    return True


def _publish(directory: Directory, pending: str, now: int) -> None:
    """Make a pending file a delayed message that is due, unless that has been done."""
    key = -1
    while True:
        key = names.following(key, now / 1e6, "us")
        with contextlib.suppress(FileExistsError):  # another message has that name
            directory.delay(pending, names.delayed_name(key, now // 1000))
            return


def _read(directory: Directory) -> _Records:
    """Return the records.

    Raises:
        StorageError: The file cannot be read, or another program wrote it.
    """
    with directory.errors("read the schedules of"):
        try:
            with opened(names.SCHEDULES, READ, directory.fileno()) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return _Records({})
    try:
        found = json.loads(data)
        pending = ("", *names.OCCASIONS)[("", *names.OCCASIONS).index(found["pending"])]
        by_name = {name: "".join(record) for name, record in found["schedules"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StorageError(
            f"the file of schedules of the queue {directory.name!r} is damaged: {directory.path / names.SCHEDULES}. "
            "Move it away, and call `every` again",
            name=directory.name,
            errno=errno.EIO,
        ) from None
    return _Records(by_name, pending)


def _replace(directory: Directory, records: _Records) -> None:
    data = json.dumps({"schedules": records.by_name, "pending": records.pending}).encode()
    _write(directory, names.SCHEDULES_NEW, data)
    os.replace(names.SCHEDULES_NEW, names.SCHEDULES, src_dir_fd=directory.fileno(), dst_dir_fd=directory.fileno())
    if directory.fsync:
        os.fsync(directory.fileno())


def _write(directory: Directory, filename: str, data: bytes) -> None:
    """Write a file of ours, instead of one that a killed process has left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(filename, dir_fd=directory.fileno())
    with opened(filename, CREATE, directory.fileno()) as fd:
        contents.write(fd, data)
        if directory.fsync:
            os.fsync(fd)
