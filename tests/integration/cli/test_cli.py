"""The command line as people and scripts use it: real processes, real pipes, real servers."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure.cli import main
from apressure.embedded import EmbeddedServer
from tests import processes
from tests.integration.commands import (
    COMMAND,
    Commands,
    ended,
    environment,
    feed,
    read_to_the_end,
    running,
    stop,
    wait_until,
)

# What does not depend on the server runs on one of them.
one_server = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def items(number: int) -> list[bytes]:
    return [b"%d" % index for index in range(number)]


def lines(number: int) -> bytes:
    return b"".join(item + b"\n" for item in items(number))


def prefixed(*items: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(item)) + item for item in items)


def is_waiting_consumer(cli: Commands, name: str) -> Callable[[], bool]:
    return lambda: bool(cli.stat(name).consumer.state == "leased")


class TestStory:
    def test_life_of_a_queue(self, cli: Commands) -> None:
        assert cli("create", "orders", "--bound", "10").stdout == b"created orders (bound 10)\n"
        cli("put", "orders", input=lines(3))
        cli("put", "orders", "three", "four")
        assert cli("ls").stdout == b"orders\t5\t10\topen\n"
        assert b"length\t5\nin_flight\t0\nbound\t10\nclosed\tno\n" in cli("stat", "orders").stdout
        assert cli("get", "orders", "-n", "4").stdout == b"0\n1\n2\nthree\n"
        assert cli("close", "orders").stdout == b"closed orders\n"
        assert cli("get", "orders").stdout == b"four\n"
        assert cli("delete", "orders").stdout == b"deleted orders\n"
        assert cli("ls").stdout == b""

    @one_server
    def test_life_of_a_queue_in_json(self, cli: Commands) -> None:
        assert cli.json("create", "orders", "--bound", "10") == {"name": "orders", "bound": 10, "created": True}
        assert cli.json("create", "orders", "--exist-ok") == {"name": "orders", "bound": 10, "created": False}
        put = cli.json("put", "orders", "a", "bc", "--close")
        assert put == {"name": "orders", "put": 2, "bytes": 3, "closed": True}
        free = {"state": "free", "since": None, "expires": None}
        [listed] = cli.json("ls")
        assert listed == cli.json("stat", "orders")
        assert (listed["name"], listed["length"], listed["bound"], listed["closed"]) == ("orders", 2, 10, True)
        assert {**listed["producer"], "holder": None} == {**free, "holder": None}
        assert (listed["produced_messages"], listed["produced_bytes"], listed["consumed_messages"]) == (2, 3, 0)
        assert cli.json("delete", "orders") == {"name": "orders", "deleted": True}
        cli.create("orders")
        assert cli.json("close", "orders") == {"name": "orders", "closed": True}
        cli.delete("orders")

    def test_producer_and_consumer_in_one_pipeline_each(self, cli: Commands) -> None:
        """The example of the README: backpressure from end to end, and the end of input is the end of the queue."""
        script = f"""
            seq 20000 | {_shell()} put orders --create --bound 100 --close &
            until {_shell()} stat orders >/dev/null 2>&1; do sleep 0.2; done
            {_shell()} get orders --delete | sha256sum
            wait
        """
        done = processes.run(["bash", "-c", script], env=cli.environment, capture_output=True, timeout=240, check=True)
        expected = processes.run("seq 20000 | sha256sum", shell=True, capture_output=True, check=True)
        assert (done.stdout, done.stderr) == (expected.stdout, b"")


@one_server
class TestPut:
    def test_every_line_is_an_item(self, cli: Commands, queue: str) -> None:
        cli("put", queue, input=b"\none\n\ntwo\r\nlast")
        assert cli.empty(queue) == [b"", b"one", b"", b"two\r", b"last"]

    def test_a_file_and_nothing(self, cli: Commands, queue: str, tmp_path: Path) -> None:
        (tmp_path / "items").write_bytes(b"from\na file\n")
        for source in (tmp_path / "items", Path(os.devnull)):
            with source.open("rb") as file, cli.running("put", queue, stdin=file) as process:
                assert ended(process)[0] == 0
        assert cli.empty(queue) == [b"from", b"a file"]

    def test_a_terminal(self, cli: Commands, queue: str) -> None:
        ours, theirs = pty.openpty()
        with cli.running("put", queue, stdin=theirs) as process:
            os.close(theirs)
            os.write(ours, b"typed\n")
            wait_until(lambda: cli.empty(queue) == [b"typed"])
            os.write(ours, b"\x04")
            assert ended(process)[0] == 0
        os.close(ours)

    def test_a_line_is_put_at_once(self, cli: Commands, queue: str) -> None:
        with cli.running("put", queue, stdin=subprocess.PIPE) as process:
            for line in (b"one\n", b"two\n"):
                feed(process, line)
                wait_until(lambda line=line: cli.empty(queue) == [line.rstrip()])  # type: ignore[misc]

    def test_arguments_may_be_any_bytes(self, cli: Commands, queue: str) -> None:
        cli("put", queue, b"\xff\xfe", "ä", "", "--", "--close")
        assert cli.empty(queue) == [b"\xff\xfe", b"\xc3\xa4", b"", b"--close"]

    def test_no_reading_ahead_of_a_full_queue(self, cli: Commands, queue: str) -> None:
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writing, False)
        with cli.running("put", queue, stdin=reading) as process:
            os.close(reading)
            data = b"".join(b"%09d\n" % number for number in range(20_000))
            accepted, refused = _write(writing, data[:1000]), 0
            wait_until(lambda: cli.stat(queue).length == 10)
            # No room in the pipe, many times: the queue has stopped the command, and the command has stopped us.
            while accepted < len(data) and refused < 100:
                written = _write(writing, data[accepted : accepted + 10])
                accepted, refused = accepted + written, 0 if written else refused + 1
            # Ten in the queue, as many in the command's hands as it reads at a time, and what a small pipe takes.
            assert accepted <= 100 + 1024 + 2 * 4096
            assert cli.stat(queue).length == 10
            assert cli("get", queue, "-n", "50").stdout == data[:500]
            os.close(writing)
            assert cli("get", queue, "-n", str(accepted // 10 - 50)).stdout == data[500:accepted]
            assert ended(process)[0] == 0

    def test_timeout_of_a_full_queue(self, cli: Commands, queue: str) -> None:
        done = cli("put", queue, "--timeout", "0", input=lines(15), code=6)
        assert (
            done.stderr == b"apressure: the queue 'orders' is full; 10 items were put; 5 items were read and not put\n"
        )
        done = cli("put", queue, "one more", "--timeout", "0.05", code=6)
        assert done.stderr == b"apressure: the queue 'orders' is full\n"
        assert b"".join(item + b"\n" for item in cli.empty(queue)) == lines(10)

    def test_force(self, cli: Commands, queue: str) -> None:
        cli("put", queue, "--force", input=lines(15))
        assert cli.stat(queue).length == 15

    def test_create_leaves_a_queue_as_it_is(self, cli: Commands, queue: str) -> None:
        with cli.running("put", queue, "--create", "--bound", "99", "x") as process:
            code, _, errors = ended(process)
        assert code == 0
        assert b"the queue 'orders' exists with --bound 10 and keeps it, not 99" in errors

    def test_an_error_leaves_the_queue_open(self, cli: Commands, queue: str) -> None:
        done = cli("put", queue, "--close", "--length-prefixed", input=prefixed(b"whole") + b"\0\0\0\5ab", code=1)
        assert b"ends in the middle of a message: 2 of 5 bytes came; 1 items were put; 1 items were" in done.stderr
        assert not cli.stat(queue).closed
        assert cli.empty(queue) == [b"whole"]

    def test_closed_by_somebody_else(self, cli: Commands, queue: str) -> None:
        with cli.running("put", queue, "--json", stdin=subprocess.PIPE) as process:
            feed(process, lines(15))
            wait_until(lambda: cli.stat(queue).length == 10)
            cli.close(queue)
            code, _, errors = ended(process)
        assert code == 5
        told = json.loads(errors)
        assert (told["error"], told["exit_code"], told["put"], told["not_put"]) == ("QueueClosedError", 5, 10, 5)


@one_server
class TestFraming:
    @pytest.mark.parametrize("option", ["-0", "--null"])
    def test_nul(self, cli: Commands, queue: str, option: str) -> None:
        binary = [bytes(range(1, 256)), b"", b"two\nlines", random.randbytes(5000).replace(b"\0", b"")]
        stream = b"".join(item + b"\0" for item in binary)
        cli("put", queue, option, input=stream)
        assert cli("get", queue, option, "--no-follow").stdout == stream

    def test_length_prefixed(self, cli: Commands, queue: str) -> None:
        stream = prefixed(bytes(range(256)), b"", b"\n\0", random.randbytes(300_000))
        cli("put", queue, "--length-prefixed", input=stream)
        assert cli("get", queue, "--length-prefixed", "--no-follow").stdout == stream

    def test_limit(self, cli: Commands, queue: str) -> None:
        done = cli("put", queue, "--length-prefixed", "--max-size", "100", input=prefixed(b"ok", b"x" * 101), code=1)
        assert b"a message of 101 bytes is larger than the limit of 100 bytes" in done.stderr
        assert cli.empty(queue) == [b"ok"]
        done = cli("put", queue, "--max-size", "3", input=b"four\n", code=1)
        assert b"limit of 3 bytes" in done.stderr

    @pytest.mark.parametrize(("option", "item"), [((), b"two\nlines"), (("-0",), b"a\0b")])
    def test_an_item_that_contains_the_delimiter_stays(
        self, cli: Commands, queue: str, option: tuple[str, ...], item: bytes
    ) -> None:
        cli.fill(queue, b"first", item, b"last")
        done = cli("get", queue, *option, code=1)
        assert done.stdout == (b"first\0" if option else b"first\n")
        assert b"--length-prefixed" in done.stderr
        assert cli.empty(queue) == [item, b"last"]

    def test_at_most_once_writes_an_item_that_contains_a_newline(self, cli: Commands, queue: str) -> None:
        cli.fill(queue, b"two\nlines", b"a\nb")
        with cli.running("get", queue, "--at-most-once", "--no-follow") as process:
            code, output, errors = ended(process)
        assert (code, output) == (0, b"two\nlines\na\nb\n")
        assert errors.count(b"\n") == 1


@one_server
class TestGet:
    def test_into_a_file(self, cli: Commands, queue: str, tmp_path: Path) -> None:
        cli.fill(queue, *items(5))
        cli.close(queue)
        with (tmp_path / "out").open("wb") as file, cli.running("get", queue, stdout=file) as process:
            assert ended(process)[0] == 0
        assert (tmp_path / "out").read_bytes() == lines(5)

    def test_waits_for_more_until_the_queue_is_closed(self, cli: Commands, queue: str) -> None:
        with cli.running("get", queue) as process:
            assert process.stdout is not None
            for item in ("one", "two"):
                cli.fill(queue, item.encode())
                assert process.stdout.readline() == item.encode() + b"\n"
            assert process.poll() is None
            cli.close(queue)
            assert ended(process) == (0, b"", b"")

    def test_no_follow(self, cli: Commands, queue: str) -> None:
        for option in ("--at-least-once", "--at-most-once"):
            assert cli("get", queue, "--no-follow", option).stdout == b""
            cli.fill(queue, *items(4))
            assert cli("get", queue, "--no-follow", option, "-n", "1").stdout == b"0\n"
            assert cli("get", queue, "--no-follow", option, "-n", "9").stdout == b"1\n2\n3\n"

    def test_a_single_try_finds_what_is_there(self, cli: Commands, queue: str) -> None:
        for option in ("--at-least-once", "--at-most-once"):
            cli.fill(queue, b"x")
            assert cli("get", queue, "-n", "1", "--timeout", "0", option).stdout == b"x\n"
            cli("get", queue, "-n", "1", "--timeout", "0", option, code=6)

    def test_items_that_came_before_the_timeout_are_written(self, cli: Commands, queue: str) -> None:
        for option in ("--at-least-once", "--at-most-once"):
            cli.fill(queue, *items(3))
            done = cli("get", queue, "--timeout", "0.1", option, code=6)
            assert (done.stdout, done.stderr) == (lines(3), b"apressure: the queue 'orders' is empty\n")
        assert cli.stat(queue).in_flight == 0

    def test_closed_before_enough_came(self, cli: Commands, queue: str) -> None:
        cli.fill(queue, b"x")
        cli.close(queue)
        done = cli("get", queue, "-n", "2", code=5)
        assert (done.stdout, done.stderr) == (b"x\n", b"apressure: the queue 'orders' is closed: 1 of 2 items came\n")
        assert cli("get", queue).stdout == b""

    def test_delete_after_the_last_item(self, cli: Commands) -> None:
        for option in ("--at-least-once", "--at-most-once"):
            cli.create("jobs")
            cli.fill("jobs", b"a", b"b")
            cli.close("jobs")
            assert cli("get", "jobs", "--delete", "-n", "1", option).stdout == b"a\n"
            assert cli("get", "jobs", "--delete", option).stdout == b"b\n"
            assert not cli.library("jobs", lambda queue: queue.exists())

    def test_at_most_once_removes_an_item_before_writing_it(self, cli: Commands, queue: str) -> None:
        cli.fill(queue, b"a", b"b")
        assert cli("get", queue, "--at-most-once", "-n", "1").stdout == b"a\n"
        statistics = cli.stat(queue)
        assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (1, 0, 1)

    def test_another_consumer_has_the_role(self, cli: Commands, queue: str) -> None:
        with cli.running("get", queue) as process:
            wait_until(is_waiting_consumer(cli, queue))
            holder = cli.stat(queue).consumer.holder
            done = cli("get", queue, "--timeout", "0.05", "--json", code=6)
            told = json.loads(done.stderr)
            assert (told["error"], told["role"], told["holder"]) == ("QueueInUseError", "consumer", holder)
            assert "(on the command line --shared)" in told["message"]
            assert stop(process)[0] == 130


class TestPipeThatBreaks:
    @one_server
    def test_head(self, cli: Commands) -> None:
        """The first three go through the pipe; what the command had not written goes back, in order."""
        large = [b"%06d %s" % (number, b"x" * 1000) for number in range(1000)]
        cli.create("orders")
        cli.fill("orders", *large)
        script = f'{_shell()} get orders | head -3; echo "${{PIPESTATUS[0]}}"'
        done = processes.run(["bash", "-c", script], env=cli.environment, capture_output=True, timeout=60, check=True)
        assert done.stdout == b"".join(item + b"\n" for item in large[:3]) + b"141\n"
        assert done.stderr == b""
        statistics = cli.stat("orders")
        assert statistics.in_flight == 0
        assert statistics.consumer.state == "free"
        # The pipe itself holds 64 KiB: those were written, and lost when head closed it.
        written = statistics.consumed_messages
        assert 3 <= written <= 200
        assert statistics.length == 1000 - written
        assert cli.empty("orders") == large[written:]
        cli.delete("orders")

    @one_server
    @pytest.mark.parametrize("option", ["--at-least-once", "--at-most-once"])
    def test_the_reader_ends_while_the_queue_is_empty(self, cli: Commands, queue: str, option: str) -> None:
        with cli.running("get", queue, option) as process:
            assert process.stdout is not None
            cli.fill(queue, b"x")
            assert process.stdout.readline() == b"x\n"
            process.stdout.close()
            process.stdout = None
            assert ended(process) == (141, b"", b"")
        assert cli.stat(queue).consumer.state == "free"

    @one_server
    def test_listings(self, cli: Commands, queue: str) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        for arguments in (("ls",), ("stat", queue), ("stat", queue, "--json"), ("--help",)):
            with cli.running(*arguments, stdout=writing) as process:
                code, _, errors = ended(process)
            assert (code, errors) == (141, b""), arguments
        os.close(writing)


class TestSignals:
    @one_server
    @pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_get_that_waits(self, cli: Commands, queue: str, signum: int, code: int) -> None:
        with cli.running("get", queue) as process:
            wait_until(is_waiting_consumer(cli, queue))
            assert stop(process, signum) == (code, b"", b"")
        assert cli.stat(queue).consumer.state == "free"

    def test_get_whose_reader_does_not_read(self, cli: Commands) -> None:
        large = [b"%06d %s" % (number, b"x" * 1000) for number in range(1000)]
        cli.create("orders")
        cli.fill("orders", *large)
        with cli.running("get", "orders") as process:
            assert process.stdout is not None
            wait_until(lambda: cli.stat("orders").consumed_messages > 10)
            code, output, errors = stop(process)
        assert (code, errors) == (130, b"")
        statistics = cli.stat("orders")
        assert (statistics.in_flight, statistics.consumer.state) == (0, "free")
        rest = cli.empty("orders")
        cli.delete("orders")
        # At least once: what was written and acknowledged is not repeated, what was interrupted may be.
        acknowledged = large[: len(large) - len(rest)]
        assert rest == large[len(acknowledged) :]
        assert output.startswith(b"".join(item + b"\n" for item in acknowledged))
        assert b"".join(item + b"\n" for item in large).startswith(output)

    @one_server
    def test_put_into_a_full_queue(self, cli: Commands, queue: str) -> None:
        with cli.running("put", queue, stdin=subprocess.PIPE) as process:
            feed(process, lines(15) + b"the beginning of a line")
            wait_until(lambda: cli.stat(queue).length == 10)
            code, _, errors = stop(process)
        assert code == 130
        assert errors == b"apressure: stopped by SIGINT; 10 items were put; 6 items were read and not put\n"
        assert cli.stat(queue).produced_messages == 10
        assert b"".join(item + b"\n" for item in cli.empty(queue)) == lines(10)

    @one_server
    def test_put_counts_correctly_when_interrupted_at_random_moments(self, cli: Commands) -> None:
        for _ in range(4):
            cli.create("orders", 5)
            with (
                cli.running("get", "orders") as consumer,
                cli.running("put", "orders", "--json", stdin=subprocess.PIPE) as process,
            ):
                assert consumer.stdout is not None
                feed(process, lines(4000))
                for _ in range(random.randrange(1, 1500)):
                    consumer.stdout.readline()
                process.send_signal(signal.SIGINT)
                code, _, errors = ended(process)
                assert code == 130
                told = json.loads(errors)
                before = cli.stat("orders").produced_messages
                assert stop(consumer)[0] == 130
            assert told["exit_code"] == 130
            assert told["put"] + told["not_put"] <= 4000
            assert before == told["put"], "the command counted what is on the server"
            cli.delete("orders")

    @one_server
    def test_put_that_waits_for_input(self, cli: Commands, queue: str) -> None:
        with cli.running("put", queue, stdin=subprocess.PIPE) as process:
            feed(process, b"x\n")
            wait_until(lambda: cli.stat(queue).length == 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143  # although nobody has closed the pipe

    @one_server
    def test_ignored_signals_stay_ignored(self, cli: Commands, queue: str) -> None:
        """As nohup and the shell's background jobs want it."""
        script = f"trap '' INT; exec {_shell()} get orders"
        with running(["bash", "-c", script], env=cli.environment) as process:
            wait_until(is_waiting_consumer(cli, queue))
            process.send_signal(signal.SIGINT)
            cli.fill(queue, b"x")
            cli.close(queue)
            assert ended(process) == (0, b"x\n", b"")


