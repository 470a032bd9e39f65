"""SIGKILL of okq servers, of their clients and of their Redis: nothing that was acknowledged is lost, leases hold."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from apressure import Durability, EventQueue
from apressure.embedded import EmbeddedServer
from tests import processes
from tests.chaos import event_server_workers as workers
from tests.chaos.support import PATIENCE, Recorder, Row, often
from tests.processes import free_port
from tests.servers import SERVERS, admin
from tests.topologies import sentinel, until

KILLS = often(25, 10)
"""For each server and each side: 100 in all, 1,000 in the long form."""
LEASE = 1.5


class Processes:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.processes", "tests.chaos.event_server_workers"])
        self.stop = self._context.Event()
        self.running: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for process in self.running:
            process.kill()
            process.join(PATIENCE)

    def spawn(self, target: Callable[..., None], *arguments: Any) -> Any:
        process = processes.process(self._context, target, *arguments)
        self.running.append(process)
        return process


@pytest.mark.parametrize("side", ["server", "consumer"])
@pytest.mark.leaves_keys("apressure:*")
def test_kills(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path, side: str
) -> None:
    ports = [free_port(), free_port()]
    with Processes() as processes:
        spawn = processes.spawn

        def again(number: int) -> Any:
            if side == "server":
                return spawn(workers.serve, url, ports[number])
            return spawn(workers.consume, ports, str(tmp_path / f"consumer-{number}-{time.monotonic()}"), LEASE)

        servers = [spawn(workers.serve, url, port) for port in ports]
        producers = [
            spawn(workers.produce, ports, str(tmp_path / f"producer-{n}"), f"p{n}", processes.stop) for n in range(2)
        ]
        consumers = [spawn(workers.consume, ports, str(tmp_path / f"consumer-{n}"), LEASE) for n in range(3)]
        victims = servers if side == "server" else consumers
        assert next(workers.clients(ports)).ping()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.02, 0.25))
            number = rng.randrange(len(victims))
            victims[number].kill()
            victims[number].join(PATIENCE)
            victims[number] = again(number)
        finish(processes, producers, ports)
    row = account(tmp_path)
    row.tried = KILLS
    cell = "server killed: okq server" if side == "server" else "killed consumer: of an okq server"
    recorder.add(cell, server.software, row)
    assert row.clean(), row
    assert row.acknowledged > KILLS, row


@pytest.mark.parametrize("kind", SERVERS)
def test_sentinel_failovers(kind: str, rng: random.Random, recorder: Recorder, tmp_path: Path) -> None:
    """Sentinels replace the Redis of two okq servers, which answer when all replicas have what a command wrote."""
    failovers, ports = often(1, 4), [free_port(), free_port()]
    with sentinel(kind, sentinels=3, replicas=2) as watched, Processes() as processes:
        for port in ports:
            processes.spawn(workers.serve, watched.url, port, Durability("all", timeout=0.5))
        producers = [
            processes.spawn(workers.produce, ports, str(tmp_path / f"producer-{n}"), f"p{n}", processes.stop)
            for n in range(2)
        ]
        for n in range(3):
            processes.spawn(workers.consume, ports, str(tmp_path / f"consumer-{n}"), LEASE)
        for _ in range(failovers):
            before = len(list(pushed(tmp_path)))
            until(lambda: len(list(pushed(tmp_path))) > before + 20, "clients are at work")  # noqa: B023
            time.sleep(rng.uniform(0, 0.3))
            watched.failover()
        before = len(list(pushed(tmp_path)))
        until(lambda: len(list(pushed(tmp_path))) > before + 20, "clients go on", PATIENCE)
        finish(processes, producers, ports)
        software = watched.software
    row = account(tmp_path)
    row.tried = failovers
    recorder.add("Sentinel failover: okq server, WAIT for all", software, row)
    assert row.clean(), row
    assert row.acknowledged > 20, row


@pytest.mark.leaves_keys("apressure:*")
async def test_eight_putting_and_eight_consuming_processes_never_exceed_the_bound(
    server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    bound, count, port = 5, often(60, 20), free_port()
    async with EventQueue(workers.QUEUE, url=url) as queue:
        await queue.create(bound=bound)
    with Processes() as processes, admin(server) as db:
        processes.spawn(workers.serve, url, port)
        assert next(workers.clients([port])).ping()
        putting = [processes.spawn(workers.put, port, f"p{n}", count) for n in range(8)]
        until(lambda: db.llen("queue:{chaos}") == bound, "the queue is full", PATIENCE)
        taking = [processes.spawn(workers.take, port, str(tmp_path / str(n)), count) for n in range(8)]
        most, deadline = 0, time.monotonic() + 4 * PATIENCE
        while any(one.is_alive() for one in taking) and time.monotonic() < deadline:
            with db.pipeline(transaction=False) as pipe:
                for _ in range(50):
                    pipe.llen("queue:{chaos}")
                most = max(most, *pipe.execute())
        assert [one.exitcode for one in taking] == [0] * 8
        for one in putting:
            one.join(PATIENCE)
        assert [one.exitcode for one in putting] == [0] * 8
    assert most == bound
    taken = [event for note in tmp_path.iterdir() for event in note.read_text().split()]
    assert sorted(taken) == sorted(f"p{n}-{number}" for n in range(8) for number in range(count))
    async with EventQueue(workers.QUEUE, url=url) as queue:
        await queue.delete()


def finish(processes: Processes, producers: list[Any], ports: list[int]) -> None:
    """Have the producers stop, and wait until the consumers have acknowledged everything."""
    processes.stop.set()
    for producer in producers:
        producer.join(2 * PATIENCE)
        assert producer.exitcode == 0
    client = next(workers.clients(ports))
    drained(client)
    assert client.execute_command("QSTATUS", workers.QUEUE) == [[workers.QUEUE.encode(), 0, 0, 0]]


def pushed(notes: Path) -> Iterator[str]:
    """Give the pushes that were acknowledged."""
    for note in notes.iterdir():
        yield from (line for line in note.read_text().splitlines() if line.startswith("pushed "))


def drained(client: redis.Redis) -> None:
    """Wait until the consumers have acknowledged everything."""
    until = time.monotonic() + PATIENCE
    found: Any = None
    while time.monotonic() < until:
        found = client.execute_command("QSTATUS", workers.QUEUE)
        if found[0][1] == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"events are left: {found}")


def account(notes: Path) -> Row:
    """Settle what all processes have noted."""
    pushed: set[str] = set()
    acknowledged: dict[str, float] = {}
    pops: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for note in notes.iterdir():
        for line in note.read_text().splitlines():
            what, event, *times = line.split()
            if what == "pushed":
                pushed.add(event)
            elif what == "acked":
                acknowledged[event] = float(times[0])
            else:
                pops[event].append((float(times[0]), float(times[1])))
    doubled = 0
    for event, found in pops.items():
        found.sort()
        for (asked, _), (_, told) in itertools.pairwise(found):
            doubled += told < asked + LEASE  # its first lease had begun after it was asked for
        doubled += sum(asked > acknowledged.get(event, float("inf")) for asked, _ in found)
    return Row(acknowledged=len(pushed), lost=len(pushed - pops.keys()), doubled=doubled)
