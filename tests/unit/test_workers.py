"""Which functions a `Worker` takes, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Worker
from apressure.concurrency.backoff import Backoff
from apressure.service.threads import asynchronous
from apressure.worker import processes


def test_what_is_asynchronous() -> None:
    async def handle(item: bytes) -> None: ...

    @functools.wraps(handle)
    def decorated(item: bytes) -> Any:
        return handle(item)

    class Handler:
        async def __call__(self, item: bytes) -> None: ...

    assert all(map(asynchronous, (handle, decorated, functools.partial(handle, b"one"), Handler())))
    assert not any(map(asynchronous, (print, lambda item: None, functools.partial(print, 1))))


def test_invalid_arguments() -> None:
    worker = Worker()
    with pytest.raises(TypeError, match="a handler has no option 'concurency'"):
        worker.handle("orders", concurency=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="codec= belongs to the queue object"):
        worker.handle(AsyncQueue("orders"), codec="json")
    with pytest.raises(TypeError, match="must take one argument"):
        worker.handle("orders")(lambda: None)
    with pytest.raises(ValueError, match="begin with event"):
        worker.handle("event://orders")
    with pytest.raises(ValueError, match="orders is given twice"):
        worker.handle(["orders", "orders"])
    with pytest.raises(ValueError, match="no expression of cron"):
        worker.every("orders", "nightly", "02:30", b"report")
    with pytest.raises(ValueError, match="there is no timezone 'Mars'"):
        worker.every("orders", "nightly", "30 2 * * *", b"report", timezone="Mars")
    with pytest.raises(TypeError, match="name must be a string"):
        worker.every("orders", 1, 10, b"report")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="this worker has no handler"):
        asyncio.run(worker.run())


SCRIPT = """
import os, signal, sys, time
from pathlib import Path

place, way, mine = Path(sys.argv[1]), sys.argv[2], f"{os.environ['APRESSURE_WORKER_PROCESS']}-{os.getpid()}"
signals = []
signal.signal(signal.SIGTERM, lambda signum, frame: (signals.append(signum), (place / f"told-{mine}").touch()))
(place / f"began-{mine}").touch()
while not signals and way != "dies":
    time.sleep(0.01)
if way == "slow":
    while not (place / "go_on").exists():
        time.sleep(0.01)
(place / f"got-{len(signals)}-{mine}").touch()
sys.exit({"fails": 7, "dies": 3}.get(way, 0))
"""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


class Started:
    """Processes that note in a directory what happens to them."""

    def __init__(self, place: Path, way: str = "ends", count: int = 1, watched: Sequence[Path] | None = None) -> None:
        self.place = place
        command = [sys.executable, "-c", SCRIPT, str(place), way]
        self.processes = processes.Processes(command, count, watched=watched)
        self.running = asyncio.ensure_future(self.processes.run(()))

    def noted(self, what: str) -> list[str]:
        return sorted(path.name for path in self.place.glob(f"{what}-*"))

    async def ended(self) -> int:
        self.processes._stop(signal.SIGTERM)
        async with asyncio.timeout(60):
            return await self.running


async def test_a_second_change_does_not_cancel_the_handlers_of_processes_that_drain(tmp_path: Path) -> None:
    started = Started(tmp_path, "slow")
    await until(lambda: started.noted("began"))
    started.processes._end(signal.SIGTERM, again=False)
    await until(lambda: started.noted("told"))
    started.processes._end(signal.SIGTERM, again=False)
    await asyncio.sleep(0.1)
    (tmp_path / "go_on").touch()
    await until(lambda: len(started.noted("began")) == 2)
    assert len(started.noted("got-1")) == 1
    assert await started.ended() == 0
    assert not started.noted("got-2")


async def test_the_exit_code_tells_that_a_process_failed_at_its_end(tmp_path: Path) -> None:
    started = Started(tmp_path, "fails", 2)
    await until(lambda: len(started.noted("began")) == 2)
    assert await started.ended() == 7


async def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "_RESTART", Backoff(0.01, 0.01))
    start, refusals = vars(asyncio)["create_subprocess_exec"], [BlockingIOError(11, "no more processes")]

    async def refused(*command: str, **how: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await start(*command, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    caplog.set_level(logging.WARNING)
    started = Started(tmp_path, count=2)
    await until(lambda: len(started.noted("began")) == 2)
    assert await started.ended() == 0
    assert "of the worker could not be started: [Errno 11] no more processes: it starts again in" in caplog.text


def deleted(place: Path) -> None:
    (place / "code").rmdir()


def replaced(place: Path) -> None:
    (place / "code").rename(place / "old")
    (place / "code").mkdir()


@pytest.mark.parametrize("change", [deleted, replaced])
async def test_it_goes_on_when_the_directory_with_the_code_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    pytest.importorskip("watchfiles", reason="watchfiles")
    (tmp_path / "code").mkdir()
    started = Started(tmp_path, count=2, watched=[tmp_path / "code"])
    await until(lambda: len(started.noted("began")) == 2)
    change(tmp_path)
    await until(lambda: "was deleted or replaced. Start it anew to watch files" in caplog.text)
    assert await started.ended() == 0
    assert len(started.noted("began")) == 2
    assert [one.event for one in caplog.records if one.name == "apressure"] == ["reload_ended"]  # type: ignore[attr-defined]


async def test_a_watcher_that_fails_stops_no_process_and_keeps_none_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has failed waits for a file to change: it is started again as without --reload."""
    watchfiles = pytest.importorskip("watchfiles", reason="watchfiles")
    monkeypatch.setattr(processes, "_RESTART", Backoff(0.01, 0.01))
    full = asyncio.Event()

    async def awatch(*directories: Path, **how: Any) -> AsyncIterator[set[Any]]:
        await full.wait()
        raise ExceptionGroup("unhandled errors", [OSError("OS file watch limit reached.")])
        yield set()

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    started = Started(tmp_path, "dies", watched=[tmp_path])
    await until(lambda: "it starts again when a file changes" in caplog.text)
    full.set()
    await until(lambda: len(started.noted("began")) >= 3)
    await started.ended()
    assert "does not start again when a file changes: OS file watch limit reached. Start it anew" in caplog.text


def test_how_a_process_ended() -> None:
    assert [processes.in_words(code) for code in (0, 3, -9, -40)] == [
        "exit code 0",
        "exit code 3",
        "SIGKILL",
        "signal 40",
    ]


def test_a_decorator_without_its_queue_is_refused() -> None:
    with pytest.raises(TypeError, match="a queue is missing, and builtin_function_or_method is none: decorate with"):
        Worker().handle(print)
    with pytest.raises(TypeError, match="int is none: give its address, or its object"):
        Worker().handle(["orders", 7])