class TestExitCodes:
    """What needs no process of its own runs in this one: starting Python is what takes the time."""

    @one_server
    @pytest.mark.parametrize(
        "arguments",
        [("stat",), ("close",), ("delete",), ("put", "x"), ("put", "--close"), ("get",), ("get", "--at-most-once")],
    )
    def test_missing(self, url: str, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
        command, *rest = arguments
        assert main([command, "nothing", *rest, "--url", url]) == 3
        assert capfd.readouterr() == (
            "",
            (
                "apressure: the queue 'nothing' does not exist: create it first with "
                "`apressure create nothing`, or check the URL and the prefix\n"
            ),
        )

    @one_server
    def test_exists_already(self, cli: Commands, queue: str) -> None:
        refused = cli("create", queue, code=4).stderr
        assert refused == b"apressure: the queue 'orders' exists already. Pass --exist-ok to use it as it is\n"
        assert cli("create", queue, "--exist-ok").stdout == b"orders exists already (bound 10)\n"

    @one_server
    def test_closed(self, cli: Commands, queue: str) -> None:
        cli.close(queue)
        for arguments in (("close", queue), ("put", queue, "x"), ("put", queue, "--close"), ("get", queue, "-n", "1")):
            assert b"is closed" in cli(*arguments, code=5).stderr

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (("put",), "Missing argument 'QUEUE'"),
            (("put", "orders", "--hurry"), "--hurry"),
            (("create", "orders", "--bound", "-1"), "--bound"),
            (("create", "orders", "--bound", "many"), "--bound"),
            (("put", "orders", "-0", "--length-prefixed"), "exclude"),
            (("put", "orders", "--bound", "5"), "--create"),
            (("put", "orders", "x", "--at", "tomorrow"), "2030-01-31T18:00"),
            (("put", "orders", "x", "--at", "nan"), "not a time"),
            (("put", "orders", "x", "--delay", "-1"), "--delay"),
            (("put", "orders", "x", "--delay", "1", "--at", "2100-01-01"), "one of them"),
            (("get", "orders", "-n", "0"), "-n"),
            (("get", "orders", "--timeout", "-1"), "--timeout"),
            (("get", "orders", "--url", "http://example.org"), "redis://"),
            (("get", "orders", "--url", "redis://localhost/x"), "database"),
            (("ls", "--prefix", ""), "prefix"),
            (("stat", "orders", "--interval", "2"), "--watch"),
            (("ls", "--interval", "2"), "--watch"),
            (("doctor", "orders", "--interval", "2"), "--watch"),
            (("dance",), "dance"),
            (("demo", "--rows", "0"), "--rows"),
        ],
    )
    def test_usage(self, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], hint: str) -> None:
        assert main(arguments) == 2
        output, errors = capfd.readouterr()
        assert output == ""
        assert errors.startswith("apressure: ")
        assert errors.count("\n") == 1
        assert hint in errors

    @one_server
    def test_absurd_bound(self, url: str, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["create", "orders", "--bound", "9" * 30, "--url", url]) == 2
        assert "bound must be between 0" in capfd.readouterr().err

    @pytest.mark.parametrize("arguments", [("put", "--json"), ("--json", "put", "orders", "-0", "--length-prefixed")])
    def test_usage_in_json(self, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
        assert main(arguments) == 2
        told = json.loads(capfd.readouterr().err)
        assert (told["error"], told["exit_code"]) == ("UsageError", 2)

    def test_no_command(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "Usage" in capfd.readouterr().out

    @one_server
    def test_errors_in_json(self, cli: Commands) -> None:
        done = cli("--json", "stat", "nothing", code=3)
        assert done.stdout == b""
        assert json.loads(done.stderr) == {
            "error": "QueueDoesNotExistError",
            "message": "the queue 'nothing' does not exist: create it first with "
            "`apressure create nothing`, or check the URL and the prefix",
            "exit_code": 3,
            "name": "nothing",
            "help": "apressure explain QueueDoesNotExistError",
        }

    @pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "[bold]markup[/bold]"])
    @one_server
    def test_errors_are_one_line_whatever_the_name(
        self, url: str, capfd: pytest.CaptureFixture[str], name: str
    ) -> None:
        assert main(["stat", name, "--url", url]) == 3
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert "\x1b" not in error
        assert main(["stat", name, "--url", url, "--json"]) == 3
        assert json.loads(capfd.readouterr().err)["name"] == name


