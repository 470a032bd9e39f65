"""An immutable snapshot of a queue: displays and metrics read nothing else."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, Final, Literal

from apressure.core.limits import read_limits
from apressure.core.statistics import BoundedStatistics, moment_of
from apressure.exceptions import ServerError


@dataclasses.dataclass(frozen=True, slots=True)
class RoleStatistics:
    """Which client has a role of a queue.

    Attributes:
        state: `"free"`; `"leased"` by a consumer, a receive or an exclusive producer of apressure; `"claimed"`, on
            its way to a client that waited for it; or `"held"` by a client that works step by step.
        holder: The holder's identity, or the last holder's where the role is free; None if there was none yet.
        since: When the lease began; None where the server does not know.
        expires: When the lease ends unless it is renewed; None without a lease.
    """

    state: Literal["free", "leased", "claimed", "held"]
    holder: str | None
    since: datetime | None
    expires: datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class MemberStatistics:
    """One of the clients that share the consumer role.

    Attributes:
        holder: Its identity.
        since: When it joined.
        expires: When its lease ends unless it is renewed.
    """

    holder: str
    since: datetime | None
    expires: datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics(BoundedStatistics):
    """A snapshot of an `AsyncQueue`: what `BoundedStatistics` says, and more.

    `waiting_receivers` counts gets only. With `scripting=False`, `paused` is also False where the user has no rights to
    apressure's keys.

    Attributes:
        producer: The client that has the producer role.
        consumer: The client that has the consumer role; one of them, if several share it.
        members: The clients that share the consumer role, in the order in which they joined.
        produced_messages: Messages put so far.
        produced_bytes: Their size in bytes.
        consumed_messages: Messages got or acknowledged so far.
        consumed_bytes: Their size in bytes.
        late_renewals: How many renewals of leases on this queue came more than a third of the lease too late, in this
            client: the machine, a handler that holds the GIL or the network delayed them.
    """

    producer: RoleStatistics
    consumer: RoleStatistics
    members: tuple[MemberStatistics, ...]
    produced_messages: int
    produced_bytes: int
    consumed_messages: int
    consumed_bytes: int
    late_renewals: int = 0


_COUNTED: Final = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")


def from_snapshot(name: str, snapshot: list[Any], **own: Any) -> QueueStatistics:
    """Read the answer of the step `inspect`. `own` is what the queue object itself knows.

    Raises:
        ServerError: The bound or a statistic is not an integer.
    """
    bound, length, closed, in_flight, counters, producer, consumer, members, *later = snapshot
    paused, delayed, next_due, limits = later
    own |= {what: _number(name, f"stats:{what}", number) for what, number in zip(_COUNTED, counters, strict=True)}
    return QueueStatistics(
        name=name,
        length=length,
        bound=max(0, _number(name, "bound", bound)),
        closed=bool(closed),
        paused=bool(paused),
        paused_since=moment_of(paused),
        producer=_role(producer),
        consumer=_role(consumer),
        members=tuple(map(_member, sorted(members, key=lambda member: int(member[1])))),
        in_flight=in_flight,
        delayed=delayed,
        limits=read_limits(*limits),
        next_due=None if next_due < 0 else next_due / 1000,
        **own,
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


def _member(snapshot: list[bytes]) -> MemberStatistics:
    holder, since, deadline = snapshot
    return MemberStatistics(holder.decode(errors="replace"), _time(since), _time(deadline))


def _time(milliseconds: bytes) -> datetime | None:
    """Return the time; None for a text that is no time, or one that Python cannot express."""
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
