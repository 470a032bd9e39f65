"""The names of messages' files: which message, in which state, in which unit of time.

The rule of this module: no I/O, and only digits name a message. The specification's names are

* `1415776871123.new`: a message that is being written ("New"),
* `1415776871123`: one that waits ("Ready"),
* `1415776871123.1415776879654`: one in flight, and when its lease ends.

A delayed message has a name that other clients ignore: `.queue-later-1415776880000-1415776871123` is due then, in
milliseconds, and had the second number as its name before. Older versions of apressure do not delete a queue that
contains one.

Numbers are unix timestamps: below 10**14 in milliseconds (until the year 5138), as in the document, and otherwise in
microseconds (from 1973 on), as vsqs 0.3 writes them.

A key is an integer for a message: twice its time in microseconds, plus one if its name is in microseconds. Keys of both
units sort as messages are delivered, and a key gives its name back.

The names of empty files are the queue's state: its bound, and that it is closed or paused. vsqs 0.3 ignores them: it
uses only names that are one integer, or two with a dot between them. Creating or renaming one file changes the state in
one step, and a listing or a notification shows it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path, PurePath
from typing import Final, Literal, NamedTuple

Unit = Literal["ms", "us"]
"""The unit of new messages' names: milliseconds, or microseconds as in vsqs 0.3."""

FIRST_MICROSECONDS: Final = 10**14
_END: Final = 10**17
_DIGITS: Final = 17
_EXPIRES: Final = re.compile(r"([0-9]{1,17})(\.[0-9]{1,6})?", re.ASCII)  # 0.3 writes a fraction for a float timeout
_LONGEST: Final = 255
"""The most bytes in a file's name."""

NEW: Final = "new"
READY: Final = "ready"
LATER: Final = "later"

PREFIX: Final = ".queue-v"
"""The start of the names of all state files. The version of the format follows."""

CLOSED: Final = ".queue-v1-closed"
PAUSED: Final = ".queue-v1-paused"
REASON: Final = ".queue-v1-reason-"
"""The start of the names of files that are no state: they say why a message failed, or when it expires. Its id follows;
see `reasons`."""

_DELAYED: Final = re.compile(r"\.queue-later-([0-9]{1,14})-([0-9]{1,17})", re.ASCII)

STAGED: Final = ".queue-staged-"
"""The start of the names of directories, beside queues, that are being created or deleted."""

SCHEDULES: Final = ".queue-schedules"
"""The file of the records of schedules, and those that it needs; see `files/schedules.py`. No version lists them."""
SCHEDULES_NEW: Final = ".queue-schedules-new"
SCHEDULES_LOCK: Final = ".queue-schedules-lock"
OCCASIONS: Final = (".queue-occasion-a", ".queue-occasion-b")

WORKERS: Final = ".queue-workers"
"""The file of those that work on the queue, and of producers that wait; see `files/registry.py`."""

EXPIRED_COUNT: Final = ".queue-expired"
"""The file whose size is the number of messages that have expired."""

BLANK: Final = ".queue-blank"
"""An empty file: a link to it reserves the name of a message that is moved here, and not written."""

OURS: Final = frozenset({SCHEDULES, SCHEDULES_NEW, SCHEDULES_LOCK, *OCCASIONS, WORKERS, EXPIRED_COUNT, BLANK})
"""Names of files that are neither state nor messages, and that go with the queue."""

MAX_BOUND: Final = 10**15
BOUND: Final = re.compile(r"\.queue-v1-bound-([1-9][0-9]{0,15})", re.ASCII)


class FileName(NamedTuple):
    """What a file's name says.

    Attributes:
        key: The message.
        state: Which of the three states, or delayed ("later").
        expires: When its lease ends, or its delay, in microseconds since 1970; 0 for other states.
    """

    key: int
    state: Literal["new", "ready", "taken", "later"]
    expires: int = 0


@functools.lru_cache(1024)  # a name is told when it appears, and when it goes
def parse(filename: str) -> FileName | None:
    """Return what a name says; None if it is not a message's. Such files are left alone."""
    number, dot, extension = filename.partition(".")
    key = key_of(number)
    if key is None:
        return None if number else _parse_delayed(filename)
    if not dot:
        return FileName(key, READY)
    if extension == NEW:
        return FileName(key, NEW)
    matched = _EXPIRES.fullmatch(extension)
    if matched is None:
        return None
    expires = int(matched[1])
    return FileName(key, "taken", expires if expires >= FIRST_MICROSECONDS else expires * 1000)


