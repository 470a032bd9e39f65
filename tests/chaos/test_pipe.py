"""The stages of a pipeline are killed at random times: each message arrives at its end, and once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Backoff, Client, DurabilityError, EventQueue, Many, pipe
from apressure.embedded import EmbeddedServer
from tests.chaos import test_events
from tests.chaos.load import QUICK
from tests.chaos.pipe_workers import QUEUES, STAGES, WAYS, stage
from tests.chaos.support import PATIENCE, Account, Recorder, Row, check_server, check_tidy, drain, no_complaints, often
from tests.chaos.test_failover import DURABLE, LAG
from tests.chaos.test_kill import Nursery, feed, kill_in_turn, nursery
from tests.reference import connect
from tests.servers import SERVERS
from tests.topologies import replicated

KILLS = {"first": often(10, 34), "second": often(10, 34), "third": often(10, 32)}
"""How often each stage is killed on one server: 30 times in the short form, 1,000 times in the long one."""
MEMBERS = 2
"""Processes of each stage, where they share their source."""

pytestmark = pytest.mark.timeout(often(180, 20))


async def clear(queue: Any, account: Account) -> None:
    """Check that nothing is left in a queue, and delete it."""
    if isinstance(queue, EventQueue):
        await test_events.check_tidy(queue)
    else:
        await check_tidy(queue, account, exact=False)
        await queue.delete(timeout=PATIENCE)


@pytest.mark.parametrize("name", WAYS)
async def test_the_stages_of_a_pipeline_die(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path, name: str
) -> None:
    account = Account()
    made, shared = WAYS[name]
    members = MEMBERS if shared else 1

    async def die(hatchery: Nursery, kind: str, member: int, seed: float) -> int:
        folder = tmp_path / f"{member}"
        folder.mkdir(exist_ok=True)
        times = KILLS[kind] // members
        _, stuck = await kill_in_turn(
            hatchery, kind, times, random.Random(seed), folder, name=name, prefix=f"m{member}"
        )
        # The other stages need a last one; it is killed at the end.
        await hatchery.start(kind, name, f"m{member}{kind}-last", folder / "last")
        return stuck

    async with no_complaints(), Client(url) as client:
        queues = [made(queue, client=client) for queue in QUEUES]
        await queues[0].create(200)
        for queue in queues[1:]:
            await queue.create(rng.choice((10, 50, 0)))
        draining = asyncio.create_task(drain(queues[-1], account))
        feeding = asyncio.create_task(feed(queues[0], account))
        async with nursery(url, "tests.chaos.pipe_workers") as hatchery, asyncio.TaskGroup() as group:
            deaths = [
                group.create_task(die(hatchery, kind, member, rng.random()))
                for kind in STAGES
                for member in range(members)
            ]
        feeding.cancel()
        await asyncio.wait((feeding,))
        try:
            async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
                for kind in [*STAGES] * members:
                    group.create_task(stage(client, kind, lambda _: None, name))
                await queues[0].close()
        except TimeoutError:  # say where it hangs
            seen = [await queue.statistics() for queue in queues]
            raise AssertionError(f"the stages do not end: {draining}, {seen}") from None
        await asyncio.wait_for(draining, PATIENCE)
        for queue in queues:
            await clear(queue, account)
    row = account.row(ordered=False)
    row.tried = sum(times // members * members for times in KILLS.values())
    row.stuck = sum(death.result() for death in deaths)
    what = {"alone": "", "shared": ", source shared by two", "events": " of events, two of each"}[name]
    recorder.add(f"killed stage of a pipeline{what}", server.software, row)
    assert row.clean(), row
    await check_server(server)


@pytest.mark.parametrize("members", [1, 3], ids=["alone", "shared"])
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_stage_outlives_failovers(kind: str, rng: random.Random, recorder: Recorder, members: int) -> None:
    """The primary is killed, and a replica takes over that has not heard of the last moves: they are made again."""
    failovers = often(2, 6)
    account = Account()
    stop = asyncio.Event()

    async def put(queue: AsyncQueue[bytes]) -> None:
        while not stop.is_set():
            messages = account.fresh("feeder", rng.randrange(1, 8))
            try:
                await queue.put_many(messages)
            except DurabilityError:
                account.perhaps(messages)
            else:
                account.acknowledge(messages)
            await asyncio.sleep(rng.uniform(0, 0.01))

    async def same(item: bytes) -> bytes:
        await asyncio.sleep(rng.uniform(0, 0.002))
        return item

    with replicated(kind, lag=LAG) as pair:
        options: dict[str, Any] = {**QUICK, "url": pair.url}
        async with Client(**options) as client:
            for name in QUEUES[:2]:
                await AsyncQueue[bytes](name, client=client).create()
        pair.wait_for_replicas()
        options["durability"] = DURABLE
        async with no_complaints(), Client(**options) as client:
            source = AsyncQueue[bytes](QUEUES[0], client=client)
            feeding = asyncio.create_task(put(AsyncQueue(QUEUES[0], client=client)))
            how: dict[str, Any] = {
                "concurrency": 4, "close": True, "exactly_once": True, "lease": 2.0, "shared": members > 1,
            }  # fmt: skip
            destination = AsyncQueue[bytes](QUEUES[1], client=client)
            piping = [
                asyncio.create_task(pipe(AsyncQueue(QUEUES[0], client=client), same, destination, **how))
                for _ in range(members)
            ]
            for _ in range(failovers):
                await asyncio.sleep(rng.uniform(0.5, 1.5))
                await asyncio.to_thread(pair.promote)
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            stop.set()
            await asyncio.wait_for(feeding, PATIENCE)
            with contextlib.suppress(DurabilityError):
                await source.close()
            await asyncio.wait_for(asyncio.gather(*piping), 2 * PATIENCE)
        async with Client(**{**options, "durability": None}) as client:
            await drain(AsyncQueue(QUEUES[1], client=client), account)
            await check_tidy(AsyncQueue(QUEUES[0], client=client), account, exact=False)
            for name in QUEUES[:2]:
                await AsyncQueue[bytes](name, client=client).delete(timeout=PATIENCE)
        row = account.row(ordered=False)
        row.tried = failovers
        recorder.add(
            f"failover, a stage of a pipeline{', shared by three' if members > 1 else ''}, WAIT", pair.software, row
        )
        assert row.clean(), row


def results_of(item: bytes) -> list[bytes]:
    """What the transform of a random schedule makes of an item: none, one or two results."""
    number = int(item)
    return [] if number % 7 == 0 else [item, item + b"b"] if number % 5 == 0 else [item]


def expire(db: Any, lease: str, rng: random.Random) -> None:
    """Time has passed for a lease: the next one to come heals it. Where it is shared, for one member, or for all."""
    found = sorted(field for field in db.hkeys(lease) if field.startswith(b"member:"))
    if not found or rng.random() < 0.2:
        db.hset(lease, "deadline", 1)
        return
    field = rng.choice(found)
    record = db.hget(lease, field)
    if record is not None:  # otherwise it has just left
        db.hset(lease, mapping={field: b"1:" + record.partition(b":")[2], "earliest": 1})


def expire_event(db: Any, rng: random.Random) -> None:
    """The lease of an event has ended: the next step for events puts it back."""
    locks = sorted(db.scan_iter(f"queue:{{{QUEUES[0]}}}:lock:*"))
    if locks:
        lock = rng.choice(locks)
        db.delete(lock)
        db.zadd(f"apressure:queue:{{{QUEUES[0]}}}:expiry", {lock.rpartition(b":")[2]: 1})


async def random_schedule(url: str, rng: random.Random, name: str) -> tuple[list[bytes], int]:
    """Stages are cancelled, crash, fail and lose their leases; returns what arrived, and how often that was."""
    made, shared = WAYS[name]
    items = [b"%d" % number for number in range(rng.randrange(20, 120))]
    batch = rng.choice((None, None, 1, 5))
    options: dict[str, Any] = {
        "batch": batch, "concurrency": rng.randrange(1, 5), "close": True, "exactly_once": True,
        "retry": Backoff(0), "lease": 0.5, "shared": shared,
    }  # fmt: skip
    troubled = True

    async def transform(found: Any) -> Any:
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.003)))
        if troubled and rng.random() < 0.05:
            raise ValueError("as it happens")
        return Many([result for item in (found if batch else [found]) for result in results_of(item)])

    stages: list[tuple[Client, asyncio.Task[Any]]] = []

    def begin() -> None:
        client = Client(url)
        source, destination = (made(queue, client=client) for queue in QUEUES[:2])
        stages.append((client, asyncio.create_task(pipe(source, transform, destination, **options))))

    async def end(client: Client, task: asyncio.Task[Any], crash: bool) -> None:
        if crash:  # what has been sent may be carried out, and nothing else is sent
            for connection in client._connections.values():
                connection.end()
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and (error := task.exception()) is not None and not crash:
            raise AssertionError from error
        await client.aclose()

    async with Client(url) as client:
        source, destination = (made(queue, client=client) for queue in QUEUES[:2])
        await source.create()
        await destination.create(rng.choice((0, 12, 30)))
        await source.put_many(items)
        await source.close()
        account = Account()
        draining = asyncio.create_task(drain(destination, account))
        troubles = rng.randrange(1, 10)
        with connect(url) as db:
            for _ in range(troubles):
                while len(stages) < rng.randrange(1, 5 if shared else 3):
                    begin()
                await asyncio.sleep(rng.choice((0, 0.001, rng.uniform(0, 0.03))))
                what = rng.choice(("crash", "cancel", "expire", "expire"))
                if what != "expire":
                    await end(*stages.pop(rng.randrange(len(stages))), crash=what == "crash")
                if what == "cancel" or rng.random() < 0.2:
                    continue
                lease = f"apressure:__pressure__:{QUEUES[0]}:consumer_lease"
                if name == "events":
                    expire_event(db, rng)
                elif db.exists(lease):
                    expire(db, lease, rng)
        troubled = False
        begin()
        await asyncio.wait_for(draining, PATIENCE)
        for one, task in stages:
            await asyncio.wait((task,), timeout=PATIENCE)
            if task.done() and task.exception() is not None:
                raise AssertionError from task.exception()
            await end(one, task, crash=False)
        for queue in (source, destination):
            await clear(queue, account)
    expected = sorted(result for item in items for result in results_of(item))
    assert sorted(account.arrived) == expected
    return account.arrived, troubles


@pytest.mark.parametrize("name", WAYS)
async def test_stages_at_random(
    server: EmbeddedServer,
    url: str,
    rng: random.Random,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    caplog.set_level(logging.CRITICAL)  # each failed attempt is logged with its traceback
    row = Row()
    async with no_complaints():
        for _ in range(often(40, 50)):
            seed = rng.random()
            print(f"schedule {seed}")
            arrived, troubles = await random_schedule(url, random.Random(seed), name)
            row.tried += troubles
            row.acknowledged += len(arrived)
    recorder.add(f"cancelled, crashed and late stages of a pipeline, {name}", server.software, row)
    await check_server(server)
