"""Whether the answer to a step must be durable."""

from __future__ import annotations

from typing import Any, Final


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
