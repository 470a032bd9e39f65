"""What the answers of scripts mean: values, waits and exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from apressure.connection.moves import nothing_put, too_many
from apressure.core.browsing import Found
from apressure.core.dedup_lane import Answer, has_put
from apressure.core.errors import refusal
from apressure.core.limits import UNLIMITED, Limits, read_limits
from apressure.core.waiting import Reason, Wait
from apressure.exceptions import DuplicateEventError, DurabilityError
from apressure.logs import Told


class Event(NamedTuple):
    """An event that was popped.

    Attributes:
        id: Its id.
        contents: Its contents.
        attempts: How often it has been delivered, this time included.
        token: The name of its claim; empty if it was acknowledged at once.
        kept: What the queue has noted of it beside its contents, if it was acknowledged at once; otherwise what says
            its cost, if it has one.
    """

    id: bytes
    contents: bytes
    attempts: int = 1
    token: bytes = b""
    kept: bytes = b""


_event: Final[Callable[[Sequence[Any]], Event]] = functools.partial(tuple.__new__, Event)
"""Make an event of all its parts; without a frame, since each item passes here."""


class Popped(NamedTuple):
    """What a pop has done. Without events there may be more: pop again.

    Attributes:
        events: The events, in order.
        dead: What the step tells of events that became dead letters, for `logs.dead_letters`.
    """

    events: list[Event]
    dead: Told


class Extended(NamedTuple):
    """What has been done to claims that should last longer.

    Attributes:
        letters: A letter for each claim, `1` if it lasts longer.
        paused: The queue is paused or held.
    """

    letters: bytes
    paused: int

    @property
    def outcomes(self) -> list[bool]:
        """Whether each claim lasts longer."""
        return [letter == ord("1") for letter in self.letters]


class Status(NamedTuple):
    """What a queue has.

    Attributes:
        bound: The most events that may wait; 0 for no bound.
        created: Whether it was created: okq's queues are not.
        waiting: Events that wait.
        claimed: Events in flight.
        contents: Events whose contents there are: `waiting + claimed`, unless an okq died between its commands.
        consumers: Consumers that are registered, and have given a sign of life.
        closed: Whether it is closed.
        dead: Dead letters.
        due: Milliseconds until a claim may expire; None if nothing is claimed.
        paused: Since when it is paused, in milliseconds since 1970; 1 if that is not known, 0 if it is not.
        delayed: Events that wait for their time.
        next_due: Milliseconds until the first of these is due; None if there is none.
        expired: Events that have expired since the queue was created.
        limits: How many events it hands out.
        parked: Those that wait and were brought into the line of their key.
    """

    bound: int
    created: bool
    waiting: int
    claimed: int
    contents: int
    consumers: int
    closed: bool
    dead: int
    due: int | None
    paused: bool
    delayed: int = 0
    next_due: int | None = None
    expired: int = 0
    limits: Limits = UNLIMITED
    parked: int = 0

    @property
    def exists(self) -> bool:
        """Whether there is such a queue: it was created, or has events or consumers."""
        return self.created or bool(self.waiting or self.claimed or self.contents or self.consumers or self.delayed)


def duplicate(name: str, event: bytes) -> DuplicateEventError:
    """The error for an event whose id is in use."""
    event_id = event.decode(errors="surrogateescape")
    return DuplicateEventError(
        f"the queue {name!r} has an event with the id {event_id!r} already: nothing was put", name=name, id=event_id
    )


def read(answer: Any, name: str, token: bytes = b"") -> Any:  # noqa: PLR0912 (one branch for each kind of answer)
    """Turn a script's answer into a value, a `Wait` or an exception.

    Args:
        answer: The answer.
        name: The queue's name, for errors.
        token: The token of the claims that the step has made.
    """
    if isinstance(answer, DurabilityError):
        answer.answer = read(answer.answer, name, token)
    if not isinstance(answer, list):
        return answer
    match answer[0]:
        case b"pushed" | b"settled" | b"moved" | b"flushed" | b"changed" | b"letters":
            return answer[1]
        case b"dedup":
            return Answer.read(answer[1], *(read(one, name) for one in answer[2:]))
        case b"events":
            ids, contents, attempts, dead, *more = answer[1:]
            kept = more[0] if more else [b""] * len(ids)
            rows = zip(ids, contents, attempts, [token] * len(ids), kept, strict=True)
            return Popped(list(map(_event, rows)), dead)
        case b"event":
            return Event(*answer[1:])
        case b"browsed":
            return Found.read(*answer[1:])
        case b"extended":
            return Extended(answer[1], answer[2] == 1)
        case b"empty" | b"watch" | b"turn" | b"draining" | b"paused":
            reason: Reason = answer[0].decode()
            return Wait(reason, _time(answer[1]), answer[2] == 1)
        case b"limited":
            again, is_created, after = answer[1:]
            return Wait("limited", _time(again), is_created == 1, due=_time(after))
        case b"status":
            bound, waiting, claimed, contents, consumers, is_closed, dead, due, paused, *later = answer[1:]
            delayed, next_due, expired, limits, parked = later
            return Status(
                max(0, bound), bound >= 0, waiting, claimed, contents, consumers, is_closed == 1, dead,
                _time(due), paused, delayed, _time(next_due),
                expired, read_limits(*limits), parked,
            )  # fmt: skip
        case b"healed" | b"ready":
            return answer[1], _time(answer[2])
        case b"closed" | b"missing" | b"corrupt":
            return refusal(answer, name, "the URL and the prefix")
        case b"large":
            return too_many(name, answer[1])
        case b"lost":
            return nothing_put(name)
        case _:
            return answer


def _time(milliseconds: int) -> int | None:
    """Return a time of an answer, where -1 is none."""
    return milliseconds if milliseconds >= 0 else None


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"pushed"] | [b"settled"] | [b"moved"] | [b"changed"]:
            return bool(answer[1].strip(b"0d:"))
        case [b"dedup"]:
            return has_put(answer[1])
        case [b"events"]:
            return bool(answer[1]) or answer[4] > 0
        case [b"created"] | [b"done"] | [b"flushed"]:
            return True
        case _:
            return isinstance(answer, int) and answer > 0
