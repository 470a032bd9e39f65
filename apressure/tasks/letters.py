"""Tasks that have failed, as dead letters: reads them, and enqueues them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from apressure import dead_letters
from apressure.connection.client import Client
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter, Failure
from apressure.tasks.engine.answers import raw, text
from apressure.tasks.engine.steps import MAX_DELETED, TaskSteps, load_many
from apressure.tasks.task import Task, number

T = TypeVar("T")

_CHUNK: Final = 100


async def failed(
    client: Client, steps: TaskSteps, limit: int | None, decode: Callable[[bytes], T]
) -> list[DeadLetter[T]]:
    """Return the tasks that have failed, the oldest first, with the reason of each."""
    letters: list[DeadLetter[T]] = []
    begin = 0
    while limit is None or len(letters) < limit:
        span = (-begin - _CHUNK, -begin - 1)
        ids = await steps.connection.ask(b"LRANGE", steps.keys.failed, *span, reads=True)
        begin += len(ids)
        for task_id, fields in await load_many(client, reversed(ids)):
            task = Task(client, text(task_id), fields)
            if task.status == "failed":
                letters.append(_letter(task, decode))
        if len(ids) < _CHUNK:
            break
    return letters[:limit]


def _letter(task: Task, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    attempt = task.fields.get("failed_attempt", "")
    kept = task.fields.get("failure")
    if kept is not None and attempt.isascii() and attempt.isdigit():
        failure = dead_letters.decode(raw(kept), int(attempt[:9]))
    else:
        failure = dead_letters.decode(b"\t" + raw(task.error or ""), task.attempts)
    known: Failure | None = failure if failure.type or failure.message else None
    return DeadLetter(task.id, raw(task.fields.get("parameters", "")), task.attempts, known, task.updated, decode)


class Revived(ABC):
    """Failed tasks on their way back to the end of their queue.

    Args:
        steps: Enqueues them.
        expected: The queue must have been created.

    Attributes:
        moved: How many have been enqueued.
        not_found: The ids that no failed task has.
    """

    def __init__(self, steps: TaskSteps, expected: bool) -> None:
        self.moved = 0
        self.not_found: list[str] = []
        self._steps = steps
        self._expected = expected

    @property
    @abstractmethod
    def more(self) -> bool:
        """Whether there are more to enqueue."""

    @abstractmethod
    async def step(self) -> Wait | None:
        """Enqueue the next ones. Without room, none is."""


class _Oldest(Revived):
    """The oldest ones: at most `most`, of the `present` that have failed when it begins."""

    def __init__(self, steps: TaskSteps, expected: bool, present: int, most: int | None) -> None:
        super().__init__(steps, expected)
        self._left = present
        self._most = most

    @property
    def more(self) -> bool:
        return self._wanted > 0

    @property
    def _wanted(self) -> int:
        return self._left if self._most is None else min(self._left, self._most - self.moved)

    async def step(self) -> Wait | None:
        moved, looked = await self._steps.requeue(min(self._wanted, MAX_DELETED), self._expected)
        self.moved += moved
        self._left -= looked
        return None if looked else FULL


class _Chosen(Revived):
    """Those that were chosen, by their ids."""

    def __init__(self, steps: TaskSteps, expected: bool, task_ids: list[str]) -> None:
        super().__init__(steps, expected)
        self._left = task_ids

    @property
    def more(self) -> bool:
        return bool(self._left)

    async def step(self) -> Wait | None:
        outcome = await self._steps.retry(raw(self._left[0]), self._expected)
        if outcome == "full":
            return FULL
        task_id = self._left.pop(0)
        if outcome.partition(" ")[0] in ("unknown", "other", "unfit"):
            self.not_found.append(task_id)
        else:
            self.moved += 1
        return None


async def revived(
    client: Client, steps: TaskSteps, expected: bool, present: int, most: int | None, ids: Iterable[str] | None
) -> Revived:
    """Return what enqueues the oldest `most` of the `present` tasks that have failed again, or those with these ids."""
    if ids is None:
        return _Oldest(steps, expected, present, most)
    found = await load_many(client, map(raw, ids))
    ended = {text(task_id): number(fields, "updated") or 0.0 for task_id, fields in found}
    return _Chosen(steps, expected, sorted(ids, key=lambda task_id: ended.get(task_id, 0.0)))
