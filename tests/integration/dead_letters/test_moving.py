"""Dead letters that move into another queue: in one step where that can be, and else first there, then gone here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Client, DeadLetterSearch, EventQueue, FileQueue, QueueInUseError, TaskQueue
from apressure.monitor import bulk
from apressure.testing.contract.dead_letters import die
from apressure.testing.contract.steps import drained
from tests import processes
from tests.integration.commands import environment
from tests.integration.conftest import fails, in_time

pytestmark = pytest.mark.leaves_keys

KINDS: dict[str, Any] = {"AsyncQueue": AsyncQueue, "EventQueue": EventQueue, "TaskQueue": TaskQueue}
ITEMS = [b"0", b"1", b"2"]


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


def opened(kind: str, name: str, client: Client) -> Any:
    return KINDS[kind](name, client=client, codec="raw", max_attempts=1)


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
async def test_from_each_kind_into_each_kind(here: str, there: str, client: Client) -> None:
    source, target = opened(here, "here", client), opened(there, "there", client)
    await source.create()
    await target.create()
    await die(source, ITEMS, ["broken"] * 3)
    letters = await source.dead_letters()
    assert await source.move_dead_letters(target, letters[:2]) == 2
    assert await source.dead_letters() == letters[2:]
    found = [await in_time(target.receive()) for _ in range(2)]
    assert [delivery.raw for delivery in found] == ITEMS[:2]
    assert [delivery.attempts for delivery in found] == [1, 1]
    if there == "EventQueue":
        assert [delivery.id for delivery in found] == [letter.id for letter in letters[:2]]
    for delivery in found:
        await delivery.ack()


async def test_one_step_moves_them_where_that_can_be(
    client: Client, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_steps: list[str] = []

    async def put_letter(queue: Any, letter: Any, timeout: Any) -> bool:
        two_steps.append(queue.name)
        await queue.put(letter.raw, timeout)
        return True

    for kind in (AsyncQueue, FileQueue):
        monkeypatch.setattr(kind, "put_letter", put_letter)
    async with AsyncExitStack() as stack:
        for make, other in (
            (lambda name: AsyncQueue(name, client=client, max_attempts=1), AsyncQueue("far", url=url)),
            (lambda name: FileQueue(tmp_path / name, max_attempts=1), FileQueue(tmp_path / "inner" / "far")),
        ):
            source, near = [await stack.enter_async_context(make(name)) for name in ("here", "near")]
            await stack.enter_async_context(other)
            (tmp_path / "inner").mkdir(exist_ok=True)
            for queue in (source, near, other):
                await queue.create()
            assert (await source.move_dead_letters(near, ["none"])).not_found == ("none",)
            await die(source, ITEMS, ["broken"] * 3)
            first, second, third = await source.dead_letters()
            assert await source.move_dead_letters(near, [first.id, second]) == 2
            assert two_steps == []
            assert sorted(await drained(near)) == ITEMS[:2]
            assert await source.move_dead_letters(other, [third]) == 1  # another client, or another directory
            assert two_steps == ["far"]
            two_steps.clear()
            await near.put(b"3")
            await die(near, [], ["broken"])
            assert await near.move_dead_letters(source, await near.dead_letters()) == 1
            assert two_steps == []
            assert await drained(source) == [b"3"]


async def test_an_event_whose_id_is_in_use_stays(client: Client) -> None:
    source, target = opened("EventQueue", "here", client), opened("EventQueue", "there", client)
    await source.put(b"old", id="order-7")
    await die(source, [], ["broken"])
    await target.put(b"new", id="order-7")
    letters = await source.dead_letters()
    moved = await source.move_dead_letters(target, letters)
    assert (moved, moved.not_found) == (0, ())
    assert await source.dead_letters() == letters
    assert await target.get_many(9) == [b"new"]
    assert await source.move_dead_letters(target, letters) == 1
    assert await target.get_many(9) == [b"old"]


async def test_what_cannot_be_a_task_stays(client: Client) -> None:
    source, target = opened("EventQueue", "here", client), opened("TaskQueue", "there", client)
    await die(source, [b"a", b"\xff"], ["broken"] * 2)
    error = await fails(ValueError, source.move_dead_letters(target, await source.dead_letters()))
    assert "Nothing was moved" in str(error)
    assert len(await source.dead_letters()) == 2
    assert await target.qsize() == 0


async def test_dead_letters_that_others_consume_are_put_nowhere(client: Client, url: str) -> None:
    source, target = opened("AsyncQueue", "here", client), opened("EventQueue", "there", client)
    await source.create()
    await target.create()
    await die(source, ITEMS, ["broken"] * 3)
    letters = await source.dead_letters()
    async with AsyncQueue[bytes]("here:dead", url=url) as dead:
        async with dead.consumer():
            error = await fails(QueueInUseError, source.move_dead_letters(target, letters, timeout=0.05))
        assert error.accepted == await target.qsize() == 0
        assert await source.dead_letters() == letters
        assert await source.move_dead_letters(target, letters) == 3
    assert await source.dead_letters() == []


async def test_a_job_that_waits_for_room_puts_each_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_PATIENCE", 0.02)
    source, target = opened("EventQueue", "here", client), opened("TaskQueue", "there", client)
    await target.create(1)
    await die(source, [b"%d" % number for number in range(6)], ["broken"] * 6)
    job = bulk.Bulk(source, "move", DeadLetterSearch(), target=target)
    running = asyncio.ensure_future(job.run())
    got = []
    while len(got) < 6:
        if job.waiting or running.done():  # it has found no room at least once
            got += await target.get_many(1, timeout=5)
        await asyncio.sleep(0.01)
    await in_time(running)
    assert (got, job.done, job.gone) == ([b"%d" % number for number in range(6)], 6, 0)
    assert await source.dead_letters() == []
    assert await target.qsize() == 0


KILLED = """
import asyncio, os, sys
import apressure
from apressure.core.letters import Letters

async def killed(*_):
    os._exit(9)

Letters._discard = killed

async def main():
    make = lambda kind, name: getattr(apressure, kind)(name, url=sys.argv[3], codec="raw", max_attempts=1)
    async with make(sys.argv[1], "here") as source, make(sys.argv[2], "there") as target:
        await source.move_dead_letters(target, await source.dead_letters())

asyncio.run(main())
"""


@pytest.mark.parametrize(("here", "there"), [("AsyncQueue", "EventQueue"), ("EventQueue", "TaskQueue")])
async def test_killed_between_the_halves_one_is_in_both_and_none_is_lost(
    here: str, there: str, client: Client, url: str
) -> None:
    source, target = opened(here, "here", client), opened(there, "there", client)
    await source.create()
    await target.create()
    await die(source, ITEMS, ["broken"] * 3)
    letters = await source.dead_letters()
    command = [sys.executable, "-c", KILLED, here, there, url]
    with processes.Popen(command, env=environment(url)) as process:
        assert process.wait(60) == 9
    assert await source.dead_letters() == letters
    assert await target.qsize() == 1
    moved = await source.move_dead_letters(target, letters)
    assert moved == (2 if there == "EventQueue" else 3)  # an event with this id is there already
    assert sorted(await drained(target)) == (ITEMS if there == "EventQueue" else [ITEMS[0], *ITEMS])
    assert await source.dead_letters() == letters[: 3 - moved]
