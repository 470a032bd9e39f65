"""The options of a `FileQueue`, checked once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, TypedDict

from apressure import validation
from apressure.files.storage import names
from apressure.protocols import DEFAULT_LEASE

_SHORTEST_LEASE: Final = 0.001
_LONGEST_LEASE: Final = 10 * 365 * 86400.0


class FileQueueOptions(TypedDict, total=False):
    """Options of a `FileQueue`, all optional.

    Attributes:
        directory: The directory that the queue is in. The first argument is then only a name, which cannot leave it:
            for untrusted names.
        bound: The most messages that may be there for this object's puts, those in flight included; 0 for no bound.
            None for the bound that the queue was created with (the default).
        lease: Seconds for which no other consumer gets a message that was received; 15 by default.
        max_attempts: How often a message is delivered at most. The next consumer moves it to the dead-letter queue
            instead of delivering it. None for no limit.
        dead_letters: The name of the dead-letter queue, in a directory beside this one; None for the queue's name with
            the suffix `.dead`.
        keep_errors: Keep the last error of a message, its type and the first 200 bytes of its text, for
            `FileQueue.dead_letters` (the default; only with `max_attempts`). False keeps none on the disk.
        unit: The unit of new messages' names: `"ms"` as in the document, `"us"` for directories shared with vsqs 0.3.
        fsync: Bring a message and its name to the disk before `put` returns (the default). With False, it survives the
            death of every process, but not that of the machine.
        auto_create: Putting and receiving make a missing directory (the default). With False, only `create` does, and
            they raise QueueDoesNotExistError.
        notify: Use the kernel's notifications (Linux, extra `files`). False lists the directory for every operation,
            and repeatedly while a task waits: needed if other machines change it (NFS). None finds out. Where
            the kernel has no watch left, the directory is listed until it has one.
        poll_interval: Seconds between such listings while a task waits; 1 by default.
        threads: Make every call of the file system in a thread, for slow file systems.
        max_message_size: The largest message in bytes; 64 MiB by default.
        clock: Returns the seconds since 1970, never less than 0; `time.time` by default.
    """

    directory: str | PurePath | None
    bound: int | None
    lease: float
    max_attempts: int | None
    dead_letters: str | None
    keep_errors: bool
    unit: names.Unit
    fsync: bool
    auto_create: bool
    notify: bool | None
    poll_interval: float
    threads: bool
    max_message_size: int
    clock: Callable[[], float]


class Settings(NamedTuple):
    """The options, checked; see `FileQueueOptions`."""

    parent: Path
    name: str
    dead_letters: str
    bound: int | None = None
    lease: float = DEFAULT_LEASE
    max_attempts: int | None = None
    keep_errors: bool = True
    unit: names.Unit = "ms"
    fsync: bool = True
    auto_create: bool = True
    notify: bool | None = None
    poll_interval: float = 1.0
    threads: bool = False
    max_message_size: int = 64 * 1024 * 1024
    clock: Callable[[], float] = time.time

    def lease_of(self, seconds: float | None, name: str = "lease") -> float:
        """Return a lease in seconds, checked; None for the queue's own."""
        if seconds is None:
            return self.lease
        return validation.seconds(seconds, name, _SHORTEST_LEASE, _LONGEST_LEASE, none=True)


def settings_from(path: str | PurePath, options: FileQueueOptions) -> Settings:
    """Check a queue's path and its options.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option is invalid; the message says why.
    """
    given: dict[str, Any] = {**options}
    parent, name = names.node_of(path, given.pop("directory", None))
    dead_letters = given.pop("dead_letters", None)
    validation.known(given, (*FileQueueOptions.__annotations__, "codec"))
    dead = names.check_queue_name(f"{name}.dead" if dead_letters is None else dead_letters)
    settings = Settings(parent, name, dead, **given)
    validation.optional(validation.whole, settings.bound, "bound", 0, names.MAX_BOUND, "messages")
    validation.optional(validation.whole, settings.max_attempts, "max_attempts")
    validation.whole(settings.max_message_size, "max_message_size")
    validation.seconds(settings.lease, "lease", _SHORTEST_LEASE, _LONGEST_LEASE)
    validation.seconds(settings.poll_interval, "poll_interval", 0.001, 86400)
    if settings.unit not in ("ms", "us"):
        raise ValueError(f"unit must be 'ms' or 'us', not {settings.unit!r}")
    if dead_letters is not None and settings.max_attempts is None:
        raise ValueError("dead_letters= needs max_attempts=: give both")
    if dead == name:
        raise ValueError(f"the dead-letter queue {dead!r} is the queue itself: choose another name")
    return settings
