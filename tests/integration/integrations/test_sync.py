"""`apressure.sync`: queues without asyncio, on every kind, and what Ctrl-C leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, EventQueue, FileQueue, QueueEmptyError, QueueFullError, TaskQueue
from apressure.sync import Queue
from tests import processes
from tests.integration.commands import Commands, ended, environment, feed, running, wait_until

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # the other tests use each server

SCRIPT = Path(__file__).parent / "interrupted.py"


@pytest.fixture(params=["server", "events", "files", "tasks"])
def make(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Callable[[], Any]:
    """Makes objects of one queue, of each kind in turn."""
    kinds: dict[str, Callable[[], Any]] = {
        "server": lambda: AsyncQueue("jobs", url=url, codec="text"),
        "events": lambda: EventQueue("jobs", url=url, codec="text"),
        "files": lambda: FileQueue(tmp_path / "jobs", codec="text"),
        "tasks": lambda: TaskQueue("jobs", url=url, codec="text"),
    }
    return kinds[request.param]


@pytest.mark.leaves_keys  # those that the kinds keep beyond a queue's deletion
async def test_every_kind_of_queue_works_without_asyncio_also_where_a_loop_runs(make: Callable[[], Any]) -> None:
    assert asyncio.get_running_loop()  # as in a notebook
    with Queue[str](make()) as queue:
        assert queue.create(bound=3)
        assert queue.exists()
        assert queue.put_many(item for item in "abc") == 3
        with pytest.raises(QueueFullError):
            queue.put("d", timeout=0)
        delivery = queue.receive(timeout=0)
        assert (delivery.item, delivery.raw, delivery.redelivered, delivery.settled) == ("a", b"a", False, False)
        delivery.nack()
        with pytest.raises(ZeroDivisionError), queue.consumer() as items:
            assert next(items) == "a"
            assert items.redelivered
            assert next(items) == "b"
            raise ZeroDivisionError
        with queue.consumer() as items:
            assert next(items) == "b"  # a was acknowledged, b was not
            assert items.attempts == 2
        queue.receive().ack()
        with pytest.raises(QueueEmptyError):
            queue.receive(timeout=0)
        with queue.producer() as producer:
            producer.put("last")
        assert queue.closed()
        with queue.consumer() as items:
            assert list(items) == ["last"]
        assert queue.qsize() == 0
        queue.delete()
    with pytest.raises(RuntimeError, match=r"inside its block.* call open\(\)"):
        queue.put("late")


def test_the_error_of_put_many_counts_the_items_of_all_chunks(url: str) -> None:
    with Queue(AsyncQueue("jobs", url=url, codec="text")) as queue:
        queue.create(bound=1203)
        with pytest.raises(QueueFullError) as raised:
            queue.put_many((str(number) for number in range(2000)), timeout=0.05)
        assert raised.value.accepted == 1203 == queue.qsize()
        with queue.consumer() as items, pytest.raises(TypeError, match="does not take a consumer"):
            queue.put_many(items)
        queue.delete()


def test_what_was_received_and_not_acknowledged_goes_back_at_the_end(url: str) -> None:
    with Queue(AsyncQueue("jobs", url=url, codec="text")) as queue:
        queue.create()
        queue.put_many(list("ab"))
        queue.receive()
    with Queue(AsyncQueue("jobs", url=url, codec="text")) as queue:
        again = queue.receive(timeout=60)
        assert (again.item, again.attempts) == ("a", 2)
        again.ack()
        queue.delete()


def test_a_notebook_opens_a_queue_in_one_cell_and_releases_it_in_another(url: str) -> None:
    queue = Queue[str](AsyncQueue("jobs", url=url, codec="text")).open()
    with pytest.raises(RuntimeError, match="'jobs' is open already"):
        queue.open()
    queue.create()
    queue.put("a")
    assert queue.receive().item == "a"
    queue.release()
    queue.release()
    with pytest.raises(RuntimeError, match="not open"):
        queue.qsize()
    with Queue[str](AsyncQueue("jobs", url=url, codec="text")) as other:
        delivery = other.receive(timeout=0)  # given back by release
        assert (delivery.item, delivery.redelivered) == ("a", True)
        delivery.ack()
        other.delete()


def test_a_program_that_forgets_to_release_a_queue_ends(url: str) -> None:
    program = f"""
from apressure import AsyncQueue
from apressure.sync import Queue
queue = Queue(AsyncQueue("jobs", url={url!r}, codec="text")).open()
queue.create()
queue.put("a")
"""
    ended = processes.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    with Queue[str](AsyncQueue("jobs", url=url, codec="text")) as queue:
        assert queue.qsize() == 1
        queue.delete()


def test_a_child_process_gets_an_error_instead_of_waiting_for_ever(url: str) -> None:
    code = (
        "import os, sys\nfrom apressure import AsyncQueue\nfrom apressure.sync import Queue\n"
        "with Queue(AsyncQueue('jobs', url=sys.argv[1])) as queue:\n"
        "    if os.fork() == 0:\n"
        "        try:\n            queue.qsize()\n"
        "        except RuntimeError as error:\n            print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    done = processes.run(
        [sys.executable, "-W", "ignore", "-c", code, url],
        capture_output=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert b"opened before a fork" in done.stdout


@pytest.mark.parametrize("operation", ["put", "receive", "next", "body"])
def test_ctrl_c_loses_nothing(operation: str, cli: Commands, db: redis.Redis) -> None:
    cli.create("jobs", bound=2)
    if operation == "put":
        cli.fill("jobs", b"a", b"b")
    if operation == "body":
        cli.fill("jobs", b"a", b"stop here", b"c")
    script = [sys.executable, os.fspath(SCRIPT), operation, cli.url]
    with running(script, env=cli.environment, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if operation == "body":
            assert (process.stdout.readline(), process.stdout.readline()) == (b"a\n", b"stop here\n")
        else:
            wait_until(lambda: db.info("clients")["blocked_clients"])
        process.send_signal(signal.SIGINT)
        expected = {"put": 2, "body": 2}.get(operation, 0)
        assert process.stdout.readline() == b"interrupted %d\n" % expected
        # The script goes on, and holds nothing: others get what is there and what comes.
        if operation in ("receive", "next"):
            cli.fill("jobs", b"new")
        items = {"put": [b"a", b"b"], "body": [b"stop here", b"c"]}.get(operation, [b"new"])
        assert cli.empty("jobs") == items
        feed(process, b"\n")
        assert ended(process)[0] == 0
    cli.delete("jobs")


class Interrupting:
    """A result that comes together with Ctrl-C."""

    def __init__(self, queue: AsyncQueue[str]) -> None:
        self._receive = queue.receive_many

    async def __call__(self, *arguments: Any) -> Any:
        received = await self._receive(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return received


def test_a_message_that_came_together_with_ctrl_c_goes_back_at_once(url: str) -> None:
    source = AsyncQueue("jobs", url=url, codec="text")
    receive, source.receive_many = source.receive_many, Interrupting(source)  # type: ignore[method-assign]
    with Queue(source) as queue:
        queue.create()
        queue.put("a")
        with pytest.raises(KeyboardInterrupt):
            queue.receive()
        source.receive_many = receive  # type: ignore[method-assign]
        again = queue.receive(timeout=0)
        assert (again.item, again.attempts) == ("a", 2)
        again.ack()
        queue.delete()
