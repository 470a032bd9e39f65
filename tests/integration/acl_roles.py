"""What producers, consumers, operators and monitors do, the rare paths too, and the rights that the docs give them.

Each role is played on a server where an owner with all rights prepares what dead clients, and clients of other
programs, leave behind. A right that a role lacks ends the play with the error that its user would see.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis

from apressure import (
    AsyncQueue,
    Client,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    recovery,
)
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import eventually, in_time
from tests.servers import admin

DOCUMENT = Path(__file__).parents[2] / "docs" / "rely" / "security.md"
PASSWORD = "geh3im"
KEY = "__pressure__:orders"
OURS = "apressure:__pressure__:orders"

Queue = AsyncQueue[bytes]


def documented(plain: bool) -> dict[str, list[str]]:
    """The arguments of the `ACL SETUSER` lines in docs/rely/security.md, by role: with scripts, or without."""
    before, _, after = DOCUMENT.read_text().partition("### Without scripts")
    found = {}
    for block in re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", after if plain else before, re.DOTALL):
        words = shlex.split(block.replace("\\\n", " "))[3:]
        found[words[0].removeprefix("orders-")] = words[1:]
    return found


def rights(rules: list[str]) -> list[str]:
    """The commands that rules allow, those of selectors included."""
    return re.findall(r"\+([\w|]+)", " ".join(rules))


def without(rules: list[str], right: str) -> list[str]:
    """The rules less one command."""
    lacking = [re.sub(rf"\+{re.escape(right)}(?![\w|])", "", rule).replace("( ", "(") for rule in rules]
    return [rule for rule in lacking if rule]


def for_old_servers(rules: list[str]) -> list[str]:
    """The rules as the docs say to write them for Redis 6.2: the selectors' commands without parentheses and keys."""
    old = []
    for rule in rules:
        old += [f"+{right}" for right in rights([rule])] if rule.startswith("(") else [rule]
    return old


def allow(server: EmbeddedServer, role: str, rules: list[str]) -> str:
    """Make the user of a role; returns the URL with it."""
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", role, *(rule.replace(">PASSWORD", f">{PASSWORD}") for rule in rules))
    return server.url.replace("redis://", f"redis://{role}:{PASSWORD}@")


class Stage:
    """The queue `orders` on a server, its owner, and what a role's user sees of it.

    Attributes:
        queue: The user's.
        owner: The one of somebody with all rights.
    """

    def __init__(self, db: redis.Redis, queue: Queue, owner: Queue) -> None:
        self.db = db
        self.queue = queue
        self.owner = owner

    async def while_waiting(self, operation: Awaitable[Any], then: Callable[[], Awaitable[Any]]) -> Any:
        """Start an operation, do something once the server says that it waits, and return its result."""
        task = asyncio.ensure_future(operation)
        try:
            await eventually(lambda: task.done() or self.db.info("clients")["blocked_clients"] > 0)
            if not task.done():
                await then()
            return await in_time(task)
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def leave_a_dead_consumer(self) -> None:
        """In flight: a message for the first time, and one for the second. Their consumer has died."""
        async with AsyncQueue("orders", client=self.owner.client) as dead:
            await dead.put_many([b"a", b"b"], force=True)
            await (await dead.receive()).nack()
            await dead.receive()
            await dead.receive()
            self.lease = self.db.hgetall(f"{OURS}:consumer_lease")
            flying, apart = self.db.lrange(f"{OURS}:inflight", 0, -1), self.db.hgetall(f"{OURS}:apart")
        self.db.delete(KEY, f"{KEY}:consumer_free", f"{OURS}:redelivered")
        self.db.hset(f"{OURS}:consumer_lease", mapping={**self.lease, b"deadline": 1})
        self.db.rpush(f"{OURS}:inflight", *flying)
        self.db.hset(f"{OURS}:apart", mapping=apart)

    def leave_a_dead_claim(self, role: str) -> None:
        """Somebody died with the role's token in hand; somebody else left two tokens where one is enough."""
        self.db.delete(f"{KEY}:{role}_free")
        self.db.lpush(f"{OURS}:{role}_claim", 1)
        self.db.lpush(f"{KEY}:{role}_free", 1, 1)
        self.db.set(f"{OURS}:{role}_claim_until", 1)
        self.db.lpush(f"{KEY}:not_full", 1)

    async def lose_a_reply(
        self, name: str, arguments: list[bytes], uid: bool = False, more: tuple[bytes, ...] = ()
    ) -> Any:
        """Carry out a step and, since its reply was lost, once more."""
        steps = self.queue._engine.steps  # type: ignore[union-attr]
        series = steps.series()
        for again in (b"0", b"1"):
            numbered: list[Any] = [*([steps._uid] if uid else []), 1, again, *arguments]
            answer = await steps._ask(series.call(name, lambda: more), numbered)
        return answer

    def forget_scripts(self) -> None:
        self.db.script_flush()


