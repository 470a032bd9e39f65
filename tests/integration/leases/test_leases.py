"""Leases that end: a client dies or stands still, and another one takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import Consumer, LeaseLostError, QueueClosedError, QueueInUseError
from apressure.pressure.consumer import Options
from tests import processes
from tests.integration.conftest import PATIENCE, Opener, blocked, eventually, fails, in_time, open_two

ROOT = Path(__file__).parents[3]

PROGRAM = """
import asyncio, sys
from apressure import AsyncQueue, LeaseLostError

async def main() -> None:
    async with AsyncQueue("jobs", url=sys.argv[1], client_id="victim") as queue:
{}
asyncio.run(main())
"""
CONSUMER = """
async with queue.consumer(lease=0.4, prefetch=3) as consumer:
    async for item in consumer:
        print(item.decode(), flush=True)
        if item == b"2":
            await asyncio.sleep(60)
"""
RECEIVER = """
deliveries = [await queue.receive(lease=0.4) for _ in range(3)]
await deliveries[1].ack()
print("2", flush=True)
await asyncio.sleep(60)
"""
PRODUCER = """
async with queue.producer(exclusive=True, lease=0.4) as producer:
    await producer.put(b"from the victim")
    print("2", flush=True)
    await asyncio.sleep(60)
"""
WAITER = """
tasks = [asyncio.create_task(queue.get()) for _ in range(3)]
await asyncio.sleep(0)
print("2", flush=True)
await asyncio.gather(*tasks)
"""
STANDS_STILL = """
delivery = await queue.receive(lease=0.2)
print("2", flush=True)
sys.stdin.readline()  # the process is stopped here until the other end has the message
try:
    await delivery.ack()
except LeaseLostError as error:
    print(type(error).__name__, error.role, flush=True)
"""
PREFETCHED = """
try:
    async with queue.consumer(lease=0.4, prefetch=50) as consumer:
        async for item in consumer:
            print(item.decode(), flush=True)
            if item == b"2" and sys.argv[2] == "blocked":
                sys.stdin.readline()
            elif item == b"2":
                await asyncio.to_thread(sys.stdin.readline)
except LeaseLostError:
    print("lost", flush=True)
"""


@contextmanager
def running_program(program: str, url: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, which has printed "2", and which does not outlive the test."""
    process = processes.Popen(
        [sys.executable, "-c", program, url, *more],
        cwd=ROOT if (ROOT / "apressure").exists() else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        while process.stdout.readline().strip() != "2":
            assert process.poll() is None, "the client ended early"
        yield process
    finally:
        process.kill()
        process.communicate()


def running(body: str, url: str, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """The same for a program whose client runs this body."""
    return running_program(PROGRAM.format(textwrap.indent(body, " " * 8)), url, *more)


@pytest.mark.parametrize("frozen", [False, True])
async def test_what_a_killed_consumer_had_comes_again_first_in_line(
    open_queue: Opener, url: str, db: redis.Redis, frozen: bool
) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(6)])
    with running(CONSUMER, url) as process:
        # Acknowledgements leave in the next turn of the event loop.
        await eventually(lambda: db.get("__pressure__:jobs:stats:consumed_messages") == b"2")
        os.kill(process.pid, signal.SIGSTOP if frozen else signal.SIGKILL)
        delivery = await in_time(queue.receive())
        assert (delivery.item, delivery.attempts) == (b"2", 2)
        await delivery.nack()
    await queue.close()
    async with queue.consumer() as consumer:
        assert [item async for item in consumer] == [b"2", b"3", b"4", b"5"]
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight) == (6, 0)


async def test_what_a_killed_receiver_had_not_acknowledged_comes_again_in_order(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(5)])
    with running(RECEIVER, url) as process:
        process.kill()
        got: list[bytes] = []
        while len(got) < 4:
            got += await in_time(queue.get_many(10))
    assert got == [b"0", b"2", b"3", b"4"]


