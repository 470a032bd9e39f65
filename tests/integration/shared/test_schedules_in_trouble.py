"""Schedules on a server in trouble: what `ScheduleContract` does not try."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    EventQueue,
    PermissionDeniedError,
    QueueDoesNotExistError,
    QueueInUseError,
    ServerError,
    TaskQueue,
    serve,
)
from apressure.core import schedules
from apressure.embedded import EmbeddedServer
from apressure.exceptions import OutOfMemoryError
from apressure.testing.contract import begun, drained, in_time
from apressure.testing.contract.cancellation import cancelled
from apressure.testing.contract.interrupting import cancel, cancel_at_answer
from apressure.testing.proxy import Proxy, Trouble

Open = Callable[..., Any]

KEYS = {
    "pressure": "apressure:__pressure__:jobs:schedules",
    "events": "apressure:queue:{jobs}:schedules",
    "tasks": "apressure:blueque:schedules:jobs",
}
KINDS: dict[str, type[Any]] = {"pressure": AsyncQueue, "events": EventQueue, "tasks": TaskQueue}

pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def key(kind: str) -> str:
    return KEYS[kind]


@pytest.fixture
async def open_queue(kind: str, url: str) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def opened(where: str = url, **options: Any) -> Any:
            queue = KINDS[kind]("jobs", url=where, codec="raw", **options)
            return await stack.enter_async_context(queue)

        yield opened


@pytest.fixture
async def queue(open_queue: Open) -> AsyncIterator[Any]:
    queue = await open_queue()
    await queue.create()
    yield queue
    with contextlib.suppress(QueueDoesNotExistError):
        await queue.delete()


async def overdue(queue: Any, *names: str, count: int) -> None:
    """Have so many occasions of schedules be due."""
    now, _ = await queue._schedules.read()
    begin = now // 1000 - count
    for name in names:
        await queue.every(name, 1, name.encode(), missed="all")
    _, records = await queue._schedules.read()
    for name in names:
        record = json.loads(records[name])
        changed = json.dumps({**record, "next": 1000 * begin}).encode()
        assert await queue._schedules.write(name, records[name], changed)


async def driven(queue: Any, *names: str) -> dict[str, int]:
    """Pause the schedules, and return how often each was put."""
    for name in names:
        await queue.pause_schedule(name)
    return {schedule.name: schedule.count for schedule in await queue.schedules()}


def occasions(items: list[bytes]) -> dict[str, int]:
    return {name.decode(): items.count(name) for name in set(items)}


# Replies that are lost, and servers that end.


@pytest.mark.parametrize("trouble", [Trouble(lose=0.2), Trouble(cut=0.1, lose=0.1), Trouble(lose=0.1, delay=0.002)])
async def test_lost_replies_double_no_occasion(queue: Any, open_queue: Open, url: str, trouble: Trouble) -> None:
    names = ("a", "b")
    await overdue(queue, *names, count=20)
    before = await queue.schedules()
    async with Proxy(url, random.Random(5)) as line, asyncio.timeout(120):
        others = [await open_queue(line.url, response_timeout=1.0, retry_timeout=60.0) for _ in range(2)]
        for other in others:
            await other.exists()
        line.trouble = trouble

        async def drive(other: Any) -> None:
            while await other.drive_schedules() == 0:
                pass

        await asyncio.gather(*map(drive, others))
        assert line.cuts > 3
        line.trouble = Trouble()
    counts = await driven(queue, *names)
    assert occasions(await drained(queue)) == counts
    passed = {schedule.name: schedule.next for schedule in await queue.schedules()}
    assert counts == {one.name: passed[one.name] - one.next for one in before}  # each second of that time, once


async def test_changes_whose_replies_are_lost_are_made_once(queue: Any, open_queue: Open, url: str) -> None:
    async with Proxy(url, random.Random(6)) as line:
        other = await open_queue(line.url, retry_timeout=60.0)
        await other.exists()
        changes: list[Callable[[], Any]] = [
            lambda: other.every("x", 3600, b"1"),
            lambda: other.pause_schedule("x"),
            lambda: other.resume_schedule("x"),
            lambda: other.run_schedule("x"),
            lambda: other.every("x", 7200, b"2"),
            lambda: other.delete_schedule("x"),
        ]
        async with asyncio.timeout(60):
            for change in changes:
                line.trouble.lose_next = 2  # of the look, or of the change
                await change()
    assert await drained(queue) == [b"1"]
    assert await queue.schedules() == []


async def test_a_restart_of_the_server_keeps_schedules(
    open_queue: Open, make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = make_server("valkey", directory=tmp_path, config={"appendfsync": "always"})
    queue = await open_queue(server.url)
    await queue.create()
    await overdue(queue, "tick", count=20)
    await queue.drive_schedules()
    before = await queue.schedules()
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    assert await queue.schedules() == before
    while await queue.drive_schedules() == 0:
        pass
    assert (await driven(queue, "tick"))["tick"] == len(await drained(queue)) >= 20


async def test_a_server_without_memory_puts_the_occasion_later(queue: Any, db: redis.Redis) -> None:
    await overdue(queue, "tick", count=1)
    db.config_set("maxmemory", 1)
    try:
        for _ in range(2):
            with pytest.raises(OutOfMemoryError):
                await queue.drive_schedules()
        with pytest.raises(OutOfMemoryError):
            await queue.every("other", 60, b"1")
        assert [schedule.name for schedule in await queue.schedules()] == ["tick"]
    finally:
        db.config_set("maxmemory", 0)
    while await queue.drive_schedules() == 0:
        pass
    assert (await driven(queue, "tick"))["tick"] == len(await drained(queue)) >= 1


@pytest.mark.parametrize("how", [cancel, cancel_at_answer])
async def test_a_driver_that_is_cancelled_at_any_await_puts_each_occasion_once(queue: Any, how: Any) -> None:
    await overdue(queue, "a", "b", count=60)
    for number in itertools.count():
        reached, _ = await cancelled(queue.drive_schedules(), number, how)
        if not reached:
            break
    assert number == 3  # the look, and each schedule
    counts = await driven(queue, "a", "b")
    assert occasions(await drained(queue)) == counts


# What others wrote, and what a server refuses.


async def test_a_key_of_another_type_is_a_clear_error_and_nothing_else_suffers(
    queue: Any, db: redis.Redis, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    db.set(key, "x")
    for operation in (queue.every("a", 1, b"1"), queue.schedules(), queue.drive_schedules(), queue.run_schedule("a")):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await operation
    assert (await queue.statistics()).schedules == 0
    done: list[bytes] = []

    async def handle(item: bytes) -> None:
        done.append(item)

    service = await begun(serve(handle, queue, signals=()))
    await queue.put(b"1")
    async with asyncio.timeout(20):
        while done != [b"1"]:
            await asyncio.sleep(0.01)
    service.cancel()
    await asyncio.wait((service,))
    assert "the schedules of" in caplog.text
    assert "are not driven here" in caplog.text
    db.delete(key)
    assert await queue.schedules() == []


DAMAGED: dict[str, bytes] = {
    "no JSON": b"\xff{",
    "a number": b"7",
    "nothing": b"",
    "half": b'{"when": 60}',
    "a time of nobody": json.dumps({"when": 60, "timezone": "Mars", "missed": "one", "next": 0, "last": None,
                                    "count": 0, "paused": False, "item": ""}).encode(),
    "an item of nobody": json.dumps({"when": 60, "timezone": "UTC", "missed": "one", "next": 0, "last": None,
                                     "count": 0, "paused": False, "item": "?"}).encode(),
    "before 1970": json.dumps({"when": 60, "timezone": "UTC", "missed": "one", "next": -1, "last": None,
                               "count": 0, "paused": False, "item": ""}).encode(),
    "endless": b"[" * 10_000_000,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_damaged_record_is_named_and_left_alone(
    queue: Any, db: redis.Redis, key: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await overdue(queue, "good", count=1)
    db.hset(key, "bad", DAMAGED[damage])
    with caplog.at_level(logging.WARNING):
        while await queue.drive_schedules() == 0:
            pass
    assert "the record of the schedule 'bad' is damaged" in caplog.text
    assert [schedule.name for schedule in await queue.schedules()] == ["good"]
    assert db.hget(key, "bad") == DAMAGED[damage]
    for change in (queue.run_schedule, queue.pause_schedule, queue.resume_schedule):
        with pytest.raises(ValueError, match="the record of the schedule 'bad' is damaged"):
            await change("bad")
    await queue.delete_schedule("bad")
    db.hset(key, "bad", DAMAGED[damage])
    assert (await queue.every("bad", 60, b"1")).name == "bad"
    assert len(await queue.schedules()) == 2
    assert set(await drained(queue)) == {b"good"}


async def test_a_queue_has_at_most_so_many_schedules(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MOST", 3)
    for name in "abc":
        await queue.every(name, 60, b"1")
    with pytest.raises(ValueError, match="the queue 'jobs' has 3 schedules, the most that it may have"):
        await queue.every("d", 60, b"1")
    await queue.every("c", 120, b"1")  # one that is there may change
    await queue.delete_schedule("a")
    await queue.every("d", 60, b"1")


async def test_a_thousand_schedules_that_are_due_together(queue: Any) -> None:
    for begin in range(0, 1000, 100):
        await asyncio.gather(*(queue.every(f"s{number}", 3600, b"1") for number in range(begin, begin + 100)))
    now, records = await queue._schedules.read()
    assert len(records) == 1000
    for name, record in records.items():
        due = json.dumps({**json.loads(record), "next": now - now % 1000}).encode()
        await queue._schedules.write(name, record, due)
    async with asyncio.timeout(60):
        while await queue.drive_schedules() == 0:
            pass
    assert len(await drained(queue)) == 1000
    assert {schedule.count for schedule in await queue.schedules()} == {1}


async def test_an_exclusive_producer_has_occasions_wait(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("jobs", url=url) as other:
        await queue.create()
        await overdue(queue, "tick", count=1)
        async with other.producer(exclusive=True, close=False):
            assert 0 < await queue.drive_schedules() <= 1
            with pytest.raises(QueueInUseError, match="has an exclusive producer"):
                await queue.run_schedule("tick")
            assert await queue.qsize() == 0
        while await queue.drive_schedules() == 0:
            pass
        assert (await driven(queue, "tick"))["tick"] == await queue.qsize() >= 1
        await queue.delete()


async def test_a_user_without_rights_gets_a_clear_error(queue: Any, db: redis.Redis, kind: str, url: str) -> None:
    await queue.every("tick", 60, b"1")
    db.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">secret", "+@all", "~other")
    try:
        where = url.replace("redis://", "redis://reader:secret@")
        async with KINDS[kind]("jobs", url=where, codec="raw") as other:
            for operation in (other.schedules(), other.every("a", 1, b"1"), other.drive_schedules()):
                with pytest.raises(PermissionDeniedError):
                    await operation
    finally:
        db.execute_command("ACL", "DELUSER", "reader")
    assert len(await queue.schedules()) == 1


# Several that define and drive.


async def test_many_that_define_drive_and_delete_at_once(queue: Any, open_queue: Open) -> None:
    """Whatever happens to a schedule meanwhile, each occasion that is put is counted, and each that is counted was."""
    others = [await open_queue() for _ in range(4)]
    rng = random.Random(7)

    async def trouble(other: Any) -> None:
        for _ in range(60):
            step = rng.randrange(5)
            if step == 0:
                await other.every("x", rng.choice([1, 2, 3600]), b"1", missed="all")
            elif step == 1:
                await other.drive_schedules()
            else:
                with contextlib.suppress(Exception):
                    if step == 2:
                        await other.run_schedule("x")
                    elif step == 3:
                        await other.pause_schedule("x")
                    else:
                        await other.resume_schedule("x")

    await queue.every("x", 1, b"1", missed="all")
    await in_time(asyncio.gather(*map(trouble, others)))
    assert (await driven(queue, "x"))["x"] == len(await drained(queue)) > 0


async def test_the_clock_of_the_client_does_not_matter(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 5_000_000_000.0)
    schedule = await queue.every("tick", 3600, b"1")
    assert schedule.next < 4_000_000_000
    assert await queue.drive_schedules() > 0
    assert await queue.qsize() == 0


async def test_a_record_of_a_schedule_says_no_more_than_it_must(queue: Any) -> None:
    """The item may be a secret: it is in no text that a log or an error shows."""
    schedule = await queue.every("tick", 3600, b"secret")
    assert "secret" not in repr(schedule)
    assert dataclasses.asdict(schedule)["raw"] == b"secret"
