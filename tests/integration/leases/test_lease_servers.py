"""Leases are renewed while servers fail over, stand still, or allow no second connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis

from apressure import AsyncQueue, QueueEmptyError, QueueInUseError
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import PATIENCE, Opener, eventually, in_time, renewed_while_blocked
from tests.integration.leases.test_lease_thread import (
    LEASE,
    RECEIVER,
    deadline,
    go_on,
    thawed_at_the_end,
    threads,
)  # fmt: skip
from tests.integration.leases.test_leases import running_program
from tests.servers import SERVERS, admin
from tests.topologies import ask, cluster, heard, sentinel

# --- where there is no second connection


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for record in caplog.records if "no second connection" in (message := record.getMessage())]


async def still_renewed(read: Callable[[], Any]) -> None:
    """Wait until the lease was renewed twice more, by an event loop that turns."""
    for _ in range(2):
        before = read()
        await eventually(lambda: read() != before)  # noqa: B023 (called at once)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(
    ("how", "shared"),
    [("password", False), ("maxclients", False), ("max_connections", False), ("max_connections", True)],
)
async def test_where_there_is_no_second_connection_the_event_loop_renews(
    make_server: Callable[..., EmbeddedServer], kind: str, how: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(kind)
    with admin(server) as db, caplog.at_level(logging.INFO, "apressure"):
        db.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
        url = server.url.replace("redis://", "redis://worker:secret@")
        async with AsyncQueue("jobs", url=url, max_connections=1 if how == "max_connections" else None) as queue:
            await queue.create()
            await queue.put(b"1")
            if how == "password":
                db.execute_command("ACL", "SETUSER", "worker", "resetpass")
            elif how == "maxclients":
                db.config_set("maxclients", len(db.client_list()))
            async with queue.consumer(lease=1, shared=shared) as consumer:
                assert await anext(consumer) == b"1"
                await still_renewed(lambda: deadline(db))
                await eventually(lambda: said(caplog))
                await still_renewed(lambda: deadline(db))
            assert len(said(caplog)) == 1
            assert await queue.qsize() == 0
            async with queue.consumer(lease=1, shared=shared):
                await still_renewed(lambda: deadline(db))
            assert len(said(caplog)) == 1


@pytest.mark.parametrize("shared", [False, True])
async def test_the_event_loop_renews_over_fakeredis(caplog: pytest.LogCaptureFixture, shared: bool) -> None:
    before = threads()
    with caplog.at_level(logging.DEBUG, "apressure"):
        fake = fakeredis.FakeAsyncRedis()
        async with AsyncQueue("jobs", redis=fake) as queue:
            await queue.create()
            await queue.put(b"1")
            async with queue.consumer(lease=0.3, shared=shared) as consumer:
                assert await anext(consumer) == b"1"
                for _ in range(2):
                    last = await fake.hget(LEASE.format("consumer"), "deadline")
                    async with asyncio.timeout(PATIENCE):
                        while await fake.hget(LEASE.format("consumer"), "deadline") == last:
                            await asyncio.sleep(0.01)
            assert await queue.qsize() == 0
    await eventually(lambda: threads() == before)
    assert any("renewed by the event loop" in record.getMessage() for record in caplog.records)


async def test_leases_of_a_client_of_the_programs_own_redis_py(url: str, db: redis.Redis, open_queue: Opener) -> None:
    import redis.asyncio as redis_asyncio

    async with redis_asyncio.Redis.from_url(url) as own:
        queue = await open_queue(redis=own)
        await queue.put(b"1")
        async with queue.consumer(lease=1) as consumer:
            assert await anext(consumer) == b"1"
            renewed_while_blocked(db, LEASE.format("consumer"))


# --- servers that fail


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_that_stands_still_meanwhile_leaves_one_of_two_certain_outcomes(
    make_server: Callable[..., EmbeddedServer], kind: str
) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url) as queue:
        await queue.create()
        await queue.put(b"1")
        with running_program(RECEIVER, server.url, "1", "600") as process, thawed_at_the_end(server.pid):
            with admin(server) as db:
                before = deadline(db)
                await eventually(lambda: deadline(db) != before)  # the thread has a connection of its own
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(3.5)  # longer than the thread waits for a reply
            os.kill(server.pid, signal.SIGCONT)
            taken = None
            with contextlib.suppress(QueueInUseError, QueueEmptyError):
                taken = await in_time(queue.receive(timeout=2))
            outcome = (await asyncio.to_thread(go_on, process)).split()
        if taken is not None:
            assert (outcome, taken.attempts) == (["lost"], 2)
            await taken.ack()
        else:
            assert outcome == ["kept"]
        statistics = await queue.statistics()
        assert (statistics.consumed_messages, statistics.length, statistics.in_flight) == (1, 0, 0)


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_thread_follows_a_failover(kind: str) -> None:
    with sentinel(kind) as watched:
        async with AsyncQueue("jobs", url=watched.url) as queue:
            await queue.create()
            await queue.put(b"1")
            with running_program(RECEIVER, watched.url, "3", "600") as process:
                await asyncio.to_thread(heard, watched.primary, 1)
                await asyncio.to_thread(watched.failover, rejoin=False)
                key = LEASE.format("consumer")
                before = ask(watched.primary, "HGET", key, "deadline")
                await eventually(lambda: ask(watched.primary, "HGET", key, "deadline") != before)
                assert (await asyncio.to_thread(go_on, process)).split() == ["kept"]
            assert (await queue.statistics()).consumed_messages == 1


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_thread_follows_a_slot_that_moves(kind: str) -> None:
    with cluster(kind, nodes=3) as nodes:
        name = "{jobs}"
        async with AsyncQueue(name, url=nodes.url) as queue:
            await queue.create()
            await queue.put(b"1")
            with running_program(RECEIVER.replace('"jobs"', repr(name)), nodes.url, "3", "600") as process:
                slot = nodes.slot(name)
                number = next(i for i, server in enumerate(nodes.servers) if server is not nodes.owner(name))
                await asyncio.to_thread(nodes.migrate, slot, number)
                key = LEASE.format("consumer").replace("jobs", name)
                before = ask(nodes.servers[number], "HGET", key, "deadline")
                await eventually(lambda: ask(nodes.servers[number], "HGET", key, "deadline") != before)
                assert (await asyncio.to_thread(go_on, process)).split() == ["kept"]
            assert (await queue.statistics()).consumed_messages == 1
            await queue.delete(timeout=PATIENCE)
