"""When a schedule puts its item: its times, the record that a queue keeps of it, and what comes of a look at it.

Times of day are those of cron, computed by `cronsim` as Debian's cron does: when clocks go forward, what falls into the
hour that is missing comes right behind it; when they go back, what names an hour comes once. (Not with a field for
seconds, or with `*` for the minute or the hour.)
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from apressure import validation
from apressure.core.due import MOST_DELAY
from apressure.core.statistics import seconds_of
from apressure.exceptions import MissingExtraError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Missed = Literal["none", "one", "all"]

MOST_NAME: Final = 200
"""Characters of a schedule's name."""
GRACE: Final = 60_000
"""Milliseconds by which an occasion may be late with `missed="none"`."""

_MOST_NUMBER: Final = 10**14
"""A record has smaller numbers: counts, and milliseconds since 1970."""
_MISSED: Final = ("none", "one", "all")
_MOST_TEXT: Final = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An item that a queue puts at certain times.

    Attributes:
        name: The schedule's name.
        when: Its times: an expression of cron, or the seconds from one to the next.
        timezone: Whose times of day they are.
        missed: What comes of occasions at which nothing drove it: `none`, `one` or `all` of them are put.
        raw: The item, in bytes.
        next: When the next occasion is, in seconds since 1970; None if there is none.
        last: When the last one was put; None if there was none.
        count: How many have been put.
        paused: Whether it is paused.
    """

    name: str
    when: str | float
    timezone: str = "UTC"
    missed: Missed = "one"
    raw: bytes = dataclasses.field(repr=False)
    next: float | None = None
    last: float | None = None
    count: int = 0
    paused: bool = False

    @property
    def definition(self) -> tuple[Any, ...]:
        """What `every` was given."""
        return self.when, self.timezone, self.missed, self.raw

    def encode(self) -> bytes:
        """Return the record that the queue keeps: JSON, with times in milliseconds. No two are the same."""
        record = {
            "when": self.when, "timezone": self.timezone, "missed": self.missed, "next": _milliseconds(self.next),
            "last": _milliseconds(self.last), "count": self.count, "paused": self.paused,
            "item": base64.b64encode(self.raw).decode(), "by": os.urandom(4).hex(),
        }  # fmt: skip
        return json.dumps(record, separators=(",", ":")).encode()

    def after(self, moment: int) -> Schedule:
        """Return it with the first occasion after a moment, in milliseconds since 1970."""
        return dataclasses.replace(self, next=seconds_of(_following(self.when, self.timezone, moment)))

    def put(self, moment: int) -> Schedule:
        """Return it with an occasion more, which was put then."""
        return dataclasses.replace(self, last=moment / 1000, count=self.count + 1)

    def look(self, now: int) -> Look | None:
        """Return what is to be done at a moment; None if nothing is due."""
        due = _milliseconds(self.next)
        if self.paused or due is None or due > now:
            return None
        if self.missed == "all":
            return Look(True, self.put(now).after(due))
        later = self.after(now)
        if self.missed == "none" and now - _preceding(self.when, self.timezone, now) > GRACE:
            return Look(False, later)
        return Look(True, later.put(now))


class Look(NamedTuple):
    """What is to be done with a schedule that is due.

    Attributes:
        put: Whether its item is put.
        schedule: The schedule after that.
    """

    put: bool
    schedule: Schedule


def decode(name: str, record: bytes) -> Schedule:
    """Return what `Schedule.encode` made.

    Raises:
        ValueError: Another program wrote there.
    """
    try:
        found = json.loads(record)
        following, last = (seconds_of(found[key] and _number(found[key])) for key in ("next", "last"))
        when, timezone, missed = _known(found["when"], found["timezone"], found["missed"])
        with contextlib.suppress(MissingExtraError):  # its times matter to those that drive it
            _check_times(when, timezone)
        raw, paused = base64.b64decode(found["item"], validate=True), bool(found["paused"])
        count = _number(found["count"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the record of the schedule {name!r} is damaged: {error}") from None
    return Schedule(
        name=name, when=when, timezone=timezone, missed=missed, raw=raw, next=following, last=last, count=count,
        paused=paused,
    )  # fmt: skip


def _number(value: Any) -> int:
    """Return a number of a record.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"{str(value)[:50]!r} is not a number from 0 on")
    return value


