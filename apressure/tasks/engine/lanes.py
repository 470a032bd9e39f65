"""The lanes of a queue of tasks: concurrent puts become one step, and so do reservations and settling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from apressure.connection.dedup import DedupSeries, PutScript
from apressure.connection.wire.script import Request
from apressure.core.dedup_lane import DedupLane, arguments
from apressure.core.driver import OnAnswer
from apressure.core.putting import Putting, PuttingLane
from apressure.core.settling import Settler
from apressure.core.taking import TakeLane
from apressure.items import MAX_BYTES
from apressure.tasks.engine.answers import Reserved
from apressure.tasks.engine.steps import DONE, MAX_TASKS, Change, New, TaskSteps, Want, eta_of

if TYPE_CHECKING:
    from apressure.tasks.engine.waits import TaskWaits


PUT_ONCE: Final = PutScript(
    name="enqueue", record=14, sequence=1, head=3, width=3,
    put="answer[1] == 'put' and string.rep('k', tonumber(answer[2]) or 0)",
    unfinished="""\
  local status = redis.pcall('HGET', KEYS[15] .. id, 'status')
  return type(status) == 'string' and string.find(' pending scheduled reserved started ', ' ' .. status .. ' ', 1, true)
""",
    waiting="""\
  local status = redis.pcall('HGET', KEYS[15] .. id, 'status')
  return status == 'pending' or status == 'scheduled'
""",
)  # fmt: skip
"""How tasks with a dedup id are put; each is there until it has ended."""


class Put(Putting[Any]):
    """Tasks on their way into the queue."""


class PutLane(PuttingLane[Put]):
    """The puts of a client's tasks."""

    _most = MAX_TASKS
    _steps: TaskSteps

    def _put(self, items: Sequence[New], expected: bool) -> Request:
        return self._steps.send_enqueue(self._series, items, expected, self._answered)


class AskLane(PutLane):
    """The requests of a client's tasks: each has `Pressing` terms, which count from when the step is sent."""

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return super()._put([(*task, eta_of(terms)) for *task, terms in items], expected)


class OnceLane(DedupLane[Put], PutLane):
    """The puts of a client's tasks that have a dedup id."""

    def __init__(self, steps: TaskSteps, waits: TaskWaits) -> None:
        super().__init__(steps, waits)
        self._series = DedupSeries(steps, PUT_ONCE)

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return self._steps.send_enqueue(self._series, [arguments(items)], expected, self._answered)


class ReserveLane(TakeLane[Want, Reserved]):
    """The reservations of a client's tasks, for `receive`."""

    _most = MAX_TASKS
    _steps: TaskSteps

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        return self._steps.send_reserve(self._series, most, want, self._answered)


MANY: Final = 128
"""The most changes in a step."""

MOST_STEPS: Final = 8
"""The most steps with changes that are on their way at a time."""


class TaskSettler(Settler[Change, str]):
    """Notes what happens to tasks. The outcome is a letter, as in `lua/settle.lua`.

    Args:
        steps: The queue's steps.
        ttl: Seconds for which results are kept; 0 keeps them.
    """

    _most = MANY
    _at_a_time = MOST_STEPS
    _done = DONE
    steps: TaskSteps

    def __init__(self, steps: TaskSteps, ttl: float) -> None:
        super().__init__(steps)
        self._ttl = ttl

    def _settle(self, changes: Sequence[Change], on_answer: OnAnswer) -> None:
        self.steps.send_settle(changes, self._ttl, on_answer)

    def _settled(self, changes: Sequence[Change], outcomes: Sequence[str]) -> int:
        return sum(
            outcome == DONE and change.how in ("complete", "fail")
            for change, outcome in zip(changes, outcomes, strict=True)
        )

    def _next(self) -> int:
        size, most = 0, min(len(self._waiting), MANY)
        for number, (change, _, _) in enumerate(itertools.islice(self._waiting, most)):
            if size >= MAX_BYTES:
                return number
            size += len(change.value)
        return most