async def look(queue: Queue) -> None:
    assert await queue.exists()
    assert await queue.bound() == 2
    assert await queue.qsize() >= 0
    await queue.closed()
    await queue.statistics()


async def produce(stage: Stage) -> None:
    """Everything that a producer does."""
    queue, owner = stage.queue, stage.owner
    await owner.create(bound=2)
    stage.forget_scripts()
    await queue.put(b"1")
    await queue.put_nowait(b"2")
    await stage.while_waiting(queue.put_many([b"3", b"4"]), lambda: owner.get_many(2))
    with contextlib.suppress(QueueFullError):
        await queue.put(b"x", timeout=0)
    await look(queue)
    await owner.get_many(2)
    if queue.client.settings.scripting:
        await stage.leave_a_dead_consumer()
        stage.leave_a_dead_claim("producer")
        await queue.put(b"force", force=True)
        assert await owner.get_many(10) == [b"a", b"b", b"force"]
        await delay(stage)
        async with owner.producer(exclusive=True, close=False):
            with contextlib.suppress(QueueInUseError):
                await queue.put(b"x", timeout=0)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(owner.producer(exclusive=True, close=False))
            await stage.while_waiting(queue.put(b"5"), stack.aclose)
        async with queue.producer(exclusive=True, lease=0.2, close=False) as producer:
            deadline = stage.db.hget(f"{OURS}:producer_lease", "deadline")
            await producer.put(b"6")
            await eventually(lambda: stage.db.hget(f"{OURS}:producer_lease", "deadline") != deadline)
        await owner.get_many(2)
        await stage.lose_a_reply("put", [b"0", b"", b"0", b"x"], uid=True)
        await rebind(queue)
        await stage.while_waiting(queue.wait_closed(), owner.close)
        await owner.delete()
        await owner.create(bound=2)
    else:
        await cancel_a_wait(stage, lambda: stage.queue.put_many([b"1", b"2", b"3"]))
        stage.db.delete(KEY)
        stage.db.delete(f"{KEY}:not_full")
        stage.db.lpush(f"{KEY}:not_full", 1)
        stage.db.delete(f"{KEY}:producer_free")
        await stage.while_waiting(queue.put(b"5"), lambda: push(stage, "producer"))
    async with queue.producer() as producer:
        await producer.put(b"7")
    with contextlib.suppress(QueueClosedError):
        await queue.close()
    await too_late(stage, lambda: queue.put(b"x"))


async def rebind(queue: Queue) -> None:
    """Change the bound, so that the queue is full, is not, has no bound, and has it again."""
    for bound in (1, 3, 0, 2):
        await queue.set_bound(bound)


async def delay(stage: Stage) -> None:
    """What a producer does with delayed messages, of others, too."""
    queue, owner = stage.queue, stage.owner
    await queue.put(b"later", delay=60)
    await queue.put(b"soon", delay=0.01)
    await rebind(queue)
    await look(queue)
    await asyncio.sleep(0.05)
    await queue.put(b"now", force=True)
    assert await owner.get_many(9) == [b"soon", b"now"]
    assert await owner.purge() == 1


async def consume(stage: Stage) -> None:
    """Everything that a consumer does."""
    queue, owner = stage.queue, stage.owner
    await owner.create(bound=2)
    stage.forget_scripts()
    await stage.while_waiting(queue.get(), lambda: owner.put(b"1"))
    await owner.put_many([b"1", b"2"])
    await queue.get_many(2)
    await owner.put(b"3")
    await queue.get_nowait()
    with contextlib.suppress(QueueEmptyError):
        await queue.get(timeout=0)
    await look(queue)
    if queue.client.settings.scripting:
        await queue.hold(1)
        await queue.hold(0)
        await owner.put(b"later", delay=60)
        await rebind(queue)
        await owner.purge()
        await stage.leave_a_dead_consumer()
        stage.leave_a_dead_claim("consumer")
        deliveries = [await queue.receive(), await queue.receive()]
        assert [delivery.item for delivery in deliveries] == [b"a", b"b"]
        await deliveries[0].extend(10)
        await deliveries[0].ack()
        await deliveries[1].nack()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(owner.consumer())
            await stage.while_waiting(queue.get(), stack.aclose)
        assert await stage.lose_a_reply("give_back", [b"", b"0"]) == 1
        assert await queue.get_many(9) == [b"0"]
        await die_of_it(stage)
        await owner.put(b"again")
        await (await queue.receive()).nack(delay=0.01)
        await asyncio.sleep(0.05)
        assert await queue.get() == b"again"
        await owner.put(b"later", delay=60)
        await look(queue)
        assert await queue.purge() == 1
        await owner.pause()
        await owner.put(b"4")
        assert await stage.while_waiting(queue.get(), owner.resume) == b"4"
        await owner.put_many([b"5", b"6"])
        async with queue.consumer(delete=True) as consumer:
            assert await anext(consumer) == b"5"
            assert await anext(consumer) == b"6"
            await owner.close()
            assert [item async for item in consumer] == []
        assert not await owner.exists()
        await owner.create(bound=2)
        await share(stage)
    else:
        await cancel_a_wait(stage, queue.get)
        await owner.put(b"4")
        await queue._engine.give_back([await queue.get()])  # as for a get that was cancelled too late
        stage.db.delete(f"{KEY}:consumer_free")
        await stage.while_waiting(queue.get(), lambda: push(stage, "consumer"))
    await owner.put(b"10")
    assert await queue.purge() == 1
    await owner.put_many([b"8", b"9"])
    await owner.close()
    assert [item async for item in queue] == [b"8", b"9"]
    await too_late(stage, queue.get)