class TestServer:
    def test_nobody_listens(self) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            cli = Commands(f"redis://127.0.0.1:{reserved.getsockname()[1]}/0")
            for arguments in (("ls",), ("put", "orders", "x"), ("get", "orders"), ("demo",)):
                done = cli(*arguments, code=7)
                assert done.stderr.count(b"\n") == 1

    def test_password(self, make_server: Callable[..., EmbeddedServer]) -> None:
        server = make_server(config={"requirepass": "secret"})
        cli = Commands(server.url)
        assert b"Authentication required" in cli("ls", code=7).stderr
        wrong = server.url.replace("redis://", "redis://:guess@")
        done = cli("ls", "--url", wrong, code=7)
        assert b"guess" not in done.stderr
        cli("ls", "--url", server.url.replace("redis://", "redis://:secret@"))

    def test_an_empty_url_is_not_the_default_one(self, cli: Commands) -> None:
        """What a script says whose variable is not set."""
        assert b"--url: is empty" in b" ".join(cli("ls", "--url", "", code=2).stderr.replace(b"'", b"").split())
        assert b"--url: is empty" in b" ".join(cli("--url", "", "ls", code=2).stderr.replace(b"'", b"").split())
        for arguments in (("put", "orders", "x"), ("get", "orders"), ("doctor", "--all"), ("demo",), ("pipeline",)):
            assert main([*arguments, "--url", ""]) == 2

    @one_server
    def test_environment_of_the_specification(self, server: EmbeddedServer, url: str) -> None:
        variables = {"REDIS_SERVER": "127.0.0.1", "REDIS_PORT": str(server.port), "REDIS_DB": "3"}
        cli = Commands(url)
        del cli.environment["APRESSURE_URL"]
        cli("create", "orders", env={**variables, "PRESSURE_PREFIX": "shop"})
        assert cli("ls", "--url", f"redis://127.0.0.1:{server.port}/3", "--prefix", "shop").stdout.startswith(
            b"orders\t"
        )
        assert cli("--prefix", "other", "ls", "--prefix", "shop", env=variables).stdout.startswith(b"orders\t")
        assert cli("--prefix", "shop", "--url", f"redis://127.0.0.1:{server.port}/3", "ls").stdout != b""
        assert cli("ls", env=variables).stdout == b""
        cli("delete", "orders", env={**variables, "PRESSURE_PREFIX": "shop"})


