"""`durability="all"`: an answer counts when every replica that is known has it, so any of them may take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from apressure import AsyncQueue, Client, Durability, DurabilityError, PermissionDeniedError, ReadOnlyError, ServerError
from tests.integration.acl_roles import allow, documented, without
from tests.integration.conftest import in_time
from tests.servers import SERVERS, frozen
from tests.topologies import Pair, ask, cluster, follows, must_be_empty, replicated, sentinel, until

ALL = Durability("all", timeout=5)  # seconds: on a busy machine a healthy replica may take more than one

LARGE = 48 * 1024 * 1024
"""Bytes that do not fit into a socket's buffers: they do not reach a replica that stands still."""


@contextlib.asynccontextmanager
async def a_queue(url: str, name: str = "jobs") -> AsyncIterator[AsyncQueue[bytes]]:
    async with AsyncQueue(name, url=url) as queue:
        await queue.create()
        yield queue
        await queue.delete(timeout=10)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_replica_that_lagged_takes_over_and_has_all_that_was_confirmed(kind: str) -> None:
    """One replica stands still, the other confirms, and the first one is chosen: `durability=1` loses its put."""
    with sentinel(kind, replicas=2) as watched:
        old, lagging, ready = watched.servers
        ask(ready, "CONFIG", "SET", "replica-priority", 0)  # never chosen

        def priorities() -> set[bytes]:
            replicas = ask(watched.guards[0], "SENTINEL", "REPLICAS", watched.service)
            return {one[one.index(b"slave-priority") + 1] for one in replicas}

        until(lambda: priorities() == {b"0", b"100"}, "the Sentinel knows who may be chosen")
        async with (
            Client(watched.url, durability=Durability(1, timeout=10)) as one_is_enough,
            Client(watched.url, durability=ALL) as all_have_to,
        ):
            loses: AsyncQueue[bytes] = AsyncQueue("loses", client=one_is_enough)
            keeps: AsyncQueue[bytes] = AsyncQueue("keeps", client=all_have_to)
            await loses.create()
            await keeps.create()
            await keeps.put(b"1")
            assert (one_is_enough.replicas, all_have_to.replicas) == (1, 2)
            with frozen(lagging):
                await loses.put(b"x" * LARGE)  # confirmed
                with pytest.raises(DurabilityError, match=r"1 of 2 replicas have confirmed it within 5 sec"):
                    await keeps.put(b"2")
                watched.kill(old)
            await asyncio.to_thread(watched.wait_for_new_primary, old)
            assert watched.primary is lagging
            assert await loses.qsize() == 0
            assert await keeps.peek_newest() == b"1"

            # The old primary is missing: without its confirmation a write may be lost if it comes back.
            until(lambda: follows(ready), "the other replica follows the new primary")
            until(lambda: b"connected_slaves:1" in ask(lagging, "INFO", "replication"), "it is connected")
            with pytest.raises(DurabilityError, match="1 of 2 replicas"):
                await keeps.put(b"3")
            watched.servers.remove(old)
            watched.servers.append(await asyncio.to_thread(watched._start_replica, old.port))
            await asyncio.to_thread(watched.wait_for_replicas)
            await keeps.put(b"4")
            assert all_have_to.replicas == 2
            assert await keeps.get_many(9) == [b"1", b"3", b"4"]


@pytest.mark.parametrize("kind", SERVERS)
async def test_replicas_that_are_down_are_counted_by_the_sentinels(kind: str) -> None:
    with sentinel(kind, replicas=2) as watched:
        async with a_queue(watched.url) as plain:
            watched.kill(watched.servers[-1])
            async with AsyncQueue("jobs", url=watched.url, durability=ALL) as queue:
                assert queue.client.replicas == 2
                with pytest.raises(DurabilityError, match="1 of 2 replicas"):
                    await queue.put(b"1")
            # The rights of docs/rely/security.md: with Sentinels the client need not ask the primary.
            ask(watched.primary, "ACL", "SETUSER", "few", "on", ">few", "~*", "+@all", "-info")
            async with AsyncQueue("jobs", url=watched.url, username="few", password="few", durability=ALL) as queue:
                assert queue.client.replicas == 2
            guard = watched.guards[0]
            ask(guard, "ACL", "SETUSER", "guard", "on", ">guard", "+sentinel|get-master-addr-by-name")
            credentials = {"sentinel_username": "guard", "sentinel_password": "guard"}
            async with AsyncQueue("jobs", url=watched.url, **credentials) as queue:  # type: ignore[call-overload]
                assert await queue.qsize() == 1
            with pytest.raises(PermissionDeniedError, match=r"(?i)sentinel"):
                async with AsyncQueue("jobs", url=watched.url, durability="all", **credentials):  # type: ignore[call-overload]
                    pass
            ask(guard, "ACL", "SETUSER", "guard", "+sentinel|replicas")
            async with AsyncQueue("jobs", url=watched.url, durability="all", **credentials) as queue:  # type: ignore[call-overload]
                assert queue.client.replicas == 2
            assert await plain.get() == b"1"


