"""Clusters: a queue is in one slot, and steps and waits follow it wherever the slot goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis as redis_py

from apressure import (
    AsyncQueue,
    Client,
    ConnectionLimitError,
    ExactlyOnceError,
    PressureError,
    QueueFullError,
    ServerError,
    ServerUnavailableError,
    pipe,
)
from tests.integration.conftest import PATIENCE, eventually, in_time, refusals
from tests.integration.waits import waits
from tests.servers import SERVERS, admin, blocked_clients
from tests.topologies import Nodes, cluster, heard, must_be_empty

NAME = "{jobs}"


@pytest.fixture(scope="module", params=SERVERS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with cluster(request.param, nodes=3) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "nodes" in request.fixturenames:
        found: Nodes = request.getfixturevalue("nodes")
        must_be_empty(*found.servers)


@contextlib.asynccontextmanager
async def a_queue(url: str, bound: int = 0, name: str = NAME, **options: Any) -> AsyncIterator[AsyncQueue[bytes]]:
    async with AsyncQueue(name, url=url, **options) as queue:
        await queue.create(bound)
        try:
            yield queue
        finally:
            await queue.delete(timeout=10)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (NAME, {}),
        ("orders{7}", {}),
        ("jobs", {"prefix": "{app}"}),
        ("a}{b", {"prefix": "{app}"}),
        ("{jobs}", {"max_attempts": 3}),
        ("{jobs}", {"max_attempts": 3, "dead_letters": "morgue{jobs}"}),
        ("jobs", {"prefix": "{app}", "max_attempts": 3, "dead_letters": "morgue"}),
        (NAME, {"scripting": False}),
    ],
)
def test_a_queue_whose_keys_are_in_one_slot_can_be_opened(name: str, options: dict[str, Any]) -> None:
    AsyncQueue(name, cluster=["h"], **options)


@pytest.mark.parametrize("name", ["jobs", "{}", "{}{jobs}", "{jobs", "jobs}"])
@pytest.mark.parametrize("scripting", [True, False])
def test_a_queue_whose_keys_are_in_several_slots_is_refused_with_the_hint(name: str, scripting: bool) -> None:
    with pytest.raises(ValueError, match=r"put \(a part of\) its name into braces, as in '{jobs}', or the prefix"):
        AsyncQueue(name, cluster=["h"], scripting=scripting)
    with pytest.raises(ValueError, match="braces"):
        AsyncQueue(name, client=Client(cluster=["h"]))


def test_dead_letters_in_another_slot_are_refused_with_the_hint() -> None:
    with pytest.raises(ValueError, match=r"dead-letter queue 'morgue'.*braces"):
        AsyncQueue(NAME, cluster=["h"], max_attempts=3, dead_letters="morgue")


async def test_everything_that_a_queue_does(nodes: Nodes) -> None:
    async with a_queue(nodes.url, bound=3) as queue:
        await queue.put_many([b"1", b"2"])
        await queue.put(b"3")
        with pytest.raises(QueueFullError):
            await queue.put_nowait(b"4")
        assert await queue.peek() == b"1"
        assert await queue.get() == b"1"
        await (await queue.receive()).nack()
        await (await queue.receive()).ack()
        assert (await queue.statistics()).consumed_messages == 2
        assert await queue.client.queues() == [NAME]
        await queue.close()
        async with queue.consumer() as consumer:
            assert [item async for item in consumer] == [b"3"]


async def test_a_pause(nodes: Nodes) -> None:
    async with a_queue(nodes.url) as queue:
        assert await queue.pause()
        await queue.put(b"1")
        getting = asyncio.create_task(queue.get())
        await eventually(lambda: sum(map(blocked_clients, nodes.servers)) == 1)
        assert not getting.done()
        assert await queue.resume()
        assert await in_time(getting) == b"1"
        assert not (await queue.statistics()).paused


async def test_all_of_it_with_a_client_of_ones_own(nodes: Nodes) -> None:
    theirs = redis_py.asyncio.RedisCluster(host="127.0.0.1", port=nodes.servers[0].port)
    async with (
        a_queue(nodes.url) as queue,
        AsyncQueue(NAME, cluster=nodes.addresses[1:]) as second,
        AsyncQueue(NAME, redis=theirs) as third,
    ):
        for one in (queue, second, third):
            await one.put(b"1")
        assert await third.get_many(5) == [b"1"] * 3
        async with queue.producer(exclusive=True) as producer:
            await producer.put(b"2")
        async with second.consumer() as consumer:
            assert [item async for item in consumer] == [b"2"]
    await theirs.aclose()


async def test_dead_letters_share_the_slot_and_come_back(nodes: Nodes) -> None:
    async with (
        a_queue(nodes.url, max_attempts=1) as queue,
        AsyncQueue(NAME + ":dead", url=nodes.url) as dead,
    ):
        await queue.put_many([b"1", b"2"])
        await (await queue.receive()).nack()
        await (await queue.receive()).ack()
        assert await dead.qsize() == 1
        assert await queue.requeue() == 1
        assert await queue.get() == b"1"
        await dead.delete()


async def same(item: bytes) -> bytes:
    return item


async def test_a_pipe_is_exactly_once_between_queues_of_one_slot(nodes: Nodes) -> None:
    async with a_queue(nodes.url) as source, a_queue(nodes.url, name="{jobs}:out") as destination:
        await source.put_many([b"1", b"2"])
        await source.close()
        assert (await in_time(pipe(source, same, destination, exactly_once=True))).put == 2
        assert await destination.get_many(5) == [b"1", b"2"]


async def test_a_pipe_between_queues_of_two_slots_is_at_least_once(nodes: Nodes) -> None:
    async with a_queue(nodes.url) as source, a_queue(nodes.url, name="{other}") as destination:
        await source.put_many([b"1", b"2"])
        await source.close()
        with pytest.raises(ExactlyOnceError, match="the same text in braces"):
            await pipe(source, same, destination, exactly_once=True)
        assert not (await in_time(pipe(source, same, destination))).exactly_once
        assert await destination.get_many(5) == [b"1", b"2"]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_any_node_will_do_to_begin_with(nodes: Nodes, number: int) -> None:
    async with a_queue(f"redis+cluster://127.0.0.1:{nodes.servers[number].port}") as queue:
        await queue.put(b"1")
        assert await queue.get() == b"1"


async def test_the_plain_address_of_a_node_is_refused_with_a_hint(nodes: Nodes) -> None:
    other = next(server for server in nodes.servers if server is not nodes.owner(NAME))
    for name in (NAME, "jobs"):
        async with AsyncQueue(name, url=other.url) as queue:
            with pytest.raises(ServerError, match=r"use cluster= or a redis\+cluster:// URL"):
                await queue.create()


async def test_a_server_that_is_no_cluster_is_called_so(url: str) -> None:
    where = url.partition("//")[2].partition("/")[0]
    with pytest.raises(ServerError, match="is not a node of a cluster"):
        async with AsyncQueue(NAME, cluster=[where]):
            pass


async def test_queues_are_listed_from_all_nodes(nodes: Nodes) -> None:
    names = [f"{{{number}}}" for number in range(8)]
    assert len({nodes.owners[nodes.slot(name)] for name in names}) == 3
    async with Client(url=nodes.url) as client:
        queues: list[AsyncQueue[bytes]] = [AsyncQueue(name, client=client) for name in names]
        for queue in queues:
            await queue.create()
        assert await client.queues() == names
        for queue in queues:
            await queue.delete()
        assert await client.queues() == []


async def moved(nodes: Nodes) -> None:
    """Move the queue's slot to the next node."""
    slot = nodes.slot(NAME)
    await asyncio.to_thread(nodes.migrate, slot, (nodes.owners[slot] + 1) % 3)


