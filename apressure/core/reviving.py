"""Dead letters on their way back into the queue, or to be deleted: which ones, and in which steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter

_MOST_CHOSEN: Final = 500
"""Dead letters that are chosen in one step: the server looks for each one in the whole list."""
_MOST_BYTES: Final = 1 << 20


class Revival(Protocol):
    """Dead letters on their way back into the queue, or to be deleted.

    Attributes:
        moved: How many have been moved, or deleted.
    """

    moved: int

    @property
    def not_found(self) -> Iterable[str]:
        """The ids that no dead letter has."""

    @property
    def more(self) -> bool:
        """Whether there are more to move."""

    async def step(self) -> Wait | None:
        """Move or delete the next ones, or answer that there is no room."""


class Reviving:
    """What is the same where the server moves dead letters: the oldest ones, or some that were chosen.

    Args:
        steps: Moves them.
        expected: The queue must have been created.
        present: Look at so many, the oldest first,
        most: and move at most so many of them; None for no limit.

    Attributes:
        moved: How many have been moved.
        not_found: The ids that no dead letter has (any more).
    """

    def __init__(self, steps: Any, expected: bool, present: int, most: int | None) -> None:
        self.moved = 0
        self.not_found: list[str] = []
        self._steps = steps
        self._expected = expected
        self._left = present
        self._most = most
        self._chosen: list[Any] = []

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return self._wanted > 0 or bool(self._chosen)

    @property
    def _wanted(self) -> int:
        """How many of the oldest ones may still be moved."""
        return self._left if self._most is None else min(self._left, self._most - self.moved)


def fitting(chosen: Iterable[bytes]) -> int:
    """Return how many of the chosen dead letters one step looks at."""
    count = size = 0
    for letter in itertools.islice(chosen, _MOST_CHOSEN):
        size += len(letter)
        if count and size > _MOST_BYTES:
            break
        count += 1
    return count


class Chosen(NamedTuple):
    """Which dead letters are moved back, or deleted.

    Attributes:
        most: How many of the oldest ones at most; None for all.
        ids: Or those with these ids; None for the oldest ones.
        letters: And these, which somebody has read.
        source: The queue that has them; None for this queue's own.
        discard: They are deleted.
    """

    most: int | None
    ids: dict[str, None] | None
    letters: Sequence[DeadLetter[Any]]
    source: str | None
    discard: bool = False

    @property
    def names(self) -> list[str]:
        """The ids of all that are chosen, if some are."""
        ids = self.ids or {}
        return [*ids, *(letter.id for letter in self.letters if letter.id not in ids)]

    @property
    def sought(self) -> dict[str, None]:
        """The ids that none of the given dead letters has."""
        given = {letter.id for letter in self.letters}
        return {one: None for one in self.ids or () if one not in given}
