"""How a step is sent: its script, and whether its answer must be durable."""

from __future__ import annotations

import functools
from typing import Any, Final

from apressure.connection.wire.script import Script


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.tasks.engine", name)


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"put"] | [b"settled"] | [b"moved"] | [b"purged"]:
            return bool(answer[1].strip(b"0-:"))
        case [b"tasks"]:
            return bool(answer[1]) or answer[2] > 0
        case [b"created"] | [b"done"] | [b"changed"] | [b"tended"]:
            return True
        case _:
            return False


NOT_DURABLE: Final = frozenset({"extend", "register", "peek", "status", "tend"})
"""Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""
