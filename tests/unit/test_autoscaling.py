"""The day of docs/do/scale.md: no flapping, no work cut short, and the figures of the page."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest

from apressure.telemetry import scaling
from apressure.telemetry.often import Often
from tests.autoscaling import Day, draw, simulate, summary

PAGE = Path(__file__).parents[2] / "docs" / "do" / "scale.md"


@functools.cache
def days() -> tuple[Day, Day]:
    """With the wanted workers, and with the length of a list."""
    return simulate("keda.yaml"), simulate("keda-list.yaml", length_alone=True)


def test_no_worker_is_ended_shortly_before_one_is_started_and_none_at_work() -> None:
    day, by_length = days()
    assert day.handled == day.put
    assert day.ended > 20  # so the number does follow the load
    assert day.flaps == day.cut == 0
    assert day.paid < 24 * 3600 * day.most / 5  # of what as many as at the peak would cost all day
    assert by_length.flaps > 20
    assert sorted(day.waits)[len(day.waits) // 2] < sorted(by_length.waits)[len(by_length.waits) // 2]


def test_the_page_has_the_figures_of_the_day() -> None:
    rows = re.findall(r"^\| ([a-z0-9 ]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    told = {what: (first, second) for what, first, second in rows}
    first, second = map(summary, days())
    assert first.keys() <= told.keys()
    for what, value in first.items():
        written = tuple(f"{each:,}" if isinstance(each, int) else each for each in (value, second[what]))
        assert told[what] == written, what


def test_the_page_has_an_answer_of_the_exporter() -> None:
    (answer,) = (json.loads(line) for line in PAGE.read_text().splitlines() if line.startswith('{"queue"'))
    demand = scaling.Demand(
        waiting=answer["waiting"], in_flight=answer["in_flight"], workers=answer["workers"],
        mean_seconds=answer["mean_seconds"], concurrency=answer["in_flight"] / answer["workers"],
    )  # fmt: skip
    assert scaling.wanted_workers(demand, scaling.Scaling()) == answer["wanted_workers"]
    assert [*answer] == ["queue", "kind", *(field.name for field in dataclasses.fields(scaling.Need))]


def test_without_the_window_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_WINDOW", 0.0)
    assert simulate("keda.yaml").flaps > 20


def test_producers_that_a_bound_keeps_waiting_get_workers_and_none_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    day = simulate("keda.yaml", bound=20)
    assert day.handled == day.put
    assert day.flaps == day.cut == 0
    assert f"the same day needs {round(day.paid / 3600)} worker hours" in PAGE.read_text()
    monkeypatch.setattr(Often, "look", lambda *_: False)
    unseen = simulate("keda.yaml", bound=20)
    assert (unseen.most, unseen.handled < unseen.put / 2) == (1, True)


def test_handlers_that_take_longer_than_the_shutdown_are_cut_short() -> None:
    assert simulate("keda.yaml", duration=lambda number: 80.0 if number > 0.97 else 2.0).cut > 0


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (not installed: pip install matplotlib)")
    draw(dict(zip(("one", "other"), days(), strict=True)), tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")
