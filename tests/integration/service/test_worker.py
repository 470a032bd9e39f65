"""`Worker` and `apressure worker`: handlers of several queues, in processes that die, end and start again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from apressure import (
    AsyncQueue,
    Backoff,
    EventQueue,
    FileQueue,
    QueueDoesNotExistError,
    TaskQueue,
    Worker,
    open_queue,
    sync,
)
from tests import processes
from tests.integration.commands import COMMAND, PATIENCE, Commands, environment, running
from tests.processes import free_port

pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]

APP = """
import asyncio, os, time
from pathlib import Path
from apressure import Worker

DONE = Path(os.environ["DONE"])


def note(item):
    text = item.decode() if isinstance(item, bytes) else str(item)
    with DONE.open("a") as file:
        file.write(f"{os.getpid()} {text}\\n")


async def bill(order):
    await asyncio.sleep(0.01)
    note(order)


def plain(order):
    time.sleep(0.01)
    note(order)


def yields(order):
    yield note(order)


async def later(order):
    yield note(order)


def returns(order):
    return yields(order)


async def slow(order):
    note(f"began {order.decode()}")
    try:
        await asyncio.sleep(3 if order == b"short" else 3600)
    except asyncio.CancelledError:
        note(f"cancelled {order.decode()}")
        raise
    note(order)


worker = Worker()


@worker.on_startup
async def begin():
    note("startup")


@worker.on_shutdown
def end():
    note("shutdown")


@worker.handle("orders", concurrency=4)
async def order(item):
    note(item)


@worker.handle("events:clicks", codec="json")
def click(item):
    note(item)
