"""Durability: operations wait for replicas or the disk. Unconfirmed ones raise, and nothing is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    Durability,
    DurabilityError,
    OutcomeUnknownError,
    PermissionDeniedError,
    QueueAlreadyExistsError,
    ServerError,
    ServerTooOldError,
)
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import all_fail, eventually, fails, in_time
from tests.servers import SERVERS
from tests.topologies import Pair, ask, must_be_empty, replicated, until

SOON = Durability(1, timeout=0.1)
"""For operations that are never confirmed."""

PATIENT = Durability(1, timeout=10)
"""For operations that the test confirms or ends."""


class Replica:
    """A replica that can stand still: it confirms nothing then."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.server = pair.servers[1]

    @property
    def url(self) -> str:
        return self.pair.url

    def freeze(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def asked(self) -> bool:
        """A client waits for it."""
        return bool(self.waiting())

    def waiting(self) -> list[str]:
        """The connections that wait for it."""
        with redis.Redis.from_url(self.pair.primary.url) as db:
            return [one["id"] for one in db.client_list() if one["cmd"] == "wait" and "b" in one["flags"]]

    async def lose_the_confirmation(self, task: asyncio.Task[Any]) -> None:
        """Cut the connection on which a task waits for it, until the task waits on another one; then confirm."""
        await eventually(self.asked)
        (waiting,) = self.waiting()
        with redis.Redis.from_url(self.pair.primary.url) as db:
            db.client_kill_filter(_id=waiting)
        await eventually(lambda: task.done() or self.waiting() not in ([], [waiting]))
        assert not task.done()
        self.thaw()
        await in_time(task)


@pytest.fixture(scope="module", params=SERVERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with replicated(request.param, repl_timeout=3600) as pair:
        yield pair


@pytest.fixture
def replica(pair: Pair) -> Iterator[Replica]:
    replica = Replica(pair)
    yield replica
    replica.thaw()
    until(lambda: not replica.asked(), "nobody waits for the replica any more")
    must_be_empty(pair.primary)


@contextlib.asynccontextmanager
async def a_queue(replica: Replica, bound: int = 0, **options: Any) -> AsyncIterator[AsyncQueue[bytes]]:
    """A queue that is created and deleted while the replica confirms everything."""
    async with AsyncQueue("jobs", url=replica.url) as plain:
        await plain.create(bound)
        try:
            async with AsyncQueue("jobs", url=replica.url, **{"durability": SOON, **options}) as queue:
                yield queue
        finally:
            replica.thaw()
            with contextlib.suppress(Exception):
                await plain.delete(timeout=10)


@contextlib.contextmanager
def unsure() -> Iterator[None]:
    with pytest.raises(DurabilityError, match="0 of 1 replicas have confirmed it within 0"):
        yield


async def test_confirmed_operations_have_their_usual_results(replica: Replica) -> None:
    async with AsyncQueue("jobs", url=replica.url, durability=1) as queue:
        await queue.create(bound=2)
        await queue.put(b"1")
        assert await queue.get() == b"1"
        assert await queue.put_many([b"2", b"3"]) == 2
        assert await queue.get_many(2) == [b"2", b"3"]
        await queue.put(b"4")
        await (await queue.receive()).nack()
        await (await queue.receive()).ack()
        async with queue.producer(exclusive=True) as producer:
            await producer.put(b"5")
        async with queue.consumer(delete=True) as consumer:
            assert [item async for item in consumer] == [b"5"]
        assert not await queue.exists()


async def test_the_replica_has_every_operation_that_returned(replica: Replica) -> None:
    async with a_queue(replica, durability=1) as queue:
        for number in range(20):
            await queue.put(b"%d" % number)
            assert ask(replica.server, "LINDEX", "__pressure__:jobs", 0) == b"%d" % number
        for number in range(20):
            await queue.get()
            assert ask(replica.server, "LLEN", "__pressure__:jobs") == 19 - number


async def test_a_put_that_is_not_confirmed_says_so_and_is_in_the_queue(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        replica.freeze()
        with unsure():
            await queue.put(b"1")
        with unsure():
            await queue.put_nowait(b"2")
        with pytest.raises(DurabilityError) as caught:
            await queue.put_many([b"3", b"4"])
        assert isinstance(caught.value, OutcomeUnknownError)
        assert await queue.qsize() == 4
        replica.thaw()
        await queue.put(b"5")
        assert await queue.get_many(10) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_put_that_found_no_room_waits_on_when_its_neighbour_is_not_confirmed(replica: Replica) -> None:
    async with a_queue(replica, bound=2) as queue:
        await queue.put(b"0")
        replica.freeze()
        first = asyncio.create_task(queue.put(b"1"))
        await eventually(replica.asked)
        # These two form one step, which finds no room for both.
        second, third = (asyncio.create_task(queue.put(item)) for item in (b"2", b"3"))
        async with AsyncQueue("jobs", url=replica.url) as other:
            await eventually(lambda: queue.statistics)
            assert await other.get() == b"0"
            with unsure():
                await first
            with unsure():
                await second
            replica.thaw()
            assert await other.get() == b"1"
            await in_time(third)
            assert await other.get_many(5) == [b"2", b"3"]


@pytest.mark.parametrize("many", [False, True], ids=["get", "get_many"])
async def test_the_messages_of_an_unconfirmed_get_are_given_back(replica: Replica, many: bool) -> None:
    async with a_queue(replica) as queue:
        await queue.put_many([b"1", b"2", b"3"])
        before = await queue.statistics()
        replica.freeze()
        with unsure():
            await (queue.get_many(2) if many else queue.get())
        assert await queue.qsize() == 3
        replica.thaw()
        after = await queue.statistics()
        assert after.consumed_messages == before.consumed_messages == after.deleted_count == 0
        assert [await queue.get() for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_receive_is_confirmed_when_its_message_is_acknowledged(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        await queue.put(b"1")
        replica.freeze()
        with unsure():
            await queue.receive()
        assert await queue.qsize() == 1
        replica.thaw()
        delivery = await queue.receive()
        replica.freeze()
        with unsure():
            await delivery.ack()
        with pytest.raises(RuntimeError, match="acknowledged"):
            await delivery.ack()
        replica.thaw()
        assert await queue.qsize() == 0
        await queue.put(b"2")
        assert await queue.get() == b"2"  # the role is free


async def test_a_nack_that_is_not_confirmed_has_given_back(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        await queue.put(b"1")
        delivery = await queue.receive()
        replica.freeze()
        with unsure():
            await delivery.nack()
        replica.thaw()
        again = await queue.receive()
        assert (again.raw, again.attempts) == (b"1", 2)
        await again.ack()


async def test_every_unconfirmed_acknowledgement_raises(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        await queue.put_many([b"1", b"2", b"3"])
        deliveries = [await queue.receive() for _ in range(3)]
        replica.freeze()
        await all_fail(DurabilityError, [asyncio.create_task(one.ack()) for one in deliveries])
        replica.thaw()
        await queue.put(b"4")
        await (await queue.receive()).ack()  # nothing is left to tell


async def test_a_consumers_block_goes_on_after_an_acknowledgement_that_was_not_confirmed(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        await queue.put_many([b"1", b"2", b"3"])
        async with queue.consumer(prefetch=1) as consumer:
            assert await anext(consumer) == b"1"
            replica.freeze()
            with unsure():
                await anext(consumer)  # acknowledges the first
            replica.thaw()
            assert await anext(consumer) == b"2"  # the lease is as good as it was
            assert not consumer.redelivered
            assert await anext(consumer) == b"3"
        await queue.close()
        async with queue.consumer() as consumer:
            assert [item async for item in consumer] == []


async def test_the_end_of_a_consumers_block_is_confirmed(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        await queue.put_many([b"1", b"2"])
        with unsure():
            async with queue.consumer(prefetch=1) as consumer:
                assert await anext(consumer) == b"1"
                replica.freeze()
        replica.thaw()
        assert await queue.get() == b"2"  # the role was given back


async def test_close_create_and_delete_are_confirmed(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        replica.freeze()
        with unsure():
            await queue.close()
        assert await queue.closed()
        with unsure():
            await queue.delete()
        assert not await queue.exists()
        with unsure():
            await queue.create(bound=3)
        with pytest.raises(QueueAlreadyExistsError):
            await queue.create(bound=3)
        assert not await queue.create(bound=3, exist_ok=True)
        replica.thaw()
        await queue.put(b"1")
        assert await queue.get() == b"1"


async def test_an_exclusive_producers_role_is_free_when_its_close_was_not_confirmed(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        with unsure():
            async with queue.producer(exclusive=True) as producer:
                await producer.put(b"1")
                replica.freeze()
        replica.thaw()
        assert await queue.closed()
        assert (await queue.statistics()).producer.state == "free"


@pytest.mark.parametrize("also", [None, b"behind"], ids=["alone", "with-one-behind"])
async def test_a_cancelled_put_is_in_and_its_caller_waits_to_know(replica: Replica, also: bytes | None) -> None:
    async with a_queue(replica, durability=PATIENT) as queue:
        replica.freeze()
        task = asyncio.create_task(queue.put(b"1"))
        await eventually(replica.asked)
        behind = asyncio.create_task(queue.put(also)) if also else None
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        replica.thaw()
        await fails(asyncio.CancelledError, task)
        if behind is not None:
            await in_time(behind)
        assert await queue.get_many(5) == [b"1"] + ([also] if also else [])


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_cancelled_get_gives_its_messages_back_before_it_raises(replica: Replica, confirmed: bool) -> None:
    async with a_queue(replica, durability=PATIENT if confirmed else Durability(1, timeout=0.3)) as queue:
        await queue.put_many([b"1", b"2"])
        replica.freeze()
        task = asyncio.create_task(queue.get())
        await eventually(replica.asked)
        task.cancel()
        if confirmed:
            replica.thaw()
        await fails(asyncio.CancelledError, task)
        assert ask(replica.pair.primary, "LRANGE", "__pressure__:jobs", 0, -1) == [b"2", b"1"]
        replica.thaw()
        assert await queue.get_many(5) == [b"1", b"2"]


async def test_concurrent_puts_share_a_confirmation(replica: Replica) -> None:
    async with a_queue(replica, durability=1) as queue:
        ask(replica.pair.primary, "CONFIG", "RESETSTAT")
        async with asyncio.TaskGroup() as group:
            for number in range(500):
                group.create_task(queue.put(b"%d" % number))
        statistics = ask(replica.pair.primary, "INFO", "commandstats").decode()
        waits = int(statistics.partition("cmdstat_wait:calls=")[2].partition(",")[0])
        assert waits < 20
        assert await queue.get_many(1000) == [b"%d" % number for number in range(500)]


async def test_many_queues_whose_confirmations_wait_for_each_other_are_not_taken_for_a_dead_server(
    replica: Replica,
) -> None:
    """They add up to more than `response_timeout`; but the server has answered all the while."""
    async with Client(url=replica.url, durability=Durability(1, timeout=0.3), response_timeout=0.6) as client:
        queues: list[AsyncQueue[bytes]] = [AsyncQueue(f"jobs-{number}", client=client) for number in range(5)]
        for queue in queues:
            await queue.create()
            await queue.put(b"1")
        replica.freeze()
        await all_fail(DurabilityError, [asyncio.create_task(queue.get()) for queue in queues])
        replica.thaw()
        for queue in queues:
            assert await queue.get() == b"1"
            await queue.delete()


async def test_a_step_whose_reply_was_lost_is_confirmed_on_the_new_connection(replica: Replica) -> None:
    """The repeat changes nothing, but the replica must have what it finds."""
    async with a_queue(replica, durability=PATIENT) as queue:
        replica.freeze()
        await replica.lose_the_confirmation(asyncio.create_task(queue.put(b"1")))
        assert await queue.get_many(5) == [b"1"]


async def test_a_repeated_delete_is_confirmed_too(replica: Replica) -> None:
    async with a_queue(replica, durability=PATIENT) as queue:
        replica.freeze()
        await replica.lose_the_confirmation(asyncio.create_task(queue.delete()))


async def test_more_replicas_than_there_are(replica: Replica) -> None:
    async with a_queue(replica, durability=Durability(2, timeout=0.1)) as queue:
        with pytest.raises(DurabilityError, match="1 of 2 replicas"):
            await queue.put(b"1")


async def test_a_user_without_wait_gets_an_error_before_anything_is_written(replica: Replica) -> None:
    async with a_queue(replica) as queue:
        ask(replica.pair.primary, "ACL", "SETUSER", "hasty", "on", "nopass", "~*", "+@all", "-wait")
        try:
            hasty = AsyncQueue("jobs", url=replica.url, username="hasty", password="x", durability=1)
            with pytest.raises(PermissionDeniedError, match=r"(?i)wait"):
                await hasty.put(b"1")
            assert hasty.client.server.connections == 0
            await hasty.aclose()
        finally:
            ask(replica.pair.primary, "ACL", "DELUSER", "hasty")
        assert await queue.qsize() == 0


MakeServer = Callable[..., EmbeddedServer]
DISK = Durability(fsync=True)


@pytest.mark.parametrize("kind", SERVERS)
async def test_on_disk(make_server: MakeServer, kind: str) -> None:
    server = make_server(kind, config={"appendonly": "yes", "appendfsync": "always"})
    lacks = ask(server, "COMMAND", "INFO", "WAITAOF") == [None]
    async with AsyncQueue("jobs", url=server.url) as queue:
        await queue.create()
    queue = AsyncQueue("jobs", url=server.url, durability=DISK)
    try:
        if lacks:
            for _ in range(2):
                with pytest.raises(ServerTooOldError, match=r"lacks WAITAOF: .* needs Redis 7.2 or later, or Valkey"):
                    await queue.put(b"1")
        else:
            await queue.put(b"1")
            assert await queue.get() == b"1"
    finally:
        await queue.aclose()


async def test_without_an_append_only_file_nothing_is_written_and_no_connection_is_left(
    make_server: MakeServer,
) -> None:
    server = make_server("valkey", config={"appendonly": "no"})
    async with AsyncQueue("jobs", url=server.url) as plain:
        await plain.create()
        queue = AsyncQueue("jobs", url=server.url, durability=DISK)
        for _ in range(3):
            with pytest.raises(ServerError, match=r"append-only file, which is off\. Set appendonly yes"):
                await queue.put(b"1")
        assert queue.client.server.connections == 0
        assert await plain.qsize() == 0
        ask(server, "CONFIG", "SET", "appendonly", "yes")
        await queue.put(b"1")
        await queue.aclose()
        assert await plain.qsize() == 1
