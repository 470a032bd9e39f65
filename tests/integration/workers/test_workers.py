"""Those that work on a queue: they are seen, expire when they are killed, and end when they are drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, EventQueue, Piped, TaskQueue, Worker, pipe, serve
from apressure.core import registration
from apressure.core.workers import MAX_SIZE, MOST, encode
from apressure.embedded import EmbeddedServer
from apressure.tasks import Runner, TaskClient
from apressure.telemetry.history import Flow
from apressure.testing.contract.steps import QUICK, seen
from tests import processes
from tests.integration.acl_roles import allow, documented, without
from tests.integration.commands import environment
from tests.integration.conftest import eventually, fails, in_time
from tests.integration.workers.support import beat, record_of
from tests.reference import connect
from tests.servers import admin, frozen

pytestmark = pytest.mark.leaves_keys
on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)

KINDS: dict[str, Callable[..., Any]] = {"AsyncQueue": AsyncQueue, "EventQueue": EventQueue, "TaskQueue": TaskQueue}
KEYS = {
    "AsyncQueue": "apressure:__pressure__:jobs:workers",
    "EventQueue": "apressure:queue:{jobs}:workers",
    "TaskQueue": "apressure:blueque:workers:jobs",
}


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "BEAT", QUICK)
    monkeypatch.setattr(registration, "FIRST", QUICK / 2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def key_of(db: redis.Redis) -> str:
    """The key of the workers of the only queue."""
    (key,) = db.keys("apressure:*workers*")
    assert isinstance(key, bytes)
    return key.decode()


async def nothing(_: Any) -> None:
    """Handle an item."""


# Processes.

SERVING = """
import asyncio, sys
import apressure
from apressure.core import registration

registration.FIRST = 0.01
if len(sys.argv) > 3:
    registration.BEAT, registration.LASTS = 0.2, float(sys.argv[3])

async def handle(item):
    print(item, flush=True)
    await asyncio.sleep(3600)

