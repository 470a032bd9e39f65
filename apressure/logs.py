"""What apressure logs: the events by name, the attributes that their records have, and how many come at most.

Every event is a record of the logger `apressure` with the attributes `event`, `queue` and others of `KEYS`, as
`logging`'s `extra` sets them. Nothing is installed: without a configuration, Python shows warnings and errors on
stderr. No I/O.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from apressure.exceptions import PressureError

logger: Final = logging.getLogger("apressure")

KEYS: Final = frozenset({
    "address", "attempts", "count", "delivery", "destination", "error", "event", "expires", "handled", "failed",
    "handler", "holder", "kind", "max_attempts", "operation", "preview", "queue", "role", "seconds", "signal",
    "suppressed", "token", "dead_letters", "position", "bound", "refused", "number", "exit_code", "who",
    "drained",
})  # fmt: skip
"""The attributes of records."""

Told = int | Sequence[Any]
"""What a step on the server tells of dead letters, as `told` in `connection/lua` returns it: nothing is 0."""

_MOST: Final = 20
_WINDOW: Final = 10.0
_LONG_WINDOW: Final = 600.0
MOST_PREVIEW: Final = 1000
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
    if not 0 <= most <= MOST_PREVIEW:
        raise ValueError(f"most must be from 0 to {MOST_PREVIEW}, not {most}")
    _previewed = most


def preview(message: bytes) -> dict[str, str]:
    """Return the attribute that shows the beginning of a message, if the program asked for that."""
    if not _previewed:
        return {}
    shown = ascii(bytes(message[:_previewed]))[2:-1]
    return {"preview": shown + ("…" if len(message) > _previewed else "")}


def printable(text: str) -> str:
    """Return a text that others may have written, such as an id, as one line that every encoding has."""
    return text if text.isprintable() else ascii(text)[1:-1]


def escaped(text: str) -> str:
    """Return a text with control characters made visible, for people; other characters stay as they are."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Limit:
    """Lets through so many records of one kind in 10 s, so that a storm of redeliveries does not become one of logs.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, str], list[float]] = {}

    def passes(self, event: str, queue: str, most: int = _MOST, seconds: float = _WINDOW) -> int | None:
        """Return how many were left out before this one, which may pass; None if this one is left out, too."""
        now = self._clock()
        window = self._windows.get((event, queue))
        if window is None or now - window[0] >= seconds:
            if len(self._windows) > 1000:  # names of queues may come from outside
                self._windows.clear()
            left_out = 0 if window is None else max(0, int(window[1]) - most)
            self._windows[event, queue] = [now, 1]
            return left_out
        window[1] += 1
        return 0 if window[1] <= most else None

    def leave_out(self, event: str, queue: str, count: int) -> None:
        """Count records that were left out right after one that had its turn."""
        if count and (window := self._windows.get((event, queue))) is not None:
            window[1] = max(window[1], _MOST) + count


_limit = Limit()


def warn(event: str, queue: str, text: str, *arguments: Any, message: bytes = b"", **keys: Any) -> None:
    """Log a warning about messages or a lease.

    No more than 20 of the same event and queue are logged within 10 s.

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
    suppressed = _limit.passes(event, queue)
    if suppressed is None:
        return
    keys = {key: printable(one) if isinstance(one, str) else one for key, one in keys.items()}
    if message and (shown := preview(message)):
        text, arguments, keys = f"{text}: %s", (*arguments, shown["preview"]), {**keys, **shown}
    if suppressed:
        text, arguments = f"{text} (and %d more before)", (*arguments, suppressed)
        keys["suppressed"] = suppressed
    logger.warning(text, *arguments, extra={"event": event, "queue": printable(queue), **keys}, stacklevel=2)


def redelivered(kind: str, queue: str, delivery: str, attempts: int, message: bytes) -> None:
    """Log that a message was delivered before."""
    text = "the message %s of the queue %r is delivered again: attempt %d"
    keys = {"kind": kind, "delivery": delivery, "attempts": attempts}
    warn("redelivered", queue, text, printable(delivery), queue, attempts, message=message, **keys)


def not_watched(queue: str, error: OSError, to_do: str, seconds: float) -> None:
    """Log that a directory is listed every few seconds, since the kernel does not tell of its changes.

    It is a trouble of the process, not of one queue: of each cause, one in 10 minutes is logged.
    """
    if _limit.passes("not_watched", f"errno {error.errno}", 1, _LONG_WINDOW) is not None:
        text = (
            "cannot watch the directory of the queue %r: %s. It is listed every %g s until it can be watched, and so "
            "are others. %s"
        )
        name, why = type(error).__name__, error.strerror
        warn("not_watched", queue, text, queue, why, seconds, to_do, kind="FileQueue", error=name, seconds=seconds)


def schedule_damaged(queue: str, schedule: str, error: ValueError) -> None:
    """Log that the record of a schedule is damaged, of each one once in 10 minutes: it is read every few seconds."""
    if _limit.passes("schedule_damaged", f"{queue} {schedule}", 1, _LONG_WINDOW) is not None:
        text = "%s in the queue %r; delete it, or write it again with `every`"
        warn("schedule_damaged", queue, text, error, queue)


