"""What sends no wake-up is found by the looks at all queues in which a client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, LeaseLostError, PermissionDeniedError, QueueDoesNotExistError
from apressure.connection.waiting import rounds
from apressure.core import backpressure
from apressure.core.lanes import Lane
from apressure.pressure.engine import waits
from apressure.testing.proxy import Proxy
from tests.integration.conftest import Opener, blocked, blocking, cancelled, eventually, fails, in_time

BASE = "__pressure__:jobs"
OURS = f"apressure:{BASE}"


@pytest.fixture(autouse=True)
def only_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come soon, and nothing else tells a wait to try again."""
    monkeypatch.setattr(rounds, "ROUND", 0.1)
    monkeypatch.setattr(waits, "LONG_SLICE", 600)


async def get(queue: AsyncQueue[bytes]) -> object:
    return await queue.get()


async def receive(queue: AsyncQueue[bytes]) -> object:
    return await queue.receive()


async def consume(queue: AsyncQueue[bytes]) -> object:
    async with queue.consumer(lease=600) as consumer:
        return await anext(consumer)


async def share(queue: AsyncQueue[bytes]) -> object:
    async with queue.consumer(shared=True, lease=600) as consumer:
        return await anext(consumer)


async def put(queue: AsyncQueue[bytes]) -> object:
    return await queue.put(b"more")


async def produce(queue: AsyncQueue[bytes]) -> object:
    async with queue.producer(exclusive=True, close=False, lease=600) as producer:
        return await producer.put(b"more")


async def wait_closed(queue: AsyncQueue[bytes]) -> object:
    return await queue.wait_closed()


Wait = Callable[[AsyncQueue[bytes]], Coroutine[Any, Any, object]]
GETS: list[Wait] = [get, receive, consume, share]
PUTS: list[Wait] = [put, produce]


async def waiting(open_queue: Opener, db: redis.Redis, wait: Wait) -> asyncio.Task[object]:
    queue = await open_queue(bound=1)
    if wait in PUTS:
        await queue.put(b"first")
    return await blocking(db, wait(queue))


@pytest.mark.parametrize("wait", [*GETS, *PUTS, wait_closed])
async def test_a_queue_that_is_gone(open_queue: Opener, db: redis.Redis, wait: Wait) -> None:
    task = await waiting(open_queue, db, wait)
    db.flushall()
    with pytest.raises((QueueDoesNotExistError, LeaseLostError)):
        await in_time(task)


@pytest.mark.parametrize("take", [get, share])
async def test_a_queue_that_is_gone_for_all_who_wait_in_line(
    open_queue: Opener, db: redis.Redis, url: str, take: Wait
) -> None:
    queue = await open_queue()
    async with Client(url) as other:
        tasks = [asyncio.create_task(take(queue)), asyncio.create_task(take(AsyncQueue("jobs", client=other)))]
        await blocked(db, 2)
        db.flushall()
        for task in tasks:
            with pytest.raises((QueueDoesNotExistError, LeaseLostError)):
                await in_time(task)


@pytest.mark.parametrize("wait", [get, receive])
async def test_what_was_in_flight_under_a_lease_that_expires_meanwhile(
    open_queue: Opener, db: redis.Redis, wait: Wait
) -> None:
    task = await waiting(open_queue, db, wait)
    assert db.lpop(f"{BASE}:consumer_free")
    db.lpush(f"{OURS}:inflight", b"lost")
    now = int(db.time()[0]) * 1000
    lease = {"token": "dead", "uid": "dead", "deadline": now + 300, "duration": 30000, "since": now, "next": 2}
    db.hset(f"{OURS}:consumer_lease", mapping=lease)
    result = await in_time(task)
    assert getattr(result, "item", result) == b"lost"
    if wait is receive:
        await result.ack()  # type: ignore[attr-defined]


@pytest.mark.parametrize("wait", [put, get])
@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_role_of_a_dead_client_goes_back_while_an_operation_waits(
    open_queue: Opener, db: redis.Redis, wait: Wait, role: str
) -> None:
    """A client that works step by step may wait for that role."""
    task = await waiting(open_queue, db, wait)
    assert db.lpop(f"{BASE}:{role}_free")
    lease = {"token": "dead", "uid": "dead", "deadline": 1, "duration": 30000}
    db.hset(f"{OURS}:{role}_lease", mapping=lease)
    await eventually(lambda: db.llen(f"{BASE}:{role}_free") == 1)
    assert not db.exists(f"{OURS}:{role}_lease")
    await blocked(db)
    await cancelled(task)


