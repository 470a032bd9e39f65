"""The driver of a queue in memory: its steps, the lanes in which operations share them, and where they wait."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from apressure import logs
from apressure.concurrency.settle import set_result_once
from apressure.core import taking
from apressure.core.asking import ask
from apressure.core.counts import Counts
from apressure.core.dedup_lane import DedupLane
from apressure.core.driver import OnAnswer, Request
from apressure.core.limits import Changes
from apressure.core.putting import Putting, PuttingLane
from apressure.core.requests import Asker
from apressure.core.settling import Settler
from apressure.core.waiting import Parked, Wait, Waits
from apressure.exceptions import PressureError
from apressure.testing.memory.messages import Change, Extended, Popped, Taken, Want
from apressure.testing.memory.server import MemoryServer, Step
from apressure.testing.memory.stored import MOST, StoredQueue, wake


class MemoryWaits(Waits):
    """Where the operations of one queue object wait: each change of the queue has them try again."""

    def __init__(self, queue: StoredQueue) -> None:
        super().__init__()
        self._queue = queue

    def park(self, wait: Wait, since: int) -> Parked:
        if (refused := self._refused()) is not None:
            return refused
        loop = asyncio.get_running_loop()
        parked = self._admitted(wait.reason, Parked(loop=loop))
        self._queue.parked[parked] = None
        parked.add_done_callback(self._queue.parked.pop)
        if self._queue.changed > since:
            loop.call_soon(wake, parked)  # it has changed since the step was sent
        if wait.lease is not None:
            timer = loop.call_later(wait.seconds(math.inf), wake, parked)
            parked.add_done_callback(lambda _: timer.cancel())
        return parked

    def close(self, error: PressureError) -> None:
        """Operations that would wait from now on get the error."""
        self._shut(error)
        self.end(error)


class PutLane(PuttingLane[Putting[Any]]):
    """The puts of a queue object's tasks."""

    _most = MOST

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return self._steps.send(self._answered, self._steps.queue.put, items, expected)


class OnceLane(DedupLane[Putting[Any]], PutLane):
    """The puts of a queue object's tasks that have a dedup id."""

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return self._steps.send(self._answered, self._steps.queue.put_once, items, expected)


class TakeLane(taking.TakeLane[Want, Taken]):
    """The gets and receives of a queue object's tasks."""

    _most = MOST

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        return self._steps.send(self._answered, self._steps.queue.take, most, want)


class MemorySettler(Settler[Change, bool]):
    """Settles a queue object's deliveries. The outcome says whether the claim was still there."""

    _most = MOST
    _at_a_time = 1

    def _settle(self, changes: Sequence[Change], on_answer: OnAnswer) -> None:
        self.steps.send(on_answer, self.steps.queue.settle, changes)

    def _next(self) -> int:
        return min(len(self._waiting), MOST)

    def _settled(self, changes: Sequence[Change], outcomes: Sequence[bool]) -> int:
        return sum(done and change.ack for change, done in zip(changes, outcomes, strict=True))


class MemoryDriver:
    """The steps of one queue object, and its lanes and waits.

    Args:
        server: The server.
        name: The queue's name.
        max_attempts: How often a message is delivered at most; None for no limit.

    Attributes:
        name, max_attempts: As given.
        connection: The server.
        queue: What the server has of the queue.
        counts: What the object has done.
        waits: Where its operations wait.
        puts, once, takes: Its lanes.
        settler: Settles its deliveries.
        asker: What it has asked.
        settle_timeout: Seconds for which a cancelled caller waits for the outcome.
        script_keys: None: no step is a script.
    """

    settle_timeout = 5.0
    script_keys: tuple[bytes, ...] = ()

    def __init__(self, server: MemoryServer, name: str, max_attempts: int | None) -> None:
        self.name = name
        self.max_attempts = max_attempts
        self.connection = server
        self.queue = server.queue(name)
        self.counts = Counts()
        self.waits = MemoryWaits(self.queue)
        self.puts = PutLane(self, self.waits)
        self.once = OnceLane(self, self.waits)
        self.takes = TakeLane(self, self.waits)
        self.settler = MemorySettler(self)
        self.asker = Asker(name)
        self.queue.askers[self.asker.id] = self.asker

    def messages(self, answer: Any) -> list[Taken] | None:
        """Return the messages that a step has taken; None if its answer tells of something else."""
        return answer.taken if isinstance(answer, Popped) else None

    def note(self, answer: Popped) -> None:
        """Count and log what a step has taken."""
        self.counts.received_count += len(answer.taken)
        self.counts.dead_lettered_count += len(answer.dead)
        for message in answer.dead:
            logs.dead_letter("MemoryQueue", self.name, message.id, message.attempts, message.data)
        for message, attempts, _ in answer.taken:
            if attempts > 1:
                logs.redelivered("MemoryQueue", self.name, message.id, attempts, message.data)

    def series(self) -> None:
        """Lanes number their steps, so that one whose reply was lost can be sent again. Here, none is."""

    def send(self, on_answer: OnAnswer, work: Callable[..., Any], *arguments: Any) -> Step:
        """Send a step, which is a method of `queue`."""
        step = Step(self.queue, functools.partial(work, *arguments), on_answer)
        self.connection.send(step)
        return step

    def start(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Send a step; returns a future of its answer, which may be an error."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(functools.partial(set_result_once, done), work, *arguments)
        return done

    def give_back_soon(self, messages: Sequence[Taken]) -> asyncio.Future[Any]:
        """Send a step that puts back what nobody has seen."""
        return self.start(self.queue.put_back, messages)

    async def ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Send a step and return its answer."""
        return await ask(
            self.connection, lambda on_answer: self.send(on_answer, work, *arguments), self.settle_timeout
        )  # fmt: skip

    async def create(self, bound: int) -> bool:
        return bool(await self.ask(self.queue.create, bound))

    async def close(self, expected: bool) -> None:
        await self.ask(self.queue.close, expected)

    async def limit(self, changes: Changes, expected: bool) -> None:
        await self.ask(self.queue.limit, changes, expected)

    async def pause(self, pausing: bool, expected: bool) -> bool:
        return bool(await self.ask(self.queue.pause, pausing, expected))

    async def delete(self) -> None:
        await self.ask(self.queue.delete)

    def send_extend(
        self,
        claims: Sequence[int],
        lease: int,
        on_answer: OnAnswer,
        connection: object = None,  # noqa: ARG002
    ) -> Step:
        return self.send(on_answer, self.queue.extend, claims, lease)

    async def extend(self, claims: Sequence[int], lease: float) -> Extended:
        return await self.ask(self.queue.extend, claims, int(lease * 1000))  # type: ignore[no-any-return]
