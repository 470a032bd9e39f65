"""Delayed messages that are due before their time, since somebody wants them now."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.administration import Administration
from apressure.dead_letters import chosen_by

MOST: Final = 100
"""Messages that one step makes due, as many as a script moves into the line: MOST_DUE in the preludes."""


class Promoting(Administration):
    """A queue whose delayed messages can be made due."""

    @abstractmethod
    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        """Make up to `most` delayed messages due, those first that are due first, or those with these ids, in one step.

        Returns:
            How many.
        """

    @with_deadline()
    async def promote(
        self,
        max_items: int | None = None,
        *,
        ids: Iterable[str] | None = None,
        deadline: float | None = None,  # noqa: ARG002 (of `with_deadline`)
    ) -> int:
        """Make delayed messages due now: they wait at the end of the queue, those first that were due first.

        Scheduled retries (`nack(delay=)`, the pauses of `serve`) are delayed messages, too; their attempts stay.
        It works on those that are there when it begins.

        Args:
            max_items: How many at most; None for all.
            ids: Only those with these ids, as `browse("delayed")` shows them; None for any.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many are due now that were not before.

        Raises:
            UnsupportedError: With `ids`, it is an AsyncQueue, whose messages have no ids.
            QueueDoesNotExistError: There is no such queue: for events and tasks, this object has created it, and it was
                deleted.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            ServerTooOldError: It is on a released okq, or on a server of an older apressure.
            OutcomeUnknownError: The connection broke meanwhile: some of them may be due.
            TypeError, ValueError: An argument is invalid, or both `max_items` and `ids` are given.

        Cancelled, each of them is delayed or due.
        """
        validation.optional(validation.whole, max_items, "max_items")
        names: list[str] = []
        if ids is not None:
            if max_items is not None:
                raise ValueError("give either max_items= or ids=: the ids say how many")
            chosen, letters = chosen_by(ids)
            if letters:
                raise TypeError("promote takes the ids of delayed messages, not dead letters: requeue moves these back")
            names = [*chosen]
        self.check()
        if ids is not None:
            promoted = 0
            for start in range(0, len(names), MOST):
                promoted += await self._promote(MOST, names[start : start + MOST])
                note_sent()
            return promoted
        delayed = (await self.statistics()).delayed
        left = delayed if max_items is None else min(delayed, max_items)
        promoted = 0
        while left > 0 and (count := await self._promote(min(left, MOST), None)):
            note_sent()
            promoted += count
            left -= count
        return promoted
