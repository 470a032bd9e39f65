"""Clients of queues of events are killed at random times, one after the other, with others at work: nothing is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from apressure import EventQueue
from apressure.embedded import EmbeddedServer
from tests.chaos.event_workers import MANY
from tests.chaos.support import PATIENCE, Account, Recorder, Row, no_complaints, often
from tests.chaos.test_files import settle
from tests.chaos.test_kill import Note, kill_in_turn, notes, nursery
from tests.servers import admin

PRODUCERS = {"put": often(13, 10), "put_many": often(12, 10)}
CONSUMERS = {"receive": often(13, 10), "consumer": often(12, 10)}
"""How many of a kind are killed on one server: 100 at every push, 1,000 in the long form, on both."""

pytestmark = pytest.mark.timeout(often(120, 20))


async def producers_die(url: str, kind: str, times: int, rng: random.Random, folder: Path) -> Row:
    """What was put is there, once and in order."""
    account = Account()
    async with EventQueue(kind, url=url) as queue, nursery(url, "tests.chaos.event_workers") as crew:
        await queue.create(rng.choice((0, 1, 5, 50)))

        async def drain() -> None:
            async with queue.consumer("manual") as consumer:
                async for one in consumer:
                    account.handed_out(one.raw, one.attempts)
                    await one.ack()

        draining = asyncio.create_task(drain())
        logs, stuck = await kill_in_turn(crew, kind, times, rng, folder)
        await queue.close()
        async with asyncio.timeout(PATIENCE):
            await draining
        await check_tidy(queue)
    for log in logs:
        noted = notes(log)
        account.acknowledge(message for _, message, _ in noted)
        count = 1 if kind == "put" else MANY
        account.perhaps([f"{log.name}:{len(noted) + i}:".encode() for i in range(count)])
    row = account.row()
    row.tried, row.stuck = times, stuck
    return row


async def consumers_die(url: str, kind: str, times: int, rng: random.Random, folder: Path) -> Row:
    """Everything is handed out; again only what was not acknowledged, and then it says so."""
    account = Account()

    async def feed(queue: EventQueue[bytes]) -> None:
        while True:
            messages = account.fresh("feeder", 10)
            account.perhaps(messages)
            await queue.put_many(messages)
            account.acknowledge(messages)
            await asyncio.sleep(0.002)

    rest: list[Note] = []
    async with EventQueue(kind, url=url) as queue, nursery(url, "tests.chaos.event_workers") as crew:
        await queue.create(rng.choice((5, 50)))
        feeding = asyncio.create_task(feed(queue))
        logs, stuck = await kill_in_turn(crew, kind, times, rng, folder)
        feeding.cancel()
        await asyncio.wait((feeding,))
        await queue.close()
        async with asyncio.timeout(PATIENCE), queue.consumer("manual") as consumer:
            async for one in consumer:
                rest.append(("got", one.raw, one.attempts))
                await one.ack()
                rest.append(("acked", one.raw, 0))
        await check_tidy(queue)
    row = settle(account, [note for log in logs for note in notes(log)] + rest)
    row.tried, row.stuck = times, stuck
    return row


async def check_tidy(queue: EventQueue[bytes]) -> None:
    """Nothing is left in any key."""
    status = await queue._driver.steps.status()
    assert (status.waiting, status.claimed, status.contents) == (0, 0, 0)
    await queue.delete()


@pytest.mark.parametrize("side", ["producers", "consumers"])
async def test_kills(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path, side: str
) -> None:
    """Workers of both kinds die at the same time, each kind on a queue of its own."""
    kinds, die = (PRODUCERS, producers_die) if side == "producers" else (CONSUMERS, consumers_die)
    async with no_complaints(), asyncio.TaskGroup() as group:
        tasks = {
            kind: group.create_task(die(url, kind, times, random.Random(rng.random()), tmp_path))
            for kind, times in kinds.items()
        }
    rows = {kind: task.result() for kind, task in tasks.items()}
    for kind, row in rows.items():
        recorder.add(f"killed {side[:-1]}: events, {kind}", server.software, row)
    assert all(row.clean() for row in rows.values()), rows
    with admin(server) as db:
        locks = list(db.scan_iter("queue:*:lock:*"))
        assert all(db.pttl(lock) != -1 for lock in locks)
        if locks:
            db.delete(*locks)
