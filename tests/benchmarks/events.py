"""Measure the okq server and `EventQueue`, as ratios to LPUSH by redis-py in the same run.

Usage: python -m tests.benchmarks.events [--quick] [--repetitions N] [--server valkey|redis] [--json FILE]
       python -m tests.benchmarks.events --table FILE

One client is redis-py, which waits for each reply; it and LPUSH take turns, some hundred commands at a time. 20 and 200
clients are sockets of this process, so on two cores the clients, the server and Redis compete. The memory of an idle
connection is the server's, and so is the CPU time of a command. --table prints the results of a run as the table of
docs/internals/benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import psutil
import redis

from apressure import EventQueue
from apressure.embedded import EmbeddedServer
from tests.benchmarks import show
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.files import machine
from tests.benchmarks.table import short
from tests.servers import KINDS, CannotRun, binary_of

CONTENTS = b"x" * 100
DEPTH = 50
"""Commands in a pipeline."""

ROUND = 500
"""Commands of one client before LPUSH has its turn again."""

GOALS = {"QLPUSH, 1 client": 0.4, "QRPOP and QACK, 1 client": 0.2}
RATES = {
    "QLPUSH, 20 clients": 20_000, "QRPOP and QACK, 20 clients": 10_000, "QLPUSH, 20 clients, pipelined": 60_000,
    "EventQueue.put_many": 100_000, "EventQueue.consumer": 100_000,
}  # fmt: skip
"""Goals in events a second, on two cores."""

LPUSH = "LPUSH"
Rates = dict[str, float]
"""Events a second, by what is done."""

CPU = "CPU of the server, "
"""Before the name of what one client does: microseconds of an event, not events a second."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.events", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repetitions", type=int, metavar="N", help="5 by default")
    parser.add_argument("--server", choices=KINDS, help="what the events are in; each one by default")
    parser.add_argument("--libraries", help=argparse.SUPPRESS)  # the session gives it to all benchmarks
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the results of a run as a table, and exit")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    repetitions = options.repetitions or (1 if options.quick else 5)
    count, idle = (1_000, 500) if options.quick else (20_000, 10_000)
    figures: list[Figure] = []
    left_out: list[str] = []
    memory: dict[str, float] = {}
    cpu: dict[str, dict[str, float]] = {}
    for kind in [options.server] if options.server else KINDS:
        try:
            storage = EmbeddedServer(binary=binary_of(kind), tcp=True)
        except CannotRun as missing:
            left_out.append(str(missing))
            continue
        with storage:
            found, used, times = measure(storage, repetitions, count, idle)
        print(f"{storage.software} {storage.version}")
        for one in found:
            print(show.line(one))
        for name, microseconds in times.items():
            print(f"  {name}: {microseconds:.1f} µs an event")
        print(f"  an idle connection takes {used:,.0f} bytes of the server ({idle:,} connections)")
        figures += found
        memory[found[0].server] = round(used)
        cpu[found[0].server] = times
    if options.json:
        results = {
            "title": "events / redis-py LPUSH",
            "machine": machine(),
            "repetitions": repetitions,
            "figures": [dataclasses.asdict(one) for one in figures],
            "left_out": left_out,
            "microseconds_of_cpu": cpu,
            "bytes_of_an_idle_connection": memory,
            "idle_connections": idle,
        }
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def measure(
    storage: EmbeddedServer, repetitions: int, count: int, idle: int
) -> tuple[list[Figure], float, dict[str, float]]:
    """Measure everything on one server.

    Returns:
        The rates; the memory of an idle connection, in bytes; the CPU times of commands, in microseconds.
    """
    with serving(storage) as (process, port):
        used = asyncio.run(memory_of(process, port, idle))  # first, while nothing else has used memory
        turns = [turn(storage, process, port, count) for _ in range(repetitions)]
    usual = statistics.median(each[LPUSH] for each in turns)
    loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    figures = [
        figure(
            f"{storage.software} {storage.version}", case, "redis-py LPUSH",
            "asyncio" if case.startswith("EventQueue") else loop, RATE,
            GOALS.get(case, RATES.get(case, 0) / usual), [(each[case], each[LPUSH]) for each in turns],
        )
        for case in turns[0]
        if case != LPUSH and not case.startswith(CPU)
    ]  # fmt: skip
    times = {
        case: round(statistics.median(each[case] for each in turns), 1) for case in turns[0] if case.startswith(CPU)
    }
    return figures, used, times


