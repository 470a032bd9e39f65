"""The inotify instances of this process: one for each event loop, shared by all queues that are used there.

A user has few instances (128, unless fs.inotify.max_user_instances says otherwise), for all of his programs, and the
kernel frees one only some time after it was closed. So an instance is kept when its last queue is closed, and goes from
an event loop that has ended to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure.exceptions import MissingExtraError

if TYPE_CHECKING:
    from apressure.files.storage.watcher import Notified

# linux/inotify.h
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
MOVE_SELF: Final = 0x800
UNMOUNT: Final = 0x2000
OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000

_ONLYDIR: Final = 0x01000000
_MASK: Final = _ONLYDIR | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 1 << 12
_LARGEST: Final = _EVENT.size + 256

_REST: Final = 0.05
"""Seconds between two readings while no task waits. The kernel keeps the changes of about 3,000 messages."""

_SPARES: Final = 4
"""How many instances of event loops that have ended are kept for the next ones."""


class Instance:
    """The inotify instance of one event loop: it reads changes, and tells them to those who watch the directory.

    Changes are read synchronously whenever one of the watchers asks. While a task waits, the event loop reads them at
    once; otherwise now and then, since the kernel keeps a limited number. It is used in its event loop only.

    It has weak references to watchers that do not attend. The watch of one that was dropped without `unwatch` lasts
    until its directory changes, or the event loop ends.

    Raises:
        MissingExtraError: The package asyncinotify is not installed.
        OSError: The kernel has no instance left, or no inotify.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the instance ends with the event loop
        self._inotify: Any = _make()
        self.fd: int = self._inotify.fd
        """Readable when something has changed; -1 when the instance has ended."""
        self._watches: dict[int, tuple[Any, list[weakref.ref[Notified]]]] = {}
        """By the kernel's number, which is not used again: what the library calls a watch, and who is told. These are
        several, since the kernel has one watch for a directory, however often it is asked for."""
        self._attending: set[Notified] = set()
        self._due: set[Notified] = set()
        """Those of them that have been told of a change, and are to be woken."""
        self._resting = False

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter, what `retire` needs may be gone, and the kernel ends the instance.
        if "_inotify" in vars(self) and not ending():  # without it, there was no instance left
            self.retire()

    def watch(self, directory: int, path: Path, watcher: Notified) -> int:
        """Begin to tell of changes. Returns the number of the watch.

        Args:
            directory: The descriptor of the directory.
            path: Its path, for systems without /proc.
            watcher: Who is told.

        Raises:
            OSError: The kernel has no watch left.
        """
        # By the descriptor, since another directory may have the path now.
        known = Path(f"/proc/self/fd/{directory}")
        watch = self._inotify.add_watch(known if known.exists() else path, _MASK)
        self._watches[watch.wd] = watch, [weakref.ref(one) for one in (*self._watchers(watch.wd), watcher)]
        self._listen()
        return int(watch.wd)

    def unwatch(self, number: int, watcher: Notified) -> None:
        """Stop telling a watcher of changes. The watch ends with the last one."""
        self.leave(watcher)
        _, refs = self._watches.get(number, (None, []))
        refs[:] = [ref for ref in refs if ref() not in (None, watcher)]
        if not refs:
            self._end_watch(number)

    def _watchers(self, number: int) -> list[Notified]:
        _, refs = self._watches.get(number, (None, ()))
        return [watcher for ref in refs if (watcher := ref()) is not None]

    def attend(self, watcher: Notified) -> None:
        """Wake a watcher as soon as something has changed."""
        self._attending.add(watcher)
        self._listen()

    def leave(self, watcher: Notified) -> None:
        """Wake a watcher no more."""
        self._attending.discard(watcher)
        self._due.discard(watcher)

    def read(self, watcher: Notified) -> None:
        """Tell of every change that was made before this call. It wakes all but the given watcher, which asks."""
        scheduled = bool(self._due)
        self._read()
        self._due.discard(watcher)
        if self._due and not scheduled and (loop := self._loop()) is not None:
            loop.call_soon(self._wake)

    def retire(self) -> None:
        """End it, and keep the kernel's part for the next event loop."""
        with _guard:
            inotify, self._inotify, self.fd = self._inotify, None, -1
            if inotify is None:
                return
            while self._watches:
                _remove(inotify, self._watches.popitem()[1][0])
            if len(_spares) < _SPARES:
                _spares.append(inotify)
            else:
                inotify.close()

    def abandon(self) -> None:
        """End it in a forked child, and leave the watches to the parent."""
        inotify, self._inotify, self.fd = self._inotify, None, -1
        if inotify is not None:
            inotify.close()

    @property
    def ended(self) -> bool:
        """Whether its event loop has ended."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def _read(self) -> None:
        while self.fd != -1:
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return
            self._tell(data)
            if len(data) <= _BUFFER - _LARGEST:
                return  # there is room for another one, so there is none

    def _tell(self, data: bytes) -> None:
        position, end, now = 0, len(data), time.monotonic()
        unpack, size, latest = _EVENT.unpack_from, _EVENT.size, 0
        watchers: list[Notified] = []
        while position < end:
            number, mask, renaming, length = unpack(data, position)
            position += size + length
            if number != latest:  # many changes of one directory follow each other
                if mask & OVERFLOW:
                    self._lose()
                latest, watchers = number, self._watchers(number)
                self._due |= self._attending.intersection(watchers)
            filename = data[position - length : position].rstrip(b"\0").decode("ascii", "replace")
            for watcher in watchers:
                watcher.change(mask, renaming, filename, now)
            if mask & IGNORED or not watchers:
                self._end_watch(number)

    def _lose(self) -> None:
        for number in [*self._watches]:
            for watcher in self._watchers(number):
                watcher.lose()
        self._due |= self._attending

    def _wake(self) -> None:
        try:
            while self._due:
                self._due.pop().wake()
        finally:
            if self._due and (loop := self._loop()) is not None:  # one of them has raised
                loop.call_soon(self._wake)

    def _readable(self) -> None:
        self._read()
        self._wake()
        loop = self._loop()
        if not self._attending and self.fd != -1 and loop is not None:
            loop.remove_reader(self.fd)
            if not self._resting:
                loop.call_later(_REST, self._go_on)  # without its handle, which has a reference to the event loop
                self._resting = True

    def _go_on(self) -> None:
        self._resting = False
        self._listen()

    def _listen(self) -> None:
        if self.fd != -1 and (loop := self._loop()) is not None:
            loop.add_reader(self.fd, self._readable)

    def _end_watch(self, number: int) -> None:
        watch, _ = self._watches.pop(number, (None, ()))
        if watch is not None and self._inotify is not None:
            _remove(self._inotify, watch)


_instances: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Instance]] = weakref.WeakKeyDictionary()
_living: Final[weakref.WeakSet[Instance]] = weakref.WeakSet()
"""Also those whose event loop is no more, while something that was not closed refers to them."""
_spares: Final[list[Any]] = []
_guard = threading.RLock()
"""For event loops in several threads. An instance may end, as garbage, while its thread has it."""


def instance_of(loop: asyncio.AbstractEventLoop) -> Instance:
    """Return the instance of an event loop. For errors see `Instance`."""
    found = _instances.get(loop)
    if found is None:
        with _guard:
            for other in [*_living]:
                if other.ended:
                    other.retire()
            found = _instances[loop] = Instance(loop)
            _living.add(found)
    return found


def to_do(error: OSError) -> str:
    """Return what to do about an error of `instance_of` or `Instance.watch`."""
    return {
        errno.EMFILE: "Raise fs.inotify.max_user_instances, or the process's limit of open files (ulimit -n)",
        errno.ENFILE: "Raise fs.file-max, or close files of other programs",
        errno.ENOSPC: "Raise fs.inotify.max_user_watches",
    }.get(error.errno or 0, "With notify=False, this warning does not come")


def _make() -> Any:
    try:
        import asyncinotify
    except ImportError as error:
        raise MissingExtraError(
            "FileQueue needs the package asyncinotify to notice changes: pip install 'apressure[files]', or open the "
            "queue with notify=False, which lists the directory again and again",
            extra="files",
        ) from error
    if _spares:
        return _spares.pop()
    _check_room()
    made = asyncinotify.Inotify()
    os.set_blocking(made.fd, False)
    return made


def _check_room() -> None:
    # The library takes two descriptors, and leaks one if there is room for one only. A put that lists the directory
    # takes three for a moment: without them, the queue could not be used at all.
    opened: list[int] = []
    try:
        for _ in range(2):
            opened += os.pipe()
    finally:
        for fd in opened:
            os.close(fd)


def _remove(inotify: Any, watch: Any) -> None:
    with contextlib.suppress(OSError, ValueError):  # its directory is gone, or the process ends
        inotify.rm_watch(watch)
    # The library forgets a watch when its own methods read that it has ended. They make several objects for each
    # change, which would cost more than a message does.
    getattr(inotify, "_watches", {}).pop(watch.wd, None)


def _after_fork_in_child() -> None:
    """Close the child's copies: what it read, the parent would miss, and the watches that it removed as well."""
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it
    _guard = threading.RLock()
    for instance in [*_living]:
        instance.abandon()
    while _spares:
        _spares.pop().close()
    _instances.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
