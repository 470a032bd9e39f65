"""Processes that are killed at random times: no queue is stuck afterwards, and the consumer role loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from apressure.pressure.doctor import recovery
from tests import processes
from tests.chaos.load import tidy
from tests.chaos.support import PATIENCE, Account, Recorder, Row, check_server, check_tidy, drain, no_complaints, often
from tests.chaos.workers import GET_MANY, LEASE, PLAIN, PUT_MANY

ROOT = Path(__file__).parents[2]
PRODUCERS = {"put": often(17, 10), "put_many": often(17, 10), "exclusive": often(16, 10)}
CONSUMERS = {
    "plain": often(25, 10), "reference": often(25, 10),
    "get": often(25, 10), "get_many": often(25, 10),
    "receive": often(25, 10), "consumer": often(25, 10),
}  # fmt: skip
"""How many of a kind are killed on one server: 500 of each way in the long form, 1,000 on both."""

WAYS = {
    "plain": "step by step, ours", "reference": "step by step, not ours",
    "get": "at most once, get", "get_many": "at most once, get_many",
    "receive": "role, receive", "consumer": "role, consumer",
}  # fmt: skip

IN_FLIGHT = {"put": 1, "put_many": PUT_MANY, "exclusive": 1, "plain": 1, "reference": 1, "get": 1, "get_many": GET_MANY}
"""How many messages one operation of a kind moves: what its death leaves in doubt."""

pytestmark = pytest.mark.timeout(often(120, 20))


class Nursery:
    """The process whose children are killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asking = asyncio.Lock()

    async def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._asking:
            self._process.stdin.write(f"{line}\n".encode())
            return (await self._process.stdout.readline()).decode().strip()

    async def start(self, kind: str, name: str, tag: str, log: Path) -> str:
        assert await self._ask(f"start {tag} {kind} {name} {tag} {log}") == "started"
        return tag

    async def stand_still(self, worker: str, seconds: float) -> None:
        """Stop a worker (SIGSTOP), and let it go on."""
        assert await self._ask(f"stop {worker}") == "stop"
        await asyncio.sleep(seconds)
        assert await self._ask(f"go {worker}") == "go"

    async def kill(self, worker: str) -> None:
        """Kill a worker; one that has ended by itself is an error, whose traceback is in the captured output."""
        assert await self._ask(f"kill {worker}") == str(-signal.SIGKILL)


