"""How many workers a queue needs: the arithmetic, what is taken from earlier looks, and `/scale/ADDRESS`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure.core.limits import KeyLimit, Limits, Rate
from apressure.core.statistics import BoundedStatistics
from apressure.core.workers import WaitingProducer, WorkerKind, WorkerStatistics
from apressure.telemetry import Metrics, Scaling
from apressure.telemetry.sampler import Sampler
from apressure.telemetry.scaling import Demand, Durations, Scaler, wanted_workers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worker(
    name: str = "a", handled: int = 0, busy: float = 0.0, concurrency: int = 4, kind: WorkerKind = "serve", **more: Any
) -> WorkerStatistics:
    fields: dict[str, Any] = {
        "handler": "handle", "host": "host", "pid": 1, "version": "1", "since": NOW, "seen": NOW, "in_hand": 0,
        "oldest": None, "failed": 0, "draining": False,
    }  # fmt: skip
    fields |= more
    return WorkerStatistics(id=name, kind=kind, handled=handled, busy=busy, concurrency=concurrency, **fields)


def queue(waiting: int = 0, in_flight: int = 0, *workers: WorkerStatistics, **more: Any) -> BoundedStatistics:
    fields: dict[str, Any] = {"waiting_putters": 0, "waiting_receivers": 0, "bound": 0, "closed": False}
    fields |= {"paused": False} | more
    return BoundedStatistics(name="orders", length=waiting, in_flight=in_flight, workers=workers, **fields)


def wanted(statistics: Any, scaling: Scaling | None = None) -> int:
    """What the first look asks for."""
    return Scaler(scaling or Scaling()).need(0.0, statistics).wanted_workers


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (Demand(waiting=0, in_flight=0, mean_seconds=1.0), 1),
        (Demand(waiting=600, in_flight=0, mean_seconds=1.0), 10),  # 600 s of work in 60 s
        (Demand(waiting=590, in_flight=10, mean_seconds=1.0), 10),  # what is in flight is work, too
        (Demand(waiting=601, in_flight=0, mean_seconds=1.0), 11),
        (Demand(waiting=600, in_flight=0, mean_seconds=1.0, concurrency=4.0), 3),
        (Demand(waiting=3, in_flight=0, mean_seconds=3600.0), 3),  # a fourth would find nothing
        (Demand(waiting=0, in_flight=8, mean_seconds=0.1, workers=8), 8),  # all are at work
        (Demand(waiting=0, in_flight=80, mean_seconds=0.1, workers=2, concurrency=4.0), 2),  # 72 were read ahead
        (Demand(waiting=6000, in_flight=0, mean_seconds=1.0, most=20, concurrency=4.0), 5),
        (Demand(waiting=9, in_flight=0, workers=3), 3),  # nobody knows how long a handler takes
        (Demand(waiting=9, in_flight=0), 1),
        (Demand(waiting=0, in_flight=0, workers=3), 1),
    ],
)
def test_what_one_look_asks_for(demand: Demand, expected: int) -> None:
    assert wanted_workers(demand, Scaling()) == expected


def test_the_least_and_the_most() -> None:
    nothing, much = Demand(waiting=0, in_flight=0), Demand(waiting=9999, in_flight=0, mean_seconds=9.0)
    none = Scaling(min_workers=0, max_workers=7)
    assert (wanted_workers(nothing, none), wanted_workers(much, none)) == (0, 7)
    assert wanted_workers(dataclasses.replace(nothing, expected=True), none) == 1
    assert wanted_workers(nothing, Scaling(min_workers=3)) == 3


def test_rounding_of_floating_point_numbers_takes_no_worker() -> None:
    assert wanted_workers(Demand(waiting=3, in_flight=0, mean_seconds=0.1), Scaling(target=0.3)) == 1


demands = st.builds(
    Demand,
    waiting=st.integers(0, 10_000),
    in_flight=st.integers(0, 1000),
    workers=st.integers(0, 100),
    concurrency=st.floats(1, 64),
    mean_seconds=st.none() | st.floats(0.001, 3600),
    most=st.just(float("inf")) | st.floats(1, 100),
    expected=st.booleans(),
)
scalings = st.builds(
    Scaling,
    target=st.floats(0.1, 3600),
    min_workers=st.integers(0, 5),
    max_workers=st.none() | st.integers(5, 50),
)


@given(demands, scalings)
def test_the_limits_hold_and_work_has_a_worker(demand: Demand, scaling: Scaling) -> None:
    found = wanted_workers(demand, scaling)
    work = demand.waiting + demand.in_flight
    assert scaling.min_workers <= found <= (scaling.max_workers or found)
    assert found >= (work > 0)
    if demand.mean_seconds is not None:
        assert found <= max(scaling.min_workers, work, 1)


@given(demands, scalings)
def test_what_is_wanted_is_still_wanted_once_it_is_there(demand: Demand, scaling: Scaling) -> None:
    there = dataclasses.replace(demand, workers=wanted_workers(demand, scaling))
    assert wanted_workers(there, scaling) == there.workers


@given(demands, scalings, st.integers(1, 1000))
def test_more_work_never_takes_fewer(demand: Demand, scaling: Scaling, more: int) -> None:
    longer = dataclasses.replace(demand, waiting=demand.waiting + more)
    assert wanted_workers(longer, scaling) >= wanted_workers(demand, scaling)


@given(demands, st.floats(0.1, 3600), st.floats(1, 10))
def test_a_message_that_is_taken_stays_work(demand: Demand, target: float, times: float) -> None:
    """And a longer target never takes more."""
    taken = min(demand.waiting, 10)
    later = dataclasses.replace(demand, waiting=demand.waiting - taken, in_flight=demand.in_flight + taken)
    assert wanted_workers(later, Scaling(target=target)) >= wanted_workers(demand, Scaling(target=target))
    assert wanted_workers(demand, Scaling(target=target * times)) <= wanted_workers(demand, Scaling(target=target))


def full(workers: int, in_flight: int | None = None, waiting: int = 10, **more: Any) -> BoundedStatistics:
    """A queue with a bound of 10, of which each worker has handled as many messages, 4 at a time."""
    found = [worker(str(number), handled=10, busy=10.0) for number in range(workers)]
    return queue(waiting, 4 * workers if in_flight is None else in_flight, *found, **{"bound": 10, **more})


def looked(scaler: Scaler, statistics: Any, since: float = 0.0, seconds: int = 70) -> int:
    """What is wanted after a time in which each look has seen this."""
    return [scaler.need(since + second, statistics).wanted_workers for second in range(0, seconds, 5)][-1]


def test_a_queue_that_is_full_for_a_minute_while_all_are_busy_wants_more() -> None:
    scaler = Scaler(Scaling(max_workers=6))
    assert looked(scaler, full(2), seconds=55) == 2
    assert looked(scaler, full(2), 55.0) == 3
    assert looked(scaler, full(2), 125.0, 600) == 3  # those that were asked for have not come yet
    assert looked(scaler, full(3), 725.0, 55) == 3
    assert looked(scaler, full(3), 780.0) == 4
    assert looked(scaler, full(4), 850.0) == 5
    assert looked(scaler, full(5), 920.0) == looked(scaler, full(6), 990.0) == 6
    # There is room now. So many stay wanted for half an hour, as long as there is work.
    assert looked(scaler, full(6, 9, 0), 1060.0, 1500) == 6
    assert looked(scaler, full(6, 9, 0), 2560.0, 1000) == 3
    assert looked(scaler, full(6, 0, 0), 3560.0, 600) == 1


def test_where_there_is_no_work_any_more_no_more_are_wanted() -> None:
    scaler = Scaler(Scaling(min_workers=0))
    assert looked(scaler, full(2)) == 3
    assert looked(scaler, full(2, 0, 0), 70.0, 400) == 0


@pytest.mark.parametrize(
    "statistics",
    [
        full(2, 7),  # a handler has nothing to do
        full(2, paused=True),
        full(2, limits=Limits(held_for=60.0)),
        full(2, limits=Limits(concurrency=8)),
        full(2, waiting=9),
        full(2, bound=0),
        queue(10, 2, worker(concurrency=2), bound=10),  # nobody knows how long a handler takes
    ],
)
def test_more_workers_would_not_make_room(statistics: BoundedStatistics) -> None:
    assert looked(Scaler(Scaling()), statistics, seconds=200) == len(statistics.workers)


def test_a_producer_that_waits_says_that_it_is_full_and_half_of_the_looks_are_enough() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    waits = WaitingProducer(id="p", host="", pid=1, version="", since=at, seen=at, puts=1, waited=7.0)
    assert looked(Scaler(Scaling()), full(2, waiting=9, waiting_producers=(waits,))) == 3
    scaler = Scaler(Scaling())
    for second in range(0, 70, 5):
        found = scaler.need(float(second), full(2) if second % 10 else full(2, waiting=9))
    assert found.wanted_workers == 3


def test_the_mean_is_that_of_the_last_minutes_over_all_workers() -> None:
    durations = Durations()
    assert durations.mean(0.0, []) is None
    assert durations.mean(0.0, [worker()]) is None
    assert durations.mean(5.0, [worker(handled=30, busy=30.0), worker("b", 10, 50.0)]) == 2.0
    assert durations.mean(10.0, [worker("b", 10, 50.0)]) == 2.0  # one has ended
    assert durations.mean(15.0, [worker("b", 10, 50.0), worker("c", 40, 0.0)]) == 1.0  # failures are done, too
    assert durations.mean(20.0, [worker("c", 40, 80.0, failed=20)]) == pytest.approx(160 / 100)
    for second in range(400):
        found = durations.mean(25.0 + second, [worker("c", 41 + second, 80.0 + 3 * (second + 1), failed=20)])
    assert found == pytest.approx(3.0)
    assert len(durations._sums) < 310


def test_a_mean_is_of_some_messages_however_long_they_take() -> None:
    durations = Durations()
    for number in range(101):
        busy = 900.0 * number - 300.0 * (number % 2)  # 600 s and 1200 s in turn
        found = durations.mean(1000.0 * number, [worker(handled=number, busy=busy)])
    assert found == pytest.approx(900.0)
    assert durations.mean(200_000.0, []) == pytest.approx(900.0)  # it is remembered when all have ended
    assert len(durations._sums) < 25


def test_a_worker_that_counts_from_0_again_is_a_new_one() -> None:
    durations = Durations()
    assert durations.mean(0.0, [worker(handled=30, busy=30.0)]) == 1.0
    assert durations.mean(5.0, [worker(handled=10, busy=50.0)]) == 2.0


def test_handlers_of_one_process_are_one_worker() -> None:
    both = worker(handled=5, busy=10.0, concurrency=2), worker(handled=5, busy=10.0, concurrency=6, handler="other")
    scaler = Scaler(Scaling())
    need = scaler.need(0.0, queue(240, 0, *both))
    assert (need.workers, need.mean_seconds, need.wanted_workers) == (1, 2.0, 1)  # 240 · 2 s / 60 s / 8
    assert scaler.need(5.0, queue(240, 0, *both)).mean_seconds == 2.0


def test_who_counts_as_a_worker() -> None:
    known = worker("a", 10, 10.0, concurrency=1)
    assert wanted(queue(300, 0, known)) == 5
    assert wanted(queue(300, 0, known, worker("b", 10**6, 0.0, kind="spark"))) == 5
    # A consumer counts what it has received, and has no handler that takes time.
    assert wanted(queue(300, 0, known, worker("b", 10**6, 0.0, concurrency=0, kind="consumer"))) == 5
    need = Scaler(Scaling()).need(0.0, queue(300, 0, known, worker("b", 10, 10.0, draining=True)))
    assert need.workers == 1
    assert wanted(queue(300, 0, dataclasses.replace(known, concurrency=0))) == 5  # no limit is no number
    assert wanted(queue(300, 0, known), Scaling(worker_concurrency=5)) == 1


def test_only_what_can_be_handed_out_counts_as_waiting() -> None:
    one = worker("a", 10, 10.0, concurrency=1)
    assert wanted(queue(600, 0, one)) == 10
    assert wanted(queue(600, 0, one, paused=True)) == 1
    assert wanted(queue(600, 0, one, limits=Limits(held_for=3.0))) == 1
    assert wanted(queue(600, 0, one, limits=Limits(key=KeyLimit()), parked=480)) == 2
    assert wanted(queue(600, 0, one, limits=Limits(concurrency=3))) == 3
    assert wanted(queue(600, 0, one, limits=Limits(rate=Rate(120, 60.0)))) == 2  # 2 a second of 1 s each


def test_a_queue_without_work_has_a_worker_for_what_comes_by_itself() -> None:
    none = Scaling(min_workers=0)
    assert wanted(queue(), none) == 0
    assert wanted(None, none) == 0  # the queue does not exist
    assert wanted(queue(schedules=1), none) == 1
    assert wanted(queue(delayed=1, next_due=59.0), none) == 1
    assert wanted(queue(delayed=1, next_due=61.0), none) == 0


def test_fewer_are_wanted_only_after_five_minutes_without_a_look_that_asked_for_more() -> None:
    scaler = Scaler(Scaling())
    one = worker("a", 10, 10.0, concurrency=1)

    def at(second: float, waiting: int) -> int:
        return scaler.need(second, queue(waiting, 0, one)).wanted_workers

    assert [at(0.0, 600), at(5.0, 60), at(100.0, 240), at(300.0, 0)] == [10, 10, 10, 10]
    assert [at(301.0, 0), at(400.0, 0), at(401.0, 0), at(402.0, 1200)] == [4, 4, 1, 20]


def test_an_exporter_that_starts_keeps_the_workers_for_five_minutes() -> None:
    workers = [worker(str(number)) for number in range(8)]
    scaler = Scaler(Scaling())
    assert scaler.need(0.0, queue(0, 0, *workers)).wanted_workers == 8
    assert scaler.need(300.0, queue(0, 0, *workers)).wanted_workers == 8
    assert scaler.need(301.0, queue(0, 0, *workers)).wanted_workers == 1
    assert Scaler(Scaling(max_workers=5)).need(0.0, queue(0, 0, *workers)).wanted_workers == 5


@pytest.mark.parametrize(
    "options",
    [
        {"target": 0}, {"target": float("nan")}, {"worker_concurrency": 0}, {"min_workers": -1}, {"max_workers": 0},
        {"min_workers": 3, "max_workers": 2},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=list(options)[-1]):
        Scaling(**options)


class AsyncQueue:
    """A queue that metrics can look at."""

    def __init__(self, name: str, snapshot: Any) -> None:
        self.name = name
        self.snapshot = snapshot

    async def statistics(self) -> Any:
        if isinstance(self.snapshot, Exception):
            raise self.snapshot
        return self.snapshot


class EventQueue(AsyncQueue):
    """One of another kind."""


class Pattern(AsyncQueue):
    """A pattern, which has no length."""


def ask(port: int | None, path: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def test_the_server_says_how_many_workers_a_queue_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker("a", 10, 10.0, concurrency=1)
    orders, clicks = AsyncQueue("orders", queue(600, 5, one)), EventQueue("größe", queue(60, 0, one))
    broken, pattern = AsyncQueue("broken", OSError("gone")), Pattern("o*", object())
    metrics = Metrics(orders, clicks, broken, pattern, port=0, interval=3600.0, scaling=Scaling())
    async with metrics:
        while not all(sampler.latest for sampler in metrics.reader.samplers):
            await asyncio.sleep(0.01)
        found = {
            "queue": "orders", "kind": "AsyncQueue", "wanted_workers": 11, "workers": 1, "waiting": 600,
            "in_flight": 5, "mean_seconds": 1.0,
        }  # fmt: skip
        for path in ("/scale/orders", "/scale/queue:orders"):
            assert await asyncio.to_thread(ask, metrics.port, path) == (200, "application/json", found)
        status, _, other = await asyncio.to_thread(ask, metrics.port, "/scale/events:gr%C3%B6%C3%9Fe")
        assert (status, other["queue"], other["wanted_workers"]) == (200, "größe", 1)
        status, _, text = await asyncio.to_thread(ask, metrics.port, "/scale/broken")
        assert (status, text) == (
            503, "The latest look at broken failed or is out of date: see apressure_up, and the log.\n",
        )  # fmt: skip
        status, kind, text = await asyncio.to_thread(ask, metrics.port, "/scale/o*")
        assert (status, kind) == (404, "text/plain; charset=utf-8")
        assert text == "No queue o* is looked at. There are: orders, events:größe, broken.\n"
        shown = [each for each in metrics.readings() if each.family.name == "queue_wanted_workers"]
        assert {(each.labels[0], each.value) for each in shown} == {("orders", 11.0), ("größe", 1.0)}
        monkeypatch.setattr(Metrics, "_out_of_date", float("inf"))
        assert (await asyncio.to_thread(ask, metrics.port, "/scale/orders"))[0] == 503


async def test_without_scaling_there_is_neither_the_metric_nor_the_path() -> None:
    async with Metrics(AsyncQueue("orders", queue()), port=0, interval=3600.0) as metrics:
        await metrics.sample()
        status, _, text = await asyncio.to_thread(ask, metrics.port, "/scale/orders")
        assert (status, text) == (404, "There are only /metrics and /healthz.\n")
        assert not [each for each in metrics.readings() if each.family.name.endswith("wanted_workers")]


async def test_a_queue_that_does_not_exist_yet_has_the_fewest() -> None:
    from apressure import QueueDoesNotExistError

    sampler = Sampler(AsyncQueue("orders", QueueDoesNotExistError("no", name="orders")), Scaling(min_workers=0))
    await sampler.sample(5.0)
    assert sampler.latest is not None
    assert sampler.latest.need is not None
    assert sampler.latest.need.wanted_workers == 0
