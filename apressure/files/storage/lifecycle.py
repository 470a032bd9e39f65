"""Creating and deleting a queue's directory. Each is one rename, so a kill leaves a whole queue, or none.

A directory is prepared under another name beside the queue, and emptied under another name. If the process is killed
meanwhile, that directory stays until the next `create` or `delete` beside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Final

from apressure.exceptions import StorageError
from apressure.files.storage import names
from apressure.files.storage.place import CREATE, MODE, Place, opened
from apressure.files.storage.writing import lock, lock_patiently

_OPEN: Final = os.O_DIRECTORY | os.O_NOFOLLOW
_PATIENCE: Final = 5.0
"""Seconds to wait for the lock, which others hold while they delete the queue or change its bound."""
_ROUNDS: Final = 100
"""How often to delete what publishers wrote during the previous round."""


def create(place: Place, bound: int) -> bool:
    """Make the directory, with the bound in it. False if something has its name."""
    with place.errors("create"):
        parent = place.path.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(parent)
        while True:
            staged = _staged(parent)
            staged.mkdir(mode=0o700)
            try:
                _make(staged, place, bound)
            except FileNotFoundError:  # swept before it was locked
                continue
            except FileExistsError:
                _clear(staged)
                return False
            place.sync_parent()
            return True


def _make(staged: Path, place: Place, bound: int) -> None:
    with opened(staged, _OPEN) as fd:
        lock(fd)  # or another process sweeps it
        if bound:
            (staged / names.bound_name(bound)).touch(mode=0o600, exist_ok=False)
        if place.fsync:
            os.fsync(fd)
        place.renaming.directory(staged, place.path)


def delete(place: Place) -> None:
    """Delete an open directory with all messages.

    Raises:
        QueueDoesNotExistError: It was deleted or moved before.
        StorageError: The file system refused, another process holds the lock for long, or the directory contains
            something that belongs to no queue.
    """
    with place.errors("delete"):
        place.check()
        parent = place.path.parent
        _sweep(parent)
        with opened(place.path, _OPEN) as fd:
            _lock(place, fd)  # another delete ends first
            place.check()
            _refuse_strangers(place, place.path)
            staged = _staged(parent)
            place.renaming.directory(place.path, staged)
            try:
                _refuse_strangers(place, staged)
            except StorageError:
                place.renaming.directory(staged, place.path)
                raise
            _clear(staged)


def set_bound(place: Place, bound: int) -> None:
    """Have an open directory say another bound; 0 for none. After a kill, the old one or the new one holds.

    Raises:
        QueueDoesNotExistError: It was deleted or moved before.
        StorageError: The file system refused, or another process holds the lock for long.
    """
    with place.errors("set the bound of"):
        place.check()
        with opened(place.path, _OPEN) as fd:
            _lock(place, fd)  # two at a time would remove each other's file
            place.check()
            with os.scandir(fd) as entries:
                before = [entry.name for entry in entries if names.BOUND.fullmatch(entry.name)]
            for name in before:
                if bound:
                    os.rename(name, names.bound_name(bound), src_dir_fd=fd, dst_dir_fd=fd)
                else:
                    os.unlink(name, dir_fd=fd)
            if bound and not before:
                os.close(os.open(names.bound_name(bound), CREATE, MODE, dir_fd=fd))
            if place.fsync:
                os.fsync(fd)


def _lock(place: Place, fd: int) -> None:
    try:
        lock_patiently(fd, place.name, "directory", _PATIENCE, surely=False)
    except StorageError:
        place.check()  # a delete holds it until the last message is deleted
        raise


def _staged(parent: Path) -> Path:
    return parent / f"{names.STAGED}{secrets.token_hex(8)}"


def _refuse_strangers(place: Place, path: Path) -> None:
    with os.scandir(path) as entries:
        strangers = sorted(entry.name for entry in entries if not _is_ours(entry))
    if strangers:
        raise StorageError(
            f"cannot delete the queue {place.name!r}: {strangers[0]!r} in {place.path} is not part of a queue. "
            "Move or delete it first",
            name=place.name,
            errno=errno.ENOTEMPTY,
        )


def _is_ours(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    known = name.startswith(names.PREFIX) or name in names.OURS or names.parse(name) is not None
    return known and entry.is_file(follow_symlinks=False)


def _clear(path: Path) -> None:
    """Delete what belongs to a queue, and the directory. Publishers may still write into it meanwhile."""
    with contextlib.suppress(FileNotFoundError):  # another process sweeps it, too
        for remaining in reversed(range(_ROUNDS)):
            with os.scandir(path) as entries:
                ours = [entry.name for entry in entries if _is_ours(entry)]
            for name in ours:
                with contextlib.suppress(FileNotFoundError):
                    (path / name).unlink()
            try:
                path.rmdir()
            except OSError as error:
                if not remaining or error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            else:
                return


def _sweep(parent: Path) -> None:
    """Delete what killed processes have left."""
    for path in parent.glob(f"{names.STAGED}*"):
        with contextlib.suppress(OSError), opened(path, _OPEN) as fd:
            if lock(fd):
                _clear(path)
