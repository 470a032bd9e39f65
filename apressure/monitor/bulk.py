"""Works on many dead letters in bounded steps: requeues, moves or deletes those that a search finds."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from apressure.core.cursors import cursor_of
from apressure.core.searching import PLACE, DeadLetterSearch
from apressure.dead_letters import DeadLetter
from apressure.exceptions import PressureError, QueueFullError, QueueInUseError

Work = Literal["requeue", "discard", "move"]

LOOK: Final = 500
"""Dead letters that a step looks at."""

_MOST: Final = 100
"""Dead letters that a step moves or deletes."""

_PATIENCE: Final = 1.0
"""Seconds for which a step waits for room, before it is told that there is none."""

_KEY: Final = secrets.token_bytes(32)
"""Of handles: who sees one cannot find out by guesses what is in a message that is hidden."""


class Counted(NamedTuple):
    """How many dead letters a search finds, as far as it has looked.

    Attributes:
        found: How many.
        looked: Among the oldest ones, so many.
        total: How many dead letters there are.
    """

    found: int
    looked: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether it has looked at all."""
        return self.looked >= self.total


async def count(queue: Any, search: DeadLetterSearch, most: int) -> Counted:
    """Count the dead letters that a search finds among at least the `most` oldest ones. It changes nothing."""
    found = looked = 0
    cursor = None
    while True:
        page = await queue.find_dead_letters(search, cursor=cursor, look=LOOK)
        found, looked, cursor = found + len(page.letters), looked + page.looked, page.cursor
        if cursor is None or looked >= most:
            return Counted(found, looked if cursor else max(looked, page.total), page.total)


def handle_of(letter: DeadLetter[Any]) -> str:
    """Return what tells a dead letter from others with its id: an id of an event may be used again, for example.

    Those with the same handle are alike in everything. It holds in this process.
    """
    named = f"{letter.id!r} {letter.when!r} ".encode()
    return hashlib.blake2b(named + letter.kept, key=_KEY, digest_size=16).hexdigest()


def act_of(queue: Any, work: Work, target: Any = None) -> Callable[..., Any]:
    """Return what does this with dead letters of a queue: of `ids`, with a `timeout`. `target`: where they move."""
    if work == "move":
        return functools.partial(queue.move_dead_letters, target)
    return queue.requeue if work == "requeue" else queue.discard  # type: ignore[no-any-return]


