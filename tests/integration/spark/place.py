"""A queue, seen by Spark's steps, by plain commands, and by an asyncio client."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import redis

from apressure import (
    AsyncQueue,
)
from apressure.spark.steps import Steps


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


@dataclasses.dataclass
class Place:
    """A queue, seen by Spark's steps, by plain commands, and by an asyncio client."""

    url: str
    plain: redis.Redis
    steps: Steps

    def put(self, messages: list[bytes], name: str = "jobs") -> None:
        async def put() -> None:
            async with AsyncQueue(name, url=self.url) as queue:
                await queue.put_many(messages, timeout=5)

        asyncio.run(put())

    def statistics(self) -> list[int]:
        return [int(value or 0) for value in self.plain.mget(self.steps.keys.queue.statistics)]

    def waiting(self) -> list[bytes]:
        return self.plain.lrange(self.steps.keys.queue.messages, 0, -1)[::-1]

    def batch(self, number: int, group: str = "g") -> list[bytes]:
        return self.plain.lrange(self.steps.keys.batch(group, number), 0, -1)[::-1]

    def drain(self, epoch: int, start: int, most: int) -> list[int]:
        """Seal batches until there is nothing more."""
        sealed = []
        while (answer := seal(self.steps, epoch, start, most)) is not None:
            assert isinstance(answer, int)
            sealed.append(answer)
            start = answer
        return sealed


def seal(steps: Steps, epoch: int, start: int, most: int, **more: Any) -> Any:
    answer: Any = True
    while answer is True:
        answer = steps.seal("g", epoch, start, most, **more)
    return answer


def stage(place: Place, token: str, messages: list[bytes], write: str = "w") -> tuple[str, int, int]:
    key = place.steps.keys.part(write, token)
    place.plain.lpush(key, *messages)
    place.plain.pexpire(key, 60_000)
    return token, len(messages), sum(map(len, messages))


def publish(place: Place, batch: int, todo: str | None, remember: bool = True) -> None:
    while todo:
        answer = place.steps.publish("w", batch, todo, remember)
        assert isinstance(answer, str)
        todo = answer