@contextlib.asynccontextmanager
async def nursery(url: str, module: str = "tests.chaos.workers") -> AsyncIterator[Nursery]:
    process = await processes.start(
        sys.executable, "-m", module, url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield Nursery(process)
    finally:
        process.stdin.close()
        await process.wait()


async def kill_in_turn(
    nursery: Nursery,
    kind: str,
    times: int,
    rng: random.Random,
    folder: Path,
    afterwards: Callable[[], Awaitable[None]] | None = None,
    name: str | None = None,
    prefix: str = "",
    still: float = 0.0,
    patience: float = PATIENCE,
) -> tuple[list[Path], int]:
    """Let one worker of a kind live after the other. Returns their logs, and how many were stuck.

    One that has noted nothing after `patience` seconds is stuck. The queue is called as the kind, or by `name`; the
    workers as the kind with their number, or with `prefix` too.
    Half of the workers stand still for up to `still` seconds before, and go on for a moment.
    """
    logs: list[Path] = []
    stuck = 0
    for number in range(times):
        log = folder / f"{kind}{number}"
        log.touch()
        logs.append(log)
        worker = await nursery.start(kind, name or kind, f"{prefix}{kind}{number}", log)
        if rng.random() < 0.25:
            await asyncio.sleep(rng.uniform(0, 0.08))  # while it connects, takes the role, begins
        else:
            # The one before it died with the role: it must be free again, at the latest when the lease has ended.
            stuck += not await _grows(log, patience)
            await asyncio.sleep(rng.uniform(0, 0.03))
        if still and rng.random() < 0.5:
            await nursery.stand_still(worker, rng.uniform(0, still))
            await asyncio.sleep(rng.uniform(0, 0.2))  # late, it learns that its lease is lost, and comes back
        await nursery.kill(worker)
        if afterwards is not None:
            await afterwards()
    return logs, stuck


async def _grows(log: Path, patience: float) -> bool:
    deadline = asyncio.get_running_loop().time() + patience
    while not log.stat().st_size:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


Note = tuple[str, bytes, int]
"""What a worker has noted: a word, a message, and for `got` the attempts."""


def notes(log: Path) -> list[Note]:
    """What a worker has noted. A line that was cut short is none: the worker died in writing it."""
    whole, _, _ = log.read_text().rpartition("\n")
    words = [[*line.split(), "0"] for line in whole.splitlines()]
    return [(word[0], word[1].encode(), int(word[2])) for word in words]


async def producers_die(url: str, nursery: Nursery, kind: str, times: int, rng: random.Random, folder: Path) -> Row:
    """Producers of one kind die one after the other. What was acknowledged is there, once and in order."""
    account = Account()
    async with AsyncQueue(kind, url=url) as queue:
        await queue.create(rng.choice((0, 1, 5, 50)))
        draining = asyncio.create_task(drain(queue, account))
        logs, stuck = await kill_in_turn(nursery, kind, times, rng, folder)
        async with AsyncQueue(kind, url=url) as fresh, asyncio.timeout(PATIENCE):
            await finish(fresh, account)
            await draining
        for log in logs:
            noted = notes(log)
            account.acknowledge(message for _, message, _ in noted)
            account.perhaps([f"{log.name}:{len(noted) + i}:".encode() for i in range(IN_FLIGHT[kind])])
        await check_tidy(queue, account)
        await queue.delete(timeout=PATIENCE)
    row = account.row()
    row.tried, row.stuck = times, stuck
    return row


async def consumers_die(url: str, nursery: Nursery, kind: str, times: int, rng: random.Random, folder: Path) -> Row:
    """Consumers of one kind die one after the other, while somebody puts."""
    account = Account()
    async with AsyncQueue(kind, url=url) as queue:
        await queue.create(rng.choice((1, 5, 50)))
        await teach_scripts(queue)
        feeding = asyncio.create_task(feed(queue, account))
        repaired = 0

        async def give_role_back() -> None:
            nonlocal repaired
            repaired += await repair_role(queue)

        afterwards = give_role_back if kind in PLAIN else None
        logs, stuck = await kill_in_turn(nursery, kind, times, rng, folder, afterwards)
        feeding.cancel()
        await asyncio.wait((feeding,))
        each = [notes(log) for log in logs]
        rest: list[Note] = []
        async with AsyncQueue(kind, url=url) as fresh, asyncio.timeout(PATIENCE):
            finishing = asyncio.create_task(finish(fresh, account))  # the queue may be full
            async with fresh.consumer() as consumer:
                async for item in consumer:
                    rest.append(("got", item, consumer.attempts))
            await finishing
        if kind in PLAIN:
            stuck += await tidy(queue)  # they count step by step, and some died in between
        else:
            await check_tidy(queue, account, exact=False)
        await queue.delete(timeout=PATIENCE)
    if kind in IN_FLIGHT:
        row = settle_at_most_once(account, [*each, rest], IN_FLIGHT[kind])
    else:
        row = settle_at_least_once(account, [note for noted in [*each, rest] for note in noted])
    row.tried, row.stuck = times, stuck
    row.notes["roles given back by repair()"] = repaired
    return row


async def teach_scripts(queue: AsyncQueue[bytes]) -> None:
    """Have the server learn the scripts of consumers before anyone is killed.

    A step whose script the server does not know yet is sent again, after later ones. A consumer that is killed in this
    moment has acknowledged a message, but not the one before: that comes again, and the next one passes over a number.
    """
    async with queue.consumer() as consumer:
        for _ in range(3):
            await queue.put(b"lesson")
            await anext(consumer)


async def repair_role(queue: AsyncQueue[bytes]) -> bool:
    """What a human does who knows that the holder is dead. Returns whether a client that died had the role."""
    if (await queue.statistics()).consumer.state == "free":
        return False
    holder = (await queue.statistics()).consumer.holder or ""
    async with asyncio.timeout(PATIENCE):
        while (await queue.statistics()).consumer.state != "free":
            await recovery.repair(queue, holder, patience=0.02)
    return True


def settle_at_most_once(account: Account, noted: list[list[Note]], in_flight: int) -> Row:
    """Messages may be missing only where a worker died, and only as many as one operation moves.

    Args:
        account: The account.
        noted: What each worker noted, in the order of their deaths, and who got the rest.
        in_flight: How many messages one operation moves.
    """
    account.arrived = [message for notes in noted for _, message, _ in notes]
    row = account.row(may_lose=len(noted) * in_flight)
    missing = set(account.missing())
    allowed = lost = number = 0
    for notes in noted:
        for _, message, _ in notes:
            name, place, _ = message.split(b":")
            if name != b"feeder":
                continue
            gap = sum(f"feeder:{i}:".encode() in missing for i in range(number, int(place)))
            lost += max(0, gap - allowed)
            number, allowed = max(number, int(place) + 1), 0
        allowed += in_flight
    row.lost = lost
    row.notes["lost in flight"] = len(missing) - lost
    return row


async def finish(queue: AsyncQueue[bytes], account: Account) -> None:
    """A fresh client puts and closes."""
    await queue.put(b"fresh:0:")
    account.acknowledge([b"fresh:0:"])
    await queue.close()


async def feed(queue: AsyncQueue[bytes], account: Account) -> None:
    while True:
        messages = account.fresh("feeder", 20)
        try:
            await queue.put_many(messages)
        except asyncio.CancelledError:
            account.perhaps(messages)
            raise
        account.acknowledge(messages)
        await asyncio.sleep(0.002)


def settle_at_least_once(account: Account, noted: list[Note]) -> Row:
    """Everything was handed out; again only what had not been acknowledged, marked as such, and in order."""
    acked: set[bytes] = set()
    doubled = gaps = marked = 0
    previous = -1
    for word, message, attempts in noted:
        if word == "acked":
            acked.add(message)
            continue
        again = message in account.arrived
        if message in acked or (again and attempts == 1):
            doubled += 1
            print(f"{message!r} came again, attempt {attempts}, acknowledged: {message in acked}")
        marked += again and attempts > 1
        if not again:
            account.arrived.append(message)
        name, number, _ = message.split(b":")
        if name == b"feeder":
            # It may go back to what was in flight, and passes over nothing.
            if int(number) > previous + 1:
                gaps += 1
                print(f"{message!r}, attempt {attempts}, came after number {previous}, the first time: {not again}")
            previous = int(number)
    row = account.row()
    row.doubled += doubled
    row.out_of_order += gaps
    row.notes["came again, marked"] = marked
    return row


MEMBERS = 4


async def members_die(
    url: str, nursery: Nursery, name: str, times: int, rng: random.Random, folder: Path, still: float = 0.0
) -> Row:
    """Clients that share the role die at the same time as others work; each is replaced. Nobody waits for the dead.

    With `still`, half of them stand still for up to so many seconds before, and go on late.
    """
    account = Account()
    async with AsyncQueue(name, url=url) as queue:
        await queue.create(rng.choice((5, 50)))
        feeding = asyncio.create_task(feed(queue, account))
        async with asyncio.TaskGroup() as group:
            lives = []
            for member in range(MEMBERS):
                own = folder / f"{name}{member}"
                own.mkdir()
                dying = kill_in_turn(
                    nursery,
                    "shared",
                    times // MEMBERS,
                    random.Random(rng.random()),
                    own,
                    name=name,
                    prefix=f"m{member}",
                    still=still,
                )
                lives.append(group.create_task(dying))
        feeding.cancel()
        await asyncio.wait((feeding,))
        rest: list[Note] = []
        async with AsyncQueue(name, url=url) as fresh, asyncio.timeout(PATIENCE):
            finishing = asyncio.create_task(finish(fresh, account))
            async with fresh.consumer(shared=True) as consumer:
                async for item in consumer:
                    rest.append(("got", item, consumer.attempts))
            await finishing
        await check_tidy(queue, account, exact=False)
        await queue.delete(timeout=PATIENCE)
    logs = [log for life in lives for log in life.result()[0]]
    row = settle_together(account, [notes(log) for log in logs], rest)
    row.tried, row.stuck = len(logs), sum(life.result()[1] for life in lives)
    return row


def settle_together(account: Account, noted: list[list[Note]], rest: list[Note]) -> Row:
    """The members worked at the same time, so that only their attempts say who had a message first."""
    attempts: dict[bytes, list[int]] = {}
    acked: dict[bytes, int] = {}
    doubled = 0
    for notes in [*noted, rest]:
        for word, message, number in notes:
            if word == "acked":
                doubled += message in acked
                acked[message] = attempts[message][-1]  # of this member, whose note of it is the latest
            else:
                attempts.setdefault(message, []).append(number)
    for message, numbers in attempts.items():
        account.arrived.append(message)
        doubled += len(set(numbers)) < len(numbers)  # two were told the same number: one of them was not marked
        # After the acknowledgement nobody else had it.
        doubled += message in acked and max(numbers) > acked[message]
    row = account.row(ordered=False)
    row.doubled += doubled
    row.notes["came again, marked"] = sum(len(numbers) - 1 for numbers in attempts.values())
    return row


async def test_members_that_share_the_role_are_killed(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path
) -> None:
    async with no_complaints(), nursery(url) as hatchery:
        row = await members_die(url, hatchery, "together", often(40, 10), rng, tmp_path)
    recorder.add("killed consumer: role, shared by four", server.software, row)
    assert row.clean(), row
    await check_server(server)


async def test_members_that_share_the_role_stand_still(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path
) -> None:
    """For longer than their lease, too: then others get what they had, and they learn it when they go on."""
    async with no_complaints(), nursery(url) as hatchery:
        row = await members_die(url, hatchery, "still", often(8, 20), rng, tmp_path, still=2.5 * LEASE)
    recorder.add("killed consumer: role, shared by four, that stood still", server.software, row)
    assert row.clean(), row
    await check_server(server)


@pytest.mark.parametrize("side", ["producers", "consumers"])
async def test_kills(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path, side: str
) -> None:
    """Workers of all kinds die at the same time, each kind on a queue of its own."""
    kinds, die = (PRODUCERS, producers_die) if side == "producers" else (CONSUMERS, consumers_die)
    async with no_complaints(), nursery(url) as hatchery, asyncio.TaskGroup() as group:
        tasks = {
            kind: group.create_task(die(url, hatchery, kind, times, random.Random(rng.random()), tmp_path))
            for kind, times in kinds.items()
        }
    rows = {kind: task.result() for kind, task in tasks.items()}
    for kind, row in rows.items():
        cell = f"killed producer: {kind}" if side == "producers" else f"killed consumer: {WAYS[kind]}"
        recorder.add(cell, server.software, row)
    assert all(row.clean() for row in rows.values()), rows
    await check_server(server)
