"""What the names of files say: which message, in which state, in which unit of time.

The rule of this module: no I/O, and nothing but digits is ever taken for a message. The specification's names are

* `1415776871123.new`: a message that is being written ("New"),
* `1415776871123`: one that waits ("Ready"),
* `1415776871123.1415776879654`: one that was received, and until when nobody else gets it.

Numbers are unix timestamps. The document writes milliseconds; the released vsqs 0.3 writes microseconds. Numbers below
10**14 are milliseconds (until the year 5138), others microseconds (from 1973 on): each number says for itself.

A key is an integer for a message: twice its time in microseconds, plus one where its name is in microseconds. Keys sort
as messages are delivered, also where both units meet, and a name can be made of its key again.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Final, Literal, NamedTuple

Unit = Literal["ms", "us"]
"""What this client names new messages in: milliseconds, or microseconds as vsqs 0.3 does."""

FIRST_MICROSECONDS: Final = 10**14
_END: Final = 10**17
_DIGITS: Final = 17
_EXPIRES: Final = re.compile(r"([0-9]{1,17})(\.[0-9]{1,6})?", re.ASCII)  # 0.3 writes a fraction for a float timeout
_LONGEST: Final = 255
"""Bytes in a file name on every file system that we know of."""

NEW: Final = "new"


class FileName(NamedTuple):
    """What a file's name says.

    Attributes:
        key: Which message.
        state: Which of the three states.
        expires: Until when it is somebody's, in microseconds; 0 for those that are nobody's.
    """

    key: int
    state: Literal["new", "ready", "taken"]
    expires: int = 0


def parse(filename: str) -> FileName | None:
    """Return what a name says, or None where it is none of a message: such files are left alone."""
    number, dot, extension = filename.partition(".")
    key = key_of(number)
    if key is None:
        return None
    if not dot:
        return FileName(key, "ready")
    if extension == NEW:
        return FileName(key, "new")
    matched = _EXPIRES.fullmatch(extension)
    return None if matched is None else FileName(key, "taken", _microseconds(int(matched[1])))


def key_of(number: str) -> int | None:
    """Return the key of a message's id; None for what is no id. One number has one spelling: no zero leads."""
    if not number.isascii() or not number.isdigit() or len(number) > _DIGITS or (number[0] == "0" and number != "0"):
        return None
    value = int(number)
    return 2 * value + 1 if value >= FIRST_MICROSECONDS else 2000 * value


def id_of(key: int) -> str:
    """Return a message's id, which is its name without an extension."""
    return str(key >> 1) if key & 1 else str(key // 2000)


def time_of(key: int) -> int:
    """Return when a message was published, as its name says, in microseconds."""
    return key >> 1


def following(newest: int, now: float, unit: Unit) -> int:
    """Return the key of a message that is published now: not behind the clock, and behind every key that is known.

    Args:
        newest: The newest key that is known; -1 for none.
        now: Seconds since 1970.
        unit: What to name it in.

    Raises:
        OverflowError: A file is named for the last moment that names can say.
    """
    after = (newest >> 1) + 1  # 0 where there is none
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
    """Return the name of a message that is somebody's, in the unit of its own name.

    Args:
        key: Which message.
        until: Seconds since 1970.
    """
    if key & 1:
        return f"{key >> 1}.{max(int(until * 1_000_000), FIRST_MICROSECONDS)}"
    return f"{key // 2000}.{min(int(until * 1000), FIRST_MICROSECONDS - 1)}"


def _microseconds(number: int) -> int:
    return number if number >= FIRST_MICROSECONDS else number * 1000


def check_queue_name(name: str) -> str:
    """Return the name of a queue, which is one directory in another, and refuse what could be anything else.

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


def place_of(path: str | PurePath, directory: str | PurePath | None) -> tuple[Path, str]:
    """Return the directory that a queue is in, and the queue's name.

    Args:
        path: The queue's directory; together with `directory` only its name.
        directory: The directory that it may not leave.

    Raises:
        TypeError: Neither a string nor a path.
        ValueError: It is no name (see `check_queue_name`), or goes up by `..`.
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
