"""Measure the okq server, as ratios to LPUSH by redis-py in the same run.

Usage: python -m tests.benchmarks.events [--quick] [--repetitions N] [--server valkey|redis] [--json FILE]

One client is redis-py, which waits for each reply. 20 and 200 clients are sockets of this process, so on two cores the
clients, the server and Redis compete. The memory of an idle connection is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hiredis
import psutil
import redis

from apressure.embedded import EmbeddedServer
from tests.benchmarks import show
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.files import machine
from tests.servers import SERVERS, binary_of

CONTENTS = b"x" * 100
DEPTH = 50
"""Commands in a pipeline."""

GOALS = {
    ("push", 1): 0.4, ("pop and ack", 1): 0.2,
}  # fmt: skip
RATES = {
    ("push", 20): 20_000, ("pop and ack", 20): 10_000, ("push, pipelined", 20): 60_000,
}  # fmt: skip
"""Goals in events a second, on two cores."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.events", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repetitions", type=int, metavar="N", help="5 by default")
    parser.add_argument("--server", choices=SERVERS, default="valkey", help="what the events are in")
    parser.add_argument("--libraries", help=argparse.SUPPRESS)  # the session gives it to all benchmarks
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    repetitions = options.repetitions or (1 if options.quick else 5)
    count = 1_000 if options.quick else 20_000
    idle = 500 if options.quick else 10_000
    storage = EmbeddedServer(binary=binary_of(options.server), tcp=True)
    storage.start()
    try:
        with serving(storage) as (process, port):
            turns = [turn(storage, port, count) for _ in range(repetitions)]
            figures = [
                figure(
                    options.server, f"{case}, {clients} clients", "redis-py LPUSH", "asyncio", RATE,
                    GOALS.get((case, clients), RATES.get((case, clients), 0) / turns[0]["LPUSH", 1]),
                    [(each[case, clients], each["LPUSH", 1]) for each in turns],
                )
                for case, clients in turns[0]
                if case != "LPUSH"
            ]  # fmt: skip
            for one in figures:
                print(show.line(one))
            used = asyncio.run(memory(process, port, idle))
            print(f"  an idle connection takes {used:,.0f} bytes of the server ({idle:,} connections)")
    finally:
        storage.stop()
    if options.json:
        write(options.json, repetitions, figures, used)


def write(file: Path, repetitions: int, figures: list[Figure], used: float) -> None:
    """Write the results of a run."""
    results = {
        "title": "events: the okq server / redis-py LPUSH",
        "machine": machine(),
        "repetitions": repetitions,
        "figures": [dataclasses.asdict(one) for one in figures],
        "left_out": [],
        "bytes_of_an_idle_connection": round(used),
    }
    file.write_text(json.dumps(results, indent=2) + "\n")


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


def turn(storage: EmbeddedServer, port: int, count: int) -> dict[tuple[str, int], float]:
    """Measure everything once: events a second."""
    rates = {("LPUSH", 1): plainly(storage, count)}
    rates["push", 1], rates["pop and ack", 1] = by_redis_py(port, count)
    for clients in (20, 200):
        few = max(1, count * 2 // clients)
        for depth, suffix in ((1, ""), (DEPTH, ", pipelined")):
            each = few if depth == 1 else max(depth, few * 2 // depth * depth)
            rates[f"push{suffix}", clients] = asyncio.run(by_sockets(port, clients, each, depth, push))
            rates[f"pop and ack{suffix}", clients] = asyncio.run(by_sockets(port, clients, each, depth, None))
    rates["push, pipelined", 1] = asyncio.run(by_sockets(port, 1, count, DEPTH, push))
    rates["pop and ack, pipelined", 1] = asyncio.run(by_sockets(port, 1, count, DEPTH, None))
    return rates


def plainly(storage: EmbeddedServer, count: int) -> float:
    """LPUSH by redis-py, one after the other."""
    with redis.Redis.from_url(storage.url) as client:
        client.ping()
        began = time.perf_counter()
        for _ in range(count):
            client.lpush("plain", CONTENTS)
        rate = count / (time.perf_counter() - began)
        client.delete("plain")
    return rate


def by_redis_py(port: int, count: int) -> tuple[float, float]:
    """QLPUSH, then QRPOP and QACK, by redis-py, one after the other."""
    with redis.Redis(port=port) as client:
        client.ping()
        began = time.perf_counter()
        for number in range(count):
            client.execute_command("QLPUSH", "bench", number, CONTENTS)
        pushed = count / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(count):
            event, _ = client.execute_command("QRPOP", "bench")
            client.execute_command("QACK", "bench", event)
        return pushed, count / (time.perf_counter() - began)


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


async def memory(process: psutil.Process, port: int, connections: int) -> float:
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
