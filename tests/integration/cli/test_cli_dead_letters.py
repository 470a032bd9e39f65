"""Dead letters on the command line: `get --max-attempts`, and `requeue`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import redis

from apressure import AsyncQueue, EventQueue, QueueEmptyError
from apressure.dead_letters import UNKNOWN
from tests.integration.commands import Commands, stop, wait_until

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

NOT_A_LINE = b"two\nlines"
"""`get` cannot write it as one line, and gives it back."""


@pytest.fixture
def queue(cli: Commands) -> Iterator[str]:
    """A queue of two, with a dead-letter queue of its own that holds five; deleted after the test."""
    cli.create("orders", 2)
    cli.create("orders:dead")
    cli.fill("orders:dead", *(b"%d" % index for index in range(5)))
    yield "orders"
    cli.delete("orders")
    cli.delete("orders:dead")


def test_an_item_that_cannot_be_written_becomes_a_dead_letter(cli: Commands) -> None:
    cli.create("orders")
    cli.fill("orders", NOT_A_LINE, b"good")
    options = ("get", "orders", "--no-follow", "--max-attempts", "2", "--dead-letters", "failed")
    for _ in range(2):
        cli(*options, code=1)
    with cli.running(*options) as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, b"good\n")
    assert b"became a dead letter at attempt 2: it is in 'failed' now" in errors
    assert b"lines" not in errors
    assert cli("requeue", "orders", "--from", "failed").stdout == b"requeued 1 from failed to orders\n"
    assert cli.empty("orders") == [NOT_A_LINE]
    cli.delete("orders")
    cli.delete("failed")


def test_requeue_names_the_queue_when_it_gets_the_dead_letter_queue(cli: Commands, queue: str) -> None:
    said = cli("requeue", "orders:dead", code=2).stderr
    assert said.startswith(b"apressure: orders:dead is a dead-letter queue: ")
    assert b"`apressure requeue orders`" in said
    assert b"`apressure requeue NAME --from orders:dead`" in said
    assert cli("requeue", queue, "--max", "1").stdout == b"requeued 1 from orders:dead to orders\n"


def test_delete_says_which_dead_letters_it_leaves(cli: Commands, queue: str) -> None:
    said = "apressure: orders:dead keeps 5 dead letters: `apressure delete orders:dead` deletes that queue\n"
    assert cli("delete", queue, warned=said).stdout == b"deleted orders\n"
    cli.create(queue)
    assert cli.json("delete", queue) == {"name": "orders", "deleted": True, "dead_letters": 5}
    assert cli.json("delete", "orders:dead") == {"name": "orders:dead", "deleted": True}
    cli.create(queue)
    assert cli.json("delete", queue) == {"name": "orders", "deleted": True}
    cli.create(queue)
    cli.create("orders:dead")


def test_requeue_moves_into_another_queue(cli: Commands, queue: str) -> None:
    said = cli("requeue", queue, "--to", "events:late", "--max", "2", "--json").stdout
    assert json.loads(said) == {"name": "orders", "from": "orders:dead", "to": "events:late", "requeued": 2}
    assert cli("requeue", queue, "--to", "events:late").stdout == b"requeued 3 from orders:dead to events:late\n"
    assert cli("get", "events:late", "--no-follow").stdout == b"0\n1\n2\n3\n4\n"
    assert b"--to is the queue that they come from" in cli("requeue", queue, "--to", queue, code=2).stderr
    cli("requeue", queue, "--to", "x" * 5000, code=2)


def test_requeue_waits_for_room(cli: Commands, queue: str) -> None:
    with cli.running("requeue", queue, "--json") as process:
        got: list[bytes] = []
        wait_until(lambda: len(got.extend(cli.empty(queue)) or got) == 5)  # type: ignore[func-returns-value]
        output, errors = process.communicate(timeout=60)
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    assert json.loads(output) == {"name": "orders", "from": "orders:dead", "requeued": 5}
    assert (process.returncode, errors) == (0, b"")


def test_requeue_gives_up(cli: Commands, queue: str) -> None:
    done = cli("requeue", queue, "--timeout", "0", code=6)
    assert done.stderr == b"apressure: the queue 'orders' is full; 2 items were requeued before\n"
    assert cli("requeue", queue, "--max", "1", "--timeout", "0.05", "--json", code=6).stdout == b""
    assert cli.empty(queue) == [b"0", b"1"]
    assert cli("requeue", queue, "--max", "1").stdout == b"requeued 1 from orders:dead to orders\n"
    assert cli.empty("orders:dead") == [b"3", b"4"]


def test_requeue_is_interrupted(cli: Commands, queue: str) -> None:
    with cli.running("requeue", queue) as process:
        wait_until(lambda: cli.stat(queue).length == 2)
        code, output, errors = stop(process, signal.SIGINT)
    assert (code, output) == (130, b"")
    assert errors in (b"", b"apressure: stopped by SIGINT; 2 items were requeued before\n")
    assert cli.empty(queue) + cli.empty("orders:dead") == [b"0", b"1", b"2", b"3", b"4"]


def test_errors_of_requeue(cli: Commands, queue: str) -> None:
    cli("requeue", "missing", code=3)
    cli("requeue", queue, "--from", "missing", code=3)
    cli("requeue", queue, "--from", queue, code=2)
    cli("requeue", queue, "--max", "0", code=2)
    cli.close(queue)
    cli("requeue", queue, code=5)
    assert len(cli.empty("orders:dead")) == 5


@pytest.mark.parametrize(
    "options",
    [("--dead-letters", "failed"), ("--max-attempts", "0"), ("--max-attempts", "2", "--at-most-once"),
     ("--max-attempts", "2", "--dead-letters", "orders:closed")],
)  # fmt: skip
def test_options_of_get_that_exclude_each_other(cli: Commands, queue: str, options: tuple[str, ...]) -> None:
    cli("get", queue, *options, code=2)


def test_dead_shows_why(cli: Commands) -> None:
    cli.create("orders")
    cli("dead", "missing", code=3)
    assert cli("dead", "orders").stdout == b""
    cli("dead", "orders", "--from", "missing", code=3)
    asyncio.run(_die(cli.url))
    (line, other) = cli("dead", "orders").stdout.decode().splitlines()
    name, when, attempts, error, start = line.split("\t")
    assert (attempts, error) == ("1", "ValueError: it [31m failed")
    assert start == "a b\\x1b[0m\\nc" + "x" * 31 + "…"
    assert datetime.fromisoformat(when) > datetime(2024, 1, 1, tzinfo=UTC)
    assert other.split("\t")[2:] == ["1", UNKNOWN, "\\xff[bold]"]
    (first, second) = json.loads(cli("dead", "orders", "--json").stdout)
    assert first["id"] == name
    assert first["error"] == {"type": "ValueError", "message": "it [31m failed", "attempt": 1}
    assert (first["size"], first["start"]) == (46, "a\tb\x1b[0m\nc" + "x" * 37)
    assert (second["error"], second["start"]) == (None, "\\xff[bold]")
    assert len(json.loads(cli("dead", "orders", "--limit", "1", "--json").stdout)) == 1
    cli("dead", "orders", "--limit", "0", code=2)
    done = cli("requeue", "orders", "--id", second["id"], "--id", "no\x1b", code=1)
    assert done.stdout == b"requeued 1 from orders:dead to orders\n"
    assert done.stderr == b"apressure: no dead letter of orders has the id 'no\\\\x1b'\n"
    assert cli.empty("orders") == [b"\xff[bold]"]
    moved = json.loads(cli("requeue", "orders", "--id", name, "--json").stdout)
    assert moved == {"name": "orders", "from": "orders:dead", "requeued": 1, "not_found": []}
    cli("requeue", "orders", "--id", name, "--max", "1", code=2)
    cli.delete("orders")
    cli.delete("orders:dead")


def test_a_time_that_no_calendar_has_is_left_out(cli: Commands) -> None:
    cli.create("orders")
    asyncio.run(_die(cli.url))
    reasons = "apressure:__pressure__:orders:dead:reasons"
    with redis.Redis.from_url(cli.url) as db:
        for field in db.hkeys(reasons):
            db.hset(reasons, field, b"300000000000000:1:1:E\tm")  # another program
    assert [line.split("\t")[1:4] for line in cli("dead", "orders").stdout.decode().splitlines()] == [
        ["-", "1", "E: m"], ["-", "1", "E: m"],
    ]  # fmt: skip
    assert [one["when"] for one in json.loads(cli("dead", "orders", "--json").stdout)] == [None, None]
    assert cli("export", "orders").stdout.count(b'"place": "dead"') == 2
    cli.delete("orders")
    cli.delete("orders:dead")


async def _die(url: str) -> None:
    async with AsyncQueue("orders", url=url, max_attempts=1) as queue:
        for raw, error in ((b"a\tb\x1b[0m\nc" + b"x" * 37, ValueError("it\x1b[31m\nfailed")), (b"\xff[bold]", None)):
            await queue.put(raw)
            await (await queue.receive()).nack(error)
            with contextlib.suppress(QueueEmptyError):
                await queue.receive(timeout=0)


@pytest.fixture
def failed(cli: Commands) -> Iterator[str]:
    """A queue of events with four dead letters for two reasons."""

    async def fail() -> None:
        async with EventQueue[bytes]("jobs", url=cli.url, max_attempts=1) as jobs:
            await jobs.create()
            await jobs.put_many([b"pear", b"plum", b"pear tree", b"apple"])
            for error in (ValueError("too large"), KeyError("no"), ValueError("too small"), ValueError("Too large")):
                await (await jobs.receive()).nack(error)
            with pytest.raises(QueueEmptyError):
                await jobs.receive(timeout=0)

    asyncio.run(fail())
    yield "events:jobs"
    cli("delete", "events:jobs")


def items_of(output: bytes) -> list[str]:
    return [line.rpartition("\t")[2] for line in output.decode().splitlines()]


def test_dead_letters_are_searched(cli: Commands, failed: str) -> None:
    shown = cli("dead", failed).stdout
    assert items_of(shown) == ["pear", "plum", "pear tree", "apple"]
    first, _, _, last = (line.split("\t") for line in shown.decode().splitlines())
    assert items_of(cli("dead", failed, "--error", "too LARGE").stdout) == ["pear", "apple"]
    assert items_of(cli("dead", failed, "--error", "too large", "--limit", "1").stdout) == ["pear"]
    assert items_of(cli("dead", failed, "--error", "valueerror", "--text", "pear").stdout) == ["pear", "pear tree"]
    assert items_of(cli("dead", failed, "--id", last[0], "--id", "none").stdout) == ["apple"]
    assert items_of(cli("dead", failed, "--since", first[1], "--until", "2100-01-01T00:00Z").stdout)[:1] == ["pear"]
    assert cli("dead", failed, "--until", first[1]).stdout == b""
    assert b"is not a time" in cli("dead", failed, "--since", "yesterday", code=2).stderr


def test_some_dead_letters_are_requeued_and_deleted(cli: Commands, failed: str) -> None:
    assert b"say which" in cli("discard", failed, code=2).stderr
    cli("discard", failed, "--all", "--error", "x", code=2)
    said = cli("requeue", failed, "--error", "too large", "--rate", "1000", "--json").stdout
    assert json.loads(said) == {"name": "jobs", "requeued": 2}
    assert items_of(cli("dead", failed).stdout) == ["plum", "pear tree"]
    assert cli("discard", failed, "--text", "tree").stdout == b"deleted 1 dead letters of events:jobs\n"
    (line,) = cli("dead", failed).stdout.decode().splitlines()
    one = line.partition("\t")[0]
    missing = cli("discard", failed, "--id", one, "--id", "none", "--json", code=1)
    assert json.loads(missing.stdout) == {"name": "jobs", "discarded": 1, "not_found": ["none"]}
    assert b"'none'" in missing.stderr
    assert cli("dead", failed).stdout == b""
    cli("discard", "events:missing", "--all", code=3)


@pytest.mark.parametrize("command", ["requeue", "discard"])
@pytest.mark.parametrize("options", [("--rate", "50"), ("--text", "none of them")])
def test_ids_that_no_dead_letter_has_are_named_whatever_else_is_asked_for(
    cli: Commands, failed: str, command: str, options: tuple[str, ...]
) -> None:
    letter = cli("dead", failed).stdout.decode().partition("\t")[0]
    ids = ("--id", "nope", "--id", letter)
    said = cli(command, failed, *ids, *options, "--json", code=1)
    assert json.loads(said.stdout)["not_found"] == ["nope"]
    assert b"has the id 'nope'" in said.stderr
    assert letter.encode() not in said.stderr


def test_dead_letters_of_their_own_queue_are_deleted(cli: Commands, queue: str) -> None:
    assert cli("discard", queue, "--all", "--max", "2").stdout == b"deleted 2 dead letters of orders:dead\n"
    assert cli("discard", queue, "--text", "3").stdout == b"deleted 1 dead letters of orders:dead\n"
    assert cli.empty("orders:dead") == [b"2", b"4"]
    assert cli("discard", "orders:dead", "--all", code=2).stderr.startswith(b"apressure: orders:dead is a dead-letter")