@pytest.fixture(scope="module", params=SERVERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with replicated(request.param, replicas=2, repl_timeout=3600) as pair:
        yield pair


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pair" in request.fixturenames:
        primary = request.getfixturevalue("pair").primary
        must_be_empty(primary)


async def test_without_sentinels_the_primary_names_its_replicas(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with a_queue(pair.url):
        with caplog.at_level(logging.INFO, "apressure"):
            queue: AsyncQueue[bytes] = AsyncQueue("jobs", url=pair.url, durability=ALL)
            assert queue.client.replicas is None
            await queue.put(b"1")
        assert queue.client.replicas == 2
        (line,) = [record.getMessage() for record in caplog.records if "durability" in record.getMessage()]
        assert "2 replicas of 127.0.0.1" in line
        with frozen(pair.servers[2]), pytest.raises(DurabilityError, match="1 of 2 replicas"):
            await queue.put(b"2")
        assert await queue.get_many(5) == [b"1", b"2"]
        await queue.aclose()


async def test_a_new_connection_counts_new_replicas_and_forgets_none(pair: Pair) -> None:
    away = pair.servers[2]
    async with a_queue(pair.url):
        ask(away, "REPLICAOF", "NO", "ONE")
        until(lambda: b"connected_slaves:1" in ask(pair.primary, "INFO", "replication"), "one replica is gone")
        async with AsyncQueue("jobs", url=pair.url, durability=ALL) as queue:
            await queue.put(b"1")
            assert queue.client.replicas == 1
            ask(away, "REPLICAOF", "127.0.0.1", pair.line.port)
            until(lambda: follows(away), "the replica is back")
            until(lambda: b"connected_slaves:2" in ask(pair.primary, "INFO", "replication"), "it is connected")
            await asyncio.to_thread(pair.wait_for_replicas)
            assert queue.client.connection.close_if_idle()  # the next operation opens the connection again
            await queue.put(b"2")
            assert queue.client.replicas == 2
            with frozen(away):
                pair.line.cut()
                assert queue.client.connection.close_if_idle()
                with pytest.raises(DurabilityError, match="of 2 replicas"):
                    await queue.put(b"3")
                assert queue.client.replicas == 2
            await asyncio.to_thread(pair.wait_for_replicas)
            assert await queue.get_many(5) == [b"1", b"2", b"3"]


async def test_a_server_without_replicas_is_refused_before_anything_is_written(url: str) -> None:
    async with a_queue(url) as plain:
        queue = AsyncQueue("jobs", url=url, durability="all")
        for _ in range(2):
            with pytest.raises(ServerError, match=r"has no replica; nothing was written\. Connect its replicas first"):
                await queue.put(b"1")
        assert queue.client.server.connections == 0
        assert await plain.qsize() == 0
        await queue.aclose()


async def test_a_producer_of_the_docs_needs_the_two_rights_more_that_they_name(pair: Pair) -> None:
    rules = [*documented(plain=False)["producer"], "+wait", "+info"]
    async with a_queue(pair.url, "orders") as plain:
        for right in ("wait", "info"):
            queue = AsyncQueue("orders", url=allow(pair.primary, "producer", without(rules, right)), durability="all")
            with pytest.raises(PermissionDeniedError, match=f"(?i){right}"):
                await queue.put(b"1")
            assert queue.client.server.connections == 0
            await queue.aclose()
        assert await plain.qsize() == 0
        async with AsyncQueue("orders", url=allow(pair.primary, "producer", rules), durability="all") as queue:
            await queue.put(b"1")
        assert await plain.get() == b"1"
        ask(pair.primary, "ACL", "DELUSER", "producer")


async def test_a_replica_that_becomes_the_primary_is_not_written_to_before_its_own_replicas_were_counted() -> None:
    with replicated("valkey", replicas=2) as pair:
        _, first, second = pair.servers
        async with a_queue(pair.url) as plain:
            await plain.put(b"1")
            pair.wait_for_replicas()
            async with AsyncQueue("jobs", url=first.url, durability=ALL) as queue:
                assert await queue.qsize() == 1
                with pytest.raises(ReadOnlyError):
                    await queue.put(b"2")
                assert await queue.qsize() == 1
                ask(first, "REPLICAOF", "NO", "ONE")
                ask(second, "REPLICAOF", "127.0.0.1", first.port)
                until(lambda: follows(second), "the other one follows")
                until(lambda: b"connected_slaves:1" in ask(first, "INFO", "replication"), "it is connected")
                refused = ""
                try:  # a new connection counts them: it may come before the put, or after it
                    await queue.put(b"3")
                except DurabilityError as error:
                    refused = str(error)
                assert "replicas have not been counted yet" in refused or (queue.client.replicas == 1 and not refused)
                async with asyncio.timeout(90):
                    while queue.client.replicas is None:
                        with contextlib.suppress(DurabilityError):
                            await queue.put(b"4", force=True)
                assert queue.client.replicas == 1
                assert (await queue.get_many(3))[:2] == [b"1", b"3"]


async def test_each_slot_of_a_cluster_has_the_replicas_of_its_node() -> None:
    with cluster("valkey", nodes=3, replicas=1) as nodes:
        async with Client(nodes.url, durability=ALL) as client:
            assert client.replicas is None  # nothing has been written to
            queues = [AsyncQueue[bytes](name, client=client) for name in ("{a}", "{b}", "{c}")]
            for queue in queues:
                await queue.create()
                await queue.put(b"1")
            assert client.replicas == 1
            assert await client.queues() == ["{a}", "{b}", "{c}"]
            (follower,) = nodes.followers[nodes.owners[nodes.slot("{a}")]]
            with frozen(nodes.servers[follower]), pytest.raises(DurabilityError, match="0 of 1 replicas"):
                await in_time(queues[0].put(b"2"))
