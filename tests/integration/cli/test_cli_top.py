"""`apressure top`: the keys by Textual's pilot, once for scripts, and the whole command at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Client, EventQueue, FileQueue, QueueEmptyError, serve
from apressure.cli.top.app import Top
from apressure.cli.top.view import View
from apressure.core.workers import WorkerStatistics
from apressure.embedded import EmbeddedServer
from apressure.monitor.monitor import Monitor
from tests import processes
from tests.integration.cli.test_cli_terminal import OBEYED, Terminal
from tests.integration.commands import COMMAND, PATIENCE, Commands, ended, environment, running, wait_until

# Nothing of this depends on the server.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

HOSTILE = "[bold]orders[/bold]" + OBEYED.decode()


class Shown:
    """The app, as somebody sees it."""

    def __init__(self, app: Top, pilot: Any) -> None:
        self.app = app
        self._pilot = pilot

    @property
    def text(self) -> str:
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    def line(self, word: str) -> str:
        return next((line for line in self.text.splitlines() if word in line), "")

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def says(self, *words: str) -> None:
        """Wait until all these words are on the screen."""
        deadline = time.monotonic() + PATIENCE
        while not all(word in self.text for word in words):
            assert time.monotonic() < deadline, self.text
            await self._pilot.pause(0.02)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)


@contextlib.asynccontextmanager
async def showing(url: str, *queues: str, read_only: bool = False) -> AsyncIterator[Shown]:
    async with Monitor(*queues, url=url, interval=0.1) as monitor:
        app = Top(View(monitor), read_only=read_only)
        async with app.run_test(size=(150, 40), notifications=True) as pilot:
            yield Shown(app, pilot)


async def test_queues_of_every_kind_are_shown_with_what_needs_somebody_first(url: str, tmp_path: Path) -> None:
    async with (
        AsyncQueue("orders", url=url) as orders, EventQueue("clicks", url=url) as clicks,
        FileQueue(tmp_path / "mail") as mail,
    ):  # fmt: skip
        await orders.create(bound=4)
        await orders.put_many([b"x"] * 4)
        await clicks.create()
        await mail.create()
        async with showing(url, "*", f"files:{tmp_path}/*") as shown:
            await shown.says("orders", "events:clicks", "/mail", "3 queues", "1 needs somebody", "4 waiting")
            await shown.says("full for")
            assert "██████████" in shown.line("orders")
            assert shown.text.index("orders") < shown.text.index("events:clicks")
            await shown.press("n")
            await shown.says("by name")
            assert shown.text.index("orders") > shown.text.index("events:clicks")
            await shown.press("slash", "c", "l", "i", "enter")
            await shown.says("filter 'cli'")
            assert "orders" not in shown.text
            await shown.press("escape")
            await shown.says("orders")
        await orders.purge()
        await orders.delete()
        await clicks.delete()


async def test_a_key_pauses_and_resumes_after_a_confirmation(url: str) -> None:
    async with AsyncQueue("orders", url=url) as orders:
        await orders.create()
        async with showing(url) as shown:
            await shown.says("orders")
            await shown.press("p")
            await shown.says("Pause orders?")
            await shown.press("n", "p")
            await shown.says("Pause orders?")
            assert not await orders.paused()
            await shown.press("y")
            await shown.says("paused orders", "1 needs somebody")
            assert await orders.paused()
            await shown.press("p")
            await shown.says("Resume orders?")
            await shown.press("y")
            await shown.says("resumed orders")
            assert not await orders.paused()
        await orders.delete()


async def test_an_error_of_a_change_is_said(url: str) -> None:
    async with AsyncQueue("orders", url=url) as orders:
        await orders.create()
        async with showing(url, "orders") as shown:
            await shown.says("open")
            await shown.press("p")
            await shown.says("Pause orders?")
            await orders.delete()
            await shown.press("y")
            await shown.says("does not exist")


async def make_dead_letters(queue: Any, count: int) -> None:
    await queue.put_many([b"letter %d" % number for number in range(count)])
    for _ in range(count):
        await (await queue.receive()).nack(ValueError("no such product"))
    with pytest.raises(QueueEmptyError):  # the next one to receive buries what was delivered too often
        await queue.receive(timeout=0)


@pytest.mark.parametrize("kind", [AsyncQueue, EventQueue])
async def test_dead_letters_are_shown_and_requeued(url: str, kind: type[Any]) -> None:
    async with kind("orders", url=url, max_attempts=1) as orders:
        await orders.create()
        await make_dead_letters(orders, 3)
        async with showing(url) as shown:
            await shown.says("orders")
            await shown.press("d")
            await shown.says("Dead letters of ", "no such product", "letter 2")
            await shown.press("r")
            await shown.says("Move all 3 dead letters of")
            await shown.press("n")
            assert len(await orders.dead_letters()) == 3
            await shown.press("r")
            await shown.says("Move all 3 dead letters of")
            await shown.press("y")
            await shown.says("requeued 3 in")
            await shown.press("r")
            await shown.says("has no dead letters")
        assert await orders.qsize() == 3
        await orders.purge()
        await orders.delete()
    if kind is AsyncQueue:
        async with AsyncQueue("orders:dead", url=url) as dead:
            await dead.delete()


async def test_the_page_of_a_queue(url: str) -> None:
    async with AsyncQueue("orders", url=url) as orders:
        await orders.create(bound=10)
        await orders.put_many([b"x"] * 3)
        await orders.set_concurrency(7)
        async with showing(url) as shown:
            await shown.says("orders")
            await shown.press("enter")
            await shown.says(
                "Details of orders", "3 of 10", "7 in flight", "apressure requeue orders", "produced  3 items"
            )
            await orders.put(b"x")
            await shown.says("4 of 10")
            await shown.press("escape", "question_mark")
            await shown.says("Cons/workers", "requeue its dead letters")
        await orders.purge()
        await orders.delete()


async def test_read_only_offers_no_change(url: str) -> None:
    async with AsyncQueue("orders", url=url) as orders:
        await orders.create()
        async with showing(url, read_only=True) as shown:
            await shown.says("orders", "read only", "d Dead letters")
            assert "Pause" not in shown.text
            assert "Requeue" not in shown.text
            await shown.press("p", "r", "x", "enter")
            await shown.says("Details of orders", "apressure peek orders")
            assert "apressure pause" not in shown.text
            assert "Pause orders?" not in shown.text
        await orders.delete()


def worker(number: int, **more: Any) -> WorkerStatistics:
    told: dict[str, Any] = {
        "id": f"worker-{number}", "kind": "serve", "handler": "bill", "host": "web1" + OBEYED.decode(), "pid": 4711,
        "version": "1", "since": datetime.now(UTC), "seen": datetime.now(UTC), "concurrency": 8, "in_hand": 2,
        "oldest": 200.0, "handled": 1234, "failed": 5, "busy": 1.0, "draining": False, **more,
    }  # fmt: skip
    return WorkerStatistics(**told)


async def test_workers_are_shown_and_told_to_drain(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for what the registry says."""
    drained = []

    async def drain(_: object, name: str) -> None:
        drained.append(name)

    real = AsyncQueue.statistics

    async def statistics(self: Any, **options: Any) -> Any:
        return dataclasses.replace(await real(self, **options), workers=(worker(1), worker(2)))

    monkeypatch.setattr(AsyncQueue, "statistics", statistics)
    monkeypatch.setattr(AsyncQueue, "drain", drain, raising=False)
    async with AsyncQueue("orders", url=url) as orders:
        await orders.create()
        async with showing(url) as shown:
            await shown.says("orders", "0/2")
            await shown.press("w")
            await shown.says("Workers of orders", "worker-2", "bill", "2/8", "3 min 20 s", "1,234", "\\x1b]2;obeyed")
            await shown.press("down", "x")
            await shown.says("Drain the worker worker-2")
            await shown.press("y")
            await shown.says("asked the worker worker-2 to drain")
            assert drained == ["worker-2"]
        await orders.delete()


