"""Measure what a put costs an endpoint of FastAPI while 64 requests are on their way.

Usage: python -m tests.benchmarks.web [--quick] [--against DIRECTORY] [--freeze] [--loop NAME] [--http NAME]
                                      [--bursts N] [--json FILE]

One uvicorn process has an endpoint that does nothing, one that waits for the next turn of the event loop, one that does
LPUSH by redis-py (*by hand*), and one that puts into a queue of each kind. All of them read a JSON body of 100 bytes
into a model and return a small dict; the messages have 100 bytes. This process keeps 64 connections busy: each sends
its next request when it has its reply.

- "/ nothing": requests a second, as a ratio to those of the endpoint that does nothing.
- "/ by hand": the same as a ratio to the endpoint with LPUSH.
- "µs": processor time of the uvicorn process for a request, the least.
- "garbage": the part of it in which Python looks for garbage, on average. An endpoint that never waits makes none: its
  request has ended before the next one begins.
- With `--freeze`, the application calls `gc.freeze()` when it has started.
- With `--against`, a second uvicorn process uses the package of another checkout, and takes its turns, too.

What is compared takes turns, burst by burst, and the fastest burst of each counts, as in tests/benchmarks/control.py.
The bursts are long, since only now and then Python looks through all objects of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.benchmarks.cpu import MESSAGE, opened

CONNECTIONS: Final = 64
BURST: Final = 4_096
"""Requests until it is the turn of another endpoint."""

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue")
ENDPOINTS: Final = ("nothing", "a turn", "by hand", *KINDS)
GOALS: Final = {"nothing": 0.85, "by hand": 1.0}
"""The least ratios of a put."""

LOOPS: Final = tuple(name for name in ("asyncio", "uvloop") if importlib.util.find_spec(name))
BODY: Final = json.dumps({"note": "x" * 88}).encode()
REPLY: Final = b'{"accepted":true}'


class Burst(NamedTuple):
    """What a burst of requests has shown.

    Attributes:
        rate: Requests a second.
        microseconds: Processor time of the uvicorn process for a request.
        garbage: The part of it in which Python looked for garbage.
    """

    rate: float
    microseconds: float
    garbage: float


def path_of(name: str) -> str:
    """Return the path of an endpoint."""
    return "/" + name.replace(" ", "-")


def serve(loop: str, http: str, url: str, freeze: bool) -> None:
    """Be the uvicorn process: print the port, and run until SIGTERM."""
    import redis.asyncio
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Order(BaseModel):
        note: str

    collecting = {"since": 0.0, "seconds": 0.0}

    def note(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            collecting["since"] = time.perf_counter()
        else:
            collecting["seconds"] += time.perf_counter() - collecting["since"]

    async def spent() -> list[float]:
        return [time.process_time(), collecting["seconds"]]

    # An application for each endpoint: FastAPI tries the routes of one in turn, so the last one would be the slowest.
    applications: dict[str, FastAPI] = {}

    def add(name: str, send: Callable[[], Awaitable[Any]] | None) -> None:
        async def nothing(order: Order) -> dict[str, bool]:
            return {"accepted": True}

        async def wait(order: Order) -> dict[str, bool]:
            assert send is not None
            await send()
            return {"accepted": True}

        endpoint = nothing if send is None else wait
        endpoint.__annotations__ = {"order": Order}  # FastAPI cannot find a local class by its name
        application = applications[path_of(name)] = FastAPI(openapi_url=None, lifespan=lifespan)
        application.post(path_of(name))(endpoint)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(redis.asyncio.Redis.from_url(url))
            add("by hand", functools.partial(client.lpush, f"by-hand-{os.getpid()}", MESSAGE))
            for kind in KINDS:
                queue, item = await stack.enter_async_context(opened(kind, url, f"web-{kind}-{os.getpid()}"))
                await queue.create()
                add(kind, functools.partial(queue.put, item))
            gc.callbacks.append(note)
            if freeze:
                gc.freeze()
            print(listening.getsockname()[1], flush=True)
            yield

    add("nothing", None)
    add("a turn", functools.partial(asyncio.sleep, 0))
    first = applications[path_of("nothing")]
    first.get("/spent")(spent)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await applications.get(scope.get("path"), first)(scope, receive, send)

    # Told that it is TCP, asyncio sets TCP_NODELAY; without, each reply would wait for 40 ms.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(CONNECTIONS)
    settings: dict[str, Any] = {"loop": loop, "http": http}
    uvicorn.Server(uvicorn.Config(application, log_level="warning", access_log=False, **settings)).run([listening])


class Load:
    """The connections to a uvicorn process, which are busy with one burst at a time."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.done: asyncio.Future[None] | None = None
        self.request = b""
        self.unsent = self.unanswered = 0

    async def connect(self, port: int) -> None:
        """Open the connections."""
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            self.connections.append((await loop.create_connection(lambda: Connection(self), "127.0.0.1", port))[1])

    async def run(self, name: str, count: int) -> float:
        """Send so many requests to an endpoint; returns the seconds until all were answered."""
        head = f"POST {path_of(name)} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        self.unsent = self.unanswered = count
        self.done = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        for connection in self.connections:
            connection.next()
        await self.done
        return time.perf_counter() - begin


