"""A paused queue: consumers take nothing, whatever they are, until it is resumed; and all of them wake then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    ScriptingRefusedError,
    pipe,
    recovery,
    serve,
)
from tests.integration.conftest import (
    PATIENCE,
    Opener,
    all_fail,
    blocked,
    blocking,
    cancelled,
    eventually,
    fails,
    in_time,
)
from tests.integration.leases.test_leases import running
from tests.integration.queue.test_line import calls, quiet
from tests.reference import ReferenceQueue

LIST = "__pressure__:jobs"
OURS = "apressure:__pressure__:jobs"
CONTROL, RESUMED = f"{OURS}:control", f"{OURS}:resumed"

Take = Callable[[AsyncQueue[Any]], Awaitable[bytes]]


async def get(queue: AsyncQueue[Any]) -> bytes:
    return await queue.get()


async def get_many(queue: AsyncQueue[Any]) -> bytes:
    return (await queue.get_many(1))[0]


async def iterate(queue: AsyncQueue[Any]) -> bytes:
    async for item in queue:
        return item
    raise AssertionError("the queue is closed")


async def receive(queue: AsyncQueue[Any]) -> bytes:
    delivery = await queue.receive()
    await delivery.ack()
    return delivery.item


async def receive_many(queue: AsyncQueue[Any]) -> bytes:
    (delivery,) = await queue.receive_many(1)
    await delivery.ack()
    return delivery.item


async def consume(queue: AsyncQueue[Any], **options: Any) -> bytes:
    async with queue.consumer(prefetch=1, ack="manual", **options) as consumer:
        delivery = await anext(consumer)
        await delivery.ack()
        return delivery.item


async def step(consumer: Any) -> Any:
    """The next delivery or item of a consumer, or None at its end: in a task of its own, as each iteration needs."""

    async def advance() -> Any:
        return await anext(consumer, None)

    return await asyncio.create_task(advance())


async def share(queue: AsyncQueue[Any]) -> bytes:
    return await consume(queue, shared=True)


async def be_served(queue: AsyncQueue[Any], **options: Any) -> bytes:
    """Serve until a first item was handled."""
    handled: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handle(item: bytes) -> None:
        if not handled.done():
            handled.set_result(item)

    serving = asyncio.ensure_future(serve(handle, queue, signals=(), **options))
    try:
        await asyncio.wait((serving, handled), return_when=asyncio.FIRST_COMPLETED)
        return handled.result()
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


async def be_served_beside_others(queue: AsyncQueue[Any]) -> bytes:
    return await be_served(queue, shared=True)


async def be_piped(queue: AsyncQueue[Any]) -> bytes:
    """Pipe until a first item was transformed."""
    transformed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def transform(item: bytes) -> None:
        if not transformed.done():
            transformed.set_result(item)

    piping = asyncio.ensure_future(pipe(queue, transform, AsyncQueue("out", client=queue.client)))
    try:
        await asyncio.wait((piping, transformed), return_when=asyncio.FIRST_COMPLETED)
        return transformed.result()
    finally:
        piping.cancel()
        await asyncio.wait((piping,))


WAYS = [get, get_many, iterate, receive, receive_many, consume, share, be_served, be_served_beside_others, be_piped]
ways = pytest.mark.parametrize("take", WAYS)
several = pytest.mark.parametrize("take", [get, share])


@contextlib.asynccontextmanager
async def waiting(url: str, db: redis.Redis, take: Take, count: int) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """So many clients, each of which waits for a message."""
    async with contextlib.AsyncExitStack() as stack:
        tasks: list[asyncio.Task[bytes]] = []
        for _ in range(count):
            client = await stack.enter_async_context(Client(url))
            tasks.append(asyncio.ensure_future(take(AsyncQueue("jobs", client=client))))
        await blocked(db, count)
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@pytest.mark.usefixtures("long_slices")
@ways
async def test_each_way_of_consuming_waits_until_the_queue_is_resumed(
    open_queue: Opener, db: redis.Redis, take: Take
) -> None:
    await open_queue("out")
    queue, operator = await open_queue(), await open_queue(create=False)
    await operator.put_many([b"1", b"2", b"3", b"4"])
    await queue.get_many(2)  # the usual case of a get begins with the second one
    assert await operator.pause()
    task = await blocking(db, take(queue))
    await quiet(db)
    assert not task.done()
    assert (await operator.statistics()).length == 2
    assert await operator.resume()
    assert await in_time(task) == b"3"


@pytest.mark.usefixtures("long_slices")
@ways
async def test_each_way_of_consuming_stops_where_it_waited_before(
    open_queue: Opener, db: redis.Redis, take: Take
) -> None:
    await open_queue("out")
    queue, operator = await open_queue(), await open_queue(create=False)
    task = await blocking(db, take(queue))
    await quiet(db)
    assert await operator.pause()
    await operator.put(b"1")
    await quiet(db)
    assert not task.done()
    assert (await operator.statistics()).length == 1
    assert await operator.resume()
    assert await in_time(task) == b"1"


async def test_pausing_and_resuming_tell_whether_that_is_new(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue(create=False)
    assert not (await queue.statistics()).paused
    assert not await queue.resume()
    assert await queue.pause()
    assert not await other.pause(deadline=PATIENCE)
    assert (await other.statistics()).paused
    since, _, uid = db.hget(CONTROL, "paused").partition(b":")
    assert uid.decode() == queue.client.id
    assert abs(int(since) - db.time()[0] * 1000) < 3_600_000
    assert await other.resume(deadline=PATIENCE)
    assert not await queue.resume()
    assert not (await queue.statistics()).paused
    assert not db.exists(CONTROL)


async def test_a_queue_that_does_not_exist(open_queue: Opener) -> None:
    queue = await open_queue(create=False)
    await fails(QueueDoesNotExistError, queue.pause())
    await fails(QueueDoesNotExistError, queue.resume())


async def test_without_scripts_a_pause_is_refused_and_shown_and_stops_nothing(open_queue: Opener) -> None:
    queue, plain = await open_queue(), await open_queue(create=False, scripting=False)
    await fails(ScriptingRefusedError, plain.pause(), "pause needs scripts")
    await fails(ScriptingRefusedError, plain.resume(), "resume needs scripts")
    await queue.pause()
    assert (await plain.statistics()).paused
    await queue.put(b"1")
    assert await in_time(plain.get()) == b"1"


async def test_foreign_clients_go_on(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.pause()
    await queue.put(b"1")
    assert await asyncio.to_thread(ReferenceQueue(db, "jobs").get) == b"1"


@pytest.mark.parametrize("take", ["get", "receive", "get_nowait", "shared"])
async def test_who_may_not_wait_learns_that_the_queue_is_paused(open_queue: Opener, take: str) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    await queue.pause()
    operation: dict[str, Callable[[], Awaitable[Any]]] = {
        "get": lambda: queue.get(timeout=0.01),
        "receive": lambda: queue.receive(timeout=0),
        "get_nowait": queue.get_nowait,
        "shared": lambda: queue.get_many(3, timeout=0),
    }
    await fails(QueueEmptyError, operation[take](), "is paused")
    assert await queue.qsize() == 1
    await queue.resume()
    assert await in_time(operation[take]())


async def test_puts_go_on_up_to_the_bound(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_queue(bound=2), await open_queue(create=False)
    await queue.pause()
    await queue.put_many([b"1", b"2"])
    await fails(QueueFullError, queue.put_nowait(b"3"))
    putting = await blocking(db, queue.put(b"3"))
    await other.resume()
    assert await other.get_many(2) == [b"1", b"2"]
    await in_time(putting)


@pytest.mark.parametrize("shared", [False, True])
async def test_what_is_in_hand_can_be_settled(open_queue: Opener, db: redis.Redis, shared: bool) -> None:
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.consumer(prefetch=2, ack="manual", shared=shared, lease=0.6) as consumer:
        first, second = await step(consumer), await step(consumer)
        await operator.pause()
        deadline = db.hget(f"{OURS}:consumer_lease", "deadline")
        await eventually(lambda: db.hget(f"{OURS}:consumer_lease", "deadline") != deadline)
        await first.ack()
        await second.nack()
        statistics = await operator.statistics()
        assert (statistics.consumed_messages, statistics.length, statistics.in_flight) == (1, 2, 0)
        task = await blocking(db, step(consumer))
        await quiet(db)
        assert not task.done()
        await operator.resume()
        again = await in_time(task)
        assert (again.item, again.attempts) == (b"2", 2)
        await again.ack()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_loop_stops_between_two_items(open_queue: Opener, db: redis.Redis, shared: bool) -> None:
    """The step that acknowledges an item brings no other one."""
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put_many([b"1", b"2", b"3", b"4"])
    async with queue.consumer(prefetch=1, shared=shared, lease=600) as consumer:
        assert [await step(consumer), await step(consumer)] == [b"1", b"2"]
        await operator.pause()
        task = await blocking(db, step(consumer))
        await quiet(db)
        assert not task.done()
        statistics = await operator.statistics()
        assert (statistics.consumed_messages, statistics.length, statistics.in_flight) == (2, 2, 0)
        await operator.resume()
        assert await in_time(task) == b"3"


@pytest.mark.parametrize("shared", [False, True])
async def test_a_prefetched_buffer_goes_back_with_the_next_acknowledgement(
    open_queue: Opener, db: redis.Redis, shared: bool
) -> None:
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put_many([b"%d" % number for number in range(10)])
    async with queue.consumer(prefetch=10, ack="manual", shared=shared, lease=600) as consumer:
        first = await step(consumer)
        assert db.llen(LIST) == 0
        await operator.pause()
        await first.ack()
        await eventually(lambda: db.llen(LIST) == 9)
        task = await blocking(db, step(consumer))
        await quiet(db)
        assert not task.done()
        await operator.resume()
        taken = [await in_time(task), *[await in_time(step(consumer)) for _ in range(8)]]
        assert [delivery.item for delivery in taken] == [b"%d" % number for number in range(1, 10)]
        assert [delivery.attempts for delivery in taken] == [1] * 9  # nobody has seen them before
        for delivery in taken:
            await delivery.ack()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_prefetched_buffer_goes_back_while_the_body_is_busy(
    open_queue: Opener, db: redis.Redis, shared: bool
) -> None:
    """Nothing is settled: the thread that renews the lease learns of the pause."""
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put_many([b"%d" % number for number in range(10)])
    async with queue.consumer(prefetch=10, shared=shared, lease=0.9) as consumer:
        assert await step(consumer) == b"0"
        await operator.pause()
        await eventually(lambda: db.llen(LIST) == 9)
        await operator.resume()
        assert [await in_time(step(consumer)) for _ in range(9)] == [b"%d" % number for number in range(1, 10)]


async def test_a_consumer_that_prefetches_many_stops_and_goes_on(open_queue: Opener, db: redis.Redis) -> None:
    """It asks for the second half of what it prefetches while it works on the first: it learns of the pause then."""
    queue, operator = await open_queue(), await open_queue(create=False)
    items = [b"%d" % number for number in range(200)]
    await queue.put_many(items)
    taken: list[bytes] = []

    async def consume_all() -> None:
        async with queue.consumer(prefetch=40) as consumer:
            async for item in consumer:
                taken.append(item)
                if len(taken) == 50:
                    await operator.pause()

    task = await blocking(db, consume_all())
    assert 50 <= len(taken) < 200
    await eventually(lambda: db.llen(LIST) == 200 - len(taken))
    await quiet(db)
    assert db.llen(LIST) == 200 - len(taken)
    await operator.close()
    await operator.resume()
    await in_time(task)
    assert taken == items


@pytest.mark.usefixtures("long_slices")
@several
async def test_all_who_wait_wake_once(open_queue: Opener, url: str, db: redis.Redis, take: Take) -> None:
    queue = await open_queue()
    await queue.pause()
    await queue.put(b"0")
    async with waiting(url, db, take, 64) as tasks:
        await quiet(db)
        steps = db.info("commandstats")["cmdstat_evalsha"]["calls"]
        before = calls(db)
        await queue.resume()
        await eventually(lambda: any(task.done() for task in tasks))
        after = await quiet(db)
        # Each tries once, and one more where the first one that got something passed the watch on.
        assert 64 <= db.info("commandstats")["cmdstat_evalsha"]["calls"] - steps <= 3 * 64
        assert after > before
        assert sum(task.done() for task in tasks) == 1
        await queue.put_many([b"%d" % number for number in range(1, 64)])
        assert sorted(await in_time(asyncio.gather(*tasks))) == sorted(b"%d" % number for number in range(64))


@pytest.mark.usefixtures("long_slices")
@several
async def test_those_in_line_are_paused_and_resumed(open_queue: Opener, url: str, db: redis.Redis, take: Take) -> None:
    """Some have noticed the pause, others wait in line all the time: each message reaches somebody."""
    queue = await open_queue()
    async with waiting(url, db, take, 12) as tasks:
        await quiet(db)
        for number in range(12):
            await queue.pause()
            await queue.put(b"%d" % number)
            if number % 3:
                await quiet(db)
            assert sum(task.done() for task in tasks) == number
            await queue.resume()
            await eventually(lambda number=number: sum(task.done() for task in tasks) > number)


@pytest.mark.usefixtures("long_slices")
@several
async def test_who_is_cancelled_while_paused_leaves_the_others_watched(
    open_queue: Opener, url: str, db: redis.Redis, take: Take
) -> None:
    queue = await open_queue()
    async with waiting(url, db, take, 6) as tasks:
        await quiet(db)
        await queue.pause()
        await queue.put(b"x")
        await quiet(db)
        for task in tasks[:3]:
            await cancelled(task)
        await queue.resume()
        await eventually(lambda: sum(task.done() for task in tasks[3:]) == 1)
        await queue.put(b"x")
        await eventually(lambda: sum(task.done() for task in tasks[3:]) == 2)
        await queue.put(b"x")
        await in_time(asyncio.gather(*tasks[3:]))


async def test_a_paused_client_sends_next_to_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queues = [await open_queue(create=number == 0) for number in range(4)]
    await queues[0].pause()
    await queues[0].put(b"1")
    tasks = [asyncio.ensure_future(take(queue)) for take, queue in zip((get, receive, share), queues[1:], strict=True)]
    await blocked(db, 3)
    await quiet(db)
    db.config_resetstat()
    await asyncio.sleep(6)
    commands = {name: figures["calls"] for name, figures in db.info("commandstats").items()}
    # Six seconds hold one or two slices of five; a member of a shared role also renews its lease.
    assert sum(commands.get(f"cmdstat_{name}", 0) for name in ("blmove", "evalsha", "eval")) <= 20, commands
    for task in tasks:
        await cancelled(task)


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("take", [get, receive, consume, share])
async def test_deleted_while_paused(open_queue: Opener, db: redis.Redis, take: Take) -> None:
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put(b"1")
    await operator.pause()
    task = await blocking(db, take(queue))
    await quiet(db)
    await in_time(operator.delete())
    await all_fail(QueueDoesNotExistError, [task])
    await operator.create()
    assert not (await operator.statistics()).paused
    await operator.put(b"2")
    assert await in_time(take(queue)) == b"2"


async def test_create_clears_the_pause_of_an_earlier_queue(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.pause()
    db.delete(f"{LIST}:bound")  # as a client that does not know our keys deletes it
    await queue.create()
    assert not (await queue.statistics()).paused


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("take", [get, receive, consume, share])
@pytest.mark.parametrize("items", [[], [b"1"]])
async def test_closed_while_paused_consumers_wait_and_then_drain(
    open_queue: Opener, db: redis.Redis, take: Take, items: list[bytes]
) -> None:
    queue, operator = await open_queue(), await open_queue(create=False)
    await queue.put_many(items)
    await operator.pause()
    task = await blocking(db, take(queue))
    await operator.close()
    await quiet(db)  # it does not spin on :closed, either
    assert not task.done()
    statistics = await operator.statistics()
    assert (statistics.closed, statistics.paused) == (True, True)
    await operator.resume()
    if items:
        assert await in_time(task) == b"1"
    else:
        ended = (await asyncio.wait((task,), timeout=PATIENCE))[0].pop().exception()
        assert isinstance(ended, QueueClosedError | StopAsyncIteration | RuntimeError)


async def test_members_that_wait_for_the_end_wait_for_the_end_of_a_pause_first(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other, operator = [await open_queue(create=number == 0) for number in range(3)]
    await operator.put(b"1")
    await operator.close()
    async with queue.consumer(shared=True, ack="manual", lease=600) as consumer:
        delivery = await step(consumer)
        async with other.consumer(shared=True, lease=600) as draining:
            task = await blocking(db, step(draining))
            await operator.pause()
            await delivery.ack()
            await quiet(db)
            assert not task.done()
            await operator.resume()
            assert await in_time(task) is None
        assert await in_time(step(consumer)) is None


@pytest.mark.usefixtures("long_slices")
async def test_who_waits_for_the_role_gives_it_back_and_waits_for_the_end_of_the_pause(
    open_queue: Opener, db: redis.Redis
) -> None:
    holder, queue, operator = [await open_queue(create=number == 0) for number in range(3)]
    await operator.put(b"1")
    async with holder.consumer():
        task = await blocking(db, queue.get())
        await operator.pause()
    await eventually(lambda: db.llen(f"{LIST}:consumer_free") == 1)
    await quiet(db)
    assert not task.done()
    assert db.llen(f"{LIST}:consumer_free") == 1
    await operator.resume()
    assert await in_time(task) == b"1"


@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_dead_consumer_had_waits_until_the_queue_is_resumed(
    open_queue: Opener, url: str, db: redis.Redis, shared: bool
) -> None:
    queue, operator = await open_queue(), await open_queue(create=False)
    await operator.put_many([b"1", b"2"])
    body = f"""
