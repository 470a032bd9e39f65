"""Settles deliveries: what is acknowledged or given back while a step is on its way forms the next one."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure.concurrency.settle import set_result_once, wait_shielded
from apressure.core.driver import OnAnswer

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 (an outcome)


class Settler(ABC, Generic[C, O]):
    """Makes changes of a queue's deliveries. Those that are made while a step is on its way form the next one.

    Args:
        steps: The queue's steps.

    Attributes:
        steps: As given.
    """

    _most: ClassVar[int]
    """The most changes in a step; as many make one that leaves at once."""

    _at_a_time: ClassVar[int]
    """The most steps that are on their way: the server works while the client reads answers. One connection keeps
    their order."""

    _done: ClassVar[Any] = True
    """The outcome of a change that was made."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps
        # With each change, who is told of its outcome, and whether also if it was made.
        self._waiting: deque[tuple[C, Callable[[O | Exception], None], bool]] = deque()
        self._on_their_way = 0
        self._idle: asyncio.Future[None] | None = None

    def soon(self, change: C, on_failed: Callable[[O | Exception], None]) -> None:
        """Make a change with the next step that leaves; `on_failed` gets what came of it, unless it was made."""
        self._waiting.append((change, on_failed, False))
        if not self._on_their_way:
            self._on_their_way = 1
            asyncio.get_running_loop().call_soon(self._send)  # others may follow in this turn of the event loop
        elif len(self._waiting) >= self._most:
            self._send_more()

    async def settle(self, change: C) -> O:
        """Make a change, and return its outcome.

        Cancelled, it waits for the outcome, then raises.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[O] = loop.create_future()
        ended = False

        def on_settled(result: O | Exception) -> None:
            nonlocal ended
            ended = True
            if not isinstance(result, Exception):
                set_result_once(outcome, result)
            elif not outcome.done():
                outcome.set_exception(copy.copy(result))  # one exception in many tasks would mix their tracebacks

        self._waiting.append((change, on_settled, True))
        if not self._on_their_way:
            self._on_their_way = 1
            self._send()  # what comes meanwhile is the next step
        elif len(self._waiting) >= self._most:
            self._send_more()
        try:
            return await outcome
        except asyncio.CancelledError:
            if ended:
                raise  # the outcome came in this very turn of the event loop
            outcome = loop.create_future()
            outcome.add_done_callback(asyncio.Future.exception)  # the cancellation is raised instead
            await wait_shielded(outcome, self.steps.settle_timeout)
            raise

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that completes when everything so far has been settled, or has failed."""
        if self._idle is None or self._idle.done():
            self._idle = asyncio.get_running_loop().create_future()
            if not self._on_their_way:
                self._idle.set_result(None)
        return self._idle

    @abstractmethod
    def _settle(self, changes: Sequence[C], on_answer: OnAnswer) -> object:
        """Send a step that makes changes."""

    def _outcomes(self, changes: Sequence[C], answer: Any) -> Sequence[O]:  # noqa: ARG002
        """Return the outcome of each change, from a step's answer that is no exception."""
        return answer  # type: ignore[no-any-return]

    @abstractmethod
    def _settled(self, changes: Sequence[C], outcomes: Sequence[O]) -> int:
        """Return how many deliveries a step has settled for good."""

    @abstractmethod
    def _next(self) -> int:
        """Return how many of the changes that wait the next step makes: at least one, and at most `_most`."""

    def _send_more(self) -> None:
        """A whole step waits: send it, unless enough are on their way."""
        if self._on_their_way < self._at_a_time:
            self._on_their_way += 1
            self._send()

    def _send(self) -> None:
        """Send the next step, in place of one that was answered."""
        if not self._waiting or (self._on_their_way > 1 and len(self._waiting) < self._most):
            self._on_their_way -= 1
            if self._idle is not None and not self._on_their_way:
                set_result_once(self._idle, None)
            return
        waiting, number = self._waiting, self._next()
        if number < len(waiting):
            leaving = [waiting.popleft() for _ in range(number)]
        else:
            leaving, self._waiting = list(waiting), deque()
        changes, listeners, always = zip(*leaving, strict=True)

        def on_answer(answer: Any) -> None:
            outcomes: Sequence[O | Exception]
            if isinstance(answer, Exception):
                outcomes = [answer] * len(changes)
            else:
                outcomes = known = self._outcomes(changes, answer)
                self.steps.counts.deleted_count += self._settled(changes, known)
            for tell, anyway, outcome in zip(listeners, always, outcomes, strict=True):
                if anyway or outcome != self._done:
                    tell(outcome)
            self._send()

        self._settle(changes, on_answer)
