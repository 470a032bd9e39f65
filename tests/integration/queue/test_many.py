"""Many tasks on one queue object, many queues on one client, and the limit of connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, ConnectionLimitError
from tests.integration.conftest import Opener, blocked, blocking, eventually, fails, in_time

TASKS = 500
EACH = 4


@pytest.mark.parametrize("bound", [0, 3])
async def test_a_thousand_tasks_put_and_get_on_one_object(open_queue: Opener, db: redis.Redis, bound: int) -> None:
    queue = await open_queue(bound=bound)
    got: dict[int, list[int]] = {}
    most = 0

    async def put(number: int) -> None:
        for index in range(EACH):
            await queue.put(b"%d:%d" % (number, index))

    async def get() -> None:
        for _ in range(EACH):
            number, index = map(int, (await queue.get()).split(b":"))
            got.setdefault(number, []).append(index)

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(db.client_list()))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(TASKS):
            group.create_task(put(number))
            group.create_task(get())
    watching.cancel()
    # Nothing lost, nothing doubled, and each task's items in its order.
    assert got == {number: list(range(EACH)) for number in range(TASKS)}
    # One connection for steps and one for each of five waiters; the others are the test's own.
    assert most <= 6 + 2
    statistics = await queue.statistics()
    assert statistics.produced_messages == statistics.consumed_messages == TASKS * EACH


async def test_many_tasks_take_turns_without_scripts(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=3, scripting=False)
    got: list[tuple[int, int]] = []

    async def put(number: int) -> None:
        for index in range(3):
            await queue.put(b"%d:%d" % (number, index))

    async def get() -> None:
        for _ in range(3):
            number, index = map(int, (await queue.get()).split(b":"))
            got.append((number, index))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(put(number))
            group.create_task(get())
    assert sorted(got) == [(number, index) for number in range(50) for index in range(3)]
    for number in range(50):
        assert [index for whose, index in got if whose == number] == [0, 1, 2]
    assert len(db.client_list()) <= 1 + 2 + 2


async def test_several_queues_share_one_connection_for_steps(
    open_queue: Opener, client: Client, db: redis.Redis
) -> None:
    before = len(db.client_list())
    queues = [await open_queue(f"queue-{index}", client=client) for index in range(20)]
    await asyncio.gather(*(queue.put(b"%d" % index) for index, queue in enumerate(queues)))
    assert await asyncio.gather(*(queue.get() for queue in queues)) == [b"%d" % index for index in range(20)]
    assert len(db.client_list()) == before
    assert sorted(await client.queues()) == sorted(queue.name for queue in queues)


async def test_the_end_of_one_queue_leaves_the_others_of_its_client(open_queue: Opener, client: Client) -> None:
    one, two = [await open_queue(name, client=client) for name in ("one", "two")]
    await one.aclose()
    await two.put(b"x")
    assert await two.get() == b"x"


@pytest.mark.parametrize("limit", [1, 2])
async def test_too_few_connections_to_wait_are_a_clear_error_and_no_deadlock(open_queue: Opener, limit: int) -> None:
    queue = await open_queue(bound=1, max_connections=limit)
    for wait in (queue.get(), queue.get(timeout=5)):
        await fails(ConnectionLimitError, wait, f"max_connections={limit}")
    await queue.put(b"x")
    await fails(ConnectionLimitError, queue.put(b"y"), "max_connections")
    # What does not wait goes on.
    assert await queue.get_nowait() == b"x"
    await queue.put(b"z")
    assert (await queue.statistics()).produced_messages == 2


async def test_three_connections_are_enough_for_one_kind_of_waiting(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(max_connections=3)
    other = await open_queue(create=False)
    task = await blocking(db, queue.get(), 2)
    await other.put(b"x")
    assert await in_time(task) == b"x"


async def test_idle_waiters_give_their_connections_up(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=1, max_connections=3)
    other = await open_queue(create=False)
    # A get that waits takes the two connections that are left; a put that waits needs them afterwards.
    task: asyncio.Task[Any] = asyncio.create_task(queue.get())
    await blocked(db, 2)
    await other.put(b"1")
    assert await in_time(task) == b"1"
    await queue.put(b"2")
    await eventually(lambda: db.info("clients")["blocked_clients"] == 1)  # what watched for the end of the queue
    task = await blocking(db, queue.put(b"3"), 2)
    assert await other.get() == b"2"
    await in_time(task)
    assert await queue.get() == b"3"


async def test_the_limit_counts_for_all_queues_of_a_client(open_queue: Opener, url: str, db: redis.Redis) -> None:
    async with Client(url, max_connections=3) as client:
        one = await open_queue("one", client=client)
        two: AsyncQueue[bytes] = await open_queue("two", client=client)
        task = await blocking(db, one.get(), 2)
        await fails(ConnectionLimitError, two.get())
        await two.put(b"x")
        assert await two.get() == b"x"
        await one.put(b"y")
        assert await in_time(task) == b"y"
        assert len(db.client_list()) <= 3 + 1


async def test_without_scripts_the_limit_is_a_clear_error_too(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False, max_connections=1)
    await fails(ConnectionLimitError, queue.put(b"x"), "max_connections=1")
    await fails(ConnectionLimitError, queue.get(), "max_connections=1")
    two = await open_queue(create=False, scripting=False, max_connections=2)
    await in_time(two.put(b"x"))
    assert await in_time(two.get()) == b"x"
