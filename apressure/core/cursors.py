"""Where the next page of what is in a queue begins, as a text. No I/O."""

from __future__ import annotations

import re
from typing import Final

from apressure import validation

_CURSOR: Final = re.compile(r"(\w+)-(oldest|newest)-([0-9]{1,15})", re.ASCII)


def cursor_of(place: str, passed: int, newest: bool = False) -> str:
    """Return the cursor of a page that passes over so many messages in a place."""
    return f"{place}-{_order(newest)}-{passed}"


def passed_by(cursor: str | None, place: str, newest: bool = False) -> int:
    """Return how many messages of a place are passed over; none without a cursor.

    Raises:
        TypeError, ValueError: It is not a cursor, or that of another place or order.
    """
    if cursor is None:
        return 0
    matched = _CURSOR.fullmatch(validation.text(cursor, "cursor"))
    if matched is None:
        raise ValueError(f"cursor must be that of a page of this queue, not {cursor[:100]!r}")
    if matched.groups()[:2] != (place, _order(newest)):
        raise ValueError(f"cursor is of another place or order: give the arguments of the page before ({cursor})")
    return int(matched[3])


def _order(newest: bool) -> str:
    return "newest" if newest else "oldest"
