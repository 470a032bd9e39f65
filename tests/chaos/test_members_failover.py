"""Servers fail over while members share a queue, and members are killed all the time: nothing is lost or stuck.

What was acknowledged never comes again. What was handed out and not acknowledged comes again, marked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from apressure import AsyncQueue, DurabilityError
from tests.chaos.durable_workers import WAYS
from tests.chaos.load import QUICK
from tests.chaos.support import PATIENCE, Account, Recorder, Row, check_tidy, no_complaints, often
from tests.chaos.test_kill import MEMBERS, Note, Nursery, finish, kill_in_turn, notes, nursery, settle_together
from tests.servers import SERVERS
from tests.topologies import cluster, sentinel

NAME = "{together}"
FAILOVER = 2 * PATIENCE
"""Seconds after which a member that waits for a server is stuck: a Sentinel may do nothing for 30 of them."""

pytestmark = [pytest.mark.timeout(often(300, 10)), pytest.mark.parametrize("kind", SERVERS)]


class Together:
    """A queue with a producer and members, which wait for replicas.

    Args:
        url: Of the servers.
        way: How many replicas they wait for: one of `WAYS`.
        rng: Randomness.
        folder: Where members note what they do.
    """

    def __init__(self, url: str, way: str, rng: random.Random, folder: Path) -> None:
        self._url = url
        self._way = way
        self._rng = rng
        self._folder = folder
        self._over = asyncio.Event()
        self._account = Account()
        self._logs: list[Path] = []
        self._put = 0
        self._stuck = 0

    async def create(self) -> None:
        """Make the queue; replicas are to be waited for afterwards."""
        async with AsyncQueue(NAME, url=self._url, **QUICK) as queue:
            await queue.create(self._rng.choice((5, 50)))

    async def run(self, failover: Callable[[], Awaitable[None]], times: int) -> Row:
        """Have servers fail over so many times while members die, and settle the account."""
        async with nursery(self._url, "tests.chaos.durable_workers") as hatchery, asyncio.TaskGroup() as group:
            feeding = group.create_task(self._feed())
            dying = [
                group.create_task(self._die(hatchery, member, random.Random(self._rng.random())))
                for member in range(MEMBERS)
            ]
            await self._go_on()
            for _ in range(times):
                await asyncio.sleep(self._rng.uniform(0, 0.3))
                await failover()
                await self._go_on()
            self._over.set()
            await asyncio.wait(dying)  # the last ones are killed when they have got something
            feeding.cancel()  # the queue may be full
        row = settle_together(self._account, [notes(log) for log in self._logs], await self._rest())
        row.tried, row.stuck = times, self._stuck
        row.notes["members killed"] = len(self._logs)
        return row

    async def _go_on(self) -> None:
        """Wait until the work has gone on: messages were put, and members killed."""
        put, killed = self._put + 50, len(self._logs) + MEMBERS
        async with asyncio.timeout(FAILOVER):
            while self._put < put or len(self._logs) < killed:
                await asyncio.sleep(0.05)

    async def _feed(self) -> None:
        async with AsyncQueue(NAME, url=self._url, durability=WAYS[self._way], **QUICK) as queue:
            while True:
                messages = self._account.fresh("feeder", self._rng.randrange(1, 20))
                try:
                    await queue.put_many(messages)
                except DurabilityError:
                    self._account.perhaps(messages)
                except asyncio.CancelledError:
                    self._account.perhaps(messages)
                    raise
                else:
                    self._account.acknowledge(messages)
                    self._put += len(messages)
                await asyncio.sleep(0.002)

    async def _die(self, hatchery: Nursery, member: int, rng: random.Random) -> None:
        number = 0
        while not self._over.is_set():
            name = f"m{member}n{number}"
            number += 1
            own = self._folder / name
            own.mkdir()
            logs, stuck = await kill_in_turn(
                hatchery, self._way, 1, rng, own, name=NAME, prefix=name, patience=FAILOVER
            )
            self._logs += logs
            self._stuck += stuck

    async def _rest(self) -> list[Note]:
        """Drain the queue, and delete it."""
        rest: list[Note] = []
        async with AsyncQueue(NAME, url=self._url, **QUICK) as queue, asyncio.timeout(FAILOVER):
            finishing = asyncio.create_task(finish(queue, self._account))
            async with queue.consumer(shared=True) as consumer:
                async for item in consumer:
                    rest.append(("got", item, consumer.attempts))
            await finishing
            await check_tidy(queue, self._account, exact=False)
            await queue.delete(timeout=PATIENCE)
        return rest


async def test_members_under_sentinels(kind: str, rng: random.Random, recorder: Recorder, tmp_path: Path) -> None:
    """The primary is killed, and one of two replicas takes its place; later they are swapped while both live."""
    with sentinel(kind, sentinels=3, replicas=2) as watched:
        together = Together(watched.url, "all", rng, tmp_path)
        await together.create()
        watched.wait_for_replicas()
        number = 0

        async def failover() -> None:
            nonlocal number
            await asyncio.to_thread(watched.switch if number % 2 else watched.failover)
            number += 1

        async with no_complaints():
            row = await together.run(failover, often(1, 4))
        recorder.add("Sentinel failover, members killed, WAIT for all", watched.software, row)
        assert row.clean(), row


async def test_members_on_a_cluster(kind: str, rng: random.Random, recorder: Recorder, tmp_path: Path) -> None:
    """The node that has the queue is killed, and its replica takes over."""
    with cluster(kind, replicas=1) as nodes:
        together = Together(nodes.url, "one", rng, tmp_path)
        await together.create()
        nodes.wait_for_replicas()

        async def failover() -> None:
            await asyncio.to_thread(nodes.fail, nodes.owners[nodes.slot(NAME)])

        async with no_complaints():
            row = await together.run(failover, often(1, 4))
        recorder.add("cluster, failover, members killed, WAIT", nodes.software, row)
        assert row.clean(), row
