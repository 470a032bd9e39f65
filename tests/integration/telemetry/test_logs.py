"""What is logged: each event at its level, with its attributes, and no more of them than can be read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncinotify
import httpx
import pytest
import redis

import apressure.web
from apressure import (
    AsyncQueue,
    Backoff,
    Envelope,
    EventQueue,
    FileQueue,
    LeaseLostError,
    NoReplyError,
    PressureError,
    QueueDoesNotExistError,
    QueueEmptyError,
    TaskClient,
    TaskQueue,
    logs,
    pipe,
    serve,
)
from apressure.embedded import EmbeddedServer
from apressure.pressure.engine import waits
from apressure.tasks import Runner
from apressure.worker.processes import Processes
from tests import processes
from tests.integration.conftest import Opener, eventually, in_time
from tests.integration.events.remote.conftest import cleared, serving

ROOT = Path(__file__).parents[3]
USUAL = {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"}

on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # nothing of this depends on the server

Said = Callable[[str], list[logging.LogRecord]]
Test = TypeVar("Test", bound=Callable[..., object])

KINDS = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue", "RemoteEventQueue")
OF_EVERY_KIND = ("redelivered", "dead_letter", "lease_lost", "role_taken", "role_released")
"""Events that each kind of queue has. But of dead letters, our okq server tells, not its clients."""

PROVOKED: set[tuple[str, str]] = set()
"""The events that the tests say they provoke, and each kind of queue that does; `said` looks whether that is so."""


def provokes(*events: str, kind: str = "") -> Callable[[Test], Test]:
    """Say which events a test provokes, on which kind of queue."""

    def noted(test: Test) -> Test:
        found = {(event, kind) for event in events}
        PROVOKED.update(found)
        test.__dict__.setdefault("provokes", set()).update(found)
        return test

    return noted


def table() -> dict[str, tuple[str, set[str]]]:
    """The events that the page names: the level and the attributes of each."""
    page = (ROOT / "docs" / "do" / "logs.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    return {event: (level, set(re.findall(r"`(\w+)`", keys))) for event, level, keys in rows}


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Said]:
    """Give the records of an event so far. Each has the level and only attributes that the page gives it.

    In the end, a test has provoked what it says.
    """
    monkeypatch.setattr(logs, "_limit", logs.Limit())
    caplog.set_level(logging.DEBUG, "apressure")
    known = table()

    def records(event: str) -> list[logging.LogRecord]:
        all_of_them = caplog.get_records("call")  # also after the test
        found = [one for one in all_of_them if one.name == "apressure" and getattr(one, "event", None) == event]
        level, keys = known[event]
        if level == "INFO":
            found = [one for one in found if one.threadName == "MainThread"]  # of the thread that renews, at DEBUG
        for one in found:
            assert one.levelname == level
            more = one.__dict__.keys() - USUAL - {"event"}
            assert more <= keys | {"suppressed", "preview"}, event
            assert one.getMessage()
        return found

    yield records
    for event, kind in getattr(request.function, "provokes", ()):
        assert [one for one in records(event) if not kind or getattr(one, "kind", "") == kind], (event, kind)


@on_valkey
@provokes("request_dropped")
async def test_a_request_whose_asker_has_left(said: Said, url: str) -> None:
    async with AsyncQueue("jobs", url=url, codec="cloudevents") as queue:
        await queue.create()
        with pytest.raises(NoReplyError):
            await queue.ask(Envelope(b"a"), 1.0)
        await queue.close()
        await in_time(serve(failing, queue, reply=True, signals=()))
        (dropped,) = said("request_dropped")
        assert "is dropped: its asker has left" in dropped.getMessage()
        assert not said("handler_failed")
        await queue.delete()


@provokes("unacknowledged")
@pytest.mark.parametrize("away", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("kind", [AsyncQueue, EventQueue, TaskQueue])
async def test_acknowledgements_that_a_draining_service_cannot_send_are_told(
    said: Said, make_server: Callable[..., EmbeddedServer], kind: Any, away: signal.Signals
) -> None:
    server, stop, go_on, began = make_server("valkey"), asyncio.Event(), asyncio.Event(), []
    options = {"retry_timeout": 0.5, "connect_timeout": 0.5, "response_timeout": 0.5, "settle_timeout": 0.5}
    async with kind("jobs", url=server.url, codec="raw", **options) as jobs:
        await jobs.create()
        await jobs.put_many([b"1", b"2", b"3"])

        async def handle(item: bytes) -> None:
            began.append(item)
            await go_on.wait()

        service = asyncio.ensure_future(serve(handle, jobs, concurrency=3, signals=(), stop=stop))
        await eventually(lambda: len(began) == 3)
        os.kill(server.pid, away)
        try:
            stop.set()
            go_on.set()
            assert (await in_time(service)).handled == 3
            await in_time(jobs.aclose())  # until then, they may arrive
        finally:
            if away == signal.SIGSTOP:
                os.kill(server.pid, signal.SIGCONT)
    (told,) = said("unacknowledged")
    assert (told.kind, told.queue, told.count) == (kind.__name__, "jobs", 3)  # type: ignore[attr-defined]
    assert told.getMessage() == (
        "3 acknowledgements of the queue 'jobs' may not have arrived: these messages may be delivered again"
    )


@pytest.mark.parametrize("kind", [AsyncQueue, EventQueue, TaskQueue])
async def test_acknowledgements_that_a_closed_queue_object_cannot_send_are_told_once(
    said: Said, make_server: Callable[..., EmbeddedServer], kind: Any
) -> None:
    server = make_server("valkey")
    options = {"retry_timeout": 0.5, "connect_timeout": 0.5, "response_timeout": 0.5, "settle_timeout": 0.5}
    async with kind("jobs", url=server.url, codec="raw", **options) as jobs:
        await jobs.create()
        await jobs.put_many([b"1", b"2"])
        with contextlib.suppress(PressureError):
            async with jobs.consumer() as items:
                await anext(items)
                os.kill(server.pid, signal.SIGKILL)
                with contextlib.suppress(PressureError):
                    await anext(items)
                await jobs.aclose()
    assert [told.count for told in said("unacknowledged")] == [1]  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.parametrize("kind", [AsyncQueue, EventQueue, TaskQueue])
async def test_acknowledgements_of_what_was_deleted_with_its_queue_are_not_told(
    said: Said, url: str, kind: Any
) -> None:
    async with kind("jobs", url=url, codec="raw") as jobs, kind("jobs", url=url) as owner:
        await jobs.create()
        await jobs.put_many([b"1", b"2"])
        with pytest.raises(QueueDoesNotExistError):
            async with jobs.consumer() as items:
                await anext(items)
                deleting = asyncio.ensure_future(owner.delete())
                while await owner.exists():
                    await asyncio.sleep(0.005)
                async for _ in items:
                    pass
        await in_time(deleting)
    assert said("unacknowledged") == []


@on_valkey
@provokes("pause_awaited")
async def test_a_service_tells_once_that_its_queue_is_paused(said: Said, url: str, tmp_path: Path) -> None:
    async with (
        AsyncQueue("jobs", url=url) as jobs,
        EventQueue("jobs", url=url) as events,
        TaskQueue("jobs", url=url, codec="raw") as tasks,
        FileQueue(tmp_path / "files") as files,
    ):
        queues: tuple[Any, ...] = (jobs, events, tasks, files)
        for number, queue in enumerate(queues, 1):
            await queue.create()
            await queue.pause()
            running = asyncio.ensure_future(serve(succeeding, queue, signals=()))
            await eventually(lambda number=number: len(said("pause_awaited")) == number)  # type: ignore[misc]
            await queue.resume()
            await queue.put(b"1")
            await queue.close()
            await in_time(running)
            await queue.delete()
    kinds = [one.kind for one in said("pause_awaited")]  # type: ignore[attr-defined]
    assert kinds == [type(queue).__name__ for queue in queues]


@on_valkey
@provokes("changed_by_hand", "job_ended")
async def test_a_change_on_the_page(said: Said, url: str, open_queue: Opener) -> None:
    await open_queue("jobs")
    page = apressure.web.app(
        "jobs", url=url, interval=0.05, history=False, allow_actions=True, trust_header="user", operators=["<ann>\t"]
    )
    asked = httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://localhost")
    where, user = "/queue/act?at=jobs&what=resume", {"user": "<ann>\t"}
    async with page.router.lifespan_context(page), asked:
        while (form := await asked.get(where, headers=user)).status_code != 200:
            await asyncio.sleep(0.02)
        (token,) = re.findall(r'name="csrf" value="(\w+)"', form.text)
        assert (await asked.post(where, headers=user, data={"csrf": token})).status_code == 200
        everything = {"csrf": token, "all": "1"}
        assert (await asked.post(where.replace("resume", "discard"), headers=user, data=everything)).is_success
        await eventually(lambda: said("job_ended"))
    changed, _ = said("changed_by_hand")
    assert changed.getMessage() == r"<ann>\t has the page do: resume jobs"
    assert said("job_ended")[0].getMessage() == r"the job of <ann>\t is done: discard jobs, 0 dead letters"


@provokes("worker_restarted", "worker_reloaded", "reload_ended")
async def test_the_processes_of_a_worker(said: Said, tmp_path: Path) -> None:
    watched, died, once = tmp_path / "watched", tmp_path / "died", tmp_path / "once"
    watched.mkdir()
    drained = "__import__('apressure.worker.processes').worker.processes.tell_drained()"
    die = f"import pathlib, sys; pathlib.Path({os.fspath(died)!r}).exists() or sys.exit(1); {drained}"
    running = asyncio.ensure_future(Processes([sys.executable, "-c", die], 1).run(()))
    await eventually(lambda: said("worker_restarted"))
    died.touch()
    assert await in_time(running) == 0
    restarted: Any = said("worker_restarted")[0]
    assert (restarted.number, restarted.exit_code, restarted.seconds > 0) == (0, 1, True)
    assert "process 0 of the worker ended with exit code 1: it starts again in" in restarted.getMessage()
    live = f"import pathlib, time; pathlib.Path({os.fspath(once)!r}).exists() or time.sleep(3600); {drained}"
    running = asyncio.ensure_future(Processes([sys.executable, "-c", live], 1, watched=[watched]).run(()))
    changes = 0

    def reloaded() -> bool:
        nonlocal changes
        changes += 1
        (watched / "app.py").write_text(f"{changes}")
        return bool(said("worker_reloaded"))

    await eventually(reloaded)
    once.touch()
    (watched / "app.py").write_text("last")
    assert await in_time(running) == 0
    assert "app.py changed: the worker starts again" in said("worker_reloaded")[0].getMessage()
    once.unlink()
    running = asyncio.ensure_future(Processes([sys.executable, "-c", live], 1, watched=[watched]).run(()))
    shutil.rmtree(watched)
    await eventually(lambda: said("reload_ended"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(running)


def test_each_event_of_the_page_is_provoked_by_a_test_and_for_each_kind_of_queue() -> None:
    assert {event for event, _ in PROVOKED} == table().keys()
    wanted = {(event, kind) for event in OF_EVERY_KIND for kind in KINDS}
    assert wanted - PROVOKED == {("dead_letter", "RemoteEventQueue")}


async def succeeding(item: Any) -> None:
    """Handle an item."""


async def failing(item: Any) -> None:
    raise RuntimeError


def test_the_page_names_every_attribute_and_none_is_one_of_a_record() -> None:
    assert {key for _, keys in table().values() for key in keys} | {"event", "preview", "suppressed"} == logs.KEYS
    assert not logs.KEYS & USUAL
    found = r'"event": "(\w+)"|(?:logs\.role|\bwarn|_log\(logging\.\w+,|_tell\(logging\.\w+,|_log)\(?\s*"(\w+)"'
    named = {
        groups
        for path in Path(apressure.__file__).parent.rglob("*.py")
        for groups in re.findall(found, path.read_text(), re.MULTILINE)
    }
    assert {next(filter(None, groups)) for groups in named} == table().keys()


@on_valkey
@pytest.mark.leaves_keys
@provokes("redelivered", "dead_letter", "role_taken", "role_released", kind="AsyncQueue")
@provokes("serve_started", "serve_draining", "serve_ended", "handler_failed", "pipe_started", "role_awaited", "step")
@provokes("client_closing", "connected")
async def test_the_life_of_a_service_its_roles_and_connections(
    open_queue: Opener, url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "PATIENCE", 0.01)
    jobs = await open_queue("jobs", max_attempts=2)
    await jobs.put(b"secret")
    out = await open_queue("out")

    async def stop(delivery: Any, error: BaseException) -> None:
        if delivery.attempts == 2:
            signal.raise_signal(signal.SIGTERM)

    async with AsyncQueue("jobs", url=url) as other, asyncio.TaskGroup() as group:
        async with other.consumer():
            running = group.create_task(serve(failing, jobs, retry=Backoff(0.001), on_error=stop))
            await eventually(lambda: said("role_awaited"))
        await in_time(running)
    (started,), (draining,), (ended,) = said("serve_started"), said("serve_draining"), said("serve_ended")
    assert (started.queue, started.kind, started.handler) == ("jobs", "AsyncQueue", "failing")  # type: ignore[attr-defined]
    assert (draining.signal, draining.count) == ("SIGTERM", 1)  # type: ignore[attr-defined]
    assert (ended.handled, ended.failed, ended.signal) == (0, 2, "SIGTERM")  # type: ignore[attr-defined]
    taken, released = said("role_taken"), said("role_released")
    assert [one.role for one in taken] == ["consumer"] * 2  # type: ignore[attr-defined]
    assert {one.token for one in taken} == {one.token for one in released}  # type: ignore[attr-defined]
    first, second = said("handler_failed")
    assert (first.attempts, second.attempts, first.error) == (1, 2, "RuntimeError")  # type: ignore[attr-defined]
    (again,) = said("redelivered")
    assert (again.queue, again.kind, again.attempts) == ("jobs", "AsyncQueue", 2)  # type: ignore[attr-defined]
    assert again.delivery == second.delivery  # type: ignore[attr-defined]
    assert "secret" not in again.getMessage()
    async with jobs.consumer(ack="manual"):
        await eventually(lambda: said("connected"))
    await jobs.close()
    await in_time(pipe(jobs, failing, out))  # type: ignore[arg-type]
    (dead,) = said("dead_letter")
    assert (dead.queue, dead.position, dead.dead_letters, dead.attempts) == ("jobs", "1", "jobs:dead", 2)  # type: ignore[attr-defined]
    (piped,) = said("pipe_started")
    assert (piped.queue, piped.destination) == ("jobs", "out")  # type: ignore[attr-defined]
    async with out.producer(exclusive=True, close=False):
        pass
    assert said("role_taken")[-1].role == said("role_released")[-1].role == "producer"  # type: ignore[attr-defined]
    await jobs.aclose()
    assert said("client_closing")
    steps = {one.operation for one in said("step")}  # type: ignore[attr-defined]
    assert {"put", "close"} <= steps
    assert all(one.seconds >= 0 for one in said("step"))  # type: ignore[attr-defined]


@on_valkey
@provokes("connected", "connection_lost", "reconnected")
async def test_connections_that_are_lost_and_back(url: str, open_queue: Opener, db: redis.Redis, said: Said) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        db.client_kill_filter(_type="normal", skipme=True)
        await eventually(lambda: said("connection_lost"))
        await in_time(queue.put(b"1"))
        await queue.delete()
    (lost,), (back,) = said("connection_lost"), said("reconnected")
    assert lost.address == back.address == said("connected")[0].address  # type: ignore[attr-defined]
    assert back.seconds >= 0  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.leaves_keys
@provokes(
    "redelivered", "dead_letter", "role_taken", "role_released", "serve_started", "serve_ended", kind="EventQueue"
)
@provokes("redelivered", "dead_letter", "role_taken", "role_released", "serve_started", "serve_ended", kind="TaskQueue")
@provokes("redelivered", "dead_letter", "role_taken", "role_released", "serve_started", "serve_ended", kind="FileQueue")
async def test_every_kind_tells_of_redeliveries_dead_letters_and_its_steps(
    url: str, tmp_path: Path, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    logs.set_preview(3)
    try:
        async with (
            EventQueue("events", url=url, max_attempts=2) as events,
            TaskQueue("tasks", url=url, codec="raw", max_attempts=2) as tasks,
            FileQueue(tmp_path / "files", max_attempts=2) as files,
        ):
            for queue in (events, tasks, files):
                await queue.create(exist_ok=True)
                await queue.put(b"\x1b[1m")
                await queue.close()
                await in_time(serve(failing, queue, retry=Backoff(0.001), signals=()))
                seen: Any = await queue.statistics()
                counts = (seen.put_count, seen.received_count, seen.dead_lettered_count)
                assert counts == (1, 2, 1), queue
    finally:
        logs.set_preview(0)
    failures = [one.delivery for one in said("handler_failed")[1::2]]  # type: ignore[attr-defined]
    for event in ("redelivered", "dead_letter"):
        assert [(one.kind, one.attempts) for one in said(event)] == [  # type: ignore[attr-defined]
            ("EventQueue", 2), ("TaskQueue", 2), ("FileQueue", 2),
        ]  # fmt: skip
        assert [one.delivery for one in said(event)] == failures  # type: ignore[attr-defined]
    shown = [getattr(one, "preview", None) for one in (*said("redelivered"), *said("dead_letter"))]
    assert shown == ["\\x1b[1…"] * 6
    assert {"push", "pop", "enqueue", "reserve", "commit_together", "take"} <= {one.operation for one in said("step")}  # type: ignore[attr-defined]
    assert "[1m" not in "".join(one.getMessage() for one in caplog.records if not hasattr(one, "preview"))


@on_valkey
@provokes("redelivered", "lease_lost", "role_taken", "role_released", kind="RemoteEventQueue")
@provokes("connected", "client_closing", "step")
async def test_a_client_of_an_okq_server_tells_of_the_same(
    url: str, db: redis.Redis, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cleared(url),
        serving(url) as okq,
        EventQueue("events", url=okq) as queue,
        EventQueue("events", url=url) as other,
    ):
        event_id = await queue.put(b"1")
        async with queue.consumer(ack="manual", lease=1.5) as consumer:
            await in_time(anext(consumer))
            await taken_over(other, db)
            await eventually(lambda: said("lease_lost"))
        assert (await queue.receive(timeout=30)).redelivered
    (lost,) = said("lease_lost")
    assert (lost.queue, lost.delivery) == ("events", event_id)  # type: ignore[attr-defined]
    assert {"QRPUSH", "QLPUSH"} & {one.operation for one in said("step")}  # type: ignore[attr-defined]
    commands = [
        one.command for one in caplog.records if one.name == "apressure.events.server" and hasattr(one, "command")
    ]
    assert {"QLPUSH", "QRPOP", "QEXTEND"} <= set(commands)


@on_valkey
async def test_each_operation_of_a_file_queue_and_of_a_client_of_okq_logs_its_step(
    url: str, tmp_path: Path, said: Said
) -> None:
    async with (
        cleared(url),
        serving(url) as okq,
        FileQueue(tmp_path / "files") as files,
        EventQueue("events", url=okq) as events,
    ):

        async def told(step: str, operation: Any) -> Any:
            before = len(said("step"))
            result = await in_time(operation)
            assert step in {one.operation for one in said("step")[before:]}  # type: ignore[attr-defined]
            return result

        await told("create", files.create())
        for queue, steps in (
            (files, ("commit_together", "take", "rename", "take", "rename", "delete", "read")),
            (events, ("QLPUSH", "QRPOP", "QACK", "QRPOP", "QEXTEND", "QACK", "QRPEEK")),
        ):
            put, receive, nack, again, extend, ack, peek = steps
            await told(put, queue.put(b"1"))
            delivery: Any = await told(receive, queue.receive())
            await told(nack, delivery.nack())
            delivery = await told(again, queue.receive())
            await told(extend, delivery.extend(20.0))
            await told(ack, delivery.ack())
            await queue.put(b"1")
            await told(peek, queue.peek())
            await told("delete" if queue is files else "QPURGE", queue.purge())
        await told("QLOOK", events.statistics())
        for step, operation in (("pause", files.pause), ("resume", files.resume), ("close_queue", files.close)):
            await told(step, operation())
        await told("delete", files.delete())


async def taken_over(other: EventQueue[bytes], db: redis.Redis) -> None:
    """End the lease of the event in flight, and have another client receive it, and give it back."""
    db.delete(*db.scan_iter("queue:{events}:lock:*"))
    for event in db.zrange("apressure:queue:{events}:expiry", 0, -1):
        db.zadd("apressure:queue:{events}:expiry", {event: 1})
    again = await in_time(other.receive(timeout=30))
    assert again.attempts == 2
    await again.nack()


@on_valkey
@provokes("lease_lost", kind="AsyncQueue")
async def test_a_lost_lease_is_told_once(url: str, open_queue: Opener, db: redis.Redis, said: Said) -> None:
    jobs = await open_queue("jobs")
    await jobs.put_many([b"1", b"2"])
    with contextlib.suppress(LeaseLostError):
        async with AsyncQueue("jobs", url=url) as other, jobs.consumer(ack="manual") as consumer:
            delivery, _ = await in_time(anext(consumer)), await in_time(anext(consumer))
            db.hset("apressure:__pressure__:jobs:consumer_lease", "deadline", 1)
            async with other.consumer(timeout=30):
                await in_time(delivery.ack())
    (lost,) = said("lease_lost")
    assert (lost.queue, lost.role, lost.error) == ("jobs", "consumer", "LeaseLostError")  # type: ignore[attr-defined]
    assert lost.token == said("role_taken")[0].token  # type: ignore[attr-defined]
    assert lost.delivery.startswith(delivery.id.partition(":")[0] + ":")  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.leaves_keys
@provokes("lease_lost", kind="EventQueue")
@provokes("lease_lost", kind="TaskQueue")
async def test_what_another_client_has_taken_over_is_named(url: str, db: redis.Redis, said: Said) -> None:
    async with (
        EventQueue("events", url=url) as events, EventQueue("events", url=url) as event_thief,
        TaskQueue("tasks", url=url) as tasks, TaskQueue("tasks", url=url) as task_thief,
    ):  # fmt: skip
        ids = [await events.put(b"1"), await tasks.put("1")]
        async with (
            events.consumer(ack="manual", lease=1.5) as event_consumer,
            tasks.consumer(ack="manual", lease=1.5) as task_consumer,
        ):
            await in_time(anext(event_consumer))
            await in_time(anext(task_consumer))
            await taken_over(event_thief, db)
            db.zadd("apressure:blueque:leases:tasks", {ids[1]: 1})
            task = await in_time(task_thief.receive(timeout=30))
            await eventually(lambda: len(said("lease_lost")) == 2)
            await task.complete()
        assert sorted(one.delivery for one in said("lease_lost")) == sorted(ids)  # type: ignore[attr-defined]
        assert {one.attempts for one in said("lease_lost")} == {1}  # type: ignore[attr-defined]


@provokes("lease_lost", kind="FileQueue")
@provokes("serve_continues")
async def test_a_message_in_a_directory_that_another_process_has_taken_over(tmp_path: Path, said: Said) -> None:
    loop = asyncio.get_running_loop()
    late = FileQueue(tmp_path / "files", clock=lambda: time.time() + 1000)
    async with FileQueue(tmp_path / "files") as files, late:
        name = await files.put(b"1")

        async def handle(item: bytes) -> None:
            if not stolen.done():
                stolen.set_result(await late.receive(timeout=30))

        stolen: asyncio.Future[Any] = loop.create_future()
        serving_it = asyncio.create_task(serve(handle, files, signals=()))
        await eventually(lambda: said("serve_continues"))
        await stolen.result().nack()
        await files.close()
        await in_time(serving_it)
    (told,) = said("serve_continues")
    assert (told.queue, told.error) == ("files", "LeaseLostError")  # type: ignore[attr-defined]
    async with (
        FileQueue(tmp_path / "more") as files,
        FileQueue(tmp_path / "more", clock=lambda: time.time() + 1000) as late,
    ):
        name = await files.put(b"1")
        async with files.consumer(ack="manual", lease=1.5) as consumer:
            await in_time(anext(consumer))
            delivery = await in_time(late.receive(timeout=30))
            await eventually(lambda: said("lease_lost"))
            await delivery.ack()
    (lost,) = said("lease_lost")
    assert (lost.queue, lost.delivery, lost.attempts) == ("more", name, 1)  # type: ignore[attr-defined]


@on_valkey
@provokes("serve_interrupted", "handler_stuck", "serve_draining", "serve_cancelled")
async def test_a_stuck_handler_loses_its_lease_and_a_second_signal_ends_it(open_queue: Opener, said: Said) -> None:
    jobs = await open_queue("jobs")
    await jobs.put(b"1")
    entered: list[int] = []

    async def stuck(item: bytes) -> None:
        entered.append(1)
        await asyncio.Event().wait()

    serving_it = asyncio.create_task(serve(stuck, jobs, max_hold=0.5, lease=1.0, shutdown_timeout=600))
    await eventually(lambda: said("handler_stuck") and said("serve_interrupted") and len(entered) > 1)
    (interrupted, *_), (held, *_) = said("serve_interrupted"), said("handler_stuck")
    assert (interrupted.queue, interrupted.error) == ("jobs", "LeaseLostError")  # type: ignore[attr-defined]
    assert interrupted.seconds >= 0  # type: ignore[attr-defined]
    assert (held.queue, held.seconds) == ("jobs", 0.5)  # type: ignore[attr-defined]
    assert "in stuck" in held.getMessage()
    signal.raise_signal(signal.SIGTERM)
    await eventually(lambda: said("serve_draining"))
    signal.raise_signal(signal.SIGINT)
    await in_time(serving_it)
    (cancelled,) = said("serve_cancelled")
    assert (cancelled.queue, cancelled.signal) == ("jobs", "SIGINT")  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.leaves_keys
@provokes("serve_started", "serve_draining", "serve_cancelled", "serve_ended", kind="TaskQueue")
@provokes("dead_letter", kind="TaskQueue")
async def test_the_life_of_a_runner(url: str, said: Said) -> None:
    entered = asyncio.Event()

    async def work(parameters: Any) -> None:
        if parameters == "bad":
            raise ValueError
        entered.set()
        await asyncio.Event().wait()

    async with TaskClient(url) as client:
        bad, long = [await client.queue("tasks").enqueue(what) for what in ("bad", "long")]
        running = asyncio.create_task(Runner(client, "tasks", work).run())
        await in_time(entered.wait())
        signal.raise_signal(signal.SIGTERM)
        await eventually(lambda: said("serve_draining"))
        signal.raise_signal(signal.SIGTERM)
        await in_time(running)
        queue = client.queue("tasks", max_attempts=1)
        await in_time((await queue.receive(timeout=30)).nack())
        seen = await queue.statistics()
        assert (seen.received_count, seen.dead_lettered_count) == (1, 1)
    (ended,) = said("serve_ended")
    assert (ended.handler, ended.handled, ended.failed, ended.signal) == ("work", 0, 1, "SIGTERM")  # type: ignore[attr-defined]
    assert [one.delivery for one in said("dead_letter")] == [bad, long]  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.leaves_keys
async def test_dead_letters_that_a_step_finds_are_named_and_most_of_many_are_counted(
    url: str, db: redis.Redis, said: Said
) -> None:
    """Nobody gives these back: their leases end, and the next step finds that they were tried too often."""
    async with (
        AsyncQueue("jobs", url=url, max_attempts=1) as jobs, EventQueue("events", url=url, max_attempts=1) as events,
        TaskQueue("tasks", url=url, max_attempts=1) as tasks,
    ):  # fmt: skip
        await jobs.create()
        for queue in (jobs, events):
            await queue.put_many([b"%d" % number for number in range(30)])
        await tasks.put_many(["x"] * 30)
        for queue in (jobs, events, tasks):
            for delivery in [await queue.receive() for _ in range(30)]:  # type: ignore[attr-defined]
                if queue is not tasks:
                    await delivery.nack()
        for task_id in db.zrange("apressure:blueque:leases:tasks", 0, -1):
            db.zadd("apressure:blueque:leases:tasks", {task_id: 1})
        for queue in (jobs, events, tasks):
            with pytest.raises(QueueEmptyError):
                await queue.receive(timeout=0)  # type: ignore[attr-defined]
            assert (await queue.statistics()).dead_lettered_count == 30
    told = said("dead_letter")
    assert [sum(one.kind == kind for one in told) for kind in KINDS[:3]] == [20, 20, 20]  # type: ignore[attr-defined]
    assert [one.position for one in told[:20]] == [str(place) for place in range(1, 21)]  # type: ignore[attr-defined]
    assert len({one.delivery for one in told[20:]}) == 40  # type: ignore[attr-defined]


@on_valkey
@pytest.mark.leaves_keys
@provokes("bound_kept", kind="AsyncQueue")
@provokes("bound_kept", kind="EventQueue")
@provokes("bound_kept", kind="TaskQueue")
@provokes("bound_kept", kind="FileQueue")
async def test_a_queue_that_keeps_another_bound_is_a_warning(url: str, tmp_path: Path, said: Said) -> None:
    async with (
        AsyncQueue("jobs", url=url) as jobs, EventQueue("events", url=url) as events,
        TaskQueue("tasks", url=url) as tasks, FileQueue(tmp_path / "files") as files,
    ):  # fmt: skip
        for queue in (jobs, events, tasks, files):
            for bound in (5, 5, 0):
                await queue.create(bound=bound, exist_ok=True)
            assert not said("bound_kept")[-1:] or said("bound_kept")[-1].queue != queue.name  # type: ignore[attr-defined]
            assert not await queue.create(bound=7, exist_ok=True)
            last = said("bound_kept")[-1]
            assert (last.queue, last.bound, last.refused) == (queue.name, 5, 7)  # type: ignore[attr-defined]
            assert await queue.bound() == 5


@provokes("not_watched", kind="FileQueue")
async def test_queues_that_cannot_be_watched_are_one_warning_of_each_cause(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = [errno.ENOSPC, errno.ENOMEM]

    def refuse(*_: object) -> None:
        raise OSError(causes[0], os.strerror(causes[0]))

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", refuse)
    for number in range(6):
        async with FileQueue(tmp_path / f"queue{number}", poll_interval=0.5) as queue:
            await queue.put(b"")
        if number == 3:
            causes.pop(0)
    told: list[Any] = said("not_watched")
    assert [(one.queue, one.seconds) for one in told] == [("queue0", 0.5), ("queue4", 0.5)]
    assert [
        os.strerror(cause) in one.getMessage() for cause, one in zip((errno.ENOSPC, errno.ENOMEM), told, strict=True)
    ]


@provokes("schedule_damaged")
async def test_a_damaged_schedule_is_one_warning_however_often_it_is_read(tmp_path: Path, said: Said) -> None:
    async with FileQueue(tmp_path / "jobs") as queue:
        await queue.every("good", 60, b"1")
        await queue.every("bad", 60, b"1")
        _, records = await queue._schedules.read()
        assert await queue._schedules.write("bad", records["bad"], b"{}")
        for _ in range(3):
            await queue.drive_schedules()
            assert [schedule.name for schedule in await queue.schedules()] == ["good"]
    (told,) = said("schedule_damaged")
    assert told.queue == "jobs"  # type: ignore[attr-defined]
    assert told.getMessage().startswith("the record of the schedule 'bad' is damaged")


def test_a_storm_is_bounded_and_says_so(said: Said, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    logs._limit = logs.Limit(lambda: now)
    for number in range(1000):
        logs.redelivered("FileQueue", "jobs", str(number), 2, b"")
    logs.redelivered("FileQueue", "others", "1", 2, b"")
    assert len(said("redelivered")) == 21
    now = 10.0
    logs.redelivered("FileQueue", "jobs", "1000", 2, b"")
    last = said("redelivered")[-1]
    assert last.suppressed == 980  # type: ignore[attr-defined]
    assert last.getMessage().endswith("(and 980 more before)")
    now = 20.0
    told: list[Any] = [25, *(part for number in range(20) for part in (b"%d" % number, 3, b"x"))]
    assert logs.dead_letters("EventQueue", "jobs", told) == 25
    now = 30.0
    logs.dead_letter("EventQueue", "jobs", "last", 3)
    assert [getattr(one, "suppressed", 0) for one in said("dead_letter")] == [0] * 20 + [5]
    for wrong in (-1, 1001):
        with pytest.raises(ValueError, match="most must be from 0 to 1000"):
            logs.set_preview(wrong)
    with pytest.raises(TypeError, match="most must be a whole number"):
        logs.set_preview(True)


def test_an_id_that_cannot_be_printed_is_escaped(said: Said) -> None:
    for name in ("\udcff id", "one\ntwo"):
        logs.redelivered("EventQueue", f"q {name}", name, 2, b"")
        (last,) = said("redelivered")[-1:]
        assert last.delivery == ascii(name)[1:-1]  # type: ignore[attr-defined]
        assert last.getMessage().isprintable()
        assert all(one.isprintable() for one in (last.delivery, last.queue))  # type: ignore[attr-defined]


@on_valkey
def test_a_program_without_a_configuration_is_quiet(url: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "do" / "logs.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = f"""
import asyncio
from apressure import AsyncQueue
async def main():
    async with AsyncQueue("quiet", url={url!r}) as queue:
        await queue.create()
        await queue.put(b"1")
        async with queue.consumer() as consumer:
            await anext(consumer)
        await queue.delete()
asyncio.run(main())
"""
    for number, text in enumerate((program, "\n".join(code))):
        (tmp_path / f"{number}.py").write_text(text)
        done = processes.run(
            [sys.executable, str(tmp_path / f"{number}.py")], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    program = """
import logging
from apressure import logs
assert logging.getLogger("apressure").handlers == []
logs.role("role_taken", "jobs", "consumer")
logs.redelivered("EventQueue", "jobs", "1", 2, b"secret")
"""
    done = processes.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    told = "the message 1 of the queue 'jobs' is delivered again: attempt 2\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
