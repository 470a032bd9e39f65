"""`apressure doctor`, as people and scripts use it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import select
import signal
import sys
from collections.abc import Iterator

import pytest
import redis
from rich.console import Console

import apressure
from apressure import Client
from apressure.cli import figures
from apressure.core.workers import KEY_SCHEMA, encode
from apressure.queue_addresses import QueueAddress
from apressure.spark import sealed_batches
from tests.integration.commands import Commands, running, stop, wait_until
from tests.integration.workers import support
from tests.reference import ReferenceQueue

KEY = "__pressure__:orders"
OURS = "apressure:__pressure__:orders"

# test_recovery.py tests findings and repairs, on each server. This file tests how they are printed.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


@pytest.fixture
def queue(cli: Commands) -> Iterator[str]:
    """A queue of two, that is deleted after the test."""
    cli.create("orders", 2)
    yield "orders"
    cli.delete("orders")


def stick(db: redis.Redis, holder: str = "web-1:77") -> None:
    db.lpush(KEY, "1")
    db.rpop(f"{KEY}:consumer_free")
    db.set(f"{KEY}:consumer", holder)


def damage(db: redis.Redis) -> None:
    db.set(f"{KEY}:stats:produced_bytes", "many")


def test_a_healthy_queue(cli: Commands, queue: str) -> None:
    assert cli("doctor", queue).stdout == b"orders\thealthy\n"
    assert cli("doctor", "--all", "--repair").stdout == b"orders\thealthy\n"
    assert cli.json("doctor", queue) == {
        "name": "orders", "address": "orders", "key_schema": KEY_SCHEMA, "exists": True, "healthy": True, "repaired": [], "findings": [],
    }  # fmt: skip


def test_a_stuck_role_is_given_back_with_the_name_of_its_holder(cli: Commands, queue: str, db: redis.Redis) -> None:
    stick(db, "web 1:77")
    line = cli("doctor", queue, code=1).stdout.decode()
    assert line.startswith("orders\tfault\tstuck_role\tThe consumer role is taken")
    assert "the last client to write its name was 'web 1:77'" in line
    assert "apressure doctor orders --repair --holder 'web 1:77'" in line
    assert cli("doctor", queue, "--repair", code=1).stdout.decode() == line
    wrong = cli("doctor", queue, "--repair", "--holder", "web", code=1)
    assert (wrong.stdout.decode(), b"gave back no role of 'web'" in wrong.stderr) == (line, True)
    done = cli("doctor", queue, "--repair", "--holder", "web 1:77").stdout
    repaired, note = done.splitlines()
    assert repaired == b"orders\trepaired\tstuck_role\tgave back the consumer role of 'web 1:77'; what it took is lost"
    assert note.startswith(b"orders\tnote\tunconsumed\t1 items wait")
    assert cli.empty(queue) == [b"1"]


def test_repairs_and_remaining_faults_in_json(cli: Commands, queue: str, db: redis.Redis) -> None:
    stick(db)
    damage(db)
    told = json.loads(cli("doctor", queue, "--repair", "--json", code=1).stdout)
    (repaired,), (finding,) = told["repaired"], told["findings"]
    assert (told["exists"], told["healthy"]) == (True, False)
    assert (repaired["kind"], repaired["role"], repaired["holder"]) == ("broken_statistic", "producer", None)
    assert repaired["text"] == f"set the statistic '{KEY}:stats:produced_bytes' to 0; it was 'many'"
    assert (finding["kind"], finding["fault"], finding["repair"]) == ("stuck_role", True, "holder")
    assert (finding["role"], finding["holder"]) == ("consumer", "web-1:77")
    assert finding["text"]
    assert finding["advice"]
    db.lpush(f"{KEY}:consumer_free", 1)


def test_a_holder_may_have_any_bytes_in_its_name(cli: Commands, queue: str, db: redis.Redis) -> None:
    stick(db)
    db.set(f"{KEY}:consumer", b"\xff\n'\t")
    assert cli("doctor", queue, code=1).stdout.count(b"\n") == 1
    assert b"stuck_role" in cli("doctor", queue, "--repair", "--holder", b"\xff\n'\t").stdout


def test_all_queues_and_the_remains_of_others(cli: Commands, queue: str, db: redis.Redis) -> None:
    damage(db)
    db.lpush("apressure:__pressure__:old:inflight", "x")
    db.lpush("__pressure__:half", "1", "2")
    cli.create("well")
    lines = cli("doctor", "--all", code=1).stdout.decode().splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["half", "fault", "half_deleted"],
        ["old", "fault", "leftovers"],
        ["orders", "fault", "broken_statistic"],
        ["well", "healthy"],
    ]
    told = [json.loads(line) for line in cli("doctor", "--all", "--repair", "--json").stdout.splitlines()]
    assert [one["name"] for one in told] == ["half", "old", "orders", "well"]
    assert [len(one["repaired"]) for one in told] == [1, 1, 1, 0]
    assert cli("doctor", "--all").stdout == b"orders\thealthy\nwell\thealthy\n"
    cli.delete("well")


def test_a_note_is_no_reason_to_fail(cli: Commands, queue: str) -> None:
    cli.fill(queue, b"1", b"2", b"3")
    unconsumed, overfull = cli("doctor", queue).stdout.splitlines()
    assert unconsumed.startswith(b"orders\tnote\tunconsumed\t3 items wait, and no consumer is there.")
    assert overfull.startswith(b"orders\tnote\toverfull\t3 messages wait")


def test_a_queue_that_does_not_exist(cli: Commands) -> None:
    assert b"has left no keys" in cli("doctor", "nothing", code=3).stderr
    assert cli("doctor", "--all").stdout == b""


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("orders", "--all"),
        ("orders", "--holder", "x"),
        ("orders", "--interval", "2"),
        ("orders", "--watch", "--repair"),
        ("orders", "--interval", "0"),
    ],
)
def test_options_that_exclude_each_other(cli: Commands, options: tuple[str, ...]) -> None:
    done = cli("doctor", *options, code=2)
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("which", ["orders", "--all"])
def test_watching_repairs_and_prints_until_a_signal(cli: Commands, queue: str, db: redis.Redis, which: str) -> None:
    with cli.running("doctor", which, "--watch", "--interval", "0.05") as process:
        assert process.stdout is not None
        for _ in range(2):
            db.lpush(f"{KEY}:producer_free", 1)
            told = process.stdout.readline()
            assert told == b"orders\trepaired\tdoubled_token\tremoved 1 of the 2 tokens of the producer role\n"
        damage(db)  # a human's matter
        db.lpush(f"{OURS}:inflight", "x")
        assert b"put 1 messages back" in process.stdout.readline()
        assert stop(process, signal.SIGINT) == (130, b"", b"")
    assert db.get(f"{KEY}:stats:produced_bytes") == b"many"
    db.delete(f"{KEY}:stats:produced_bytes")


def test_watching_in_json_while_other_clients_work(cli: Commands, queue: str, db: redis.Redis) -> None:
    with cli.running("doctor", queue, "--watch", "--interval", "0.05", "--json") as process:
        assert process.stdout is not None
        db.lpush(f"{OURS}:inflight", "lost")
        told = json.loads(process.stdout.readline())
        assert [action["kind"] for action in told["repaired"]] == ["orphaned_items"]
        assert ReferenceQueue(db, "orders").get_nowait() == b"lost"
        assert stop(process, signal.SIGTERM)[0] == 143


def test_a_person_at_a_terminal(cli: Commands, queue: str, db: redis.Redis) -> None:
    stick(db)
    damage(db)
    ours, theirs = pty.openpty()
    shown = b""
    with cli.running("doctor", queue, "--repair", stdout=theirs, stderr=theirs) as process:
        os.close(theirs)

        def read() -> bool:
            nonlocal shown
            try:
                while select.select([ours], [], [], 0)[0]:
                    shown += os.read(ours, 65536)
            except OSError:
                return True  # the other end has closed it
            return False

        wait_until(read)
        assert process.wait(10) == 1
    os.close(ours)
    for word in (b"orders", b"1 fault", b"repaired", b"it was 'many'", b"fault", b"CLIENT LIST"):
        assert word in shown
    assert b"\t" not in shown
    db.lpush(f"{KEY}:consumer_free", 1)


def test_without_a_server(cli: Commands, server: object) -> None:
    env = {"APRESSURE_URL": "redis://127.0.0.1:1"}
    assert b"127.0.0.1:1" in cli("doctor", "orders", code=7, env=env).stderr


def test_stat_shows_what_spark_has_in_flight(cli: Commands, queue: str, db: redis.Redis) -> None:
    spark = f"{OURS}:spark"
    groups, state, batch = f"{spark}:all:groups", f"{spark}:nightly:source", f"{spark}:nightly:batch-5"
    db.hset(groups, "nightly", "")
    fields = {"epoch": 1_700_000_000_000, "committed": 4, "sealed": 5, "rows": 9, "first-5": 7, "at-5": 1, "size-5": 2}
    db.hset(state, mapping=fields)
    db.lpush(batch, "1", "2")
    (found,) = cli.json("stat", queue)["spark"]
    assert found.pop("seconds") > 1e9
    assert found == {
        "group": "nightly",
        "since": "2023-11-14T22:13:20.000+00:00",
        "batches": 1,
        "messages": 2,
        "bytes": 2,
        "read": 9,
    }
    lines = cli("stat", queue).stdout.decode().splitlines()
    assert {"spark_messages\tnightly\t2", "spark_bytes\tnightly\t2", "spark_read\tnightly\t9"} <= set(lines)
    [listed] = cli.json("ls")
    assert "spark" not in listed

    found = sealed_batches.all_groups(Client(cli.url).settings, queue)
    console = Console(file=io.StringIO(), width=120)
    console.print(figures.statistics_view((QueueAddress("queue", queue), cli.stat(queue)), None, found))
    assert "nightly: 2 items, 2 bytes in flight in 1 batch for" in console.file.getvalue()
    db.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-hkeys")
    poor = cli.json("stat", queue, "--url", cli.url.replace("://", "://poor:any@"))
    assert (poor["length"], "spark" in poor) == (0, False)
    db.execute_command("ACL", "DELUSER", "poor")
    db.delete(groups, state, batch)


def test_batches_of_spark_are_shown_and_given_back(cli: Commands, queue: str, db: redis.Redis) -> None:
    spark = f"{OURS}:spark"
    db.hset(f"{spark}:all:groups", "nightly", "")
    db.hset(
        f"{spark}:nightly:source", mapping={"epoch": 1, "committed": 4, "sealed": 5, "rows": 9, "first-5": 7, "at-5": 1}
    )
    db.lpush(f"{spark}:nightly:batch-5", "1", "2")
    (finding,) = cli.json("doctor", queue)["findings"]
    assert (finding["kind"], finding["fault"], finding["repair"]) == ("spark_batches", False, "by hand")
    assert finding["text"].startswith("2 messages are in flight in 1 batch of the Spark query of the group 'nightly'")
    assert "apressure doctor orders --give-back nightly" in finding["advice"]
    done = cli("doctor", queue, "--give-back", "nightly").stdout
    assert done.startswith(
        b"orders\trepaired\tspark_batches\tput 2 messages of the group 'nightly' back into the queue, first in line\n"
    )
    assert db.lrange(KEY, 0, -1) == [b"2", b"1"]
    assert b"put 0 messages of the group 'other' back" in cli("doctor", queue, "--give-back", "other").stdout
    assert (
        "--give-back needs the name of a queue"
        in cli("doctor", "--all", "--give-back", "nightly", code=2).stderr.decode()
    )
    db.delete(f"{spark}:all:groups", f"{spark}:nightly:source")


@pytest.mark.parametrize("address", ["orders", "events:orders", "tasks:orders"])
def test_it_shows_the_key_schema_and_who_has_another_one(cli: Commands, address: str) -> None:
    """A worker of a version to come; one of a version that told no schema has the first one."""

    async def beat() -> None:
        async with apressure.open_queue(address, url=cli.url) as queue:
            await queue.create()
            await support.beat(queue, b"newer/1", encode(support.record_of(version="7.0", schema=KEY_SCHEMA + 1)))
            await support.beat(queue, b"older/1", encode(support.record_of()))

    asyncio.run(beat())
    told = cli.json("doctor", address)
    assert told["key_schema"] == KEY_SCHEMA
    (note,) = (finding["text"] for finding in told["findings"] if finding["kind"] == "key_schema")
    assert note.startswith(f"newer writes keys of schema {KEY_SCHEMA + 1} (apressure 7.0)")
    cli("delete", address)


def test_what_stops_a_queue_comes_first_and_a_worker_that_works_is_no_dead_client(cli: Commands, queue: str) -> None:
    """A note for each cause, in order; and no advice to take a role from a client that works."""
    code = (
        "import asyncio, apressure, time\n"
        "async def handle(item):\n    await asyncio.sleep(3600)\n"
        f"asyncio.run(apressure.serve(handle, apressure.AsyncQueue('{queue}', url='{cli.url}')))\n"
    )
    cli("limit", queue, "--rate", "2/60")
    cli.fill(queue, b"1", b"2")
    with running([sys.executable, "-c", code]):
        wait_until(lambda: cli.json("stat", queue)["workers"])
        told = cli.json("doctor", queue)["findings"]
        kinds = [one["kind"] for one in told]
        assert kinds.index("limited") < kinds.index("leased") == len(kinds) - 1
        assert not told[-1]["advice"]
        cli("pause", queue)
        assert cli.json("doctor", queue)["findings"][0]["kind"] == "paused"