async def test_a_worker_is_asked_for_its_stack_and_shows_it(url: str) -> None:
    async def wait_for_the_bank(_: bytes) -> None:
        await asyncio.Event().wait()

    async with AsyncQueue[bytes]("orders", url=url) as orders:
        await orders.create()
        await orders.put(b"1")
        service = asyncio.ensure_future(serve(wait_for_the_bank, AsyncQueue("orders", url=url), signals=()))
        async with showing(url) as shown:
            await shown.says("orders", "1/1")
            await shown.press("w")
            await shown.says("Workers of orders", "wait_for_the_bank")
            await shown.press("k")
            await shown.says("Ask the worker")
            await shown.press("y")
            await shown.says("for its stack")
            await shown.says("test_cli_top.py:", "Event.wait")
        service.cancel()
        await asyncio.wait((service,))
        await orders.delete()


async def test_it_follows_the_size_of_the_terminal_and_the_cursor_its_queue(url: str) -> None:
    async with Client(url) as client:
        queues = [AsyncQueue(f"queue-{number:02}", client=client) for number in range(60)]
        for queue in queues:
            await queue.create()
        async with showing(url) as shown:
            await shown.says("60 queues", "queue-00")
            assert "queue-59" not in shown.text
            await shown.press("end")
            await shown.says("queue-59")
            await shown.press("p")
            await shown.says("Pause queue-59?")
            await shown.press("y")
            await shown.says("paused queue-59", "1 needs somebody")
            await shown.press("p")  # its line has moved to the top meanwhile
            await shown.says("Resume queue-59?")
            await shown.press("n")
            await shown.resize(50, 12)
            await shown.says("queue-59")
            assert "Taken/s" not in shown.text
            await shown.resize(5, 3)
            await shown.resize(200, 70)
            await shown.says("Taken/s", "queue-00", "queue-59")
        for queue in queues:
            await queue.delete()


