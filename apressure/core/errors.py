"""The errors that steps of every kind of queue tell of."""

from __future__ import annotations

from typing import Any

from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError, ServerError


def closed(name: str) -> QueueClosedError:
    """The error for a queue that is closed."""
    return QueueClosedError(f"the queue {name!r} is closed", name=name)


def missing(name: str, what: str = "the URL") -> QueueDoesNotExistError:
    """The error for a queue that does not exist; `what` may be wrong."""
    return QueueDoesNotExistError(f"the queue {name!r} does not exist: create it first, or check {what}", name=name)


def refusal(answer: list[Any], name: str, what: str = "the URL", advice: str = "") -> PressureError:
    """The error for a step that was answered with `closed`, `missing` or `corrupt`; `what` as for `missing`."""
    if answer[0] == b"corrupt":
        return damaged(name, answer[1], advice)
    return closed(name) if answer[0] == b"closed" else missing(name, what)


def damaged(name: str, why: bytes, advice: str = "") -> ServerError:
    """The error for a queue with a value that is not a queue's; `advice` goes on with what helps."""
    return ServerError(
        f"the queue {name!r} is damaged: {why.decode(errors='replace')}; nothing was written. Correct the value with "
        f"redis-cli{advice}"
    )
