"""A server in memory: it carries out the steps of `MemoryQueue`s, and fails or stands still when a test says so.

As with a server, a step is sent by a plain function, carried out in the next turn of the event loop, and answered in a
later one. It never waits; a wait never takes anything.
"""

from __future__ import annotations

import contextlib
import math
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from apressure import validation
from apressure.core.driver import NotSentError, OnAnswer
from apressure.core.leases.clock import Clock, since_boot
from apressure.exceptions import PressureError
from apressure.testing.memory.stored import StoredQueue


class Step(NamedTuple):
    """A step on its way: what it does, and who gets the answer."""

    queue: StoredQueue
    work: Callable[[], Any]
    on_answer: OnAnswer


class MemoryServer:
    """A server in memory: the `MemoryQueue`s that share it see the same queues. It belongs to one event loop.

    Args:
        clock: Returns seconds; leases end by it.
        latency: Seconds that each answer takes.

    Attributes:
        latency: As given; it may change.

    Example:
        >>> server = MemoryServer()
        >>> async with MemoryQueue("orders", server=server) as queue:
        ...     await queue.put(b"1")
        ...     await queue.receive(lease=60)
        ...     server.advance(61)
        ...     assert (await queue.receive()).redelivered
    """

    def __init__(self, clock: Clock = since_boot, latency: float = 0.0) -> None:
        self.latency = validation.seconds(latency, "latency")
        self._clock = clock
        self._advanced = 0.0
        self._queues: dict[str, StoredQueue] = {}
        self._unsent: deque[Step] = deque()
        self._sent: deque[Step] = deque()
        self._failures: deque[tuple[Exception, bool]] = deque()
        self._frozen = False

    def __repr__(self) -> str:
        return f"<MemoryServer with {len(self._queues)} queues>"

    def now(self) -> float:
        """Return the time by which leases end and messages are due, in seconds."""
        return self._clock() + self._advanced

    def advance(self, seconds: float) -> None:
        """Let so much time pass for leases and delays. With 0, it is noticed that the `clock` has gone on.

        Raises:
            TypeError, ValueError: It is not a number of seconds, or a negative one.
        """
        self._advanced += validation.seconds(seconds, "seconds", most=math.inf)
        for queue in self._queues.values():
            queue.pass_time()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Return a block in which the server gets steps, and does nothing: it carries them out afterwards."""
        self._frozen = True
        try:
            yield
        finally:
            self._frozen = False
            self._carry_out()

    def fail(self, error: Exception, steps: int = 1, carried_out: bool = False) -> None:
        """Have the next steps fail, whoever sends them. A renewal of a lease is a step, too.

        Args:
            error: The answer to each of them, such as a `ServerError`.
            steps: How many.
            carried_out: They are carried out, and the error is an `OutcomeUnknownError`, for example.
        """
        self._failures.extend([(error, carried_out)] * validation.whole(steps, "steps"))

    # What the core asks of a connection.

    async def connected(self) -> Self:
        """Return this connection."""
        return self

    def queue(self, name: str) -> StoredQueue:
        """Return what the server has of a queue."""
        return self._queues.setdefault(name, StoredQueue(name, self.now))

    def send(self, step: Step) -> None:
        """Send a step: in the next turn of the event loop."""
        if not self._unsent:
            get_running_loop().call_soon(self._transmit)
        self._unsent.append(step)

    def take_back(self, step: Step) -> bool:
        """Withdraw a step that has not left yet. Returns whether that was possible."""
        if step not in self._unsent:
            return False
        self._unsent.remove(step)
        step.on_answer(NotSentError())
        return True

    def _transmit(self) -> None:
        self._sent += self._unsent
        self._unsent.clear()
        self._carry_out()

    def _carry_out(self) -> None:
        while self._sent and not self._frozen:
            step = self._sent.popleft()
            error, carried_out = self._failures.popleft() if self._failures else (None, True)
            answer: Any = None
            if carried_out:
                step.queue.pass_time()
                try:
                    answer = step.work()
                except PressureError as refused:
                    answer = refused
            answer = answer if error is None else error
            if self.latency:
                get_running_loop().call_later(self.latency, step.on_answer, answer)
            else:
                get_running_loop().call_soon(step.on_answer, answer)
