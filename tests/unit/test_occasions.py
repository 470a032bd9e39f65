"""The times of schedules: clocks that go forward and back, and what a look makes of any time at all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apressure.core import occasions as module
from apressure.core.occasions import GRACE, Missed, Schedule, checked, decode
from apressure.exceptions import MissingExtraError

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu",
    "Pacific/Chatham", "America/Sao_Paulo",
]  # fmt: skip


def schedule(when: str | float, timezone: str = "UTC", missed: Missed = "one") -> Schedule:
    return Schedule(name="x", when=when, timezone=timezone, missed=missed, raw=b"item")


def moment(text: str, timezone: str = "UTC") -> int:
    """Milliseconds since 1970, of a time of day; the first one, where it comes twice."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone)).timestamp() * 1000)


def occasions(when: str | float, timezone: str, begin: str, end: str) -> list[str]:
    """The times of day, with their offsets, of all occasions between two times of day."""
    found: list[str] = []
    at, last = moment(begin, timezone), moment(end, timezone)
    while True:
        following = schedule(when, timezone).after(at)
        assert following.next is not None
        at = round(following.next * 1000)
        if at > last:
            return found
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(timezone)).strftime("%d %H:%M:%S%z"))


@pytest.mark.parametrize(
    ("when", "timezone", "begin", "end", "expected"),
    [
        ("0 9 * * mon-fri", "Europe/Berlin", "2026-03-27T00:00", "2026-03-31T00:00",
         ["27 09:00:00+0100", "30 09:00:00+0200"]),
        # The hour from two to three is missing: what falls into it comes right behind it.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", "2026-03-31T00:00",
         ["28 02:30:00+0100", "29 03:00:00+0200", "30 02:30:00+0200"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T00:00", "2026-03-31T00:00",
         ["28 03:00:00+0100", "29 03:00:00+0200", "30 03:00:00+0200"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00", "2026-03-29T04:00",
         ["29 01:30:00+0100", "29 03:00:00+0200", "29 03:30:00+0200", "29 04:00:00+0200"]),
        # The hour from two to three comes twice: what names it comes once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00", "2026-10-27T00:00",
         ["24 02:30:00+0200", "25 02:30:00+0200", "26 02:30:00+0100"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:30", "2026-10-25T03:00",
         ["25 02:00:00+0200", "25 02:30:00+0200", "25 02:00:00+0100", "25 02:30:00+0100", "25 03:00:00+0100"]),
        # Half an hour is missing, and comes twice.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", "2026-10-06T00:00",
         ["03 02:15:00+1030", "04 02:30:00+1100", "05 02:15:00+1100"]),
        # Midnight is missing.
        ("0 0 * * *", "America/Santiago", "2026-09-05T00:00", "2026-09-07T12:00",
         ["06 01:00:00-0300", "07 00:00:00-0300"]),
        ("0 0 L * *", "UTC", "2027-12-30T00:00", "2028-03-01T00:00",
         ["31 00:00:00+0000", "31 00:00:00+0000", "29 00:00:00+0000"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", "2032-03-01T00:00", ["29 00:00:00+0000"] * 2),
        ("*/20 0 0 1 1 *", "UTC", "2025-12-31T00:00", "2026-01-02T00:00",
         ["01 00:00:00+0000", "01 00:00:20+0000", "01 00:00:40+0000"]),
        (1800, "Europe/Berlin", "2026-10-25T01:30", "2026-10-25T02:00", ["25 02:00:00+0200"]),
        (2.5, "UTC", "2026-01-01T00:00:00", "2026-01-01T00:00:06", ["01 00:00:02+0000", "01 00:00:05+0000"]),
    ],
)  # fmt: skip
def test_occasions(when: str | float, timezone: str, begin: str, end: str, expected: list[str]) -> None:
    assert occasions(when, timezone, begin, end) == expected


numbers = st.one_of(st.just("*"), st.integers(0, 23).map(str), st.integers(2, 12).map("*/{}".format))
expressions = st.one_of(
    st.tuples(
        numbers, numbers, st.sampled_from(["*", "1", "15", "L"]), st.just("*"), st.sampled_from(["*", "mon-fri"])
    ),
    st.tuples(numbers, numbers, numbers, st.just("*"), st.just("*"), st.just("*")),
).map(" ".join)
whens = st.one_of(expressions, st.integers(1, 1_000_000), st.floats(1, 1000).map(lambda each: round(each, 3)))
moments = st.integers(moment("2020-01-01T00:00"), moment("2040-01-01T00:00"))


@given(when=whens, timezone=st.sampled_from(ZONES), at=moments, later=st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_the_next_occasion_is_later_and_none_is_passed_over(
    when: str | float, timezone: str, at: int, later: int
) -> None:
    when, timezone, _ = checked(when, timezone, "one")
    first, second = schedule(when, timezone).after(at), schedule(when, timezone).after(at + later)
    assert first.next is not None
    assert second.next is not None
    assert first.next * 1000 > at
    assert second.next >= first.next  # time goes on, and so do the occasions
    if first.next * 1000 > at + later:
        assert second.next == first.next  # there is none in between


@given(
    when=whens, timezone=st.sampled_from(ZONES), at=moments, missed=st.sampled_from(["none", "one", "all"]),
    steps=st.lists(st.integers(-100_000_000, 100_000_000), max_size=30),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_occasion_is_put_twice_however_the_clock_is_set(
    when: str | float, timezone: str, at: int, missed: Missed, steps: list[int]
) -> None:
    when, timezone, _ = checked(when, timezone, missed)
    current = schedule(when, timezone, missed).after(at)
    now = at
    for step in steps:
        now = max(0, now + step)
        look = current.look(now)
        assert current.next is not None
        due = current.next * 1000 <= now
        assert (look is not None) is due
        if look is None:
            continue
        after = look.schedule
        assert after.next is not None
        assert after.next > current.next  # what was put, or passed over, does not come again
        assert after.count == current.count + look.put
        if missed == "all":
            assert look.put
            assert after.next == current.after(round(current.next * 1000)).next  # one at a time
        else:
            assert after.next * 1000 > now
            assert look.put or missed == "none"
        current = decode("x", after.encode())
        assert dataclasses.replace(current, count=after.count) == after


@given(late=st.integers(0, 3 * GRACE))
@settings(deadline=None)
def test_none_puts_nothing_that_is_more_than_a_minute_late(late: int) -> None:
    begun = moment("2026-05-05T08:00")
    look = schedule("0 9 * * *", missed="none").after(begun).look(moment("2026-05-05T09:00") + late)
    assert look is not None
    assert look.put is (late <= GRACE)
    assert look.schedule.next == moment("2026-05-06T09:00") / 1000


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_a_record_or_a_clear_error(record: bytes) -> None:
    with pytest.raises(ValueError, match="the record of the schedule 'x' is damaged"):
        decode("x", record)


@given(
    st.fixed_dictionaries({
        "when": st.one_of(st.none(), st.text(max_size=10), st.floats(), st.integers(), st.booleans()),
        "timezone": st.one_of(st.just("UTC"), st.none(), st.text(max_size=10)),
        "missed": st.one_of(st.just("one"), st.none(), st.text(max_size=5)),
        "next": st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3)),
        "last": st.one_of(st.none(), st.integers(), st.booleans()),
        "count": st.one_of(st.integers(), st.floats(), st.none(), st.text(max_size=3)),
        "paused": st.booleans(),
        "item": st.one_of(st.just("aXRlbQ=="), st.text(max_size=5), st.none()),
    })
)  # fmt: skip
@settings(max_examples=500, deadline=None)
def test_a_record_that_another_program_wrote_is_a_schedule_or_a_clear_error(record: dict[str, Any]) -> None:
    with contextlib.suppress(DamagedError):
        found = decoded(json.dumps(record).encode())
        found.look(moment("2026-05-05T09:00"))
        assert decode("x", found.encode()) == found


class DamagedError(Exception):
    """A record was refused, in clear words."""


def decoded(record: bytes) -> Schedule:
    try:
        return decode("x", record)
    except ValueError as error:
        if str(error).startswith("the record of the schedule 'x' is damaged: "):
            raise DamagedError from None
        raise


def test_a_record_is_never_the_same_as_another() -> None:
    """So a step that writes one knows whether it was its own."""
    one = schedule(60).after(0)
    assert one.encode() != one.encode()


def test_a_time_zone_that_is_not_whole_hours() -> None:
    at = datetime(2026, 5, 5, 3, 14, 59, tzinfo=UTC)
    following = schedule("0 9 * * *", "Asia/Kathmandu").after(round(at.timestamp() * 1000))
    assert following.next == (at + timedelta(seconds=1)).timestamp()


def test_a_record_is_read_without_cronsim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that only look at it, such as `apressure top`, need not compute its times."""
    record = schedule("0 9 * * *", "Europe/Berlin").after(0).encode()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    module._check_times.cache_clear()
    found = decode("x", record)
    assert (found.when, found.next is not None) == ("0 9 * * *", True)
    with pytest.raises(MissingExtraError, match="schedules"):
        found.after(0)
    module._check_times.cache_clear()
