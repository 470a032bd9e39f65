"""`apressure events stat`, `pause`, `resume`, `dead` and `requeue`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest

from apressure import EventQueue, QueueDoesNotExistError, QueueEmptyError
from tests.integration.commands import Commands

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


@pytest.fixture
def queue(cli: Commands, url: str) -> Iterator[str]:
    """A queue with one event that waits, and two dead letters; deleted after the test."""

    async def fill() -> None:
        async with EventQueue("orders", url=url, max_attempts=1) as queue:
            await queue.create(3)
            for event_id in ("a", "b"):
                await queue.put(event_id.encode() + b"\x1b\tx", id=event_id)
                await (await queue.receive()).nack(ValueError(f"not {event_id}"))
            with contextlib.suppress(QueueEmptyError):
                await queue.receive(timeout=0)
            await queue.put(b"good", id="c")

    async def delete() -> None:
        async with EventQueue("orders", url=url) as queue:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()

    asyncio.run(fill())
    yield "orders"
    asyncio.run(delete())


def test_stat(cli: Commands, queue: str) -> None:
    shown = dict(line.split("\t") for line in cli("events", "stat", queue).stdout.decode().splitlines())
    assert shown == {
        "name": "orders", "length": "1", "bound": "3", "closed": "no", "paused": "no", "in_flight": "0",
        "consumers": "0", "dead_letters": "2", "next_expiry": "-",
    }  # fmt: skip
    assert cli.json("events", "stat", queue)["dead_letters"] == 2
    assert b"does not exist" in cli("events", "stat", "nosuch", code=3).stderr


def test_watching_prints_a_line_each_time(cli: Commands, queue: str) -> None:
    cli("events", "pause", queue)
    with cli.running("events", "stat", queue, "--watch", "--interval", "0.1") as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == b"length 1  in_flight 0  consumers 0  dead_letters 2  paused\n"


def test_pause_and_resume(cli: Commands, queue: str) -> None:
    assert cli("events", "resume", queue).stdout == b"orders is not paused\n"
    assert cli.json("events", "pause", queue) == {"name": "orders", "paused": True, "changed": True}
    assert cli("events", "pause", queue).stdout == b"orders is paused already\n"
    assert cli.json("events", "stat", queue)["paused"] is True
    assert cli("events", "resume", queue).stdout == b"resumed orders\n"
    assert b"does not exist" in cli("events", "pause", "nosuch", code=3).stderr


def test_dead_letters_are_shown(cli: Commands, queue: str) -> None:
    first, second = cli("events", "dead", queue).stdout.decode().splitlines()
    event_id, when, *rest = first.split("\t")
    assert (event_id, rest) == ("a", ["1", "ValueError: not a", "a\\x1b x"])
    assert when.startswith("20")
    assert second.startswith("b\t")
    letters = json.loads(cli("events", "dead", queue, "--json", "--limit", "1").stdout)
    assert [(letter["id"], letter["error"]["message"]) for letter in letters] == [("a", "not a")]
    assert b"does not exist" in cli("events", "dead", "nosuch", code=3).stderr


def test_chosen_ones_come_back(cli: Commands, queue: str) -> None:
    done = cli("events", "requeue", queue, "--id", "b", "--id", "nosuch", code=1)
    assert done.stdout == b"requeued 1 in orders\n"
    assert done.stderr == b"apressure: no dead letter of orders has the id 'nosuch'\n"
    assert cli.json("events", "requeue", queue, "--id", "a") == {"name": "orders", "requeued": 1, "not_found": []}
    assert cli.json("events", "stat", queue)["length"] == 3
    assert b"either --id or --max" in cli("events", "requeue", queue, "--id", "a", "--max", "1", code=2).stderr


def test_it_waits_for_room_no_longer_than_that(cli: Commands, queue: str) -> None:
    assert cli("events", "requeue", queue, "--max", "1").stdout == b"requeued 1 in orders\n"
    assert cli.json("events", "requeue", queue) == {"name": "orders", "requeued": 1}
    assert cli.json("events", "requeue", queue) == {"name": "orders", "requeued": 0}
    assert b"does not exist" in cli("events", "requeue", "nosuch", code=3).stderr