def table(results: dict[str, Any]) -> str:
    """Return a table with a row for each operation and a column for each server."""
    figures = [Figure(**one) for one in results["figures"]]
    servers = list(dict.fromkeys(one.server for one in figures))
    lines = [f"| events | goal | {' | '.join(servers)} |", f"| --- | --- |{' --- |' * len(servers)}"]
    for case in dict.fromkeys(one.case for one in figures):
        goal = f"≥ {GOALS[case]:g}" if case in GOALS else f"≥ {RATES[case]:,}/s" if case in RATES else ""
        cells = []
        for one in figures:
            if one.case == case:
                reached = one.ours >= RATES[case] if case in RATES else one.reached
                cells.append(f"{one.ours:,.0f}/s = {short(dataclasses.replace(one, reached=reached))}")
        lines.append(f"| {case} | {goal} | {' | '.join(cells)} |")
    times = [results["microseconds_of_cpu"][one] for one in servers]
    lines += [f"| {case} | | {' | '.join(f'{one[case]:.0f} µs' for one in times)} |" for case in times[0]]
    used = " | ".join(f"{results['bytes_of_an_idle_connection'][one]:,} bytes" for one in servers)
    return "\n".join((*lines, f"| an idle connection, of {results['idle_connections']:,} | | {used} |"))


@contextlib.contextmanager
def serving(storage: EmbeddedServer) -> Iterator[tuple[psutil.Process, int]]:
    """Run a server."""
    command = [sys.executable, "-m", "apressure", "events", "serve", "--json", "--listen-addr", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--redis-addr", storage.url, "--max-connections", "20000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), json.loads(process.stdout.readline())["port"]
    finally:
        process.terminate()
        process.communicate()


