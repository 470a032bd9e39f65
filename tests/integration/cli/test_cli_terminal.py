"""Commands write nothing to a terminal that it would obey, whatever items and names contain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from apressure import AsyncQueue
from tests.integration.commands import COMMAND, Commands, running, wait_until
from tests.integration.files.test_cli import Files

# Nothing of this depends on the server.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

OBEYED = b"\x1b]2;obeyed\x07"
"""It sets the title of a terminal. Rich never writes it."""

ITEM = b"a\x1b[31mred\r\tb\x9b\xc2\x9bc\x7f \xe2\x80\xae \xc3\xa4 \\n [bold]x[/bold]" + OBEYED
SHOWN = (
    b"a\\x1b[31mred\\r\tb\\x9b\\x9bc\\x7f \\u202e \xc3\xa4 \\n [bold]x[/bold]" + rb"\x1b]2;obeyed\x07"
)  # fmt: skip


class Terminal:
    """A terminal that a command writes to."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self.shown = b""
        self._ours = ours

    def read(self) -> bool:
        """Read what is there; True at the end."""
        try:
            while select.select([self._ours], [], [], 0)[0]:
                self.shown += os.read(self._ours, 65536)
        except OSError:  # Linux says so at a terminal's end
            return True
        return False

    def says(self, *words: bytes) -> None:
        """Wait until these words are there, one behind the other."""

        def found() -> bool:
            self.read()
            begin = 0
            for word in words:
                begin = self.shown.find(word, begin) + 1
                if not begin:
                    return False
            return True

        wait_until(found)

    def end(self) -> bytes:
        wait_until(self.read)
        self.process.wait()
        return self.shown


@contextlib.contextmanager
def terminal(cli: Commands, *arguments: str, streams: tuple[str, ...] = ("stdout", "stderr")) -> Iterator[Terminal]:
    """Run a command at a terminal. (It is wide, since tables break lines.)"""
    ours, theirs = pty.openpty()
    env = {**cli.environment, "COLUMNS": "300"}
    with running([*COMMAND, *arguments], env=env, **dict.fromkeys(streams, theirs)) as process:
        os.close(theirs)
        yield Terminal(process, ours)
    os.close(ours)


def at_a_terminal(cli: Commands, *arguments: str) -> bytes:
    """What a command writes to a terminal, where the line ends that the terminal makes are those of the command."""
    with terminal(cli, *arguments) as shown:
        return shown.end().replace(b"\r\n", b"\n")


@pytest.fixture
def queue(cli: Commands) -> Iterator[str]:
    cli.create("orders")
    yield "orders"
    cli.delete("orders")


@pytest.mark.parametrize(
    ("options", "begin", "end"),
    [
        (("--at-least-once",), b"", b"\n"),
        (("--at-most-once",), b"", b"\n"),
        (("--null",), b"", b"\x00"),
        (("--length-prefixed",), rb"\x00\x00\x00\x1b", b""),  # the length must not complete an escape sequence
    ],
)
def test_a_terminal_gets_items_with_control_characters_made_visible(
    cli: Commands, queue: str, options: tuple[str, ...], begin: bytes, end: bytes
) -> None:
    item, shown = (b"[1m]".ljust(0x1B),) * 2 if begin else (ITEM, SHOWN)
    cli.fill(queue, item)
    assert at_a_terminal(cli, "get", queue, "--no-follow", *options) == begin + shown + end


def test_a_pipe_gets_items_as_they_are(cli: Commands, queue: str) -> None:
    cli.fill(queue, ITEM)
    assert cli("get", queue, "--no-follow").stdout == ITEM + b"\n"


def test_items_of_a_directory_are_made_visible(tmp_path: Path, server: object) -> None:
    files = Files(tmp_path)
    files.run("pump", "orders", input=ITEM)
    assert at_a_terminal(files, *files.of("sink", "orders", "--no-follow")) == SHOWN + b"\n"


@pytest.mark.parametrize(
    ("arguments", "holder"),
    [
        (("ls",), False),
        (("stat", "NAME"), True),
        (("doctor", "--all"), True),
        (("doctor", "NAME", "--repair", "--holder", "nobody"), True),
        (("get", "NAME", "--timeout", "0"), True),
        (("put", "NAME", "x", "--create", "--bound", "5"), False),
    ],
)
def test_names_and_holders_are_visible(
    cli: Commands, db: redis.Redis, arguments: tuple[str, ...], holder: bool
) -> None:
    name = "[bold]orders[/bold]" + OBEYED.decode()
    cli.create(name)
    key = f"__pressure__:{name}"
    db.rpop(f"{key}:consumer_free")
    db.set(f"{key}:consumer", b"web [red]1[/red]" + OBEYED)
    shown = at_a_terminal(cli, *(name if argument == "NAME" else argument for argument in arguments))
    assert rb"[bold]orders[/bold]\x1b]2;obeyed\x07" in shown
    assert (rb"web [red]1[/red]\x1b]2;obeyed\x07" in shown) is holder
    assert OBEYED not in shown
    db.lpush(f"{key}:consumer_free", 1)
    cli.delete(name)


@pytest.mark.parametrize(("command", "role"), [(("get",), "consumer"), (("put", "--", "x"), "producer")])
def test_a_terminal_shows_what_a_command_waits_for(
    cli: Commands, queue: str, db: redis.Redis, command: tuple[str, ...], role: str
) -> None:
    """And a file is not."""
    db.rpop(f"__pressure__:orders:{role}_free")
    db.set(f"__pressure__:orders:{role}", b"web1" + OBEYED)
    waiting = f"apressure: waiting for the {role} role of the queue 'orders': 'web1".encode()
    arguments = (command[0], queue, *command[1:])
    with cli.running(*arguments) as silent, terminal(cli, *arguments, streams=("stderr",)) as shown:
        shown.says(waiting, rb"\x1b]2;obeyed\x07' holds it without a lease")
        assert OBEYED not in shown.shown
        for process in (silent, shown.process):
            process.kill()
        assert silent.stderr is not None
        assert silent.stderr.read() == b""
    db.lpush(f"__pressure__:orders:{role}_free", 1)


def test_the_end_of_a_lease_is_shown(cli: Commands, queue: str) -> None:
    async def hold(held: AsyncQueue[bytes]) -> None:
        async with held.consumer(lease=60):

            def look() -> None:
                with terminal(cli, "get", queue, streams=("stderr",)) as shown:
                    shown.says(f"'{held.client.id}' holds it until".encode(), b", and longer if it renews its lease")

            await asyncio.to_thread(look)

    cli.library(queue, hold)


def test_an_error_at_a_terminal_names_its_page(cli: Commands, queue: str) -> None:
    shown = at_a_terminal(cli, "create", queue)
    assert b"exists already. Pass --exist-ok to use it as it is (apressure explain QueueAlreadyExistsError)" in shown
    piped = cli("create", queue, code=4)
    assert b"explain" not in piped.stderr
