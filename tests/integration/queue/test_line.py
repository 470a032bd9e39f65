"""Of the clients that wait for messages, one watches the queue and the others wait in line: one put wakes one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, QueueEmptyError
from tests.integration.conftest import Opener, blocked, blocking, cancelled, eventually, fails, in_time
from tests.integration.leases.test_leases import running
from tests.reference import ReferenceQueue

BASE = "__pressure__:jobs"
TURNS, WATCH = f"apressure:{BASE}:turns", f"apressure:{BASE}:watch"

Take = Callable[[AsyncQueue[bytes]], Any]

GETTER = """
getting = asyncio.create_task(queue.get())
await asyncio.sleep(0.5)
print("2", flush=True)
await getting
"""
MEMBER = """
async with queue.consumer(shared=True, lease=1) as consumer:
    getting = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0.5)
    print("2", flush=True)
    await getting
"""


async def get(queue: AsyncQueue[bytes]) -> bytes:
    return await queue.get()


async def share(queue: AsyncQueue[bytes]) -> bytes:
    """Wait as a member; having got something, it stays, as one that works."""
    async with queue.consumer(shared=True, ack="manual", prefetch=1, lease=600) as consumer:
        delivery = await anext(consumer)
        await delivery.ack()
        return delivery.item


ways = pytest.mark.parametrize("take", [get, share])


def calls(db: redis.Redis) -> int:
    """How many commands the server has carried out, those inside scripts too."""
    ours = {"cmdstat_info", "cmdstat_config|resetstat"}
    return sum(stat["calls"] for name, stat in db.info("commandstats").items() if name not in ours)


async def quiet(db: redis.Redis) -> int:
    """Wait until the server has nothing to do; returns how many commands it had carried out by then."""
    before, still = calls(db), 0
    while still < 5:
        await asyncio.sleep(0.02)
        now = calls(db)
        still = still + 1 if now == before else 0
        before = now
    return before


@contextlib.asynccontextmanager
async def waiting(url: str, db: redis.Redis, take: Take, count: int) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """So many clients, each of which waits for a message."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for _ in range(count):
            client = await stack.enter_async_context(Client(url))
            tasks.append(asyncio.create_task(take(AsyncQueue("jobs", client=client))))
        await blocked(db, count)
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.usefixtures("long_slices")
@ways
async def test_one_put_costs_at_most_twice_what_it_costs_with_one_that_waits(
    open_queue: Opener, url: str, db: redis.Redis, take: Take
) -> None:
    queue = await open_queue()
    async with waiting(url, db, take, 2):  # the server learns the scripts
        await queue.put_many([b"1", b"2"])
        await quiet(db)
    costs = []
    for count in (1, 64):
        async with waiting(url, db, take, count) as tasks:
            await quiet(db)
            for _ in range(6):  # each second one comes when the watch has been passed on
                db.config_resetstat()
                await queue.put(b"1")
                await eventually(lambda tasks=tasks: any(task.done() for task in tasks))
                cost = await quiet(db)
                assert sum(task.done() for task in tasks) == 1
                costs.append(cost)
                tasks[:] = [task for task in tasks if not task.done()]
                if not tasks:
                    tasks.append(asyncio.create_task(take(queue)))
                    await blocked(db)
                    await quiet(db)
    # A machine that is busy adds something now and then, and never takes away.
    alone, together = (max(min(each[::2]), min(each[1::2])) for each in (costs[:6], costs[6:]))
    assert together <= 2 * alone, costs


@pytest.mark.usefixtures("long_slices")
@ways
@pytest.mark.parametrize("kind", ["ours", "foreign"])
async def test_each_message_reaches_somebody(
    open_queue: Opener, url: str, db: redis.Redis, take: Take, kind: str
) -> None:
    queue = await open_queue()
    reference = ReferenceQueue(db, "jobs")
    async with waiting(url, db, take, 12) as tasks:
        for number in range(12):
            if kind == "ours" and number < 6:
                await queue.put(b"x")
            elif kind == "ours":
                await queue.put_many([b"x"] * 6)
            else:
                reference.put(b"x")
            if number == 6 and kind == "ours":
                break
            await eventually(lambda number=number: sum(task.done() for task in tasks) > number)
        await in_time(asyncio.gather(*tasks))


@pytest.mark.usefixtures("long_slices")
@ways
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_another_one_watches_when_the_one_that_did_no_longer_waits(
    open_queue: Opener, url: str, db: redis.Redis, take: Take, how: str
) -> None:
    queue = await open_queue()
    watcher = await open_queue(create=False)
    task = await blocking(db, take(watcher), 1)
    await quiet(db)
    async with waiting(url, db, take, 5) as tasks:
        await blocked(db, 6)
        await quiet(db)
        assert db.hget(WATCH, "id") == watcher._engine.waits.place
        if how == "cancelled":
            await cancelled(task)
        else:
            await watcher.aclose()
            await asyncio.wait((task,))
        for number in range(5):
            await queue.put(b"%d" % number)
        assert sorted(await in_time(asyncio.gather(*tasks))) == [b"%d" % number for number in range(5)]


@pytest.mark.usefixtures("long_slices")
@ways
async def test_those_in_line_may_be_cancelled(open_queue: Opener, url: str, db: redis.Redis, take: Take) -> None:
    queue = await open_queue()
    async with waiting(url, db, take, 6) as tasks:
        await quiet(db)
        for task in tasks[1:4]:
            await cancelled(task)
        left = [tasks[0], *tasks[4:]]
        for number in range(3):
            await queue.put(b"%d" % number)
        assert sorted(await in_time(asyncio.gather(*left))) == [b"0", b"1", b"2"]


