"""What dead letters are looked for, and a page of those that were found. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

from apressure import validation
from apressure.core.cursors import cursor_of
from apressure.dead_letters import DeadLetter, chosen_by

T = TypeVar("T")

MOST: Final = 1000
"""The most dead letters that one search looks at."""

_LONGEST: Final = 1 << 20
"""The most bytes of a text that is looked for."""

PLACE: Final = "dead_letters"
"""The place in their cursors."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSearch:
    """What dead letters are looked for: those for which all of this holds.

    Attributes:
        ids: They have one of these ids; None for any.
        error: Their `reason` contains this text, in upper or lower case.
        text: Their message contains this text, in UTF-8. Upper and lower case differ.
        since: They became dead letters at this time or later; None for any time.
        until: They became dead letters before this time; None for any time.

    Raises:
        TypeError, ValueError: One of them is invalid, such as a time without a time zone.

    Where it is not known when a message became a dead letter, it is found only without times.
    """

    ids: Iterable[str] | None = None
    error: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.ids is not None:
            names, letters = chosen_by(self.ids)
            object.__setattr__(self, "ids", frozenset((*names, *(letter.id for letter in letters))))
        validation.text(self.error, "error")
        if validation.text(self.text, "text"):
            validation.encoded(self.text, "text", _LONGEST)
        for name in ("since", "until"):
            time = getattr(self, name)
            if time is not None and not isinstance(time, datetime):
                raise TypeError(f"{name} must be a datetime or None, not {type(time).__name__}")
            if time is not None and time.tzinfo is None:
                raise ValueError(f"{name} must have a time zone: write datetime(…, tzinfo=UTC), or use astimezone()")

    @property
    def everything(self) -> bool:
        """Whether it finds all dead letters."""
        return self == DeadLetterSearch()

    def finds(self, letter: DeadLetter[Any]) -> bool:
        """Whether this is one of them."""
        if self.ids is not None and letter.id not in self.ids:
            return False
        if self.error and self.error.casefold() not in letter.reason.casefold():
            return False
        if self.text and self.text.encode(errors="surrogateescape") not in letter.raw:
            return False
        return self._is_timely(letter.when)

    def _is_timely(self, when: float | None) -> bool:
        if when is None:
            return self.since is None and self.until is None
        since, until = (None if time is None else time.timestamp() for time in (self.since, self.until))
        return (since is None or when >= since) and (until is None or when < until)


class Read(NamedTuple, Generic[T]):
    """Dead letters as a kind of queue has read them.

    Attributes:
        letters: The dead letters.
        looked: How many places it has looked at; 0 at the end.
        total: How many dead letters there are.
    """

    letters: list[DeadLetter[T]]
    looked: int
    total: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetterPage(Generic[T]):
    """What a step of a search has found.

    Attributes:
        letters: The dead letters that were found, the oldest first.
        looked: How many dead letters the step has looked at.
        passed: How many older ones the steps before have looked at.
        total: How many dead letters there are now.
    """

    letters: tuple[DeadLetter[T], ...]
    looked: int
    passed: int
    total: int

    @property
    def cursor(self) -> str | None:
        """For the next step; None at the end."""
        return self.cursor_without(0)

    def cursor_without(self, gone: int) -> str | None:
        """Return the cursor after so many of the dead letters looked at so far were moved or deleted."""
        end = self.passed + self.looked
        return cursor_of(PLACE, max(0, end - gone)) if self.looked and end < self.total else None
