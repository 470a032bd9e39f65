"""close, wait_closed, unblock, and the end of queue objects and clients."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    ClientClosedError,
    OperationUnblockedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueInUseError,
    QueueOpenError,
)
from apressure.concurrency import lifetime
from apressure.connection.waiting import rounds
from apressure.pressure.engine import waits
from tests import processes
from tests.integration.conftest import (
    Opener,
    all_fail,
    blocked,
    blocking,
    eventually,
    everything,
    fails,
    in_time,
    open_two,
)
from tests.reference import snapshot


async def test_the_twelve_keys_after_a_close(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(client_id="me", scripting=scripting)
    assert not await queue.closed()
    await queue.close()
    assert await queue.closed()
    keys = snapshot(db, "__pressure__", "jobs")
    assert (keys[":closed"], keys[":producer"], keys[":producer_free"]) == (2, b"me", 1)


async def test_a_second_close_raises_and_gives_the_role_back(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.close()
    before = everything(db)
    await fails(QueueClosedError, queue.close())
    assert snapshot(db, "__pressure__", "jobs")[":producer_free"] == 1
    assert set(everything(db)) == set(before)


async def test_close_of_a_missing_queue_raises(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    for operation in (queue.close(), queue.wait_closed(), queue.delete(), queue.closed()):
        await fails(QueueDoesNotExistError, operation)


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_close_waits_for_the_holder_until_its_timeout(
    open_queue: Opener, db: redis.Redis, scripting: bool, timeout: float
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop("__pressure__:jobs:producer_free")
    db.set("__pressure__:jobs:producer", "plain-client:7")
    raised = await fails(QueueInUseError, queue.close(timeout=timeout), "plain-client:7")
    assert raised.role == "producer"
    assert not await queue.closed()
    db.lpush("__pressure__:jobs:producer_free", 0)
    await in_time(queue.close())


async def test_close_goes_on_when_the_holder_gives_the_role_back(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop("__pressure__:jobs:producer_free")
    task = await blocking(db, queue.close())
    db.lpush("__pressure__:jobs:producer_free", 0)
    await in_time(task)
    assert await queue.closed()
    assert db.llen("__pressure__:jobs:producer_free") == 1


async def test_wait_closed_waits_for_the_close_with_messages_left(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    await queue.put(b"x")
    tasks = [asyncio.create_task(queue.wait_closed()) for _ in range(3)]
    await blocked(db)
    await other.close()
    await in_time(asyncio.gather(*tasks))
    assert db.llen("__pressure__:jobs:closed") == 2
    await in_time(queue.wait_closed())
    await in_time(queue.wait_closed(timeout=0))
    assert await queue.qsize() == 1


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_wait_closed_raises_at_its_timeout(open_queue: Opener, scripting: bool, timeout: float) -> None:
    queue = await open_queue(scripting=scripting)
    raised = await fails(QueueOpenError, queue.wait_closed(timeout=timeout), "still open")
    assert isinstance(raised, TimeoutError)
    assert not isinstance(raised, QueueEmptyError)
    assert raised.name == "jobs"


async def test_wait_closed_notices_that_the_server_was_emptied(
    open_queue: Opener, db: redis.Redis, scripting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue(scripting=scripting)
    monkeypatch.setattr(waits, "SLICE", 0.1)  # instead of five seconds
    monkeypatch.setattr(rounds, "ROUND", 0.1)
    waiting = await blocking(db, queue.wait_closed())
    db.flushall()
    await fails(QueueDoesNotExistError, waiting)


async def test_unblock_ends_every_blocked_operation_of_the_object(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    empty = await open_queue("empty", scripting=scripting)
    await queue.put(b"x")
    tasks = [
        asyncio.create_task(queue.put(b"y")),
        asyncio.create_task(queue.put_many([b"z"])),
        asyncio.create_task(queue.wait_closed()),
    ]
    getters = [asyncio.create_task(empty.get()), asyncio.create_task(empty.get_many(3))]
    await blocked(db, 3)
    assert await queue.unblock() == 3
    await all_fail(OperationUnblockedError, tasks)
    assert not any(task.done() for task in getters)
    assert await empty.unblock() == 2
    await all_fail(OperationUnblockedError, getters)
    assert await queue.unblock() == 0
    # Nothing was put or taken by the waits.
    assert await queue.get_many(5) == [b"x"]
    await empty.put(b"later")
    assert await in_time(empty.get()) == b"later"


async def test_unblock_ends_what_an_exclusive_producer_puts(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    async with queue.producer(exclusive=True, close=False) as producer:
        await producer.put(b"x")
        tasks = [asyncio.create_task(producer.put(b"y")) for _ in range(3)]
        await blocked(db)
        assert (await queue.statistics()).waiting_putters == 3
        assert await queue.unblock() == 3
        await all_fail(OperationUnblockedError, tasks)
    assert await queue.get_many(5) == [b"x"]


async def test_unblock_ends_a_close_that_waits_for_the_role(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop("__pressure__:jobs:producer_free")
    task = await blocking(db, queue.close())
    assert await queue.unblock() == 1
    await fails(OperationUnblockedError, task)
    db.lpush("__pressure__:jobs:producer_free", 0)
    # The token may have been claimed for the close that has ended: it comes back.
    await in_time(queue.put(b"x"))
    await eventually(lambda: db.llen("__pressure__:jobs:producer_free") == 1)
    assert not await queue.closed()


async def test_unblock_leaves_the_operations_of_others(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    task = await blocking(db, other.get())
    assert await queue.unblock() == 0
    await queue.put(b"x")
    assert await in_time(task) == b"x"


@pytest.mark.parametrize("shared", [False, True])
async def test_aclose_ends_waiting_tasks_and_takes_nothing(
    open_queue: Opener, url: str, db: redis.Redis, scripting: bool, shared: bool
) -> None:
    watcher = await open_queue("jobs", scripting=scripting)
    options: dict[str, Any] = {"url": url, "scripting": scripting}
    client = Client(**options)
    queue: AsyncQueue[bytes] = AsyncQueue("jobs", client=client) if shared else AsyncQueue("jobs", **options)
    tasks = [asyncio.create_task(queue.get()), asyncio.create_task(queue.wait_closed())]
    await blocked(db, 2)
    await in_time(queue.aclose())
    await all_fail(ClientClosedError, tasks)
    with pytest.raises(ClientClosedError):
        await queue.put(b"x")
    if shared:
        assert await client.queues() == ["jobs"]
        await client.aclose()
    await queue.aclose()
    await watcher.put(b"x")
    assert await in_time(watcher.get()) == b"x"


async def test_the_end_of_a_client_ends_the_waits_of_all_its_queues(
    open_queue: Opener, client: Client, db: redis.Redis
) -> None:
    queues = [await open_queue(name, client=client) for name in ("a", "b", "c")]
    tasks = [asyncio.create_task(queue.get()) for queue in queues]
    await blocked(db, 3)
    await in_time(client.aclose())
    await all_fail(ClientClosedError, tasks)
    for queue in queues:
        with pytest.raises(ClientClosedError, match="open a new one"):
            await queue.qsize()
    with pytest.raises(ClientClosedError):
        await client.queues()


async def test_every_operation_of_a_closed_object_says_so(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.aclose()
    await queue.aclose()
    operations: list[Any] = [
        queue.create(), queue.exists(), queue.qsize(), queue.bound(), queue.closed(), queue.statistics(),
        queue.put(b"x"), queue.put_nowait(b"x"), queue.put_many([b"x"]), queue.get(), queue.get_nowait(),
        queue.get_many(1), queue.receive(), queue.peek(), queue.peek_newest(), queue.close(), queue.wait_closed(),
        queue.delete(), queue.unblock(), queue.__aenter__(), queue.producer().__aenter__(), queue.__anext__(),
    ]  # fmt: skip
    if scripting:
        operations += [queue.consumer().__aenter__(), queue.producer(exclusive=True).__aenter__()]
    for operation in operations:
        await fails(ClientClosedError, operation)


async def test_connections_are_gone_after_aclose(
    open_queue: Opener, url: str, db: redis.Redis, scripting: bool
) -> None:
    await open_queue(bound=1)
    before = len(db.client_list())
    async with AsyncQueue("jobs", url=url, scripting=scripting) as queue:
        await queue.put(b"x")
        with pytest.raises(TimeoutError):
            await queue.put(b"x", timeout=0.05)
        await queue.get()
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)
        assert len(db.client_list()) > before
    await eventually(lambda: len(db.client_list()) == before)


async def test_a_constructor_does_no_io_and_needs_no_loop() -> None:
    def construct() -> str:
        return repr(AsyncQueue("jobs", url="redis://127.0.0.1:1"))

    assert await asyncio.to_thread(construct) == "<AsyncQueue 'jobs' at 127.0.0.1:1 (database 0)>"


async def test_an_object_that_was_never_used_can_be_closed() -> None:
    await AsyncQueue("jobs", url="redis://127.0.0.1:1").aclose()
    await Client("redis://127.0.0.1:1").aclose()


async def test_queues_work_without_a_block(open_queue: Opener, url: str) -> None:
    await open_queue()
    queue = AsyncQueue("jobs", url=url)
    await queue.put(b"x")
    assert await queue.get() == b"x"
    await queue.aclose()


async def test_another_event_loop_is_refused_in_clear_words(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(queue.get())

    await asyncio.to_thread(elsewhere)
    assert await queue.get() == b"x"


async def test_without_asyncio_the_error_says_so(open_queue: Opener) -> None:
    queue = await open_queue()

    def drive() -> None:
        with pytest.raises(RuntimeError, match="trio is not supported"):
            queue.get().send(None)

    await asyncio.to_thread(drive)


def _child(queue: AsyncQueue[bytes], outcome: Any) -> None:
    async def use() -> None:
        try:
            await queue.get()
        except RuntimeError as error:
            outcome.put(str(error))

    # The parent's loop was running when it forked: a loop that runs is what the child must not be mistaken for.
    asyncio.events._set_running_loop(None)
    asyncio.run(use())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork with threads, which is tested here
async def test_after_a_fork_the_error_says_so(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    context = multiprocessing.get_context("fork")
    outcome = context.Queue()
    child = processes.process(context, _child, queue, outcome)
    try:
        message = await asyncio.to_thread(outcome.get, True, 10)
    finally:
        await asyncio.to_thread(child.join, 10)
        outcome.close()
        await asyncio.to_thread(outcome.join_thread)
    assert "before a fork" in message
    assert await queue.get() == b"x"


async def test_after_a_fork_into_the_same_loop_the_error_says_so(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(lifetime, "_pid", 1)
        with pytest.raises(RuntimeError, match="before a fork"):
            await queue.get()
    assert await queue.get() == b"x"


async def test_connections_of_what_was_blocked_are_gone_after_aclose(
    open_queue: Opener, url: str, db: redis.Redis, scripting: bool
) -> None:
    await open_queue()
    before = len(db.client_list())
    queue = AsyncQueue("jobs", url=url, scripting=scripting)
    tasks = [asyncio.create_task(queue.get()), asyncio.create_task(queue.wait_closed())]
    await blocked(db, 2)
    await queue.aclose()
    await in_time(asyncio.gather(*tasks, return_exceptions=True))
    await eventually(lambda: len(db.client_list()) == before)


async def test_a_cancelled_aclose_releases_the_connections(
    open_queue: Opener, url: str, db: redis.Redis, scripting: bool
) -> None:
    await open_queue()
    before = len(db.client_list())
    queue = AsyncQueue("jobs", url=url, scripting=scripting)
    task = await blocking(db, queue.get())
    closing = asyncio.create_task(queue.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, task, return_exceptions=True)
    await eventually(lambda: len(db.client_list()) == before)
