"""`apressure files` as people and scripts use it, and other commands on directories."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from apressure import FileQueue
from tests import processes
from tests.integration.commands import Commands, ended, feed, stop, wait_until
from tests.integration.files.conftest import listing

T = TypeVar("T")


class Files(Commands):
    """Commands in one directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__("redis://localhost:1")  # which nothing here needs
        self.directory = directory

    def of(self, command: str, *arguments: str) -> list[str]:
        return ["files", command, "-d", str(self.directory), *arguments]

    def run(self, command: str, *arguments: str, **options: Any) -> bytes:
        return self(*self.of(command, *arguments), **options).stdout

    def on(self, command: str, *arguments: str) -> list[str]:
        """A command of every kind of queue."""
        return [command, f"files:{self.directory}/orders", *arguments]

    def queue(self, use: Callable[[FileQueue[bytes]], Awaitable[T]], **options: Any) -> T:
        async def main() -> T:
            async with FileQueue("orders", directory=self.directory, fsync=False, **options) as queue:
                return await use(queue)

        return asyncio.run(main())

    def names(self) -> list[str]:
        return listing(self.directory / "orders")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_life_of_a_queue(files: Files) -> None:
    assert files.run("pump", "orders", "one", "two") == b""
    assert files.run("pump", "orders", input=b"three\n\nlast") == b""
    lines = files(*files.on("stat")).stdout.decode().splitlines()
    assert lines[0] == "name\torders"
    assert "length\t5" in lines
    assert "next_expiry\t-" in lines
    assert files.run("sink", "orders", "-n", "2") == b"one\ntwo\n"
    assert files.run("sink", "orders", "--no-follow") == b"three\n\nlast\n"
    assert files.names() == []
    assert files.run("sink", "orders", "--no-follow") == b""


def test_in_json(files: Files) -> None:
    pumped = json.loads(files.run("pump", "orders", "--count", "100", "--microseconds", "--no-fsync", "--json"))
    assert pumped == {"name": "orders", "put": 100, "bytes": 192}
    assert {len(name) for name in files.names()} == {16}
    seen = files.json(*files.on("stat"))
    assert (seen["length"], seen["in_flight"], seen["notified"]) == (100, 0, True)
    assert files.run("sink", "orders", "-n", "2", "--json") == b'{"item": "1"}\n{"item": "2"}\n'
    sunk = json.loads(files.run("sink", "orders", "--discard", "--no-follow", "--json"))
    assert sunk == {"name": "orders", "deleted": 98, "bytes": 190}


def test_framings(files: Files) -> None:
    files.run("pump", "orders", "-0", input=b"a\nb\0c\0")
    assert files.run("sink", "orders", "--no-follow", "--length-prefixed") == b"\0\0\0\3a\nb\0\0\0\1c"
    files.run("pump", "orders", "a\nb")
    assert b"use -0 or --length-prefixed" in files(*files.of("sink", "orders"), code=1).stderr
    assert len(files.names()) == 1
    assert files.names()[0].isdigit()  # it has gone back
    files(*files.of("sink", "orders", "-0", "--length-prefixed"), code=2)
    files(*files.of("pump", "orders", "--length-prefixed"), input=b"\0\0\0\5ab", code=1)


def test_a_pipeline_with_backpressure(files: Files) -> None:
    with (
        files.running(*files.of("pump", "orders", "--bound", "20", "--no-fsync", "--count", "3000")) as pump,
        files.running(*files.of("sink", "orders", "-n", "3000")) as sink,
    ):
        code, output, errors = ended(sink)
        assert (code, errors) == (0, b"")
        assert output == b"".join(b"%d\n" % number for number in range(1, 3001))
        assert ended(pump)[0] == 0