"""


class App:
    """A module in a directory of its own, run by `apressure worker`."""

    def __init__(self, place: Path, url: str) -> None:
        self.place = place
        self.url = url
        self.done = place / "done"
        (place / "app.py").write_text(APP)

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, "worker", *arguments, "--app-dir", str(self.place)]

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.url, DONE=str(self.done))

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = processes.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done
        return done

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with running(self.command(*arguments), env=self.environment, stderr=subprocess.STDOUT) as process:
            yield process

    def notes(self) -> list[str]:
        """What the handlers have noted, without the processes."""
        return [line.partition(" ")[2] for line in self._lines()]

    def pids(self) -> set[int]:
        return {int(line.partition(" ")[0]) for line in self._lines()}

    def _lines(self) -> list[str]:
        return self.done.read_text().splitlines() if self.done.exists() else []

    def wait(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.notes()
            time.sleep(0.02)


@pytest.fixture
def app(tmp_path: Path, url: str) -> App:
    return App(tmp_path, url)


@pytest.fixture
def orders(url: str) -> Iterator[sync.Queue[Any]]:
    with sync.Queue(AsyncQueue("orders", url=url)) as queue:
        queue.create()
        yield queue


ORDERS = [f"order {number}" for number in range(40)]


def filled(queue: sync.Queue[Any], close: bool = True) -> None:
    queue.put_many([order.encode() for order in ORDERS])
    if close:
        queue.close()


@pytest.mark.parametrize("function", ["bill", "plain"])
def test_a_function_handles_a_queue_until_it_is_drained(app: App, orders: sync.Queue[Any], function: str) -> None:
    filled(orders)
    done = app.run(f"app:{function}", "orders", "--concurrency", "8")
    assert sorted(app.notes()) == sorted(ORDERS)
    assert done.stdout == "orders: 40 handled, 0 failed\n"
    assert done.stderr == ""


def test_a_function_handles_queues_of_every_kind(app: App, url: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    queues: list[Any] = [
        AsyncQueue("orders", url=url), EventQueue("orders", url=url), TaskQueue("orders", url=url), FileQueue(spool),
    ]  # fmt: skip
    for number, one in enumerate(queues):
        with sync.Queue(one) as queue:
            queue.create()
            queue.put(str(number) if isinstance(one, TaskQueue) else str(number).encode())
            queue.close()
    addresses = ("orders", "events:orders", "tasks:orders", f"files:{spool}")
    done = app.run("app:bill", *addresses, "--json")
    assert sorted(app.notes()) == ["0", "1", "2", "3"]
    assert json.loads(done.stdout) == {"handlers": [{"queues": list(addresses), "handled": 4, "failed": 0}]}


def test_a_worker_object_has_several_handlers_and_hooks(app: App, orders: sync.Queue[Any], url: str) -> None:
    filled(orders)
    with sync.Queue(EventQueue("clicks", url=url, codec="json")) as clicks:
        clicks.create()
        clicks.put({"page": 7})
        clicks.close()
    done = app.run("app:worker")
    notes = app.notes()
    assert (notes[0], notes[-1]) == ("startup", "shutdown")
    assert sorted(notes[1:-1]) == sorted([*ORDERS, "{'page': 7}"])
    assert done.stdout == "orders, events:clicks: 41 handled, 0 failed\n"


def test_a_pause_and_what_comes_again_after_a_kill_are_told(app: App, orders: sync.Queue[Any]) -> None:
    orders.put(b"long")
    with app.started("app:slow", "orders") as victim:
        app.wait(app.notes)
        victim.kill()
    orders.pause()
    with app.started("app:slow", "orders") as process:
        assert process.stdout is not None
        assert (
            b"the queue is paused, until resume() (on the command line `apressure resume`)" in process.stdout.readline()
        )
        orders.resume()
        assert b" of the queue 'orders' is delivered again: attempt 2\n" in process.stdout.readline()


def test_a_traceback_begins_with_the_handler(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text("def fail(order):\n    raise ValueError(order)\n")
    orders.put(b"bad")
    orders.close()
    failed = app.run("app:fail", "orders", "--max-attempts", "1").stderr
    places = [line for line in failed.splitlines() if line.startswith("  File ")]
    assert places == [f'  File "{app.place / "app.py"}", line 2, in fail']


def test_processes_share_the_queue_and_one_that_is_killed_is_replaced(app: App, orders: sync.Queue[Any]) -> None:
    with app.started("app:bill", "orders", "--processes", "2") as parent:
        orders.put_many([b"first"] * 200)
        app.wait(lambda: len(app.pids()) == 2)
        victim = min(app.pids())
        os.kill(victim, signal.SIGKILL)
        app.wait(lambda: len(app.notes()) >= 200)
        # What the victim had in hand comes again; the one that replaces it works, too.
        app.wait(lambda: orders.put(b"more") is None and len(app.pids()) == 3)
        parent.send_signal(signal.SIGTERM)
        output, _ = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 0, output
    assert b"of the worker ended with SIGKILL: it starts again in" in output
    assert not any(psutil.pid_exists(pid) for pid in app.pids())


def test_a_process_that_somebody_else_ends_is_replaced(app: App, orders: sync.Queue[Any]) -> None:
    with app.started("app:bill", "orders", "--processes", "2") as parent:
        orders.put_many([b"first"] * 200)
        app.wait(lambda: len(app.pids()) == 2)
        os.kill(min(app.pids()), signal.SIGTERM)
        app.wait(lambda: orders.put(b"more") is None and len(app.pids()) == 3)
        parent.send_signal(signal.SIGTERM)
        output, _ = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 0, output


def test_the_first_signal_drains_and_the_second_cancels(app: App, orders: sync.Queue[Any]) -> None:
    orders.put_many([b"short", b"long"])
    with app.started("app:slow", "orders", "--concurrency", "2", "--processes", "1", "--reload") as parent:
        app.wait(lambda: len(app.notes()) == 2)
        parent.send_signal(signal.SIGINT)
        app.wait(lambda: "short" in app.notes())
        assert "cancelled long" not in app.notes()
        parent.send_signal(signal.SIGINT)
        output, _ = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 0, output
    assert "cancelled long" in app.notes()
    assert orders.get_many(5, timeout=0) == [b"long"]


def test_the_processes_end_in_order_when_their_parent_is_killed(app: App, orders: sync.Queue[Any]) -> None:
    with app.started("app:slow", "orders", "--processes", "2") as parent:
        orders.put(b"short")
        app.wait(app.notes)
        children = psutil.Process(parent.pid).children()
        assert len(children) == 2
        parent.kill()
        parent.wait()
        psutil.wait_procs(children, timeout=PATIENCE)
    assert app.notes() == ["began short", "short"], "its handler could finish"
    assert orders.qsize() == 0
    assert not any(child.is_running() for child in children)


def test_it_starts_again_when_a_file_changes(app: App, orders: sync.Queue[Any]) -> None:
    pytest.importorskip("watchfiles", reason="watchfiles")
    with app.started("app:bill", "orders", "--reload") as parent:
        orders.put(b"old")
        app.wait(lambda: app.notes() == ["old"])
        source = app.place / "app.py"
        source.write_text("def")  # a person saves half of a line
        app.wait(lambda: not psutil.Process(parent.pid).children())
        source.write_text(APP.replace("    note(order)\n", '    note(b"new " + order)\n', 1))
        orders.put(b"item")
        app.wait(lambda: "new item" in app.notes())
        orders.close()
        assert parent.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda signum: signum.name)
@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["alone", "processes"])
def test_a_signal_while_the_module_is_imported_ends_it(
    app: App, orders: sync.Queue[Any], arguments: tuple[str, ...], signum: signal.Signals
) -> None:
    (app.place / "app.py").write_text(APP + "note('importing')\ntime.sleep(30)\n")
    orders.put(b"one")
    with app.started("app:bill", "orders", *arguments) as process:
        app.wait(lambda: len(app.notes()) == (2 if arguments else 1))
        process.send_signal(signum)
        process.communicate(timeout=PATIENCE)
    assert "one" not in app.notes()
    assert orders.qsize() == 1


def test_metrics_are_served_while_it_runs(app: App, orders: sync.Queue[Any]) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client")
    port = free_port()
    with app.started("app:bill", "orders", "--metrics-port", str(port)) as process:
        orders.put(b"one")
        app.wait(app.notes)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        assert 'handler="bill"' in httpx.get(f"http://127.0.0.1:{port}/metrics").text
        orders.close()
        assert process.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("app", "orders"), "'app' names no handler. Write MODULE:FUNCTION"),
        (("nothing:bill", "orders"), "there is no module 'nothing'"),
        (("app:nothing", "orders"), "the module 'app' has no 'nothing'"),
        (("app:bill",), "which queues does app:bill handle?"),
        (("app:bill", "event://orders"), "an address cannot begin with event://"),
        (("app:bill", "orders", "orders"), "orders is given twice"),
        (("app:DONE", "orders"), "the handler must be a function"),
        (("app:note", "orders", "--timeout", "5"), "--timeout is for async handlers"),
        (("app:worker", "orders", "--concurrency", "2"), "leave out QUEUE, --concurrency"),
        (("app:worker", "--retry-factor", "3", "--create"), "says that itself: leave out --retry-factor, --create"),
        (("app:bill", "orders", "--retry-factor", "inf"), "--retry-factor must be at least 1, not inf"),
        (
            ("app:bill", "orders", "--bound", "5"),
            "--bound is the bound of the queue that --create creates: add --create",
        ),
        (("app:bill", "orders", "--weights", "1"), "and there is one: leave out --weights"),
        (("app:bill", "orders", "--retry-delay", "5", "--retry-most", "1"), "must not be below --retry-delay"),
        (("app:bill", "orders", "--processes", "2", "--metrics-port", "65535"), "must leave room for 2 processes"),
        (("app:bill", "orders", "--codec", "yaml"), "yaml"),
        (("app:bill", "orders", "events:orders", "--weights", "2"), "one number for each of the 2 queues, not 1"),
        (("./app:bill", "orders"), "MODULE as in an import, not as a path"),
        (("app:yields", "orders"), "the handler yields is a generator, whose code would not run"),
        (("app:later", "orders"), "the handler later is a generator, whose code would not run"),
        (("app:bill", "orders", "events:orders", "--weights", "2,x"), "is not a list of numbers such as 6,3,1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_received(
    app: App, cli: Commands, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    cli.create("orders")
    cli.fill("orders", b"one")
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command, which runs in this process, adds the module's place
    done = cli("worker", *arguments, "--app-dir", str(app.place), code=2, env={"DONE": str(app.done)})
    sys.modules.pop("app", None)
    assert said in done.stderr.decode()
    assert cli.stat("orders").length == 1


def test_options_reach_the_handler(app: App, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    async def run(self: Worker, **_: object) -> dict[str, Any]:
        given.extend(one.serving for one in self.handlers)
        return {}

    monkeypatch.setattr(Worker, "run", run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = ("--retry-delay", "5", "--retry-factor", "1", "--ageing", "0.5", "--rate", "7")
    cli("worker", "app:bill", "orders", "events:orders", *options, "--app-dir", str(app.place),
        env={"DONE": str(app.done)})  # fmt: skip
    sys.modules.pop("app", None)
    assert given == [{"retry": Backoff(5.0, factor=1.0), "ageing": 0.5, "rate": 7.0}]


def test_a_module_that_fails_shows_where(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text("import apressure\nraise RuntimeError('no database')\n")
    said = app.run("app:bill", "orders", "--processes", "2", code=2).stderr
    assert 'app.py", line 2' in said
    assert "app:bill cannot be imported: RuntimeError('no database')" in said


def test_a_handler_that_returns_a_generator_fails(app: App, orders: sync.Queue[Any]) -> None:
    orders.put(b"one")
    orders.close()
    said = app.run("app:returns", "orders", "--max-attempts", "1").stderr
    assert "the handler returns is a generator, whose code would not run" in said
    assert app.notes() == []


EXITS = """
import os, sys
from apressure import Worker