class Connection(asyncio.Protocol):
    """A keep-alive connection, which sends a request when the one before is answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def next(self) -> None:
        """Send a request, if there is one to send."""
        if self._load.unsent:
            self._load.unsent -= 1
            self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        load = self._load
        self._received += data
        if not self._received.endswith(REPLY):  # the head alone, or an error
            if not self._received.startswith(b"HTTP/1.1 200"):
                self.connection_lost(RuntimeError(self._received.decode()))
            return
        self._received = b""
        self.next()
        load.unanswered -= 1
        if not load.unanswered and load.done is not None:
            load.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._load.done is not None and not self._load.done.done():
            self._load.done.set_exception(exc or RuntimeError("uvicorn closed a connection"))


async def spent(port: int) -> list[float]:
    """Return the seconds of processor time that the uvicorn process has used, and those for garbage."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /spent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    seconds: list[float] = json.loads(reply.rpartition(b"\n")[2])
    return seconds


async def burst(load: Load, port: int, name: str) -> Burst:
    """Measure one burst."""
    before = await spent(port)
    seconds = await load.run(name, BURST)
    used = [1e6 * (now - then) / BURST for now, then in zip(await spent(port), before, strict=True)]
    return Burst(BURST / seconds, *used)


@contextlib.contextmanager
def started(root: Path, url: str, options: list[str]) -> Iterator[int]:
    """Start a uvicorn process with the package of a checkout; yields its port."""
    here = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (root, here, *filter(None, [os.environ.get("PYTHONPATH")]))))
    command = [sys.executable, __file__, "--url", url, *options]
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(command, env=environment, cwd=root, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def measure(ports: list[int], bursts: int) -> list[dict[str, Burst]]:
    """Return the best of each endpoint, for each of the uvicorn processes."""
    loads = [Load() for _ in ports]
    done: list[dict[str, list[Burst]]] = [{name: [] for name in ENDPOINTS} for _ in ports]
    for load, port in zip(loads, ports, strict=True):
        await load.connect(port)
        for name in ENDPOINTS:
            await load.run(name, CONNECTIONS * 8)  # what only the first requests need
    turns = [(place, name) for name in ENDPOINTS for place in range(len(ports))]
    for _ in range(bursts):
        turns.reverse()
        for place, name in turns:
            done[place][name].append(await burst(loads[place], ports[place], name))
    return [{name: best(found) for name, found in one.items()} for one in done]


def best(bursts: list[Burst]) -> Burst:
    """Return the highest rate and the least processor time. Looking for garbage comes at times: of that, the mean."""
    rates, microseconds, garbage = zip(*bursts, strict=True)
    return Burst(max(rates), min(microseconds), statistics.mean(garbage))


def shown(loop: str, found: list[dict[str, Burst]]) -> list[dict[str, Any]]:
    """Print the figures on an event loop, and return them as rows. Those of another checkout come second."""
    ours, rows = found[0], []
    for name, one in ours.items():
        line = f"{loop:9}{name:12}{one.rate:8,.0f}/s{one.microseconds:6.0f} µs, garbage{one.garbage:4.0f} µs"
        row: dict[str, Any] = {"loop": loop, "what": name, **one._asdict()}
        for other in GOALS:
            row[other], goal = one.rate / ours[other].rate, GOALS[other]
            line += f", {row[other]:.3f} / {other}"
            if name in KINDS:
                line += f" (goal {goal:g}: {'reached' if row[other] >= goal else 'missed'})"
        if len(found) > 1:
            theirs = found[1][name]
            line += f", {one.rate / theirs.rate:.3f} / against ({one.microseconds - theirs.microseconds:+.1f} µs)"
        print(line, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.web", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few bursts")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="another checkout, which takes its turns")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() at the start of the application")
    parser.add_argument("--loop", choices=LOOPS, help="uvicorn's event loop; by default all that are installed")
    parser.add_argument("--http", default="auto", help="uvicorn's parser: h11, or httptools if it is installed")
    parser.add_argument("--bursts", type=int, metavar="N", help="10 by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    for hidden in ("--serve", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.http, options.url, options.freeze)
        return
    import apressure
    from apressure.embedded import EmbeddedServer

    roots = [Path(apressure.__file__).parents[1], *([options.against.absolute()] if options.against else [])]
    bursts = options.bursts or (2 if options.quick else 10)
    rows = []
    for loop in [options.loop] if options.loop else LOOPS:
        how = ["--serve", loop, "--http", options.http, *(["--freeze"] if options.freeze else [])]
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(EmbeddedServer(tcp=True))
            ports = [stack.enter_context(started(root, server.url, how)) for root in roots]
            rows += shown(loop, asyncio.run(measure(ports, bursts)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
