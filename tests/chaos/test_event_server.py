"""SIGKILL of okq servers and of their clients: nothing that was acknowledged is lost, and leases hold."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure.embedded import EmbeddedServer
from tests.chaos import event_server_workers as workers
from tests.chaos.support import PATIENCE, Recorder, Row, often

KILLS = often(25, 10)
"""For each server and each side: 100 in all, 1,000 in the long form."""
LEASE = 1.5

Spawn = Callable[..., Any]


@pytest.mark.parametrize("side", ["server", "consumer"])
@pytest.mark.leaves_keys("apressure:*")
def test_kills(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path, side: str
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.event_server_workers"])
    stop = context.Event()
    ports = [free_port(), free_port()]
    running: list[Any] = []

    def spawn(target: Callable[..., None], *arguments: Any) -> Any:
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        running.append(process)
        return process

    def again(number: int) -> Any:
        if side == "server":
            return spawn(workers.serve, url, ports[number])
        return spawn(workers.consume, ports, str(tmp_path / f"consumer-{number}-{time.monotonic()}"), LEASE)

    try:
        servers = [spawn(workers.serve, url, port) for port in ports]
        producers = [spawn(workers.produce, ports, str(tmp_path / f"producer-{n}"), f"p{n}", stop) for n in range(2)]
        consumers = [spawn(workers.consume, ports, str(tmp_path / f"consumer-{n}"), LEASE) for n in range(3)]
        victims = servers if side == "server" else consumers
        assert next(workers.clients(ports)).ping()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.02, 0.25))
            number = rng.randrange(len(victims))
            victims[number].kill()
            victims[number].join(PATIENCE)
            victims[number] = again(number)
        stop.set()
        for producer in producers:
            producer.join(PATIENCE)
            assert producer.exitcode == 0
        client = next(workers.clients(ports))
        drained(client)
        assert client.execute_command("QSTATUS", workers.QUEUE) == [[workers.QUEUE.encode(), 0, 0, 0]]
    finally:
        stop.set()
        for process in running:
            process.kill()
            process.join(PATIENCE)
    row = account(tmp_path)
    row.tried = KILLS
    cell = "server killed: okq server" if side == "server" else "killed consumer: of an okq server"
    recorder.add(cell, server.software, row)
    assert row.clean(), row
    assert row.acknowledged > KILLS, row


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


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port
