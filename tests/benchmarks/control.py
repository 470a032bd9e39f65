"""Measure what delays and limits cost, for each kind of queue, and how late delayed items come.

Usage: python -m tests.benchmarks.control [--quick] [--against DIRECTORY] [--kind NAME] [--repetitions N] [--json FILE]
                                          [--libraries DIRECTORY]

- "delayed / plain": items a second through put and then get, one at a time, each delayed by a millisecond, as a ratio
  to the same without a delay.
- "beside ten": plain items a second while ten delayed ones are kept for tomorrow, as a ratio to none.
- "beside many / ten": the same while a million are kept (of a FileQueue 10,000), as a ratio to ten.
- "late": milliseconds from the time when an item is due until a consumer that waits has it, the 99th percentile, alone
  and beside so many others.
- "limited / plain": items a second through a queue with a rate that is never reached and a limit of concurrency, as a
  ratio to one without limits.
- "once / plain": items a second, each put with a dedup id of its own and a window, as a ratio to none.
- "costs / plain": the same, each put with a cost, through a queue with a rate that is never reached.
- "replacing / once": puts a second that each replace the item that waits, as a ratio to "once", which puts and gets.
- "keys / plain": items a second, each put with one of 10,000 keys, as a ratio to none.
- "beside parked": the same while 100,000 items wait in the line of another key, as a ratio to none of them.
- "ask / by hand": requests a second, one at a time, each put, handled by a `serve(reply=True)` of the same process and
  replied to, as a ratio to two loops with LPUSH and BRPOP, one list for requests and one for replies.
- With `--libraries`, docket and BullMQ are installed there. tests/benchmarks/peers.py measures how late their delayed
  jobs come, and our limits, keys and puts with an id as ratios to theirs.
- With `--against`, another checkout runs the plain puts and gets in turn: what a queue pays that uses none of it.
  Processes differ by some per cent, so each repetition has new ones.

What is compared takes turns, burst by burst, and the fastest burst of each counts: a machine that others share is quick
for moments only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from apressure import QueueEmptyError, serve
from tests.benchmarks.cpu import opened

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")
GOALS: Final = {
    "delayed / plain": 0.7, "beside ten": 0.7, "beside many / ten": 0.9, "late": 50.0, "late beside": 50.0,
    "limited / plain": 0.8, "once / plain": 0.6, "keys / plain": 0.5, "beside parked": 0.9,
    "ask / by hand": 0.3, "costs / plain": 0.5, "replacing / once": 1.0,
    "plain / before": 0.98,
}  # fmt: skip
"""The least ratios, and the most milliseconds."""

DAY: Final = 86400.0
BURST: Final = 200
"""Items that are put, and then got, before it is somebody else's turn."""


def usual() -> dict[str, Any]:
    """Return no terms for a put."""
    return {}


def once() -> dict[str, Any]:
    """Return a dedup id that no other put has."""
    return {"dedup_id": f"order-{time.perf_counter_ns()}", "dedup_window": DAY}


def keyed() -> dict[str, Any]:
    """Return one of 10,000 keys."""
    return {"key": f"customer-{random.randrange(10_000)}"}


async def replaced(queue: Any, item: Any, count: int) -> float:
    """Return how many puts a second replace the item that waits, one at a time."""
    begun = time.perf_counter()
    for _ in range(count):
        await queue.put(item, dedup_id="document", replace=True)
    elapsed = time.perf_counter() - begun
    await queue.get()
    return count / elapsed


async def rate(queue: Any, item: Any, count: int, terms: Callable[[], dict[str, Any]] = usual) -> float:
    """Return how many items a second pass through put and then get, one at a time."""
    begin = time.perf_counter()
    for _ in range(count):
        await queue.put(item, **terms())
    for _ in range(count):
        await queue.get()
    return count / (time.perf_counter() - begin)


async def asked(queue: Any, item: Any, count: int) -> float:
    """Return how many requests a second get their replies, one at a time."""

    async def handle(item: Any) -> str:
        return str(item)

    stop = asyncio.Event()
    service = asyncio.ensure_future(serve(handle, queue, reply=True, signals=(), stop=stop))
    await queue.ask(item, 30.0)
    begin = time.perf_counter()
    for _ in range(count):
        await queue.ask(item, 30.0)
    seconds = time.perf_counter() - begin
    stop.set()
    await service
    return count / seconds


