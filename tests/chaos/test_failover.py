"""Servers that fail over, slots that move, servers that stand still, restart, or are full: under load all the time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import Durability
from apressure.embedded import EmbeddedServer
from tests.chaos.load import FULL, NAMES, ONCE, ROLE, Load
from tests.chaos.support import Recorder, no_complaints, often
from tests.servers import SERVERS, admin
from tests.topologies import cluster, replicated, sentinel

LAG = 0.04
"""Seconds by which replicas are behind."""

DURABLE = Durability(replicas=1, timeout=0.2)
ALL = Durability("all", timeout=0.2)

pytestmark = [pytest.mark.timeout(often(120, 10)), pytest.mark.parametrize("kind", SERVERS)]


@pytest.mark.parametrize("durable", [True, False], ids=["WAIT", "no WAIT"])
async def test_lagged_failovers(kind: str, rng: random.Random, recorder: Recorder, durable: bool) -> None:
    """The primary is killed, and a replica takes over that has not heard of the last 40 milliseconds.

    With WAIT nothing that was acknowledged is lost. Without, it may be, and what had been consumed may come again as if
    it were new; but nobody is stuck.
    """
    failovers = often(1, 6)
    with replicated(kind, lag=LAG) as pair:
        settings: dict[str, Any] = {"url": pair.url, "durability": DURABLE if durable else None}
        load = Load(settings, rng, durable)
        await load.create()
        pair.wait_for_replicas()
        longer = 3 if durable else 1  # an operation takes the lag, and each waits for the one before
        async with no_complaints(), load:
            for _ in range(failovers):
                await load.rest(0.2 * longer, 0.5 * longer)
                await asyncio.to_thread(pair.promote)
            await load.rest(0.2 * longer, 0.2 * longer)
        name = f"failover, {LAG * 1000:.0f} ms lag, {'WAIT' if durable else 'no WAIT (may lose)'}"
        load.record(recorder, name, pair.software, failovers)


async def test_sentinel_failovers(kind: str, rng: random.Random, recorder: Recorder) -> None:
    """Sentinels find the primary dead and choose a replica of two; then they swap it and another while both live."""
    failovers = often(1, 3)
    with sentinel(kind, sentinels=3, replicas=2) as watched:
        load = Load({"url": watched.url, "durability": ALL}, rng)
        await load.create()
        watched.wait_for_replicas()
        async with no_complaints(), load:
            for number in range(failovers):
                await load.rest(0.2, 0.5)
                await asyncio.to_thread(watched.failover)
                if number % 2 == 0:
                    await load.rest(0.2, 0.5)
                    await asyncio.to_thread(watched.switch)
            await load.rest()
        load.record(recorder, "Sentinel failover, two replicas, WAIT for all", watched.software, failovers)


async def test_slot_migrations(kind: str, rng: random.Random, recorder: Recorder) -> None:
    """The slots of queues move from node to node, key by key, while clients work and wait on them."""
    moves = often(1, 4)
    with cluster(kind) as nodes:
        load = Load({"url": nodes.url}, rng)
        await load.create()
        async with no_complaints(), load:
            for _ in range(moves):
                for name in NAMES:
                    await load.rest(0, 0.1)
                    slot = nodes.slot(name)
                    target = rng.choice([one for one in range(3) if one != nodes.owners[slot]])
                    await asyncio.to_thread(nodes.begin_migration, slot, target)
                    await asyncio.to_thread(nodes.move_keys, slot, target, 2)
                    await load.rest(0, 0.3)
                    await asyncio.to_thread(nodes.migrate, slot, target)
            await load.rest()
        load.record(recorder, "cluster, slot migration", nodes.software, moves * len(NAMES))


async def test_a_node_of_a_cluster_fails(kind: str, rng: random.Random, recorder: Recorder) -> None:
    """The node that has a queue dies, and its replica takes over."""
    failures = often(1, 3)
    with cluster(kind, replicas=1) as nodes:
        load = Load({"url": nodes.url, "durability": DURABLE}, rng)
        await load.create()
        nodes.wait_for_replicas()
        async with no_complaints(), load:
            for number in range(failures):
                await load.rest(0.2, 0.5)
                await asyncio.to_thread(nodes.fail, nodes.owners[nodes.slot((ROLE, ONCE, FULL)[number % 3])])
            await load.rest()
        load.record(recorder, "cluster, failover, WAIT", nodes.software, failures)


async def test_a_server_that_stands_still(
    make_server: Callable[..., EmbeddedServer], rng: random.Random, recorder: Recorder, kind: str
) -> None:
    """SIGSTOP, for less and for more than clients wait for an answer."""
    server = make_server(kind)
    stops = often(3, 10)
    load = Load({"url": server.url}, rng)
    await load.create()
    async with no_complaints(), load:
        for _ in range(stops):
            await load.rest()
            os.kill(server.pid, signal.SIGSTOP)
            await load.rest(0.1, 1.5)
            os.kill(server.pid, signal.SIGCONT)
        await load.rest()
    load.record(recorder, "server frozen", server.software, stops)


@pytest.mark.parametrize("how", ["restarted", "killed"])
async def test_a_server_that_comes_back(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path, rng: random.Random, recorder: Recorder, kind: str,
    how: str,
) -> None:  # fmt: skip
    """A server that writes everything to its append-only file before it answers, and reads that when it comes back."""
    server = make_server(kind, directory=tmp_path, config={"appendfsync": "always"})
    restarts = often(2, 5)
    load = Load({"url": server.url}, rng)
    await load.create()
    async with no_complaints(), load:
        for _ in range(restarts):
            await load.rest()
            if how == "killed":
                os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(server.stop)
            await load.rest(0, 0.1)
            await asyncio.to_thread(server.start)
        await load.rest()
    load.record(recorder, f"server {how}, append-only file", server.software, restarts)


async def test_a_server_that_is_full(
    make_server: Callable[..., EmbeddedServer], rng: random.Random, recorder: Recorder, kind: str
) -> None:
    """At maxmemory puts are refused, consumers go on, and when there is room again so do the producers."""
    server = make_server(kind, config={"maxmemory-policy": "noeviction"})
    times = often(4, 10)
    load = Load({"url": server.url}, rng)
    await load.create()
    async with no_complaints(), load:
        with admin(server) as client:
            for _ in range(times):
                await load.rest()
                client.config_set("maxmemory", 1)
                with pytest.raises(redis.exceptions.OutOfMemoryError):
                    client.set("more", "of it")
                await load.rest(0.05, 0.5)
                client.config_set("maxmemory", 0)
            await load.rest()
    load.record(recorder, "memory full", server.software, times)
