"""What the answers of scripts mean: values, waits and exceptions."""

from __future__ import annotations

from typing import Any, NamedTuple

from apressure.core.browsing import Found
from apressure.core.dedup_lane import Answer
from apressure.core.errors import refusal
from apressure.core.limits import Limits, read_limits
from apressure.core.waiting import Reason, Wait
from apressure.exceptions import DurabilityError, ServerError

Fields = dict[str, str]
"""The fields of a task's hash. What is not UTF-8 has surrogates."""


class Reserved(NamedTuple):
    """A task that a step has reserved.

    Attributes:
        id: Its id.
        fields: All fields of its hash.
    """

    id: bytes
    fields: Fields

    @property
    def claim(self) -> Claim:
        """What names the claim on it."""
        return Claim(self.id, raw(self.fields.get("token", "")), raw(self.fields.get("node", "")))


class Claim(NamedTuple):
    """Names one reservation of a task.

    Attributes:
        id: The task's id.
        token: What is new with each reservation of ours; empty where the released blueque has reserved it.
        node: The listener that has it.
    """

    id: bytes
    token: bytes
    node: bytes


class Reservation(NamedTuple):
    """What a step that reserves has done. Without tasks there may be more: try again.

    Attributes:
        tasks: The tasks, in order.
        dropped: How many ids were dropped whose tasks are missing, or not waiting.
    """

    tasks: list[Reserved]
    dropped: int


class Renewed(NamedTuple):
    """What a step that renews leases has found.

    Attributes:
        paused: Whether the queue is paused or held.
        letters: A letter for each claim, as in `lua/extend.lua`.
    """

    paused: int
    letters: str


class Status(NamedTuple):
    """What a queue has.

    Attributes:
        bound: The most tasks that may wait; 0 for no bound.
        created: Whether it was created: Blueque's queues are not.
        closed: Whether it is closed.
        paused: Since when it is paused, in milliseconds since 1970; 1 if that is not known, 0 if it is not.
        waiting: Tasks that wait.
        scheduled: Tasks that wait for their time.
        started: Tasks that run.
        complete: Tasks that completed, and whose results are kept.
        failed: Tasks that failed.
        leased: Tasks that nodes of ours have.
        reserved: Tasks that registered listeners have.
        listeners: Listeners that are registered.
        listed: Whether it is among the names of all queues.
        due: Milliseconds until a lease may end; None if nothing is leased.
        next_due: Milliseconds until the first scheduled task is due, 0 if it is overdue; None if there is none.
        expired: Tasks that have expired since the queue was created.
        limits: How many tasks it hands out.
        parked: Those that wait and were brought into the line of their key.
    """

    bound: int
    created: bool
    closed: bool
    paused: bool
    waiting: int
    scheduled: int
    started: int
    complete: int
    failed: int
    leased: int
    reserved: int
    listeners: int
    listed: bool
    due: int | None
    next_due: int | None
    expired: int
    limits: Limits
    parked: int

    @property
    def delayed(self) -> int:
        """Tasks that wait for their time."""
        return self.scheduled

    @property
    def exists(self) -> bool:
        """Whether there is such a queue: it was created, or has tasks or listeners, or had some."""
        return self.created or self.listed or bool(self.waiting or self.scheduled or self.complete or self.failed)


def text(data: bytes) -> str:
    """Return a text of the server; what is not UTF-8 becomes surrogates."""
    return data.decode(errors="surrogateescape")


def raw(data: str) -> bytes:
    """Undo `text`."""
    return data.encode(errors="surrogateescape")


def fields_of(flat: list[bytes] | dict[bytes, bytes]) -> Fields:
    """Return names and values in turn as a dictionary. (fakeredis has made one.)"""
    if isinstance(flat, dict):
        return {text(name): text(value) for name, value in flat.items()}
    try:
        texts = b"\0".join(flat).decode().split("\0")  # much faster than one by one
    except UnicodeDecodeError:
        texts = []
    if len(texts) != len(flat):
        texts = [text(one) for one in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def read(answer: Any, name: str) -> Any:  # noqa: PLR0912 (one branch for each kind of answer)
    """Turn a script's answer into a value, a `Wait` or an exception.

    Args:
        answer: The answer.
        name: The queue's name, for errors.
    """
    if isinstance(answer, DurabilityError):
        answer.answer = read(answer.answer, name)
    if isinstance(answer, ServerError) and answer.code in ("CROSSSLOT", "MOVED"):
        return ServerError(
            f"the server is a node of a cluster, which cannot have the queue {name!r}: Blueque's keys share no slot. "
            "Use a single server, or one that Sentinels watch", code=answer.code,
        )  # fmt: skip
    if not isinstance(answer, list):
        return answer
    match answer[0]:
        case b"dedup":
            return Answer.read(answer[1], *(read(one, name) for one in answer[2:]))
        case b"put":
            return int(answer[1] or 0)
        case b"settled" | b"moved" | b"purged" | b"changed":
            return answer[1].decode()
        case b"tasks":
            claim = fields_of(answer[4])
            reserved = [Reserved(one, fields_of(flat) | claim) for one, flat in answer[1]]
            return Reservation(reserved, answer[3])
        case b"task":
            return answer[2]
        case b"browsed":
            return Found.read(*answer[1:])
        case b"extended":
            return Renewed(answer[1] == 1, answer[2].decode())
        case b"empty" | b"limited" | b"paused" | b"draining":
            reason: Reason = answer[0].decode()
            lease, due = (time if time >= 0 else None for time in (answer[1], *answer[3:], -1)[:2])
            return Wait(reason, lease, answer[2] == 1, due=due)
        case b"status":
            bound, is_closed, paused, *counts, listed, lease, next_due, expired, limits, parked = answer[1:]
            flags = (bound >= 0, is_closed == 1, paused)
            times = (time if time >= 0 else None for time in (lease, next_due))
            return Status._make(
                (max(0, bound), *flags, *counts, listed == 1, *times, expired, read_limits(*limits), parked)
            )
        case b"closed" | b"missing" | b"corrupt":
            return refusal(answer, name)
        case _:
            return answer
