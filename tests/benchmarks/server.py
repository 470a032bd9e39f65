"""Measure what the server does for a message: processor time, commands, and the longest step.

Usage: python -m tests.benchmarks.server [--items N] [--repetitions N] [--json FILE]

For each kind of queue on a server, messages of 100 bytes are put, received and acknowledged, one at a time and many at
a time, beside LPUSH and RPOP by redis-py. A figure is the least of the repetitions, which take turns: microseconds of
the server's processor time for a message, less what an idle server needs. Commands inside of scripts count, too. The
longest step is that of the server's slow log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis.asyncio

import apressure
from apressure.embedded import EmbeddedServer
from tests.benchmarks.__main__ import machine
from tests.benchmarks.compare import title
from tests.benchmarks.watch import cpu
from tests.servers import admin

MESSAGE: Final = "x" * 100
KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue")
BY_HAND: Final = "LPUSH, RPOP"
MANY: Final = 1000
SHARES: Final = {"put": 1.0, "receive and ack": 1.0, "put to a get that waits": 0.2, "put_many": 10.0, "consumer": 10.0}
"""What is done: the first three one at a time, the others a thousand at a time or as they come; and for how many of the
messages."""


class Cost(NamedTuple):
    """What one message costs the server.

    Attributes:
        side: The kind of queue, or `BY_HAND`.
        what: What was done.
        cpu: Microseconds of processor time.
        commands: How many commands.
        longest: Microseconds of the longest step; 0 if none took `_SLOW`.
    """

    side: str
    what: str
    cpu: float
    commands: float
    longest: int


_PAUSE: Final = 0.003
"""Seconds in which a `get` begins to wait."""

_SLOW: Final = 200
"""Microseconds from which a step is in the slow log."""

Work = Callable[[str, int], Awaitable[None]]


async def meet(put: Callable[[], Awaitable[Any]], get: Callable[[], Awaitable[Any]], count: int) -> None:
    """Put a message every few milliseconds, while another task waits for it."""

    async def take() -> None:
        for _ in range(count):
            await get()

    taking = asyncio.create_task(take())
    for _ in range(count):
        await asyncio.sleep(_PAUSE)
        await put()
    await taking


async def by_hand(client: Any, what: str, count: int) -> None:
    """Do it with lists."""
    if what == "put":
        for _ in range(count):
            await client.lpush("hand", MESSAGE)
    elif what == "receive and ack":
        for _ in range(count):
            await client.rpop("hand")
    elif what == "put to a get that waits":
        await meet(lambda: client.lpush("hand", MESSAGE), lambda: client.brpop("hand"), count)
    elif what == "put_many":
        for _ in range(0, count, MANY):
            await client.lpush("hand", *[MESSAGE] * MANY)
    else:
        for _ in range(0, count, MANY):
            await client.rpop("hand", MANY)


async def by_queue(queue: Any, what: str, count: int) -> None:
    """Do it with a queue."""
    if what == "put":
        for _ in range(count):
            await queue.put(MESSAGE)
    elif what == "receive and ack":
        for _ in range(count):
            await (await queue.receive()).ack()
    elif what == "put to a get that waits":
        await meet(lambda: queue.put(MESSAGE), queue.get, count)
    elif what == "put_many":
        for _ in range(0, count, MANY):
            await queue.put_many([MESSAGE] * MANY)
    else:
        async with queue.consumer() as consumer:
            left = count
            async for _ in consumer:
                left -= 1
                if not left:
                    break


async def measured(server: EmbeddedServer, items: int, repetitions: int) -> list[Cost]:
    """Measure all sides in turn."""
    found: dict[tuple[str, str], list[Cost]] = {}
    with admin(server) as db:
        db.config_set("slowlog-log-slower-than", _SLOW)
        idle = await _idle(db)
        for repetition in range(repetitions + 1):  # the first one warms up
            for side in (*KINDS, BY_HAND):
                db.flushall()
                async with _opened(side, server.url) as work:
                    for what in SHARES:
                        cost = await _measure(db, work, side, what, items, idle)
                        if repetition:
                            found.setdefault((side, what), []).append(cost)
    return [
        min(costs, key=lambda cost: cost.cpu)._replace(longest=min(cost.longest for cost in costs))
        for costs in found.values()
    ]


class _opened:  # noqa: N801 (a context manager)
    """A side, as a function."""

    def __init__(self, side: str, url: str) -> None:
        if side == BY_HAND:
            self._opened: Any = redis.asyncio.Redis.from_url(url)
        else:
            self._opened = getattr(apressure, side)("cost", url=url, codec="text")

    async def __aenter__(self) -> Work:
        opened = await self._opened.__aenter__()
        do = by_hand if isinstance(opened, redis.asyncio.Redis) else by_queue
        if do is by_queue:
            await opened.create()
        return lambda what, count: do(opened, what, count)

    async def __aexit__(self, *error: object) -> None:
        await self._opened.__aexit__(*error)


async def _measure(db: Any, work: Work, side: str, what: str, items: int, idle: float) -> Cost:
    count = int(SHARES[what] * items)
    db.config_resetstat()
    db.slowlog_reset()
    before, began = cpu(db), time.monotonic()
    await work(what, count)
    spent = cpu(db) - before - idle * (time.monotonic() - began)
    calls = sum(about["calls"] for name, about in db.info("commandstats").items() if name not in _OURS)
    slow = [one["duration"] for one in db.slowlog_get(128) if one["command"].partition(b" ")[0] in _STEPS]
    return Cost(side, what, 1e6 * spent / count, calls / count, max(slow, default=0))


_OURS: Final = ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_slowlog|reset", "cmdstat_slowlog|get")
_STEPS: Final = (b"EVALSHA", b"EVAL", b"LPUSH", b"RPOP")


async def _idle(db: Any) -> float:
    before, began = cpu(db), time.monotonic()
    await asyncio.sleep(1)
    return (cpu(db) - before) / (time.monotonic() - began)


def table(costs: list[Cost]) -> str:
    """Return the costs as a table: a row for what is done, and a column for each side."""
    cells = {(one.what, one.side): f"{one.cpu:.3g} · {one.commands:.2g} · {one.longest or '-'}" for one in costs}
    sides = [*KINDS, BY_HAND]
    lines = [f"| | {' | '.join(sides)} |", f"| --- |{' --- |' * len(sides)}"]
    lines += [f"| {what} | {' | '.join(cells[what, side] for side in sides)} |" for what in SHARES]
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.server", description=__doc__)
    parser.add_argument("--items", type=int, default=5000, help="messages one at a time; ten times as many otherwise")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    with EmbeddedServer(tcp=True) as server:
        costs = asyncio.run(measured(server, options.items, options.repetitions))
        about = {**machine(), "server": title(server)}
    print("microseconds of the server for a message · commands for it · the longest step in microseconds\n")
    print(table(costs))
    if options.json:
        results = {"machine": about, "costs": [one._asdict() for one in costs]}
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