async def test_any_step_heals_so_that_a_step_by_step_client_gets_its_turn(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue()
    plain = await open_queue(create=False, scripting=False)
    await queue.put_many([b"%d" % index for index in range(6)])
    with running(CONSUMER, url) as process:
        await eventually(lambda: db.get("__pressure__:jobs:stats:consumed_messages") == b"2")
        process.kill()
        task = asyncio.create_task(plain.get())
        async with asyncio.timeout(PATIENCE):
            while not task.done():
                await queue.put(b"another")  # a put heals too
                await asyncio.sleep(0.05)
    assert await task == b"2"


async def test_the_role_of_a_killed_exclusive_producer_is_free_again(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    with running(PRODUCER, url) as process:
        with pytest.raises(QueueInUseError) as raised:
            await queue.put_nowait(b"x")
        assert raised.value.holder == "victim"
        process.kill()
        await in_time(queue.put(b"next"))
        await in_time(queue.close())
    assert [item async for item in queue] == [b"from the victim", b"next"]


async def test_a_client_that_stood_still_is_told_that_its_lease_is_lost(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    with running(STANDS_STILL, url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        delivery = await in_time(queue.receive())
        assert (delivery.item, delivery.attempts) == (b"x", 2)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline().split() == ["LeaseLostError", "consumer"]
        # Its late acknowledgement has settled nothing of ours.
        assert (await queue.statistics()).in_flight == 1
        await delivery.ack()
    assert (await queue.statistics()).consumed_messages == 1


def expire(db: redis.Redis, role: str) -> None:
    """Let a lease run out, as if its owner had stood still for long enough."""
    assert db.hset(f"apressure:__pressure__:jobs:{role}_lease", "deadline", 1) == 0


@pytest.mark.parametrize("how", ["ack", "nack", "extend"])
async def test_a_late_settlement_is_refused_and_the_next_receive_begins_anew(
    open_queue: Opener, db: redis.Redis, how: str
) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many([b"1", b"2"])
    delivery = await queue.receive()
    expire(db, "consumer")
    assert await other.get() == b"1"
    raised = await fails(LeaseLostError, delivery.extend(5) if how == "extend" else getattr(delivery, how)())
    assert (raised.role, raised.name) == ("consumer", "jobs")
    with pytest.raises(LeaseLostError):
        await delivery.ack()
    again = await in_time(queue.receive())
    assert (again.item, again.attempts) == (b"2", 1)
    await again.ack()
    assert (await queue.statistics()).consumed_messages == 2


async def test_a_late_settlement_is_accepted_while_nobody_has_healed(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive()
    expire(db, "consumer")
    await delivery.ack()
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.length, statistics.consumer.state) == (1, 0, "free")


async def test_a_consumer_that_lost_its_lease_drops_what_it_prefetched(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many([b"%d" % index for index in range(5)])
    with pytest.raises(LeaseLostError):
        async with queue.consumer(prefetch=3, lease=3) as consumer:
            assert await anext(consumer) == b"0"
            expire(db, "consumer")
            assert await other.get() == b"0"
            seen = []
            async with asyncio.timeout(PATIENCE):
                async for item in consumer:
                    seen.append(item)
                    await asyncio.sleep(0.05)
    assert await in_time(other.get_many(10)) == [b"1", b"2", b"3", b"4"]
    async with queue.consumer():
        pass


@pytest.mark.parametrize("how", ["blocked", "running"])
async def test_a_consumer_that_was_stopped_hands_out_nothing_that_somebody_else_has(
    open_queue: Opener, url: str, how: str
) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(100)])
    with running(PREFETCHED, url, how) as process:
        os.kill(process.pid, signal.SIGSTOP)
        delivery = await in_time(queue.receive())
        assert delivery.attempts == 2
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        after, _ = await asyncio.to_thread(process.communicate)
    assert after.split() == ["lost"]
    await delivery.ack()


class Time:
    """A clock that stands still until it is told to jump."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("healed", [True, False])
@pytest.mark.parametrize("prefetch", [1, 3])
async def test_after_a_pause_longer_than_the_lease_the_server_is_asked_before_an_item_is_handed_out(
    open_queue: Opener, db: redis.Redis, healed: bool, prefetch: int
) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many([b"%d" % index for index in range(5)])
    time = Time()
    options = Options(prefetch=prefetch, lease=30.0, clock=time)
    consumer: Consumer[bytes] = Consumer(queue._engine, queue._items.decode, options)
    expected: Any = pytest.raises(LeaseLostError) if healed else nullcontext()
    with expected:
        async with consumer:
            assert await anext(consumer) == b"0"
            expire(db, "consumer")
            if healed:
                assert await other.get() == b"0"
            time.now += 30.5
            for item in (b"1", b"2", b"3", b"4"):
                assert await in_time(anext(consumer)) == item
                assert not consumer.redelivered
                time.now += 30.5
    assert await other.get_many(9) == [b"1", b"2", b"3", b"4"] if healed else await other.qsize() == 0


async def test_a_stop_between_a_step_and_its_answer_counts_from_when_the_step_was_sent(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many([b"0", b"1", b"2"])
    time = Time()
    async with queue.consumer(prefetch=1) as consumer:
        assert await anext(consumer) == b"0"  # the server knows the script: the next step is one round trip
    with pytest.raises(LeaseLostError):
        options = Options(prefetch=2, lease=30.0, clock=time)
        async with Consumer(queue._engine, queue._items.decode, options) as consumer:
            receiving = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)  # the step is on its way; from here on this process stands still and reads nothing
            while not db.exists("apressure:__pressure__:jobs:inflight"):
                assert not receiving.done()
            db.delete("apressure:__pressure__:jobs:consumer_lease")
            db.lpush("__pressure__:jobs:consumer_free", 0)
            time.now += 31
            await in_time(receiving)
    assert await other.get_many(9) == [b"1", b"2"]


async def test_a_body_that_ends_well_learns_that_its_lease_was_lost(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put(b"1")
    with pytest.raises(LeaseLostError):
        async with queue.consumer() as consumer:
            assert await anext(consumer) == b"1"
            expire(db, "consumer")
            assert await other.get() == b"1"
    assert (await other.statistics()).consumed_messages == 1


async def test_a_body_that_raises_is_heard_even_when_its_lease_was_lost(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put(b"1")
    with pytest.raises(KeyError, match="mine"):
        async with queue.consumer() as consumer:
            await anext(consumer)
            expire(db, "consumer")
            await other.get()
            raise KeyError("mine")


async def test_a_producer_that_lost_its_lease_puts_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    with pytest.raises(LeaseLostError) as raised:
        async with queue.producer(exclusive=True) as producer:
            await producer.put(b"1")
            expire(db, "producer")
            await other.put(b"2")
            await producer.put(b"3")
    assert raised.value.role == "producer"
    assert not await queue.closed()
    assert await queue.get_many(5) == [b"1", b"2"]
    await in_time(queue.put(b"4"))


async def test_a_producer_that_lost_its_lease_does_not_close_the_queue(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    with pytest.raises(LeaseLostError):
        async with queue.producer(exclusive=True):
            expire(db, "producer")
            await other.put(b"2")
    assert not await queue.closed()
    await other.close()
    with pytest.raises(QueueClosedError):
        await queue.put(b"x")


async def test_a_token_claimed_by_a_client_that_died_comes_back(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    db.lmove("__pressure__:jobs:consumer_free", "apressure:__pressure__:jobs:consumer_claim")
    await queue.put(b"x")  # sees the claim and notes until when it is good
    assert db.exists("apressure:__pressure__:jobs:consumer_claim_until")
    db.set("apressure:__pressure__:jobs:consumer_claim_until", 1)
    assert await in_time(queue.get()) == b"x"
    assert not db.keys("apressure:*claim*")
    assert db.llen("__pressure__:jobs:consumer_free") == 1


async def test_a_waiter_that_dies_takes_nothing_with_it(open_queue: Opener, db: redis.Redis, url: str) -> None:
    queue = await open_queue()
    with running(WAITER, url) as process:
        await blocked(db, 2)
        process.kill()
        process.wait()
        await queue.put(b"x")
        assert await in_time(queue.get()) == b"x"


async def test_leftovers_in_flight_with_nobody_responsible_come_back(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    crashed = await open_queue(create=False)
    await crashed.receive()
    await crashed.receive()
    # A human gave the token back by hand and forgot the rest.
    db.delete("apressure:__pressure__:jobs:consumer_lease")
    db.lpush("__pressure__:jobs:consumer_free", 0)
    assert await in_time(queue.get_many(5)) == [b"1", b"2", b"3"]
    await eventually(lambda: not db.exists("apressure:__pressure__:jobs:inflight"))
