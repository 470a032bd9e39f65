"""A queue whose dead letters are in another queue, beside it: its verbs take the name of any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from apressure.concurrency.deadline import with_deadline
from apressure.core.letters import Letters
from apressure.core.searching import DeadLetterPage, DeadLetterSearch
from apressure.dead_letters import DeadLetter, Requeued

T = TypeVar("T")


class LettersBeside(Letters[T], Generic[T]):
    """A queue whose dead letters are in a queue of their own, or in another one that the program names."""

    @with_deadline(reads=True)
    async def dead_letters(
        self, limit: int | None = 100, source: str | None = None, *, deadline: float | None = None
    ) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first, with the reason of each. It changes nothing.

        A reason is the last error of the message (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it became a dead letter. An AsyncQueue's server keeps the
        reasons of the latest 5,000 dead letters, and of the latest 20 with the same content, until 30 days after the
        last one. Programs that take messages out of the dead-letter queue may ignore them.

        Args:
            limit: How many at most; None for all. They are in memory together.
            source: The dead-letter queue's name; None for this queue's own. It need not exist.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            A list; empty where there is no dead-letter queue. It is read in chunks, so dead letters that are moved
            meanwhile may be missing.

        Raises:
            TypeError, ValueError: An argument is invalid.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.

        On this kind:
            FileQueue: A reason is in a small file beside the message. Where that is missing, because another program
                moved the message or its process was killed meanwhile, `attempts`, `error` and `when` are None. Dead
                letters that are in flight are left out. One that is too large or cannot be read has no bytes in `raw`,
                and its `item` raises StorageError.
        """
        return await self._dead_letters(limit, source)

    @with_deadline(done="moved")
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        source: str | None = None,
        *,
        ids: Iterable[str | DeadLetter[Any]] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of this queue, the oldest first; their attempts start anew.

        It moves those that are there when it begins, waiting for room where it must. Each chunk is moved in one step: a
        message is always in exactly one of the two queues.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait at most for room, and for the two roles that an AsyncQueue takes (this queue's
                producer, the dead-letter queue's consumer); None to wait for ever, 0 to move only what has room now.
            source: The dead-letter queue's name; None for this queue's own, which is the one with `:dead` behind the
                name where the object has no limit of attempts. It need not exist.
            ids: Only those with these ids, as `dead_letters` shows them; None for any. Or the dead letters themselves:
                then they need not be searched for.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError, QueueInUseError: With `accepted`, how many were moved before the timeout. A note on any
                error of an AsyncQueue says so, too.
            QueueClosedError, QueueDoesNotExistError: This queue is closed, or does not exist.
            OutcomeUnknownError: The connection broke meanwhile: some of them may have been moved.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            TypeError, ValueError: An argument is invalid, or both `max_items` and `ids` are given.

        Cancelled, each of them is in the queue or a dead letter.

        On this kind:
            FileQueue: With `source`, QueueDoesNotExistError also if there is no queue of that name. StorageError: the
                file system refused.
        """
        return await self._requeue(max_items, timeout, ids, source)

    @with_deadline(reads=True)
    async def find_dead_letters(
        self,
        search: DeadLetterSearch | None = None,
        source: str | None = None,
        *,
        cursor: str | None = None,
        look: int = 500,
        deadline: float | None = None,
    ) -> DeadLetterPage[T]:
        """Look at some dead letters, the oldest first, and return those that a search finds. It changes nothing.

        Args:
            search: What to look for; None for all.
            source: The dead-letter queue's name; None for this queue's own. It need not exist.
            cursor: Where to go on; see `EventQueue.find_dead_letters`, also for the page.
            look: At how many to look at most, up to 1,000.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            PressureError, TypeError, ValueError: As for `dead_letters`.

        Cancelled, nothing has changed.

        On this kind:
            FileQueue: One that is too large or cannot be read has no text that could be found.
        """
        return await self._find(search, cursor, look, source)

    @with_deadline(done="deleted")
    async def discard(
        self,
        ids: Iterable[str | DeadLetter[Any]],
        timeout: float | None = None,
        source: str | None = None,
        *,
        deadline: float | None = None,
    ) -> Requeued:
        """Delete dead letters for good, with their reasons.

        Args:
            ids: Those with these ids, or the dead letters themselves; see `requeue`.
            timeout: Seconds to wait at most for the consumer role of an AsyncQueue's dead-letter queue; None to wait
                for ever, 0 for a single try. A FileQueue does not wait.
            source: The dead-letter queue's name; None for this queue's own. It need not exist.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were deleted, with `not_found`; see `EventQueue.discard`.

        Raises:
            QueueInUseError: Another client held that role until the timeout. `accepted` says how many were deleted
                before.
            OutcomeUnknownError: The connection broke meanwhile: some of them may have been deleted.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            StorageError: The file system refused.
            TypeError, ValueError: An argument is invalid.

        Cancelled, each of them is deleted, or a dead letter as before.
        """
        return await self._discard(ids, timeout, source)

    @with_deadline(done="moved")
    async def move_dead_letters(
        self,
        target: Any,
        ids: Iterable[str | DeadLetter[Any]],
        timeout: float | None = None,
        source: str | None = None,
        *,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters to the end of another queue, of any kind and on any server; their attempts start anew.

        What a kill leaves, and where one step does it, is as for `EventQueue.move_dead_letters`.

        Args:
            target: The other queue, which is open.
            ids: Those with these ids, or the dead letters themselves; see `requeue`.
            timeout: Seconds to wait for room in the other queue, for its producer role, and for those who consume the
                dead-letter queue, at most; None to wait for ever.
            source: The dead-letter queue's name; None for this queue's own.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved, with `not_found`; see `EventQueue.move_dead_letters`, also for what it raises.

        Raises:
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            StorageError: The file system refused.

        Cancelled, each of them is in the other queue, or a dead letter, or both.
        """
        return await self._move(target, ids, timeout, source)