worker = Worker()


@worker.handle("orders")
async def bill(order):
    with open(os.environ["DONE"], "a") as file:
        file.write(f"{os.getpid()} {order.decode()}\\n")
    sys.exit(0)
"""


def test_a_handler_that_exits_has_not_drained(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text(EXITS)
    orders.put_many([b"one", b"two"])
    said = app.run("app:worker", code=1).stderr
    assert 'app.py", line 12' in said
    assert "code of app:worker has raised SystemExit(0)" in said
    with app.started("app:worker", "--processes", "2"):
        app.wait(lambda: len(app.pids()) >= 4)  # they are started again
    assert orders.qsize() >= 1


def test_a_process_that_ends_with_0_by_itself_is_replaced(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text(EXITS.replace("sys.exit(0)", "os._exit(0)"))
    with app.started("app:worker", "--processes", "2") as parent:
        more = lambda: orders.put(b"more") is None and len(app.pids()) >= 4  # noqa: E731
        app.wait(lambda: parent.poll() is not None or more())
        assert parent.poll() is None
        parent.send_signal(signal.SIGTERM)
        output, _ = parent.communicate(timeout=PATIENCE)
    assert b"of the worker ended with exit code 0, and has not drained: it starts again in" in output


@pytest.mark.parametrize("processes_given", [(), ("--processes", "2")])
def test_a_module_that_exits_has_not_drained(
    app: App, orders: sync.Queue[Any], processes_given: tuple[str, ...]
) -> None:
    (app.place / "app.py").write_text("import sys\nsys.exit(0)\n")
    said = app.run("app:bill", "orders", *processes_given, code=2).stderr
    assert "app:bill cannot be imported: SystemExit(0)" in said


def test_an_error_of_a_hook_is_shown_where_it_was_raised(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text(
        EXITS
        + """