@pytest.mark.parametrize("scripting", [True, False])
async def test_a_queue_is_found_when_its_slot_has_moved(nodes: Nodes, scripting: bool) -> None:
    async with a_queue(nodes.url, scripting=scripting) as queue:
        await queue.put(b"1")
        await queue.put(b"2")
        for item in (b"1", b"2"):
            await moved(nodes)
            assert await queue.get() == item
            assert await queue.exists()
        await moved(nodes)
        assert await queue.qsize() == 0


@pytest.mark.parametrize("scripting", [True, False])
async def test_a_waiting_operation_follows_its_slot(nodes: Nodes, scripting: bool) -> None:
    async with waits(nodes.url, lambda: nodes.owner(NAME), NAME, scripting):
        await moved(nodes)


async def test_steps_wait_while_a_slot_is_on_its_way(nodes: Nodes) -> None:
    """Some keys are here and some there (TRYAGAIN), or none is here (ASK): neither is an error, and nothing is lost."""
    async with a_queue(nodes.url) as queue:
        await queue.put_many([b"1", b"2"])
        slot = nodes.slot(NAME)
        to = (nodes.owners[slot] + 1) % 3
        nodes.begin_migration(slot, to)
        try:
            assert nodes.move_keys(slot, to, most=3) == 3
            tasks = [
                asyncio.create_task(work)
                for work in (queue.get(), queue.put(b"3"), queue.receive(), queue.exists(), queue.statistics())
            ]
            with admin(nodes.servers[nodes.owners[slot]]) as here:
                before = refusals(here, "TRYAGAIN")
                await eventually(lambda: refusals(here, "TRYAGAIN") > before)
            assert not tasks[0].done()
            while True:
                nodes.move_keys(slot, to)
                await asyncio.sleep(0.05)
                with contextlib.suppress(redis_py.ResponseError):
                    await asyncio.to_thread(nodes.end_migration, slot, to)
                    break
        finally:
            if nodes.owners[slot] != to:
                nodes.end_migration(slot, to)
        async with asyncio.timeout(PATIENCE):
            got, _, delivery, exists, _ = await asyncio.gather(*tasks)
        await delivery.ack()
        assert exists
        assert [got, delivery.raw, await queue.get()] == [b"1", b"2", b"3"]


