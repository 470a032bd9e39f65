"""Messages in flight: a list of the latest deliveries, and apart from it those that later ones have overtaken."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Delivery
from tests.integration.conftest import Opener

OURS = "apressure:__pressure__:jobs:"


@pytest.mark.parametrize("seed", range(4))
async def test_acknowledged_and_given_back_in_any_order(open_queue: Opener, db: redis.Redis, seed: int) -> None:
    """Against a model of the queue, of the deliveries in hand, and of the statistics."""
    rng = random.Random(seed)
    line = [(b"%d" % number * rng.choice((1, 1, 50)), 0) for number in range(60)]
    hand: list[Delivery[bytes]] = []
    done: list[bytes] = []
    queue = await open_queue()
    await queue.put_many([message for message, _ in line])
    while line or hand:
        if line and (not hand or rng.random() < 0.5):
            message, times = line.pop(0)
            delivery = await queue.receive()
            assert (delivery.raw, delivery.attempts) == (message, times + 1)
            hand.append(delivery)
        else:
            delivery = hand.pop(rng.choice((0, -1, rng.randrange(len(hand)))))
            if rng.random() < 0.3 and delivery.attempts < 4:
                await delivery.nack()
                line.insert(0, (delivery.raw, delivery.attempts))
            else:
                await delivery.ack()
                done.append(delivery.raw)
        statistics = await queue.statistics()
        assert (statistics.consumed_messages, statistics.consumed_bytes) == (len(done), sum(map(len, done)))
        assert (statistics.length, statistics.in_flight) == (len(line), len(hand))
    assert not db.exists(f"{OURS}inflight", f"{OURS}apart")


async def test_all_come_again_in_their_order_wherever_they_are_kept(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        await queue.put_many([b"%d" % number for number in range(8)])
        await (await queue.receive()).nack()
        deliveries = [await queue.receive() for _ in range(6)]
        await deliveries[3].ack()
        assert db.hlen(f"{OURS}apart") == 3
        assert db.llen(f"{OURS}inflight") == 2
    async with AsyncQueue("jobs", url=url) as queue:
        again = [await queue.receive() for _ in range(7)]
        assert [(one.raw, one.attempts) for one in again] == [
            (b"0", 3), (b"1", 2), (b"2", 2), (b"4", 2), (b"5", 2), (b"6", 1), (b"7", 1),
        ]  # fmt: skip
        for one in again:
            await one.ack()
        await queue.delete()


async def test_one_that_takes_long_keeps_nothing_else_in_memory(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"slow", *[b"quick"] * 50])
    slow = await queue.receive()
    for _ in range(50):
        await (await queue.receive()).ack()
        assert db.llen(f"{OURS}inflight") + db.hlen(f"{OURS}apart") == 1
    await slow.ack()


async def test_a_server_that_has_taken_over_goes_on_where_the_client_is(open_queue: Opener, db: redis.Redis) -> None:
    """A replica that had not heard of the latest deliveries has their messages in the queue still."""
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    first = await queue.receive()
    behind: dict[str, Any] = {key: db.dump(key) for key in db.keys("*") if b":op:" not in key}
    second = await queue.receive()
    for key, value in behind.items():
        db.restore(key, 0, value, replace=True)
    again, third = await queue.receive(), await queue.receive()
    assert [again.raw, third.raw] == [b"2", b"3"]
    await second.ack()  # of what that server does not know
    assert (await queue.statistics()).in_flight == 3
    for delivery in (first, again, third):
        await delivery.ack()
    assert (await queue.statistics()).consumed_messages == 3