@pytest.mark.slow
@pytest.mark.parametrize("own", ["valkey"], indirect=True)
async def test_a_server_that_is_away_is_said_and_comes_back(own: EmbeddedServer, server: object) -> None:
    own.start()
    async with AsyncQueue("orders", url=own.url) as orders:
        await orders.create()
    async with showing(own.url) as shown:
        await shown.says("orders", "open")
        own.stop()
        await shown.says("cannot reach the server")
        own.start()
        await shown.says("orders", "open", "1 queue ")


def test_once(cli: Commands) -> None:
    cli.create("orders", 10)
    cli.create(HOSTILE)
    cli.fill("orders", b"1", b"2")
    table = cli("top", "--once", "--interval", "0.1", "--sort", "length").stdout.decode().splitlines()
    assert table[0].split()[:2] == ["Queue", "Waiting"]
    assert table[1].split()[:2] == ["orders", "2"]
    assert "no consumer" in table[1]
    assert r"[bold]orders[/bold]\x1b]2;obeyed\x07" in table[2]
    (told,) = cli.json("top", "--once", "--interval", "0.1", "ord*")
    assert {name: told[name] for name in ("name", "kind", "length", "bound", "put_rate", "taken_rate")} == {
        "name": "orders", "kind": "AsyncQueue", "length": 2, "bound": 10, "put_rate": 0.0, "taken_rate": 0.0,
    }  # fmt: skip
    assert [state["name"] for state in told["states"]] == ["unconsumed"]
    assert told["oldest"] >= 0
    cli.empty("orders")
    for name in ("orders", HOSTILE):
        cli.delete(name)
    assert cli("top", "--once", "--interval", "0.1").stdout == b"no queues\n"
    assert cli.json("top", "--once", "--interval", "0.1") == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, b"a live view needs a terminal. Use --once"),
        (("--json",), 2, b"--json needs --once"),
        (("--once", "--sort", "size"), 2, b"'size' is none of state, age, rate, name, length"),
        (("--once", "okq://127.0.0.1:1/*"), 2, b"an okq server does not list its queues"),
        (("--once", "--interval", "0.1", "nowhere"), 3, b""),
        (("--once", "--interval", "0.1", "--url", "redis://127.0.0.1:1"), 7, b"cannot reach the server"),
        (("--once", "--interval", "0.1", "redis://127.0.0.1:1/0/orders"), 7, b"orders: cannot reach the server"),
    ],
)
def test_errors(cli: Commands, arguments: tuple[str, ...], code: int, said: bytes) -> None:
    done = cli("top", *arguments, code=code)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == bool(said)


@contextlib.contextmanager
def at_a_terminal(
    cli: Commands, *arguments: str, size: tuple[int, int] = (150, 30), **more: str
) -> Iterator[tuple[Terminal, int]]:
    """Run it at a terminal of its own; also returns where to type."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    before = termios.tcgetattr(theirs)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    command = [*COMMAND, "top", "--interval", "0.1", *arguments]
    with running(command, env={**cli.environment, **more}, **streams) as process:
        yield Terminal(process, ours), ours
        assert termios.tcgetattr(theirs) == before, "the terminal is not as it was"
    os.close(theirs)
    os.close(ours)


ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
"""Another screen than that of the shell, and the shell's again."""


