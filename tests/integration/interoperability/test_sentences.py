"""Sentences of the specification that no other test shows by itself."""

from __future__ import annotations

import redis

from apressure import AsyncQueue, Client
from tests.integration.interoperability.both import NAME, PREFIX, a_queue, nothing_left
from tests.reference import snapshot

ODD = b"\xff\0 any value"


def key(suffix: str) -> str:
    return f"{PREFIX}:{NAME}{suffix}"


async def test_questions_take_no_role(url: str, db: redis.Redis, scripting: bool) -> None:
    """Exists, Length and Closed answer while others hold both roles, and change nothing."""
    async with a_queue(url, 3, scripting=scripting) as queue:
        await queue.put(b"1")
        tokens = [db.rpop(key(f":{role}_free")) for role in ("producer", "consumer")]
        assert None not in tokens
        before = snapshot(db, PREFIX, NAME)
        assert (await queue.exists(), await queue.qsize(), await queue.closed()) == (True, 1, False)
        assert snapshot(db, PREFIX, NAME) == before
        for role in ("producer", "consumer"):
            db.lpush(key(f":{role}_free"), 1)
    assert nothing_left(db)


async def test_a_client_has_one_identity_in_all_queues(url: str, db: redis.Redis, scripting: bool) -> None:
    """It replaces the identity that a key has."""
    names = ["one", "two"]
    async with Client(url, scripting=scripting) as ours, Client(url, scripting=scripting) as other:
        for client in (other, ours):
            for name in names:
                queue = AsyncQueue(name, client=client)
                await queue.create(exist_ok=True)
                await queue.put(b"x")
                await queue.get()
                for role in ("producer", "consumer"):
                    assert db.get(f"{PREFIX}:{name}:{role}") == client.id.encode()
        assert ours.id != other.id
        for name in names:
            await AsyncQueue(name, client=ours).delete()
    assert nothing_left(db)


async def test_the_values_of_tokens_mean_nothing(url: str, db: redis.Redis, scripting: bool) -> None:
    async with a_queue(url, 2, scripting=scripting) as queue:
        for token in (":producer_free", ":consumer_free", ":not_full"):
            db.rpop(key(token))
            db.lpush(key(token), ODD)
        await queue.put(b"1")
        await queue.put(b"2")
        assert [await queue.get(), await queue.get()] == [b"1", b"2"]
        db.lpush(key(":closed"), ODD)
        assert await queue.closed()
    assert nothing_left(db)


async def test_a_consumer_that_moves_messages_to_not_full(url: str, db: redis.Redis, scripting: bool) -> None:
    """It takes a message and returns the permit in one call: BRPOPLPUSH from the queue to `:not_full`."""
    async with a_queue(url, 2, scripting=scripting) as queue:
        for number in range(6):
            await queue.put(b"%d" % number)
            assert db.rpop(key(":consumer_free")) is not None
            assert db.brpoplpush(key(""), key(":not_full"), 30) == b"%d" % number
            db.lpush(key(":consumer_free"), 1)
        await queue.put(b"last")
        assert db.llen(key(":not_full")) == 1
        assert await queue.get() == b"last"
    assert nothing_left(db)


async def test_a_consumer_that_keeps_a_copy(url: str, db: redis.Redis, scripting: bool) -> None:
    """Messages go in on the left and come out on the right: BRPOPLPUSH to a list of its own moves the oldest one."""
    async with a_queue(url, scripting=scripting) as queue:
        for message in (b"1", b"2", b"3"):
            await queue.put(message)
        assert db.lrange(key(""), 0, -1) == [b"3", b"2", b"1"]
        assert db.brpoplpush(key(""), "copies", 30) == b"1"
        assert await queue.get() == b"2"
        assert db.rpoplpush("copies", key("")) == b"1"  # back: behind the others
        assert [await queue.get(), await queue.get()] == [b"3", b"1"]
    assert nothing_left(db)
