"""browse of an AsyncQueue: what only it has, and keys that other programs have damaged. The contract has the rest."""

from __future__ import annotations

import redis

from apressure import AsyncQueue, PermissionDeniedError, QueueDoesNotExistError, ScriptingRefusedError, ServerError
from apressure.pressure.engine.steps import script
from apressure.testing.contract.browsing import PLACES, items_of
from tests.integration.acl_roles import PASSWORD
from tests.integration.conftest import Opener, fails

KEY = "__pressure__:jobs"
OURS = "apressure:__pressure__:jobs"


async def test_what_waits_is_shown_with_and_without_scripts(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    items = [b"%d" % number for number in range(300)]
    await queue.put_many(items)
    for limit in (7, 1000):
        assert await items_of(queue, "waiting", limit=limit) == items
        assert await items_of(queue, "waiting", limit=limit, newest=True) == items[::-1]
    large = [b"%d" % number * 300_000 for number in range(5)]
    await queue.put_many(large)
    page = await queue.browse(newest=True, most_bytes=10)
    assert 1 < len(page.messages) < 8
    assert [message.size for message in page.messages[:2]] == [300_000, 300_000]
    assert await queue.qsize() == 305


async def test_without_scripts_only_what_waits_is_shown(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    for place in PLACES[1:]:
        await fails(ScriptingRefusedError, queue.browse(place))  # type: ignore[arg-type]


async def test_a_queue_that_does_not_exist_says_so(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    await fails(QueueDoesNotExistError, queue.browse())


async def test_in_flight_names_the_clients_that_have_them(open_queue: Opener) -> None:
    first, second = await open_queue(client_id="first"), await open_queue(create=False, client_id="second")
    await first.put_many([b"%d" % number for number in range(6)])
    async with (
        first.consumer("manual", shared=True, prefetch=2) as one,
        second.consumer("manual", shared=True, prefetch=2) as other,
    ):
        holders = {(await anext(one)).item: "first", (await anext(other)).item: "second"}
        page = await first.browse("in_flight")
        assert [message.item for message in page.messages] == sorted(message.item or b"" for message in page.messages)
        assert {message.item: message.holder for message in page.messages if message.item in holders} == holders
        assert all(message.due for message in page.messages)
        assert page.total == (await first.statistics()).in_flight
        assert await items_of(second, "in_flight", limit=1) == [message.item for message in page.messages]


async def test_many_deliveries_apart_are_counted_and_not_read(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"a", b"b"])
    deliveries = await queue.receive_many(2)
    db.hset(f"{OURS}:apart", mapping={f"-{number}": "1:x" for number in range(10_001)})
    page = await queue.browse("in_flight")
    assert ([message.item for message in page.messages], page.cursor, page.total) == ([b"a", b"b"], None, 10_003)
    db.hdel(f"{OURS}:apart", *(f"-{number}" for number in range(10_001)))
    for delivery in deliveries:
        await delivery.ack()


async def test_entries_of_other_programs_are_shown(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"\xff\x00", b""])
    db.hset(f"{OURS}:apart", mapping={"99999999999999999": "1:huge", "odd\xff": "no number", "7": "x:y", "": ""})
    db.zadd(f"{OURS}:delayed", {"strange": "inf", "older": "-inf", "past": -5, "far": 1e300})
    assert await items_of(queue, "waiting", limit=1) == [b"\xff\x00", b""]
    assert {*await items_of(queue, "in_flight", limit=1)} == {b"huge", b"no number", b"x:y", b""}
    assert await items_of(queue, "delayed", limit=3) == [b"older", b"past", b"far", b"strange"]
    assert {message.due for message in (await queue.browse("delayed")).messages} == {None}
    db.set(f"{OURS}:redelivered", "x")
    assert [message.attempts for message in (await queue.browse()).messages] == [None, None]
    db.delete(f"{OURS}:redelivered", f"{OURS}:apart", f"{OURS}:delayed")


async def test_keys_of_the_wrong_type_raise_an_error_that_says_so(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    for place, key, kind in (
        ("waiting", KEY, "hash"), ("in_flight", f"{OURS}:inflight", "hash"), ("in_flight", f"{OURS}:apart", "string"),
        ("in_flight", f"{OURS}:consumer_lease", "string"), ("delayed", f"{OURS}:delayed", "list"),
    ):  # fmt: skip
        if kind == "hash":
            db.hset(key, "a", "b")
        elif kind == "list":
            db.lpush(key, "a")
        else:
            db.set(key, "a")
        assert "WRONGTYPE" in str(await fails(ServerError, queue.browse(place)))  # type: ignore[arg-type]
        db.delete(key)
    assert (await queue.browse()).messages == ()


async def test_a_lease_that_cannot_be_read_shows_what_there_is(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    for lease in (
        {"uid": b"\xff", "deadline": "nan", "next": "x"}, {"token": "shared:1", "member:a": "x", "next": "-1"},
        {"token": "shared:1", "member:a": "1:1:1:1:1:1:1-5:who", "next": "6"},
    ):  # fmt: skip
        db.hset(f"{OURS}:consumer_lease", mapping=lease)
        db.lpush(f"{OURS}:inflight", "flying")
        page = await queue.browse("in_flight")
        assert page.messages[-1].item == b"flying"
        assert page.messages[-1].due is None
        assert [message.error[:22] for message in page.messages[:-1]] == ["its contents are gone:"] * (
            len(page.messages) - 1
        )
        db.delete(f"{OURS}:consumer_lease", f"{OURS}:inflight")


async def test_a_user_that_only_reads_may_browse(open_queue: Opener, db: redis.Redis, url: str) -> None:
    """The rights of the viewer in docs/rely/security.md: tests/integration/servers/test_acl.py plays its role."""
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    assert b"call('LPUSH" not in script("browse").source
    db.execute_command("ACL", "SETUSER", "reader", "reset", "on", f">{PASSWORD}", "~*", "+@read", "+@connection",
                       "+evalsha", "+eval", "+time")  # fmt: skip
    try:
        async with AsyncQueue("jobs", url=url.replace("redis://", f"redis://reader:{PASSWORD}@")) as reader:
            for place in PLACES:
                assert (await reader.browse(place)).total == (2 if place == "waiting" else 0)  # type: ignore[arg-type]
            await fails(PermissionDeniedError, reader.put(b"3"))
    finally:
        db.execute_command("ACL", "DELUSER", "reader")
