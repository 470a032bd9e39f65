"""Clients of two versions of apressure work together on one queue: nothing is lost, and nobody is stuck.

Usage: python -m tests.together --old PYTHON [--kind KIND]... [--items N] [--kills N]

`nox -s together -- REVISION` installs an older revision into an environment of its own, and runs this with it. For each
kind of queue, two producers and two consumers of each version share a queue. Consumers fail some items, and processes
are killed. Each item has to be acknowledged, and each process has to end when the queue is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apressure
from apressure.embedded import EmbeddedServer

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")
PATIENCE: Final = 90.0
"""Seconds after which clients that have not ended are stuck."""

LEASE: Final = 1.0
BOUND: Final = 50

# What each client does, by the part of the interface that both versions have.
PROGRAM: Final = """
import asyncio, json, sys
import apressure

kind, where, role, *numbers = sys.argv[1:]
options = {"codec": "json"} if kind == "FileQueue" else {"codec": "json", "url": where}
name = where if kind == "FileQueue" else "together"


def told(number):
    print(number, flush=True)


async def put(queue, first, end):
    for number in range(first, end):
        if number % 7 == 0:
            await queue.put({"number": number}, delay=0.05)
        else:
            await queue.put({"number": number})
        told(number)


async def consume(queue):
    while True:
        try:
            delivery = await queue.receive(lease=1.0)
        except apressure.exceptions.QueueClosedError:
            return
        number = delivery.item["number"]
        if number % 11 == 0 and delivery.attempts == 1:
            await delivery.nack("not yet")
            continue
        await asyncio.sleep(0.01)  # so that no version has done everything before another one has started
        told(-number - 1)  # a kill between the acknowledgement and the next line leaves this
        try:
            await delivery.ack()
        except apressure.exceptions.LeaseLostError:
            continue
        told(number)


async def main():
    async with getattr(apressure, kind)(name, **options) as queue:
        await (consume(queue) if role == "consume" else put(queue, *map(int, numbers)))

asyncio.run(main())
"""


class Outcome(NamedTuple):
    """What became of the items of a queue.

    Attributes:
        kind: The kind of queue.
        put: How many items producers were told are in the queue.
        lost: How many of these nobody has acknowledged, and no consumer that was killed was about to.
        twice: How many were acknowledged more than once: the reply to a killed process was lost.
        by: How many were acknowledged by consumers of each version.
        seconds: How long it took.
    """

    kind: str
    put: int
    lost: int
    twice: int
    by: dict[str, int]
    seconds: float


class Process:
    """A client. What it has told is read from a file, also when it was killed.

    Args:
        python: The Python of its version.
        arguments: Those of `PROGRAM`.
    """

    def __init__(self, python: Path, *arguments: str) -> None:
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # In a directory without sources: an environment has its own package.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if python == Path(sys.executable):
            environment["PYTHONPATH"] = str(Path(apressure.__file__).parents[1])
        self._process = subprocess.Popen(
            [str(python), "-c", PROGRAM, *arguments], cwd=tempfile.gettempdir(), env=environment,
            stdout=self._told, stderr=self._errors, text=True,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def numbers(self) -> list[int]:
        """Return the numbers of the items that it has put, or acknowledged."""
        return [number for number in self._lines() if number >= 0]

    def begun(self) -> set[int]:
        """Return the numbers of the items that it has acknowledged, or was about to acknowledge when it ended."""
        return {-number - 1 for number in self._lines() if number < 0}

    def _lines(self) -> list[int]:
        self._told.seek(0)
        return [int(line) for line in self._told.read().splitlines(keepends=True) if line.endswith("\n")]

    def check(self) -> None:
        """Wait for its end.

        Raises:
            RuntimeError: It is stuck, or has failed.
        """
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise RuntimeError("a client is stuck") from None
        if code:
            self._errors.seek(0)
            raise RuntimeError(f"a client failed: {self._errors.read()[-2000:]}")

    def close(self) -> None:
        """Forget it."""
        if self.running:
            self.kill()
        self._told.close()
        self._errors.close()


async def share(kind: str, where: str, pythons: dict[str, Path], items: int, kills: int) -> Outcome:
    """Have clients of all versions share a queue."""
    began = time.monotonic()
    options: dict[str, Any] = {} if kind == "FileQueue" else {"url": where}
    name = where if kind == "FileQueue" else "together"
    left: list[int] = []
    with contextlib.ExitStack() as processes:

        def started(version: str, *arguments: str) -> Process:
            process = Process(pythons[version], kind, where, *arguments)
            processes.callback(process.close)
            return process

        async with getattr(apressure, kind)(name, codec="json", **options) as queue:
            await queue.create(bound=BOUND)
            versions = [version for version in pythons for _ in range(2)]
            part = items // len(versions)
            producers = [
                started(version, "put", str(place * part), str((place + 1) * part))
                for place, version in enumerate(versions)
            ]
            consumers = [(version, started(version, "consume")) for version in versions]
            everyone = [*consumers]
            for _ in range(kills):
                await asyncio.sleep(random.uniform(0.3, 1.5))
                place = random.randrange(len(consumers))
                version, victim = consumers[place]
                victim.kill()
                consumers[place] = (version, started(version, "consume"))
                everyone.append(consumers[place])
            for producer in producers:
                await asyncio.to_thread(producer.check)
            await queue.close()
            if kills:
                consumers.pop(random.randrange(len(consumers)))[1].kill()
            for _, consumer in consumers:
                await asyncio.to_thread(consumer.check)
            # `receive` of a closed queue does not wait for what a killed consumer has in flight.
            async with asyncio.timeout(PATIENCE), queue.consumer(lease=LEASE) as rest:
                async for item in rest:
                    left.append(item["number"])
            put = {number for producer in producers for number in producer.numbers()}
            acknowledged = Counter(left)
            acknowledged.update(number for _, one in everyone for number in one.numbers())
            by = {version: sum(len(one.numbers()) for v, one in everyone if v == version) for version in pythons}
            begun: set[int] = set().union(*(one.begun() for _, one in everyone))
            await queue.delete(timeout=PATIENCE)
    lost = len(put - acknowledged.keys() - begun)
    twice = sum(count > 1 for count in acknowledged.values())
    return Outcome(kind, len(put), lost, twice, by, time.monotonic() - began)


@contextlib.contextmanager
def place_of(kind: str) -> Iterator[str]:
    """Start what a kind of queue needs; yields the URL, or the directory."""
    if kind == "FileQueue":
        with tempfile.TemporaryDirectory() as directory:
            yield str(Path(directory) / "together")
    else:
        with EmbeddedServer(tcp=True) as server:
            yield server.url


def main() -> int:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.together", description=__doc__)
    parser.add_argument(
        "--old", type=Path, required=True, metavar="PYTHON", help="of an environment with the other one"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of queue")
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=10, help="how many consumers are killed")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    pythons = {"old": options.old, "new": Path(sys.executable)}
    failed = False
    for kind in options.kind or KINDS:
        with place_of(kind) as where:
            outcome = asyncio.run(share(kind, where, pythons, options.items, options.kills))
        failed |= outcome.lost > 0 or not all(outcome.by.values())
        if options.json:
            print(json.dumps(outcome._asdict()), flush=True)
        else:
            by = ", ".join(f"{count:,} by the {version} version" for version, count in outcome.by.items())
            print(f"{kind:12}{outcome.put:,} put, {outcome.lost:,} lost, {outcome.twice:,} twice; {by}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
