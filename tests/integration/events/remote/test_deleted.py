"""What waits on a server of ours learns that the queue was deleted, if it had been created."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from apressure import (
    EventQueue,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    ServerTooOldError,
)
from apressure.events.server import queues
from tests.integration.events.remote.conftest import Open, eventually, fails, in_time, opened, serving


async def is_gone(queue: EventQueue[bytes]) -> bool:
    """Whether nothing is left of the queue: what waited may still be registered for a moment."""
    return not await queue.exists()


async def iterated(queue: EventQueue[Any]) -> list[Any]:
    async with queue.consumer() as consumer:
        return [item async for item in consumer]


@pytest.mark.parametrize("who", ["its server", "another server", "Redis"])
async def test_what_waits_learns_of_it(
    open_ours: Open, url: str, direct: EventQueue[bytes], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(queues, "WATCH", 0.1)
    await direct.create(bound=1)  # by another object than those that wait
    waiting = [await open_ours() for _ in range(3)]
    tasks = [
        asyncio.create_task(operation) for operation in (waiting[0].receive(), waiting[1].get(), iterated(waiting[2]))
    ]
    await eventually(lambda: all(queue._driver.waits._parked for queue in waiting))
    async with contextlib.AsyncExitStack() as stack:
        deleting: Any = direct
        if who == "its server":
            deleting = await open_ours()
        elif who == "another server":
            deleting = await opened(stack, await stack.enter_async_context(serving(url)), "jobs")
        await deleting.delete()
        for task in tasks:
            assert str(await fails(QueueDoesNotExistError, task)).startswith("the queue 'jobs' ")


async def test_a_put_that_waits_for_room_learns_of_it(open_ours: Open, direct: EventQueue[bytes]) -> None:
    await direct.create(bound=1)
    queue = await open_ours()
    await queue.put(b"1")
    await fails(QueueFullError, queue.put_nowait(b"2"))
    tasks = [asyncio.create_task(queue.put(b"2")), asyncio.create_task(queue.put_many([b"3"] * 5000))]
    await eventually(lambda: len(queue._driver.waits._parked) == 2)
    await direct.delete()
    for task in tasks:
        await fails(QueueDoesNotExistError, task)
    await eventually(lambda: is_gone(direct))
    await queue.put(b"4")  # this object has not created it
    assert await queue.get() == b"4"


async def test_an_object_that_has_created_the_queue_expects_it(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours()
    await queue.create()
    await direct.delete()
    for operation in (
        queue.put(b"1"), queue.put_many([b"1", b"2"]), queue.put(b"1", front=True), queue.receive(), queue.get(),
        queue.close(), queue.wait_closed(), iterated(queue),
    ):  # fmt: skip
        await fails(QueueDoesNotExistError, operation)
    await eventually(lambda: is_gone(direct))
    await direct.create()
    await queue.put(b"1")
    assert await direct.get() == b"1"


async def test_a_queue_that_was_not_created_may_go_and_come(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours()
    waiting = asyncio.create_task(queue.receive())
    await eventually(lambda: queue._driver.waits._parked)
    await direct.put(b"0", id="a")
    await (await in_time(waiting)).ack()
    waiting = asyncio.create_task(queue.receive())
    await eventually(lambda: queue._driver.waits._parked)
    with contextlib.suppress(QueueDoesNotExistError):  # it exists as long as somebody is registered
        await direct.delete()
    await direct.put(b"1")
    await (await in_time(waiting)).ack()


async def test_the_last_consumer_deletes_the_queue(open_ours: Open, direct: EventQueue[bytes]) -> None:
    await direct.create()
    items: list[bytes] = []

    async def consume(queue: EventQueue[Any]) -> None:
        async with queue.consumer(delete=True) as consumer:
            items.extend([item async for item in consumer])

    tasks = [asyncio.create_task(consume(await open_ours())) for _ in range(4)]
    await direct.put_many([b"%d" % number for number in range(100)])
    await direct.close()
    for task in tasks:
        await in_time(task)
    assert sorted(items, key=int) == [b"%d" % number for number in range(100)]
    await eventually(lambda: is_gone(direct))


async def test_a_consumer_deletes_only_what_is_drained(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours()
    await direct.create()
    await direct.put_many([b"1", b"2"])
    with pytest.raises(LookupError):
        async with queue.consumer(delete=True) as consumer:
            async for item in consumer:
                raise LookupError(item)
    async with queue.consumer(delete=True) as consumer:
        async for _ in consumer:
            break
    assert await direct.exists()
    await direct.close()
    async with queue.consumer("manual", delete=True) as manual:
        async for delivery in manual:
            assert delivery.raw == b"2"  # it is not acknowledged
            await direct.pause()
            break
    assert (await direct.statistics()).length == 1
    await fails(QueueClosedError, direct.put(b"3"))


async def test_a_released_okq_cannot_delete_a_drained_queue(open_released: Open) -> None:
    queue = await open_released()
    with pytest.raises(ServerTooOldError, match=r"cannot delete it: .* Leave out delete=, or use apressure's server"):
        await queue.consumer(delete=True).__aenter__()
    async with queue.consumer():
        pass