def test_a_full_queue(files: Files) -> None:
    failed = files(*files.of("pump", "orders", "--bound", "3", "--timeout", "0"), input=b"1\n2\n3\n4\n5\n", code=6)
    assert failed.stderr == (
        b"apressure: the queue 'orders' is full: it has 3 messages; 3 items were put, 2 that had been read were not\n"
    )
    failed = files(*files.of("pump", "orders", "--bound", "3", "--timeout", "0", "--json"), input=b"1\n", code=6)
    told = json.loads(failed.stderr)
    assert (told["error"], told["put"], told["not_put"]) == ("QueueFullError", 0, 1)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_pump_that_is_stopped_says_what_is_in(files: Files, signum: int, code: int) -> None:
    arguments = files.of("pump", "orders", "--bound", "3")
    with files.running(*arguments, stdin=subprocess.PIPE) as process:
        feed(process, b"1\n2\n3\n4\n5\n")
        wait_until(lambda: (files.directory / "orders").exists() and len(files.names()) == 3)
        assert stop(process, signum) == (
            code, b"",
            f"apressure: stopped by {signal.Signals(signum).name}; 3 items were put, "
            "2 that had been read were not\n".encode(),
        )  # fmt: skip
    assert len(files.names()) == 3


def test_a_pump_whose_directory_goes_says_what_is_in(files: Files) -> None:
    with files.running(*files.of("pump", "orders", "--bound", "3"), stdin=subprocess.PIPE) as process:
        feed(process, b"1\n2\n3\n4\n5\n")
        wait_until(lambda: (files.directory / "orders").exists() and sum(map(str.isdigit, files.names())) == 3)
        (files.directory / "orders").rename(files.directory / "elsewhere")
        code, _, errors = ended(process)
        assert code
        assert b"deleted or moved; 3 items were put, 2 that had been read were not" in errors
    assert len(listing(files.directory / "elsewhere")) == 3


def test_a_sink_that_discards_tells_units_apart(files: Files) -> None:
    files.run("pump", "orders", "--microseconds", "one")
    files.run("pump", "orders", "two")
    assert files(*files.of("sink", "orders", "--discard", "--no-follow")).stderr == b""


def test_a_sink_that_is_stopped_leaves_nothing_in_flight(files: Files) -> None:
    files.run("pump", "orders", "--count", "2000", "--no-fsync")
    with files.running(*files.of("sink", "orders")) as process:
        assert process.stdout is not None
        assert process.stdout.read(20)
        assert stop(process)[0] == 130
    assert all(name.isdigit() for name in files.names())


def test_a_reader_that_goes_away(files: Files) -> None:
    with files.running(*files.of("sink", "orders")) as process:
        assert process.stdout is not None
        files.run("pump", "orders", "a")
        assert process.stdout.readline() == b"a\n"
        process.stdout.close()
        process.stdout = None
        assert process.wait(20) == 141


def test_a_reader_that_is_slow_keeps_the_item(files: Files) -> None:
    files.run("pump", "orders", input=b"x" * 300_000)
    with files.running(*files.of("sink", "orders", "--lease", "0.3", "-n", "1")) as process:
        wait_until(lambda: any("." in name for name in files.names()))
        first = files.names()
        wait_until(lambda: files.names() != first)  # extended
        files.queue(lambda queue: queue.statistics())
        assert ended(process)[:2] == (0, b"x" * 300_000 + b"\n")
    assert files.names() == []


LITTLE_MEMORY = """
import resource, sys, psutil
import apressure.cli.commands.files
from apressure.cli import main
limit = psutil.Process().memory_info().vms + int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main())
"""


@pytest.mark.parametrize("left", [30 << 20, 90 << 20], ids=["once", "twice"])
def test_a_sink_with_little_memory(files: Files, left: int) -> None:
    files.queue(lambda queue: queue.put(b"x" * (60 << 20)))
    command = [sys.executable, "-c", LITTLE_MEMORY, str(left), *files.of("sink", "orders")]
    done = processes.run(command, env=files.environment, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"apressure: cannot ")
    assert b"62914560 bytes" in done.stderr
    assert b"do not fit into memory" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert files.names()[0].isdigit()  # it has gone back


