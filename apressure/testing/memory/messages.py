"""What a queue in memory keeps, and what its steps take and return."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from apressure.core.browsing import Seen
from apressure.core.due import MOST_KEY, Due
from apressure.core.limits import Limits
from apressure.core.requests import UNANSWERED

MAX_MESSAGE_SIZE: Final = 1 << 29
"""Bytes."""


@dataclasses.dataclass(slots=True, eq=False)
class Message:
    """A message that waits, is in flight, or is a dead letter.

    Attributes:
        number: Its place in line: what goes back comes before all that was put later.
        id: Its id.
        data: Its contents.
        attempts: How often it has been delivered.
        error: The latest error, as `dead_letters.encode` returns it; empty if there is none.
        failed: Which attempt that was.
        dead_since: When it became a dead letter, in seconds since 1970.
        expires_at: From when on it is not delivered, by the clock.
        key: The key with which it was put; empty for none.
        cost: For how many messages it counts against the rate.
        admitted: Its turn among those of its key has come.
    """

    number: int
    id: str
    data: bytes
    attempts: int = 0
    error: bytes = b""
    failed: int = 0
    dead_since: float = 0.0
    expires_at: float = math.inf
    key: bytes = b""
    cost: int = 1
    admitted: bool = False

    def key_at(self, pointer: str | None) -> bytes:
        """Return its key; nothing where it has none."""
        return self.key or _key_in(self.data, pointer)

    def seen(self, most_bytes: int, due: float | None) -> Seen:
        """Return what `browse` shows of it; `due` is in seconds since 1970."""
        return Seen(
            self.data[:most_bytes], len(self.data), self.id.encode(), self.attempts,
            due=None if due is None else 1000 * due, key=self.key,
        )  # fmt: skip

    def __lt__(self, other: Message) -> bool:
        return self.number < other.number


New = tuple[str, bytes, Due | None]
"""A message that is put: its id, its contents, and on what terms."""


class Taken(NamedTuple):
    """A message that was taken.

    Attributes:
        message: The message.
        attempts: How often it has been delivered, this time included.
        claim: The number of its claim; 0 if it was taken for good.
    """

    message: Message
    attempts: int
    claim: int


class Popped(NamedTuple):
    """What a step has taken, and what became a dead letter instead."""

    taken: list[Taken]
    dead: list[Message]


class Want(NamedTuple):
    """What is asked for, beside messages; as `events.engine.steps.Want`, with `limit` the most deliveries or 0."""

    lease: int
    limit: int
    expected: bool
    in_hand: int | None = None


class Change(NamedTuple):
    """What happens to a claim: its message is acknowledged, or goes back with an error, which may be empty."""

    claim: int
    ack: bool
    error: bytes = b""
    due: Due | None = None
    released: bool = False
    """It goes back as if it had not been taken."""
    reply: bytes = UNANSWERED
    """What is sent to a program that has asked, if it is acknowledged."""


class Extended(NamedTuple):
    """Which claims last longer, and whether the queue is paused."""

    outcomes: list[bool]
    paused: bool


class Status(NamedTuple):
    """What a look at a queue tells."""

    bound: int
    created: bool
    closed: bool
    paused: bool
    waiting: int
    claimed: int
    delayed: int
    next_due: int | None
    expired: int
    limits: Limits
    parked: int

    @property
    def exists(self) -> bool:
        """Whether there is such a queue."""
        return self.created or bool(self.waiting or self.claimed or self.delayed)


def _key_in(data: bytes, pointer: str | None) -> bytes:
    """Return the key at a JSON pointer in a message; nothing where there is none."""
    if pointer is None:
        return b""
    try:
        value: Any = json.loads(data)
        for step in pointer.split("/")[1:]:
            value = _element(value, step.replace("~1", "/").replace("~0", "~"))
    except (ValueError, LookupError):
        return b""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return (f"{value:.0f}" if value % 1 == 0 and abs(value) < 1e21 else f"{value:.14g}").encode()
    return value.encode(errors="surrogateescape")[:MOST_KEY] if isinstance(value, str) else b""


def _element(value: Any, step: str) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value[int(step)]
    if isinstance(value, dict):
        return value[step]
    raise LookupError(step)
