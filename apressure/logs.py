"""What apressure logs: the events by name, the attributes that their records have, and how many come at most.

Every event is a record of the logger `apressure` with the attributes `event`, `queue` and others of `KEYS`, as
`logging`'s `extra` sets them. Nothing is installed: without a configuration, Python shows warnings and errors on
stderr. No I/O.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

logger: Final = logging.getLogger("apressure")

KEYS: Final = frozenset({
    "address", "attempts", "count", "delivery", "destination", "error", "event", "expires", "handled", "failed",
    "handler", "holder", "kind", "max_attempts", "operation", "preview", "queue", "role", "seconds", "signal",
    "suppressed", "token", "dead_letters",
})  # fmt: skip
"""The attributes of records."""

_MOST: Final = 20
_WINDOW: Final = 10.0
_MOST_PREVIEW: Final = 1000
_previewed = 0


def set_preview(most: int) -> None:
    """Show the beginning of messages in warnings about them; 0, the default, shows none: they may be confidential.

    Args:
        most: Bytes of a message that are shown, up to 1,000; what is not printable ASCII is escaped.

    Raises:
        TypeError, ValueError: It is no whole number from 0 to 1,000.
    """
    global _previewed  # noqa: PLW0603 (as the level of a logger, it belongs to the process)
    if type(most) is not int:
        raise TypeError(f"most must be a whole number, not {type(most).__name__}")
    if not 0 <= most <= _MOST_PREVIEW:
        raise ValueError(f"most must be from 0 to {_MOST_PREVIEW}, not {most}")
    _previewed = most


def preview(message: bytes) -> dict[str, str]:
    """Return the attribute that shows the beginning of a message, if the program asked for that."""
    if not _previewed:
        return {}
    shown = ascii(bytes(message[:_previewed]))[2:-1]
    return {"preview": shown + ("…" if len(message) > _previewed else "")}


class Limit:
    """Lets through so many records of one kind in 10 s, so that a storm of redeliveries does not become one of logs.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, str], list[float]] = {}

    def passes(self, event: str, queue: str) -> int | None:
        """Return how many were left out before this one, which may pass; None if this one is left out, too."""
        now = self._clock()
        window = self._windows.get((event, queue))
        if window is None or now - window[0] >= _WINDOW:
            if len(self._windows) > 1000:  # names of queues may come from outside
                self._windows.clear()
            left_out = 0 if window is None else max(0, int(window[1]) - _MOST)
            self._windows[event, queue] = [now, 1]
            return left_out
        window[1] += 1
        return 0 if window[1] <= _MOST else None


_limit = Limit()


def warn(event: str, queue: str, text: str, *arguments: Any, message: bytes = b"", **keys: Any) -> None:
    """Log a warning about messages or a lease.

    Of what may come again and again, no more than 20 of the same event and queue are logged within 10 s. A dead letter
    comes once, and each one is logged.

    Args:
        event: The name of the event.
        queue: The name of the queue.
        text: What happened, for people, with `%` for the arguments.
        *arguments: As for `logging`.
        message: What it is about, for the preview.
        **keys: Further attributes, of `KEYS`.
    """
    if not logger.isEnabledFor(logging.WARNING):
        return
    suppressed = 0 if event == "dead_letter" else _limit.passes(event, queue)
    if suppressed is None:
        return
    if message and (shown := preview(message)):
        text, arguments, keys = f"{text}: %s", (*arguments, shown["preview"]), {**keys, **shown}
    if suppressed:
        text, arguments = f"{text} (and %d more before)", (*arguments, suppressed)
        keys["suppressed"] = suppressed
    logger.warning(text, *arguments, extra={"event": event, "queue": queue, **keys}, stacklevel=2)


def redelivered(kind: str, queue: str, delivery: str, attempts: int, message: bytes) -> None:
    """Log that a message was delivered before."""
    text = "the message %s of the queue %r is delivered again: attempt %d"
    keys = {"kind": kind, "delivery": delivery, "attempts": attempts}
    warn("redelivered", queue, text, delivery, queue, attempts, message=message, **keys)


def role(event: str, queue: str, name: str, token: bytes, shared: bool = False) -> None:
    """Log that this client has taken a role under a lease, or gives it back."""
    if logger.isEnabledFor(logging.INFO):
        what = "take" if event == "role_taken" else "give back"
        logger.info(
            "%s the %s role of the queue %r%s", what, name, queue, ", shared with others" if shared else "",
            extra={"event": event, "kind": "AsyncQueue", "queue": queue, "role": name, "token": token.decode()},
        )  # fmt: skip


def lease_lost(
    kind: str, queue: str, count: int, error: Exception, token: bytes = b"", role: str = "consumer", delivery: str = ""
) -> None:
    """Log that others get what was in hand."""
    keys: dict[str, Any] = {"kind": kind, "role": role, "count": count, "error": type(error).__name__}
    if token:
        keys["token"] = token.decode()
    if delivery:
        keys["delivery"] = delivery
    text = "a lease of the queue %r (%s) was lost, with %d in hand: %s"
    warn("lease_lost", queue, text, queue, role, count, error, **keys)


def events_died(queue: str, count: int, attempts: int | None) -> None:
    """Log how many events a step has moved to the dead letters."""
    if count:
        text = "%d event(s) of the queue %r became dead letters: delivered %d time(s) and never acknowledged"
        warn("dead_letter", queue, text, count, queue, attempts or 0, kind="EventQueue", count=count, attempts=attempts)
