"""When a message is due: `put(delay=)`, `put(at=)`, `nack(delay=)`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from apressure import validation

MOST_DELAY: Final = 315_360_000.0
"""Seconds (ten years): the longest delay."""


class Due(NamedTuple):
    """When a message is due, by the clock of its server.

    Attributes:
        milliseconds: After it was accepted; with `absolute`, since 1970.
        absolute: What `milliseconds` counts from.
    """

    milliseconds: int
    absolute: bool = False

    def at(self, now: float) -> int:
        """Return the milliseconds since 1970, `now` being these."""
        return self.milliseconds if self.absolute else int(now) + self.milliseconds

    @property
    def encoded(self) -> bytes:
        """The argument of a script: milliseconds after now, or `@` and milliseconds since 1970."""
        return b"%s%d" % (b"@" if self.absolute else b"", self.milliseconds)


def due_of(delay: Any, at: Any) -> Due | None:
    """Return when a message is due; None at once.

    Raises:
        TypeError: `delay` is not a number, or `at` is not a datetime.
        ValueError: Both are given; `delay` is negative or longer than ten years; `at` has no time zone, or is more than
            ten years away.
    """
    if at is None:
        if delay is None or validation.seconds(delay, "delay", most=MOST_DELAY, none=True) == 0:
            return None
        return Due(max(1, round(delay * 1000)))
    if delay is not None:
        raise ValueError("give delay= or at=, not both")
    if not isinstance(at, datetime):
        raise TypeError(f"at must be a datetime with a time zone, or None, not {type(at).__name__}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise ValueError(f"at must have a time zone, such as at=datetime.now(UTC) + timedelta(hours=1), not {at!r}")
    if at - datetime.now(at.tzinfo) > timedelta(seconds=MOST_DELAY):
        raise ValueError(f"at must be within ten years, not {at!r}")
    return Due(max(0, round(at.timestamp() * 1000)), absolute=True)