async def share(stage: Stage) -> None:
    """Everything that a consumer does beside others that share the role with it."""
    queue, owner = stage.queue, stage.owner
    other: Queue = AsyncQueue("orders", client=owner.client)
    async with other.consumer(shared=True, ack="manual", prefetch=1) as others:
        watching = asyncio.create_task(_next_ack(others))
        await eventually(lambda: stage.db.exists(f"{OURS}:watch"))
        async with queue.consumer(shared=True, ack="manual", prefetch=1) as consumer:
            before = stage.db.hget(f"{OURS}:watch", "others")
            getting = asyncio.create_task(_next_ack(consumer))
            await eventually(lambda: stage.db.hget(f"{OURS}:watch", "others") != before)  # it waits in line
            await owner.put_many([b"7", b"8"])
            await in_time(asyncio.gather(watching, getting))
            await owner.put(b"9")
            delivery = await in_time(anext(consumer))
            await delivery.nack()
            again = await in_time(anext(consumer))
            assert again.attempts == 2
            await again.ack()


async def _next_ack(deliveries: Any) -> None:
    delivery = await anext(deliveries)
    await delivery.ack()


async def operate(stage: Stage) -> None:
    """Everything that an operator does."""
    queue, owner = stage.queue, stage.owner
    assert await queue.create(bound=2)
    stage.forget_scripts()
    await look(queue)
    assert await queue.client.queues() == ["orders"]
    await owner.put_many([b"1", b"2"])
    assert await queue.peek() == b"1"
    assert await queue.peek_newest() == b"2"
    assert [message.item for message in (await queue.browse()).messages] == [b"1", b"2"]
    if queue.client.settings.scripting:
        await stage.leave_a_dead_consumer()
        stage.leave_a_dead_claim("producer")
        await queue.close()
        assert await owner.get_many(9) == [b"1", b"2"]
        async with owner.consumer(shared=True):
            await look(queue)
            await recovery.repair(queue, patience=0.02)
        stage.db.set(f"{KEY}:stats:produced_bytes", "x")
        stage.db.lpush(f"{KEY}:producer_free", 1)
        assert await recovery.find(queue.client) == ["orders"]
        assert len((await recovery.repair(queue, patience=0.02)).done) == 2
        stage.db.delete(f"{KEY}:producer_free")
        stage.db.hset(f"{OURS}:producer_lease", mapping={"uid": "dead", "deadline": 9999999999999, "duration": 1})
        stage.db.set(f"{OURS}:redelivered", "x")
        repaired = await recovery.repair(queue, patience=0.02)
        assert [action.kind for action in repaired.done][:2] == ["wrong_type", "overlong_lease"]
        stage.db.delete(*stage.db.keys(f"{OURS}:redelivered.damaged-*"))
        await queue.delete()
        await queue.create(bound=2)
        await owner.put(b"later", delay=60)
        await look(queue)
        stage.db.zadd(f"{OURS}:delayed", {"strange": 1})
        await recovery.repair(queue, patience=0.02)
        assert await queue.purge() == 2
        assert await queue.pause()
        assert await queue.resume()
        await owner.put(b"later", delay=60)
        await rebind(queue)
        await owner.purge()
        await queue.set_rate(5)
        await queue.hold(1)
        await queue.hold(0)
        await queue.set_rate(None)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(owner.producer(exclusive=True, close=False))
            await stage.while_waiting(queue.close(), stack.aclose)
        await stage.while_waiting(queue.wait_closed(), owner.close)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(QueueDoesNotExistError))
            await stack.enter_async_context(owner.consumer())
            await stage.while_waiting(queue.delete(), stack.aclose)
        await queue.create(bound=2)
        await die_of_it(stage, owner.client)
        async with AsyncQueue("orders:dead", client=owner.client) as dead_letters:
            await (await dead_letters.receive()).nack()
        assert await queue.requeue() == 1
        assert await queue.purge() == 1
        for _ in range(2):
            await die_of_it(stage, owner.client)
        letters = await queue.dead_letters()
        assert [letter.attempts for letter in letters] == [2, 2]
        assert await queue.requeue(ids=[letters[1].id]) == 1
        assert await queue.requeue() == 1
        assert await queue.purge() == 2
        await die_of_it(stage, owner.client)
        (letter,) = (await queue.find_dead_letters()).letters
        assert await queue.discard([letter.id]) == 1
        await owner.put(b"later", delay=600)
        assert await queue.promote() == 1
        assert await queue.purge() == 1
        assert await queue.add_dead_letters(letters) == 2
        async with AsyncQueue("orders:dead", client=queue.client) as dead_letters:
            await dead_letters.delete()
        assert await stage.lose_a_reply("begin_delete", [], more=(queue._engine.keys.resumed,)) == 1
        await stage.owner.create(exist_ok=True)
        await queue.delete()
    else:
        await queue.close()
        stage.db.delete(f"{KEY}:consumer_free")
        await cancel_a_wait(stage, queue.delete)
        await stage.owner.create(bound=2)
        stage.db.delete(f"{KEY}:consumer_free")
        await stage.while_waiting(queue.delete(), lambda: push(stage, "consumer"))
    assert not await queue.exists()
    await queue.create()
    await queue.delete()