@pytest.mark.usefixtures("long_slices")
@ways
async def test_random_cancellations_leave_the_queue_watched(
    open_queue: Opener, url: str, db: redis.Redis, take: Take
) -> None:
    """Each put reaches one of those who stay, whatever the others do meanwhile."""
    queue = await open_queue()
    fickle = [await open_queue(create=False) for _ in range(3)]
    got: list[bytes] = []
    over = False

    async def patient(number: int) -> None:
        async with Client(url) as client:
            mine: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
            while True:
                got.append(await take(mine))

    async def changes_its_mind(queue: AsyncQueue[bytes], number: int) -> None:
        turn = 0
        while not over:
            turn += 1
            task = asyncio.create_task(take(queue))
            for _ in range((7 * turn + 3 * number) % 23):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0007 * ((turn + number) % 5))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got.append(await task)

    tasks = [asyncio.create_task(patient(number)) for number in range(3)]
    changing = [asyncio.create_task(changes_its_mind(queue, number)) for number, queue in enumerate(fickle)]
    for number in range(150):
        await queue.put(b"%d" % number)
        if take is get:
            await eventually(lambda number=number: len(set(got)) > number)
        else:
            await eventually(lambda: not db.llen(BASE))
    over = True
    await in_time(asyncio.gather(*changing))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.usefixtures("long_slices")
async def test_a_get_that_times_out_leaves_the_queue_watched(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_queue(), await open_queue(create=False)
    for timeout in (0.0001, 0.001, 0.01, 0.05):
        await fails(QueueEmptyError, one.get(timeout=timeout))
    getting = await blocking(db, two.get())
    await quiet(db)
    await one.put(b"1")
    assert await in_time(getting) == b"1"


@pytest.mark.usefixtures("long_slices")
async def test_a_member_that_reads_ahead_does_not_watch(open_queue: Opener, db: redis.Redis) -> None:
    """It has messages in hand, and is busy with them: another member must get the next one."""
    one, two = await open_queue(), await open_queue(create=False)
    await one.put_many([b"%d" % number for number in range(20)])
    seen: list[bytes] = []

    async def work() -> None:
        async with two.consumer(shared=True, lease=600) as consumer:
            async for item in consumer:
                seen.append(item)

    async with one.consumer(shared=True, prefetch=20, lease=600) as busy:
        for _ in range(11):  # by then it has asked ahead twice, the second time in vain
            await in_time(anext(busy))
        await quiet(db)
        working = asyncio.create_task(work())
        await eventually(lambda: len(db.keys(WATCH)) == 1)
        await quiet(db)
        await one.put(b"new")
        await eventually(lambda: b"new" in seen)
    await cancelled(working)


@pytest.mark.usefixtures("long_slices")
async def test_a_turn_that_comes_to_a_get_beside_members_is_passed_on(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    """Getters that waited before there were members cannot get anything now."""
    queue = await open_queue()
    async with waiting(url, db, get, 3) as getters:
        await quiet(db)
        async with waiting(url, db, share, 3) as members:
            await blocked(db, 6)
            await quiet(db)
            for number in range(3):
                await queue.put(b"%d" % number)
            done = await in_time(asyncio.gather(*members))
            assert not any(task.done() for task in getters) or len(done) == 3


@ways
@pytest.mark.parametrize("program", [GETTER, MEMBER])
async def test_another_one_watches_when_the_one_that_did_was_killed(
    open_queue: Opener, url: str, db: redis.Redis, take: Take, program: str
) -> None:
    if (take is get) != (program is GETTER):
        program = GETTER if take is get else MEMBER
        kill = subprocess.Popen.terminate
    else:
        kill = subprocess.Popen.kill
    queue = await open_queue()
    with running(program, url) as process:
        async with waiting(url, db, take, 3) as tasks:
            await quiet(db)
            kill(process)
            process.wait()
            for number in range(3):
                await queue.put(b"%d" % number)
            await in_time(asyncio.gather(*tasks))


@ways
@pytest.mark.parametrize("damage", ["turns", "watch", "both", "id", "times"])
async def test_what_others_write_in_the_line_loses_nothing(
    open_queue: Opener, db: redis.Redis, take: Take, damage: str
) -> None:
    queue, other = await open_queue(), await open_queue(create=False)
    await queue.put_many([b"1", b"2"])
    if damage in {"turns", "both"}:
        db.set(TURNS, "x")
    if damage in {"watch", "both"}:
        db.set(WATCH, "x")
    if damage == "id":
        db.hset(WATCH, mapping={"id": "x", "until": "9999999999999", "others": "9999999999999"})
    if damage == "times":
        db.hset(WATCH, mapping={"id": "x", "until": "x", "others": "y"})
    assert await in_time(take(queue)) == b"1"
    assert await in_time(take(other)) == b"2"
    getting = await blocking(db, take(other))
    await queue.put(b"3")
    assert await in_time(getting) == b"3"
    db.delete(TURNS, WATCH)


async def test_an_exclusive_consumer_stands_in_no_line(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    async with queue.consumer() as consumer:
        task = await blocking(db, anext(consumer))
        assert not db.exists(WATCH, TURNS)
        with db.monitor() as monitor:
            await cancelled(task)
            db.echo("the end")
            seen = []
            while "the end" not in (line := monitor.next_command()["command"]):
                seen.append(line)
    assert not any("watch" in line for line in seen)
