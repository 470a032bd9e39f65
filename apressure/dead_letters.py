"""What is kept of a message that failed too often, in every kind of queue: why, how often it was tried, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Generic, Self, TypeVar

__all__ = [
    "DeadLetter",
    "Failure",
    "Requeued",
]

T_co = TypeVar("T_co", covariant=True)

MOST_BYTES: Final = 200
"""Bytes of an error's message that are kept, as UTF-8; of its type half as many."""
_READ: Final = 1000
"""Characters of an error's text that are looked at: it may be huge."""

UNKNOWN: Final = "not settled: the consumer died, lost its lease, or gave it back without an error"
"""What is said of a dead letter without an error."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The error of an attempt, as text.

    Attributes:
        type: The class of the error, with its module unless it is built in; empty where the program gave only a text.
        message: What the error said, on one line: control characters are spaces, and at most 200 bytes are kept.
        attempt: Which attempt it was. Later ones ended without an error.
    """

    type: str
    message: str
    attempt: int

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.type, self.message)))


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T_co]):
    """A message that was delivered too often, as it waits in the dead-letter queue.

    Attributes:
        id: Its name, for `requeue(ids=...)` and `discard`.
        raw: The message, in bytes.
        attempts: How often it was delivered; None where nothing is known of it but the message.
        error: The error of the latest attempt that ended with one; None where none did, or nothing is known.
        when: When it became a dead letter, in seconds since 1970; None where that is unknown.
    """

    id: str
    raw: bytes
    attempts: int | None
    error: Failure | None
    when: float | None
    _decode: Callable[[bytes], T_co] = dataclasses.field(repr=False, compare=False)
    _head: bytes = dataclasses.field(default=b"", repr=False, compare=False)

    @property
    def kept(self) -> bytes:
        """The dead letter as the server has it, of kinds that put something before the message."""
        return self._head + self.raw

    @property
    def item(self) -> T_co:
        """The message, decoded. Raises DecodeError where it cannot be decoded."""
        return self._decode(self.raw)

    @property
    def reason(self) -> str:
        """Why it is a dead letter, on one line, for people."""
        if self.attempts is None:
            return "unknown"
        if self.error is None:
            return UNKNOWN
        late = self.error.attempt < self.attempts
        return f"{self.error} (attempt {self.error.attempt}; later ones: {UNKNOWN})" if late else str(self.error)


class Requeued(int):
    """How many dead letters were moved back, or deleted.

    Attributes:
        not_found: The ids among those asked for that no dead letter has.
    """

    not_found: tuple[str, ...]

    def __new__(cls, moved: int, not_found: Iterable[str] = ()) -> Self:
        self = super().__new__(cls, moved)
        self.not_found = tuple(not_found)
        return self


def encode(error: BaseException | str) -> bytes:
    """Return the type and the message of an error as bytes for a queue to keep: one line, without a traceback.

    Raises:
        TypeError: It is neither an exception nor a text.
    """
    if isinstance(error, str):
        return b"\t" + _line(error, MOST_BYTES)
    if not isinstance(error, BaseException):
        raise TypeError(f"an error must be an exception or a text, not {type(error).__name__}")
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (the text of a program's own exception class)
        text = "(its message cannot be shown)"
    return _line(name, MOST_BYTES // 2) + b"\t" + _line(text, MOST_BYTES)


def encoded(failure: Failure) -> bytes:
    """Return a failure as `encode` does its error."""
    return _line(failure.type, MOST_BYTES // 2) + b"\t" + _line(failure.message, MOST_BYTES)


def decode(data: bytes, attempt: int) -> Failure:
    """Return what `encode` made. Another program may have written it: it is made fit to be shown again."""
    kind, tab, message = data.partition(b"\t")
    if not tab:
        kind, message = b"", data
    texts = [_line(part.decode(errors="replace"), MOST_BYTES).decode() for part in (kind, message)]
    return Failure(texts[0], texts[1], attempt)


def moment_of(letter: DeadLetter[Any]) -> datetime | None:
    """Return when it became a dead letter; None where that is unknown, or another program wrote what is no time."""
    try:
        return None if letter.when is None else datetime.fromtimestamp(letter.when, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def chosen_by(ids: Any) -> tuple[dict[str, None], list[DeadLetter[Any]]]:
    """Return the ids of dead letters in order, and the dead letters that were given themselves, each once.

    Raises:
        TypeError: They are neither strings nor dead letters.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError("ids must be an iterable of ids, such as [letter.id]")
    names: dict[str, None] = {}
    letters: dict[int, DeadLetter[Any]] = {}  # by their identity: several that are equal may be in a queue
    for each in ids:
        if isinstance(each, DeadLetter):
            letters[id(each)] = each
        elif isinstance(each, str):
            names[each] = None
        else:
            raise TypeError(f"an id must be a string, not {type(each).__name__}")
    return names, list(letters.values())


def _line(text: str, most: int) -> bytes:
    """Return the beginning of a text on one line, with nothing that a terminal would obey."""
    line = "".join(c if c.isprintable() else " " for c in text[:_READ])
    data = " ".join(line.split()).encode()
    if len(data) <= most and len(text) <= _READ:
        return data
    return data[: most - 3].decode(errors="ignore").encode() + "…".encode()
