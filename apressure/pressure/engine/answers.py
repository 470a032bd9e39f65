"""What the answers of scripts mean: values, waits and exceptions. Both engines raise the errors of this module."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Final

from apressure.connection.moves import too_many
from apressure.core import errors
from apressure.core.browsing import Found
from apressure.core.dedup_lane import Answer
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, LeaseLostError, QueueAlreadyExistsError, Role, ServerError

_WHERE: Final = "the URL and the prefix"
missing = functools.partial(errors.missing, what=_WHERE)
"""The error for a queue that does not exist."""


def collides(name: str, bound: bytes) -> QueueAlreadyExistsError:
    """The error for a queue that cannot exist beside another one, whose `:bound` is given."""
    other = bound.removesuffix(b":bound").decode(errors="replace")
    return QueueAlreadyExistsError(
        f"the queue {name!r} would share a key with the existing queue at {other!r}: choose another name", name=name
    )


def read(answer: Any, name: str, role: Role | None) -> Any:  # noqa: PLR0912 (one branch for each kind of answer)
    """Turn a script's answer into a value, a `Wait` or an exception.

    Args:
        answer: The answer.
        name: The queue's name, for errors.
        role: The role that the step works in, for errors.
    """
    if isinstance(answer, DurabilityError):
        answer.answer = read(answer.answer, name, role)
    if not isinstance(answer, list) or not isinstance(answer[0], bytes):
        return answer
    match answer[0]:
        case b"dedup":
            return Answer.read(answer[1], *(read(one, name, role) for one in answer[2:]))
        case b"ok":
            return answer[1] if len(answer) == 2 else answer[1:]
        case b"messages":
            return answer[1] if len(answer) == 2 else list(itertools.chain.from_iterable(answer[1:]))
        case b"full" | b"few" | b"room" | b"empty" | b"watch" | b"turn" | b"draining" | b"limited" | b"paused":
            lease, due = (value if value >= 0 else None for value in (*answer[1:], -1, -1)[:2])
            return Wait(answer[0].decode(), lease, due=due, closed=len(answer) > 3)  # type: ignore[arg-type]
        case b"browsed":
            return Found.read(*answer[1:])
        case b"large":
            return too_many(name, answer[1])
        case b"busy":
            holder = answer[2].decode(errors="replace") or None
            return Wait(answer[1].decode(), answer[3] if answer[3] >= 0 else None, holder=holder)
        case b"missing" | b"closed" | b"corrupt":
            return errors.refusal(answer, name, _WHERE, ", or delete the key if it is a statistic")
        case b"lost":
            message = f"the lease on the {role} role of the queue {name!r} expired, and another client took over"
            return LeaseLostError(message, name=name, role=role or "consumer")
        case b"dead":
            return ServerError(
                f"a dead letter of the queue {name!r} cannot be moved to the dead-letter queue: "
                f"{answer[1].decode(errors='replace')}; nothing was moved or received: repair that queue, or "
                "choose another with dead_letters="
            )
        case _:
            return answer
