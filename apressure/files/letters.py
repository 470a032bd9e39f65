"""Dead letters: read from the directory that they are in, and moved back from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.putting import Putter
from apressure.files.storage.directory import Directory, Letter
from apressure.files.storage.index import Index

T = TypeVar("T")


def oldest_first(dead: Directory) -> list[str]:
    """Open a directory, and return the names of its dead letters. Reasons of those that are gone are deleted."""
    dead.open(create=False)
    files, _ = dead.list()
    index = Index.of(files, 0.0)
    dead.forget_orphans(index.orphans())
    return index.waiting_names()


def read_letters(dead: Directory, limit: int | None, decode: Callable[[bytes], T]) -> list[DeadLetter[T]]:
    """Return the oldest dead letters, at most `limit`; none where the directory does not exist."""
    letters: list[DeadLetter[T]] = []
    try:
        found = oldest_first(dead)
    except QueueDoesNotExistError:
        return letters
    for filename in found:
        if limit is not None and len(letters) >= limit:
            break
        letter = dead.letter(filename)
        if letter is not None:  # another client may have taken it
            letters.append(_shown(filename, letter, decode))
    return letters


def _shown(message_id: str, letter: Letter, decode: Callable[[bytes], T]) -> DeadLetter[T]:
    data, reason, refused = letter
    if refused is not None:
        decode = _refusing(refused)
    if not reason.attempts:
        return DeadLetter(message_id, data, None, None, None, decode)
    error = dead_letters.decode(reason.error, reason.attempt) if reason.attempt else None
    return DeadLetter(message_id, data, reason.attempts, error, reason.when / 1e6, decode)


def _refusing(error: StorageError) -> Callable[[bytes], Any]:
    def refuse(data: bytes) -> Any:  # noqa: ARG001
        raise error

    return refuse


class Revived:
    """Dead letters on their way back to the end of the queue.

    Args:
        putter: Puts them.
        dead: The directory that they are in.
        filenames: Their names, the oldest first.
        missing: The ids that were asked for, or nothing.
        breathe: Lets other tasks run now and then.

    Attributes:
        moved: How many have been moved.
        not_found: The ids that no dead letter has (any more).
    """

    def __init__(
        self,
        putter: Putter,
        dead: Directory,
        filenames: list[str],
        missing: dict[str, None],
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        self.moved = 0
        self.not_found = missing
        self._putter = putter
        self._dead = dead
        self._left = filenames[::-1]
        self._breathe = breathe

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return bool(self._left)

    async def step(self) -> Wait | None:
        """Move all for which there is room. What waits for room keeps its place in the line."""
        while self._left:
            await self._breathe()
            adopted = await self._putter.adopt(self._dead, self._left[-1])
            if adopted is None:
                return FULL
            filename = self._left.pop()
            if adopted:
                self.moved += 1
                self.not_found.pop(filename, None)
        return None
