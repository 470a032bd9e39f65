"""On what terms a message is put or goes back: `delay=`, `at=`, `expires=`, `key=`, `cost=` and `dedup_id=`."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypedDict

from apressure import validation
from apressure.core.dedup import Dedup, dedup_of
from apressure.exceptions import UnsupportedError
from apressure.logs import printable

MOST_DELAY: Final = 315_360_000.0
"""Seconds (ten years): the longest delay, and the longest time until a message expires."""

EXPIRED: Final = b"expired\t"
"""Why a message that has expired is a dead letter, as `dead_letters.encode` writes errors."""


MOST_KEY: Final = 512
"""Bytes: the longest key."""

MOST_COST: Final = 10**9
"""The most that a message costs."""


class ManyTerms(TypedDict, total=False):
    """On what terms messages are put with `put_many`: keyword arguments, as `put` documents them."""

    delay: float | None
    at: datetime | None
    expires: float | None
    key: str | None
    cost: int


class PutTerms(ManyTerms, total=False):
    """On what terms a message is put: keyword arguments, as `put` documents them."""

    dedup_id: str | None
    dedup_window: float | None
    replace: bool


class Due(NamedTuple):
    """When a message is due, when it expires, its key, and whether it may be a repeat; by the clock of its server.

    Attributes:
        milliseconds: After it was accepted; with `absolute`, since 1970. 0 is at once.
        absolute: What `milliseconds` counts from.
        expires: Milliseconds after it was accepted from which on it is not delivered; None for never.
        dedup: What tells a repeat of it; None if repeats are put, too.
        key: Its key; empty for none.
        cost: For how many messages it counts against the rate of the queue.
    """

    milliseconds: int
    absolute: bool = False
    expires: int | None = None
    dedup: Dedup | None = None
    key: bytes = b""
    cost: int = 1

    def at(self, now: float) -> int:
        """Return the milliseconds since 1970, `now` being these."""
        return self.milliseconds if self.absolute else int(now) + self.milliseconds

    @property
    def encoded(self) -> bytes:
        """The argument of a script: milliseconds after now, or `@` and milliseconds since 1970.

        Behind that, of a message that expires, `!` and the milliseconds until then, of one with a cost, `$` and that,
        and of one with a key `#` and that.
        """
        return b"%s%d%s" % (b"@" if self.absolute else b"", self.milliseconds, self.end)

    @property
    def end(self) -> bytes:
        """What is behind the time in the argument of a script."""
        end = b"" if self.expires is None else b"!%d" % self.expires
        if self.cost != 1:
            end = b"%s$%d" % (end, self.cost)
        return b"%s#%s" % (end, self.key) if self.key else end


def due_of(terms: PutTerms | ManyTerms, name: str = "", unable: str = "", keyless: str = "") -> Due | None:
    """Return on what terms a message is put; None for at once, without an end, and as often as it is put.

    Args:
        terms: What the program said.
        name: The queue's name, for errors.
        unable: The kind of queue, if it knows nothing of a message but its contents.
        keyless: Why the queue cannot keep the key or the cost of a message, if it cannot.

    Raises:
        TypeError: `delay` or `expires` is not a number, `at` is not a datetime, `key` is not a string, or there is no
            such argument.
        ValueError: `delay` and `at` are given; one is negative or more than ten years away; `at` has no time zone; the
            message would expire before it is due, or cannot expire; the key is empty or too long; the cost is not
            between 1 and a billion; or what tells a repeat is invalid.
        UnsupportedError: There is a key or a cost, and the queue keeps none.
    """
    if not terms:
        return None  # as in most puts
    if len(terms) == 1 and "delay" in terms:
        return _due(terms["delay"], None)  # as in most of the others
    given: dict[str, Any] = {**terms}
    due = _expiring(_due(given.pop("delay", None), given.pop("at", None)), given.pop("expires", None), unable)
    named = given.pop("key", None)
    key = b"" if named is None else validation.encoded(named, "key", MOST_KEY)
    if key and keyless:
        raise knows_no_keys(name, keyless)
    cost = validation.whole(given.pop("cost", 1), "cost", 1, MOST_COST)
    if cost != 1 and keyless:
        raise UnsupportedError(
            f"the queue {name!r} keeps no cost beside a message: {_instead(name)}, or leave out "
            f"cost={unable and ', and spend() what a message has cost'}. Nothing was put",
            name=name,
        )
    window, replace = given.pop("dedup_window", None), given.pop("replace", False)
    dedup = dedup_of(given.pop("dedup_id", None), window, unable, replace)
    if given:
        raise TypeError(f"put has no argument {next(iter(given))!r}")
    if key or dedup is not None or cost != 1:
        return (due or Due(0))._replace(dedup=dedup, key=key, cost=cost)
    return due


def knows_no_keys(name: str, why: str) -> UnsupportedError:
    """The error for a queue that cannot tell the messages of a key."""
    return UnsupportedError(
        f"{why}, so it cannot tell the messages of a key: {_instead(name)}. Nothing has changed",
        name=name,
    )


def _instead(name: str) -> str:
    """What to do where a queue knows nothing of a message but its contents."""
    shown = printable(name)
    return (
        f"use an EventQueue (events:{shown}) or a TaskQueue (tasks:{shown}) with the address of its Redis or Valkey "
        "server"
    )


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
