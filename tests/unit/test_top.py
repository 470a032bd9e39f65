"""What `apressure top` says of queues: bars, trends, columns, the order, the filter and the totals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from apressure.cli.top.cells import COLUMNS, bar, fitting, rate, sparkline
from apressure.cli.top.once import as_dict
from apressure.cli.top.view import Sort, Trend, View
from apressure.monitor.monitor import Seen
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.history import Speed
from apressure.telemetry.sampler import Sample
from apressure.telemetry.states import Severity, State, failed


@pytest.mark.parametrize(
    ("length", "bound", "shown"),
    [
        (0, 10, "          "), (1, 1000, "▏         "), (5, 10, "█████     "), (10, 10, "██████████"),
        (99, 10, "██████████"), (55, 100, "█████▌    "),
    ],
)  # fmt: skip
def test_a_bar_shows_how_full_a_queue_is(length: int, bound: int, shown: str) -> None:
    assert bar(length, bound) == shown


def test_a_trend_has_a_step_for_each_twenty_seconds_also_for_those_without_a_look() -> None:
    trend = Trend()
    for at, length in ((0, 1), (5, 2), (21, 4), (85, 8)):
        trend.add(at, length)
    assert list(trend.lengths) == [2, 4, 4, 4, 8]
    trend.add(1e9, 3)
    assert list(trend.lengths) == [8] * 14 + [3]
    assert sparkline(trend.lengths) == "█" * 14 + "▄"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.0, "0"), (0.25, "0.2"), (12.4, "12"), (1234.5, "1,234")])
def test_a_rate_is_short(value: float | None, shown: str) -> None:
    assert rate(value) == shown


@pytest.mark.parametrize("width", [1, 20, 60, 80, 120, 160, 300])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_columns_fit(width: int, servers: int) -> None:
    columns = fitting(width, servers, longest=40)
    titles = [column.title for column, _ in columns]
    assert [titles[0], titles[-1]] == ["Queue", "State"]
    if width >= 80:
        assert sum(size + 2 for _, size in columns) <= width
        assert columns[-1][1] >= 24
        assert "Oldest" in titles
    if width == 300:
        assert len(titles) == len(COLUMNS) - (servers == 1)
        assert columns[0][1] == 40


def seen(name: str, severity: Severity = Severity.GOOD, oldest: float = 0.0, length: int = 0, put: float = 0.0) -> Seen:
    statistics = SimpleNamespace(length=length, in_flight=1, bound=0)
    states = (State("word", severity, f"it is {severity.name}"),)
    sample = Sample(0.0, statistics=statistics, oldest=oldest, speed=Speed(put, None), states=states)
    sampler: Any = SimpleNamespace(latest=sample)
    return Seen(QueueAddress("queue", name), SimpleNamespace(name=name), sampler, sample)


def view_of(*queues: Seen, failures: tuple[str, ...] = ()) -> View:
    monitor: Any = SimpleNamespace(
        seen=lambda: list(queues), known=len(queues), failures=lambda: list(failures), searched=True,
        finder=SimpleNamespace(servers=["here"]), reader=SimpleNamespace(period=2.0, interval=2.0),
    )  # fmt: skip
    view = View(monitor)
    view.update()
    return view


QUEUES = (
    seen("full", Severity.WARNING, oldest=5, length=3),
    seen("big", oldest=1, length=2000, put=1),
    seen("busy", oldest=2, put=100),
    seen("a", Severity.NOTE, oldest=90),
)


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("state", ["full", "big", "busy", "a"]),
        ("age", ["a", "full", "busy", "big"]),
        ("rate", ["busy", "big", "full", "a"]),
        ("name", ["a", "big", "busy", "full"]),
        ("length", ["big", "full", "busy", "a"]),
    ],
)
def test_the_order(sort: Sort, names: list[str]) -> None:
    view = view_of(*QUEUES)
    view.sort = sort
    view.arrange()
    assert [one.address.name for one in view.rows] == names


def test_the_filter_looks_at_addresses_and_states() -> None:
    view = view_of(*QUEUES)
    for text, names in (("B", ["big", "busy"]), ("is warn", ["full"]), ("nothing", []), ("", None)):
        view.filter = text
        view.arrange()
        found = [one.address.name for one in view.rows]
        assert found == (names if names is not None else ["full", "big", "busy", "a"])


def test_the_totals_and_what_is_wrong() -> None:
    totals = view_of(*QUEUES).totals()
    assert totals == "4 queues  1 needs somebody  2,003 waiting  4 in flight  0 delayed  put 101/s  taken 0/s"
    assert view_of().totals().startswith("0 queues  0 waiting")
    assert view_of(*QUEUES, failures=("*: gone\n\x1b[2J",)).failures() == "*: gone \\x1b[2J"
    assert view_of(*QUEUES).failures() == ""


def test_an_unreachable_server_is_said_once_if_all_queues_are_there() -> None:
    sample = Sample(0.0, error="cannot reach it", states=failed("cannot reach it"))
    broken = [one._replace(sample=sample) for one in QUEUES[:2]]
    assert view_of(*broken).failures() == "cannot reach it"
    assert view_of(*broken, QUEUES[2]).failures() == ""


def test_a_queue_without_statistics_as_json() -> None:
    sample = Sample(0.0, error="gone", states=failed("gone"))
    told = as_dict(QUEUES[0]._replace(sample=sample))
    assert (told["name"], told["address"], told["error"]) == ("full", "full", "gone")
    assert told["states"] == [{"name": "unreadable", "severity": "error", "text": "gone", "since": None}]
    assert told["put_rate"] is told["oldest"] is None