@one_server
class TestLooking:
    def test_names_of_all_kinds(self, cli: Commands) -> None:
        names = ["[red]", "a b", "jobs:2", "tab\there", "ä", "z\x1b[0m"]
        for name in names:
            cli.create(name)
        assert sorted(found["name"] for found in cli.json("ls")) == sorted(names)
        listed = cli("ls").stdout.decode().splitlines()
        assert len(listed) == len(names)
        assert all(line.count("\t") == 3 and "\x1b" not in line for line in listed)
        for name in names:
            cli.delete(name)

    def test_tables_on_a_terminal(self, cli: Commands, queue: str) -> None:
        cli.fill(queue, *items(10))
        for arguments in (("ls",), ("stat", queue)):
            shown = _on_a_terminal(cli, *arguments)
            assert "orders" in shown
            assert "10" in shown
            assert "\x1b[" in shown

    def test_watch(self, cli: Commands, queue: str) -> None:
        with cli.running("stat", queue, "--watch", "--json", "--interval", "0.05") as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["length"] == 0
            cli.fill(queue, b"x")
            wait_until(lambda: json.loads(process.stdout.readline())["length"] == 1)  # type: ignore[union-attr]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130

    @pytest.mark.parametrize(
        "arguments",
        [
            ("stat", "orders", "--interval", "nan"), ("doctor", "orders", "--watch", "--interval", "nan"),
            ("doctor", "orders", "--watch", "--interval", "inf"),
            ("stat", "orders", "--watch", "--interval", "inf"), ("get", "orders", "--timeout", "nan"),
            ("put", "orders", "1", "--timeout", "-1"), ("files", "sink", "orders", "--visibility", "nan"),
        ],
    )  # fmt: skip
    def test_an_invalid_time_is_refused(self, cli: Commands, arguments: tuple[str, ...]) -> None:
        assert arguments[-2].strip("-").encode() in cli(*arguments, code=2).stderr

    def test_watch_until_it_is_deleted(self, cli: Commands) -> None:
        cli.create("orders")
        with cli.running("stat", "orders", "--watch", "--interval", "0.05") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"length 0  in_flight 0\n"
            cli.delete("orders")
            code, _, errors = ended(process)
        assert (code, errors) == (
            3,
            (
                b"apressure: the queue 'orders' does not exist: create it first with "
                b"`apressure create orders`, or check the URL and the prefix\n"
            ),
        )

    def test_progress_does_not_mix_with_the_items(self, cli: Commands, queue: str) -> None:
        """Shown on standard error after a second; the items are what they are."""
        with (
            cli.running("put", queue, "--close", stdin=subprocess.PIPE) as feeder,
            cli.running("get", queue, "--progress") as process,
        ):
            assert feeder.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            number = 0
            while not select.select([process.stderr], [], [], 0.01)[0]:
                feeder.stdin.write(b"%d\n" % number)
                feeder.stdin.flush()
                assert process.stdout.readline() == b"%d\n" % number
                number += 1
            feeder.stdin.close()
            feeder.stdin = None
            code, output, errors = ended(process)
            assert (code, output) == (0, b"")
            assert errors.endswith(f"get orders: {number:,} messages, 0.0 MB\n".encode())


