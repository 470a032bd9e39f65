"""What is said of a queue in words."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apressure.core.history import KEPT, Minute, ObjectHistory
from apressure.core.limits import Limits, Rate
from apressure.core.statistics import BoundedStatistics
from apressure.core.workers import WaitingProducer, WorkerStatistics
from apressure.files import FileQueueStatistics
from apressure.telemetry.history import UNKNOWN, Flow, Minutes, Speed
from apressure.telemetry.states import Severity, States, clock, duration, failed

NOW = 1_900_000_000.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(BoundedStatistics):
    consumers: int = 1
    dead_letters: int = 0


@dataclasses.dataclass
class Schedule:
    name: str
    next: float | None
    paused: bool = False


def statistics(**more: Any) -> Any:
    usual = {
        "name": "orders", "length": 0, "in_flight": 0, "waiting_putters": 0, "waiting_receivers": 0, "bound": 0,
        "closed": False, "paused": False,
    }  # fmt: skip
    return Statistics(**{**usual, **more})


def worker(handled: int, worker_id: str = "a", failed: int = 0, busy: float = 0.0) -> WorkerStatistics:
    since = datetime.fromtimestamp(NOW, UTC)
    return WorkerStatistics(
        id=worker_id, kind="serve", handler="f", host="h", pid=1, version="1", since=since, seen=since, concurrency=1,
        in_hand=0, oldest=None, handled=handled, failed=failed, busy=busy,
        draining=False,
    )  # fmt: skip


def producer(waited: float) -> WaitingProducer:
    seen = datetime.fromtimestamp(NOW, UTC)
    since = seen - timedelta(seconds=waited)
    return WaitingProducer(id="p", host="h", pid=1, version="1", since=since, seen=seen, puts=1, waited=waited)


def texts(states: Any) -> list[str]:
    return [state.text for state in states]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (statistics(), ["open"]),
        (statistics(length=2, bound=3), ["open"]),
        (statistics(length=2, bound=3, delayed=1), ["full"]),
        (statistics(length=3, bound=3, consumers=0), ["full", "no consumer"]),
        (statistics(length=3, consumers=0, paused=True), ["paused"]),
        (statistics(closed=True), ["closed"]),
        (statistics(closed=True, length=3, in_flight=1200), ["closed, 1,203 left"]),
        (statistics(dead_letters=1), ["1 dead letter"]),
        (statistics(name="orders:dead", length=3, consumers=0), ["3 dead letters"]),
        (statistics(dead_letters=1200), ["1,200 dead letters"]),
        (statistics(limits=Limits(rate=Rate(3, 1.0))), ["limited to 3 in 1 s"]),
        (None, ["does not exist"]),
    ],
)
def test_what_holds_a_queue_up_is_said_in_words(found: Any, said: list[str]) -> None:
    assert texts(States().of(NOW, found)) == said


def test_times_are_said_as_people_say_them() -> None:
    since = datetime.fromtimestamp(NOW - 600, UTC)
    local = time.strftime("%H:%M", time.localtime(NOW - 600))
    (paused,) = States().of(NOW, statistics(paused=True, paused_since=since))
    assert paused.text in (f"paused since {local}", f"paused since {clock(NOW - 600, NOW)}")
    assert paused.since == NOW - 600
    (held, *_) = States().of(NOW, statistics(limits=Limits(held_for=120.0)))
    assert held.text == f"held until {clock(NOW + 120, NOW)}"
    assert clock(NOW - 3 * 86400, NOW)[:10] == time.strftime("%Y-%m-%d", time.localtime(NOW - 3 * 86400))
    assert [duration(seconds) for seconds in (0, 41, 200, 7500, 273_600)] == [
        "0 s", "41 s", "3 min 20 s", "2 h 5 min", "3 d 4 h",
    ]  # fmt: skip


def test_states_last_from_the_first_look_that_saw_them() -> None:
    states, full = States(), statistics(length=3, bound=3)
    assert texts(states.of(NOW, full)) == ["full"]
    assert texts(states.of(NOW + 41, full)) == ["full for 41 s"]
    assert texts(states.of(NOW + 42, statistics(length=2, bound=3))) == ["open"]
    assert texts(states.of(NOW + 43, full)) == ["full"]


def test_a_full_queue_says_how_many_producers_wait_and_for_how_long() -> None:
    states = States()
    assert texts(states.of(NOW, statistics(length=3, bound=3))) == ["full"]
    three = tuple(map(producer, (41, 7, 2)))
    (full,) = states.of(NOW + 60, statistics(length=3, bound=3, waiting_producers=three))
    assert (full.name, full.severity) == ("full", Severity.WARNING)
    assert full.text == "full: 3 producers wait, the first for 41 s"
    assert full.since == NOW - 41
    assert texts(states.of(NOW + 61, statistics(length=3, bound=3, waiting_producers=three[1:2]))) == [
        "full: 1 producer waits, for 7 s"
    ]
    assert texts(states.of(NOW + 62, statistics(length=3, bound=3))) == ["full for 1 min 2 s"]
    assert texts(states.of(NOW + 63, statistics(length=2, bound=3, waiting_producers=three))) == [
        "full most of the time for 1 min 3 s"
    ]


def test_messages_in_flight_count_towards_the_bound_of_a_directory_alone() -> None:
    waits = (producer(2),)
    found = statistics(length=2, in_flight=1, bound=3, waiting_producers=waits)
    assert (found.room, texts(States().of(NOW, found))) == (1, ["open"])
    directory = FileQueueStatistics(
        **{field.name: getattr(found, field.name) for field in dataclasses.fields(BoundedStatistics)}, path="",
        unfinished=0, oldest=None, next_expiry=None, notified=True,
    )  # fmt: skip
    assert (directory.room, texts(States().of(NOW, directory))) == (0, ["full: 1 producer waits, for 2 s"])
    assert dataclasses.replace(directory, in_flight=0, unfinished=1).room == 0
    assert dataclasses.replace(directory, in_flight=9).room == 0
    assert dataclasses.replace(directory, bound=0).room is None


def test_a_queue_that_is_full_at_half_of_the_looks_of_a_minute_is_full_most_of_the_time() -> None:
    states = States()
    full, room = statistics(length=3, bound=3), statistics(length=2, bound=3)
    for second in range(0, 60, 5):
        said = texts(states.of(NOW + second, room if second % 10 else full))
        assert said == (["open"] if second % 10 else ["full"])
    assert texts(states.of(NOW + 60, full)) == ["full"]
    assert texts(states.of(NOW + 65, room)) == ["full most of the time for 5 s"]
    assert texts(states.of(NOW + 70, full)) == ["full for 10 s"]
    for second in range(75, 135, 5):
        states.of(NOW + second, room)
    assert texts(states.of(NOW + 140, room)) == ["open"]


def test_what_matters_most_comes_first() -> None:
    found = States().of(NOW, statistics(closed=True, dead_letters=2))
    assert texts(found) == ["2 dead letters", "closed"]
    assert [state.severity for state in found] == [Severity.WARNING, Severity.NOTE]


def test_a_late_schedule_is_told_once_where_the_queue_takes_its_item() -> None:
    schedules = [Schedule("later", NOW + 5), Schedule("paused", NOW - 999, True), Schedule("never", None)]
    assert texts(States().of(NOW, statistics(), schedules)) == ["open"]
    schedules += [Schedule("report", NOW - 300), Schedule("other", NOW - 900)]
    assert texts(States().of(NOW, statistics(), schedules)) == ["the schedule 'report' is late by 5 min 0 s"]
    assert texts(States().of(NOW, statistics(closed=True), schedules)) == ["closed"]


def test_what_failed_is_an_error() -> None:
    assert failed("no server")[0].severity == Severity.ERROR


def test_speeds_are_those_of_the_last_seconds() -> None:
    @dataclasses.dataclass
    class Counted:
        produced_messages: int
        consumed_messages: int

    flow = Flow()
    assert flow.look(0.0, Counted(100, 50)) == (UNKNOWN, (100, 50))
    assert flow.look(2.0, Counted(120, 60)) == (Speed(10.0, 5.0), (120, 60))
    assert flow.look(20.0, Counted(120, 60))[0] == Speed(0.0, 0.0)
    assert flow.look(21.0, Counted(1, 0))[0] == UNKNOWN  # another queue of the name
    assert Flow().look(0.0, statistics(length=5)) == (UNKNOWN, None)


def test_where_the_server_does_not_count_the_workers_do() -> None:
    flow = Flow()
    flow.look(0.0, statistics(length=10, workers=(worker(400), worker(600))))  # of two services
    assert flow.look(2.0, statistics(length=4, in_flight=2, workers=(worker(405), worker(603))))[0] == Speed(2.0, 4.0)
    # One has ended, and another has begun: what it had handled before is not counted.
    speed, totals = flow.look(4.0, statistics(length=6, workers=(worker(500, "b"),)))
    assert speed == Speed(1.0, 2.0)
    assert flow.look(5.0, statistics(length=6))[1] == totals


def test_minutes_are_made_of_looks() -> None:
    minutes = Minutes()
    base = 1_900_000_020 // 60 * 60
    assert minutes.look(base + 5, statistics(length=3), 1.4, (10, 5)) is None
    assert minutes.look(base + 55, statistics(length=4, in_flight=1, delayed=2), 2.6, (30, 20)) is None
    ended = minutes.look(base + 65, statistics(length=9), None, (36, 25))
    assert ended == Minute(base, 4, 1, 2, 20, 15, 3)
    assert minutes.look(base + 125, statistics(length=0), None, None) == Minute(base + 60, 9, 0, 0, 6, 5, None)
    # Nobody has looked for a while, and then nobody counts.
    assert minutes.look(base + 400, statistics(), 0.0, None) == Minute(base + 120, 0, 0, 0, None, None, None)
    assert [minute.time for minute in minutes.kept] == [base, base + 60]  # in the last one there was nothing
    assert Minute(base, 0, 0, 0, None, 0, 0).idle
    assert not Minute(base, 0, 0, 0, None, 1, 0).idle


def test_minutes_say_how_many_attempts_have_failed_and_how_long_they_took() -> None:
    minutes, base = Minutes(), 1_900_000_020 // 60 * 60

    def at(second: int, *workers: WorkerStatistics) -> tuple[int | None, int | None]:
        ended = minutes.look(base + second, statistics(length=1, workers=workers), None, None)
        return (None, None) if ended is None else (ended.failed, ended.duration)

    at(59)
    assert at(60) == (None, None)  # nobody works
    at(70, worker(500, "a", 50, 900.0))  # it worked before, of which nothing is known
    at(110, worker(508, "a", 52, 902.0))
    assert at(120, worker(508, "a", 52, 902.5)) == (2, 200)
    at(179, worker(508, "a", 52, 902.5))
    assert at(180, worker(509, "b", 0, 1.0)) == (0, None)  # no attempt ended, and another process goes on
    at(239, worker(510, "b", 3, 1.4))
    assert at(240, worker(510, "b", 3, 1.4)) == (3, 100)
    assert at(300) == (0, None)
    assert at(1200, worker(900, "b", 900, 9.0)) == (0, None)
    assert at(1260, worker(900, "b", 900, 9.0)) == (None, None)  # nobody has looked for a long time


def test_what_has_happened_between_rare_looks_is_a_part_or_unknown() -> None:
    minutes, base = Minutes(), 1_900_000_020 // 60 * 60
    minutes.look(base, statistics(), 0.0, (0, 0))
    minutes.look(base + 200, statistics(length=1), 0.0, (2000, 1000))
    ended = minutes.look(base + 400, statistics(length=1), 0.0, (4000, 2000))
    assert ended is not None
    assert (ended.put, ended.taken) == (600, 300)
    minutes.look(base + 8000, statistics(length=1), 0.0, (90_000, 80_000))
    ended = minutes.look(base + 8060, statistics(length=1), 0.0, (90_000, 80_000))
    assert ended is not None
    assert (ended.put, ended.taken) == (None, None)  # of two hours
    minutes.look(base + 8120, statistics(length=1), 0.0, (5, 5))
    ended = minutes.look(base + 8180, statistics(length=1), 0.0, (5, 5))
    assert ended is not None
    assert (ended.put, ended.taken) == (None, None)  # another queue of the name


def test_what_has_happened_in_a_minute_that_was_watched_late_is_not_known() -> None:
    for second, put in ((29, 20), (31, None)):
        minutes, base = Minutes(), 1_900_000_020 // 60 * 60
        minutes.look(base + second, statistics(length=3), 0.0, (10, 5))
        minutes.look(base + 59, statistics(length=3), 0.0, (30, 25))
        ended = minutes.look(base + 61, statistics(length=3), 0.0, (31, 26))
        assert ended is not None
        assert (ended.put, ended.taken, ended.length) == (put, put, 3)


@pytest.mark.parametrize(
    "minute", [Minute(60, 1, 2, 3, 4, 5, 6, 7, 8), Minute(1_900_000_020, 0, 0, 0, None, None, None)]
)
def test_a_minute_is_what_its_record_says(minute: Minute) -> None:
    assert Minute.decode(minute.encode()) == minute
    assert Minute.decode(minute.encode() + b" of a later version") == minute
    assert Minute.decode(b" ".join(minute.encode().split()[:7])) == (*minute[:7], None, None)  # of an earlier one


@pytest.mark.parametrize("record", [b"", b"1 2 3", b"a b c d e f g", b"\xff" * 1000, b"1 2 3 4 5 6 7.5"])
def test_a_record_of_somebody_else_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|invalid literal"):
        Minute.decode(record)


async def test_an_object_keeps_a_day() -> None:
    history = ObjectHistory()
    for number in range(1, KEPT + 10):
        assert await history.write(number, b"%d" % number)
    assert not await history.write(5, b"5")
    found = await history.read()
    assert (len(found), found[0], found[-1]) == (KEPT, b"10", b"%d" % (KEPT + 9))