async with queue.consumer(shared={shared}, lease=0.5, prefetch=2) as consumer:
    await anext(consumer)
    print("2", flush=True)
    await asyncio.sleep(600)
"""
    with running(body, url) as process:
        await operator.pause()
        process.kill()
        async with queue.consumer(shared=True) as consumer:
            task = asyncio.create_task(step(consumer))
            await eventually(lambda: db.llen(LIST) == 2)
            await quiet(db)
            assert not task.done()
            await operator.resume()
            assert await in_time(task) == b"1"
            assert consumer.attempts == 2
            assert await in_time(step(consumer)) == b"2"


async def test_a_pause_outlives_who_paused(open_queue: Opener, url: str, db: redis.Redis) -> None:
    queue = await open_queue()
    body = "await queue.pause()\nprint('2', flush=True)\nawait asyncio.sleep(600)"
    with running(body, url) as process:
        process.kill()
        process.wait()
    assert db.ttl(CONTROL) == -1
    await queue.put(b"1")
    task = await blocking(db, queue.get())
    assert not task.done()
    assert await queue.resume()
    assert await in_time(task) == b"1"


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_moment_it_is_paused_or_not(open_queue: Opener, turns: int) -> None:
    queue = await open_queue()
    for operation, after in ((queue.pause, queue.resume), (queue.resume, queue.pause)):
        task = asyncio.ensure_future(operation())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        changed = task.exception() is None and task.result() if not task.cancelled() else None
        paused = (await queue.statistics()).paused
        if changed is not None:
            assert paused == (operation == queue.pause)
        assert await after() == (paused == (operation == queue.pause))
    await queue.resume()


async def test_a_step_whose_reply_was_lost_is_repeated_and_comes_too_late_without_effect(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    steps = queue._engine.steps  # type: ignore[union-attr]
    for name, head in (("pause", [b"other"]), ("resume", [])):
        call = steps.series().call(name, lambda: (queue._engine.keys.resumed,))

        async def run(again: bytes, call: Any = call, head: list[bytes] = head) -> Any:
            return await steps._ask(call, [*head, 1, again])

        if name == "resume":
            await queue.pause()
        assert [await run(b"0"), await run(b"1"), await run(b"0")] == [1, 1, 1]
        assert (await queue.statistics()).paused == (name == "pause")
        await (queue.resume if name == "pause" else queue.pause)()
        assert [await run(b"1"), await run(b"0")] == [1, 1]  # long ago
        assert (await queue.statistics()).paused == (name == "resume")
    await queue.resume()
    assert db.llen(RESUMED) == 1
    await queue.pause()
    assert not db.exists(RESUMED)


async def test_purge_and_peek_work_on_a_paused_queue(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await queue.pause()
    assert await queue.peek() == b"1"
    assert await queue.purge() == 2


async def test_dead_letters_wait_too(open_queue: Opener) -> None:
    """Nothing moves on a paused queue, and a pause of the dead-letter queue does not stop those that come there."""
    queue = await open_queue(max_attempts=1)
    dead = await open_queue("jobs:dead")
    await queue.put(b"1")
    await (await queue.receive()).nack()
    await queue.pause()
    await fails(QueueEmptyError, queue.receive(timeout=0), "is paused")
    assert (await queue.qsize(), await dead.qsize()) == (1, 0)
    await queue.resume()
    await dead.pause()
    await fails(QueueEmptyError, queue.receive(timeout=0), "is empty")
    assert (await queue.qsize(), await dead.qsize()) == (0, 1)
    assert await queue.requeue() == 1  # an operator's move


async def test_the_doctor_says_it(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue("a b")
    await queue.pause()
    (finding,) = (await recovery.examine(queue, patience=0.01)).findings
    assert (finding.kind, finding.fault, finding.repair) == ("paused", False, "none")
    assert repr(queue.client.id) in finding.text
    assert finding.advice == "To let them go on: apressure resume 'a b'."
    control = "apressure:__pressure__:a b:control"
    for value in (b"x", b":", b"9" * 30 + b":z"):
        db.hset(control, "paused", value)
        (finding,) = (await recovery.examine(queue, patience=0.01)).findings
        assert finding.kind == "paused"
    db.delete(control)
    db.lpush(control, 1)
    await recovery.repair(queue, patience=0.01)
    assert not (await queue.statistics()).paused
    db.delete(*db.keys("*.damaged-*"))


async def test_random_pauses_lose_and_double_nothing(open_queue: Opener, url: str) -> None:
    queue, operator = await open_queue(bound=20), await open_queue(create=False)
    taken: list[bytes] = []

    async def work() -> None:
        async with Client(url) as client:
            mine: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
            async with mine.consumer(shared=True) as consumer:
                async for item in consumer:
                    taken.append(item)
                    await asyncio.sleep(0.0005)

    async def produce() -> None:
        await queue.put_many([b"%d" % number for number in range(1500)])
        await queue.close()

    async def interrupt() -> None:
        while True:
            await operator.pause()
            await asyncio.sleep(0.01)
            await operator.resume()
            await asyncio.sleep(0.02)

    workers = [asyncio.ensure_future(work()) for _ in range(4)]
    interrupting = asyncio.ensure_future(interrupt())
    await in_time(produce())
    await in_time(asyncio.gather(*workers))
    await cancelled(interrupting)
    assert sorted(taken, key=int) == [b"%d" % number for number in range(1500)]
