"""Metrics over queues that only the test has: ages, predictions, names, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import http.client
import itertools
import math
import socket
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from apressure import MissingExtraError, QueueEmptyError, serve
from apressure.concurrency.blocked import Blocked, BlockedSeconds
from apressure.protocols import Tally
from apressure.telemetry import Metrics
from apressure.telemetry.families import FAMILIES
from apressure.telemetry.history import Arrivals, Head, Trend
from apressure.telemetry.sampler import Sampler


@dataclasses.dataclass
class Snapshot:
    length: int
    late_renewals: int = 0
    blocked: BlockedSeconds = BlockedSeconds(full=1.5)  # noqa: RUF009


class Queue:
    """A queue that metrics can look at."""

    def __init__(self, name: str, snapshot: Any = None, error: Exception | None = None) -> None:
        self.name = name
        self.snapshot = snapshot
        self.error = error

    async def statistics(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.snapshot

    async def peek(self) -> Any:
        raise QueueEmptyError("taken meanwhile", name=self.name)


class Service:
    """Work of `serve`, as far as it has come."""

    def __init__(self, queue: Any, handler: Any, tally: Tally) -> None:
        self.queue = queue
        self.handler = handler
        self.now = tally

    def tally(self) -> Tally:
        return self.now


def handle(item: object) -> None: ...


def values(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(metrics.collector())
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, "a series appears twice"
            found[key] = sample.value
    return found


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_age_of_the_next_message_is_right_to_one_look_and_never_too_high():
    arrivals = Arrivals()
    assert arrivals.age(0.0, produced=5, length=2) == 0.0  # put before the first look
    assert arrivals.age(5.0, 5, 2) == 5.0
    assert arrivals.age(10.0, 8, 5) == 10.0
    assert arrivals.age(15.0, 9, 4) == 5.0  # numbers 5 to 8 wait: 5 was seen at 10
    assert arrivals.age(20.0, 9, 1) == 5.0  # number 8 was seen at 15
    assert arrivals.age(25.0, 9, 0) == 0.0
    assert arrivals.age(30.0, 2, 1) == 0.0  # another queue of this name
    for second in range(5000):
        arrivals.age(31.0 + second, 3 + second, 3 + second)
    assert len(arrivals._looks) <= 1001
    assert 4000 < arrivals.age(6000.0, 6000, 6000 - 1000) <= 5000


def test_the_head_of_a_queue_ages_until_it_changes():
    head = Head()
    assert [head.age(0.0, {"a": 1}), head.age(5.0, {"a": 1}), head.age(10.0, {"a": 2})] == [0.0, 5.0, 0.0]
    assert [head.age(11.0, b"\xff"), head.age(15.0, b"\xff"), head.age(16.0, "\udcff")] == [0.0, 4.0, 0.0]
    head.gone()
    assert head.age(20.0, "\udcff") == 0.0


def test_the_end_of_a_queue_is_predicted_from_the_last_minute():
    trend = Trend()
    assert trend.drain(0.0, 1000) is None
    assert trend.drain(10.0, 1000) == math.inf
    assert trend.drain(20.0, 900) == 180.0
    assert trend.drain(100.0, 100) == 10.0  # 10 a second since 20
    assert trend.drain(110.0, 0) == 0.0


def test_blocked_time_counts_once_however_many_are_blocked(monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count(100)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    blocked = Blocked()
    with blocked.by("full"), blocked.by("full"), blocked.by("empty"):  # at 100 and 101
        assert blocked.seconds() == BlockedSeconds(full=2.0, empty=1.0)  # at 102
    # at 103 the empty one ends, and at 104 the last full one
    assert blocked.seconds() == BlockedSeconds(full=4.0, empty=2.0)
    with blocked.by(None):
        assert blocked.seconds().paused == 0.0


async def test_names_of_other_programs_are_escaped_and_no_series_appears_twice():
    names = ['a"b\\c\nd', "\udcff\x00", "ü" * 2000, "same", "same"]
    metrics = Metrics(*(Queue(name, Snapshot(1)) for name in names))
    await metrics.sample()
    found = values(metrics)
    shown = [dict(labels)["queue"] for name, labels in found if name == "apressure_queue_messages"]
    assert sorted(shown) == sorted(['a"b\\c\nd', "\\udcff\x00", "ü" * 1000, "same"])
    assert (
        found["apressure_local_blocked_seconds_total", (("kind", "Queue"), ("queue", "same"), ("reason", "full"))] == 3
    )
    assert all(value == 1 for (name, _), value in found.items() if name == "apressure_up")


async def test_a_look_that_fails_or_hangs_is_shown_and_does_not_delay_the_others(caplog: pytest.LogCaptureFixture):
    class Hanging(Queue):
        async def statistics(self) -> Any:
            await asyncio.Event().wait()

    metrics = Metrics(Hanging("slow"), Queue("broken", error=KeyError("x")), Queue("good", Snapshot(0)), timeout=0.05)
    await metrics.sample()
    await metrics.sample()
    up = {dict(labels)["queue"]: value for (name, labels), value in values(metrics).items() if name == "apressure_up"}
    assert up == {"slow": 0, "broken": 0, "good": 1}
    assert sorted(record.getMessage() for record in caplog.records) == [
        "the metrics of the queue 'broken' are missing: 'x'",
        "the metrics of the queue 'slow' are missing: it did not answer in time",
    ]


async def test_a_look_that_is_out_of_date_does_not_count(monkeypatch: pytest.MonkeyPatch):
    queue = Queue("jobs", Snapshot(7))
    metrics = Metrics(queue, interval=10, timeout=10)
    series = ("apressure_up", (("kind", "Queue"), ("queue", "jobs")))
    assert not values(metrics)
    await metrics.sample()
    assert values(metrics)[series] == 1
    (sampler,) = metrics.reader.samplers
    assert isinstance(sampler, Sampler)
    assert sampler.latest is not None
    sampler.latest = dataclasses.replace(sampler.latest, at=sampler.latest.at - 41)
    assert values(metrics) == {series: 0}
    metrics.add(queue)
    metrics.discard(queue)
    assert values(metrics)
    metrics.discard(queue)
    metrics.discard(queue)
    assert not values(metrics)


async def test_handlers_keep_their_counts_and_open_telemetry_reads_the_same():
    reader = InMemoryMetricReader()
    metrics = Metrics(buckets=[0.1, 1])
    metrics.instrument(MeterProvider([reader]).get_meter("test"))
    queue = Queue("jobs", Snapshot(3, late_renewals=2))
    first = Service(queue, handle, Tally(5, 3, 2, 1, 4, 9))
    with metrics.observing(first) as observe:
        for seconds in (0.05, 0.1, 0.5, 7.0):
            observe(seconds)
    with metrics.observing(Service(queue, handle, Tally(handled=1, in_hand=2))):
        await metrics.sample()
        found = values(metrics)
        data = reader.get_metrics_data()
    at = (("handler", "handle"), ("kind", "Queue"), ("queue", "jobs"))
    counts = {name.removeprefix("apressure_handler_"): value for (name, labels), value in found.items() if labels == at}
    del counts["duration_seconds_sum"]
    assert counts == {
        "handled_messages_total": 6, "failed_messages_total": 3, "retried_messages_total": 2,
        "duration_seconds_count": 4, "dead_lettered_messages_total": 1, "redelivered_messages_total": 4,
        "in_hand_messages": 2,
    }  # fmt: skip
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("_bucket")}
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}

    assert data is not None
    instruments = {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}
    assert instruments["apressure.queue.messages"].data.data_points[0].value == 3
    assert dict(instruments["apressure.handler.handled_messages"].data.data_points[0].attributes) == dict(at)
    assert instruments["apressure.local.late_renewals"].data.data_points[0].value == 2
    assert instruments["apressure.local.blocked"].unit == "s"
    duration = instruments["apressure.handler.duration"].data.data_points[0]
    assert (duration.count, duration.bucket_counts, duration.sum) == (4, (2, 1, 1), pytest.approx(7.65))
    assert len({family.dotted for family in FAMILIES}) == len(FAMILIES)


async def test_a_port_in_use_and_bad_arguments_have_clear_errors():
    async def never(item: object) -> None:
        raise AssertionError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=f"cannot serve metrics at 127.0.0.1 port {port}: Address already in use. Choose"
        ):
            async with Metrics(port=port):
                raise AssertionError
    with pytest.raises(OSError, match=r"cannot serve metrics at no\.such\.host\.invalid port 0") as caught:
        async with Metrics(port=0, host="no.such.host.invalid"):
            raise AssertionError
    assert caught.value.errno != errno.EADDRINUSE
    for wrong, text in (
        ({"port": 65536}, "port must be between 0 and 65535"),
        ({"port": 0, "host": ""}, "host must not be empty: '0.0.0.0'"),
        ({"interval": 0}, "interval must be more than 0"),
        ({"timeout": math.nan}, "timeout must be"),
        ({"buckets": [1, 1]}, "buckets must be ascending"),
        ({"buckets": []}, "buckets must be ascending"),
    ):
        with pytest.raises(ValueError, match=text):
            Metrics(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metrics_port= cannot be combined with observer="):
        await serve(never, Queue("jobs"), observer=Metrics(), metrics_port=0)  # type: ignore[call-overload]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    for package, module in (("prometheus_client", "prometheus"), ("opentelemetry.metrics", "otel")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"apressure.telemetry.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'apressure\[metrics\]'"):
        Metrics(port=0)
    with pytest.raises(MissingExtraError, match=r"pip install 'apressure\[opentelemetry\]'"):
        Metrics().instrument()


async def test_health_is_about_the_event_loop_and_a_scrape_needs_no_turn_of_it(monkeypatch: pytest.MonkeyPatch):
    metrics = Metrics(Queue("jobs", Snapshot(1)), interval=0.05, port=0)
    async with metrics:
        base = f"http://127.0.0.1:{metrics.port}"
        while (await asyncio.to_thread(get, f"{base}/metrics"))[1].count(b"apressure_queue_messages{") == 0:
            await asyncio.sleep(0.01)
        assert (await asyncio.to_thread(get, f"{base}/healthz")) == (200, b"ok\n")
        assert (await asyncio.to_thread(get, f"{base}/"))[0] == 404
        # This thread is the event loop's: it answers while nothing turns.
        status, text = get(f"{base}/metrics")
        assert status == 200
        assert b'apressure_queue_messages{kind="Queue",queue="jobs"} 1.0' in text
        monkeypatch.setattr(metrics.reader, "turned_at", -1000.0)
        status, text = get(f"{base}/healthz")
        assert status == 503
        assert text.startswith(b"the event loop has not run for ")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{base}/healthz", timeout=60)


async def test_clients_that_send_nothing_take_no_more_than_their_places():
    async with Metrics(port=0) as metrics:
        address = "127.0.0.1", metrics.port
        idle = [socket.create_connection(address, timeout=60) for _ in range(16)]
        try:
            while True:  # until all of them have their threads
                with socket.create_connection(address, timeout=60) as further:
                    further.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                    with contextlib.suppress(ConnectionResetError):
                        if await asyncio.to_thread(further.recv, 1) != b"":
                            continue
                    break
        finally:
            for each in idle:
                each.close()
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if (await asyncio.to_thread(get, f"http://127.0.0.1:{metrics.port}/healthz"))[0] == 200:
                        break


async def test_metrics_that_are_cancelled_end_their_task_and_their_server():
    entered = asyncio.Event()
    metrics = Metrics(Queue("jobs", Snapshot(1)), port=0)

    async def use() -> None:
        async with metrics:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # while it waits for the end of the server
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{metrics.port}/healthz", timeout=60)
    assert not [each.get_name() for each in asyncio.all_tasks() if "metrics" in each.get_name()]
    async with metrics:  # again
        assert (await asyncio.to_thread(get, f"http://127.0.0.1:{metrics.port}/healthz"))[0] == 200
