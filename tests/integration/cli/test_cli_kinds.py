"""The commands on a queue of each kind. They run in this process: starting Python is what takes the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from apressure import QueueEmptyError, open_queue, sync
from apressure.cli import main
from apressure.concurrency.loop_thread import LoopThread
from tests.integration.commands import Commands, with_queue
from tests.integration.events.remote.conftest import serving

T = TypeVar("T")

# What does not depend on the server runs on one of them.
pytestmark = [
    pytest.mark.leaves_keys,
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
]

NOT_A_LINE = b"two\nlines"
"""`get` cannot write it as one line, and gives it back."""


class Here:
    """Runs commands in this process, on one server and in one directory."""

    def __init__(self, url: str, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.directory = directory
        self.capfd = capfd

    def __call__(self, *arguments: str) -> str:
        """Run a command to its end, and return what it prints."""
        assert main(["--url", self.url, *arguments]) == 0, self.capfd.readouterr()
        output, errors = self.capfd.readouterr()
        assert errors == ""
        return output

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def fails(self, code: int, *arguments: str) -> str:
        """Run a command that fails, and return its error."""
        assert main(["--url", self.url, *arguments]) == code, self.capfd.readouterr()
        error = self.capfd.readouterr().err
        assert error.startswith("apressure: ")
        assert error.count("\n") == 1
        return error

    def result(self, code: int, *arguments: str) -> tuple[str, str]:
        """Run a command, and return its output and its error."""
        assert main(["--url", self.url, *arguments]) == code, self.capfd.readouterr()
        return self.capfd.readouterr()

    def library(self, address: str, use: Callable[[Any], Awaitable[T]], **options: Any) -> T:
        """Do something with a queue in this process."""
        return with_queue(self.url, address, use, **options)


@pytest.fixture
def here(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(url, tmp_path, capfd)


@pytest.fixture(params=["orders", "events:orders", "tasks:orders", "files:"])
def address(request: pytest.FixtureRequest, here: Here) -> str:
    """The address of a queue of each kind, which does not exist."""
    return f"files:{here.directory}/orders" if request.param == "files:" else str(request.param)


async def die(queue: Any) -> None:
    """Make two dead letters: one whose reason is known, and one without."""
    for raw, error in ((b"a\tb\x1b[0m", ValueError("it\x1b[31m\nfailed")), (b"[bold]", None)):
        await queue.put(raw)
        await (await queue.receive(timeout=60)).nack(error)
        with contextlib.suppress(QueueEmptyError):
            await queue.receive(timeout=0)


def test_the_life_of_a_queue(here: Here, address: str) -> None:
    assert here("create", address, "--bound", "10") == f"created {address} (bound 10)\n"
    assert "exists already" in here.fails(4, "create", address)
    assert here("create", address, "--exist-ok") == f"{address} exists already (bound 10)\n"
    assert here("put", address, "one", "two", "three") == ""
    assert here.json("put", address, "four", "five") == {"name": "orders", "put": 2, "bytes": 8, "closed": False}
    assert (here("peek", address), here("peek", address, "--newest", "-0")) == ("one\n", "five\0")
    assert here("ls", address) == f"{address}\t5\t10\topen\n"
    assert here("get", address, "-n", "1") == "one\n"
    assert here("pause", address) == f"paused {address}\n"
    assert here("pause", address) == f"{address} is paused already\n"
    assert here("ls", address) == f"{address}\t4\t10\tpaused\n"
    assert "is paused" in here.fails(6, "get", address, "--timeout", "0")
    assert here("get", address, "--no-follow") == ""
    assert here.json("resume", address) == {"name": "orders", "paused": False, "changed": True}
    assert here("resume", address) == f"{address} is not paused\n"
    assert here("get", address, "--no-follow", "-n", "9") == "two\nthree\nfour\nfive\n"
    here("put", address, "six", "seven", "--delay", "600")
    assert here("promote", address, "--max", "1") == f"promoted 1 in {address}\n"
    assert here.json("promote", address) == {"name": "orders", "promoted": 1}
    assert here("peek", address) == "six\n"
    assert "not both" in here.fails(2, "promote", address, "--max", "1", "--id", "x")
    assert here("purge", address) == f"purged 2 from {address}\n"
    assert here.json("purge", address) == {"name": "orders", "purged": 0}
    assert "is empty" in here.fails(6, "peek", address)
    here("put", address, "last", "--close")
    assert "is closed" in here.fails(5, "put", address, "more")
    assert here("get", address, "--delete") == "last\n"
    assert "does not exist" in here.fails(3, "stat", address)


def test_closing_and_deleting(here: Here, address: str) -> None:
    here("create", address)
    assert here("close", address, "--timeout", "60") == f"closed {address}\n"
    assert "is closed: 0 of 1 items came" in here.fails(5, "get", address, "-n", "1")
    assert here.json("delete", address) == {"name": "orders", "deleted": True}


@pytest.mark.parametrize("command", ["stat", "ls", "pause", "resume", "dead", "requeue", "purge", "health", "doctor"])
def test_a_queue_that_does_not_exist(here: Here, address: str, command: str) -> None:
    assert "'orders' does not exist" in here.fails(3, command, address)


def test_all_values_are_shown(here: Here, address: str) -> None:
    here("create", address, "--bound", "3")
    here("put", address, "x")
    shown = dict(line.split("\t") for line in here("stat", address).splitlines())
    assert (shown["name"], shown["address"], shown["length"]) == ("orders", address, "1")
    assert (shown["bound"], shown["closed"], shown["paused"], shown["in_flight"]) == ("3", "no", "no", "0")
    told = here.json("stat", address)
    assert told == here.json("ls", address)[0]
    assert (told["kind"], told["length"], told["paused"]) == (_kind(address), 1, False)
    assert not {"put_count", "blocked", "waiting_putters"} & told.keys()  # of the command's own object


def _kind(address: str) -> str:
    return {"events": "EventQueue", "tasks": "TaskQueue", "files": "FileQueue"}.get(
        address.partition(":")[0], "AsyncQueue"
    )


def test_a_full_queue(here: Here, address: str) -> None:
    here("create", address, "--bound", "3")
    said = here.fails(6, "put", address, "1", "2", "3", "4", "5", "--timeout", "0")
    assert "the queue 'orders' is full" in said
    assert said.endswith("; 3 items were put; 2 items were not put\n")
    assert here("get", address, "--no-follow") == "1\n2\n3\n"


def test_an_item_that_cannot_be_written_goes_back(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, "first", NOT_A_LINE.decode(), "last")
    output, errors = here.result(1, "get", address)
    assert output == "first\n"
    assert "--length-prefixed" in errors
    assert here("get", address, "--no-follow", "-0") == "two\nlines\0last\0"


def test_items_as_json(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, "first", NOT_A_LINE.decode(), "last")
    assert here.json("peek", address) == {"item": "first"}
    assert here.json("peek", address, "--newest") == {"item": "last"}
    lines = here("get", address, "--no-follow", "--json").splitlines()
    assert [json.loads(line) for line in lines] == [{"item": "first"}, {"item": NOT_A_LINE.decode()}, {"item": "last"}]
    if not address.startswith("tasks:"):  # their parameters are text
        here.library(address, lambda queue: queue.put(b"\xff"))
        assert here.json("get", address, "-n", "1", "--at-most-once") == {"base64": "/w=="}
    for option in ("-0", "--length-prefixed"):
        for command in ("get", "peek"):
            assert "--json excludes" in here.result(2, command, address, option, "--json")[1]


def test_peek_shows_what_is_in_a_queue(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, "first", "a\ttab", "x" * 100)
    here("put", address, "later", "--delay", "60")
    rows = [line.split("\t") for line in here("peek", address, "--limit", "2").splitlines()]
    assert [(row[-2], row[-1]) for row in rows] == [("5", "first"), ("5", "a tab")]
    assert {len(row) for row in rows} == {8}
    newest = here("peek", address, "--newest", "--place", "waiting").splitlines()
    assert [line.rpartition("\t")[2] for line in newest] == ["x" * 40 + "…", "a tab", "first"]
    told = [json.loads(line) for line in here("peek", address, "--limit", "9", "--json").splitlines()]
    assert [one["item"] for one in told] == ["first", "a\ttab", "x" * 100]
    assert all("error" not in one for one in told)
    (delayed,) = (here.json("peek", address, "--place", "delayed"),)
    assert (delayed["item"], delayed["size"]) == ("later", 5)
    assert datetime.fromisoformat(delayed["due"]) > datetime.now(UTC)
    assert here("peek", address, "--place", "parked") == ""
    options: dict[str, Any] = {} if address.startswith("files:") else {"url": here.url}
    with sync.Queue(open_queue(address, codec="raw", **options)) as queue:
        delivery = queue.receive()
        row = here("peek", address, "--place", "in_flight").rstrip("\n").split("\t")
        assert (row[2], row[-1]) == ("1", "first")
        page = queue.browse("in_flight")
        assert ([message.item for message in page.messages], page.total) == ([b"first"], 1)
        delivery.nack()
    assert here("get", address, "--no-follow", "-n", "1") == "first\n"
    assert "--limit and --place exclude" in here.result(2, "peek", address, "--limit", "2", "-0")[1]
    assert "--place" in here.result(2, "peek", address, "--place", "nowhere")[1]
    here("delete", address)
    assert "does not exist" in here.fails(3, "peek", address, "--limit", "2")


def test_many_items_and_the_end(here: Here, address: str) -> None:
    here.library(address, _fill_and_close)
    assert here("get", address).splitlines() == [str(number) for number in range(2500)]


async def _fill_and_close(queue: Any) -> None:
    await queue.create()
    await queue.put_many(b"%d" % number for number in range(2500))
    await queue.close()


def test_a_single_try_finds_what_is_there(here: Here, address: str) -> None:
    here.library(address, _fill_and_close)
    assert len(here("get", address, "--timeout", "0", "-n", "2500").splitlines()) == 2500


def test_dead_letters(here: Here, address: str) -> None:
    here("create", address, "--bound", "2")
    assert here("dead", address) == ""
    here.library(address, die, max_attempts=1)
    first, second = here("dead", address).splitlines()
    name, when, attempts, error, start = first.split("\t")
    assert (attempts, error, start) == ("1", "ValueError: it [31m failed", "a b\\x1b[0m")
    assert datetime.fromisoformat(when) > datetime(2024, 1, 1, tzinfo=UTC)
    assert second.split("\t")[4] == "[bold]"
    found = here.json("dead", address)
    assert found[0]["id"] == name
    assert found[0]["error"] == {"type": "ValueError", "message": "it [31m failed", "attempt": 1}
    assert len(here.json("dead", address, "--limit", "1")) == 1
    here.fails(2, "dead", address, "--limit", "0")
    output, errors = here.result(1, "requeue", address, "--id", name, "--id", "no\x1b")
    assert output.startswith("requeued 1 ")
    assert errors == f"apressure: no dead letter of {address} has the id 'no\\\\x1b'\n"
    told = json.loads(here.result(1, "requeue", address, "--id", "x", "--id", found[1]["id"], "--json")[0])
    assert (told["requeued"], told["not_found"]) == (1, ["x"])
    here.fails(2, "requeue", address, "--id", name, "--max", "1")
    assert here("get", address, "--no-follow", "-0") == "a\tb\x1b[0m\0[bold]\0"
    assert here("dead", address) == ""
    assert here("requeue", address).startswith("requeued 0 ")


def test_requeue_waits_for_room_no_longer_than_that(here: Here, address: str) -> None:
    here("create", address, "--bound", "1")
    here.library(address, die, max_attempts=1)
    said = here.fails(6, "requeue", address, "--timeout", "0")
    assert said.startswith("apressure: the queue 'orders' is full")
    assert said.endswith("; 1 items were requeued before\n")
    assert here("get", address, "--no-follow", "-0") == "a\tb\x1b[0m\0"
    assert here.json("requeue", address)["requeued"] == 1
    assert here("get", address, "--no-follow") == "[bold]\n"


@pytest.mark.parametrize(("address", "suffix"), [("jobs", ":dead"), ("files:", ".dead")], indirect=["address"])
@pytest.mark.parametrize("command", ["dead", "requeue"])
def test_the_name_of_a_dead_letter_queue_is_not_the_name_of_a_queue(
    here: Here, address: str, suffix: str, command: str
) -> None:
    name = "jobs" if suffix == ":dead" else "orders"
    for exists in (False, True):
        if exists:
            here("create", address + suffix)
            here("put", address + suffix, "x")
        said = here.fails(2, command, address + suffix)
        assert said.startswith(f"apressure: {address}{suffix} is a dead-letter queue: ")
        assert f"`apressure {command} {address}`" in said
        assert f"`apressure {command} NAME --from {name}{suffix}`" in said
        assert f"{suffix}{suffix}" not in said
    here("create", address)
    assert "does not exist" in here.fails(3, command, address, "--from", "missing")


def test_dead_letters_of_another_queue(here: Here) -> None:
    for address in ("orders", f"files:{here.directory}/orders"):
        here("create", address)
        here.library(address, die, max_attempts=1, dead_letters="failed")
        assert len(here("dead", address, "--from", "failed").splitlines()) == 2
        assert here("requeue", address, "--from", "failed") == f"requeued 2 from failed to {address}\n"
    for address in ("events:orders", "tasks:orders"):
        assert "Leave --from out" in here.fails(2, "dead", address, "--from", "failed")
        assert "Leave --from out" in here.fails(2, "requeue", address, "--from", "failed")
        wrong = ("--max-attempts", "2", "--dead-letters", "failed")
        assert "Leave --dead-letters out" in here.fails(2, "get", address, *wrong)


def test_an_item_becomes_a_dead_letter(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, NOT_A_LINE.decode(), "good")
    said = [here.result(1, "get", address, "--no-follow", "--max-attempts", "2")[1] for _ in range(2)]
    output, errors = here.result(0, "get", address, "--no-follow", "--max-attempts", "2")
    assert output == "good\n"
    assert "became a dead letter at attempt 2" in "".join([*said, errors])
    assert here.json("dead", address)[0]["start"] == NOT_A_LINE.decode()


def test_ids_of_items(here: Here, address: str) -> None:
    if address == "orders":
        assert "have no ids. Leave it out" in here.fails(2, "put", address, "a", "--ids")
        return
    first, second = here("put", address, "a", "b", "--ids").splitlines()
    assert here.library(address, _id_of_the_next) == first
    told = here.json("put", address, "c", "--ids")
    assert (told["put"], len(set(told["ids"]) | {first, second})) == (1, 3)
    assert "--force is for an AsyncQueue" in here.fails(2, "put", address, "a", "--force")


def test_scripts_without_asyncio_open_addresses(here: Here, address: str) -> None:
    options: dict[str, Any] = {} if address.startswith("files:") else {"url": here.url}
    with sync.Queue(open_queue(address, codec="raw", **options)) as queue:
        queue.create(3)
        queue.put(b"x")
    assert here("ls", address) == f"{address}\t1\t3\topen\n"


async def _id_of_the_next(queue: Any) -> str:
    delivery = await queue.receive(timeout=60)
    await delivery.nack()
    return str(delivery.id)


def test_parameters_of_tasks(here: Here) -> None:
    here("put", "tasks:orders", "123", "a b", '"quoted"', "{}")
    here("put", "tasks:orders", "123", '{"file": "ä.mov"}', '"text"', "--parse")

    async def parameters() -> list[Any]:
        async with open_queue("tasks:orders", url=here.url) as queue:
            return [delivery.item for delivery in await queue.receive_many(9)]

    expected = ["123", "a b", '"quoted"', "{}", 123, {"file": "ä.mov"}, "text"]
    assert asyncio.run(parameters()) == expected  # a plain string stays what it is
    here("put", "tasks:more", *map(str, expected[:4]))
    assert here("get", "tasks:more", "--no-follow") == '123\na b\n"quoted"\n{}\n'
    assert "as JSON" in here.fails(2, "put", "tasks:orders", "[1", "--parse")
    said = here.fails(2, "put", "tasks:orders", "1", "[1", "2", "--parse")
    assert said.endswith("; 0 items were put; 3 items were not put\n")
    assert "--parse is for tasks" in here.fails(2, "put", "orders", "1", "--parse")
    assert "not UTF-8" in here.fails(2, "put", "tasks:orders", "\udcff")


def test_health(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, "x")
    assert here("health", address).startswith(f"healthy: {address} answered in ")
    assert here.result(1, "health", address, "--max-length", "0")[0] == (
        f"unhealthy: {address} has 1 items, more than 0\n"
    )
    told = json.loads(here.result(1, "health", address, "--max-length", "0", "--json")[0])
    assert (told["name"], told["healthy"], told["reason"]) == ("orders", False, "has 1 items, more than 0")
    if address.startswith("files:"):
        assert "does not say who consumes" in here.fails(2, "health", address, "--consumed")
    else:
        assert here.result(1, "health", address, "--consumed")[0] == f"unhealthy: {address} has no consumer\n"
    here("close", address)
    assert here.result(1, "health", address)[0] == f"unhealthy: {address} is closed\n"


def test_the_doctor(here: Here, address: str) -> None:
    here("create", address)
    assert here("doctor", address) == f"{address}\thealthy\n"
    here.library(address, die, max_attempts=1)
    here("put", address, "x")
    here("pause", address)
    lines = [line.split("\t") for line in here("doctor", address, "--repair").splitlines()]
    notes = {"orders": {"paused", "unconsumed"}, "files": {"paused"}}.get(
        address.partition(":")[0], {"paused", "dead_letters", "unconsumed"}
    )
    assert {line[2] for line in lines} == notes
    assert all(line[:2] == [address, "note"] for line in lines)
    told = here.json("doctor", address)
    assert (told["name"], told["address"], told["healthy"]) == ("orders", address, True)
    if address != "orders":
        for wrong in (("--holder", "x", "--repair"), ("--watch",), ("--give-back", "x")):
            assert "are for an AsyncQueue" in here.fails(2, "doctor", address, *wrong)


def test_the_address_names_the_server(here: Here, url: str) -> None:
    for kind in ("", "events:", "tasks:"):
        address = f"{url}/{kind}orders"
        assert main(["create", address, "--bound", "3"]) == 0
        assert main(["--url", "redis://127.0.0.1:1", "put", address, "x"]) == 0
        assert "x\n" in here("get", address, "--no-follow")
    assert here("ls") == "orders\t0\t3\topen\nevents:orders\t0\t3\topen\ntasks:orders\t0\t3\topen\n"


def test_an_address_that_is_none(here: Here) -> None:
    assert "Write events:orders" in here.fails(2, "put", "events:", "x")
    assert "Write redis://" in here.fails(2, "get", "http://example.org/orders")
    assert "embedded:///some/dir" in here.fails(2, "stat", "embedded:///orders")
    assert "is no queue of tasks" in here.fails(2, "tasks", "run", "events:orders", "--", "true")


def test_a_name_that_begins_like_an_address(here: Here) -> None:
    here("create", "queue:events:orders", "--bound", "7")
    assert here.library("queue:events:orders", lambda queue: queue.bound()) == 7
    assert here("ls") == "queue:events:orders\t0\t7\topen\n"


@pytest.fixture
def okq(here: Here) -> Iterator[Here]:
    """The commands on an okq server, which runs in a thread."""
    with LoopThread() as loop:
        server = serving(here.url)
        yield Here(loop.call(server.__aenter__), here.directory, here.capfd)
        loop.call(lambda: server.__aexit__(None, None, None))


def test_an_okq_server(okq: Here) -> None:
    assert okq("create", "clicks", "--bound", "5") == "created events:clicks (bound 5)\n"
    assert okq("put", "clicks", "0", "1", "2") == ""
    assert okq("ls", f"{okq.url}/clicks") == "events:clicks\t3\t5\topen\n"
    assert okq("peek", "events:clicks") == "0\n"
    assert okq("get", "clicks", "-n", "2") == "0\n1\n"
    assert okq("purge", "clicks") == "purged 1 from events:clicks\n"
    assert okq("pause", "clicks") == "paused events:clicks\n"
    assert okq("doctor", "clicks") == (
        "events:clicks\tnote\tpaused\tThe queue is paused: its consumers get nothing.\t"
        "`apressure resume events:clicks`\n"
    )
    assert okq("resume", f"{okq.url}/events:clicks") == "resumed events:clicks\n"
    assert okq("dead", "clicks") == ""
    assert okq("put", "clicks", "last", "--close") == ""
    assert okq("get", "clicks") == "last\n"
    assert okq("delete", "clicks") == "deleted events:clicks\n"
    assert okq("put", "clicks", "last", "--close") == ""
    assert okq("get", "clicks", "--delete") == "last\n"
    assert "does not exist" in okq.fails(3, "stat", "clicks")
    assert "does not list its queues" in okq.fails(2, "ls")


def test_queues_of_every_kind_are_listed(here: Here) -> None:
    addresses = ["mail", "orders", "events:clicks", "tasks:orders.encode", f"files:{here.directory}/orders"]
    for address in addresses:
        here("create", address, "--bound", "5")
    here("pause", "events:clicks")
    shown = [f"{address}\t0\t5\topen\n" for address in addresses]
    shown[2] = "events:clicks\t0\t5\tpaused\n"
    assert here("ls") == "".join(shown[:4])
    assert here("ls", "--pattern", "orders*") == shown[1] + shown[3]
    assert here("ls", "--pattern", "events:*", f"files:{here.directory}/o*") == shown[2] + shown[4]
    assert here("ls", "--pattern", "queue:*s") == shown[1]
    assert here("ls", "--pattern", "nothing*") == ""
    assert here("ls", addresses[4], "mail") == shown[4] + shown[0]
    assert [one["address"] for one in here.json("ls")] == addresses[:4]
    assert here("doctor", "--all").splitlines() == [
        "mail\thealthy", "orders\thealthy", addresses[2] + "\tnote\tpaused\t"
        "The queue is paused: its consumers get nothing.\t`apressure resume events:clicks`",
        "tasks:orders.encode\thealthy",
    ]  # fmt: skip


def test_a_user_who_may_not_see_the_other_kinds(here: Here, db: Any) -> None:
    for address in ("orders", "events:clicks", "tasks:encode"):
        here("create", address)
    db.execute_command(
        "ACL", "SETUSER", "poor", "on", "nopass", "~__pressure__:*", "~apressure:__pressure__:*", "+@all"
    )
    poor = ("--url", here.url.replace("://", "://poor:any@"))
    assert here("ls", *poor) == "orders\t0\t0\topen\n"
    assert here("doctor", "--all", *poor) == "orders\thealthy\n"
    assert "NOPERM" in here.fails(7, "ls", "--pattern", "tasks:*", *poor)
    assert "NOPERM" in here.result(1, "ls", "--pattern", "events:*", *poor)[1]
    db.execute_command("ACL", "DELUSER", "poor")


def test_a_damaged_queue_is_listed_with_the_others(here: Here, db: Any) -> None:
    here("create", "tasks:orders")
    db.zadd("blueque_queues", {"damaged": 0, "": 0})
    db.set("blueque_pending_tasks_damaged", "no list")
    output, errors = here.result(1, "ls")
    assert output == "tasks:orders\t0\t0\topen\n"
    assert "apressure: tasks:damaged: " in errors
    assert errors.count("\n") == 2
    output, errors = here.result(1, "doctor", "--all")
    assert output == "tasks:orders\thealthy\n"
    assert "apressure: tasks:damaged: " in errors


def test_what_was_put_is_consumed_by_a_program(here: Here, address: str) -> None:
    here("create", address)

    async def consume(queue: Any) -> list[bytes]:
        async with queue.consumer(timeout=60) as consumer:
            return [item async for item in consumer]

    here("put", address, "a", "b", "--close")
    assert here.library(address, consume) == [b"a", b"b"]


def test_at_most_once(here: Here, address: str) -> None:
    here("create", address)
    here("put", address, "a", "b", "c", "--timeout", "60", "--close")
    assert here("get", address, "--at-most-once", "-n", "1") == "a\n"
    assert here("get", address, "--at-most-once", "--no-follow", "-n", "1") == "b\n"
    assert here("get", address, "--at-most-once", "--delete") == "c\n"
    assert "does not exist" in here.fails(3, "stat", address)


def test_every_consumer_is_seen(here: Here, address: str) -> None:
    here("create", address)

    async def look(queue: Any) -> str:
        async with queue.consumer():
            return await asyncio.to_thread(_consumed, here, address)

    if not address.startswith("files:"):
        assert here.library(address, look)


def _consumed(here: Here, address: str) -> str:
    return Commands(here.url)("health", address, "--consumed").stdout.decode()
