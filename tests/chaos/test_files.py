"""Clients of queues in directories are killed at random times, and many processes share one directory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from apressure import FileQueue, QueueEmptyError
from apressure.files.storage.names import BLANK, WORKERS
from tests.chaos.file_workers import LEASE, MANY
from tests.chaos.support import PATIENCE, Account, Recorder, Row, no_complaints, often
from tests.chaos.test_kill import Note, kill_in_turn, notes, nursery
from tests.integration.files.conftest import listing

PUBLISHERS = {
    "publish": often(60, 10), "publish_many": often(60, 10), "publish_later": often(60, 10), "fsync": often(60, 10),
    "listed": often(20, 5),
}  # fmt: skip
CONSUMERS = {
    "receive": often(90, 10), "receive_many": often(90, 10), "retry": often(90, 10), "receive_listed": often(20, 5),
}  # fmt: skip
IN_FLIGHT = {"publish": 1, "publish_many": MANY, "publish_later": 1, "fsync": MANY, "listed": 1}
CAPACITY = 40

pytestmark = pytest.mark.timeout(often(120, 20))


async def check_empty(place: Path) -> None:
    """Nothing is left but what publishers died in writing, and the next one to come sweeps that away."""
    kept = {BLANK, WORKERS}
    assert not [name for name in listing(place) if not name.endswith(".new") and name not in kept]
    async with FileQueue(place, clock=lambda: time.time() + 3600) as queue:
        await queue.statistics()
    assert {*listing(place)} <= kept


async def publishers_die(directory: Path, hatchery: str, kind: str, times: int, rng: random.Random) -> Row:
    """What was published is there, once and in order."""
    account = Account()
    place = directory / kind
    done = asyncio.Event()

    async def drain(queue: FileQueue[bytes]) -> None:
        while True:
            try:
                message = await queue.receive(timeout=0.1)
            except QueueEmptyError:
                if done.is_set() and not (await queue.statistics()).delayed:
                    return
                continue
            account.handed_out(message.raw, message.attempts)
            await message.ack()

    # A crashed publisher's file takes room until it is swept, so the clocks of ours go fast.
    async with FileQueue(place) as queue, nursery(hatchery, "tests.chaos.file_workers") as crew:
        draining = asyncio.create_task(drain(queue))
        sweeping = asyncio.create_task(sweep(place))
        logs, stuck = await kill_in_turn(crew, kind, times, rng, directory)
        done.set()
        await asyncio.wait_for(draining, PATIENCE)
        sweeping.cancel()
    for log in logs:
        noted = notes(log)
        account.acknowledge(message for _, message, _ in noted)
        account.perhaps([f"{log.name}:{len(noted) + i}:".encode() for i in range(IN_FLIGHT[kind])])
    await check_empty(place)
    row = account.row()
    row.tried, row.stuck = times, stuck
    return row


async def sweep(place: Path) -> None:
    """Delete what has not grown for a while, as any client does after half a minute."""
    while True:
        await asyncio.sleep(0.05)
        for name in listing(place):
            if name.endswith(".new"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - (place / name).stat().st_mtime > 2:
                        (place / name).unlink()


async def consumers_die(directory: Path, hatchery: str, kind: str, times: int, rng: random.Random) -> Row:
    """Everything is handed out, again only what was not acknowledged, and then it says so."""
    account = Account()
    place = directory / kind

    async def feed(queue: FileQueue[bytes]) -> None:
        while True:
            messages = account.fresh("feeder", 10)
            await queue.put_many(messages)  # cancelled, the first of them are in
            account.acknowledge(messages)
            await asyncio.sleep(0.002)

    rest: list[Note] = []
    async with FileQueue(place, bound=CAPACITY, fsync=False, lease=LEASE) as queue:
        feeding = asyncio.create_task(feed(queue))
        async with nursery(hatchery, "tests.chaos.file_workers") as crew:
            logs, stuck = await kill_in_turn(crew, kind, times, rng, directory)
        feeding.cancel()
        await asyncio.wait((feeding,))
        account.perhaps([f"feeder:{account._next['feeder'] - 10 + i}:".encode() for i in range(10)])
        async with asyncio.timeout(PATIENCE):
            while (seen := await queue.statistics()).length or seen.in_flight or seen.delayed:
                with contextlib.suppress(QueueEmptyError):
                    message = await queue.receive(timeout=0.1)
                    rest.append(("got", message.raw, message.attempts))
                    await message.ack()
                    rest.append(("acked", message.raw, 0))
    await check_empty(place)
    row = settle(account, [note for log in logs for note in notes(log)] + rest)
    row.tried, row.stuck = times, stuck
    return row


def settle(account: Account, noted: list[Note]) -> Row:
    """What came again was not acknowledged before, and marked; what came for the first time was in order."""
    acked: set[bytes] = set()
    seen: set[bytes] = set()
    doubled = marked = 0
    for word, message, attempts in noted:
        if word == "acked":
            acked.add(message)
        elif word == "got":
            again = message in seen
            doubled += message in acked or (again and attempts == 1)
            marked += again and attempts > 1
            seen.add(message)
    account.arrived = list(seen)
    # Who was killed between taking a message and noting it lets a newer one be noted first.
    row = account.row(ordered=False)
    row.doubled += doubled
    row.notes["came again, marked"] = marked
    return row


@pytest.mark.parametrize("side", ["publishers", "consumers"])
async def test_kills(rng: random.Random, recorder: Recorder, tmp_path: Path, side: str) -> None:
    """Workers of all kinds die at the same time, each kind on a queue of its own."""
    kinds, die = (PUBLISHERS, publishers_die) if side == "publishers" else (CONSUMERS, consumers_die)
    async with no_complaints(), asyncio.TaskGroup() as group:
        tasks = {
            kind: group.create_task(die(tmp_path, str(tmp_path), kind, times, random.Random(rng.random())))
            for kind, times in kinds.items()
        }
    rows = {kind: task.result() for kind, task in tasks.items()}
    for kind, row in rows.items():
        role = "producer" if side == "publishers" else "consumer"
        recorder.add(f"killed {role}: directory, {kind}", "(none)", row)
    assert all(row.clean() for row in rows.values()), rows
    if side == "consumers":
        assert all(row.notes["came again, marked"] > 0 for row in rows.values()), rows


async def test_processes_share_a_directory(tmp_path: Path, recorder: Recorder) -> None:
    """Four publish and four consume: each message is acknowledged once, in each producer's order, and none too many."""
    place = tmp_path / "shared"
    publishers, consumers = ["publish", "publish_many", "fsync", "publish"], ["receive", "receive_many"] * 2
    logs = {}
    most = 0
    async with (
        FileQueue(place, lease=60) as queue,
        nursery(str(tmp_path), "tests.chaos.file_workers") as crew,
    ):
        workers = {}
        await queue.create()  # before the first worker is there
        for number, kind in enumerate(publishers + consumers):
            log = tmp_path / f"{kind}{number}"
            log.touch()
            logs[log] = kind in publishers
            workers[log] = await crew._ask(f"start {log.name} {kind} shared {log.name} {log} {CAPACITY}")
        end = time.monotonic() + often(4, 15)
        while time.monotonic() < end:
            seen = await queue.statistics()
            most = max(most, seen.length + seen.in_flight)
            await asyncio.sleep(0.001)
        for log, publishes in logs.items():
            if publishes:
                await crew.kill(log.name)
        async with asyncio.timeout(PATIENCE):
            while (seen := await queue.statistics()).length or seen.in_flight:
                await asyncio.sleep(0.05)
        for log, publishes in logs.items():
            if not publishes:
                await crew.kill(log.name)
    published = {message for log, publishes in logs.items() if publishes for _, message, _ in notes(log)}
    acked: list[bytes] = []
    again = late = out_of_order = 0
    for log, publishes in logs.items():
        last: dict[bytes, int] = {}
        for word, message, attempts in [] if publishes else notes(log):
            again += word == "got" and attempts > 1
            late += word == "late"
            if word == "acked":
                acked.append(message)
            elif word == "got" and attempts == 1:
                producer, number, _ = message.split(b":")
                out_of_order += int(number) < last.get(producer, -1)
                last[producer] = int(number)
    row = Row(
        tried=len(logs), acknowledged=len(acked), lost=len(published - set(acked)),
        doubled=len(acked) - len(set(acked)), out_of_order=out_of_order, stuck=len(acked) < 100,
    )  # fmt: skip
    row.notes["came again, marked"] = again
    recorder.add("killed producer: directory, 8 processes at work", "(none)", row)
    assert row.clean(), row
    assert 1 <= most <= CAPACITY
    assert again >= late
