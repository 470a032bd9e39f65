"""Tasks that have failed, as dead letters: reads them, enqueues them again, and deletes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.connection.client import Client
from apressure.core.added_letters import Added
from apressure.core.reviving import Chosen, Reviving
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter, Failure
from apressure.items import new_id
from apressure.tasks.engine.answers import raw
from apressure.tasks.engine.steps import CHUNK, MAX_DELETED, TaskSteps, ids_in
from apressure.tasks.task import Task, load_many, whole

T = TypeVar("T")

End = tuple[str, *tuple[bytes, ...]]
"""A failed task: its id, and when it failed, if only that is meant (empty if its hash does not say)."""


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


async def read_page(
    client: Client, steps: TaskSteps, passed: int, most: int, decode: Callable[[bytes], T]
) -> tuple[list[DeadLetter[T]], int]:
    """Return failed tasks behind the `passed` oldest ones, and at how many it has looked."""
    first = -passed - min(most, CHUNK)
    ids = await client.connection.ask(b"LRANGE", steps.keys.failed, first, -passed - 1, reads=True)
    tasks = await load_many(client, ids[::-1])
    return [_letter(task, decode) for task in tasks if task.status == "failed"], len(ids)


def _letter(task: Task, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    kept, attempt = task.fields.get("failure"), whole(task.fields, "failed_attempt")
    if kept is not None and attempt is not None:
        failure = dead_letters.decode(raw(kept), attempt)
    else:
        failure = dead_letters.decode(b"\t" + raw(task.error or ""), task.attempts)
    known: Failure | None = failure if failure.type or failure.message else None
    return DeadLetter(task.id, raw(task.fields.get("parameters", "")), task.attempts, known, _ended(task), decode)


def _ended(task: Task) -> float | None:
    """Return when a task has failed. `updated` of one that was added as a dead letter says when that was."""
    added = task.fields.get("letter_added")
    return task.created if added is not None and added == task.fields.get("updated") else task.updated


def told(letter: Added) -> tuple[Any, ...]:
    """Return what the step `bury` is told of a dead letter: a failed task with a new id."""
    failure = dead_letters.decode(letter.error, letter.attempt)
    known = (letter.attempts, letter.error, letter.attempt)
    return (
        new_id(), letter.raw, repr(letter.when / 1000), str(failure).encode(),
        *((b"", b"", b"") if letter.attempts is None else known),
    )  # fmt: skip


class Revived(Reviving):
    """Failed tasks on their way back to the end of their queue, or to be deleted.

    Args:
        steps, expected, present, most: As for `Reviving`.
        chosen: Or these ones are enqueued, in this order,
        discard: or deleted.
    """

    _steps: TaskSteps

    def __init__(
        self, steps: TaskSteps, expected: bool, present: int = 0, most: int | None = None,
        chosen: Iterable[End] = (), discard: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(steps, expected, present, most)
        self._chosen = list(chosen)
        self._discard = discard

    async def step(self) -> Wait | None:
        """Enqueue the next ones, or the next one by its id, unless there is no room; or delete that one."""
        if self._chosen:
            name, *failed_at = self._chosen[0]
            if self._discard:
                outcome = await self._steps.remove(raw(name), True, *failed_at)
            else:
                outcome = await self._steps.retry(raw(name), self._expected, *failed_at)
            if outcome == "full":
                return FULL
            del self._chosen[0]
            if outcome in ("retried", "deleted"):
                self.moved += 1
            else:
                self.not_found.append(name)
            return None
        moved, looked = await self._steps.requeue(min(self._wanted, MAX_DELETED), self._expected)
        self.moved += moved
        self._left -= looked
        return None if looked else FULL


async def by_their_ends(client: Client, chosen: Chosen) -> list[End]:
    """Return the ids of chosen tasks in the order in which they ended; of those that were read, when that was, too."""
    ended = {task.id: _ended(task) or 0.0 for task in await load_many(client, map(raw, chosen.sought))}
    order: list[tuple[float, End]] = [(ended.get(task_id, 0.0), (task_id,)) for task_id in chosen.sought]
    order += [
        (one.when or 0.0, (one.id, b"" if one.when is None else repr(one.when).encode())) for one in chosen.letters
    ]
    return [end for _, end in sorted(order, key=itemgetter(0))]