def turn(storage: EmbeddedServer, process: psutil.Process, port: int, count: int) -> Rates:
    """Measure everything once."""
    rates = by_redis_py(storage, process, port, count)
    for clients in (20, 200, 1):
        few = max(1, count * 2 // clients)
        for depth, suffix in ((1, ""), (DEPTH, ", pipelined")):
            if clients * depth == 1:
                continue  # that is redis-py's turn
            name = f"{clients} client{'s' * (clients > 1)}{suffix}"
            each = few if depth == 1 else max(depth, few * 2 // depth * depth)
            rates[f"QLPUSH, {name}"] = asyncio.run(by_sockets(port, clients, each, depth, push))
            rates[f"QRPOP and QACK, {name}"] = asyncio.run(by_sockets(port, clients, each, depth, None))
    rates["EventQueue.put_many"], rates["EventQueue.consumer"] = asyncio.run(directly(storage, count * 5))
    return rates


async def directly(storage: EmbeddedServer, count: int) -> tuple[float, float]:
    """`EventQueue` without a server between: put_many, then a consumer."""
    async with EventQueue("directly", url=storage.url, codec=None) as queue:
        await queue.create()
        began = time.perf_counter()
        await queue.put_many([CONTENTS] * count)
        put = count / (time.perf_counter() - began)
        await queue.close()
        began = time.perf_counter()
        async with queue.consumer(delete=True) as consumer:
            async for _ in consumer:
                pass
        return put, count / (time.perf_counter() - began)


def by_redis_py(storage: EmbeddedServer, process: psutil.Process, port: int, count: int) -> Rates:
    """LPUSH to Redis, and QLPUSH, QRPOP and QACK to the server, by redis-py, one after the other."""
    seconds = dict.fromkeys((LPUSH, "QLPUSH", "QRPOP", "QACK"), 0.0)
    cpu = dict.fromkeys(("QLPUSH", "QRPOP and QACK"), 0.0)

    def timed(name: str, run: Callable[..., Any], *arguments: bytes | str | int) -> Any:
        began = time.perf_counter()
        reply = run(*arguments)
        seconds[name] += time.perf_counter() - began
        return reply

    with redis.Redis.from_url(storage.url) as plain, redis.Redis(port=port) as client:
        plain.ping()
        client.ping()
        run = client.execute_command
        for first in range(0, count, ROUND):
            numbers = range(first, min(first + ROUND, count))
            for _ in numbers:
                timed(LPUSH, plain.lpush, "plain", CONTENTS)
            with cpu_of(process, cpu, "QLPUSH"):
                for number in numbers:
                    timed("QLPUSH", run, "QLPUSH", "bench", number, CONTENTS)
            with cpu_of(process, cpu, "QRPOP and QACK"):
                for _ in numbers:
                    event, _ = timed("QRPOP", run, "QRPOP", "bench")
                    timed("QACK", run, "QACK", "bench", event)
        plain.delete("plain")
    rates = {LPUSH: count / seconds.pop(LPUSH)}
    rates |= {f"{name}, 1 client": count / taken for name, taken in seconds.items()}
    rates["QRPOP and QACK, 1 client"] = count / (seconds["QRPOP"] + seconds["QACK"])
    return rates | {f"{CPU}{name}, 1 client": taken / count * 1e6 for name, taken in cpu.items()}


@contextlib.contextmanager
def cpu_of(process: psutil.Process, cpu: dict[str, float], name: str) -> Iterator[None]:
    """Add the CPU time of a process during a block."""
    before = process.cpu_times()
    yield
    after = process.cpu_times()
    cpu[name] += after.user + after.system - before.user - before.system


class Client(asyncio.Protocol):
    """One socket: it sends `depth` commands, waits for their replies, and goes on."""

    def __init__(self, name: int, count: int, depth: int, what: Callable[[int, int], bytes] | None) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name, self._left, self._depth, self._what = name, count, depth, what
        self._replies = hiredis.Reader()
        self._awaited = 0
        self._popped: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        assert isinstance(transport, asyncio.Transport)
        self._write = transport.write

    def begin(self) -> None:
        """Send the next commands."""
        if self._popped:
            ids, self._popped = self._popped, []
            self._awaited = len(ids)
            self._write(b"".join(b"*3\r\n$4\r\nQACK\r\n$5\r\nbench\r\n$%d\r\n%b\r\n" % (len(one), one) for one in ids))
            return
        if self._left <= 0:
            self._transport.close()
            self.done.set_result(None)
            return
        self._awaited = self._depth
        self._left -= self._depth
        if self._what is None:
            self._write(b"*2\r\n$5\r\nQRPOP\r\n$5\r\nbench\r\n" * self._depth)
        else:
            self._write(b"".join(self._what(self._name, self._left + number) for number in range(self._depth)))

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                self.done.set_exception(reply)
                return
            if isinstance(reply, list):
                self._popped.append(reply[0])
            self._awaited -= 1
        if not self._awaited:
            self.begin()


def push(name: int, number: int) -> bytes:
    """Return a QLPUSH."""
    event = b"%d-%d" % (name, number)
    return b"*4\r\n$6\r\nQLPUSH\r\n$5\r\nbench\r\n$%d\r\n%b\r\n$100\r\n%b\r\n" % (len(event), event, CONTENTS)


async def by_sockets(
    port: int, clients: int, count: int, depth: int, what: Callable[[int, int], bytes] | None
) -> float:
    """Each of the clients pushes, or pops and acknowledges, `count` events."""
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda name=name: Client(name, count, depth, what), "127.0.0.1", port))[1]
        for name in range(clients)
    ]
    began = time.perf_counter()
    for one in opened:
        one.begin()
    await asyncio.gather(*(one.done for one in opened))
    return clients * count / (time.perf_counter() - began)


async def memory_of(process: psutil.Process, port: int, connections: int) -> float:
    """Return how many bytes the server takes for an idle connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = process.memory_info().rss
    opened = []
    for _ in range(connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        await reader.readline()
        opened.append(writer)
    used = process.memory_info().rss - before
    for writer in opened:
        writer.close()
    return used / connections


if __name__ == "__main__":
    main()
