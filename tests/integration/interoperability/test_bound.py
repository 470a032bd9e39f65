"""The bound holds, whatever apressure does between two commands of a client that works step by step.

Each operation of ours runs between any two commands of an operation of theirs. Then they put until the queue is full:
it must hold as many messages as its bound says. One more means a permit too many, one less a permit that was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import redis

from apressure import AsyncQueue, Delivery, exceptions, recovery
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.plain.role_lock import RoleLock
from tests.integration.interoperability.both import (
    NAME,
    PATIENCE,
    PREFIX,
    open_queue,
    outcome_of,
)
from tests.reference import ProtocolError, QueueFullError, ReferenceQueue

KEYS = Keys(PREFIX, NAME)
Queue = AsyncQueue[bytes]
Step = Callable[[Queue, redis.Redis, Delivery[bytes] | None], Awaitable[object]]


async def heal(queue: Queue, db: redis.Redis, _: object) -> None:
    """Our consumer is dead: the next step puts back what it had in flight."""
    db.hset(KEYS.lease("consumer"), "deadline", 1)
    await queue.put_nowait(b"heals, and is refused")


async def requeue(queue: Queue, db: redis.Redis, _: object) -> None:
    ReferenceQueue(db, f"{NAME}:dead").create()
    ReferenceQueue(db, f"{NAME}:dead").put_nowait(b"dead letter")
    await queue.requeue(timeout=0)


async def exclusive_put(queue: Queue, _: redis.Redis, __: object) -> None:
    async with queue.producer(close=False, exclusive=True) as producer:
        await producer.put_nowait(b"ours")


async def repair(queue: Queue, _: redis.Redis, __: object) -> None:
    await recovery.repair(queue, patience=0.0)


def settled(delivery: Delivery[bytes] | None) -> Delivery[bytes]:
    assert delivery is not None
    return delivery


BESIDE_A_PUT: dict[str, Step] = {
    "get": lambda queue, _, __: queue.get_nowait(),
    "get many": lambda queue, _, __: queue.get_many(9, timeout=0),
    "receive": lambda queue, _, __: queue.receive(timeout=0),
    "put": lambda queue, _, __: queue.put_nowait(b"ours"),
    "close": lambda queue, _, __: queue.close(timeout=0),
    "repair": repair,
}
WITH_A_DELIVERY: dict[str, Step] = {
    "ack": lambda _, __, delivery: settled(delivery).ack(),
    "extend": lambda _, __, delivery: settled(delivery).extend(30),
    "receive more": lambda queue, _, __: queue.receive(timeout=0),
}
GIVES_BACK: dict[str, Step] = {
    "nack": lambda _, __, delivery: settled(delivery).nack(),
    "heal": heal,
    "get undone": lambda queue, _, __: queue._engine.give_back([b"got before"]),
}
BESIDE_A_GET: dict[str, Step] = {
    "get": lambda queue, _, __: queue.get_nowait(),
    "put": lambda queue, _, __: queue.put_nowait(b"ours"),
    "exclusive put": exclusive_put,
    "requeue": requeue,
    "repair": repair,
}


async def interleave(
    url: str,
    db: redis.Redis,
    bound: int,
    theirs: str,
    step: Step,
    waiting: int,
    *,
    in_flight: bool = False,
    back: bool = False,
) -> None:
    """Run the step before each command of one of their operations in turn, each time on a new queue."""
    loop = asyncio.get_running_loop()
    place, reached = 0, True
    while reached:
        reached = False
        db.flushall()
        async with open_queue(url) as queue:
            await queue.create(bound)
            await queue.put_many([b"%d" % number for number in range(waiting + in_flight)], force=True)
            delivery = await queue.receive(timeout=0) if in_flight else None
            seen: list[str] = []

            def hook(
                command: str,
                place: int = place,
                queue: Queue = queue,
                delivery: Delivery[bytes] | None = delivery,
                seen: list[str] = seen,
            ) -> None:
                nonlocal reached
                seen.append(command)
                if len(seen) == place + 1:
                    reached = True
                    ours = outcome_of(step(queue, db, delivery))
                    asyncio.run_coroutine_threadsafe(ours, loop).result(PATIENCE)
                    assert db.llen(KEYS.messages) <= bound, seen

            def run(hook: Callable[[str], None] = hook) -> None:
                plain = ReferenceQueue(db, NAME, hook=hook)
                with contextlib.suppress(ProtocolError):
                    plain.put_nowait(b"theirs") if theirs == "put" else plain.get_nowait()

            await asyncio.to_thread(run)
            assert db.llen(KEYS.messages) <= bound, seen
            if not db.exists(KEYS.closed):
                plain = ReferenceQueue(db, NAME)
                with pytest.raises(QueueFullError):
                    for _ in range(bound + 3):
                        plain.put_nowait(b"more")
                # Their put goes by the length that its own push answered, without what is given back later.
                late = back and "put_nowait LPUSH list" in seen[:place]
                assert db.llen(KEYS.messages) in ((bound, bound + 1) if late else (bound,)), seen
        place += 1
    assert place > 5
    db.flushall()


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("name", BESIDE_A_PUT)
async def test_a_step_of_ours_beside_their_put(url: str, db: redis.Redis, name: str, bound: int) -> None:
    for waiting in sorted({0, bound - 1, bound}):
        await interleave(url, db, bound, "put", BESIDE_A_PUT[name], waiting)


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("name", WITH_A_DELIVERY)
async def test_what_becomes_of_a_delivery_beside_their_put(url: str, db: redis.Redis, name: str, bound: int) -> None:
    for waiting in {0, bound - 1}:
        await interleave(url, db, bound, "put", WITH_A_DELIVERY[name], waiting, in_flight=True)


@pytest.mark.parametrize("bound", [2, 5])
@pytest.mark.parametrize("name", GIVES_BACK)
async def test_what_is_given_back_beside_their_put(url: str, db: redis.Redis, name: str, bound: int) -> None:
    """It may exceed the bound by what was in flight, so here is room for it."""
    for waiting in {0, bound - 2}:
        await interleave(url, db, bound, "put", GIVES_BACK[name], waiting, in_flight=name != "get undone", back=True)


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("name", BESIDE_A_GET)
async def test_a_step_of_ours_beside_their_get(url: str, db: redis.Redis, name: str, bound: int) -> None:
    for waiting in sorted({0, bound - 1, bound}):
        await interleave(url, db, bound, "get", BESIDE_A_GET[name], waiting)


async def test_two_ends_that_work_step_by_step_exceed_a_larger_bound_by_one(
    url: str, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer sees room and returns a permit; meanwhile producers use the room, with the permit that was there."""
    async with contextlib.AsyncExitStack() as stack:
        consumer, *producers = [await stack.enter_async_context(open_queue(url, scripting=False)) for _ in range(5)]
        await consumer.create(2)
        await producers[0].put_nowait(b"0")
        seen_room, go_on = asyncio.Event(), asyncio.Event()
        add_permit = consumer._engine._add_permit  # type: ignore[union-attr]

        async def later(role_lock: RoleLock) -> None:
            seen_room.set()
            await go_on.wait()
            await add_permit(role_lock)

        monkeypatch.setattr(consumer._engine, "_add_permit", later)
        getting = asyncio.create_task(consumer.get())
        await asyncio.wait_for(seen_room.wait(), PATIENCE)
        await producers[1].put_nowait(b"1")
        await producers[2].put_nowait(b"2")
        with pytest.raises(exceptions.QueueFullError):
            await producers[3].put_nowait(b"3")
        go_on.set()
        assert await getting == b"0"
        await producers[3].put_nowait(b"3")
        assert db.llen(KEYS.messages) == 3
        for producer in producers:
            with pytest.raises(exceptions.QueueFullError):
                await producer.put_nowait(b"4")
        monkeypatch.undo()
        assert await consumer.get() == b"1"
        with pytest.raises(exceptions.QueueFullError):
            await producers[0].put_nowait(b"4")
        assert await consumer.get_many(2) == [b"2", b"3"]
        await consumer.delete()


async def test_the_race_is_that_of_the_specification(db: redis.Redis) -> None:
    """The same with clients that follow it to the letter."""
    producer = ReferenceQueue(db, NAME)
    producer.create(2)
    producer.put_nowait(b"0")

    def hook(command: str) -> None:
        if command == "get_nowait LPUSH :not_full":
            producer.put_nowait(b"1")
            producer.put_nowait(b"2")
            with pytest.raises(QueueFullError):
                producer.put_nowait(b"3")

    assert ReferenceQueue(db, NAME, hook=hook).get_nowait() == b"0"
    producer.put_nowait(b"3")
    assert producer.length() == 3
    with pytest.raises(QueueFullError):
        producer.put_nowait(b"4")
    producer.delete()
