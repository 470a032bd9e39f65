"""What `put(dedup_id=)` leaves on the server, and what it does where something is wrong; see `DedupContract`, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    DuplicateEventError,
    DuplicateMessageError,
    Durability,
    DurabilityError,
    EventQueue,
    FileQueue,
    PermissionDeniedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    ScriptingRefusedError,
    ServerError,
    TaskQueue,
    UnsupportedError,
    sync,
)
from apressure.embedded import EmbeddedServer
from tests.integration.acl_roles import allow, documented
from tests.integration.commands import Commands
from tests.integration.conftest import fails, in_time
from tests.integration.events.remote.conftest import serving

KINDS = {"AsyncQueue": AsyncQueue, "EventQueue": EventQueue, "TaskQueue": TaskQueue}
KEYS = {
    "AsyncQueue": "apressure:__pressure__:jobs:dedup",
    "EventQueue": "apressure:queue:{jobs}:dedup",
    "TaskQueue": "apressure:blueque:dedup:jobs",
}

Make = Callable[..., Awaitable[Any]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def key(kind: str) -> str:
    return KEYS[kind]


@pytest.fixture
async def make(url: str, kind: str) -> AsyncIterator[Make]:
    """Open a queue object of the kind."""
    opened: list[Any] = []

    async def make(**options: Any) -> Any:
        queue: Any = KINDS[kind]("jobs", **{"url": url, "codec": "text", **options})
        opened.append(await queue.__aenter__())
        return queue

    yield make
    if await opened[0].exists():
        await opened[0].delete()
    for queue in opened:
        await queue.aclose()


async def test_one_hash_keeps_the_ids_and_old_ones_are_forgotten(make: Make, db: redis.Redis, key: str) -> None:
    queue = await make()
    await queue.create()
    before = set(db.keys())
    await queue.put("x", dedup_id="a", dedup_window=3600.0)
    assert [one for one in set(db.keys()) - before if b":dedup" in one] == [key.encode()]
    assert db.hkeys(key) == [b"a"]
    for number in range(400):
        await queue.put("x", dedup_id=f"{number}", dedup_window=0.001)
    assert db.hexists(key, "a")
    assert db.hlen(key) < 150
    assert (await queue.statistics()).dedup_ids == db.hlen(key)
    await queue.delete()
    assert not db.exists(key)


async def test_ids_whose_messages_are_done_are_forgotten(url: str, db: redis.Redis) -> None:
    for kind in (EventQueue, TaskQueue):
        async with kind("jobs", url=url, codec="text") as queue:
            await queue.create()
            await queue.put("x", dedup_id="a")
            for number in range(300):
                await queue.put("x", dedup_id=f"{number}")
                if number:
                    await queue.get()
            assert db.hlen(KEYS[kind.__name__]) < 100
            await fails(DuplicateMessageError, queue.put("x", dedup_id="299"))
            await queue.delete()


async def test_a_key_that_another_program_has_damaged_loses_nothing(make: Make, db: redis.Redis, key: str) -> None:
    queue = await make()
    await queue.create()
    db.set(key, "x")
    await fails(ServerError, queue.put("x", dedup_id="a", dedup_window=60.0), "WRONGTYPE")
    assert (await queue.qsize(), (await queue.statistics()).dedup_ids) == (0, 0)
    await queue.put("y")
    db.delete(key)
    db.hset(key, mapping={"a": "what?", "b": "", "c": "1:2", "d": os.urandom(40), "e": "ab:99999999999999999999:"})
    for dedup_id in "abcd":
        await queue.put(dedup_id, dedup_id=dedup_id, dedup_window=60.0)
    assert await queue.qsize() == 5


async def test_a_server_out_of_memory_puts_and_notes_nothing(kind: str, own: EmbeddedServer) -> None:
    with redis.Redis.from_url(own.url) as there:
        async with KINDS[kind]("jobs", url=own.url, codec="text") as queue:
            await queue.create()
            await queue.put("x", dedup_id="old", dedup_window=0.001)
            await asyncio.sleep(0.01)
            there.config_set("maxmemory", 1)
            await fails(ServerError, queue.put("x", dedup_id="a", dedup_window=60.0), "OOM|memory")
            there.config_set("maxmemory", 0)
            assert there.hkeys(KEYS[kind]) == [b"old"]
            assert await queue.qsize() == 1
            await queue.put("x", dedup_id="a", dedup_window=60.0)
            await queue.delete()


async def test_what_is_not_confirmed_is_in_the_queue_and_a_repeat_is_told_so(make: Make) -> None:
    owner = await make()
    await owner.create()
    await owner.put("x", dedup_id="a", dedup_window=60.0)
    queue = await make(durability=Durability(1, timeout=0.01))
    outcomes = await in_time(
        asyncio.gather(
            *(queue.put("y", dedup_id=one, dedup_window=60.0) for one in ("a", "b", "a", "c")), return_exceptions=True
        )
    )
    assert [type(one) for one in outcomes] == [
        DuplicateMessageError, DurabilityError, DuplicateMessageError, DurabilityError,
    ]  # fmt: skip
    assert await owner.qsize() == 3
    error = await fails(DurabilityError, queue.put("y", dedup_id="d", dedup_window=60.0))
    assert error.answer == 1
    await fails(DuplicateMessageError, queue.put("y", dedup_id="d", dedup_window=60.0))


async def test_a_mixed_step_on_a_closed_queue(make: Make) -> None:
    queue = await make()
    await queue.create()
    await queue.put("x", dedup_id="a", dedup_window=60.0)
    await queue.close()
    puts = [queue.put("y", dedup_id=one, dedup_window=60.0) for one in ("b", "a", "c", "a", "d")]
    outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
    assert {type(one) for one in outcomes} <= {QueueClosedError, DuplicateMessageError}
    assert [type(outcomes[place]) for place in (0, 2, 4)] == [QueueClosedError] * 3
    assert await queue.qsize() == 1


async def test_a_repeat_does_not_wait_behind_what_waits_for_room(make: Make) -> None:
    queue, other = await make(), await make()
    await queue.create(bound=1)
    await queue.put("x", dedup_id="a", dedup_window=60.0)
    waiting = asyncio.ensure_future(queue.put("y", dedup_id="b", dedup_window=60.0))
    await asyncio.sleep(0.05)
    await fails(DuplicateMessageError, other.put("y", dedup_id="a", dedup_window=60.0))
    outcomes = await in_time(
        asyncio.gather(
            other.put_nowait("z", dedup_id="a", dedup_window=60.0),
            other.put_nowait("z", dedup_id="c", dedup_window=60.0),
            return_exceptions=True,
        )
    )
    assert [type(one) for one in outcomes] == [DuplicateMessageError, QueueFullError]
    assert await other.get() == "x"
    await in_time(waiting)
    assert await other.get() == "y"


async def test_many_large_ones_at_once(make: Make) -> None:
    queue = await make()
    await queue.create()
    puts = [queue.put("x" * 100_000, dedup_id=f"{number % 150}" * 100, dedup_window=60.0) for number in range(300)]
    outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
    assert sum(isinstance(one, DuplicateMessageError) for one in outcomes) == 150
    assert await queue.qsize() == 150


@pytest.mark.parametrize("right", [True, False], ids=["with the right", "without it"])
async def test_a_producer_of_the_docs_needs_one_more_right(own: EmbeddedServer, right: bool) -> None:
    rules = [*documented(plain=False)["producer"], "+hrandfield" if right else "-hrandfield"]
    async with AsyncQueue("orders", url=own.url) as owner:
        await owner.create()
        async with AsyncQueue("orders", url=allow(own, "producer", rules)) as queue:
            put = queue.put(b"1", dedup_id="a", dedup_window=60.0)
            if right:
                await put
                await fails(DuplicateMessageError, queue.put(b"1", dedup_id="a", dedup_window=60.0))
            else:
                await fails(PermissionDeniedError, put, "hrandfield")
                await queue.put(b"1")
        assert await owner.qsize() == 1


async def test_an_exclusive_producer(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("jobs", url=url) as other:
        await queue.create()
        async with queue.producer(exclusive=True, close=False) as producer:
            await producer.put(b"1", dedup_id="a", dedup_window=60.0)
            await fails(DuplicateMessageError, producer.put(b"1", dedup_id="a", dedup_window=60.0))
            waiting = asyncio.ensure_future(other.put(b"2", dedup_id="b", dedup_window=60.0))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        await in_time(waiting)
        await other.put(b"3", force=True, dedup_id="c", dedup_window=60.0)
        assert await queue.get_many(9) == [b"1", b"2", b"3"]
        await queue.delete()


async def test_a_repeat_gives_back_the_role_that_its_step_had_claimed(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as owner, AsyncQueue("jobs", url=url) as queue:
        await owner.create()
        await owner.put(b"1", dedup_id="a", dedup_window=60.0)
        async with owner.producer(exclusive=True, close=False):
            waiting = asyncio.ensure_future(queue.put(b"2", dedup_id="a", dedup_window=60.0))
            await asyncio.sleep(0.1)
        with contextlib.suppress(DuplicateMessageError):
            await in_time(waiting)
        async with AsyncQueue("jobs", url=url, scripting=False) as plain:
            await plain.put(b"3", timeout=2.0)
        await owner.delete()


async def test_a_repeat_passes_on_the_place_that_it_does_not_need(make: Make) -> None:
    owner, *others = [await make() for _ in range(4)]
    await owner.create(bound=1)
    await owner.put("x", dedup_id="a", dedup_window=0.3)
    puts = []
    for queue, dedup_id in zip(others, ("b", "b", "c"), strict=True):
        puts.append(asyncio.ensure_future(queue.put(dedup_id, timeout=3.0, dedup_id=dedup_id, dedup_window=60.0)))
        await asyncio.sleep(0.05)
    got = [await in_time(owner.get()) for _ in range(3)]
    outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
    assert sorted(got) == ["b", "c", "x"]
    assert [type(one) for one in outcomes].count(DuplicateMessageError) == 1


async def test_many_at_once_stay_in_order_and_enter_the_queue(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url, codec="text") as queue:
        await queue.create()
        puts = [queue.put(f"{number}", dedup_id=f"{number}", dedup_window=60.0) for number in range(1000)]
        await in_time(asyncio.gather(*puts))
        assert db.llen("__pressure__:jobs") == 1000  # other clients see them
        assert await queue.get_many(1000) == [f"{number}" for number in range(1000)]
        await queue.delete()


async def test_an_id_in_use_makes_no_repeat_of_another_put(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        await queue.put(b"0", id="one")
        puts = [queue.put(b"x"), queue.put(b"1", id="one", dedup_id="a"), queue.put(b"2", dedup_id="a")]
        puts += [queue.put(b"3", id="two", dedup_id="b"), queue.put(b"4", id="two", dedup_id="c")]
        outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
        assert [type(one) for one in outcomes] == [str, DuplicateEventError, str, str, DuplicateEventError]
        assert sorted(await queue.get_many(9)) == [b"0", b"2", b"3", b"x"]
        await queue.delete()


async def test_a_task_that_another_program_has_damaged_keeps_no_other_from_being_put(url: str, db: redis.Redis) -> None:
    async with TaskQueue("jobs", url=url, codec="text") as queue:
        damaged = await queue.put("x", dedup_id="a")
        db.delete(f"blueque_task_{damaged}")
        db.set(f"blueque_task_{damaged}", "?")
        await queue.put("y", dedup_id="b")
        await queue.put("z", dedup_id="a")  # the first one can never be done
        await fails(DuplicateMessageError, queue.put("y", dedup_id="b"))
        db.delete(f"blueque_task_{damaged}")
        await queue.delete()


async def test_a_deleted_queue_is_missed_also_by_a_repeat(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=60.0)
        db.delete("__pressure__:jobs:bound")  # as another client deletes it
        await fails(QueueDoesNotExistError, queue.put(b"1", dedup_id="a", dedup_window=60.0))
        db.flushdb()


async def test_an_event_whose_own_id_is_in_use(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.put(b"1", id="one")
        error = await fails(DuplicateEventError, queue.put(b"2", id="one", dedup_id="a"))
        assert error.id == "one"
        await queue.put(b"2", id="two", dedup_id="a")  # the refusal was not noted
        assert (await fails(DuplicateMessageError, queue.put(b"3", id="three", dedup_id="a"))).id == "a"
        await fails(ValueError, queue.put(b"3", front=True, dedup_id="b"), "front=True")
        await queue.delete()


async def test_kinds_that_know_no_repeats_put_nothing(url: str, tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "spool") as files:
        await fails(UnsupportedError, files.put(b"1", dedup_id="a"), "a FileQueue has no server")
        await fails(UnsupportedError, files.put_nowait(b"1", dedup_id="a", dedup_window=1.0))
        assert not await files.exists()
    async with serving(url) as address, EventQueue("jobs", url=address) as queue:
        await fails(UnsupportedError, queue.put(b"1", dedup_id="a"), "use an AsyncQueue")
        assert await queue.qsize() == 0
    async with AsyncQueue("jobs", url=url, scripting=False) as plain:
        await plain.create()
        await fails(ScriptingRefusedError, plain.put(b"1", dedup_id="a", dedup_window=1.0), "dedup_id")
        await fails(ValueError, plain.put(b"1", dedup_id="a"), "dedup_window=")
        await plain.delete()


async def test_one_client_for_several_queues(url: str) -> None:
    async with Client(url) as client:
        queues = [AsyncQueue[bytes](name, client=client) for name in ("jobs", "mails")]
        for queue in queues:
            await queue.create()
            await queue.put(b"1", dedup_id="a", dedup_window=60.0)
        for queue in queues:
            await fails(DuplicateMessageError, queue.put(b"1", dedup_id="a", dedup_window=60.0))
            await queue.delete()


def test_without_asyncio(url: str) -> None:
    with sync.Queue(EventQueue("jobs", url=url)) as queue:
        queue.create()
        queue.put(b"1", dedup_id="a")
        with pytest.raises(DuplicateMessageError):
            queue.put_nowait(b"1", dedup_id="a", dedup_window=60.0)
        with queue.producer(close=False) as producer, pytest.raises(DuplicateMessageError):
            producer.put(b"1", dedup_id="a")
        assert queue.get() == b"1"
        queue.put(b"2", dedup_id="a")
        queue.purge()
        queue.delete()


def test_the_command(cli: Commands, db: redis.Redis, tmp_path: Path) -> None:
    cli("put", "events:jobs", "x", "--dedup-id", "a")
    assert b"--dedup-id 'a'" in cli("put", "events:jobs", "x", "--dedup-id", "a", code=4).stderr
    cli("put", "events:jobs", "y", "--dedup-id", "b", "--dedup-window", "60")
    assert db.hlen(KEYS["EventQueue"]) == 2
    assert cli.json("stat", "events:jobs")["dedup_ids"] == 2
    for wrong in (("x", "y", "--dedup-id", "c"), ("x", "--dedup-window", "60"), ("--dedup-id", "c")):
        cli("put", "events:jobs", *wrong, input=b"z\n", code=2)
    cli("put", f"files:{tmp_path}/spool", "x", "--dedup-id", "c", code=1)
    assert db.llen("queue:{jobs}") == 2
    cli("delete", "events:jobs")
