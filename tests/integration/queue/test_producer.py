"""The producer role: closing at the end of a block, and the exclusive producer."""

from __future__ import annotations

import asyncio

import pytest
import redis

from apressure import (
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    ScriptingRefusedError,
)
from tests.integration.conftest import (
    Opener,
    blocking,
    cancelled,
    eventually,
    everything,
    fails,
    in_time,
    open_two,
    outlived,
)  # fmt: skip


class BodyError(Exception):
    """What a program's own code raises."""


async def test_the_block_puts_and_closes_the_queue_when_it_ends_well(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=5, scripting=scripting)
    async with queue.producer() as producer:
        await producer.put(b"1")
        await producer.put_nowait(b"2")
        assert await producer.put_many([b"3", b"4", b"5"]) == 3
        with pytest.raises(QueueFullError):
            await producer.put(b"6", timeout=0.05)
        with pytest.raises(QueueFullError):
            await producer.put_nowait(b"6")
        assert not await queue.closed()
    assert await queue.closed()
    assert [item async for item in queue] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("exclusive", [False, True])
async def test_an_exception_leaves_the_queue_open(open_queue: Opener, exclusive: bool) -> None:
    queue = await open_queue()
    with pytest.raises(BodyError):
        async with queue.producer(exclusive=exclusive) as producer:
            await producer.put(b"1")
            raise BodyError
    assert not await queue.closed()
    assert (await queue.statistics()).producer.state == "free"
    await in_time(queue.put(b"2"))


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_cancellation_leaves_the_queue_open(open_queue: Opener, db: redis.Redis, exclusive: bool) -> None:
    queue = await open_queue(bound=1)

    async def produce() -> None:
        async with queue.producer(exclusive=exclusive) as producer:
            await producer.put_many([b"1", b"2", b"3"])

    await cancelled(await blocking(db, produce()))
    assert not await queue.closed()
    assert await queue.get_many(5) == [b"1"]
    await in_time(queue.put(b"2"))


@pytest.mark.parametrize("exclusive", [False, True])
async def test_feeders_that_share_a_queue_leave_it_open(open_queue: Opener, exclusive: bool) -> None:
    queue = await open_queue()
    for _ in range(2):
        async with queue.producer(close=False, exclusive=exclusive) as producer:
            await producer.put(b"x")
    assert not await queue.closed()
    assert await queue.qsize() == 2


async def test_leaving_a_queue_that_is_closed_already_is_silent(open_queue: Opener, scripting: bool) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    async with queue.producer():
        await other.close()
    assert await queue.closed()
    async with queue.producer() as producer:
        with pytest.raises(QueueClosedError):
            await producer.put(b"x")


async def test_an_exclusive_producer_that_closes_its_queue_leaves_silently(open_queue: Opener) -> None:
    queue = await open_queue()
    async with queue.producer(exclusive=True) as producer:
        await producer.put(b"x")
        with pytest.raises(QueueInUseError, match="itself"):
            await queue.close()
    assert await queue.closed()


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_block_on_a_missing_queue_raises(open_queue: Opener, exclusive: bool) -> None:
    queue = await open_queue(create=False)
    with pytest.raises(QueueDoesNotExistError):
        async with queue.producer(exclusive=exclusive):
            pytest.fail("no such queue")
    await queue.create()
    async with queue.producer(exclusive=exclusive):
        pass


