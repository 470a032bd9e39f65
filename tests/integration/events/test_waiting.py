"""Waiting: a push wakes one client, nobody is forgotten, and an idle queue costs next to nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
import redis

from apressure import Client, EventQueue, OperationUnblockedError
from apressure.embedded import EmbeddedServer
from tests.integration.events.conftest import Open, blocked, consistent, eventually, in_time
from tests.okq import Okq
from tests.servers import blocked_clients, frozen


def scripts(db: redis.Redis) -> int:
    stats = db.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "okq"])
async def test_a_push_wakes_one_client(open_queue: Open, db: redis.Redis, long_slices: None, theirs: bool) -> None:
    pusher, okq = await open_queue(), Okq(db)
    await pusher.put(b"the server learns the scripts")
    await pusher.get()
    waiting = [await open_queue() for _ in range(12)]
    tasks = [asyncio.create_task(one.receive(lease=600)) for one in waiting]
    await blocked(db, 12)
    await asyncio.sleep(0.5)
    for number in range(12):
        before = scripts(db)
        if theirs:
            okq.push("jobs", str(number), b"x")
        else:
            await pusher.put(b"x")
        await eventually(lambda number=number: sum(task.done() for task in tasks) > number)
        await asyncio.sleep(0.1)
        # The push, the receive of the one that watched, and the look of the one that watches now.
        assert scripts(db) - before <= 3
    for task in tasks:
        await task.result().ack()


async def test_a_batch_reaches_many(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    waiting = [await open_queue() for _ in range(8)]
    tasks = [asyncio.create_task(one.receive(lease=600)) for one in waiting]
    await blocked(db, 8)
    await (await open_queue()).put_many([b"x"] * 8)
    for delivery in await in_time(asyncio.gather(*tasks)):
        await delivery.ack()


async def test_a_step_beside_the_wait_does_not_overtake_it(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server("valkey")
    async with EventQueue("jobs", url=server.url) as queue, EventQueue("jobs", url=server.url) as other:
        await other.put_many([b"0", b"1"])
        assert await other.get_many(2) == [b"0", b"1"]  # the server knows the scripts
        first = asyncio.create_task(queue.receive())
        await eventually(lambda: blocked_clients(server) == 1)
        await asyncio.sleep(0.1)  # a step stands behind the wait
        with frozen(server):
            putting = asyncio.create_task(other.put_many([b"2", b"3", b"4"]))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(queue.receive(timeout=0))  # it sends a step for both
            await asyncio.sleep(0.1)
        await in_time(putting)
        for task, number in ((first, b"2"), (second, b"3")):
            delivery = await in_time(task)
            assert delivery.item == number
            await delivery.ack()
        assert await in_time(queue.get()) == b"4"
        assert (await queue.statistics()).deleted_count == 3


async def test_room_wakes_one_after_the_other(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"0")
    putting = [asyncio.create_task((await open_queue()).put(b"%d" % number)) for number in range(1, 7)]
    await blocked(db, 6)
    await asyncio.sleep(0.2)
    for number in range(7):
        assert await queue.qsize() == 1
        await in_time(queue.get())
        await eventually(lambda number=number: sum(task.done() for task in putting) >= min(6, number + 1))
    assert await queue.qsize() == 0


async def test_expiry_wakes_those_who_wait(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put(b"1")
    await queue.receive(lease=1)
    again = await in_time(other.receive())
    assert again.redelivered
    await again.ack()


async def test_another_watches_when_the_watcher_leaves(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    first, second, third = await open_queue(), await open_queue(), await open_queue()
    leaving = asyncio.create_task(first.receive())
    await blocked(db)
    staying = asyncio.create_task(second.receive())
    await blocked(db, 3)
    leaving.cancel()
    await asyncio.wait((leaving,))
    await third.put(b"1")
    await (await in_time(staying)).ack()
    staying = asyncio.create_task(second.receive())
    await asyncio.sleep(0.3)
    closing = asyncio.create_task(third.receive())
    await asyncio.sleep(0.3)
    await second.aclose()
    with pytest.raises(Exception, match="closed"):
        await staying
    await first.put(b"2")
    await (await in_time(closing)).ack()


async def test_a_dead_watcher_is_replaced(open_queue: Open, db: redis.Redis, url: str) -> None:
    async with Client(url) as client:
        dead = EventQueue("jobs", client=client)
        watching = asyncio.create_task(dead.receive())
        await blocked(db)
        queue = await open_queue()
        receiving = asyncio.create_task(queue.receive())
        await blocked(db, 2)
        db.client_kill_filter(_type="normal", skipme=True)
        watching.cancel()
        await asyncio.wait((watching,))
    await (await open_queue()).put(b"1")
    await (await in_time(receiving)).ack()


async def test_random_cancellations_leave_nobody_waiting(open_queue: Open, db: redis.Redis) -> None:
    """Waits with short timeouts and cancellations, all the time: everything that is put is received."""
    chosen = random.Random(1)
    queue = await open_queue(bound=3)
    received: list[bytes] = []

    async def receive(source: EventQueue[bytes]) -> None:
        while len(received) < 150:
            task = asyncio.ensure_future(source.receive(timeout=chosen.uniform(0, 0.3), lease=600))
            if chosen.random() < 0.3:
                await asyncio.sleep(chosen.uniform(0, 0.05))
                task.cancel()
            try:
                delivery = await task
            except (asyncio.CancelledError, TimeoutError):
                continue
            await delivery.ack()
            received.append(delivery.raw)

    async def put(source: EventQueue[bytes], first: int) -> None:
        for number in range(first, first + 50):
            while True:
                try:
                    await source.put(b"%d" % number, timeout=chosen.uniform(0, 0.3))
                    break
                except TimeoutError:
                    continue

    others = [await open_queue() for _ in range(5)]
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(put(others[number], 50 * number))
        for source in (queue, *others[3:]):
            group.create_task(receive(source))
    assert sorted(received, key=int) == [b"%d" % number for number in range(150)]
    assert consistent(db)


async def test_what_a_cancelled_receive_took_is_the_next_ones(queue: EventQueue[bytes]) -> None:
    """Cancelled at any moment, it gives back what it took before another task's receive leaves."""
    await queue.put_many(b"%d" % number for number in range(120))
    expected = 0
    for turn in range(60):
        first = asyncio.create_task(queue.receive(lease=600))
        for _ in range(turn % 15):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first,))
        if not first.cancelled():
            assert first.result().raw == b"%d" % expected
            await first.result().ack()
            expected += 1
        second = await queue.receive(lease=600)
        assert (second.raw, second.attempts) == (b"%d" % expected, 1)
        await second.ack()
        expected += 1
    await queue.purge()


