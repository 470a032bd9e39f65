"""The lanes of a queue of tasks: concurrent puts become one step, and so do reservations and settling."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from apressure import logs
from apressure.concurrency.settle import set_result_once, wait_shielded
from apressure.connection.wire.request import Request
from apressure.core.putting import Putting, PuttingLane
from apressure.core.taking import TakeLane
from apressure.items import MAX_BYTES
from apressure.tasks.engine.answers import Reservation, Reserved, raw
from apressure.tasks.engine.steps import MAX_TASKS, Change, New, TaskSteps, Want
from apressure.tasks.engine.waits import TaskWaits

logger = logging.getLogger("apressure")


class Put(Putting[New]):
    """Tasks on their way into the queue."""


class PutLane(PuttingLane[Put]):
    """The puts of a client's tasks."""

    _most = MAX_TASKS
    _steps: TaskSteps

    def _put(self, items: Sequence[New], expected: bool) -> Request:
        return self._steps.send_enqueue(self._series, items, expected, self._answered)


class ReserveLane(TakeLane[Want, Reserved]):
    """The reservations of a client's tasks, for `receive`."""

    _most = MAX_TASKS
    _steps: TaskSteps

    def __init__(self, steps: TaskSteps, waits: TaskWaits) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        return self._steps.send_reserve(self._series, most, want, self._answered)

    def _messages(self, answer: Any) -> list[Reserved]:
        return answer.tasks if isinstance(answer, Reservation) else []

    def _note(self, answer: Reservation) -> None:
        note_reserved(self._steps, answer)

    def _return(self, step: int, messages: Sequence[Reserved]) -> asyncio.Future[Any]:  # noqa: ARG002
        return self._steps.give_back_soon(messages)


def note_reserved(steps: TaskSteps, answer: Reservation) -> None:
    """Count what a step has reserved; log what it has dropped, and the tasks that were tried before."""
    name = steps.name
    steps.counts.received_count += len(answer.tasks)
    for one in answer.tasks:
        attempts = one.fields.get("attempts", "")[:9]  # another program may have written it
        if attempts.isdecimal() and int(attempts) > 1:
            task_id, parameters = one.id.decode(errors="backslashreplace"), raw(one.fields.get("parameters", ""))
            logs.redelivered("TaskQueue", name, task_id, int(attempts), parameters)
    if answer.dropped:
        logger.warning(
            "%d ids that waited in the queue %r were dropped: their tasks were deleted, or do not wait",
            answer.dropped, name,
        )  # fmt: skip


MANY: Final = 128
"""How many changes make a step that leaves at once."""

MOST_STEPS: Final = 8
"""The most steps with changes that are on their way at a time."""


class _Change:
    """A change on its way.

    Attributes:
        change: As given.
        ended: Its outcome is known.
        on_settled: Called with the outcome; None where somebody waits for `outcome`.
        outcome: Replaced when the caller that waits for it is cancelled.
    """

    __slots__ = ("change", "ended", "on_settled", "outcome")

    def __init__(self, change: Change, on_settled: OnSettled | None) -> None:
        self.change = change
        self.ended = False
        self.on_settled = on_settled
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, outcome: str | Exception) -> None:
        """Tell the caller that waits for it."""
        self.ended = True
        if self.on_settled is not None:
            self.on_settled(outcome)
        elif not self.outcome.done():
            if isinstance(outcome, Exception):
                self.outcome.set_exception(copy.copy(outcome))
            else:
                self.outcome.set_result(outcome)


OnSettled = Callable[[str | Exception], None]


class Settler:
    """Notes what happens to tasks. Changes that are made while a step is on its way form the next one.

    Where many are made, the next steps leave before that one is answered: so the server works while the client reads
    the answers. One connection keeps their order.

    Args:
        steps: The queue's steps.
        ttl: Seconds for which results are kept; 0 keeps them.
    """

    def __init__(self, steps: TaskSteps, ttl: float) -> None:
        self._steps = steps
        self._ttl = ttl
        self._waiting: deque[_Change] = deque()
        self._on_their_way = 0
        self._idle: asyncio.Future[None] | None = None

    def soon(self, change: Change, on_settled: OnSettled | None) -> _Change:
        """Make a change; `on_settled` is called once, with a letter as in `lua/settle.lua`, or the error."""
        made = _Change(change, on_settled)
        self._waiting.append(made)
        if not self._on_their_way:
            self._on_their_way = 1
            if on_settled is None:
                self._send()  # somebody waits for it; what comes meanwhile is the next step
            else:
                asyncio.get_running_loop().call_soon(self._send)  # others may follow in this turn of the event loop
        elif len(self._waiting) >= MANY and self._on_their_way < MOST_STEPS:
            self._on_their_way += 1
            self._send()
        return made

    async def settle(self, change: Change) -> str:
        """Make a change and wait for the outcome, a letter as in `lua/settle.lua`.

        Cancelled, it waits for the outcome, then raises.
        """
        loop = asyncio.get_running_loop()
        made = self.soon(change, None)
        try:
            return await made.outcome
        except asyncio.CancelledError:
            if made.ended:
                raise  # the outcome came in this very turn of the event loop
            made.outcome = loop.create_future()
            await wait_shielded(made.outcome, self._steps.settle_timeout)
            if made.outcome.done():
                made.outcome.exception()  # the cancellation is raised instead
            raise

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that completes when everything so far has been settled, or has failed."""
        if self._idle is None or self._idle.done():
            self._idle = asyncio.get_running_loop().create_future()
            if not self._on_their_way:
                self._idle.set_result(None)
        return self._idle

    def _send(self) -> None:
        """Send the next step, in place of one that was answered."""
        if not self._waiting or (self._on_their_way > 1 and len(self._waiting) < MANY):
            self._on_their_way -= 1
            if self._idle is not None and not self._on_their_way:
                set_result_once(self._idle, None)
            return
        batch: list[_Change] = []
        size = 0
        while self._waiting and len(batch) < MANY and size < MAX_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].change.value)

        def on_answer(answer: Any) -> None:
            outcomes = [answer] * len(batch) if isinstance(answer, Exception) else answer
            for made, outcome in zip(batch, outcomes, strict=True):
                if outcome == "1" and made.change.how in ("complete", "fail"):
                    self._steps.counts.deleted_count += 1
            for made, outcome in zip(batch, outcomes, strict=True):
                made.end(outcome)
            self._send()

        self._steps.send_settle([made.change for made in batch], self._ttl, on_answer)