def checked_name(name: Any) -> str:
    """Return a schedule's name.

    Raises:
        TypeError, ValueError: It is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"a schedule's name must be a string, not {type(name).__name__}")
    if not 0 < len(name) <= MOST_NAME or not name.isprintable():
        raise ValueError(f"a schedule's name must have 1 to {MOST_NAME} printable characters, not {name[:50]!r}")
    return name


def checked(when: Any, timezone: Any, missed: Any) -> tuple[str | float, str, Missed]:
    """Return when a schedule puts its item.

    Raises:
        TypeError, ValueError: An argument is invalid, or there is no such time in the next fifty years.
        MissingExtraError: It is an expression of cron, and cronsim is not installed.
    """
    known = _known(when, timezone, missed)
    _check_times(known[0], known[1])
    return known


def _known(when: Any, timezone: Any, missed: Any) -> tuple[str | float, str, Missed]:
    """Return when a schedule puts its item; what an expression of cron says is not checked."""
    if isinstance(when, str):
        when = " ".join(when[: _MOST_TEXT + 1].split())
        if len(when) > _MOST_TEXT:
            raise ValueError(f"an expression of cron has at most {_MOST_TEXT} characters")
    elif isinstance(when, bool) or not isinstance(when, (int, float)):
        raise TypeError(
            f"a schedule's times must be an expression of cron, or a number of seconds, not {type(when).__name__}"
        )
    else:
        when = validation.seconds(when, "the time from one occasion to the next", 1.0, MOST_DELAY)
    if not isinstance(timezone, str):
        raise TypeError(f"timezone must be a name such as 'Europe/Berlin', not {type(timezone).__name__}")
    if missed not in _MISSED:
        raise ValueError(f"missed must be 'none', 'one' or 'all', not {missed!r}")
    return when, timezone, missed


@functools.lru_cache(maxsize=1024)  # a service reads the records every few seconds
def _check_times(when: str | float, timezone: str) -> None:
    _zone(timezone)
    if _following(when, timezone, 0) is None:
        raise ValueError(f"{when!r} is no time of the next fifty years")


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # here, since most programs have no schedules

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # ZoneInfoNotFoundError is a KeyError; a directory is an OSError
        raise ValueError(
            f"there is no timezone {name[:50]!r} here. Names are those of IANA, such as 'Europe/Berlin'; if a machine "
            "has none, install them: pip install tzdata"
        ) from None


def _following(when: str | float, timezone: str, moment: int) -> int | None:
    """Return the first occasion after a moment; None if there is none in fifty years."""
    if isinstance(when, str):
        return _cron(when, timezone, moment, reverse=False)
    step = round(when * 1000)
    return moment - moment % step + step


def _preceding(when: str | float, timezone: str, moment: int) -> int:
    """Return the last occasion at a moment or before it."""
    if isinstance(when, str):
        found = _cron(when, timezone, moment - moment % 1000 + 1000, reverse=True)
        return 0 if found is None else found
    return moment - moment % round(when * 1000)


def _cron(expression: str, timezone: str, moment: int, reverse: bool) -> int | None:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingExtraError(
            "times of day need cronsim: pip install 'apressure[schedules]'", extra="schedules"
        ) from None
    try:
        begin = datetime.fromtimestamp(moment // 1000, UTC).astimezone(_zone(timezone))
        found = next(CronSim(expression, begin, reverse), None)
    except CronSimError as error:
        raise ValueError(
            f"{expression!r} is no expression of cron ({error}): write minute, hour, day, month and weekday, such as "
            "'0 9 * * mon-fri', or six fields with the second first; or the seconds from one time to the next, as a "
            "number: 300"
        ) from None
    return None if found is None else int(found.timestamp()) * 1000


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
