"""Many dead letters are requeued or deleted in steps: each once, whoever works on them at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    Client,
    DeadLetter,
    DeadLetterSearch,
    EventQueue,
    FileQueue,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    TaskQueue,
)
from apressure.monitor import bulk
from apressure.monitor.bulk import Bulk
from apressure.testing.contract import drained
from tests.integration.conftest import in_time

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

KINDS = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")
EVEN, ODD = DeadLetterSearch(error="even"), DeadLetterSearch(error="odd")


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> Any:
    """A queue of each kind whose messages are delivered once."""
    if request.param == "AsyncQueue":
        return AsyncQueue[bytes]("jobs", client=client, max_attempts=1)
    if request.param == "EventQueue":
        return EventQueue[bytes]("jobs", client=client, max_attempts=1)
    if request.param == "TaskQueue":
        return TaskQueue[bytes]("jobs", client=client, max_attempts=1, codec="raw")
    return FileQueue(tmp_path / "jobs", max_attempts=1)


async def bury(queue: Any, count: int) -> list[bytes]:
    """Make dead letters with the numbers from 0 on, for the reasons `even` and `odd` in turn."""
    items = [b"%d" % number for number in range(count)]
    await queue.put_many(items)
    for number in range(count):
        await (await in_time(queue.receive())).nack("odd" if number % 2 else "even")
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    return items


async def test_those_that_fit_are_done_and_no_others(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "LOOK", 7)
    async with queue:
        await queue.create()
        items = await bury(queue, 30)
        assert (await bulk.count(queue, EVEN, 1000)) == (15, 30, 30)
        partly = await bulk.count(queue, EVEN, 10)
        assert (partly.looked, partly.total, partly.complete) == (14, 30, False)
        steps: list[int] = []
        moving = Bulk(queue, "requeue", EVEN, on_step=steps.append)
        await in_time(moving.run())
        assert (moving.done, sum(steps), moving.gone, moving.total, moving.waiting) == (15, 15, 0, 30, "")
        assert await drained(queue) == items[::2]
        deleting = Bulk(queue, "discard", DeadLetterSearch(), most=4)
        await in_time(deleting.run())
        assert deleting.done == 4
        assert [letter.item for letter in await queue.dead_letters()] == items[1::2][4:]
        late = Bulk(queue, "discard", DeadLetterSearch(since=datetime.now(UTC) + timedelta(hours=1)))
        await in_time(late.run())
        assert late.done == 0
        letters = await queue.dead_letters()
        chosen = Bulk(queue, "discard", DeadLetterSearch(ids=[letters[0].id, letters[-1].id, "none"]))
        await in_time(chosen.run())
        assert (chosen.done, chosen.gone) == (2, 1)
        assert await queue.dead_letters() == letters[1:-1]


async def test_several_at_once_do_each_once(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "LOOK", 16)
    monkeypatch.setattr(bulk, "_MOST", 3)
    async with queue:
        await queue.create()
        items = await bury(queue, 80)
        jobs = [Bulk(queue, "requeue", DeadLetterSearch()) for _ in range(2)]
        jobs += [Bulk(queue, "discard", ODD), Bulk(queue, "requeue", EVEN)]
        await in_time(asyncio.gather(*(job.run() for job in jobs)))
        assert sum(job.done for job in jobs) == 80
        assert await queue.dead_letters() == []
        back = Counter(await drained(queue))
        assert set(back.values()) == {1}
        assert len(back) == 80 - jobs[2].done
        assert set(items[::2]) <= set(back)


async def test_what_was_stopped_is_begun_again(queue: Any) -> None:
    async with queue:
        await queue.create()
        items = await bury(queue, 12)
        job = Bulk(queue, "requeue", DeadLetterSearch(), rate=1)
        running = asyncio.ensure_future(job.run())
        while job.done < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        again = Bulk(queue, "requeue", DeadLetterSearch())
        await in_time(again.run())
        assert job.done + again.done == 12
        assert again.gone == 0
        assert await drained(queue) == items


async def test_what_fails_again_at_once_is_moved_once(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "LOOK", 5)
    monkeypatch.setattr(bulk, "_MOST", 1)
    async with queue:
        await queue.create()
        await bury(queue, 20)

        async def fail() -> None:
            while True:
                await (await queue.receive()).nack("odd again")

        failing = asyncio.ensure_future(fail())
        job = Bulk(queue, "requeue", DeadLetterSearch())
        await in_time(job.run())
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
        assert job.done == 20


class Slow:
    """A queue whose clock is an hour behind."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def find_dead_letters(self, search: DeadLetterSearch | None = None, **options: Any) -> Any:
        page = await self._queue.find_dead_letters(**options)
        shown = [later(letter, -3600) for letter in page.letters]
        found = tuple(letter for letter in shown if search is None or search.finds(letter))
        return dataclasses.replace(page, letters=found)

    async def requeue(self, ids: Any, timeout: float) -> Any:
        return await self._queue.requeue(ids=[later(letter, 3600) for letter in ids], timeout=timeout)


