"""Tasks that wait for events of one queue object ask its okq server together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apressure import EventQueue, OperationUnblockedError, QueueClosedError, QueueDoesNotExistError, QueueEmptyError
from apressure.events.remote import notices
from apressure.testing.contract.steps import drained
from tests.integration.events.remote.conftest import Open, in_time

MANY = 200
ITEMS = [b"%d" % number for number in range(40)]

Take = Callable[[Any], Awaitable[Any]]
TAKES: dict[str, Take] = {"get": lambda queue: queue.get(), "receive": lambda queue: queue.receive()}
takes = pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)


async def waiting(queue: EventQueue[Any], take: Take, count: int = MANY) -> list[asyncio.Task[Any]]:
    """Start so many tasks, and return them when they are all waiting."""
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(take(queue)) for _ in range(count)]
    while (await queue.statistics()).waiting_receivers < count:
        await asyncio.sleep(0.01)
    return tasks


async def item_of(taken: Any) -> bytes:
    """Return what a task has taken; a delivery is acknowledged."""
    if isinstance(taken, bytes):
        return taken
    await taken.ack()
    return bytes(taken.raw)


@takes
async def test_many_tasks_ask_together_and_are_served_in_order(
    open_queue: Open, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = await open_queue(), await open_queue()
    tasks = await waiting(queue, take)
    steps: Any = queue._driver.steps
    pop, pops = steps.pop, []

    async def counted(*arguments: Any) -> Any:
        pops.append(arguments)
        return await pop(*arguments)

    monkeypatch.setattr(steps, "pop", counted)
    for item in ITEMS:
        await other.put(item)
    taken = await in_time(asyncio.gather(*tasks[: len(ITEMS)]))
    assert [await item_of(one) for one in taken] == ITEMS
    assert not any(task.done() for task in tasks[len(ITEMS) :])
    assert len(pops) < 5 * len(ITEMS)
    assert await queue.unblock() == MANY - len(ITEMS)
    for task in tasks[len(ITEMS) :]:
        with pytest.raises(OperationUnblockedError):
            await in_time(task)
    assert await drained(other) == []


@takes
@pytest.mark.parametrize("seed", range(5))
async def test_tasks_that_are_cancelled_lose_nothing(open_ours: Open, take: Take, seed: int) -> None:
    chance = random.Random(seed)
    queue, other = await open_ours(), await open_ours()
    tasks = await waiting(queue, take, 60)

    async def put() -> None:
        for item in ITEMS:
            await other.put(item)
            await asyncio.sleep(chance.choice((0, 0, 0.002)))

    async def cancel() -> None:
        for task in chance.sample(tasks, 30):
            task.cancel()
            await asyncio.sleep(chance.choice((0, 0.001, 0.004)))

    await in_time(asyncio.gather(put(), cancel()))
    while (await other.statistics()).length and (await queue.statistics()).waiting_receivers:
        await asyncio.sleep(0.01)
    await queue.unblock()
    outcomes = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    found = [await item_of(one) for one in outcomes if not isinstance(one, BaseException)]
    assert (await other.statistics()).in_flight == 0
    assert sorted(found + await drained(other)) == sorted(ITEMS)


@takes
async def test_each_task_has_its_own_timeout(open_queue: Open, take: Take) -> None:
    queue, other = await open_queue(), await open_queue()
    (first,) = await waiting(queue, take, 1)
    for timeout in (0, 0.05):
        with pytest.raises(QueueEmptyError):
            await in_time(queue.get(timeout=timeout))
    assert not first.done()
    await other.put(b"1")
    assert await item_of(await in_time(first)) == b"1"


@takes
@pytest.mark.parametrize("end", ["close", "delete"])
async def test_the_end_of_the_queue_ends_all_waits(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch, take: Take, end: str
) -> None:
    monkeypatch.setattr(notices, "SLICE", 1)  # the server tells nobody
    queue, other = await open_ours(), await open_ours()
    await queue.create()
    tasks = await waiting(queue, take, 1200)  # more than one command takes
    await getattr(other, end)()
    for outcome in await in_time(asyncio.gather(*tasks, return_exceptions=True)):
        assert isinstance(outcome, QueueClosedError if end == "close" else QueueDoesNotExistError)
    if end == "close":
        await other.delete()


async def test_tasks_with_other_leases_wait_behind_each_other(open_ours: Open) -> None:
    queue, other = await open_ours(), await open_ours()
    tasks = [
        task for lease in (20, 25, 30) for task in await waiting(queue, lambda one, s=lease: one.receive(lease=s), 1)
    ]
    await other.put_many(ITEMS[:3])
    assert [await item_of(await in_time(task)) for task in tasks] == ITEMS[:3]