async def asked_by_hand(url: str, count: int) -> float:
    """Return the same for two lists and two connections that wait."""
    async with redis.asyncio.Redis.from_url(url) as asker, redis.asyncio.Redis.from_url(url) as worker:

        async def work() -> None:
            for _ in range(count + 1):
                _, item = await worker.brpop(["requests"])
                await worker.lpush("replies", item)

        working = asyncio.ensure_future(work())
        begin = 0.0
        for number in range(count + 1):
            await asker.lpush("requests", b"x" * 100)
            await asker.brpop(["replies"])
            begin = begin if number else time.perf_counter()
        seconds = time.perf_counter() - begin
        await working
    return count / seconds


async def park(queue: Any, item: Any) -> None:
    """Have 100,000 items wait behind one of the same key, which is in flight."""
    await queue.put_many((item for _ in range(100_001)), key="busy")
    await queue.receive(lease=3600)
    with contextlib.suppress(QueueEmptyError):
        await queue.receive(timeout=0)
    assert (await queue.statistics()).parked == 100_000


async def fastest(turns: dict[str, Callable[[], Awaitable[float]]], bursts: int) -> dict[str, float]:
    """Return the rate of the fastest burst of each. They take turns."""
    best = dict.fromkeys(turns, 0.0)
    for _ in range(bursts):
        for name, burst in turns.items():
            best[name] = max(best[name], await burst())
    return best


async def lateness(queue: Any, item: Callable[[str], Any], count: int, seconds: float) -> float:
    """Return how late items come to a consumer that waits: milliseconds, the 99th percentile."""
    late = []

    async def consume() -> None:
        for _ in range(count):
            got = await queue.get()
            late.append(1000 * (time.time() - float(got)))

    consuming = asyncio.ensure_future(consume())
    for _ in range(count):
        delay = random.uniform(0.2, seconds)
        await queue.put(item(repr(time.time() + delay)), delay=delay)
    await consuming
    return statistics.quantiles(late, n=100)[-1]


