"""`apressure.sync`: queues without asyncio, on every kind, and what Ctrl-C leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from anyio.from_thread import start_blocking_portal

from apressure import AsyncQueue, EventQueue, FileQueue, QueueEmptyError, QueueFullError, TaskQueue
from apressure.sync import BlockingEventQueue, Queue
from tests import processes
from tests.integration.commands import Commands, ended, environment, feed, running, wait_until
from tests.integration.events.remote.conftest import serving

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # the other tests use each server

SCRIPT = Path(__file__).parent / "interrupted.py"
SIGNALLED = Path(__file__).parent / "signalled.py"


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


@pytest.mark.leaves_keys
def test_every_kind_of_queue_has_its_own_words_without_asyncio(make: Callable[[], Any]) -> None:
    with Queue(make()) as queue:
        queue.create(bound=10)
        assert queue.opened
        assert queue.bound() == 10
        with queue.producer(close=False) as producer:
            producer.put("a")
            assert producer.put_many(iter("bc")) == 2
        assert not queue.closed()
        assert (queue.peek(), queue.peek_newest(), queue.statistics().length) == ("a", "c", 3)
        assert queue.pause()
        assert queue.resume()
        assert (queue.requeue(), queue.dead_letters()) == (0, [])
        delivery = queue.receive(timeout=0)
        delivery.note_error("first")
        with pytest.raises(TypeError, match="must be an exception or a text"):
            delivery.nack(1)
        delivery.nack(LookupError("second"))
        with queue.consumer("manual", prefetch=1) as deliveries:
            first = next(deliveries)
            assert (first.item, first.attempts) == ("a", 2)
            first.extend(10.0)
            first.ack()
        if hasattr(make(), "get"):
            assert (queue.get(), queue.get_many(5)) == ("b", ["c"])
            queue.put_nowait("d")
            queue.close()
            assert list(queue) == ["d"]
        else:
            assert not hasattr(queue, "get")
            assert queue.purge() == 2
            queue.close()
        queue.wait_closed(timeout=60)
        queue.delete()


@pytest.mark.leaves_keys
def test_tasks_files_and_several_queues_of_events(url: str, tmp_path: Path) -> None:
    with Queue(TaskQueue("jobs", url=url, codec="text")) as work:
        first, second = work.enqueue("a"), work.schedule("b", 4e9)
        assert [(task.id, task.status) for task in work.tasks()] == [(first, "pending"), (second, "scheduled")]
        task = work.receive()
        task.start()
        task.progress(0.5, "half")
        task.complete("done")
        assert next(work.tasks("complete")).result == "done"
        assert work.cancel(second)
        with work.consumer("manual") as tasks:
            work.put("c")
            assert next(tasks).task.parameters == "c"
        work.purge()
    with Queue(FileQueue(tmp_path / "jobs", codec="text", max_attempts=3)) as files:
        name = files.put("a")
        assert (files.put_count, files.dead_letter_queue) == (1, "jobs.dead")
        assert files.receive().expires > datetime.now(UTC)
        assert files.give_back_in_flight() == 1
        assert files.receive().put_at.year > 2000
        assert files.ack(name)
    with Queue(EventQueue("one", url=url, codec="text")) as one, Queue(EventQueue("two", url=url)) as two:
        one.put("a", id="first")
        two.put(b"b")
        with BlockingEventQueue.consume("one", "two", url=url) as events:
            seen = set()
            for event in events:
                seen.add((events.name, event.raw))
                event.ack()
                if len(seen) == 2:
                    break
        assert seen == {("one", b"a"), ("two", b"b")}
        for queue in (one, two):
            assert queue.qsize() == 0


def test_a_thread_that_cannot_have_an_event_loop_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", full)
    with pytest.raises(OSError, match="Too many open files"):
        Queue(AsyncQueue("jobs", url=url)).open()


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
from apressure.sync import BlockingEventQueue, Queue
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
        "        for call in queue.qsize, queue.release:\n"
        "            try:\n                call()\n"
        "            except RuntimeError as error:\n                print(error, flush=True)\n"
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
    assert done.stdout.count(b"opened before a fork") == 2


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


def on_okq(stack: contextlib.ExitStack, url: str) -> str:
    """Run an okq server of ours, and return its address."""
    portal = stack.enter_context(start_blocking_portal())
    return stack.enter_context(portal.wrap_async_context_manager(serving(url)))


OPERATIONS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("get", lambda queue: queue.get()),
    ("get_nowait", lambda queue: queue.get_nowait()),
    ("get_many", lambda queue: queue.get_many(2)),
    ("get", next),
    ("receive", lambda queue: queue.receive()),
    ("receive_many", lambda queue: queue.receive_many(2)),
)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["server", "plain", "events", "okq", "files", "tasks"])
def test_a_result_that_came_together_with_ctrl_c_goes_back_at_once(kind: str, url: str, tmp_path: Path) -> None:
    """Ctrl-C comes when the operation ends on the loop's thread, and before the main thread has the result."""
    with contextlib.ExitStack() as stack:
        if kind == "okq":
            okq = on_okq(stack, url)
        kinds: dict[str, Callable[[], Any]] = {
            "server": lambda: AsyncQueue("jobs", url=url, codec="text"),
            "plain": lambda: AsyncQueue("jobs", url=url, codec="text", scripting=False),
            "events": lambda: EventQueue("jobs", url=url, codec="text"),
            "okq": lambda: EventQueue("jobs", url=okq, codec="text"),
            "files": lambda: FileQueue(tmp_path / "jobs", codec="text"),
            "tasks": lambda: TaskQueue("jobs", url=url, codec="text"),
        }
        source = kinds[kind]()
        queue = stack.enter_context(Queue[str](source))
        if hasattr(source, "create"):
            queue.create()
        queue.put_many(list("abc"))
        for name, operation in OPERATIONS:
            if not hasattr(source, name) or (kind == "plain" and "receive" in name):
                continue
            method = getattr(source, name)

            async def interrupted(*arguments: Any, method: Any = method, **options: Any) -> Any:
                result = await method(*arguments, **options)
                os.kill(os.getpid(), signal.SIGINT)
                return result

            setattr(source, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                operation(queue)
            setattr(source, name, method)
            assert queue.qsize() == 3, (name, "the result has no owner")
            assert queue.peek() == "a"
        if kind != "plain":
            with queue.consumer(prefetch=1) as items:
                assert [next(items) for _ in range(3)] == list("abc")


@pytest.mark.slow
@pytest.mark.leaves_keys
@pytest.mark.parametrize("how", ["once", "again"])
@pytest.mark.parametrize("kind", ["server", "plain", "events", "okq"])
def test_get_loses_nothing_however_often_and_whenever_ctrl_c_comes(kind: str, how: str, url: str) -> None:
    """Signals come at random times, until the program has got everything: also while `get` returns."""
    count, random = 1000, Random(f"{kind} {how}")
    expected = [str(number) for number in range(count)]
    with contextlib.ExitStack() as stack:
        address = on_okq(stack, url) if kind == "okq" else url
        source: Any = (EventQueue if kind in ("events", "okq") else AsyncQueue)("jobs", url=address, codec="text")
        queue = stack.enter_context(Queue[str](source))
        if kind != "okq":
            queue.create()
        queue.put_many(expected[:-1])
        script = [sys.executable, os.fspath(SIGNALLED), "events" if kind == "okq" else kind, address, str(count), how]
        process = stack.enter_context(running(script, env=environment(), stdin=subprocess.PIPE))
        output = process.stdout
        assert output is not None
        assert output.readline() == b"ready\n"
        told: list[bytes] = []
        answer = threading.Thread(target=lambda: told.append(output.readline()))
        answer.start()
        for sent in range(10_000):  # if an item is lost, the program waits for it, and must not be interrupted for ever
            if sent == 20:  # a busy machine may run the program to its end before the first signal
                queue.put(expected[-1])
            process.send_signal(signal.SIGINT)
            answer.join(random.uniform(0, 0.005))
            if not answer.is_alive():
                break
        answer.join()
        feed(process, b"\n")
        assert ended(process)[0] == 0
        done = json.loads(told[0])
        assert sorted(done["items"], key=int) == expected
        if how == "once":  # otherwise an item may go back after the next one was got
            assert done["items"] == expected
        assert done["interrupted"] > 0
        assert queue.qsize() == 0