async def test_puts_and_gets_go_on_while_a_slot_moves(nodes: Nodes) -> None:
    async with a_queue(nodes.url, bound=50) as queue, AsyncQueue(NAME, url=nodes.url) as other:
        got: list[bytes] = []
        count = 0
        stop = False

        async def keep_putting() -> None:
            nonlocal count
            while not stop:
                await queue.put(b"%d" % count)
                count += 1
            await queue.close()

        async def keep_getting() -> None:
            async with other.consumer() as consumer:
                got.extend([item async for item in consumer])

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(keep_putting())
            group.create_task(keep_getting())
            for _ in range(2):
                reached = count
                await eventually(lambda: count > reached + 20)  # noqa: B023
                await moved(nodes)
            stop = True
        assert got == [b"%d" % number for number in range(count)]


async def test_connections_are_limited_and_none_is_left(nodes: Nodes) -> None:
    before = asyncio.all_tasks()
    async with Client(url=nodes.url, max_connections=1) as client:
        queue: AsyncQueue[bytes] = AsyncQueue(NAME, client=client)
        await queue.create()
        await queue.put(b"1")
        assert await queue.get() == b"1"
        with pytest.raises(ConnectionLimitError):
            await queue.get()
        assert client.server.connections == 1
        await queue.delete()
    async with Client(url=nodes.url, max_connections=3) as client:
        queue = AsyncQueue(NAME, client=client)
        await queue.create()
        task = asyncio.create_task(queue.get())
        await eventually(lambda: blocked_clients(nodes.owner(NAME)) == 2)
        await moved(nodes)
        await queue.put(b"1")
        assert await in_time(task) == b"1"
        await queue.delete()
    assert client.server.connections == 0
    await eventually(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_replica_takes_over(kind: str) -> None:
    with cluster(kind, replicas=1) as nodes:
        async with a_queue(nodes.url) as queue:
            await queue.put(b"1")
            assert await queue.get() == b"1"
            task = asyncio.create_task(queue.get())
            owner = nodes.owner(NAME)
            await eventually(lambda: blocked_clients(owner))
            heard(owner, 1)
            await asyncio.to_thread(nodes.fail, nodes.owners[nodes.slot(NAME)])
            assert not task.done()
            await queue.put(b"2")
            assert await in_time(task) == b"2"
            assert await queue.client.queues() == [NAME]


async def test_no_node_is_up() -> None:
    queue = AsyncQueue(NAME, cluster=["127.0.0.1:1", "127.0.0.1:2"])
    with pytest.raises(ServerUnavailableError, match=r"cannot find the cluster of 127.0.0.1:1, 127.0.0.1:2"):
        await queue.put(b"1")
    assert queue.client.server.connections == 0
    with contextlib.suppress(PressureError):
        await queue.aclose()
