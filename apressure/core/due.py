"""On what terms a message is put or goes back: `delay=`, `at=`, `expires=` and `dedup_id=`."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from apressure import validation
from apressure.core.dedup import Dedup, dedup_of

MOST_DELAY: Final = 315_360_000.0
"""Seconds (ten years): the longest delay, and the longest time until a message expires."""

EXPIRED: Final = b"expired\t"
"""Why a message that has expired is a dead letter, as `dead_letters.encode` writes errors."""


class Due(NamedTuple):
    """When a message is due, when it expires, and whether it may be a repeat; by the clock of its server.

    Attributes:
        milliseconds: After it was accepted; with `absolute`, since 1970. 0 is at once.
        absolute: What `milliseconds` counts from.
        expires: Milliseconds after it was accepted from which on it is not delivered; None for never.
        dedup: What tells a repeat of it; None if repeats are put, too.
    """

    milliseconds: int
    absolute: bool = False
    expires: int | None = None
    dedup: Dedup | None = None

    def at(self, now: float) -> int:
        """Return the milliseconds since 1970, `now` being these."""
        return self.milliseconds if self.absolute else int(now) + self.milliseconds

    @property
    def encoded(self) -> bytes:
        """The argument of a script: milliseconds after now, or `@` and milliseconds since 1970.

        Behind that, of a message that expires, `!` and the milliseconds until then.
        """
        return b"%s%d%s" % (b"@" if self.absolute else b"", self.milliseconds, self.end)

    @property
    def end(self) -> bytes:
        """What is behind the time in the argument of a script."""
        return b"" if self.expires is None else b"!%d" % self.expires


def due_of(
    delay: Any, at: Any, expires: Any = None, unable: str = "", *, dedup_id: Any = None, dedup_window: Any = None
) -> Due | None:  # fmt: skip
    """Return on what terms a message is put; None for at once, without an end, and as often as it is put.

    `unable` is the kind of queue, if it knows nothing of a message but its contents.

    Raises:
        TypeError: `delay` or `expires` is not a number, or `at` is not a datetime.
        ValueError: `delay` and `at` are given; one is negative or more than ten years away; `at` has no time zone; the
            message would expire before it is due, or cannot expire; or what tells a repeat is invalid.
    """
    if delay is None and at is None and expires is None and dedup_id is None and dedup_window is None:
        return None  # as in most puts
    due = _expiring(_due(delay, at), expires, unable)
    dedup = dedup_of(dedup_id, dedup_window, unable)
    return due if dedup is None else (due or Due(0))._replace(dedup=dedup)


def _expiring(due: Due | None, expires: Any, unable: str) -> Due | None:
    if expires is None:
        return due
    if unable:
        raise ValueError(
            f"messages of {unable} cannot expire: it keeps no time beside a message. Leave out expires=, and put the "
            "time into the item, or use an EventQueue, TaskQueue or FileQueue"
        )
    end = max(1, round(validation.seconds(expires, "expires", most=MOST_DELAY, above=True, none=True) * 1000))
    if due is None:
        return Due(0, expires=end)
    ahead = due.milliseconds - (round(time.time() * 1000) if due.absolute else 0)
    if end <= ahead:
        raise ValueError(f"a message that expires after {expires} seconds would expire before it is due")
    return due._replace(expires=end)


def _due(delay: Any, at: Any) -> Due | None:
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
