"""Dead letters, for every kind of queue: reading, finding and deleting them, and moving them back into the queue."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_accepted
from apressure.core.administration import Administration
from apressure.core.cursors import passed_by
from apressure.core.reviving import Chosen, Revival, fitting
from apressure.core.searching import MOST, PLACE, DeadLetterPage, DeadLetterSearch, Read
from apressure.dead_letters import DeadLetter, Requeued, chosen_by, encoded
from apressure.exceptions import PressureError

T = TypeVar("T")

_MOST_ATTEMPTS: Final = 999_999_999
_LATEST: Final = 10**12
"""Seconds since 1970."""


class Added(NamedTuple):
    """A dead letter that a program adds.

    Attributes:
        id: Its id in the queue that it comes from.
        raw: The message.
        when: When it became a dead letter, in milliseconds since 1970.
        attempts: How often it was delivered; None where nothing is known but the message.
        attempt: The attempt that ended with the error; 0 for none.
        error: The error, as `dead_letters.encode` returns it; empty for none.
    """

    id: str
    raw: bytes
    when: int
    attempts: int | None
    attempt: int
    error: bytes

    @classmethod
    def of(cls, letter: DeadLetter[Any]) -> Self:
        """Return what is added for a dead letter of any queue, checked."""
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"add_dead_letters takes DeadLetters, not {type(letter).__name__}")
        if not isinstance(letter.raw, bytes):
            raise TypeError(f"the raw of a dead letter must be bytes, not {type(letter.raw).__name__}")
        if letter.attempts is not None:
            validation.whole(letter.attempts, "attempts of a dead letter", 0, _MOST_ATTEMPTS)
        when = time.time() if letter.when is None else letter.when
        if not 0 <= when < _LATEST:
            raise ValueError(f"when of a dead letter must be in seconds since 1970, not {when}")
        attempt = 0 if letter.error is None else letter.error.attempt
        validation.whole(attempt, "attempt of a failure", 0, _MOST_ATTEMPTS)
        error = b"" if letter.error is None else encoded(letter.error)
        return cls(letter.id, letter.raw, round(when * 1000), letter.attempts, attempt, error)

    @property
    def reason(self) -> bytes:
        """What the scripts of AsyncQueue and EventQueue keep of it; empty where nothing is known."""
        if self.attempts is None:
            return b""
        return b"%d:%d:%d:%s" % (self.when, self.attempts, self.attempt, self.error)


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

    @with_deadline()
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
            TaskQueue: The task is deleted with its output.
        """
        return await self._discard(ids, timeout)

    @with_deadline()
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
        """
        return await self._requeue(max_items, timeout, ids)

    @with_deadline()
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
            TaskQueue: They are tasks that have failed, with new ids.
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
        if limit is not None:
            validation.whole(limit, "limit")
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
        if max_items is not None:
            validation.whole(max_items, "max_items")
        if ids is not None and max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        names, letters = (None, []) if ids is None else chosen_by(ids)
        return await self._move_or_discard(Chosen(max_items, names, letters, source), timeout)

    async def _discard(
        self, ids: Iterable[str | DeadLetter[Any]], timeout: float | None, source: str | None = None
    ) -> Requeued:
        names, letters = chosen_by(ids)
        return await self._move_or_discard(Chosen(None, names, letters, source, discard=True), timeout)

    async def _move_or_discard(self, chosen: Chosen, timeout: float | None) -> Requeued:
        """Move or delete what was chosen."""
        validation.timeout(timeout)
        self.check()
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        async with self._revival(chosen) as revival:
            try:
                while revival.more:
                    await self._revive(revival, None if until is None else max(0.0, until - loop.time()))
            except asyncio.CancelledError:
                note_accepted(revival.moved)
                raise
            except PressureError as error:
                error.accepted = revival.moved
                raise
        return Requeued(revival.moved, revival.not_found)


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

    @with_deadline()
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

        It is one step, which looks at about 1 MiB at most: `looked` says at how many. The cursor of the page goes on
        behind them. It is a place in the order of dead letters: where others are moved or deleted between two steps,
        the next step begins later.

        Args:
            search: What to look for; None for all.
            source: The dead-letter queue's name; None for this queue's own. It need not exist.
            cursor: The `cursor` of the page before, or its `cursor_without` after some were moved or deleted; None for
                the first step.
            look: At how many to look at most, up to 1,000.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            The page. It may be empty while there are more to look at: the search is over when its `cursor` is None.

        Raises:
            TypeError, ValueError: An argument is invalid.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            PressureError: As for `dead_letters`.

        Cancelled, nothing has changed.

        On this kind:
            FileQueue: One that is too large or cannot be read has no text that could be found.
        """
        return await self._find(search, cursor, look, source)

    @with_deadline()
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
            How many were deleted. Its attribute `not_found` has the ids that no dead letter has (any more): somebody
            else has moved or deleted them.

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