async def test_tasks_that_are_cancelled_together_give_back_in_order(queue: EventQueue[bytes]) -> None:
    items = [b"%d" % number for number in range(30)]
    for turns in range(12):
        await queue.put_many(items)
        tasks = [asyncio.create_task(queue.receive(lease=600)) for _ in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        later = asyncio.create_task(queue.receive_many(100, lease=600))
        await asyncio.wait(tasks)
        got = [task.result() for task in tasks if not task.cancelled()]
        rest = await in_time(later)
        while sum(map(len, (got, rest))) < 30:
            rest += await in_time(queue.receive_many(100, lease=600))
        assert sorted((one.raw for one in (*got, *rest)), key=int) == items
        assert {one.attempts for one in rest} == {1}
        for one in (*got, *rest):
            await one.ack()


async def test_unblock_ends_what_waits(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(bound=1), await open_queue()
    await queue.put(b"0")
    tasks = [asyncio.create_task(queue.put(b"1")), asyncio.create_task(queue.wait_closed())]
    await blocked(db, 2)
    assert await other.unblock() == 0
    assert await queue.unblock() == 2
    for task in tasks:
        with pytest.raises(OperationUnblockedError):
            await in_time(task)
    assert await queue.get_many(5) == [b"0"]
    receiving = asyncio.create_task(queue.receive())
    await blocked(db, 3)
    assert await queue.unblock() == 1
    with pytest.raises(OperationUnblockedError):
        await in_time(receiving)
    await queue.put(b"2")
    assert await in_time(other.get()) == b"2"


async def test_a_turn_that_comes_for_nobody_goes_to_the_next(
    open_queue: Open, db: redis.Redis, long_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is cancelled in the very turn of the event loop in which its client's turn comes."""
    queues = [await open_queue() for _ in range(4)]
    tasks = []
    for number, source in enumerate(queues[:3]):
        tasks.append(asyncio.create_task(source.receive(lease=600)))
        await blocked(db, 2 + number)  # the first one waits for the list, and for the end
    waiter = queues[1]._driver.waits.turns
    original = waiter._wake

    def wake(error: Exception | None) -> bool:
        tasks[1].cancel()
        return original(error)

    monkeypatch.setattr(waiter, "_wake", wake)
    await queues[3].put(b"1")
    await (await in_time(tasks[0])).ack()
    await queues[3].put(b"2")
    await (await in_time(tasks[2])).ack()
    assert tasks[1].cancelled()
