"""The queue `jobs`, seen by Spark's steps, by plain commands, and by an asyncio client."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from apressure import AsyncQueue
from apressure.connection.wire.blocking import Blocking
from apressure.spark.engine.keys import SparkKeys
from apressure.spark.engine.sink_steps import SinkSteps
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.options import Options

GROUP = "g"


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def connect(url: str, **options: str) -> Blocking:
    return Blocking(Options.of({"url": url, "queue": "jobs", **options}).settings())


@dataclasses.dataclass
class Jobs:
    """A queue, seen by Spark's steps, by plain commands, and by an asyncio client."""

    url: str
    plain: redis.Redis
    server: Blocking
    name: str = "jobs"

    def __post_init__(self) -> None:
        self.source = SourceSteps(self.server, self.name, GROUP)
        self.sink = SinkSteps(self.server, self.name)
        self.keys: SparkKeys = self.source.keys

    def put(self, messages: list[bytes]) -> None:
        async def put() -> None:
            async with AsyncQueue(self.name, url=self.url) as queue:
                await queue.put_many(messages, timeout=5)

        asyncio.run(put())

    def begin(self, messages: list[bytes]) -> int:
        """Put messages, and return the epoch of a query that begins to read."""
        self.put(messages)
        return self.source.begin_epoch()[0]

    def statistics(self) -> list[int]:
        return [int(value or 0) for value in self.plain.mget(self.keys.queue.statistics)]

    def waiting(self) -> list[bytes]:
        return self.plain.lrange(self.keys.queue.messages, 0, -1)[::-1]

    def batch(self, number: int) -> list[bytes]:
        return self.plain.lrange(self.keys.batch(GROUP, number), 0, -1)[::-1]

    def drain(self, epoch: int, start: int, most: int) -> list[int]:
        """Seal batches until there is nothing more."""
        sealed = []
        while isinstance(answer := seal(self.source, epoch, start, most), int):
            sealed.append(answer)
            start = answer
        assert answer == "empty"
        return sealed


@contextmanager
def connected(url: str, **options: str) -> Iterator[SourceSteps]:
    """The steps of a queue `jobs` that exists, over a connection with these options."""
    server = connect(url, **options)
    steps = SourceSteps(server, "jobs", GROUP)
    steps.create(0)
    yield steps
    server.close()


def seal(steps: SourceSteps, epoch: int, start: int, most: int, **more: Any) -> Any:
    while (answer := steps.seal(epoch, start, most, **more)) == "more":
        pass
    return answer


def stage(jobs: Jobs, token: str, messages: list[bytes], write: str = "w") -> tuple[str, int, int]:
    key = jobs.keys.part(write, token)
    jobs.plain.lpush(key, *messages)
    jobs.plain.pexpire(key, 60_000)
    return token, len(messages), sum(map(len, messages))


def put_parts(jobs: Jobs, batch: int, todo: str | None, remember: bool = True) -> None:
    while todo:
        answer = jobs.sink.put_part("w", batch, todo, remember)
        assert isinstance(answer, str)
        todo = answer