class Bulk:
    """Requeues, moves or deletes the dead letters that a search finds, the oldest first.

    It works on those that are there when it begins. However it ends, it can be begun again: what is done is done, and
    nothing is done twice, also while others work on the same ones; but for moves: see `move_dead_letters`.

    Args:
        queue: The queue.
        work: What is done with them.
        search: Which ones.
        handles: Of these only those with one of these handles, as many as it stands there; None for all of them.
        rate: How many a second at most; None for as fast as possible.
        most: How many at most; None for all.
        timeout: Seconds to wait for room, or for a role of an AsyncQueue; None to wait for ever.
        source: The argument of the queue's methods for where the dead letters are, if that is not the usual place.
        on_step: Called with how many more are done.
        target: The queue to which they move.

    Attributes:
        looked: How many dead letters it has looked at.
        total: How many there were when it began; None before that.
        done: How many were requeued, moved or deleted.
        gone: How many of them somebody else had moved or deleted before.
        missing: When it has ended, those of the ids looked for that no dead letter had. They count as gone.
        waiting: What it waits for; "" while it goes on.
    """

    def __init__(
        self, queue: Any, work: Work, search: DeadLetterSearch, *, handles: Iterable[str] | None = None,
        rate: float | None = None, most: int | None = None, timeout: float | None = None,
        source: Mapping[str, str] | None = None, on_step: Callable[[int], object] = lambda _: None, target: Any = None,
    ) -> None:  # fmt: skip
        self.looked = 0
        self.total: int | None = None
        self.done = 0
        self.gone = 0
        self.waiting = ""
        self._queue = queue
        self._act = act_of(queue, work, target)
        self._search = search
        self._asked = search if search.ids is None else DeadLetterSearch(ids=search.ids)
        self._handles = None if handles is None else Counter(handles)
        self._rate = rate
        self._most = most
        self._timeout = timeout
        self._source = dict(source or {})
        self._on_step = on_step
        self.missing = set(search.ids or ())
        self._newest = 0.0

    async def run(self) -> None:
        """Do it.

        Raises:
            PressureError: A step failed. `done` says how many were done before.

        Cancelled, each of them is done, or a dead letter as before.
        """
        left = self.total = await self._begin()
        before = -1
        while self._seeks and left > 0 and self.done > before:  # others may have shifted some before where it was
            before = self.done
            await self._pass(left, again=before > 0)
            left = self.total - self.done  # the other ones are behind
        self.gone += len(self.missing) if self._handles is None else self._handles.total()

    @property
    def _more(self) -> bool:
        return self._most is None or self.done < self._most

    @property
    def _seeks(self) -> bool:
        return self._more and (self._handles is None or self._handles.total() > 0)

    def _chosen(self, letters: Sequence[DeadLetter[Any]]) -> Sequence[DeadLetter[Any]]:
        """Return those with handles that are sought, and seek these no more."""
        if self._handles is None:
            return letters
        chosen = []
        for letter in letters:
            handle = handle_of(letter)
            if self._handles[handle]:
                self._handles[handle] -= 1
                chosen.append(letter)
        return chosen

    async def _begin(self) -> int:
        """Return how many there are, and note when the newest one became one, by the clock that has set it."""
        page = await self._queue.find_dead_letters(look=1, **self._source)
        if page.total > 1:
            newest = cursor_of(PLACE, page.total - 1)
            page = await self._queue.find_dead_letters(cursor=newest, look=1, **self._source)
        self._note_times(page.letters)
        return page.total  # type: ignore[no-any-return]

    def _note_times(self, letters: Sequence[DeadLetter[Any]]) -> None:
        self._newest = max([self._newest, *(letter.when for letter in letters if letter.when is not None)])

    async def _pass(self, left: int, again: bool) -> None:
        """Go once from the oldest one to the newest one of so many; again, to those that are not newer."""
        cursor = None
        while self._seeks and left > 0:
            page = await self._queue.find_dead_letters(self._asked, cursor=cursor, look=min(LOOK, left), **self._source)
            self.missing.difference_update(letter.id for letter in page.letters)
            letters = [letter for letter in page.letters if self._search.finds(letter)]
            if again and self._handles is None:
                letters = [letter for letter in letters if (letter.when or 0.0) <= self._newest]
            self._note_times(letters)
            done = await self._work_on(self._chosen(letters))
            left -= page.looked
            self.looked = min(self.total or 0, self.looked + page.looked)
            cursor = page.cursor_without(done)
            if cursor is None:
                return

    async def _work_on(self, letters: Sequence[DeadLetter[Any]]) -> int:
        """Move or delete dead letters; return how many."""
        before = self.done
        while letters and self._more:
            most = _MOST if self._rate is None else max(1, min(_MOST, int(self._rate)))
            if self._most is not None:
                most = min(most, self._most - self.done)
            chunk, letters = letters[:most], letters[most:]
            await self._step(chunk)
            if self._rate is not None:
                await asyncio.sleep(len(chunk) / self._rate)
        return self.done - before

    async def _step(self, chunk: Sequence[DeadLetter[Any]]) -> None:
        """Move or delete some, waiting for room."""
        timeout = _PATIENCE if self._timeout is None else self._timeout
        accepted = 0
        while True:
            try:
                outcome = await self._act(ids=chunk, timeout=timeout, **self._source)
            except PressureError as error:
                accepted += error.accepted
                self._note(error.accepted)
                if self._timeout is not None or not isinstance(error, (QueueFullError, QueueInUseError)):
                    raise
                self.waiting = str(error)
                continue
            self.waiting = ""
            self._note(outcome)
            self.gone += max(0, len(outcome.not_found) - accepted)  # those that were accepted are not found any more
            return

    def _note(self, done: int) -> None:
        self.done += done
        if done:
            self._on_step(done)
