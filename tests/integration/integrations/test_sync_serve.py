"""`apressure.sync.serve`: plain functions in threads, and what signals and kills leave."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, EventQueue, FileQueue, TaskQueue
from apressure.sync import Queue, serve
from tests.integration.commands import Commands, ended, environment, running, wait_until

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # the other tests use each server

PROGRAM = """
import sys, time
from pathlib import Path
from apressure import AsyncQueue
from apressure.sync import serve

def handle(item):
    Path(f"begun-{item}").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    Path(f"done-{item}").touch()

print(serve(handle, AsyncQueue("jobs", url=sys.argv[1], codec="text"), concurrency=2, lease=1, prefetch=2))
"""


@pytest.fixture(params=["server", "events", "files", "tasks"])
def make(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Any:
    """Makes objects of one queue, of each kind in turn."""
    kinds = {
        "server": lambda: AsyncQueue("jobs", url=url, codec="text"),
        "events": lambda: EventQueue("jobs", url=url, codec="text"),
        "files": lambda: FileQueue(tmp_path / "jobs", codec="text"),
        "tasks": lambda: TaskQueue("jobs", url=url, codec="text"),
    }
    return kinds[request.param]


@pytest.mark.leaves_keys  # those that the kinds keep beyond a queue's deletion
def test_functions_run_side_by_side_in_threads_on_every_kind(make: Any) -> None:
    together = threading.Barrier(3, timeout=60)
    handled = []

    def handle(item: str) -> None:
        together.wait()  # three at a time, or never
        handled.append((item, threading.current_thread()))

    with Queue[str](make()) as queue:
        queue.create()
        queue.put_many(str(number) for number in range(6))
        queue.close()
    served = serve(handle, make(), concurrency=3)
    assert (served.handled, served.failed, served.drained) == (6, 0, False)
    assert sorted(item for item, _ in handled) == [str(number) for number in range(6)]
    assert threading.main_thread() not in {thread for _, thread in handled}
    with Queue[str](make()) as queue:
        queue.delete()


def test_what_is_no_function_is_refused(url: str) -> None:
    with pytest.raises(TypeError, match="the handler must be a function, not str"):
        serve("nofunc", AsyncQueue("jobs", url=url))  # type: ignore[call-overload]


def test_the_queues_may_come_from_a_generator(url: str) -> None:
    handled = []
    for name in ("jobs", "more"):
        with Queue(AsyncQueue(name, url=url, codec="text")) as queue:
            queue.create()
            queue.put(name)
            queue.close()
    queues = (AsyncQueue(name, url=url, codec="text") for name in ("jobs", "more"))
    assert serve(handled.append, queues).handled == 2  # type: ignore[call-overload]
    assert sorted(handled) == ["jobs", "more"]
    for name in ("jobs", "more"):
        with Queue(AsyncQueue(name, url=url)) as queue:
            queue.delete()


def test_what_fails_is_tried_again(url: str) -> None:
    def queue() -> AsyncQueue[str]:
        return AsyncQueue("jobs", url=url, codec="text")

    attempts = []

    def handle(item: str) -> None:
        attempts.append(item)
        if len(attempts) == 1:
            raise ZeroDivisionError

    with Queue(queue()) as jobs:
        jobs.create()
        jobs.put("a")
        jobs.close()
    assert serve(handle, queue()).handled == 1
    assert attempts == ["a", "a"]
    with Queue(queue()) as jobs:
        jobs.delete()


def test_what_it_cannot_serve_is_refused_and_stays(url: str) -> None:
    async def asynchronous(item: str) -> None: ...

    def plain(item: str) -> None: ...

    def queue() -> AsyncQueue[str]:
        return AsyncQueue("jobs", url=url, codec="text")

    with Queue(queue()) as jobs:
        jobs.create()
        jobs.put("a")
        with pytest.raises(TypeError, match=r"write `def`, or await apressure\.serve"):
            serve(asynchronous, queue())
        with pytest.raises(TypeError, match=r"give it the queue 'jobs' without Queue\(\.\.\.\) around it"):
            serve(plain, jobs)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="timeout"):
            serve(plain, queue(), timeout=1)
        with pytest.raises(ValueError, match="concurrency"):
            serve(plain, queue(), concurrency=0)

        async def where_a_loop_runs() -> None:
            with pytest.raises(RuntimeError, match=r"await apressure\.serve"):
                serve(plain, queue())

        asyncio.run(where_a_loop_runs())
        refused: list[BaseException] = []

        def in_another_thread() -> None:
            try:
                serve(plain, queue())
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=in_another_thread)
        thread.start()
        thread.join()
        assert "main thread" in str(refused[0])
        assert jobs.get(timeout=0) == "a"
        jobs.delete()


def test_a_signal_lets_functions_finish_and_gives_the_rest_back(url: str, cli: Commands, tmp_path: Path) -> None:
    cli.create("jobs")
    cli.fill("jobs", b"a", b"b", b"c", b"d")
    with running([sys.executable, "-c", PROGRAM, url], cwd=tmp_path, env=environment()) as process:
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        code, output, errors = ended(process)
    assert (code, errors) == (0, b"")
    assert b"handled=2, failed=0, signal=<Signals.SIGTERM" in output
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-a", "done-b"]
    assert cli.empty("jobs") == [b"c", b"d"]
    cli.delete("jobs")


def test_what_a_killed_process_had_comes_again(url: str, cli: Commands, tmp_path: Path) -> None:
    cli.create("jobs")
    cli.fill("jobs", b"a", b"b", b"c")
    cli.close("jobs")
    with running([sys.executable, "-c", PROGRAM, url], cwd=tmp_path, env=environment()) as process:
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        process.kill()
        process.wait()
    (tmp_path / "go").touch()
    with running([sys.executable, "-c", PROGRAM, url], cwd=tmp_path, env=environment()) as process:
        code, output, _ = ended(process)
    assert code == 0
    assert b"handled=3, failed=0" in output
    assert len(list(tmp_path.glob("done-*"))) == 3
    cli.delete("jobs")