async def test_a_closed_queue_has_no_exclusive_producer(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.close()
    with pytest.raises(QueueClosedError):
        async with queue.producer(exclusive=True):
            pytest.fail("closed")
    assert (await queue.statistics()).producer.state == "free"


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_nobody_puts_or_closes_beside_an_exclusive_producer(open_queue: Opener, timeout: float) -> None:
    queue = await open_queue(client_id="me")
    other = await open_queue(create=False)
    async with queue.producer(exclusive=True) as producer:
        for operation in (
            other.put(b"x", timeout=timeout),
            other.put(b"x", timeout=timeout, force=True),
            other.put_nowait(b"x"),
            other.put_many([b"x"], timeout=timeout),
            other.close(timeout=timeout),
            other.producer(exclusive=True, timeout=timeout).__aenter__(),
        ):
            raised = await fails(QueueInUseError, operation, "held by me")
            assert (raised.role, raised.holder) == ("producer", "me")
        await producer.put(b"mine")
    assert [item async for item in other] == [b"mine"]


async def test_others_go_on_when_the_exclusive_producer_ends(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    async with queue.producer(exclusive=True, close=False) as producer:
        tasks = [asyncio.create_task(other.put(b"%d" % index)) for index in range(3)]
        closing = await blocking(db, (await open_queue(create=False)).close(), 2)
        await producer.put(b"first")
    await in_time(closing)
    outcomes = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    got = [item async for item in other]
    assert got[0] == b"first"
    # The close and the puts were both waiting: those that came before it are in, the others were told.
    done = [b"%d" % index for index, outcome in enumerate(outcomes) if outcome is None]
    assert got[1:] == done
    assert all(outcome is None or isinstance(outcome, QueueClosedError) for outcome in outcomes)


async def test_a_step_by_step_client_waits_for_an_exclusive_producer_and_goes_on_after_it(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    plain = await open_queue(create=False, scripting=False)
    async with queue.producer(exclusive=True, close=False) as producer:
        task = await blocking(db, plain.put(b"plain"))
        await producer.put(b"exclusive")
    await in_time(task)
    assert await queue.get_many(5) == [b"exclusive", b"plain"]


async def test_an_exclusive_producer_waits_for_the_role(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    db.rpop("__pressure__:jobs:producer_free")
    task = await blocking(db, queue.producer(exclusive=True).__aenter__())
    db.lpush("__pressure__:jobs:producer_free", 0)
    producer = await in_time(task)
    assert db.llen("__pressure__:jobs:producer_free") == 0
    await producer.__aexit__(None, None, None)
    assert db.llen("__pressure__:jobs:producer_free") == 1


async def test_an_exclusive_producer_waits_for_room_like_any_other(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue, bound=2)

    async def produce() -> None:
        async with queue.producer(exclusive=True) as producer:
            assert await producer.put_many(b"%d" % index for index in range(20)) == 20

    task = asyncio.create_task(produce())
    assert await in_time(_drain(other)) == [b"%d" % index for index in range(20)]
    await in_time(task)


async def _drain(queue: object) -> list[bytes]:
    return [item async for item in queue]  # type: ignore[attr-defined]


async def test_the_block_uses_the_role_through_its_own_object(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    async with queue.producer(exclusive=True) as producer:
        for operation in (
            queue.put(b"x"),
            queue.put_nowait(b"x"),
            queue.put_many([b"x"]),
            queue.close(),
            queue.delete(),
        ):
            raised = await fails(QueueInUseError, operation, "itself")
            assert (raised.role, raised.holder) == ("producer", "me")
        await producer.put(b"y")
        assert await queue.get() == b"y"


async def test_a_block_that_ends_waits_for_an_exclusive_one_of_the_same_object(open_queue: Opener) -> None:
    queue = await open_queue()
    began = asyncio.Event()

    async def exclusive() -> None:
        async with queue.producer(exclusive=True, close=False) as producer:
            began.set()
            await asyncio.sleep(0.1)
            await producer.put(b"2")

    async with queue.producer() as producer:
        await producer.put(b"1")
        running = asyncio.ensure_future(exclusive())
        await in_time(began.wait())
    await in_time(running)
    assert await queue.closed()
    assert [item async for item in queue] == [b"1", b"2"]


async def test_the_lease_is_renewed_while_the_program_works(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    async with queue.producer(exclusive=True, lease=2) as producer:
        await outlived(db, "producer")
        with pytest.raises(QueueInUseError):
            await other.put_nowait(b"x")
        await producer.put(b"mine")


async def test_a_queue_deleted_under_an_exclusive_producer_is_told(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue, bound=1)

    async def produce() -> None:
        async with queue.producer(exclusive=True) as producer:
            await producer.put_many([b"1", b"2"])

    task = await blocking(db, produce())
    await in_time(other.delete())
    await fails(QueueDoesNotExistError, task)
    await eventually(lambda: not everything(db))


async def test_without_scripts_no_producer_is_exclusive(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    with pytest.raises(ScriptingRefusedError, match="scripting=False"):
        async with queue.producer(exclusive=True):
            pytest.fail("no lease without scripts")
    await in_time(queue.put(b"x"))


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_producer_puts_inside_its_block_only(open_queue: Opener, exclusive: bool) -> None:
    queue = await open_queue()
    producer = queue.producer(exclusive=exclusive)
    with pytest.raises(RuntimeError, match="inside the producer's block"):
        await producer.put(b"too early")
    async with producer:
        await producer.put(b"1")
    with pytest.raises(RuntimeError, match="inside the producer's block"):
        await producer.put_many([b"too late"])
    assert [item async for item in queue] == [b"1"]
