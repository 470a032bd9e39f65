"""Create, exists and delete; names and bounds of all kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, QueueAlreadyExistsError, QueueDoesNotExistError, QueueInUseError
from apressure.pressure.engine.keys import Keys
from tests.integration.conftest import Opener, blocked, blocking, everything, in_time
from tests.reference import snapshot


async def test_a_created_queue_has_the_keys_of_the_specification(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    await open_queue(bound=3, scripting=scripting)
    assert snapshot(db, "__pressure__", "jobs") == {
        "messages": [],
        ":bound": b"3",
        ":producer": None,
        ":consumer": None,
        ":stats:produced_messages": None,
        ":stats:produced_bytes": None,
        ":stats:consumed_messages": None,
        ":stats:consumed_bytes": None,
        ":producer_free": 1,
        ":consumer_free": 1,
        ":not_full": 1,
        ":closed": 0,
    }


async def test_create_says_that_the_queue_is_new(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    assert not await queue.exists()
    assert await queue.create(bound=2) is True
    assert await queue.exists()


async def test_a_second_create_raises_and_changes_nothing(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(bound=2, scripting=scripting)
    await queue.put(b"x")
    before = everything(db)
    with pytest.raises(QueueAlreadyExistsError, match="'jobs' exists already") as raised:
        await queue.create(bound=5)
    assert raised.value.name == "jobs"
    assert everything(db) == before


async def test_exist_ok_leaves_the_queue_with_the_bound_that_it_has(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=2, scripting=scripting)
    await queue.put(b"x")
    assert await queue.create(bound=5, exist_ok=True) is False
    assert (await queue.bound(), await queue.qsize()) == (2, 1)


async def test_exist_ok_takes_a_queue_that_others_have_made_beside_one_with_a_key_of_its_own(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(bound=2, scripting=scripting)
    other = Keys("__pressure__", "jobs").collisions()[0]
    db.set(other, 0)
    assert await queue.create(exist_ok=True) is False
    db.delete(other)


async def test_of_many_that_create_at_once_one_makes_the_queue(open_queue: Opener, scripting: bool) -> None:
    queues = [await open_queue(create=False, scripting=scripting) for _ in range(5)]
    created = await asyncio.gather(*(queue.create(bound=1, exist_ok=True) for queue in queues))
    assert sorted(created) == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        (-1, ValueError), (10**15 + 1, ValueError), (10**30, ValueError), (True, TypeError), (False, TypeError),
        ("5", TypeError), (5.0, TypeError), (None, TypeError), (b"5", TypeError), ([5], TypeError),
        (float("inf"), TypeError),
    ],
)  # fmt: skip
async def test_a_bound_that_is_no_whole_number_of_messages_is_refused(
    open_queue: Opener, db: redis.Redis, bound: Any, error: type[Exception]
) -> None:
    queue = await open_queue(create=False)
    with pytest.raises(error, match="bound must be"):
        await queue.create(bound=bound)
    assert not everything(db)


@pytest.mark.parametrize("bound", [0, 1, 10**15])
async def test_bounds_from_none_to_absurd_work(open_queue: Opener, scripting: bool, bound: int) -> None:
    queue = await open_queue(bound=bound, scripting=scripting)
    assert await queue.bound() == bound
    await queue.put(b"x")
    assert await queue.get() == b"x"


NAMES = ["a b", "a\nb", "{jobs}", "jobs*", "[a-z]?", "a\\b", "ü", "日本語", "\x00", "a:b", ":", "🚀", "x" * 4000]


@pytest.mark.parametrize("name", NAMES)
async def test_any_text_is_a_name(open_queue: Opener, scripting: bool, db: redis.Redis, name: str) -> None:
    queue = await open_queue(name, bound=2, scripting=scripting)
    await queue.put(b"x")
    assert db.llen(f"__pressure__:{name}") == 1
    assert await queue.client.queues() == [name]
    assert await queue.get() == b"x"
    await queue.close()
    await queue.delete()
    assert not everything(db)


async def test_queues_lists_the_names_that_exist_under_the_prefix(open_queue: Opener, db: redis.Redis) -> None:
    for name in ("b", "a", "a:b", "ü"):
        await open_queue(name, prefix="mine*")
    other = await open_queue("hidden", prefix="mineX")
    queue = await open_queue("later", prefix="mine*", create=False)
    assert await queue.client.queues() == ["a", "a:b", "b", "ü"]
    assert await other.client.queues() == ["hidden"]


async def test_queues_lists_names_under_a_prefix_of_any_bytes(open_queue: Opener) -> None:
    queue = await open_queue("jobs", prefix=b"p\xff".decode(errors="surrogateescape"))
    assert await queue.client.queues() == ["jobs"]


@pytest.mark.parametrize(("name", "error"), [("", ValueError), ("x" * 5000, ValueError), (b"jobs", TypeError)])
def test_a_bad_name_is_refused_before_anything_is_sent(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="name"):
        AsyncQueue(name)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("jobs", "jobs:closed"),
        ("jobs", "jobs:bound"),
        ("jobs", "jobs:stats:produced_messages"),
        ("jobs:not_full", "jobs"),
        ("jobs:closed", "jobs:closed:closed"),
        ("jobs:closed:bound", "jobs:closed"),
    ],
)
async def test_queues_that_would_share_a_key_are_refused(
    open_queue: Opener, db: redis.Redis, scripting: bool, first: str, second: str
) -> None:
    await open_queue(first, scripting=scripting)
    queue = await open_queue(second, create=False, scripting=scripting)
    before = everything(db)
    for exist_ok in (False, True):
        with pytest.raises(QueueAlreadyExistsError, match=r"share a key|exists already"):
            await queue.create(exist_ok=exist_ok)
    assert everything(db) == before


@pytest.mark.parametrize("second", ["jobs:processing", "jobs:lease", "job", "jobs:", "jobs:closed:x", "jobs:inflight"])
async def test_names_that_only_look_alike_live_side_by_side(open_queue: Opener, scripting: bool, second: str) -> None:
    one = await open_queue("jobs", bound=1, scripting=scripting)
    two = await open_queue(second, bound=1, scripting=scripting)
    await one.put(b"1")
    await two.put(b"2")
    await one.close()
    assert not await two.closed()
    assert (await one.get(), await two.get()) == (b"1", b"2")
    await one.delete()
    assert (await two.statistics()).consumed_messages == 1


async def test_create_clears_what_an_earlier_life_left_behind(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    keys = Keys("__pressure__", "jobs")
    for key in keys.specified:
        if key != keys.bound:
            db.rpush(key, b"old", b"older")
    for key in keys.for_script("none")[12:21]:
        db.set(key, b"old")
    queue = await open_queue(bound=1, scripting=scripting)
    statistics = await queue.statistics()
    assert (statistics.length, statistics.closed, statistics.produced_messages, statistics.in_flight) == (
        0,
        False,
        0,
        0,
    )
    assert not db.keys("apressure:*_lease") + db.keys("apressure:*_claim*") + db.keys("apressure:*:inflight")
    await queue.put(b"new")
    assert await queue.get() == b"new"


async def test_delete_leaves_no_key(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    await queue.put(b"x")
    await queue.delete()
    assert not everything(db)
    assert not await queue.exists()


async def test_delete_clears_keys_of_ours_too(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    await (await queue.receive()).nack()
    assert db.keys("apressure:*:redelivered")
    deleter = await open_queue(create=False, scripting=scripting)
    await deleter.delete()
    assert not everything(db)


async def test_a_second_delete_raises_instead_of_waiting(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.delete()
    with pytest.raises(QueueDoesNotExistError):
        await queue.delete()


async def test_of_two_that_delete_at_once_one_is_told(open_queue: Opener, scripting: bool) -> None:
    queues = [await open_queue(create=index == 0, scripting=scripting) for index in range(2)]
    outcomes = await in_time(asyncio.gather(*(queue.delete() for queue in queues), return_exceptions=True))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "QueueDoesNotExistError"]


async def test_a_deleted_queue_can_be_created_anew(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    await queue.put(b"x")
    await queue.close()
    await queue.delete()
    assert await queue.create(bound=2)
    assert not await queue.closed()
    await queue.put_many([b"1", b"2"])
    assert await queue.get_many(5) == [b"1", b"2"]
    assert (await queue.statistics()).produced_messages == 2


async def test_delete_ends_everybody_who_is_blocked(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    full = await open_queue("full", bound=1, scripting=scripting)
    empty = await open_queue("empty", scripting=scripting)
    await full.put(b"x")
    others = {name: await open_queue(name, create=False, scripting=scripting) for name in ("full", "empty")}
    tasks = [
        asyncio.create_task(full.put(b"y")),
        asyncio.create_task(others["full"].put(b"z")),
        asyncio.create_task(empty.get()),
        asyncio.create_task(others["empty"].get()),
        asyncio.create_task(others["empty"].wait_closed()),
        asyncio.create_task(full.wait_closed()),
    ]
    await blocked(db, 3)
    deleter = [await open_queue(name, create=False, scripting=scripting) for name in ("full", "empty")]
    await in_time(asyncio.gather(*(queue.delete() for queue in deleter)))
    outcomes = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(outcome).__name__ for outcome in outcomes] == ["QueueDoesNotExistError"] * len(tasks)
    assert not everything(db)


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_delete_waits_for_who_holds_a_role_until_its_timeout(
    open_queue: Opener, db: redis.Redis, scripting: bool, role: str
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop(f"__pressure__:jobs:{role}_free")
    db.set(f"__pressure__:jobs:{role}", "someone")
    with pytest.raises(QueueInUseError, match="someone") as raised:
        await queue.delete(timeout=0.05)
    assert (raised.value.role, raised.value.holder) == (role, "someone")
    # It has ended for everybody all the same, and its name can be used again.
    assert not await queue.exists()
    with pytest.raises(QueueDoesNotExistError):
        await queue.put(b"x")
    assert await queue.create()


async def test_delete_goes_on_when_the_holder_gives_its_role_back(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop("__pressure__:jobs:consumer_free")
    task = await blocking(db, queue.delete())
    db.lpush("__pressure__:jobs:consumer_free", 0)
    await in_time(task)
    assert not everything(db)
