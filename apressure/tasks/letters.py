"""Tasks that have failed, as dead letters: reads them, and enqueues them again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.connection.client import Client
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter, Failure
from apressure.tasks.engine.answers import raw
from apressure.tasks.engine.steps import MAX_DELETED, TaskSteps, ids_in
from apressure.tasks.task import Task, load_many, whole

T = TypeVar("T")


async def read(
    client: Client, steps: TaskSteps, limit: int | None, decode: Callable[[bytes], T]
) -> list[DeadLetter[T]]:
    """Return the tasks that have failed, the oldest first, with the reason of each."""
    letters: list[DeadLetter[T]] = []
    async with contextlib.aclosing(ids_in(client, steps.keys.failed, b"LRANGE", backwards=True)) as pages:
        async for ids in pages:
            letters += [_letter(task, decode) for task in await load_many(client, ids) if task.status == "failed"]
            if limit is not None and len(letters) >= limit:
                break
    return letters[:limit]


def _letter(task: Task, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    kept, attempt = task.fields.get("failure"), whole(task.fields, "failed_attempt")
    if kept is not None and attempt is not None:
        failure = dead_letters.decode(raw(kept), attempt)
    else:
        failure = dead_letters.decode(b"\t" + raw(task.error or ""), task.attempts)
    known: Failure | None = failure if failure.type or failure.message else None
    return DeadLetter(task.id, raw(task.fields.get("parameters", "")), task.attempts, known, task.updated, decode)


@dataclasses.dataclass
class Oldest:
    """The oldest failed tasks on their way back to the end of their queue.

    Attributes:
        steps: Enqueues them.
        expected: The queue must have been created.
        left: How many of those that had failed when it began were not looked at yet.
        most: How many are enqueued at most; None for all.
        moved: How many have been enqueued.
        not_found: As for `Chosen`.
    """

    steps: TaskSteps
    expected: bool
    left: int
    most: int | None
    moved: int = 0
    not_found: Sequence[str] = ()

    @property
    def _wanted(self) -> int:
        return self.left if self.most is None else min(self.left, self.most - self.moved)

    @property
    def more(self) -> bool:
        """Whether there are more to enqueue."""
        return self._wanted > 0

    async def step(self) -> Wait | None:
        """Enqueue the next ones. Without room, none is."""
        moved, looked = await self.steps.requeue(min(self._wanted, MAX_DELETED), self.expected)
        self.moved += moved
        self.left -= looked
        return None if looked else FULL


@dataclasses.dataclass
class Chosen:
    """Tasks that were chosen by their ids, on their way back to the end of their queue.

    Attributes:
        steps: Enqueues them.
        expected: The queue must have been created.
        left: The ids of those that come next.
        moved: How many have been enqueued.
        not_found: The ids that no failed task has.
    """

    steps: TaskSteps
    expected: bool
    left: list[str]
    moved: int = 0
    not_found: list[str] = dataclasses.field(default_factory=list)

    @property
    def more(self) -> bool:
        """Whether there are more to enqueue."""
        return bool(self.left)

    async def step(self) -> Wait | None:
        """Enqueue the next one, unless there is no room."""
        outcome = await self.steps.retry(raw(self.left[0]), self.expected)
        if outcome == "full":
            return FULL
        task_id = self.left.pop(0)
        if outcome == "retried":
            self.moved += 1
        else:
            self.not_found.append(task_id)
        return None


async def by_their_ends(client: Client, ids: Iterable[str]) -> list[str]:
    """Return the ids of tasks in the order in which they ended."""
    ended = {task.id: task.updated or 0.0 for task in await load_many(client, map(raw, ids))}
    return sorted(ids, key=lambda task_id: ended.get(task_id, 0.0))
