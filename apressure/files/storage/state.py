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


class State:
    """What the state files say.

    Attributes:
        closed: Whether the queue is closed; it stays so.
        paused: Whether it is paused.
        bound: The directory's bound, the smallest one if there are several; 0 for none.
        unknown: A state file that this version does not understand, or None.
    """

    def __init__(self) -> None:
        self.closed = False
        self.paused = False
        self.bound = 0
        self.unknown: str | None = None
        self._files: set[str] = set()

    def note(self, filename: str, there: bool) -> None:
        """Note that a state file has appeared, or gone."""
        (self._files.add if there else self._files.discard)(filename)
        bounds = {name: bound_of(name) for name in self._files}
        self.bound = min((bound for bound in bounds.values() if bound is not None), default=0)
        self.closed = self.closed or CLOSED in self._files
        self.paused = PAUSED in self._files
        others = (name for name, bound in bounds.items() if bound is None and name not in (CLOSED, PAUSED))
        self.unknown = min(others, default=None)
