"""For how long the operations of a queue object were blocked, and by what."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from asyncio import Future
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, Literal

Cause = Literal["full", "empty", "limited", "paused", "role"]

_CAUSES: Final[dict[str, Cause]] = {
    "full": "full",
    "few": "full",
    "room": "full",
    "empty": "empty",
    "watch": "empty",
    "turn": "empty",
    "draining": "empty",
    "limited": "limited",
    "paused": "paused",
    "producer": "role",
    "consumer": "role",
    "share": "role",
}
"""What each reason of a wait means to a user. Waiting for a queue to be closed is no blocked operation."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockedSeconds:
    """For how many seconds one or more operations of a queue object were blocked.

    Seconds in which several tasks were blocked by the same thing count once. A consumer that reads ahead counts as
    blocked by an empty queue also while its handlers work.

    Attributes:
        full: Puts, since the queue was full.
        empty: Gets and consumers, since nothing waited.
        limited: Consumers, since the limits of the queue kept its messages.
        paused: Consumers, since the queue was paused.
        role: Operations, since another client had the role that they need.
    """

    full: float = 0.0
    empty: float = 0.0
    limited: float = 0.0
    paused: float = 0.0
    role: float = 0.0


NOT_BLOCKED: Final = BlockedSeconds()

on_block: ContextVar[Callable[[Cause], object] | None] = ContextVar("on_block", default=None)
"""Called with the cause when an operation of this context begins to wait."""


class Blocked:
    """Measures the blocked time of one queue object. An operation that need not wait costs nothing."""

    def __init__(self) -> None:
        self._seconds: dict[Cause, float] = {}
        self._since: dict[Cause, tuple[int, float]] = {}  # how many are blocked, and since when

    def until(self, reason: str, future: Future[Any]) -> None:
        """Count an operation as blocked until the future is done. `reason` is that of a `Wait`."""
        cause = _CAUSES.get(reason)
        if cause is not None:
            self._begin(cause)
            future.add_done_callback(lambda _: self._end(cause))

    @contextlib.contextmanager
    def by(self, cause: Cause | None) -> Iterator[None]:
        """Count an operation as blocked during a block; None counts nothing."""
        if cause is None:
            yield
            return
        self._begin(cause)
        try:
            yield
        finally:
            self._end(cause)

    def seconds(self) -> BlockedSeconds:
        """Return the seconds so far, those of operations that are blocked now included."""
        found = dict(self._seconds)
        now = time.monotonic()
        for cause, (_, since) in self._since.items():
            found[cause] = found.get(cause, 0.0) + now - since
        return BlockedSeconds(**found)

    def _begin(self, cause: Cause) -> None:
        if (tell := on_block.get()) is not None:
            tell(cause)
        count, since = self._since.get(cause) or (0, time.monotonic())
        self._since[cause] = (count + 1, since)

    def _end(self, cause: Cause) -> None:
        count, since = self._since.pop(cause)
        if count > 1:
            self._since[cause] = (count - 1, since)
        else:
            self._seconds[cause] = self._seconds.get(cause, 0.0) + time.monotonic() - since