async def measure(kind: str, url: str, count: int, kept: int) -> dict[str, float]:
    """Return the figures of a kind."""
    async with AsyncExitStack() as stack:
        queues = {}
        for name, most in (("none", 0), ("ten", 10), ("many", kept)):
            queue, item = await stack.enter_async_context(opened(kind, url, name))
            await queue.create()
            await queue.put_many((item for _ in range(most)), delay=DAY)
            await rate(queue, item, BURST)
            queues[name] = queue
        make: Callable[[str], Any] = str if kind == "TaskQueue" else str.encode
        plain, many = queues["none"], queues["many"]
        delayed = functools.partial(rate, plain, item, BURST, lambda: {"delay": 0.001})
        found = await fastest(
            {"delayed": delayed, "plain": functools.partial(rate, plain, item, BURST)}, count // BURST
        )
        beside = {name: functools.partial(rate, queue, item, BURST) for name, queue in queues.items()}
        rates = await fastest(beside, count // BURST)
        figures = {
            "delayed / plain": found["delayed"] / found["plain"],
            "late": await lateness(plain, make, count // 10, 2.0),
            "beside ten": rates["ten"] / rates["none"],
            "beside many / ten": rates["many"] / rates["ten"],
            "late beside": await lateness(many, make, count // 10, 2.0),
        }
        if kind != "FileQueue":
            for name in ("limited", "plain"):  # both are fresh: a queue gets slower with what it has done
                queues[name], _ = await stack.enter_async_context(opened(kind, url, name))
                await queues[name].create()
            await queues["limited"].set_rate(1_000_000, burst=1_000_000)
            await queues["limited"].set_concurrency(1_000_000)
            turns = {name: functools.partial(rate, queues[name], item, BURST) for name in ("limited", "plain")}
            found = await fastest(turns, count // BURST)
            figures["limited / plain"] = found["limited"] / found["plain"]
            turns = {
                "once": functools.partial(rate, queues["none"], item, BURST, once),
                "plain": functools.partial(rate, plain, item, BURST),
            }
            found = await fastest(turns, count // BURST)
            figures["once / plain"] = found["once"] / found["plain"]
            put_once = found["once"]
        if kind in ("EventQueue", "TaskQueue"):
            costly = functools.partial(rate, queues["limited"], item, BURST, lambda: {"cost": 3})
            found = await fastest(
                {"costs": costly, "plain": functools.partial(rate, queues["plain"], item, BURST)}, count // BURST
            )
            figures["costs / plain"] = found["costs"] / found["plain"]
            replacing = functools.partial(replaced, queues["plain"], item, BURST)
            figures["replacing / once"] = (await fastest({"one": replacing}, count // BURST))["one"] / put_once
            for name in ("keys", "parked"):
                queues[name], _ = await stack.enter_async_context(opened(kind, url, name))
                await queues[name].create()
                await queues[name].set_key()
            await park(queues["parked"], item)
            turns = {name: functools.partial(rate, queues[name], item, BURST, keyed) for name in ("keys", "parked")}
            turns["plain"] = functools.partial(rate, queues["plain"], item, BURST)
            found = await fastest(turns, count // BURST)
            figures["keys / plain"] = found["keys"] / found["plain"]
            figures["beside parked"] = found["parked"] / found["keys"]
            found = await fastest(
                {
                    "ask": functools.partial(asked, queues["plain"], item, BURST),
                    "by hand": functools.partial(asked_by_hand, url, BURST),
                },
                count // BURST,
            )
            figures["ask / by hand"] = found["ask"] / found["by hand"]
        for queue in queues.values():
            await queue.delete()
    return figures


async def plain_rates(kind: str, url: str) -> None:
    """Print the rate of a burst of plain puts and gets for each line of the standard input."""
    async with opened(kind, url) as (queue, item):
        await queue.create()
        await rate(queue, item, BURST)
        for _ in sys.stdin:
            print(await rate(queue, item, BURST), flush=True)
        await queue.delete()


def started(root: Path, what: str, kind: str, url: str, count: int, kept: int) -> subprocess.Popen[str]:
    """Measure the package of a checkout in a fresh process."""
    here = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, __file__, "--measure", what, "--kind", kind, "--url", url, "--items", f"{count},{kept}"],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{here}"}, cwd=root, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def compared(checkouts: Sequence[Path], kind: str, bursts: int) -> float:
    """Return the rate of plain puts and gets of the first checkout, as a ratio to that of the second one.

    Each has a fresh process and a fresh server, since both get slower with what they have done before.
    """
    from apressure.embedded import EmbeddedServer

    best = [0.0] * len(checkouts)
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer(tcp=True)) for _ in checkouts]
        running = [started(root, "plain", kind, one.url, 0, 0) for root, one in zip(checkouts, servers, strict=True)]
        turns = list(enumerate(running))
        for _ in range(bursts):
            turns.reverse()  # the one behind has a small advantage
            for place, process in turns:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                best[place] = max(best[place], float(process.stdout.readline()))
        for process in running:
            process.communicate()
    return best[0] / best[1]


def shown(kind: str, what: str, value: float) -> dict[str, Any]:
    """Print a figure, and return it as a row."""
    goal, late = GOALS[what], what.startswith("late")
    reached = value <= goal if late else value >= goal
    unit = " ms at the 99th percentile" if late else ""
    print(f"{kind:12}{what:18}{value:9.3f}{unit} (goal {goal:g}: {'reached' if reached else 'missed'})", flush=True)
    return {"kind": kind, "what": what, "value": value, "goal": goal, "reached": reached}


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.control", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, once")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="another checkout, for what plain puts pay")
    parser.add_argument("--kind", choices=KINDS, help="this kind of queue only")
    parser.add_argument("--repetitions", type=int, metavar="N", help="3 by default")
    parser.add_argument("--libraries", type=Path, metavar="DIRECTORY", help="where docket and BullMQ are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    for hidden in ("--measure", "--url", "--items"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        count, kept = map(int, options.items.split(","))
        if options.measure == "delays":
            print(json.dumps(asyncio.run(measure(options.kind, options.url, count, kept))))
        else:
            asyncio.run(plain_rates(options.kind, options.url))
        return
    import apressure
    from apressure.embedded import EmbeddedServer
    from tests.benchmarks import peers  # another checkout may have none

    root = Path(apressure.__file__).parents[1]
    count, kept = (2_000, 10_000) if options.quick else (10_000, 1_000_000)
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows = []
    with EmbeddedServer(tcp=True) as server:
        for kind in [options.kind] if options.kind else KINDS:
            most = kept if kind != "FileQueue" else kept // 100
            runs: list[dict[str, float]] = [
                json.loads(started(root, "delays", kind, server.url, count, most).communicate()[0])
                for _ in range(repetitions)
            ]
            rows += [shown(kind, what, statistics.median(run[what] for run in runs)) for what in runs[0]]
            if options.against:
                both = root, options.against
                ratios = [compared(both, kind, count // BURST) for _ in range(repetitions)]
                rows.append(shown(kind, "plain / before", statistics.median(ratios)))
        if options.libraries:
            rows += peers.lateness(options.libraries, server.url, count // 10, repetitions)
            rows += peers.rates(options.libraries, server, count, repetitions)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
