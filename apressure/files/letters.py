"""Dead letters: read from the directory that they are in, and moved back from there."""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
    try:
        found = oldest_first(dead)
    except QueueDoesNotExistError:
        return []
    # Another client may have taken one meanwhile.
    shown = (_shown(filename, letter, decode) for filename in found if (letter := dead.letter(filename)))
    return list(itertools.islice(shown, limit))


def _shown(message_id: str, letter: Letter, decode: Callable[[bytes], T]) -> DeadLetter[T]:
    data, reason, refused = letter
    if refused is not None:
        decode = functools.partial(_refuse, refused)
    if not reason.attempts:
        return DeadLetter(message_id, data, None, None, None, decode)
    error = dead_letters.decode(reason.error, reason.attempt) if reason.attempt else None
    return DeadLetter(message_id, data, reason.attempts, error, reason.when / 1e6, decode)


def _refuse(error: StorageError, data: bytes) -> Any:  # noqa: ARG001
    raise error


@dataclasses.dataclass(eq=False)
class Revived:
    """Dead letters on their way back to the end of the queue.

    Attributes:
        putter: Puts them.
        dead: The directory that they are in.
        left: The names of those that are left, the oldest last.
        not_found: The ids that were asked for, and that no dead letter has (any more).
        breathe: Lets other tasks run now and then.
        moved: How many have been moved.
    """

    putter: Putter
    dead: Directory
    left: list[str]
    not_found: dict[str, None]
    breathe: Callable[[], Awaitable[None]]
    moved: int = 0

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return bool(self.left)

    async def step(self) -> Wait | None:
        """Move all for which there is room. What waits for room keeps its place in the line."""
        while self.left:
            await self.breathe()
            adopted = await self.putter.adopt(self.dead, self.left[-1])
            if adopted is None:
                return FULL
            filename = self.left.pop()
            if adopted:
                self.moved += 1
                self.not_found.pop(filename, None)
        return None
