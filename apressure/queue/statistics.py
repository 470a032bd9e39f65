"""What a queue looks like at one moment: immutable, and the only thing that displays and metrics read."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, Literal

from apressure.exceptions import ServerError


@dataclasses.dataclass(frozen=True, slots=True)
class RoleStatistics:
    """Who has a role of a queue.

    Attributes:
        state: `"free"`; `"leased"` by a consumer, a receive or an exclusive producer of apressure; `"claimed"`, on
            its way to a client that waited for it; or `"held"` by a client that works step by step.
        holder: The identity of the holder, or of the last one where the role is free; None if there was none yet.
        since: Since when it is leased; None where the server does not know.
        expires: When the lease ends unless it is renewed; None without a lease.
    """

    state: Literal["free", "leased", "claimed", "held"]
    holder: str | None
    since: datetime | None
    expires: datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a queue.

    Attributes:
        name: The queue's name.
        length: Messages that wait in the queue.
        bound: The most messages that may wait; 0 for no bound.
        closed: Nothing more can be put.
        producer: Who has the producer role.
        consumer: Who has the consumer role.
        produced_messages: Messages put so far.
        produced_bytes: Their size in bytes.
        consumed_messages: Messages got or acknowledged so far.
        consumed_bytes: Their size in bytes.
        in_flight: Messages that were received and are not acknowledged yet.
        waiting_putters: Tasks of this client that are putting into this queue object at the moment.
        waiting_getters: Tasks of this client that are getting from it.
    """

    name: str
    length: int
    bound: int
    closed: bool
    producer: RoleStatistics
    consumer: RoleStatistics
    produced_messages: int
    produced_bytes: int
    consumed_messages: int
    consumed_bytes: int
    in_flight: int
    waiting_putters: int
    waiting_getters: int


def from_snapshot(name: str, snapshot: list[Any], waiting_putters: int, waiting_getters: int) -> QueueStatistics:
    """Read the answer of the step `inspect`.

    Raises:
        ServerError: A number of the specification's keys is none.
    """
    bound, length, closed, in_flight, counters, producer, consumer = snapshot
    numbers = [
        _number(name, what, text)
        for what, text in zip(
            (
                "bound",
                "stats:produced_messages",
                "stats:produced_bytes",
                "stats:consumed_messages",
                "stats:consumed_bytes",
            ),
            (bound, *counters),
            strict=True,
        )
    ]
    return QueueStatistics(
        name=name,
        length=length,
        bound=numbers[0],
        closed=bool(closed),
        producer=_role(producer),
        consumer=_role(consumer),
        produced_messages=numbers[1],
        produced_bytes=numbers[2],
        consumed_messages=numbers[3],
        consumed_bytes=numbers[4],
        in_flight=in_flight,
        waiting_putters=waiting_putters,
        waiting_getters=waiting_getters,
    )


def _number(queue: str, what: str, text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ServerError(
            f"the queue {queue!r} is damaged: its key :{what} is not an integer but {text[:40]!r}"
        ) from None


def _role(snapshot: list[Any]) -> RoleStatistics:
    holder, free, claimed, lease_holder, since, deadline = snapshot
    state: Literal["free", "leased", "claimed", "held"]
    if lease_holder:
        state = "leased"
    elif claimed:
        state = "claimed"
    else:
        state = "free" if free else "held"
    shown = (lease_holder or holder).decode(errors="replace") or None
    return RoleStatistics(state, shown, _time(since), _time(deadline))


def _time(milliseconds: bytes) -> datetime | None:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC) if milliseconds else None
