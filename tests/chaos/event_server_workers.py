"""Processes of the okq server's chaos: servers, and clients that note in a file what they were told.

Each line of a note is one `os.write`, so that what a killed process has noted is there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import redis

from apressure import Durability
from apressure.events.server.server import EventServer
from apressure.events.server.settings import Address, ServerSettings
from tests.chaos.support import PATIENCE

QUEUE = "chaos"

Undecided = (redis.ConnectionError, redis.TimeoutError, OSError)
"""Errors that say nothing about what has happened."""


def is_unsure(error: redis.ResponseError) -> bool:
    """Whether a server that has lost its Redis could not say either what has happened."""
    return any(words in str(error) for words in ("cannot reach", "carried out", "could not be reached"))


def serve(url: str, port: int, durability: Durability | None = None) -> None:
    """Run a server until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = ServerSettings(listen=Address("127.0.0.1", port), url=url, durability=durability)
    asyncio.run(EventServer(settings).run())


def clients(ports: list[int]) -> Iterator[redis.Redis]:
    """Give connections, one after the other: to any server that is up."""
    while True:
        try:
            client = redis.Redis(
                port=random.choice(ports), single_connection_client=True, socket_timeout=30, retry=None, protocol=2
            )
            client.ping()
        except (redis.RedisError, OSError):
            time.sleep(0.02)
            continue
        yield client


def produce(ports: list[int], note: str, name: str, stop: Any) -> None:
    """Push events with fresh ids, and note each one that was acknowledged."""
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    numbers = itertools.count()
    for client in clients(ports):
        try:
            while not stop.is_set():
                event = f"{name}-{next(numbers)}"
                client.execute_command("QLPUSH", QUEUE, event, "x")
                os.write(fd, f"pushed {event}\n".encode())
        except Undecided:
            continue  # that event is in the queue or not
        except redis.ResponseError as error:
            if is_unsure(error):
                continue
            raise
        return


def consume(ports: list[int], note: str, lease: float) -> None:
    """Pop and acknowledge events until it is killed; note when each was popped, and whether it was acknowledged."""
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for client in clients(ports):
        try:
            while True:
                asked = time.monotonic()
                found: Any = client.execute_command("QRPOP", QUEUE, "EX", lease, "COUNT", random.choice((1, 5)))
                for event, _ in found:
                    os.write(fd, f"popped {event.decode()} {asked} {time.monotonic()}\n".encode())
                if not found:
                    time.sleep(0.005)
                    continue
                time.sleep(random.choice((0, 0, 0.002)))
                ids = [event for event, _ in found]
                if client.execute_command("QACK", QUEUE, *ids) == len(ids):
                    for one in ids:
                        os.write(fd, f"acked {one.decode()} {time.monotonic()}\n".encode())
        except Undecided:
            continue
        except redis.ResponseError as error:
            if not is_unsure(error):
                raise


def put(port: int, name: str, count: int) -> None:
    """Push so many events, and wait for room."""
    with redis.Redis(port=port, socket_timeout=PATIENCE) as client:
        for number in range(count):
            client.execute_command("QLPUSH", QUEUE, f"{name}-{number}", "x")


def take(port: int, note: str, count: int) -> None:
    """Pop and acknowledge so many events, and note each one."""
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with redis.Redis(port=port, socket_timeout=2 * PATIENCE) as client:
        for _ in range(count):
            popped: Any = client.execute_command("QRPOP", QUEUE, "EX", 600, "WAIT", PATIENCE)
            os.write(fd, popped[0] + b"\n")
            assert client.execute_command("QACK", QUEUE, popped[0]) == 1