@worker.on_startup
def connect():
    int("x")
"""
    )
    said = app.run("app:worker", code=1).stderr
    assert "in connect" in said
    assert "raised by a function for startup or shutdown: connect" in said.splitlines()[-1]


def test_a_directory_that_does_not_exist(app: App) -> None:
    done = processes.run(
        [*COMMAND, "worker", "app:bill", "orders", "--reload", "--app-dir", str(app.place / "nothing")],
        env=app.environment, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no directory" in done.stderr


def test_a_queue_that_does_not_exist(app: App) -> None:
    assert "'orders' does not exist" in app.run("app:bill", "orders", code=3).stderr


class TestInAProgram:
    async def test_a_failure_ends_the_others_in_order(self, url: str) -> None:
        worker, told = Worker(url=url), []

        @worker.handle("events:orders", create=True)
        async def handle(item: bytes) -> None:
            await asyncio.sleep(0.05)
            told.append(item)

        @worker.handle("missing")
        async def never(item: bytes) -> None: ...

        @worker.on_shutdown
        async def end() -> None:
            told.append("end")

        async with EventQueue("orders", url=url) as queue:
            await queue.put(b"one")
            with pytest.raises(QueueDoesNotExistError, match="missing"):
                await worker.run(signals=())
            assert told in (["end"], [b"one", "end"])
            assert await queue.qsize() == (told == ["end"])

    async def test_a_test_names_its_server(self, url: str) -> None:
        worker, told = Worker(url="redis://127.0.0.1:1/0"), []
        worker.every("events:orders", "daily", 86400, b"report")

        @worker.handle("events:orders")
        async def handle(item: bytes) -> None:
            told.append(item)

        async with EventQueue("orders", url=url) as queue:
            await queue.put(b"one")
            await queue.close()
            assert (await worker.run(url=url, signals=()))["events:orders"].handled == 1
            assert told == [b"one"]
            assert [schedule.name for schedule in await queue.schedules()] == ["daily"]

    async def test_stop_and_cancellation(self, url: str) -> None:
        worker, began, told = Worker(url=url), asyncio.Event(), []

        @worker.handle(AsyncQueue("orders", url=url), create=True)
        async def handle(item: bytes) -> None:
            began.set()
            await asyncio.sleep(0 if item == b"quick" else 3600)

        worker.on_shutdown(lambda: told.append("end"))
        async with AsyncQueue("orders", url=url) as queue:
            await queue.create()
            await queue.put(b"quick")
            stop = asyncio.Event()
            running_worker = asyncio.ensure_future(worker.run(signals=(), stop=stop))
            await began.wait()
            stop.set()
            assert (await running_worker)["orders"].handled == 1
            assert told == ["end"]
            began.clear()
            await queue.put(b"for ever")
            worker.handlers[0] = type(worker.handlers[0])(handle, ["orders"], {})
            running_worker = asyncio.ensure_future(worker.run(signals=()))
            await began.wait()
            running_worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running_worker
            assert told == ["end", "end"]
            assert await queue.get(timeout=0) == b"for ever"

    @pytest.mark.parametrize("moment", ["startup", "shutdown"])
    async def test_a_signal_beside_the_handlers_lets_the_functions_finish(self, url: str, moment: str) -> None:
        worker, told = Worker(url=url), []

        @worker.handle("orders", create=True)
        async def handle(item: bytes) -> None: ...

        async def interrupted(now: str) -> None:
            if now == moment:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
            told.append(now)

        worker.on_startup(lambda: interrupted("startup"))
        worker.on_shutdown(lambda: interrupted("shutdown"))
        async with AsyncQueue("orders", url=url) as queue:
            await queue.create()
            await queue.put(b"one")
            if moment == "shutdown":
                await queue.close()
            earlier = signal.signal(signal.SIGTERM, lambda *_: told.append("lost"))
            try:
                done = await worker.run(signals=(signal.SIGTERM,))
            finally:
                signal.signal(signal.SIGTERM, earlier)
            assert told == ["startup", "shutdown"]
            assert done["orders"].handled == (moment == "shutdown")

    async def test_a_startup_that_fails_receives_nothing(self, url: str) -> None:
        worker, told = Worker(url=url), []

        @worker.handle("orders", create=True)
        async def handle(item: bytes) -> None: ...

        @worker.on_startup
        def fail() -> None:
            raise RuntimeError("no database")

        worker.on_shutdown(lambda: told.append("end"))
        async with AsyncQueue("orders", url=url) as queue:
            await queue.create()
            await queue.put(b"one")
            with pytest.raises(RuntimeError, match="no database"):
                await worker.run(signals=())
            assert (told, await queue.qsize()) == (["end"], 1)

    @pytest.mark.parametrize("create", [True, False])
    @pytest.mark.parametrize("address", ["orders", "events:orders", "tasks:orders", "files:spool/orders"])
    async def test_it_declares_schedules(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, create: bool
    ) -> None:
        """In any number of processes: each occasion is put once. The handler's codec encodes the item."""
        monkeypatch.chdir(tmp_path)
        codec = None if "tasks" in address else "json"
        stop, told = asyncio.Event(), []

        async def handle(item: Any) -> None:
            told.append(item)
            stop.set()

        def made() -> Worker:
            worker = Worker(url=url)
            worker.every(address, "often", 1, "report")
            worker.every(address, "nightly", "30 2 * * *", "report", timezone="Europe/Berlin")
            worker.handle(["files:others", address], create=create, codec=codec)(handle)
            return worker

        async with open_queue(address, url=None if "files" in address else url) as queue:
            if not create:
                await queue.create()
                Path("others").mkdir()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(made().run(signals=(), stop=stop) for _ in range(2)))
            schedules = {schedule.name: schedule for schedule in await queue.schedules()}
            assert schedules.keys() == {"often", "nightly"}
            assert len(told) + await queue.qsize() == schedules["often"].count
            assert {*told} == {"report"}

    async def test_a_schedule_of_a_queue_without_a_handler_is_refused(self, url: str) -> None:
        worker = Worker(url=url)
        worker.handle("orders", create=True)(print)
        worker.every("others", "often", 1, "report")
        with pytest.raises(ValueError, match="'often' is of the queue 'others', which has no handler"):
            await worker.run(signals=())

    async def test_a_plain_function_that_returns_a_coroutine_acknowledges_nothing(self, url: str) -> None:
        worker, told = Worker(url=url), []

        async def work(item: bytes) -> None: ...

        def note(delivery: Any, error: BaseException) -> None:
            told.append(str(error))
            worker_stop.set()

        worker_stop = asyncio.Event()
        worker.handle("orders", on_error=note, retry=Backoff(0))(lambda item: work(item))  # noqa: PLW0108
        async with AsyncQueue("orders", url=url) as queue:
            await queue.create()
            await queue.put(b"one")
            await worker.run(signals=(), stop=worker_stop)
            assert "declare it `async def`" in told[0]
            assert await queue.get(timeout=0) == b"one"


def test_a_failure_is_printed_with_its_traceback(app: App, orders: sync.Queue[Any]) -> None:
    (app.place / "app.py").write_text(APP + "def fails(item):\n    raise LookupError('no such customer')\n")
    orders.put(b"one")
    orders.close()
    arguments = ("--max-attempts", "2", "--retry-delay", "0.01", "--retry-most", "0.01")
    with app.started("app:fails", "orders", *arguments) as process:
        printed = process.communicate(timeout=PATIENCE)[0]
    assert printed.count(b"LookupError: no such customer") == 2
    assert b"in fails\n" in printed
    assert b"it goes to the dead letters" in printed
