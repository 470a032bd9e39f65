"""How a step is sent: its script, and whether its answer must be durable."""

from __future__ import annotations

import functools
from typing import Any, Final

from apressure.connection.wire.script import Script
from apressure.connection.wire.series import Series
from apressure.events.keys import EventKeys


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.events", name)


def series(keys: EventKeys, name: str = "") -> Series:
    """Return a series of steps of a queue, by default a new one; `"none"` is for steps without a number."""
    return Series(script, keys.for_script, name)


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"pushed"] | [b"settled"] | [b"moved"] | [b"changed"]:
            return bool(answer[1].strip(b"0d:"))
        case [b"events"]:
            return bool(answer[1]) or answer[4] > 0
        case [b"created"] | [b"done"] | [b"flushed"]:
            return True
        case _:
            return isinstance(answer, int) and answer > 0


NOT_DURABLE: Final = frozenset({"extend", "heal", "register", "resign", "peek", "status", "dead_letters"})
"""Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""
