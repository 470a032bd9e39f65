"""Measure idle queues, the memory of a message on the server, and whether a long queue is slower.

Usage: python -m tests.benchmarks.resources [--only WORD] [--queues N] [--messages N] [--json FILE] [--table FILE]

Each line is a figure, the other side, and the goal: the greatest ratio, or without another side the greatest figure.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import redis
import redis.asyncio

from apressure import AsyncQueue, Client
from apressure.embedded import EmbeddedServer
from apressure.pressure.engine.keys import Keys
from tests.benchmarks.__main__ import machine
from tests.benchmarks.cases import LIST, MESSAGE, NAME
from tests.servers import KINDS, CannotRun, admin, binary_of

IDLE_SECONDS = 60  # long enough to include what happens once a minute
IN_FLIGHT = 10_000
REDELIVERED = 100_000
OPERATIONS = 1000
ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class Cost:
    """A figure of the results.

    Attributes:
        case: The measured operation.
        unit: The unit; less is better.
        ours: Our figure.
        other: The other side's figure; None if the goal is for the figure itself.
        goal: The greatest ratio or figure that we want.
    """

    case: str
    unit: str
    ours: float
    other: float | None
    goal: float

    @property
    def compared(self) -> float:
        """The ratio or figure that must reach the goal."""
        return self.ours if self.other is None else self.ours / self.other

    @property
    def result(self) -> dict[str, Any]:
        """The figure with its verdict."""
        ratio = None if self.other is None else self.compared
        return {**dataclasses.asdict(self), "ratio": ratio, "reached": self.compared <= self.goal}

    def __str__(self) -> str:
        other = "" if self.other is None else f"{self.other:10,.2f}  ratio {self.compared:5.2f}"
        mark = "" if self.compared <= self.goal else "  not reached"
        return f"  {self.case:52} {self.ours:10,.2f} {other:24} {self.unit} (goal <= {self.goal:g}){mark}"


# --- waiting ---------------------------------------------------------------------------------------------------------


async def get(queue: AsyncQueue[bytes]) -> None:
    """Wait in an empty queue."""
    await queue.get()


async def put(queue: AsyncQueue[bytes]) -> None:
    """Wait in a full queue."""
    await queue.put(MESSAGE)
    await queue.put(MESSAGE)


async def consumer(queue: AsyncQueue[bytes]) -> None:
    """Wait in an empty queue, with the consumer role."""
    async with queue.consumer() as items:
        async for _ in items:
            pass


WAITS: dict[str, Callable[[AsyncQueue[bytes]], Awaitable[None]]] = {"get": get, "put": put, "consumer": consumer}
BY_HAND = "brpop"


async def wait(what: str, url: str, count: int) -> dict[str, float]:
    """Let many tasks wait, and measure this process. It is a new one, because a process keeps freed memory."""
    process = psutil.Process()
    looking = redis.Redis.from_url(url)
    before = looking.info("clients")["connected_clients"]
    gc.collect()
    memory, processor = process.memory_info().rss, _processor_seconds()
    async with AsyncExitStack() as stack:
        tasks: list[asyncio.Future[Any]] = []
        if what == BY_HAND:
            for number in range(count):
                one = redis.asyncio.Redis.from_url(url, single_connection_client=True, socket_timeout=None)
                await stack.enter_async_context(one)
                tasks.append(asyncio.ensure_future(one.brpop([f"{LIST}-{number}"], 0)))
        else:
            client = await stack.enter_async_context(Client(url))
            for number in range(count):
                queue = AsyncQueue(f"{NAME}-{number}", client=client)
                await queue.create(bound=1)
                tasks.append(asyncio.ensure_future(WAITS[what](queue)))
        expected = count if what == BY_HAND else 2 * count
        while looking.info("clients")["blocked_clients"] < expected:
            await asyncio.sleep(0.1)
        opened = _processor_seconds() - processor
        gc.collect()
        memory = process.memory_info().rss - memory
        processor, of_server = _processor_seconds(), _server_seconds(looking)
        await asyncio.sleep(IDLE_SECONDS)
        idle, idle_server = _processor_seconds() - processor, _server_seconds(looking) - of_server
        assert not any(task.done() for task in tasks)
        found = {
            "opening": opened / count * 1000,
            "memory": memory / count / 1024,
            "idle": idle / IDLE_SECONDS * 100,
            "idle_server": idle_server / IDLE_SECONDS * 100,
            "connections": (looking.info("clients")["connected_clients"] - before) / count,
        }
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    looking.close()
    return found


def _clear(db: redis.Redis) -> None:
    """Delete everything now, and not during the next measurement."""
    db.execute_command("FLUSHALL", "SYNC")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _server_seconds(db: redis.Redis) -> float:
    used = db.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def waiting(server: EmbeddedServer, count: int) -> Iterator[Cost]:
    """Measure the process of a thousand blocked tasks, each on its own queue."""

    def measured(what: str) -> dict[str, float]:
        with admin(server) as db:
            _clear(db)
        command = [sys.executable, "-m", "tests.benchmarks.resources", "--wait", what, server.url, str(count)]
        found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return found

    by_hand = measured(BY_HAND)
    for what in WAITS:
        ours = measured(what)
        name = f"{count:,} queues, each with a blocked {what}"
        yield Cost(f"{name}: an idle second", "% of a core", ours["idle"], None, 1.0)
        yield Cost(f"{name}: an idle second of the server", "% of a core", ours["idle_server"], None, 1.0)
        yield Cost(f"{name}: memory, each", "kB, a blocked brpop", ours["memory"], by_hand["memory"], 2.0)
        yield Cost(f"{name}: opening, each", "ms, a brpop's", ours["opening"], by_hand["opening"], 2.0)
        yield Cost(f"{name}: connections, each", "", ours["connections"], None, 2.01)


# --- the server's memory ---------------------------------------------------------------------------------------------


async def memory(server: EmbeddedServer, count: int) -> list[Cost]:
    """Compare the server's memory for messages of 100 bytes with the same messages in a bare list."""
    with admin(server) as db:

        def empty() -> int:
            _clear(db)
            db.script_flush()
            return used()

        def used() -> int:
            return int(db.info("memory")["used_memory"])

        begin = empty()
        for _ in range(count // 1000):
            db.lpush(LIST, *[MESSAGE] * 1000)
        bare = (used() - begin) / (count // 1000 * 1000)
        unit = "bytes, in a bare list"

        begin = empty()
        async with AsyncQueue(NAME, url=server.url) as queue:
            await queue.create()
            await queue.put_many(MESSAGE for _ in range(count))
            costs = [Cost(f"{count:,} messages by put_many, each", unit, (used() - begin) / count, bare, 1.3)]
            async with queue.consumer(ack="manual", prefetch=1000) as deliveries:
                for _ in range(min(IN_FLIGHT, count)):
                    await anext(deliveries)
                each = (used() - begin) / count
                costs.append(Cost(f"the same, {IN_FLIGHT:,} of them in flight, each", unit, each, bare, 1.3))

        begin = empty()
        async with AsyncQueue(NAME, url=server.url) as queue:
            await queue.create()
            some = count // 10 // 64

            async def feed() -> None:
                for _ in range(some):
                    await queue.put(MESSAGE)

            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(feed())
            each = (used() - begin) / (64 * some)
            costs.append(Cost(f"{64 * some:,} messages put by 64 tasks, each", unit, each, bare, 1.3))
    return costs


# --- the length of the queue -----------------------------------------------------------------------------------------


async def lengths(server: EmbeddedServer, longest: int) -> list[Cost]:
    """Compare the server's time for one operation in queues of different lengths."""
    costs = []
    for what in ("put", "get", "receive and ack", "consumer, one at a time"):
        times = await _times(server, what, [(0, 0), (1000, 0), (longest, 0)])
        for length, time in zip((1000, longest), times[1:], strict=True):
            name = f"{what}, {length:,} messages in the queue"
            costs.append(Cost(name, "µs of the server, in an empty one", time, times[0], 1.25))
    for what in ("receive and ack", "consumer, one at a time"):
        times = await _times(server, what, [(REDELIVERED, 2 * OPERATIONS), (REDELIVERED, REDELIVERED)])
        name = f"{what}, {REDELIVERED:,} redelivered"
        costs.append(Cost(name, f"µs of the server, {2 * OPERATIONS:,} redelivered", times[1], times[0], 1.25))
    return costs


async def _times(server: EmbeddedServer, what: str, queues: Sequence[tuple[int, int]]) -> list[float]:
    """Return the microseconds of a script, for queues with a number of messages and of redelivered ones.

    The queues take turns, and the best time of each counts: other programs can only make it longer.
    """
    with admin(server) as db:
        _clear(db)
        async with AsyncExitStack() as stack:
            operations = [
                await _operation(stack, db, AsyncQueue(f"{NAME}-{number}", url=server.url), what, *one)
                for number, one in enumerate(queues)
            ]
            means: list[list[float]] = [[] for _ in queues]
            for _ in range(ROUNDS):
                for operate, found in zip(operations, means, strict=True):
                    db.config_resetstat()
                    for _ in range(OPERATIONS // ROUNDS):
                        await operate()
                    found.append(float(db.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]))
        _clear(db)
    return [min(found) for found in means]


async def _operation(
    stack: AsyncExitStack, db: redis.Redis, queue: AsyncQueue[bytes], what: str, length: int, redelivered: int
) -> Callable[[], Awaitable[object]]:
    """Fill a queue, and return a function that does one operation on it."""
    await stack.enter_async_context(queue)
    await queue.create()
    await queue.put_many(MESSAGE for _ in range(length + (0 if what == "put" else OPERATIONS)))
    entry = b"1:" + hashlib.sha1(MESSAGE, usedforsecurity=False).hexdigest().encode()
    key = Keys(queue.prefix, queue.name).redelivered
    for done in range(0, redelivered, 1000):
        db.rpush(key, *[entry] * min(1000, redelivered - done))
    if what == "put":
        return lambda: queue.put(MESSAGE)
    if what == "get":
        return queue.get
    if what == "receive and ack":

        async def receive_and_ack() -> None:
            await (await queue.receive()).ack()

        return receive_and_ack
    items = await stack.enter_async_context(queue.consumer(prefetch=1))
    return lambda: anext(items)


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of figures, with ratios to the other side in parentheses. Bold marks missed goals.

    A row that repeats the unit of the row above, or what is before the colon there, leaves it out.
    """
    servers = results["servers"]
    lines = [f"| | goal | {' | '.join(servers)} |", f"| --- | --- |{' --- |' * len(servers)}"]
    above = unit_above = ""
    for rows in zip(*servers.values(), strict=True):
        first = rows[0]
        group, colon, what = first["case"].rpartition(": ")
        name = f"… {what}" if group and group == above else f"{group}{colon}{what}"
        unit, _, other = first["unit"].partition(", ")
        if unit and first["unit"] != unit_above:
            name += f", {unit}" + (f" ({other})" if other else "")
        above, unit_above = group, first["unit"]
        cells = []
        for row in rows:
            compared = row["ours"] if row["ratio"] is None else row["ratio"]
            number = f"{compared:.3g}" if row["reached"] else f"**{compared:.3g}**"
            cells.append(number if row["ratio"] is None else f"{row['ours']:,.3g} ({number})")
        lines.append(f"| {name} | ≤ {first['goal']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- the program -----------------------------------------------------------------------------------------------------


def measure_resources(server: EmbeddedServer, only: str, queues: int, messages: int) -> Iterator[Cost]:
    """Measure everything on one server."""
    if only in "waiting":
        yield from waiting(server, queues)
    if only in "memory":
        yield from asyncio.run(memory(server, messages))
    if only in "length":
        yield from asyncio.run(lengths(server, messages))


def main() -> None:
    """Parse the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.resources", description=__doc__)
    parser.add_argument("--only", default="", help="waiting, memory, or length")
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print these results as a table; measure nothing")
    parser.add_argument("--wait", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    if options.wait:
        what, url, count = options.wait
        print(json.dumps(asyncio.run(wait(what, url, int(count)))))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for kind in KINDS:
        try:
            binary = binary_of(kind)
        except CannotRun as missing:
            print(f"left out: {missing}", file=sys.stderr)
            continue
        with EmbeddedServer(binary=binary, tcp=True) as server:
            title = f"{server.software} {server.version}"
            print(f"\n{title}", flush=True)
            rows = results[title] = []
            for cost in measure_resources(server, options.only, options.queues, options.messages):
                print(cost, flush=True)
                rows.append(cost.result)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "servers": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
