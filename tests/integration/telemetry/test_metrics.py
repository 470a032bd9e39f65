"""Metrics of real queues on real servers, scraped over HTTP, and the exporter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from apressure import (
    AsyncQueue,
    Backoff,
    Client,
    EventQueue,
    FileQueue,
    QueueFullError,
    TaskClient,
    TaskQueue,
    pipe,
    serve,
)
from apressure.cli.app import run
from apressure.core.leases.renewal import Schedule
from apressure.embedded import EmbeddedServer
from apressure.tasks import Runner
from apressure.telemetry import Metrics
from apressure.telemetry.families import FAMILIES, Kind
from tests.integration.commands import Commands, wait_until
from tests.integration.conftest import Opener, cancelled, in_time
from tests.integration.events.remote.conftest import serving

ROOT = Path(__file__).parents[3]

Series = dict[tuple[str, ...], float]


def scrape(port: int | None, accept: str = "") -> Series:
    """Scrape the metrics: the values by name and by the values of their labels, in the order of the labels' names."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    families = parse_open_metrics(text) if accept else parse(text)
    return {
        (sample.name.removeprefix("apressure_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_a_full_queue_shows_who_is_blocked_and_an_empty_one_too(open_queue: Opener) -> None:
    full = await open_queue("full", bound=2)
    empty = await open_queue("empty")
    await full.put_many([b"1", b"2"])
    with pytest.raises(QueueFullError):
        await full.put(b"3", timeout=0.05)
    async with Metrics(full, empty, interval=0.05, port=0) as metrics, asyncio.TaskGroup() as group:
        putting = group.create_task(full.put(b"3"))
        getting = group.create_task(empty.get())
        found: Series = {}

        async def seen(condition: Callable[[], bool]) -> None:
            nonlocal found
            while not condition():
                found = await asyncio.to_thread(scrape, metrics.port, "application/openmetrics-text; version=1.0.0")

        blocked = ("local_blocked_seconds_total", "AsyncQueue")
        async with asyncio.timeout(60):
            await seen(lambda: found.get((*blocked, "full", "full"), 0.0) > 0.2)
            await seen(lambda: found[*blocked, "empty", "empty"] > 0.2)
            await seen(lambda: found["queue_oldest_message_age_seconds", "AsyncQueue", "full"] > 0.2)
            await seen(lambda: found["queue_waiting_producers", "AsyncQueue", "full"] == 1)
        assert found["queue_producer_wait_seconds", "AsyncQueue", "full"] >= 1
        assert found["queue_waiting_producers", "AsyncQueue", "empty"] == 0
        assert found["queue_producer_wait_seconds", "AsyncQueue", "empty"] == 0
        assert found["up", "AsyncQueue", "full"] == 1
        assert found["queue_messages", "AsyncQueue", "full"] == 2
        assert found["queue_bound_messages", "AsyncQueue", "full"] == 2
        assert ("queue_bound_messages", "AsyncQueue", "empty") not in found
        assert found["queue_produced_messages_total", "AsyncQueue", "full"] == 2
        assert found["queue_drain_seconds", "AsyncQueue", "full"] == float("inf")
        assert found["local_waiting_putters", "AsyncQueue", "full"] == 1
        assert found["local_waiting_getters", "AsyncQueue", "empty"] == 1
        assert found[*blocked, "empty", "full"] == 0
        await full.get()
        await empty.put(b"x")
        await in_time(asyncio.gather(putting, getting))
        before = (await full.statistics()).blocked.full
        assert before > 0.2
        assert (await full.statistics()).blocked.full == before  # it counts no more


async def test_handlers_failures_retries_and_dead_letters_are_counted(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=2, codec="text")
    entered, go_on, found = asyncio.Event(), asyncio.Event(), {}
    metrics = Metrics(interval=0.05, port=0, buckets=[30])
    tries: dict[str, int] = {}

    async def handle(item: str) -> None:
        tries[item] = tries.get(item, 0) + 1
        if item == "wait":
            entered.set()
            await go_on.wait()
        if item == "bad" or (item == "twice" and tries[item] == 1):
            raise ValueError(item)

    await queue.put_many(["good", "twice", "bad", "wait"])
    await queue.close()
    async with metrics, asyncio.TaskGroup() as group:
        serving = group.create_task(serve(handle, queue, retry=Backoff(0), observer=metrics, concurrency=4))
        await in_time(entered.wait())
        async with asyncio.timeout(60):
            while ("queue_role_holder", queue.client.id, "AsyncQueue", "jobs", "consumer", "shared") not in found:
                found = await asyncio.to_thread(scrape, metrics.port)
            since = found["queue_role_since_timestamp_seconds", queue.client.id, "AsyncQueue", "jobs", "consumer"]
            # Two clocks: that of this process, and that of the server.
            assert -60 < found["queue_sampled_timestamp_seconds", "AsyncQueue", "jobs"] - since < 60
            name = f"{handle.__qualname__}", "AsyncQueue", "jobs"
            assert found["handler_in_hand_messages", *name] >= 1
        go_on.set()
        assert (await in_time(serving)).handled == 3
        found = await asyncio.to_thread(scrape, metrics.port)
        counts = {key[0]: value for key, value in found.items() if key[1:4] == name and "bucket" not in key[0]}
        assert counts.pop("handler_duration_seconds_sum") > 0
        assert counts == {
            "handler_handled_messages_total": 3, "handler_failed_messages_total": 3, "handler_in_hand_messages": 0,
            "handler_retried_messages_total": 2, "handler_dead_lettered_messages_total": 1,
            "handler_redelivered_messages_total": 2, "handler_duration_seconds_count": 6,
        }  # fmt: skip
        assert ("up", "AsyncQueue", "jobs") not in found  # its service has ended
    await AsyncQueue("jobs:dead", client=queue.client).delete()


async def test_batches_keys_pipes_and_runners_are_observed(open_queue: Opener, url: str) -> None:
    source = await open_queue("source", codec="text")
    middle = await open_queue("middle", codec="text", client=source.client)
    last = await open_queue("last", codec="text", client=source.client)
    await source.put_many(list("abcd"))
    await source.close()
    metrics = Metrics()
    totals: dict[str, float] = {}

    async def upper(item: str) -> str:
        return item.upper()

    async def take(items: list[str]) -> None: ...
    def take_one(item: str) -> None: ...
    async def work(parameters: Any) -> None:
        if parameters == 2:
            raise ValueError

    def counted() -> dict[str, float]:
        return {
            f"{each.labels[2].rpartition('.')[2]} {each.family.name.removeprefix('handler_')}": each.value
            for each in metrics.readings()
            if each.family.name.startswith("handler_") and each.value
        }

    await in_time(pipe(source, upper, middle, close=True, observer=metrics))
    await in_time(serve(take, middle, batch=3, observer=metrics))
    await last.put_many(list("abc"))
    await last.close()
    with ThreadPoolExecutor() as executor:
        await in_time(serve(take_one, last, key=str, executor=executor, observer=metrics))
    async with TaskClient(url) as client:
        tasks = client.queue("tasks")
        await tasks.create()
        for number in range(3):
            await tasks.enqueue(number)
        await tasks.close()
        await in_time(Runner(client, "tasks", work, signals=(), observer=metrics).run())
        totals = counted()
        await tasks.delete()
    assert {key: value for key, value in totals.items() if "duration" not in key} == {
        "upper handled_messages": 4, "take handled_messages": 4, "work handled_messages": 2, "work failed_messages": 1,
        "work dead_lettered_messages": 1, "take_one handled_messages": 3,
    }  # fmt: skip
    assert totals["take_one duration_seconds"] == 3
    assert totals["upper duration_seconds"] == 4
    assert totals["take duration_seconds"] >= 2
    assert totals["work duration_seconds"] == 3


async def test_a_server_that_goes_down_is_down_at_once_and_comes_back(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = make_server("valkey", directory=tmp_path, config={"appendonly": True, "appendfsync": "always"})
    url = server.url

    async def state(port: int | None, up: float) -> Series:
        while (found := await asyncio.to_thread(scrape, port)).get(("up", "AsyncQueue", "jobs")) != up:
            await asyncio.sleep(0.02)
        return found

    async with AsyncQueue("jobs", url=url) as queue, Metrics(queue, interval=0.1, timeout=0.5, port=0) as metrics:
        assert (await in_time(state(metrics.port, 1)))["queue_exists", "AsyncQueue", "jobs"] == 0
        await queue.create()
        await queue.put(b"x")
        while ("queue_messages", "AsyncQueue", "jobs") not in await in_time(state(metrics.port, 1)):
            pass
        await asyncio.to_thread(server.stop)
        down = await in_time(state(metrics.port, 0))
        assert set(down) == {("up", "AsyncQueue", "jobs")}
        await asyncio.to_thread(server.start)
        assert (await in_time(state(metrics.port, 1)))["queue_messages", "AsyncQueue", "jobs"] == 1


async def test_serve_serves_its_metrics_and_ends_them(open_queue: Opener) -> None:
    queue = await open_queue()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(item: bytes) -> None:
        entered.set()
        await go_on.wait()

    await queue.put(b"x")
    await queue.close()
    with contextlib.closing(await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)) as taken:
        port = taken.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}: Address already in use"):
            await serve(handle, queue, metrics_port=port)
        assert await queue.qsize() == 1
    await taken.wait_closed()
    serving = asyncio.create_task(serve(handle, queue, metrics_port=port))
    await in_time(entered.wait())
    name = f"{handle.__qualname__}", "AsyncQueue", "jobs"
    assert (await asyncio.to_thread(scrape, port))["handler_in_hand_messages", *name] == 1
    go_on.set()
    assert (await in_time(serving)).handled == 1
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(scrape, port)


async def test_limits_are_shown(open_queue: Opener) -> None:
    queue = await open_queue()
    names = ("queue_rate_limit", "queue_concurrency_limit", "queue_held_seconds")
    async with Metrics(queue, interval=100) as metrics:

        async def shown() -> dict[str, float]:
            await metrics.sample()
            return {one.family.name: one.value for one in metrics.readings() if one.family.name in names}

        assert await shown() == {"queue_held_seconds": 0.0}
        await queue.set_rate(30, per=60)
        await queue.set_concurrency(7)
        assert await shown() == {"queue_rate_limit": 0.5, "queue_concurrency_limit": 7.0, "queue_held_seconds": 0.0}
        await queue.hold(1000)
        assert 900 < (await shown())["queue_held_seconds"] <= 1000


async def test_keys_are_shown(url: str) -> None:
    names = ("queue_key_limit", "queue_parked_messages")
    async with EventQueue("changes", url=url) as queue, Metrics(queue, interval=100) as metrics:
        await queue.put_many([b"1", b"2"], key="a")
        await queue.receive_many(2)
        with pytest.raises(TimeoutError):
            await queue.receive(timeout=0)
        await metrics.sample()
        shown = {one.family.name: one.value for one in metrics.readings() if one.family.name in names}
        assert shown == {"queue_key_limit": 1.0, "queue_parked_messages": 1.0}
        await queue.delete()


async def test_every_kind_of_queue_has_its_metrics(open_queue: Opener, url: str, tmp_path: Path) -> None:
    queues: list[Any] = [
        await open_queue("q"), EventQueue("q", url=url), FileQueue("q", directory=tmp_path), TaskClient(url).queue("q"),
    ]  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        for queue in queues[1:]:
            await stack.enter_async_context(queue)
            await queue.create(bound=3)
        metrics = Metrics(*queues)
        for queue in queues:
            await queue.put(b"1" if not isinstance(queue, type(queues[3])) else 1)
        await metrics.sample()
        await metrics.sample()
        shown: dict[str, set[str]] = {}
        for reading in metrics.readings():
            shown.setdefault(reading.labels[1], set()).add(reading.family.name)
            if reading.family.name in ("up", "queue_messages"):
                assert reading.value == 1
            if reading.family.name == "queue_oldest_message_age_seconds":
                assert 0 <= reading.value < 60
        common = {
            "up", "queue_exists", "queue_sampled_timestamp_seconds", "queue_messages", "queue_in_flight_messages",
            "queue_delayed_messages", "queue_expired_messages", "queue_schedules", "queue_dedup_ids",
            "queue_parked_messages", "queue_workers", "queue_waiting_producers", "queue_producer_wait_seconds",
            "queue_closed", "queue_paused", "queue_held_seconds",
            "queue_oldest_message_age_seconds",
            "queue_drain_seconds", "local_waiting_putters", "local_waiting_getters", "local_blocked_seconds",
            "local_put_messages", "local_replaced_messages",
            "local_received_messages", "local_deleted_messages", "local_dead_lettered_messages",
        }  # fmt: skip
        assert all(common <= names for names in shown.values()), {kind: common - shown[kind] for kind in shown}
        assert {kind: len(names - common) for kind, names in shown.items()} == {
            "AsyncQueue": 7, "EventQueue": 4, "FileQueue": 2, "TaskQueue": 7,
        }  # fmt: skip
        for queue in queues[1:]:
            await queue.purge()
            await queue.delete()
        await queues[3].client.aclose()


async def test_schedules_are_shown_with_their_next_and_last_occasion(url: str, tmp_path: Path) -> None:
    async with FileQueue("q", directory=tmp_path) as files, EventQueue("q", url=url) as events:
        metrics = Metrics(files, events)
        for queue in (files, events):
            await queue.create()
            await queue.every("nightly", "0 3 * * *", b"1")
            await queue.every("paused", 60, b"2")
            await queue.run_schedule("paused")
            await queue.pause_schedule("paused")
        await metrics.sample()
        nightly = (await files.schedules())[0]
        shown = {
            (reading.family.name, *reading.labels[1:]): reading.value
            for reading in metrics.readings()
            if "schedule" in reading.family.name
        }
        assert {name for name, kind, *_ in shown if kind == "EventQueue"} == {
            "queue_schedules", "queue_scheduled_messages", "schedule_next_timestamp_seconds",
            "schedule_last_timestamp_seconds", "schedule_put_messages",
        } - {"queue_scheduled_messages"}  # fmt: skip
        of_files = {(name, *rest): value for (name, kind, *rest), value in shown.items() if kind == "FileQueue"}
        last = of_files.pop(("schedule_last_timestamp_seconds", "paused"))
        assert abs(last - time.time()) < 60
        assert of_files == {
            ("queue_schedules",): 2,
            ("schedule_next_timestamp_seconds", "nightly"): nightly.next,
            ("schedule_put_messages", "nightly"): 0,
            ("schedule_put_messages", "paused"): 1,
        }
        for queue in (files, events):
            await queue.delete()


async def test_every_kind_counts_what_this_process_has_put_received_and_settled(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    url = make_server().url
    async with contextlib.AsyncExitStack() as stack:
        okq = await stack.enter_async_context(serving(url))
        queues: list[Any] = [
            AsyncQueue("jobs", url=url), AsyncQueue("plain", url=url, scripting=False), EventQueue("events", url=url),
            TaskQueue("tasks", url=url, codec="raw"), FileQueue("files", directory=tmp_path),
            EventQueue("remote", url=okq),
        ]  # fmt: skip
        for queue in queues:
            await stack.enter_async_context(queue)
            if hasattr(queue, "create"):
                await queue.create()
            expected = {"put": 5, "received": 5, "deleted": 5}
            await queue.put(b"1")
            assert await queue.put_many([b"2", b"3", b"4", b"5"]) == 4
            if isinstance(queue, AsyncQueue):
                await queue.get()
                assert await queue.purge() == 4
                expected["received"] = 5 if queue.name == "plain" else 1  # without scripts, a purge gets messages
            else:
                delivery = await queue.receive()
                await delivery.nack()
                async with queue.consumer(prefetch=1) as consumer:
                    for _ in range(5):
                        await anext(consumer)
                expected["received"] = 6
            for name, count in expected.items():
                assert getattr(await queue.statistics(), f"{name}_count") == count, (queue, name)
        jobs, events = queues[0], queues[2]
        more = [await stack.enter_async_context(kind("more", url=url)) for kind in (AsyncQueue, EventQueue)]

        async def twice(item: bytes) -> AsyncIterator[bytes]:
            yield item
            yield item

        for source, destination in ((jobs, more[0]), (events, more[1])):
            await destination.create()
            await source.put_many([b"1", b"2"])
            await source.close()
            await in_time(pipe(source, twice, destination))
            here, there = await source.statistics(), await destination.statistics()
            assert (here.put_count, here.deleted_count, there.put_count) == (7, 7, 4)
        await more[0].close()
        async with more[0].consumer(shared=True) as consumer:
            assert [item async for item in consumer] == [b"1", b"1", b"2", b"2"]
        found = await more[0].statistics()
        assert (found.received_count, found.deleted_count, found.consumed_messages) == (4, 4, 4)


async def test_every_kind_of_queue_counts_blocked_seconds(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    url = make_server().url

    async def blocks(queue: Any, operation: Any, reason: str) -> None:
        blocked = asyncio.create_task(operation)
        async with asyncio.timeout(60):
            while not getattr((await queue.statistics()).blocked, reason) > 0.01:
                await asyncio.sleep(0.01)
        assert not blocked.done()
        await cancelled(blocked)
        seconds = (await queue.statistics()).blocked
        assert seconds == (await queue.statistics()).blocked

    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(TaskClient(url))
        events = EventQueue("events", url=url)
        remote = EventQueue("events", url=await stack.enter_async_context(serving(url)))
        queues: list[Any] = [
            AsyncQueue("scripts", url=url), AsyncQueue("plain", url=url, scripting=False), client.queue("tasks"),
            FileQueue("files", directory=tmp_path), events, remote,
        ]  # fmt: skip
        for queue in queues:
            await stack.enter_async_context(queue)
            if queue is not remote:
                await queue.create(bound=1)
        for queue in queues:
            await blocks(queue, queue.get() if isinstance(queue, AsyncQueue) else queue.receive(), "empty")
        for queue in queues:
            item = 1 if isinstance(queue, TaskQueue) else b"x"
            if queue is not remote:  # it is the same queue as `events`
                await queue.put(item)
            await blocks(queue, queue.put(item), "full")


async def test_a_renewal_that_comes_late_is_counted(open_queue: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    due = Schedule.note_due

    def long_ago(schedule: Schedule) -> None:
        due(schedule)
        assert schedule._due is not None
        schedule._due -= 5.0
        schedule._lease.term._certain_until[0] -= 5.0  # type: ignore[attr-defined]

    async with queue.consumer(lease=0.6) as consumer:
        await anext(consumer)
        assert (await queue.statistics()).late_renewals == 0
        monkeypatch.setattr(Schedule, "note_due", long_ago)
        async with asyncio.timeout(60):
            while not (await queue.statistics()).late_renewals:
                await asyncio.sleep(0.02)


def test_the_exporter_shows_queues_of_all_kinds_by_name_and_by_pattern(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Commands(make_server().url)

    async def prepare() -> None:
        async with Client(cli.url) as client, TaskClient(cli.url) as tasks:
            for name in ("orders", "orders:dead", "other"):
                await AsyncQueue(name, client=client).create()
            await tasks.queue("encode").create()
            await EventQueue("clicks", client=client).put(b"x")
            async with FileQueue("uploads", directory=tmp_path) as files:
                await files.put(b"x")

    asyncio.run(prepare())
    names = ("queue:orders*", "tasks:enc*", "events:cl*", f"files:{tmp_path}/up*", "--pattern")
    assert run(["metrics", *names, "--once", "--json", "--url", cli.url]) == 0
    found = json.loads(capsys.readouterr().out)
    up = [tuple(each["labels"].values()) for each in found if each["name"] == "apressure_up" and each["value"] == 1]
    assert sorted(up) == [
        ("clicks", "EventQueue"), ("encode", "TaskQueue"), ("events:cl*", "QueuePattern"),
        (f"files:{tmp_path}/up*", "QueuePattern"), ("orders", "AsyncQueue"), ("orders*", "QueuePattern"),
        ("orders:dead", "AsyncQueue"), ("tasks:enc*", "QueuePattern"), ("uploads", "FileQueue"),
    ]  # fmt: skip
    more = ("events:clicks", "tasks:encode", f"files:{tmp_path}/uploads", "--interval", "0.1", "--min-workers", "0")
    with cli.running("metrics", "orders", *more, "--port", "0", "--json") as process:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2].partition("/")[0])
        lengths = {("AsyncQueue", "orders"): 0, ("EventQueue", "clicks"): 1, ("TaskQueue", "encode"): 0}
        lengths["FileQueue", "uploads"] = 1
        wait_until(lambda: {key[1:]: n for key, n in scrape(port).items() if key[0] == "queue_messages"} == lengths)
        assert not [key for key in scrape(port) if key[0].startswith("local_")]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/scale/files:uploads", timeout=60) as answer:
            assert json.load(answer) == {
                "queue": "uploads", "kind": "FileQueue", "wanted_workers": 1, "workers": 0, "waiting": 1,
                "in_flight": 0, "mean_seconds": None,
            }  # fmt: skip
        wanted = {key[1:]: n for key, n in scrape(port).items() if key[0] == "queue_wanted_workers"}
        assert wanted == {**dict.fromkeys(lengths, 0), ("EventQueue", "clicks"): 1, ("FileQueue", "uploads"): 1}
        assert run(["metrics", "orders", "--port", str(port), "--url", cli.url]) == 1
        assert f"port {port}: Address already in use. Choose another port" in capsys.readouterr().err
        process.terminate()
        assert process.wait(60) == 143


def test_the_exporter_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = ("--url", "redis://127.0.0.1:1/0", "--once", "--interval", "0.1")
    assert run(["metrics", "orders", *nowhere]) == 7
    assert 'apressure_up{kind="AsyncQueue",queue="orders"} 0.0' in capsys.readouterr().out
    assert run(["metrics"]) == 2
    assert "Missing argument 'QUEUE" in capsys.readouterr().err
    assert run(["metrics", "x*", "--pattern", "--url", "okq://127.0.0.1:1"]) == 2
    assert "an okq server does not list its queues: give the URL of its Redis" in capsys.readouterr().err
    assert run(["metrics", "redis://:secret@127.0.0.1:1/0/x*", "--pattern", *nowhere[2:]]) == 7
    shown = capsys.readouterr()
    assert 'apressure_up{kind="QueuePattern",queue="x*"} 0.0' in shown.out
    assert "secret" not in shown.out + shown.err
    assert run(["metrics", "orders", "--port", "70000"]) == 2
    assert run(["metrics", "orders", "--min-workers", "3", "--max-workers", "2"]) == 2
    assert "--max-workers must not be less than --min-workers" in capsys.readouterr().err


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    suffix = {Kind.COUNTER: "_total"}
    for family in FAMILIES:
        labels = f"{{{','.join(family.labels[2:])}}}" if family.labels[2:] else ""
        name = f"apressure_{family.name}{suffix.get(family.kind, '')}{labels}"
        assert f"| `{name}` | {family.help.rstrip('.')} |" in page
    (histogram,) = (family.name for family in FAMILIES if family.kind is Kind.HISTOGRAM)
    assert f"Names with `_total` are counters, `{histogram}` is a histogram, and the others are gauges." in page
    known = {f"apressure_{family.name}{suffix.get(family.kind, '')}" for family in FAMILIES}
    guide = (ROOT / "docs" / "do" / "operate.md").read_text()
    assert set(re.findall(r"\bapressure_\w+", page + guide)) <= known


def test_the_code_of_the_page_runs(
    make_server: Callable[..., EmbeddedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "do" / "operate.md").read_text()
    url = make_server().url

    async def prepare(*names: str) -> None:
        async with Client(url) as client:
            for name in names:
                queue = AsyncQueue(name, client=client, codec="text")
                await queue.create(exist_ok=True)
                if name != "shouts":
                    await queue.put(name)
                    await queue.close()

    asyncio.run(prepare("orders", "words", "shouts"))
    names: dict[str, Any] = {"__name__": __name__}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("redis://127.0.0.1:6379/0", url).replace("=9100", "=0"), names)
    asyncio.run(names["main"](url))
    assert capsys.readouterr().out == "WORDS\n"