class TestWithoutTheExtra:
    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_one_line_says_what_to_install(self, missing: str) -> None:
        code = f"import sys; sys.modules[{missing!r}] = None; from apressure.cli import main; sys.exit(main(['ls']))"
        done = processes.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 8
        expected = f"apressure: the command line needs {missing}: pip install 'apressure[cli]'\n"
        assert (done.stdout, done.stderr.decode()) == (b"", expected)

    def test_the_library_does_not_import_it(self) -> None:
        code = "import sys, apressure, apressure.cli; print({'typer', 'rich', 'click'} & set(sys.modules))"
        done = processes.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, timeout=60, check=True
        )
        assert done.stdout == b"set()\n"


PAGES = (
    "reference/cli", "reference/cli-items", "reference/cli-watch", "reference/cli-worker", "do/doctor", "do/pipeline",
)  # fmt: skip


class TestDocumentation:
    def test_exit_codes(self) -> None:
        from apressure.cli.exits import MEANINGS

        shown = processes.run([*COMMAND, "--help"], env=environment(COLUMNS="500"), capture_output=True, check=True)
        text = " ".join(shown.stdout.decode().split())
        page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
        for code, meaning in MEANINGS.items():
            assert f"{code.value} {meaning}" in text
            assert f"| {code.value} |" in page

    def test_every_option_is_documented(self) -> None:
        pages = Path(__file__).parents[3] / "docs"
        page = "".join((pages / f"{name}.md").read_text() for name in PAGES)
        import typer

        from apressure.cli.app import app

        group: Any = typer.main.get_command(app)
        context = group.make_context("apressure", ["--help"], resilient_parsing=True)
        names = group.list_commands(context)
        assert len(names) > 15
        for name in names:
            assert f"`apressure {name}" in page
            for parameter in group.get_command(context, name).params:
                for option in parameter.opts:
                    if option.startswith("--"):
                        assert f"`{option}" in page or f" {option}" in page, (name, option)

    def test_version(self) -> None:
        shown = processes.run([*COMMAND, "--version"], env=environment(), capture_output=True, check=True)
        assert shown.stdout.startswith(b"apressure ")

    def test_every_command_in_the_help_exists(self) -> None:
        import typer

        from apressure.cli.app import app

        group: Any = typer.main.get_command(app)
        context = group.make_context("apressure", ["--help"], resilient_parsing=True)
        names = group.list_commands(context)
        shown = processes.run([*COMMAND, "--help"], env=environment(COLUMNS="200"), capture_output=True, check=True)
        listed = [words[0] for line in shown.stdout.decode().splitlines() if (words := line.strip("│ ").split())]
        assert [name for name in names if name not in listed] == []
        assert [name for name in names if group.get_command(context, name).name != name] == []


def _write(descriptor: int, data: bytes) -> int:
    """Write if there is room; returns how much."""
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        time.sleep(0.01)
        return 0


def _shell() -> str:
    return f"'{sys.executable}' -m apressure"


def _on_a_terminal(cli: Commands, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    with cli.running(*arguments, stdout=theirs) as process:
        os.close(theirs)
        shown = read_to_the_end(ours)
        assert ended(process)[0] == 0
    return shown
