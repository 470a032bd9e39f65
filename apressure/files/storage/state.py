"""The queue's state: the names of empty files say its bound, and that it is closed or paused.

vsqs 0.3 ignores these files: it uses only names that are one integer, or two with a dot between them. Creating or
renaming one file changes the state in one step, and a listing or a notification shows it. The rule of this module: no
I/O.
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = ".queue-v"
"""The start of the names of all state files. The version of the format follows."""

CLOSED: Final = ".queue-v1-closed"
PAUSED: Final = ".queue-v1-paused"
REASON: Final = ".queue-v1-reason-"
"""The start of the names of files that are no state: they say why a message failed. Its id follows; see `reasons`."""

STAGED: Final = ".queue-staged-"
"""The start of the names of directories, beside queues, that are being created or deleted."""

MAX_BOUND: Final = 10**15
_BOUND: Final = re.compile(r"\.queue-v1-bound-([1-9][0-9]{0,15})", re.ASCII)


def bound_name(bound: int) -> str:
    """Return the name of the file for a bound of at least 1."""
    return f".queue-v1-bound-{bound}"


def bound_of(filename: str) -> int | None:
    """Return the bound that a file's name says, or None."""
    matched = _BOUND.fullmatch(filename)
    return None if matched is None else int(matched[1])
