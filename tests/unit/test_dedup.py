"""The script that puts messages once names keys and arguments by their places; see `connection.dedup`."""

from __future__ import annotations

import re

import pytest

from apressure.connection.dedup import PutScript
from apressure.core.dedup import MOST_WINDOW, Dedup, dedup_of
from apressure.events.engine import batching as events
from apressure.events.engine.keys import EventKeys
from apressure.pressure.engine import batching as pressure
from apressure.pressure.engine.keys import Keys
from apressure.tasks.engine import lanes as tasks
from apressure.tasks.engine.keys import TaskKeys, task_key

EVENTS = EventKeys("jobs")


@pytest.mark.parametrize(
    ("how", "keys", "named"),
    [
        (pressure.PUT_ONCE, Keys("p", "jobs").for_script("7"), []),
        (events.PUT_ONCE, EVENTS.for_script("7"), [EVENTS.items, EVENTS.ours[15]]),
        (tasks.PUT_ONCE, TaskKeys("jobs").for_script("7"), [task_key(b"")]),
    ],
    ids=["queue", "events", "tasks"],
)
def test_the_places_are_those_of_the_keys(how: PutScript, keys: tuple[bytes, ...], named: list[bytes]) -> None:
    assert keys[how.record - 1].endswith(b":7")
    assert [keys[int(place) - 1] for place in re.findall(r"KEYS\[(\d+)\]", how.unfinished)] == named
    waiting = [keys[int(place) - 1] for place in re.findall(r"KEYS\[(\d+)\]", how.waiting)]
    claims = [EVENTS.unclaimed, EVENTS.ours[2], EVENTS.claimed, EVENTS.ours[2], EVENTS.claimed]
    assert waiting == ([EVENTS.ours[15], *claims] if how is events.PUT_ONCE else named)
    assert EVENTS.ours[2].endswith(b":expiry")
    assert EVENTS.ours[15].endswith(b":later")


def test_what_tells_a_repeat() -> None:
    assert dedup_of(None, None) is None
    first, second = dedup_of("ä", 0.0004), dedup_of("ä", 0.0004)
    assert isinstance(first, Dedup)
    assert isinstance(second, Dedup)
    assert (first.id, first.window) == ("ä".encode(), 1)
    assert first.token != second.token
    assert dedup_of("a", MOST_WINDOW).arguments[2] == 315_360_000_000  # type: ignore[union-attr]
    assert dedup_of("a", None).arguments[2] == b""  # type: ignore[union-attr]
    assert dedup_of("a", None, replace=True).arguments[2] == b"!"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="give dedup_id=, too"):
        dedup_of(None, 1.0)
    with pytest.raises(ValueError, match="give dedup_id=, too"):
        dedup_of(None, None, replace=True)
    with pytest.raises(ValueError, match="leave out one of them"):
        dedup_of("a", 1.0, replace=True)
    with pytest.raises(ValueError, match="leave out replace="):
        dedup_of("a", 1.0, "an AsyncQueue", replace=True)
    with pytest.raises(TypeError, match="True or False, not int"):
        dedup_of("a", None, replace=1)
    with pytest.raises(ValueError, match="with dedup_window=, or use an EventQueue"):
        dedup_of("a", None, "an AsyncQueue")
    with pytest.raises(ValueError, match="1 to 1024 bytes, not 1025"):
        dedup_of("a" * 1025, 1.0)
    with pytest.raises(ValueError, match="UTF-8"):
        dedup_of("\ud800", 1.0)