def later(letter: DeadLetter[Any], seconds: int) -> DeadLetter[Any]:
    assert letter.when is not None
    return dataclasses.replace(letter, when=letter.when + seconds)


async def test_clocks_may_differ(queue: Any) -> None:
    async with queue:
        await queue.create()
        await bury(queue, 12)

        async def fail() -> None:
            while True:
                await (await queue.receive()).nack("odd again")

        failing = asyncio.ensure_future(fail())
        job = Bulk(Slow(queue), "requeue", DeadLetterSearch(), rate=40, most=13)  # it would go on for ever
        await in_time(job.run())
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
        assert job.done == 12


async def test_those_of_which_nothing_is_known_are_not_passed_over(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LOOK", 4)
    async with AsyncQueue[bytes]("jobs", client=client) as queue, AsyncQueue[bytes]("jobs:dead", client=client) as dead:
        await queue.create()
        await dead.create()
        await dead.put_many([b"a", b"a", *(b"b%d" % number for number in range(6))])
        find = queue.find_dead_letters

        async def shifted(*search: Any, **options: Any) -> Any:
            if await queue.qsize() == 2:  # another one takes older ones away
                await queue.discard([letter.id for letter in await queue.dead_letters() if letter.item == b"a"])
            return await find(*search, **options)

        monkeypatch.setattr(queue, "find_dead_letters", shifted)
        await in_time(Bulk(queue, "requeue", DeadLetterSearch(text="b")).run())
        assert sorted(await drained(queue)) == [b"b%d" % number for number in range(6)]


async def test_what_fails_again_while_it_waits_for_room_is_moved_once(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_PATIENCE", 0.05)
    async with queue:
        await queue.create()
        await bury(queue, 2)
        await queue.set_bound(1)

        async def fail() -> None:
            while True:
                while not job.waiting:  # then it gives those again that it had read before
                    await asyncio.sleep(0.01)
                with contextlib.suppress(QueueEmptyError):
                    await (await queue.receive(timeout=0)).nack("again")

        job = Bulk(queue, "requeue", DeadLetterSearch())
        failing = asyncio.ensure_future(fail())
        await in_time(job.run())
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
        assert (job.done, job.gone) == (2, 0)


async def test_a_dead_letter_that_has_failed_again_is_another(queue: Any) -> None:
    async with queue:
        await queue.create()
        await bury(queue, 1)
        (read,) = await queue.dead_letters()
        await queue.requeue()
        await (await in_time(queue.receive())).nack("again")
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        (again,) = await queue.dead_letters()
        for work in (queue.requeue, queue.discard):
            done = await work(ids=[read])
            assert (done, done.not_found) == (0, (read.id,))
        assert await queue.dead_letters() == [again]
        assert await queue.discard([again]) == 1


async def test_it_waits_for_room_and_says_so(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_PATIENCE", 0.05)
    async with queue:
        await queue.create(bound=20)
        items = await bury(queue, 5)
        await queue.put_many(b"first" for _ in range(18))
        with pytest.raises(QueueFullError):
            await Bulk(queue, "requeue", DeadLetterSearch(), timeout=0).run()
        assert len(await queue.dead_letters()) == 3
        job = Bulk(queue, "requeue", DeadLetterSearch())
        running = asyncio.ensure_future(job.run())
        while not job.waiting:
            await asyncio.sleep(0.01)
        assert "full" in job.waiting
        assert (await in_time(queue.get_many(18))) == [b"first"] * 18
        await in_time(running)
        assert (job.done, job.gone, job.waiting) == (3, 0, "")
        assert await drained(queue) == items
        (item,) = await bury(queue, 1)
        await queue.close()
        with pytest.raises(QueueClosedError):
            await Bulk(queue, "requeue", DeadLetterSearch()).run()
        assert [letter.item for letter in await queue.dead_letters()] == [item]