async def monitor(stage: Stage) -> None:
    """Everything that a monitor does."""
    await stage.owner.create(bound=2)
    stage.forget_scripts()
    await look(stage.queue)
    assert await stage.queue.client.queues() == ["orders"]
    if stage.queue.client.settings.scripting:
        async with stage.owner.consumer(shared=True):
            assert len((await stage.queue.statistics()).members) == 1
        await stage.owner.put(b"later", delay=60)
        assert (await stage.queue.statistics()).delayed == 1


async def view(stage: Stage) -> None:
    """Everything that a viewer does."""
    await monitor(stage)
    queue = stage.queue
    await stage.leave_a_dead_consumer()
    assert {message.item for message in (await queue.browse("in_flight")).messages} == {b"a", b"b"}
    stage.db.lpush(KEY, b"1", b"2")
    assert (await queue.peek(), await queue.peek_newest()) == (b"1", b"2")
    assert (await queue.browse()).total == 2
    assert (await queue.browse("delayed")).total == 1


async def die_of_it(stage: Stage, client: Client | None = None) -> None:
    """A message that nobody acknowledges becomes a dead letter."""
    async with AsyncQueue("orders", client=client or stage.queue.client, max_attempts=2) as queue:
        await stage.owner.put(b"deadly")
        await (await queue.receive()).nack(ValueError("early"))
        await (await queue.receive()).ack()
        await stage.owner.put(b"deadly")
        await (await queue.receive()).nack(ValueError("early"))
        await (await queue.receive()).nack()
        with contextlib.suppress(QueueEmptyError):
            await queue.receive(timeout=0)


async def cancel_a_wait(stage: Stage, operation: Callable[[], Awaitable[Any]]) -> None:
    """Cancel an operation that waits. What keeps it from ending at once is what a user without the right would see."""
    failures: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    task = asyncio.ensure_future(operation())
    try:
        await eventually(lambda: task.done() or stage.db.info("clients")["blocked_clients"] > 0)
        task.cancel()
        await asyncio.wait((task,))
        # A busy machine may unblock it, or be refused that, after `settle_timeout`.
        await eventually(lambda: failures or stage.db.info("clients")["blocked_clients"] == 0)
    finally:
        loop.set_exception_handler(None)
    if not task.cancelled():
        task.result()
    if failures:
        raise failures[0]["exception"]


async def push(stage: Stage, role: str) -> None:
    """A client of another program gives a role back."""
    stage.db.lpush(f"{KEY}:{role}_free", 0)


async def too_late(stage: Stage, operation: Callable[[], Awaitable[Any]]) -> None:
    """The owner deletes the queue; somebody's step is the first to find out."""
    await stage.owner.delete()
    with contextlib.suppress(QueueDoesNotExistError):
        await operation()


PLAYS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "producer": produce,
    "consumer": consume,
    "operator": operate,
    "monitor": monitor,
    "viewer": view,
}


async def play(server: EmbeddedServer, role: str, rules: list[str], scripting: bool) -> None:
    """Play a role with these rights, from an empty server to an empty server."""
    url = allow(server, role, rules)
    with admin(server) as db:
        db.flushall()
        async with AsyncQueue("orders", url=server.url) as owner:
            queue: Queue = AsyncQueue("orders", url=url, scripting=scripting, settle_timeout=0.3)
            try:
                await PLAYS[role](Stage(db, queue, owner))
            finally:
                await queue.aclose()
                db.client_kill_filter(_type="normal", skipme=True)  # ends what was refused to end by itself