asyncio.run(apressure.serve(handle, getattr(apressure, sys.argv[1])("jobs", url=sys.argv[2])))
"""


@on_valkey
async def test_a_service_that_is_killed_is_not_seen_any_more_when_its_registration_has_expired(
    kind: str, url: str, db: redis.Redis
) -> None:
    async with KINDS[kind]("jobs", url=url) as queue:
        await queue.create()
        await queue.put("1" if kind == "TaskQueue" else b"1")
        with processes.Popen([sys.executable, "-c", SERVING, kind, url, "2"], env=environment(url)) as process:
            try:
                (worker,) = await seen(queue, lambda found: found and found[0].in_hand)
                assert (worker.pid, worker.handler) == (process.pid, "handle")
                assert worker.id.endswith(worker.id[worker.id.index(f"-{process.pid}-") :])
            finally:
                process.kill()
        assert (await queue.statistics()).workers
        await seen(queue, lambda found: not found)
        assert 0 < db.pttl(key_of(db)) <= 60_000
        # What has expired is removed by those that work on.
        service = asyncio.ensure_future(serve(nothing, KINDS[kind]("jobs", url=url), signals=(), shared=True))
        await seen(queue, lambda found: len(found) == 1)
        db.hset(key_of(db), "", 0)
        await eventually(lambda: db.hlen(key_of(db)) == 2)
        service.cancel()
        await in_time(asyncio.wait((service,)))


async def test_the_workers_of_a_server_that_restarts_are_seen_again(kind: str, own: EmbeddedServer) -> None:
    async with KINDS[kind]("jobs", url=own.url) as queue, KINDS[kind]("jobs", url=own.url) as working:
        await queue.create()
        service = asyncio.ensure_future(serve(nothing, working, signals=(), shared=True))
        await seen(queue)
        own.stop()  # it keeps the queue: a service whose queue is gone ends
        own.start()
        with admin(own) as db:
            db.delete(KEYS[kind])
        (worker,) = await seen(queue)
        assert await queue.drain(worker.id) == 1
        assert (await in_time(service)).drained


async def test_a_service_ends_at_once_while_its_server_stands_still(kind: str, own: EmbeddedServer) -> None:
    async with KINDS[kind]("jobs", url=own.url, settle_timeout=0.5) as queue:
        await queue.create()
        working = KINDS[kind]("jobs", url=own.url, settle_timeout=0.5)
        service = asyncio.ensure_future(serve(nothing, working, signals=(), shared=True))
        await seen(queue)
        with frozen(own):
            await asyncio.sleep(3 * QUICK)
            service.cancel()
            await in_time(asyncio.wait((service,)))
        await seen(queue, lambda found: all(worker.in_hand == 0 for worker in found))


# What others have written.

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no head": b"{}",
    "no JSON": b"%d %d w {",
    "a list": b"%d %d w []",
    "missing": b'%d %d w {"kind": "serve"}',
    "not UTF-8": b'%d %d w {"kind": "\xff"}',
    "deep": b"%d %d w " + b"[" * 4000,
    "huge": b"%d %d w " + encode(record_of()) + b" " * MAX_SIZE,
    "another letter": b"%d %d x " + encode(record_of()),
    **{
        f"{name}={value!r}": b"%d %d w " + json.dumps(record_of(**{name: value})).encode()
        for name, value in (
            ("kind", "other"), ("kind", 1), ("kind", []), ("handler", 1), ("handler", None), ("handler", "\ud800"),
            ("pid", -1), ("pid", True), ("pid", 1.5), ("pid", 10**30), ("in_hand", "1"), ("oldest", "1"),
            ("oldest", -1), ("busy", float("nan")), ("busy", float("inf")), ("busy", True), ("age", None),
            ("age", 1e300), ("age", 1e12), ("handled", None), ("host", {}),
            ("stack", "f.py:1 in f"), ("stack", [1]), ("stack", ["\ud800"]), ("stack", {}),
        )
    },
}  # fmt: skip


@on_valkey
@pytest.mark.parametrize("what", HOSTILE)
async def test_a_record_that_others_have_written_is_left_out(what: str, url: str, db: redis.Redis) -> None:
    key, now = KEYS["AsyncQueue"], int(time.time() * 1000)
    value = HOSTILE[what]
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        db.hset(key, "other/1", value.replace(b"%d %d", b"%d %d" % (now + 60_000, now)))
        db.hset(key, b"\xff/1", b"%d %d w " % (now + 60_000, now) + encode(record_of()))
        db.hset(key, "no name", b"%d %d w " % (now + 60_000, now) + encode(record_of()))
        db.hset(key, "x" * 300 + "/1", b"%d %d w " % (now + 60_000, now) + encode(record_of()))
        db.hset(key, "mine/1", b"%d %d w " % (now + 60_000, now) + encode(record_of()))
        assert [worker.id for worker in (await queue.statistics()).workers] == ["mine"]
        assert await queue.drain("mine") == 1
        assert await queue.drain("other") in {0, 1}
        assert await beat(queue, b"mine/1", encode(record_of())) == 1
        assert await beat(queue, b"yours/1", encode(record_of())) == 0
        assert [worker.id for worker in (await queue.statistics()).workers] == ["mine", "yours"]


@on_valkey
async def test_a_key_of_another_type_disturbs_nobody(kind: str, url: str, db: redis.Redis) -> None:
    async with KINDS[kind]("jobs", url=url, codec="text") as queue, KINDS[kind]("jobs", url=url, codec="text") as other:
        await queue.create()
        await beat(queue, b"mine/1", encode(record_of()))
        key = key_of(db)
        db.delete(key)
        db.set(key, "?", px=60_000)
        assert (await queue.statistics()).workers == ()
        await fails(Exception, queue.drain("mine"), "WRONGTYPE|wrong kind")
        handled = asyncio.Event()

        async def handle(_: str) -> None:
            handled.set()

        service = asyncio.ensure_future(serve(handle, other, signals=(), shared=True))
        await asyncio.sleep(3 * QUICK)
        await queue.put("1")
        await in_time(handled.wait())
        db.delete(key)  # and the service is seen as soon as it can be
        await seen(queue)
        service.cancel()
        await in_time(asyncio.wait((service,)))


@on_valkey
async def test_a_queue_knows_a_thousand_workers_and_no_more(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        record = encode(record_of(handler="x" * 255, host="y" * 255))
        for number in range(MOST):
            assert await beat(queue, b"worker-%03d/1" % number, record) == 0
        assert await beat(queue, b"another/1", record) == -1
        workers = (await queue.statistics()).workers
        assert [worker.id for worker in workers] == [f"worker-{number:03}" for number in range(MOST)]
        assert await beat(queue, b"worker-007/1", record) == 0
        assert await queue.drain("worker-007") == 1
        # Others may write more: then nobody is seen until the workers have told again.
        db.hset(key_of(db), mapping={str(number): "?" for number in range(MOST)})
        assert (await queue.statistics()).workers == ()
        assert await queue.drain("worker-007") == 0
        assert await beat(queue, b"worker-007/1", record) == 0
        assert [worker.id for worker in (await queue.statistics()).workers] == ["worker-007"]


@on_valkey
async def test_a_long_stack_loses_its_outer_frames(url: str) -> None:
    """The handler waits behind 300 calls, in a file with a long name that is no ASCII."""
    allowed = asyncio.Event()
    source = "async def deep(number, allowed):\n  await (deep(number - 1, allowed) if number else allowed.wait())\n"
    room: dict[str, Any] = {}
    exec(compile(source, "ü" * 300, "exec"), room)

    async def handle(_: bytes) -> None:
        await room["deep"](300, allowed)

    async with AsyncQueue[bytes]("jobs", url=url) as queue:
        await queue.create()
        await queue.put(b"1")
        service = asyncio.ensure_future(serve(handle, AsyncQueue("jobs", url=url), signals=(), shared=True))
        (worker,) = await seen(queue, lambda found: found and found[0].in_hand)
        assert await queue.show_stack(worker.id) == 1
        (worker,) = await seen(queue, lambda found: found[0].stack)
        cut, *frames, last = worker.stack
        assert cut == "…"
        assert frames
        assert all(frame.endswith("ü:2 in deep") and len(frame) == 255 for frame in frames)
        assert last.endswith(" in Event.wait")
        allowed.set()
        service.cancel()
        await in_time(asyncio.wait((service,)))


# Rights.


@on_valkey
async def test_a_consumer_of_the_docs_registers_and_a_monitor_sees_it(url: str, server: EmbeddedServer) -> None:
    async with AsyncQueue("orders", url=url) as owner:
        await owner.create()
    urls = {role: allow(server, role, documented(plain=False)[role]) for role in ("consumer", "monitor", "operator")}
    async with AsyncQueue("orders", url=urls["monitor"]) as looking, AsyncQueue("orders", url=urls["operator"]) as op:
        service = asyncio.ensure_future(serve(nothing, AsyncQueue("orders", url=urls["consumer"]), signals=()))
        (worker,) = await seen(looking)
        assert (await op.statistics()).workers[0].id == worker.id
        assert await op.drain(worker.id) == 1
        assert (await in_time(service)).drained
        await seen(looking, lambda found: not found)


@on_valkey
async def test_a_service_without_the_rights_works_all_the_same(
    url: str, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="apressure")
    rules = without(documented(plain=False)["consumer"], "hkeys")
    handled = asyncio.Event()

    async def handle(_: bytes) -> None:
        handled.set()

    async with AsyncQueue("orders", url=url) as owner:
        await owner.create()
        working = AsyncQueue("orders", url=allow(server, "weak", rules))
        service = asyncio.ensure_future(serve(handle, working, signals=()))
        await asyncio.sleep(5 * QUICK)
        await owner.put(b"1")
        await in_time(handled.wait())
        assert (await owner.statistics()).workers == ()
        service.cancel()
        await in_time(asyncio.wait((service,)))
    said = [record for record in caplog.records if "cannot register" in record.getMessage()]
    assert [record.levelname for record in said] == ["DEBUG"]


@on_valkey
async def test_a_queue_that_knows_no_workers_has_none(url: str) -> None:
    async with AsyncQueue[bytes]("jobs", url=url, scripting=False) as queue:
        await queue.create()
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(3 * QUICK)
        assert (await queue.statistics()).workers == ()
        assert await queue.drain(registration.worker_id()) == await queue.show_stack(registration.worker_id()) == 0
        getting.cancel()
        await asyncio.wait((getting,))


@on_valkey
async def test_an_id_must_be_text(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await fails(TypeError, queue.drain(7), "worker_id must be")  # type: ignore[arg-type]


# How what works is drained.


@on_valkey
async def test_a_short_block_writes_nothing(kind: str, url: str, db: redis.Redis, monkeypatch: Any) -> None:
    monkeypatch.setattr(registration, "BEAT", 5.0)
    async with KINDS[kind]("jobs", url=url) as queue:
        await queue.create()
        async with queue.consumer():
            await asyncio.sleep(3 * QUICK)
        assert db.keys("apressure:*workers*") == []


@on_valkey
async def test_a_service_of_several_queues_ends_as_a_whole(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="apressure")
    queues: list[Any] = [one("jobs", url=url) for one in KINDS.values()]
    async with AsyncQueue("jobs", url=url) as first, EventQueue("jobs", url=url) as second:
        for queue in queues:
            async with type(queue)("jobs", url=url) as created:
                await created.create()
        service = asyncio.ensure_future(serve(nothing, queues, signals=()))
        (worker,), (other,) = await seen(first), await seen(second)
        assert worker.id == other.id
        assert await second.drain(worker.id) == 1
        served = await in_time(service)
        assert served.drained
        assert served.signal is None
    draining = [record for record in caplog.records if getattr(record, "event", "") == "serve_draining"]
    assert {(record.drained, record.signal) for record in draining} == {(True, None)}  # type: ignore[attr-defined]
    assert len(draining) == 3
    assert "drains after an operator has asked for that: 0 in hand" in draining[0].getMessage()


@on_valkey
async def test_a_worker_ends_as_a_whole(url: str) -> None:
    worker = Worker(url=url)
    worker.handle("jobs", create=True)(nothing)
    worker.handle("events:jobs", create=True)(nothing)
    running = asyncio.ensure_future(worker.run(signals=()))
    async with EventQueue("jobs", url=url) as queue:
        (found,) = await seen(queue)
        assert await queue.drain(found.id) == 1
    assert [served.drained for served in (await in_time(running)).values()] in ([False, True], [True, True])


@on_valkey
async def test_a_handler_in_a_thread_is_measured(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("jobs", url=url) as working:
        await queue.create()
        await queue.put(b"1")
        with ThreadPoolExecutor(1) as threads:
            service = asyncio.ensure_future(
                serve(lambda _: time.sleep(0.5), working, executor=threads, signals=(), shared=True)
            )
            (worker,) = await seen(queue, lambda found: found and found[0].oldest)
            assert worker.busy >= worker.oldest
            (worker,) = await seen(queue, lambda found: found[0].handled)
            assert worker.oldest is None
            assert worker.busy >= 0.5
            service.cancel()
            await in_time(asyncio.wait((service,)))


@on_valkey
async def test_a_drained_stage_moves_what_it_has_and_leaves_its_destination_open(kind: str, url: str) -> None:
    source, destination = (KINDS[kind](name, url=url, codec="text") for name in ("jobs", "done"))
    async with KINDS[kind]("jobs", url=url, codec="text") as queue, KINDS[kind]("done", url=url, codec="text") as done:
        await queue.create()
        await done.create()
        allowed = asyncio.Event()

        async def transform(item: str) -> str:
            await allowed.wait()
            return item * 2

        stage = asyncio.ensure_future(pipe(source, transform, destination, close=True, shared=True))
        await queue.put("1")
        (worker,) = await seen(queue, lambda found: found and found[0].oldest)
        assert (worker.kind, worker.handler, worker.in_hand) == ("serve", "transform", 1)
        assert await queue.drain(worker.id) == 1
        await seen(queue, lambda found: found[0].draining)
        await asyncio.sleep(2 * QUICK)
        allowed.set()
        piped: Piped = await in_time(stage)
        assert (piped.handled, piped.put, piped.drained) == (1, 1, True)
        assert await done.get(timeout=5) == "11"
        assert not await done.closed()


@on_valkey
async def test_a_drained_runner_lets_its_tasks_finish(url: str) -> None:
    allowed = asyncio.Event()

    async def work(parameters: str) -> str:
        await allowed.wait()
        return parameters

    async with TaskClient(url) as client:
        queue = client.queue("jobs")
        task = await queue.enqueue("1")
        runner = Runner(client, "jobs", work, concurrency=2, signals=())
        running = asyncio.ensure_future(runner.run())
        (worker,) = await seen(queue, lambda found: found and found[0].oldest)
        assert (worker.kind, worker.handler, worker.concurrency, worker.in_hand) == ("runner", "work", 2, 1)
        assert await queue.drain(worker.id) == 1
        await asyncio.sleep(3 * QUICK)
        await queue.enqueue("2")
        allowed.set()
        ran = await in_time(running)
        assert (ran.complete, ran.drained, ran.signal) == (1, True, None)
        assert await queue.qsize() == 1
        await seen(queue, lambda found: not found)
        del task


@pytest.mark.parametrize("how", ["serve", "runner"])
async def test_a_signal_during_a_drain_lets_handlers_finish_and_the_next_one_does_not(url: str, how: str) -> None:
    started, ended = asyncio.Event(), []

    async def work(item: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    async with TaskClient(url) as client:
        queue = client.queue("jobs")
        await queue.put("1")
        if how == "serve":
            running = asyncio.ensure_future(serve(work, queue, signals=(signal.SIGUSR1,), shared=True))
        else:
            running = asyncio.ensure_future(Runner(client, "jobs", work, signals=(signal.SIGUSR1,)).run())
        await in_time(started.wait())
        (worker,) = await seen(queue)
        assert await queue.drain(worker.id) == 1
        await seen(queue, lambda found: found[0].draining)
        await asyncio.sleep(3 * QUICK)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(3 * QUICK)
        assert not running.done()
        assert ended == []
        os.kill(os.getpid(), signal.SIGUSR1)
        done = await in_time(running)
        assert ended == ["1"]
        assert (done.drained, done.signal) == (True, signal.SIGUSR1)
        assert await queue.qsize() == 1


async def test_a_drain_waits_for_a_worker_that_stands_still(kind: str, url: str) -> None:
    """Its registration expires, and those that work on remove others that have expired."""
    async with KINDS[kind]("jobs", url=url) as queue:
        await queue.create()
        assert await beat(queue, b"still/1", encode(record_of()), lasts=0.3) == 0
        assert await beat(queue, b"dead/1", encode(record_of()), lasts=0.3) == 0
        assert await queue.drain("still") == 1
        with connect(url) as db:
            await seen(queue, lambda found: not found)
            db.hset(key_of(db), "", 0)  # the time of the next cleaning has come
            await beat(queue, b"other/1", encode(record_of()))
            left = {name.decode() for name in db.hkeys(key_of(db))}
        assert left == {"", "still/1", "other/1"}
        assert await beat(queue, b"still/1", encode(record_of())) == 1


async def test_the_speed_of_a_queue_that_does_not_count_is_that_of_its_workers(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue, EventQueue("jobs", url=url) as working:
        await queue.create()
        flow, speeds = Flow(), []
        service = asyncio.ensure_future(serve(nothing, working, signals=(), shared=True))
        await seen(queue)
        async with asyncio.timeout(60):
            while not any(speed.taken and speed.put for speed in speeds):
                await queue.put_many([b"x"] * 20)
                await asyncio.sleep(QUICK)
                speeds.append(flow.look(time.monotonic(), await queue.statistics())[0])
        service.cancel()
        await in_time(asyncio.wait((service,)))