def left(process: subprocess.Popen[bytes], shown: Terminal) -> int:
    """Wait for the end; returns the exit code."""

    def over() -> bool:
        shown.read()  # it may wait until this is read
        return process.poll() is not None

    wait_until(over)
    shown.read()
    assert shown.shown.rfind(LEFT) > shown.shown.rfind(ENTERED) >= 0
    assert shown.shown.rfind(b"\x1b[?25h") > shown.shown.rfind(b"\x1b[?25l"), "the cursor is hidden"
    assert b"Traceback" not in shown.shown
    return ended(process)[0]


def test_at_a_terminal_it_shows_a_full_queue_and_pauses_it(cli: Commands) -> None:
    cli.create("orders", 2)
    cli.create(HOSTILE)
    cli.fill("orders", b"1", b"2")
    with at_a_terminal(cli, size=(200, 30)) as (shown, keyboard):
        shown.says(b"orders", b"full for")
        shown.says(rb"[bold]orders[/bold]\x1b]2;obeyed")
        os.write(keyboard, b"p")
        shown.says(b"Pause orders?")
        os.write(keyboard, b"y")
        shown.says(b"paused orders")
        assert cli.stat("orders").paused
        os.write(keyboard, b"q")
        assert left(shown.process, shown) == 0
        assert OBEYED not in shown.shown
    cli.empty("orders")
    for name in ("orders", HOSTILE):
        cli.delete(name)


@pytest.mark.parametrize(("how", "code"), [(b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("asking", [False, True])
def test_the_terminal_is_restored(
    cli: Commands, queue: str, how: bytes | signal.Signals, code: int, asking: bool
) -> None:
    with at_a_terminal(cli, NO_COLOR="1") as (shown, keyboard):
        shown.says(queue.encode())
        if asking:
            os.write(keyboard, b"p")
            shown.says(b"Pause orders?")
        if isinstance(how, bytes):
            os.write(keyboard, how)
        else:
            shown.process.send_signal(how)
        assert left(shown.process, shown) == code


def test_a_terminal_that_cannot_move_its_cursor(cli: Commands) -> None:
    with at_a_terminal(cli, TERM="dumb") as (shown, _):
        shown.says(b"a live view needs a terminal that can move its cursor")
        assert ended(shown.process)[0] == 2
        assert b"\x1b[" not in shown.shown


@pytest.mark.slow
@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_a_server_that_is_started_again_at_a_terminal(own: EmbeddedServer, server: object) -> None:
    own.start()
    cli = Commands(own.url)
    cli.create("orders")
    with at_a_terminal(cli) as (shown, keyboard):
        shown.says(b"orders")
        own.stop()
        shown.says(b"cannot reach the server")
        shown.shown = b""
        own.start()
        shown.says(b"open")
        os.write(keyboard, b"q")
        wait_until(lambda: shown.read() or shown.process.poll() is not None)
        assert ended(shown.process)[0] == 0


def test_without_textual_the_extra_is_named(server: object) -> None:
    program = "import sys; sys.modules['textual'] = None; from apressure.cli.commands import top; top._app()"
    done = processes.run([COMMAND[0], "-c", program], env=environment(), capture_output=True, check=False)
    assert b"MissingExtraError: a live view needs the package textual. Run pip install 'apressure[top]'" in done.stderr


def test_other_commands_load_no_textual(cli: Commands) -> None:
    program = "import sys; from apressure.cli.app import run; run(['top', '--help']); print('textual' in sys.modules)"
    done = processes.run([COMMAND[0], "-c", program], env=cli.environment, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == b"False"


@pytest.mark.slow
@pytest.mark.parametrize("own", ["valkey"], indirect=True)
async def test_what_is_wrong_with_a_page_is_on_it(own: EmbeddedServer, server: object) -> None:
    own.start()
    async with AsyncQueue("orders", url=own.url) as orders:
        await orders.create()
    async with showing(own.url) as shown:
        await shown.says("orders", "open")
        own.stop()
        await shown.press("d")
        await shown.says("Dead letters of orders", "cannot reach the server")
        await asyncio.to_thread(own.start)
        await shown.says("has no dead letters")