class _Bounded(Protocol):
    @property
    def name(self) -> str: ...

    async def bound(self) -> int: ...


async def kept_bound(queue: _Bounded, bound: int) -> None:
    """Warn if a queue that was to be created exists with another bound, which it keeps.

    Where the bound cannot be looked at, nothing is told: the queue is there all the same.
    """
    if not bound:
        return
    with contextlib.suppress(PressureError):
        kept = await queue.bound()
        if kept != bound:
            text = "the queue %r exists with bound=%d and keeps it, not %d: to change it, call set_bound()"
            kind = type(queue).__name__
            warn("bound_kept", queue.name, text, queue.name, kept, bound, kind=kind, bound=kept, refused=bound)


def role(event: str, queue: str, name: str, token: bytes = b"", shared: bool = False, kind: str = "AsyncQueue") -> None:
    """Log that this client has taken a role, or gives it back. Where consumers compete, the role is shared."""
    if logger.isEnabledFor(logging.INFO):
        what = "take" if event == "role_taken" else "give back"
        keys = {"event": event, "kind": kind, "queue": queue, "role": name}
        logger.info(
            "%s the %s role of the queue %r%s", what, name, queue, ", shared with others" if shared else "",
            extra={**keys, "token": token.decode()} if token else keys,
        )  # fmt: skip


def closing(connections: int) -> None:
    """Log that a client which has so many connections is being closed."""
    logger.info("closing the client", extra={"event": "client_closing", "count": connections})


def step(operation: str, seconds: float, error: BaseException | None) -> None:
    """Log a step that has ended, for DEBUG. Its arguments and its answer may be confidential."""
    name = None if error is None else type(error).__name__
    logger.debug(
        "the step %s took %.6f s%s", operation, seconds, f": {name}" if name else "",
        extra={"event": "step", "operation": operation, "seconds": seconds, "error": name},
    )  # fmt: skip


def lease_lost(
    kind: str, queue: str, count: int, error: Exception, token: bytes = b"", role: str = "consumer", delivery: str = "",
    attempts: int = 0, message: bytes = b"",
) -> None:  # fmt: skip
    """Log that others get what was in hand: all of it, or one delivery."""
    keys: dict[str, Any] = {"kind": kind, "role": role, "count": count, "error": type(error).__name__}
    if token:
        keys["token"] = token.decode()
    if delivery:
        keys["delivery"] = delivery
    if attempts:
        keys["attempts"] = attempts
    text = "a lease of the queue %r (%s) was lost, with %d in hand: %s"
    warn("lease_lost", queue, text, queue, role, count, error, message=message, **keys)


def unacknowledged(kind: str, queue: str, count: int) -> None:
    """Log that a consumer has ended, and so many of its acknowledgements got no answer, or failed. 0 logs nothing."""
    if count:
        text = "%d acknowledgement%s of the queue %r may not have arrived: these messages may be delivered again"
        warn("unacknowledged", queue, text, count, "" if count == 1 else "s", queue, kind=kind, count=count)


def dead_letter(
    kind: str,
    queue: str,
    delivery: str,
    attempts: int,
    message: bytes = b"",
    dead_letters: str = "",
    position: str = "",
    reason: str = "",
) -> None:
    """Log that a message was given up: it became a dead letter.

    Args:
        kind: The kind of the queue.
        queue: Its name.
        delivery: What names the message; empty where nothing does.
        attempts: How often it was delivered.
        message: Its contents, or their beginning, for the preview.
        dead_letters: The name of the queue that it is in now; empty if it is beside this one.
        position: Its place in that queue.
        reason: Why, where the program wants the log to say it: it may be confidential.
    """
    keys: dict[str, Any] = {"kind": kind, "attempts": attempts}
    text = "a message of the queue %r"
    arguments: list[Any] = [queue]
    if delivery:
        text, arguments, keys["delivery"] = "the message %s of the queue %r", [printable(delivery), queue], delivery
    text, arguments = f"{text} became a dead letter at attempt %d", [*arguments, attempts]
    if dead_letters:
        text, arguments, keys["dead_letters"] = f"{text}: it is in %r now", [*arguments, dead_letters], dead_letters
    if position:
        text, arguments, keys["position"] = f"{text}, as number %s", [*arguments, position], position
    if reason:
        text, arguments = f"{text}: %s", [*arguments, printable(reason)]
    warn("dead_letter", queue, text, *arguments, message=message, **keys)


def dead_letters(kind: str, queue: str, told: Told, place: str = "") -> int:
    """Log the dead letters of a step on the server.

    Args:
        kind: The kind of the queue.
        queue: Its name.
        told: What the step tells of them.
        place: The name of the queue that they are in now; then the step tells their places in it, and else their ids.

    Returns:
        How many there are.
    """
    if isinstance(told, int):
        return told
    count, *rest = told  # at most 20 are named
    for name, attempts, beginning in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        called = name.decode(errors="backslashreplace")
        delivery, position = ("", called) if place else (called, "")
        dead_letter(kind, queue, delivery, attempts, beginning, place, position)
    _limit.leave_out("dead_letter", queue, count - len(rest) // 3)
    return int(count)
