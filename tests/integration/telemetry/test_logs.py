"""What is logged: each event at its level, with its attributes, and no more of them than can be read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import apressure
from apressure import AsyncQueue, EventQueue, FileQueue, LeaseLostError, TaskQueue, logs, pipe, serve
from apressure.queue.engine import notices
from tests.integration.conftest import Opener, eventually, in_time

ROOT = Path(__file__).parents[3]
USUAL = {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"}

on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # nothing of this depends on the server

Said = Callable[[str], list[logging.LogRecord]]


def table() -> dict[str, tuple[str, set[str]]]:
    """The events that the page names: the level and the attributes of each."""
    page = (ROOT / "docs" / "logs.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    return {event: (level, set(re.findall(r"`(\w+)`", keys))) for event, level, keys in rows}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return the records of an event so far. Each has the level and only attributes that the page gives it."""
    monkeypatch.setattr(logs, "_limit", logs.Limit())
    caplog.set_level(logging.DEBUG, "apressure")
    known = table()

    def records(event: str) -> list[logging.LogRecord]:
        found = [one for one in caplog.records if one.name == "apressure" and getattr(one, "event", None) == event]
        level, keys = known[event]
        for one in found:
            assert one.levelname == level
            more = one.__dict__.keys() - USUAL - {"event"}
            assert more <= keys | {"suppressed", "preview"}, event
            assert one.getMessage()
        return found

    return records


async def failing(item: Any) -> None:
    raise RuntimeError


def test_the_page_names_every_attribute_and_none_is_one_of_a_record() -> None:
    assert {key for _, keys in table().values() for key in keys} | {"event", "preview", "suppressed"} == logs.KEYS
    assert not logs.KEYS & USUAL
    named = {
        event
        for path in Path(apressure.__file__).parent.rglob("*.py")
        for event in re.findall(
            r'"event": "(\w+)"|logs\.(?:warn|role)\(\s*"(\w+)"|^    warn\(\s*"(\w+)"', path.read_text(), re.MULTILINE
        )
    }
    assert {next(filter(None, groups)) for groups in named} == table().keys()


@on_valkey
@pytest.mark.leaves_keys
async def test_the_life_of_a_service_its_roles_and_connections(
    open_queue: Opener, url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PATIENCE", 0.01)
    jobs = await open_queue("jobs", max_attempts=2)
    await jobs.put(b"secret")
    out = await open_queue("out")

    async def stop(delivery: Any, error: BaseException) -> None:
        if delivery.attempts == 2:
            signal.raise_signal(signal.SIGTERM)

    async with AsyncQueue("jobs", url=url) as other, asyncio.TaskGroup() as group:
        async with other.consumer():
            running = group.create_task(serve(failing, jobs, retry_delay=0.001, on_error=stop))
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
    assert (dead.queue, dead.count, dead.dead_letters, dead.attempts) == ("jobs", 1, "jobs:dead", 2)  # type: ignore[attr-defined]
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
async def test_every_kind_tells_of_redeliveries_dead_letters_and_lost_leases(
    open_queue: Opener, url: str, tmp_path: Path, said: Said
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
                await in_time(serve(failing, queue, retry_delay=0.001, signals=()))
    finally:
        logs.set_preview(0)
    assert [(one.kind, one.attempts) for one in said("redelivered")] == [  # type: ignore[attr-defined]
        ("EventQueue", 2), ("TaskQueue", 2), ("FileQueue", 2),
    ]  # fmt: skip
    previews = [getattr(one, "preview", None) for one in said("redelivered")]
    assert previews == ["\\x1b[1…", None, "\\x1b[1…"]
    assert next(one.delivery for one in said("redelivered")) == said("handler_failed")[1].delivery  # type: ignore[attr-defined]
    assert {one.kind for one in said("dead_letter")} == {"EventQueue", "FileQueue"}  # type: ignore[attr-defined]


@on_valkey
async def test_a_lost_lease_is_told_once(url: str, open_queue: Opener, db: redis.Redis, said: Said) -> None:
    jobs = await open_queue("jobs")
    await jobs.put_many([b"1", b"2"])
    with contextlib.suppress(LeaseLostError):
        async with AsyncQueue("jobs", url=url) as other, jobs.consumer(ack="manual") as consumer:
            delivery = await in_time(anext(consumer))
            db.hset("apressure:__pressure__:jobs:consumer_lease", "deadline", 1)
            async with other.consumer(timeout=30):
                await in_time(delivery.ack())
    (lost,) = said("lease_lost")
    assert (lost.queue, lost.kind, lost.role, lost.error) == ("jobs", "AsyncQueue", "consumer", "LeaseLostError")  # type: ignore[attr-defined]
    assert lost.token == said("role_taken")[0].token  # type: ignore[attr-defined]


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
    for wrong in (-1, 1001):
        with pytest.raises(ValueError, match="most must be from 0 to 1000"):
            logs.set_preview(wrong)
    with pytest.raises(TypeError, match="most must be a whole number"):
        logs.set_preview(True)


@on_valkey
def test_a_program_without_a_configuration_is_quiet(url: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "logs.md").read_text()
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
        done = subprocess.run(
            [sys.executable, str(tmp_path / f"{number}.py")], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
