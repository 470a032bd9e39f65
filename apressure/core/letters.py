"""Dead letters, for every kind of queue: reading, finding and deleting them, and moving them back into the queue."""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_accepted, telling_accepted
from apressure.core.added_letters import Added
from apressure.core.administration import Administration
from apressure.core.cursors import passed_by
from apressure.core.reviving import Chosen, Revival, fitting
from apressure.core.searching import MOST, PLACE, DeadLetterPage, DeadLetterSearch, Read
from apressure.dead_letters import DeadLetter, Requeued, chosen_by
from apressure.exceptions import PressureError

T = TypeVar("T")


class Letters(Administration, Generic[T]):
    """A queue that has dead letters."""

    # What a kind of queue says.

    @abstractmethod
    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first."""

    @abstractmethod
    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        """Read dead letters behind the `passed` oldest ones, in one step, which may look at fewer than `most`."""

    @abstractmethod
    def _revival(self, chosen: Chosen) -> AbstractAsyncContextManager[Revival]:
        """Return a block with what moves dead letters back, or deletes them."""

    @abstractmethod
    async def _bury(self, letters: Sequence[Added]) -> None:
        """Add some dead letters, the oldest first, in one step where there are steps."""

    @abstractmethod
    async def put_letter(self, letter: DeadLetter[Any], timeout: float | None) -> bool:
        """Put the message of a dead letter of another queue; returns whether it was put: its id may be in use."""

    def check_letter(self, letter: DeadLetter[Any]) -> None:
        """Raise a ValueError if this queue cannot have the message of a dead letter of another queue."""

    async def _until_free(self, timeout: float | None, source: str | None) -> None:
        """Wait until dead letters can be deleted, where others may keep them from that."""

    def source_of(self, other: Letters[Any], source: str | None) -> str | None:
        """Return the `source=` by which this queue moves dead letters of another one here in one step.

        None where that needs two.
        """
        return None

    async def _revive(self, revival: Any, timeout: float | None) -> None:
        """Have a revival make its next step. A kind whose revivals wait for more than room has its own."""
        await self._until(revival.step, timeout)

    # What programs call.

    @with_deadline(reads=True)
    async def dead_letters(self, limit: int | None = 100, *, deadline: float | None = None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first, with the reason of each. It changes nothing.

        A reason is the last error of the message (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it became a dead letter. Until then, a server keeps errors
        of 10,000 events of a queue at most.

        Args:
            limit: How many at most; None for all. They are in memory together.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            A list; empty where there is no dead-letter queue. It is read in chunks, so dead letters that are moved
            meanwhile may be missing.

        Raises:
            ServerTooOldError: It is on a released okq, which has none.
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.

        On this kind:
            EventQueue with an `okq://` address: those of `EventQueue`s on the server's Redis.
            TaskQueue: the tasks that have failed.
        """
        return await self._dead_letters(limit)

    @with_deadline(reads=True)
    async def find_dead_letters(
        self,
        search: DeadLetterSearch | None = None,
        *,
        cursor: str | None = None,
        look: int = 500,
        deadline: float | None = None,
    ) -> DeadLetterPage[T]:
        """Look at some dead letters, the oldest first, and return those that a search finds. It changes nothing.

        It is one step, which looks at about 1 MiB at most, or 100 tasks: `looked` says at how many. The cursor of the
        page goes on behind them. It is a place in the order of dead letters: where others are moved or deleted between
        two steps, the next step begins later.

        Args:
            search: What to look for; None for all.
            cursor: The `cursor` of the page before, or its `cursor_without` after some were moved or deleted; None for
                the first step.
            look: At how many to look at most, up to 1,000.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            The page. It may be empty while there are more to look at: the search is over when its `cursor` is None.

        Raises:
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `dead_letters`.

        Cancelled, nothing has changed.
        """
        return await self._find(search, cursor, look)

    @with_deadline(done="deleted")
    async def discard(
        self,
        ids: Iterable[str | DeadLetter[Any]],
        timeout: float | None = None,
        *,
        deadline: float | None = None,
    ) -> Requeued:
        """Delete dead letters for good, with their reasons.

        Args:
            ids: Those with these ids, or the dead letters themselves; see `requeue`.
            timeout: Seconds to wait at most for the consumer role of an AsyncQueue's dead-letter queue; None to wait
                for ever. Other kinds do not wait.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were deleted. Its attribute `not_found` has the ids that no dead letter has (any more): somebody
            else has moved or deleted them.

        Raises:
            ServerTooOldError: It is on a released okq, or on a server of an older apressure.
            OutcomeUnknownError: The connection broke meanwhile: some of them may have been deleted.
            TypeError, ValueError: An argument is invalid.

        Cancelled, each of them is deleted, or a dead letter as before.

        On this kind:
            AsyncQueue: Dead letters with the same content and without a reason share an id: it means all of them. Give
                one itself to delete only one.
            TaskQueue: The task is deleted with its output.
        """
        return await self._discard(ids, timeout)

    @with_deadline(done="moved")
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        *,
        ids: Iterable[str | DeadLetter[Any]] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of the queue, the oldest first; their attempts start anew.

        It moves those that are there when it begins. An event whose id is in use again stays a dead letter.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 to move only what has room now.
            ids: Only those with these ids, as `dead_letters` shows them; None for any. If several dead letters have the
                same id, the oldest is meant. Or the dead letters themselves: then they need not be searched for.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            OutcomeUnknownError: The connection broke meanwhile: some of them may have been moved.
            TypeError, ValueError: An argument is invalid, or both `max_items` and `ids` are given.

        Cancelled, each of them is in the queue or a dead letter.

        On this kind:
            AsyncQueue: Dead letters with the same content and without a reason share an id: it means all of them. Give
                one itself to move only one.
        """
        return await self._requeue(max_items, timeout, ids)

    @with_deadline(done="moved")
    async def move_dead_letters(
        self,
        target: Any,
        ids: Iterable[str | DeadLetter[Any]],
        timeout: float | None = None,
        *,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters to the end of another queue, of any kind and on any server; their attempts start anew.

        Each is put into the other queue, as it is, and then deleted here. So it is never lost. If the program is killed
        in between, or two programs move it at the same time, it is there, and may be moved again: twice in all. An
        EventQueue takes it with its id, and refuses it while that is in use: it stays a dead letter then.

        One step does both, so that each is in exactly one of the queues, where both are AsyncQueues that use the same
        client, and in a cluster are in one slot; or FileQueues whose directories are beside each other.

        Args:
            target: The other queue, which is open.
            ids: Those with these ids, or the dead letters themselves; see `requeue`. If several have the same id, the
                oldest is meant.
            timeout: Seconds to wait for room in the other queue, and for its producer role, at most; None to wait for
                ever.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError, QueueInUseError, QueueClosedError, QueueDoesNotExistError: As for `put` into the other
                queue. `accepted` says how many were moved before.
            OutcomeUnknownError: The connection broke meanwhile: some more of them may have been moved, or be in both.
            ValueError: The other queue is this one, or cannot have one of the messages: tasks are UTF-8. Nothing was
                moved.
            TypeError: An argument is invalid.

        Cancelled, each of them is in the other queue, or a dead letter, or both.
        """
        return await self._move(target, ids, timeout)

    @with_deadline(done="added")
    async def add_dead_letters(self, letters: Iterable[DeadLetter[Any]], *, deadline: float | None = None) -> int:
        """Add dead letters with the reasons that they have, such as those of another queue that moves here.

        They count towards no bound, and a closed queue takes them, too. What `raw` has is the message: nothing is
        encoded.

        Args:
            letters: What `dead_letters` of a queue of any kind has returned, or such objects. They are in memory
                together.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were added.

        Raises:
            UnsupportedError: It is on a server with an `okq://` address.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            OutcomeUnknownError: The connection broke meanwhile: some more of them may have been added.
            StorageError: The file system refused.
            TypeError, ValueError: One of them is invalid. Nothing was added.

        `accepted` of a PressureError says how many were added before. Cancelled, the first of them are dead letters of
        this queue, in order, and the others are not.

        On this kind:
            AsyncQueue: They go into its dead-letter queue (`NAME:dead`, or `dead_letters=`), which is created if need
                be. Two with the same contents get times that differ.
            EventQueue: They keep their ids.
            TaskQueue: They are tasks that have failed, with new ids. They expire `result_ttl` after they were added,
                whatever their `when` is.
            FileQueue: They go into its dead-letter queue, beside it, with new ids. Without an error and attempts,
                nothing is known of them.
        """
        self.check()
        given = [Added.of(letter) for letter in letters]
        added = 0
        try:
            while added < len(given):
                count = fitting(one.raw for one in itertools.islice(given, added, None))
                await self._bury(given[added : added + count])
                added += count
        except asyncio.CancelledError:
            note_accepted(added)
            raise
        except PressureError as error:
            error.accepted = added + error.accepted
            raise
        return added

    async def _dead_letters(self, limit: int | None, source: str | None = None) -> list[DeadLetter[T]]:
        validation.optional(validation.whole, limit, "limit")
        self.check()
        return await self._letters(limit, source)

    async def _find(
        self, search: DeadLetterSearch | None, cursor: str | None, look: int, source: str | None = None
    ) -> DeadLetterPage[T]:
        if not isinstance(search, (DeadLetterSearch, type(None))):
            raise TypeError(f"search must be a DeadLetterSearch or None, not {type(search).__name__}")
        validation.whole(look, "look", most=MOST)
        passed = passed_by(cursor, PLACE)
        self.check()
        letters, looked, total = await self._letters_at(passed, look, source)
        found = tuple(letter for letter in letters if search is None or search.finds(letter))
        return DeadLetterPage(found, looked, passed, total)

    async def _requeue(
        self, max_items: int | None, timeout: float | None, ids: Iterable[str | DeadLetter[Any]] | None,
        source: str | None = None,
    ) -> Requeued:  # fmt: skip
        validation.optional(validation.whole, max_items, "max_items")
        if ids is not None and max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        names, letters = (None, []) if ids is None else chosen_by(ids)
        return await self._move_or_discard(Chosen(max_items, names, letters, source), timeout)

    async def _discard(
        self, ids: Iterable[str | DeadLetter[Any]], timeout: float | None, source: str | None = None
    ) -> Requeued:
        names, letters = chosen_by(ids)
        return await self._move_or_discard(Chosen(None, names, letters, source, discard=True), timeout)

    async def _move(
        self, target: Any, ids: Iterable[str | DeadLetter[Any]], timeout: float | None, source: str | None = None
    ) -> Requeued:
        into: Any = target
        if not isinstance(target, Letters):
            raise TypeError(f"target must be a queue, not {type(target).__name__}")
        if target is self:
            raise ValueError("the dead letters would come back into their own queue: use requeue")
        validation.timeout(timeout)
        names, letters = chosen_by(ids)
        self.check()
        if (there := target.source_of(self, source)) is not None:
            return await into.requeue(timeout=timeout, ids=[*names, *letters], source=there)  # type: ignore[no-any-return]
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        found = await self._found(names, letters, source)
        not_found, moved = [*names, *(letter.id for letter in letters)], 0
        for letter in found:
            target.check_letter(letter)
        with telling_accepted(lambda: moved):
            if found:
                await self._until_free(_left(until), source)
            for letter in found:
                if await target.put_letter(letter, _left(until)):
                    done = await self._discard([letter], None, source)  # however long that takes: now it is in both
                    moved += done
                    not_found += done.not_found
        return Requeued(moved, not_found)

    async def _found(
        self, names: dict[str, None], letters: list[DeadLetter[Any]], source: str | None
    ) -> list[DeadLetter[T]]:
        """Return those that are still there, the oldest first; names and letters keep the others."""
        found, passed = list[DeadLetter[T]](), 0
        while names or letters:
            some, looked, _ = await self._letters_at(passed, MOST, source)
            for letter in some:
                same = [one for one in letters if (one.id, one.when, one.kept) == (letter.id, letter.when, letter.kept)]
                if same:
                    letters.remove(same[0])
                elif letter.id in names:
                    del names[letter.id]
                else:
                    continue
                found.append(letter)
            passed += looked
            if not looked:
                break
        return found

    async def _move_or_discard(self, chosen: Chosen, timeout: float | None) -> Requeued:
        """Move or delete what was chosen."""
        validation.timeout(timeout)
        self.check()
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        async with self._revival(chosen) as revival:
            with telling_accepted(lambda: revival.moved):
                while revival.more:
                    await self._revive(revival, _left(until))
        return Requeued(revival.moved, revival.not_found)


def _left(until: float | None) -> float | None:
    """Return the seconds until then, by the clock of the event loop."""
    return None if until is None else max(0.0, until - asyncio.get_running_loop().time())
