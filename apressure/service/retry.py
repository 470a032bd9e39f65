"""`Retry` and `Hold`: what a handler raises to have its item tried again at a time of its choice."""

from __future__ import annotations

from typing import Any, Final

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.core.due import MOST_DELAY
from apressure.core.limiting import LONGEST_HOLD

RETRY: Final = Backoff()
"""How long a service pauses before a retry, where the program does not say."""


def checked_retry(retry: Any) -> Backoff:
    """Return the pauses before retries, or raise if they are not a `Backoff`."""
    if not isinstance(retry, Backoff):
        raise TypeError(f"retry must be a Backoff, such as Backoff(first=5.0), not {type(retry).__name__}")
    return retry


class Retry(Exception):
    """Raised by a handler: try this item again, after a pause.

    That was an attempt, and after `max_attempts` of them the item becomes a dead letter, as after any failure. The log
    has a line, without a traceback.

    Args:
        reason: Why, for the log and for dead letters.
        after: Seconds until the item is due; None for the pause that `retry=` of `serve` says.

    Attributes:
        after: As given.

    Raises:
        TypeError, ValueError: An argument is invalid.

    Example:
        >>> async def handle(order):
        ...     if not await warehouse.has(order):
        ...         raise Retry("not in stock yet", after=600.0)
    """

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"the reason must be a string, not {type(reason).__name__}: the pause is after=")
        super().__init__(reason)
        self.after = None if after is None else validation.seconds(after, "after", most=MOST_DELAY, none=True)

    def __reduce__(self) -> tuple[object, ...]:  # it may come from another process
        return _retry, (self.args[0], self.after)


def _retry(reason: str, after: float | None) -> Retry:
    return Retry(reason, after=after)


class Hold(Exception):
    """Raised by a handler: have the queue hand out nothing for a while, to no process; an API has answered 429.

    The item goes back first in line, and that was no attempt. It comes again when the hold ends. The log has a line,
    without a traceback. See `hold` of the queue.

    Args:
        seconds: How long, from now.
        reason: Why, for the log.

    Attributes:
        seconds: As given.

    Raises:
        TypeError, ValueError: An argument is invalid.

    Example:
        >>> async def handle(order):
        ...     answer = await client.post("/orders", json=order)
        ...     if answer.status_code == 429:
        ...         raise Hold(float(answer.headers["Retry-After"]), "429")
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(validation.text(reason, "the reason"))
        self.seconds = validation.seconds(seconds, "seconds", most=LONGEST_HOLD, above=True)

    def __reduce__(self) -> tuple[object, ...]:  # it may come from another process
        return Hold, (self.seconds, self.args[0])