def _parse_delayed(filename: str) -> FileName | None:
    matched = _DELAYED.fullmatch(filename)
    key = None if matched is None else key_of(matched[2])
    return None if matched is None or key is None else FileName(key, LATER, int(matched[1]) * 1000)


def key_of(number: str) -> int | None:
    """Return the key of a message's id; None if it is not an id. A number with a leading zero is not one."""
    if not number.isascii() or not number.isdigit() or len(number) > _DIGITS or (number[0] == "0" and number != "0"):
        return None
    value = int(number)
    return 2 * value + 1 if value >= FIRST_MICROSECONDS else 2000 * value


def id_of(key: int) -> str:
    """Return a message's id, which is its name without an extension."""
    return str(key >> 1) if key & 1 else str(key // 2000)


def time_of(key: int) -> int:
    """Return when a message was put, as its name says, in microseconds since 1970."""
    return key >> 1


def following(newest: int, now: float, unit: Unit) -> int:
    """Return the key of a message that is put now: later than every known key, and not earlier than the clock.

    Args:
        newest: The newest key that is known; -1 for none.
        now: Seconds since 1970.
        unit: The unit of its name.

    Raises:
        OverflowError: A file has the last name that there is.
    """
    after = (newest >> 1) + 1  # 0 if there is none
    if unit == "us":
        value = max(int(now * 1_000_000), after, FIRST_MICROSECONDS)
        key = 2 * value + 1
    else:
        value = max(int(now * 1000), -(-after // 1000))
        key = 2000 * value
    if key >= 2 * _END:
        raise OverflowError(f"no name can come after {id_of(newest)}")
    return key


def new_name(key: int) -> str:
    """Return the name of a message that is being written."""
    return f"{id_of(key)}.new"


def taken_name(key: int, until: float) -> str:
    """Return the name of a message in flight, in the unit of its id.

    Args:
        key: The message.
        until: When its lease ends, in seconds since 1970. Times that `parse` would not understand are cut.
    """
    if key & 1:
        return f"{key >> 1}.{min(max(int(until * 1_000_000), FIRST_MICROSECONDS), _END - 1)}"
    return f"{key // 2000}.{min(max(int(until * 1000), 0), FIRST_MICROSECONDS - 1)}"


def delayed_name(key: int, due: int) -> str:
    """Return the name of a message that waits until then, in milliseconds since 1970."""
    return f".queue-later-{min(max(due, 0), FIRST_MICROSECONDS - 1)}-{id_of(key)}"


def bound_name(bound: int) -> str:
    """Return the name of the file for a bound of at least 1."""
    return f".queue-v1-bound-{bound}"


def check_queue_name(name: str) -> str:
    """Return a queue's name, or raise if it could be anything but one directory in another.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, has a slash or a NUL in it, begins with a dot, is too long, or is a message's name.
    """
    if not isinstance(name, str):
        raise TypeError(f"a queue's name must be a string, not {type(name).__name__}")
    if not name:
        raise ValueError("a queue's name must not be empty")
    if name.startswith("."):
        raise ValueError(f"a queue's name must not begin with a dot: {name!r}")
    if "/" in name or "\\" in name or "\0" in name:
        place = " (where it is goes into directory=, or --dir)"
        raise ValueError(f"a queue's name is one name, without slashes and NUL: {name!r}{place if '/' in name else ''}")
    if len(name.encode(errors="surrogateescape")) > _LONGEST:
        raise ValueError(f"a queue's name has at most {_LONGEST} bytes: {name[:40]!r}…")
    if parse(name) is not None:
        raise ValueError(f"{name!r} is what messages are called, and queues do not nest: choose a name with a letter")
    return name


def node_of(path: str | PurePath, directory: str | PurePath | None) -> tuple[Path, str]:
    """Return the directory that a queue is in, and the queue's name.

    Args:
        path: The queue's directory; together with `directory` only its name.
        directory: The directory that the queue must not leave.

    Raises:
        TypeError: Neither a string nor a path.
        ValueError: It is not a name (see `check_queue_name`), or goes up by `..`.
    """
    if directory is not None:
        return Path(directory), check_queue_name(str(path) if isinstance(path, PurePath) else path)
    if not isinstance(path, (str, PurePath)):
        raise TypeError(f"a queue is opened by the path of its directory, not by {type(path).__name__}")
    if "\0" in str(path):
        raise ValueError(f"a path has no NUL in it: {str(path)!r}")
    whole = Path(path)
    if ".." in whole.parts:
        raise ValueError(f"{str(path)!r} goes up by `..`: resolve() the path first if it is meant to")
    return whole.parent, check_queue_name(whole.name)