def test_an_item_that_does_not_fit_into_memory(files: Files) -> None:
    files.run("pump", "orders", "--max-size", "1000000000", input=b"x" * 10 + b"\nsecond\n")
    large, second = files.names()
    os.truncate(files.directory / "orders" / large, 1 << 40)
    sink = files.of("sink", "orders", "--no-follow", "--max-size", str(1 << 41))
    assert b"1099511627776 bytes, which do not fit into memory" in files(*sink, code=1).stderr
    assert b"at most 67108864 are allowed" in files(*files.of("sink", "orders", "--no-follow"), code=1).stderr
    assert files.names() == [large, second]
    for _ in range(2):
        files(*sink, "--max-attempts", "2", code=1)
    with files.running(*sink, "--max-attempts", "2") as process:
        assert ended(process)[:2] == (0, b"second\n")
    assert [name for name in listing(files.directory / "orders.dead") if name.isdigit()] == [large]


def test_a_pause_stops_a_sink(files: Files) -> None:
    files.run("pump", "orders", "a", "b", "--close")
    files(*files.on("pause"))
    assert b"the queue 'orders' is paused" in files(*files.of("sink", "orders", "--timeout", "0"), code=6).stderr
    with files.running(*files.of("sink", "orders")) as process:
        assert files.json(*files.on("resume")) == {"name": "orders", "paused": False, "changed": True}
        assert ended(process)[:2] == (0, b"a\nb\n")


def test_items_in_flight_are_given_back(files: Files) -> None:
    files.run("pump", "orders", "a", "b", "c")
    files.queue(lambda queue: queue.receive_many(2, lease=1000))
    assert files.run("give-back", "orders") == b"gave back 2 in orders\n"
    assert json.loads(files.run("give-back", "orders", "--json")) == {"name": "orders", "given_back": 0}
    files.queue(lambda queue: queue.receive(lease=1000))
    assert files.json(*files.on("purge")) == {"name": "orders", "purged": 2}
    assert files.json(*files.on("stat"))["in_flight"] == 1


def test_dead_letters(files: Files) -> None:
    files.run("pump", "orders", "a", "b")

    async def fail(queue: FileQueue[bytes]) -> None:
        for _ in range(2):
            for message in await queue.receive_many(2):
                await message.nack()

    files.queue(fail)
    arguments = [*files.of("sink", "orders", "--no-follow", "--max-attempts", "2")]
    with files.running(*arguments) as process:
        code, output, errors = ended(process)
    assert (code, output) == (0, b"")
    assert errors.count(b"became a dead letter at attempt 2") == 2
    address = files.on("requeue")[1]
    moved = f"requeued 1 from orders.dead to {address}\n".encode()
    assert files(*files.on("requeue", "--max", "1")).stdout == moved
    assert files(*files.on("requeue")).stdout == moved
    assert files.run("sink", "orders", "--no-follow") == b"a\nb\n"
    files(*files.on("requeue", "--from", "nothing"), code=3)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("give-back", "nothing"), 3),
        (("pump", "../up", "a"), 2), (("sink", "/etc"), 2), (("pump", "orders", "a", "--count", "5"), 2),
        (("sink", "orders", "--timeout", "0"), 6), (("sink", "orders", "--dead-letters", "a"), 2),
    ],
)  # fmt: skip
def test_errors(files: Files, arguments: tuple[str, ...], code: int) -> None:
    failed = files(*files.of(*arguments), code=code)
    assert failed.stderr.startswith(b"apressure: ")
    assert failed.stderr.count(b"\n") == 1


def test_progress_and_a_look_again_and_again(files: Files) -> None:
    with (
        files.running(
            *files.of("pump", "orders", "--count", "0", "--progress", "--no-fsync", "--bound", "1000")
        ) as pump,
        files.running(*files.of("sink", "orders", "--discard")),
    ):
        wait_until((files.directory / "orders").exists)
        with files.running(*files.on("stat", "--watch", "--interval", "0.1")) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert all(line.startswith(b"length ") for line in lines)
        assert pump.stderr is not None
        assert b"pump orders: " in pump.stderr.readline()
