"""What a `FileQueue` is told: the options, checked once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, TypedDict

from apressure.files import names

MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
SUFFIX: Final = ".dead"
"""Behind a queue's name, the name of its dead-letter queue."""

_LONGEST_VISIBILITY: Final = 10 * 365 * 86400.0


class FileQueueOptions(TypedDict, total=False):
    """Options of a `FileQueue`, all optional.

    Attributes:
        directory: The directory that the queue is in; the first argument is then only a name, which cannot leave it.
            For names that come from elsewhere.
        capacity: The most messages that may be there, those in flight included; None for any number. It is what this
            object keeps to: others should have the same.
        visibility_timeout: Seconds for which nobody else gets a message that was received; 30 by default.
        max_attempts: How often a message is delivered at most. Whoever would be the next to get it moves it to the
            dead-letter queue instead. None for no limit.
        dead_letters: The dead-letter queue's name, beside this one; None for the queue's own with `.dead` behind it.
        unit: What new messages are named in: `"ms"` as the document says, `"us"` for directories shared with vsqs 0.3.
        fsync: A message is on the disk, with its name, before it counts as published (the default). False leaves that
            to the operating system: it survives the death of every process, and not that of the machine.
        create: Make the directory where it is missing (the default).
        notify: The kernel tells of changes (Linux, extra `files`). False lists the directory for every operation, and
            again and again while it waits, as it has to be where other machines change it, too (NFS). None finds out.
        poll_interval: Seconds between such listings while a task waits; 1 by default.
        threads: Make every call of the file system in a thread, for one that is slow.
        max_message_size: The largest message in bytes; 64 MiB by default.
        clock: Returns the seconds since 1970; `time.time` by default.
    """

    directory: str | PurePath | None
    capacity: int | None
    visibility_timeout: float
    max_attempts: int | None
    dead_letters: str | None
    unit: names.Unit
    fsync: bool
    create: bool
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
    capacity: int | None = None
    visibility_timeout: float = 30.0
    max_attempts: int | None = None
    unit: names.Unit = "ms"
    fsync: bool = True
    create: bool = True
    notify: bool | None = None
    poll_interval: float = 1.0
    threads: bool = False
    max_message_size: int = MAX_MESSAGE_SIZE
    clock: Callable[[], float] = time.time


def resolve(path: str | PurePath, options: FileQueueOptions) -> Settings:
    """Check a queue's path and its options.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option is of no use; the message says why.
    """
    given: dict[str, Any] = {**options}
    parent, name = names.place_of(path, given.pop("directory", None))
    dead_letters = given.pop("dead_letters", None)
    unknown = sorted(given.keys() - set(Settings._fields))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}: see FileQueueOptions")
    for option in ("capacity", "max_attempts", "max_message_size"):
        if given.get(option) is not None:
            positive(given[option], option)
    if "visibility_timeout" in given:
        visibility(given["visibility_timeout"])
    if "poll_interval" in given:
        _between(given["poll_interval"], "poll_interval", 0.001, 86400)
    if given.get("unit", "ms") not in ("ms", "us"):
        raise ValueError(f"unit must be 'ms' or 'us', not {given['unit']!r}")
    if dead_letters is not None and given.get("max_attempts") is None:
        raise ValueError("dead_letters= is where messages go after max_attempts= deliveries: give both")
    dead = names.check_queue_name(name + SUFFIX if dead_letters is None else dead_letters)
    if dead == name:
        raise ValueError(f"the dead-letter queue {dead!r} is the queue itself: choose another name")
    return Settings(parent, name, dead, **given)


def positive(value: int, name: str) -> None:
    """Raise where a value is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def visibility(seconds: float) -> float:
    """Return a visibility timeout, or raise where it is none."""
    return _between(seconds, "visibility_timeout", 0.001, _LONGEST_VISIBILITY)


def deadline_of(timeout: float | None) -> float | None:
    """Return when a timeout ends that begins now, by the event loop's clock."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds or None, not nan")
    return asyncio.get_running_loop().time() + timeout


def _between(value: float, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be between {least:g} and {most:g} seconds, not {value}")
    return value
