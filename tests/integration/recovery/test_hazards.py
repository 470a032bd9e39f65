"""Traps that a queue on Redis can fall into, and once did."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from typing import Any

import pytest
import redis as redis_py

from apressure import (
    AsyncQueue,
    Client,
    ClientClosedError,
    Codec,
    DecodeError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    ServerError,
)
from apressure.connection.wire.script import Request
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import script
from apressure.pressure.engine.steps import Steps
from tests.integration.conftest import PATIENCE, Opener, in_time, open_two

BASE = "__pressure__:jobs"


@pytest.fixture
def admin(url: str) -> Any:
    client = redis_py.Redis.from_url(url)
    yield client
    client.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_get_cancelled_in_the_turn_in_which_its_reply_comes_loses_nothing(
    open_queue: Opener, seed: int
) -> None:
    """A cancellation cancels the future at once, and the task notices later: the reply may be handled in between."""
    rnd = random.Random(seed)
    count, got, cancelled = 700, [], 0
    loop = asyncio.get_running_loop()
    queue, other = await open_two(open_queue, bound=5)

    async def feed() -> None:
        async with other.producer() as producer:
            for number in range(count):
                await producer.put(b"%d" % number)

    feeder = asyncio.ensure_future(feed())
    while True:
        getting = asyncio.ensure_future(queue.get())
        for _ in range(rnd.randrange(4)):
            await asyncio.sleep(0)
        if rnd.random() < 0.5:
            time.sleep(rnd.choice((0, 0.0002, 0.0005)))  # the reply is in the socket when the loop goes on
            loop.call_soon(getting.cancel)
            cancelled += 1
        try:
            got.append(int(await getting))
        except asyncio.CancelledError:
            pass
        except QueueClosedError:
            break
    await feeder
    assert got == list(range(count)), f"seed {seed}"
    assert cancelled > count / 4
    assert (await queue.statistics()).consumed_messages == count


async def test_several_gets_cancelled_at_once_give_back_in_order(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(6)])
    getting = [asyncio.ensure_future(queue.get()) for _ in range(4)]
    while not any(task.done() for task in getting):
        await asyncio.sleep(0)
    taken = [task for task in getting if task.done()]
    for task in getting:
        task.cancel()
    await asyncio.wait(getting)
    kept = [task.result() for task in taken]
    assert kept + await queue.get_many(10) == [b"%d" % number for number in range(6)]


async def test_a_step_that_the_server_has_to_learn_first_is_not_overtaken(
    open_queue: Opener, admin: redis_py.Redis
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    admin.script_flush()
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    getting.cancel()
    await asyncio.wait([getting])
    assert [await queue.get() for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_long_put_many_into_a_nearly_full_queue_does_not_send_everything_again(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    put = Steps.put

    def counting(self: Steps, name: str, series: Any, messages: Any, *rest: Any) -> Any:
        sent.append(len(messages))
        return put(self, name, series, messages, *rest)

    monkeypatch.setattr(Steps, "put", counting)
    queue = await open_queue(bound=10)
    feeding = asyncio.ensure_future(queue.put_many(b"%d" % number for number in range(2000)))
    got = [await queue.get() for _ in range(1500)]
    assert got == [b"%d" % number for number in range(1500)]
    feeding.cancel()
    await asyncio.wait([feeding])
    # The first step does not know how full the queue is. Each later one sends at most twice what fitted, or 16.
    assert sum(sent[1:]) <= 2 * 1510 + 16 * len(sent)


async def test_the_bound_is_read_at_each_step(open_queue: Opener, admin: redis_py.Redis) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"1")
    with pytest.raises(QueueFullError):
        await queue.put_nowait(b"2")
    admin.set(f"{BASE}:bound", 3)
    await queue.put_nowait(b"2")
    await queue.put_nowait(b"3")
    with pytest.raises(QueueFullError):
        await queue.put_nowait(b"4")
    assert await queue.bound() == 3


async def test_every_step_makes_not_full_exactly_one_token_or_none(open_queue: Opener, admin: redis_py.Redis) -> None:
    """A client of version 0.1 leaves two, one that died leaves none."""
    queue = await open_queue(bound=3)
    for tokens in (0, 1, 2, 3):
        admin.delete(f"{BASE}:not_full")
        if tokens:
            admin.lpush(f"{BASE}:not_full", *[0] * tokens)
        await queue.put(b"1")
        assert admin.llen(f"{BASE}:not_full") == 1
        admin.lpush(f"{BASE}:not_full", 0, 0)
        await queue.get()
        assert admin.llen(f"{BASE}:not_full") == 1
    await queue.put_many([b"1"] * 4, force=True)
    assert admin.llen(f"{BASE}:not_full") == 0
    await queue.get()  # an overfilled queue is full still
    assert admin.llen(f"{BASE}:not_full") == 0
    await queue.get()
    assert admin.llen(f"{BASE}:not_full") == 1


async def test_two_tokens_of_a_role_are_never_two_holders(open_queue: Opener, admin: redis_py.Redis) -> None:
    """A step-by-step client of an earlier life of the queue gives its role back to the new one."""
    queue, other = await open_two(open_queue)
    admin.lpush(f"{BASE}:consumer_free", 0)
    async with queue.consumer(), asyncio.timeout(PATIENCE):
        assert admin.llen(f"{BASE}:consumer_free") == 0
        assert (await other.statistics()).consumer.state == "leased"
    assert admin.llen(f"{BASE}:consumer_free") == 1


async def test_a_blocking_command_outlives_the_wait_that_made_it(open_queue: Opener, admin: redis_py.Redis) -> None:
    queue = await open_queue()
    admin.config_resetstat()
    for _ in range(50):
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0.005)
        getting.cancel()
        await asyncio.wait([getting])
    # One on the messages, one on :closed; perhaps another after a slice on a slow machine.
    calls = admin.info("commandstats").get("cmdstat_blmove", {}).get("calls", 0)
    blocked = admin.info("clients")["blocked_clients"]
    assert calls + blocked <= 6
    await queue.put(b"1")
    assert await queue.get() == b"1"


@pytest.mark.usefixtures("long_slices")
async def test_what_was_put_while_a_step_said_empty_is_not_slept_through(open_queue: Opener) -> None:
    """A wake-up between the answer of a step and the wait for the next one counts."""
    queue, other = await open_two(open_queue)
    for number in range(300):
        getting = asyncio.ensure_future(queue.get())
        if number % 3:
            await asyncio.sleep(random.random() * 0.002)
        await other.put(b"%d" % number)
        assert await in_time(getting) == b"%d" % number


async def test_closing_a_client_gives_back_the_roles_that_its_blocks_hold(url: str) -> None:
    client = Client(url)
    inside = asyncio.Event()

    async def consume() -> None:
        async with AsyncQueue("jobs", client=client).consumer(lease=60) as consumer:
            async for _ in consumer:
                inside.set()
                await asyncio.sleep(60)

    async def produce() -> None:
        async with AsyncQueue("others", client=client).producer(exclusive=True, lease=60):
            await asyncio.sleep(60)

    async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("others", url=url) as other:
        await queue.create()
        await other.create()
        await queue.put_many([b"1", b"2"])
        tasks = [asyncio.ensure_future(consume()), asyncio.ensure_future(produce())]
        by_hand = AsyncQueue("others", client=client)
        await inside.wait()
        while (await other.statistics()).producer.state != "leased":
            await asyncio.sleep(0.01)
        await client.aclose()
        assert (await queue.statistics()).consumer.state == "free"
        assert (await other.statistics()).producer.state == "free"
        assert await queue.get_many(9) == [b"1", b"2"]
        with pytest.raises(ClientClosedError):
            await by_hand.receive()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await queue.delete()
        await other.delete()


def put_step(admin: Any, sequence: int, again: int, message: str) -> int:
    """Send the step of a series as it leaves a client, whenever that is, and return how many were put."""
    keys = Keys("__pressure__", "jobs").for_script("series")
    step = script("put").on(keys).whole.arguments
    answer: bytes = admin.execute_command(*step, "uid", sequence, again, 0, "", 0, message, "tag")
    return int(answer.removeprefix(b"tag "))


@pytest.mark.parametrize("between", ["nothing", "full", "a later step"])
async def test_a_step_that_comes_after_its_repeat_does_nothing(open_queue: Opener, admin: Any, between: str) -> None:
    """A client gave up a connection on which a step was late, not lost, and has sent the step again on another."""
    put = functools.partial(put_step, admin)
    queue = await open_queue(bound=1)
    assert put(1, 0, "first") == 1
    if between == "full":
        assert put(2, 1, "second") == 0  # the repeat finds no room; nothing says so, should it be asked
        assert await queue.get() == b"first"
    else:
        assert await queue.get() == b"first"
        assert put(2, 1, "second") == 1
        assert put(2, 1, "second") == 1
        assert await queue.get() == b"second"
    if between == "a later step":
        assert put(3, 0, "third") == 1
        assert await queue.get() == b"third"
    put(2, 0, "second")
    assert await queue.qsize() == 0
    if between == "full":
        assert put(2, 1, "second") == 1  # nothing had been done: a further repeat does it
        assert await queue.get() == b"second"


async def test_healing_does_not_forget_what_a_late_step_has_done_already(open_queue: Opener, admin: Any) -> None:
    put = functools.partial(put_step, admin)
    queue = await open_queue(bound=1)
    assert put(1, 1, "first") == 1
    assert await queue.get() == b"first"
    admin.delete(f"{BASE}:consumer_free")
    admin.hset(f"apressure:{BASE}:consumer_lease", mapping={"token": "dead", "uid": "dead", "deadline": 1, "next": 2})
    admin.lpush(f"apressure:{BASE}:inflight", "in flight")
    assert put(2, 0, "second") == 0  # it heals, and finds no room
    assert await queue.get() == b"in flight"
    put(1, 0, "first")
    assert await queue.qsize() == 0


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Let every step be the repeat of one that is late itself; returns the late ones, as commands."""
    late: dict[str, list[Any]] = {}
    create = Request.__init__

    def of_a_late_one(self: Request, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        if self.again is not None:
            late[self.call.script.name] = [*self.call.whole.arguments, *self.arguments, b"tag"]
            self.arguments[self.again] = b"1"

    monkeypatch.setattr(Request, "__init__", of_a_late_one)
    return late


async def test_a_receive_that_comes_after_its_repeat_takes_nothing(
    open_queue: Opener, admin: Any, repeated: dict[str, list[Any]]
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await (await queue.receive()).ack()
    admin.execute_command(*repeated["receive"])
    assert not admin.exists(f"apressure:{BASE}:inflight")
    delivery = await queue.receive()
    assert (delivery.raw, delivery.attempts) == (b"2", 1)
    await delivery.ack()
    await queue.delete(timeout=0)


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_role_is_not_taken_by_a_step_that_comes_after_its_repeat(
    open_queue: Opener, admin: Any, repeated: dict[str, list[Any]], role: str
) -> None:
    queue = await open_queue()
    async with queue.producer(exclusive=True, close=False) if role == "producer" else queue.consumer():
        pass
    admin.execute_command(*repeated["acquire"])
    assert not admin.exists(f"apressure:{BASE}:{role}_lease")
    await queue.delete(timeout=0)


async def test_an_acknowledgement_that_leaves_with_a_receive_is_waited_for_and_not_forgotten_when_that_fails(
    open_queue: Opener, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    first, second = await queue.receive(), await queue.receive()
    failing: list[Request] = []
    send = queue.client.connection.send
    monkeypatch.setattr(
        queue.client.connection,
        "send",
        lambda step: (failing.append if step.call.script.name == "receive" else send)(step),
    )
    acks = [asyncio.create_task(delivery.ack()) for delivery in (first, second)]
    await asyncio.sleep(0)  # the first one's step is on its way, the second one's waits for it
    receive = asyncio.create_task(queue.receive())
    await acks[0]
    while not failing:
        await asyncio.sleep(0)
    assert failing[0].arguments[-3:] == [2, 2, 1]
    failing[0].on_reply(ServerError("refused"))
    with pytest.raises(ServerError, match="refused"):
        await receive
    await acks[1]
    assert not admin.exists(f"apressure:{BASE}:inflight", f"apressure:{BASE}:consumer_lease")
    await queue.delete(timeout=0)


async def test_a_role_whose_acknowledgement_is_refused_does_not_stay_taken(open_queue: Opener, admin: Any) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    with pytest.raises(ServerError, match="is not an integer"):
        async with queue.consumer(ack="manual") as consumer:
            delivery = await anext(consumer)
            admin.set(f"{BASE}:stats:consumed_messages", "many")
            await delivery.ack()
    admin.delete(f"{BASE}:stats:consumed_messages")
    assert await queue.get(timeout=0) == b"1"
    await queue.delete(timeout=0)


class Picky(Codec[bytes]):
    """Refuses one message."""

    def encode(self, item: bytes) -> bytes:
        return item

    def decode(self, message: bytes) -> bytes:
        if message == b"bad":
            raise ValueError("bad")
        return message


async def test_what_cannot_be_decoded_goes_back_whatever_was_asked_for_since(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as durable:
        # There is no replica here: only the records of gets count.
        durable.setattr(Steps, "gets", lambda steps: steps.series())
        queue = AsyncQueue[bytes]("jobs", url=url, codec=Picky())
    async with queue:
        await queue.create()
        await queue.put_many([b"good", b"bad", b"other"])
        first, second = await asyncio.gather(queue.get_many(3), queue.get(timeout=0.2), return_exceptions=True)
        assert first == [b"good"]
        assert isinstance(second, (DecodeError, QueueEmptyError))
        if isinstance(second, QueueEmptyError):
            assert await queue.get() == b"bad"
        assert await queue.get() == b"other"
        await queue.delete()


@pytest.mark.parametrize("heard", [True, False], ids=["of the get", "not of the get"])
async def test_a_server_that_took_over_is_given_back_only_what_it_has_given(url: str, admin: Any, heard: bool) -> None:
    async with Client(url, durability=1) as client:
        queue = AsyncQueue[bytes]("jobs", url=url)
        await queue.create()
        await queue.put_many([b"1", b"2"])
        steps = Steps(client, Keys(client.prefix, "jobs"), "jobs")
        gets = steps.gets()
        assert gets is not None
        answered = asyncio.get_running_loop().create_future()
        client.connection.node.durability = None  # there is no replica here: only the record counts
        steps.get(gets, 1, b"", answered.set_result)
        assert await answered == [b"1"]
        if not heard:
            admin.rpush(BASE, b"1")
            admin.delete(gets.keys[-1])
        returned = asyncio.get_running_loop().create_future()
        steps.give_back(gets, gets.number, [b"1"], returned.set_result)
        assert await returned == int(heard)
        assert admin.lrange(BASE, 0, -1) == [b"2", b"1"]
        await queue.delete()
        await queue.aclose()