@pytest.mark.parametrize("wait", PUTS)
async def test_room_for_which_nobody_brought_the_permit(
    open_queue: Opener, db: redis.Redis, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await waiting(open_queue, db, wait)
    db.rpop(BASE)
    await in_time(task)


@pytest.mark.parametrize("wait", PUTS)
async def test_a_bound_that_was_raised(open_queue: Opener, db: redis.Redis, wait: Wait) -> None:
    task = await waiting(open_queue, db, wait)
    db.set(f"{BASE}:bound", 2)
    await in_time(task)
    assert db.llen(BASE) == 2


@pytest.mark.parametrize("wait", [get, share, consume])
async def test_a_wake_up_that_never_came(open_queue: Opener, server: Any, db: redis.Redis, wait: Wait) -> None:
    queue = await open_queue()
    with Proxy(server.url) as line:
        line.rewrite = lambda piece: b"" if piece == b"$6\r\nunseen\r\n" else piece
        async with AsyncQueue("jobs", url=line.url, response_timeout=0.2) as half_open:
            task = await blocking(db, wait(half_open))
            await queue.put(b"unseen")
            assert await in_time(task) == b"unseen"
            waiter = half_open._engine.waits.messages
            await eventually(lambda: not waiter.connected)


@pytest.mark.parametrize("damage", ["turns", "watch", "consumer_lease", "producer_lease", "consumer_claim"])
async def test_a_damaged_queue_disturbs_no_other(
    open_queue: Opener, db: redis.Redis, client: Client, damage: str
) -> None:
    queue = AsyncQueue[bytes]("jobs", client=client)
    damaged = await open_queue("damaged", client=client)
    await queue.create()
    tasks = [await blocking(db, one.get(), 2 * number) for number, one in enumerate((queue, damaged), 1)]
    db.set(f"apressure:__pressure__:damaged:{damage}", "x")
    await asyncio.sleep(0.5)
    assert not tasks[0].done()
    db.lpush(BASE, b"x")
    assert await in_time(tasks[0]) == b"x"
    db.delete(f"apressure:__pressure__:damaged:{damage}")
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    await queue.delete()


async def test_the_watch_is_kept_for_those_in_line_and_only_for_them(
    open_queue: Opener, db: redis.Redis, url: str
) -> None:
    def watch(field: str) -> bytes | None:
        found: bytes | None = db.hget(f"{OURS}:watch", field)
        return found

    task = await blocking(db, (await open_queue()).get())
    first, until = watch("id"), watch("until")
    await asyncio.sleep(0.5)
    assert (watch("id"), watch("until")) == (first, until)
    async with AsyncQueue[bytes]("jobs", url=url) as second:
        other = await blocking(db, second.get(), 4)
        for field in ("until", "others", "until"):
            before = watch(field)
            await eventually(lambda field=field, before=before: watch(field) != before)
        await cancelled(other)
    await cancelled(task)


@pytest.mark.parametrize("wait", [get, put])
async def test_many_idle_queues_cost_two_commands_a_round_and_no_write(
    open_queue: Opener, db: redis.Redis, client: Client, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE", 3600.0)  # that puts wait is told, too: not of this test
    queues = [AsyncQueue[bytes](f"jobs-{number}", client=client) for number in range(150)]
    tasks = []
    for queue in queues:
        await queue.create(1)
        if wait is put:
            await queue.put(b"first")
        tasks.append(asyncio.create_task(wait(queue)))
    await blocked(db, 450 if wait is get else 300)  # a get also waits for a message that is due earlier
    tried = 0
    flush = Lane._flush

    def count(lane: Lane[Any]) -> None:
        nonlocal tried
        tried += 1
        flush(lane)

    monkeypatch.setattr(Lane, "_flush", count)
    db.config_resetstat()

    def calls(name: str) -> int:
        return int(db.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])

    await eventually(lambda: calls("mget") >= 6)
    assert tried == 0
    assert calls("evalsha") + calls("eval") <= calls("mget") + 1
    for name in ("blmove", "brpop", "hset", "set", "pexpire", "lpush", "ltrim"):
        assert calls(name) == 0, name
    for task in tasks:
        task.cancel()
    await in_time(asyncio.gather(*tasks, return_exceptions=True))
    for queue in queues:
        await queue.delete()


async def test_a_queue_whose_rights_are_taken_away_disturbs_no_other(
    open_queue: Opener, db: redis.Redis, client: Client
) -> None:
    """The server refuses a look at both, so each wait tries its step, which raises what is wrong."""
    queue, forbidden = await open_queue(client=client), await open_queue("forbidden", client=client)
    waits = [await blocking(db, one.get(), 2 * number) for number, one in enumerate((queue, forbidden), 1)]
    db.execute_command("ACL", "SETUSER", "default", "resetkeys", "~__pressure__:jobs*", "~apressure:__pressure__:jobs*")
    try:
        await fails(PermissionDeniedError, waits[1])
        assert not waits[0].done()
        await queue.put(b"x")
        assert await in_time(waits[0]) == b"x"
    finally:
        db.execute_command("ACL", "SETUSER", "default", "allkeys")


async def test_a_receive_that_began_under_another_lease_is_not_tried_at_every_look(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put(b"first")
    first = await queue.receive()
    waiting = [await blocking(db, queue.receive())]
    waits = queue._engine.scripted("test").waits

    def tokens() -> list[object]:
        return [look.arguments[1] for look in waits._parked.values() if look is not None]

    assert tokens() == [first._lease.token]
    await first.ack()
    await eventually(lambda: tokens() == [b""])  # the lease has ended with its last message
    waiting.append(asyncio.create_task(queue.receive()))
    await asyncio.sleep(0)
    await queue.put(b"second")
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=90)
    (second,) = [task.result() for task in done]
    await eventually(lambda: tokens() == [second._lease.token])
    await cancelled(*rest)
    await second.ack()
