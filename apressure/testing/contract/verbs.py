"""The verbs of a queue, their arguments, and what is refused of each argument."""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

from apressure.dead_letters import DeadLetter
from apressure.testing.memory.queue import MemoryQueue
from apressure.testing.memory.server import MemoryServer

_MANY: Final = "delay=None, at=None, expires=None, key=None, cost=1"
_TERMS: Final = f"{_MANY}, dedup_id=None, dedup_window=None, replace=False, deadline=None"

VERBS: Final = {
    "put": f"(item, timeout=None, *, {_TERMS})",
    "put_nowait": f"(item, *, {_TERMS})",
    "put_many": f"(items, timeout=None, *, {_MANY}, deadline=None)",
    "get": "(timeout=None, *, deadline=None)",
    "get_nowait": "(*, deadline=None)",
    "get_many": "(max_items, timeout=None, *, deadline=None)",
    "receive": "(timeout=None, lease=None, *, deadline=None)",
    "receive_many": "(max_items, timeout=None, lease=None, *, deadline=None)",
    "consumer": "(ack='auto', delete=False, prefetch=None, lease=None, timeout=None, max_hold=None, shared=True)",
    "producer": "(close=True)",
    "__aiter__": "()",
    "create": "(bound=0, exist_ok=False, *, deadline=None)",
    "exists": "(*, deadline=None)",
    "qsize": "(*, deadline=None)",
    "bound": "(*, deadline=None)",
    "closed": "(*, deadline=None)",
    "paused": "(*, deadline=None)",
    "statistics": "(*, deadline=None)",
    "close": "(timeout=None, *, deadline=None)",
    "wait_closed": "(timeout=None, *, deadline=None)",
    "delete": "(timeout=None, *, deadline=None)",
    "purge": "(*, deadline=None)",
    "pause": "(*, deadline=None)",
    "resume": "(*, deadline=None)",
    "set_bound": "(bound, *, deadline=None)",
    "promote": "(max_items=None, *, ids=None, deadline=None)",
    "unblock": "()",
    "peek": "(*, deadline=None)",
    "peek_newest": "(*, deadline=None)",
    "browse": "(place='waiting', *, newest=False, cursor=None, limit=100, most_bytes=65536, deadline=None)",
    "dead_letters": "(limit=100, *, deadline=None)",
    "add_dead_letters": "(letters, *, deadline=None)",
    "find_dead_letters": "(search=None, *, cursor=None, look=500, deadline=None)",
    "discard": "(ids, timeout=None, *, deadline=None)",
    "move_dead_letters": "(target, ids, timeout=None, *, deadline=None)",
    "requeue": "(max_items=None, timeout=None, *, ids=None, deadline=None)",
}
"""The verbs and their arguments. Each that asks the server or the disk takes `deadline=`."""

LOOKS: Final = (
    "exists", "qsize", "bound", "closed", "paused", "statistics", "wait_closed", "peek", "peek_newest", "browse",
    "dead_letters", "find_dead_letters",
)  # fmt: skip
"""The verbs that change nothing."""

VALID: Final[dict[str, dict[str, Any]]] = {
    "put": {"item": b"1"}, "put_nowait": {"item": b"1"}, "put_many": {"items": [b"1"]}, "get_many": {"max_items": 1},
    "receive_many": {"max_items": 1}, "set_bound": {"bound": 1}, "discard": {"ids": ("none",)},
    "move_dead_letters": {"target": MemoryQueue("other", server=MemoryServer()), "ids": ("none",)},
    "add_dead_letters": {"letters": [DeadLetter("a", b"1", 1, None, None, bytes)]},
}  # fmt: skip
"""What a verb needs."""

Refused = tuple[Any, type[Exception], str]


def _times(name: str, none: bool) -> list[Refused]:
    number = "a number of seconds or None" if none else "a number of seconds"
    return [
        (math.nan, ValueError, f"{name} must be at least 0 seconds, not nan"),
        (-1, ValueError, f"{name} must be at least 0 seconds, not -1"),
        ("1", TypeError, f"{name} must be {number}, not str"),
        (True, TypeError, f"{name} must be {number}, not bool"),
    ]


def _counts(name: str) -> list[Refused]:
    return [
        (0, ValueError, f"{name} must be (at least 1|between 1 and )"),
        ("1", TypeError, f"{name} must be a whole number, not str"),
        (True, TypeError, f"{name} must be a whole number, not bool"),
    ]


BAD: Final[dict[str, list[Refused]]] = {
    "timeout": _times("timeout", none=True),
    "deadline": _times("deadline", none=False),
    "max_items": _counts("max_items"),
    "limit": _counts("limit"),
    "most_bytes": _counts("most_bytes"),
    "place": [("there", ValueError, "place must be one of 'waiting', .*, not 'there'$")],
    "cursor": [
        ("there", ValueError, "cursor must be that of a page of this queue, not 'there'$"),
        ("delayed-oldest-1", ValueError, "cursor is of another place or order: "),
        ("waiting-newest-1", ValueError, "cursor is of another place or order: "),
        (1, TypeError, "cursor must be a string, not int"),
    ],
    "search": [("x", TypeError, "search must be a DeadLetterSearch or None, not str")],
    "look": _counts("look"),
    "prefetch": _counts("prefetch"),
    "lease": [
        (0, ValueError, "lease must be between .* seconds, not 0"),
        (math.nan, ValueError, "lease must be between .* seconds, not nan"),
        ("1", TypeError, "lease must be a number of seconds or None, not str"),
    ],
    "max_hold": [
        (0, ValueError, "max_hold must be more than 0 and at most .* seconds, not 0"),
        ("1", TypeError, "max_hold must be a number of seconds or None, not str"),
    ],
    "ack": [("never", ValueError, "ack must be 'auto' or 'manual', not 'never'")],
    "bound": [
        (-1, ValueError, "bound must be between 0 and .*, not -1"),
        (True, TypeError, "bound must be a whole number of .*, not bool"),
    ],
    "item": [(1, TypeError, "")],
    "items": [
        (b"1", TypeError, "put_many takes an iterable of items, not bytes: use put for one item"),
        ([1], TypeError, ""),
    ],
    "target": [("other", TypeError, "target must be a queue, not str")],
    "letters": [([b"1"], TypeError, "add_dead_letters takes DeadLetters, not bytes")],
    "ids": [
        ("1", TypeError, "ids must be "),
        ([1], TypeError, "an id must be a string, not int"),
    ],
}  # fmt: skip
"""What is refused of each argument: the value, and the error with the beginning of its message."""


async def call(queue: Any, verb: str, **more: Any) -> Any:
    """Call a verb with what it needs, and more arguments."""
    outcome = getattr(queue, verb)(**{**VALID.get(verb, {}), **more})
    return await outcome if inspect.isawaitable(outcome) else outcome
