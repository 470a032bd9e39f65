"""Judges a queue by its snapshots: which findings there are. This module sends nothing; `words` says them.

A snapshot is what the step `examine` answered.

In a single snapshot most faults look like an operation under way: a client that works step by step has the role's token
with it. So two snapshots are compared, and only what has not moved between them is a fault.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from apressure.core.limits import UNLIMITED, read_limits
from apressure.exceptions import ROLES, Role
from apressure.pressure.doctor.words import Finding, FindingKind, duration, finding, quoted, shown, text_of
from apressure.pressure.engine.keys import Keys

CLAIM_MS = 5000
"""Milliseconds after which an unused claim belongs to a dead client; as in `lua/prelude/01_keys.lua`."""


class KeyState(NamedTuple):
    """The value of a key: its type, its size, and the beginning of a string."""

    kind: str
    size: int
    value: bytes

    def __str__(self) -> str:
        return shown(self.value) if self.kind == "string" else f"a {self.kind}"


class Lease(NamedTuple):
    """Which client holds a role under a lease, and for how long.

    Attributes:
        uid: The client.
        since: Milliseconds of the server's clock; None where it is unknown.
        left: Milliseconds until it ends; None where another program wrote there.
        overlong: Its deadline is further away than its duration: the server's clock was set back.
    """

    uid: bytes
    since: int | None = None
    left: int | None = None
    overlong: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has expired."""
        return self.left is None or self.left <= 0


class Snapshot:
    """A snapshot of a queue.

    Args:
        name: The queue's name.
        keys: Its keys.
        answer: What the step `examine` answers.
    """

    def __init__(self, name: str, keys: Keys, answer: list[Any]) -> None:
        now, marks, seen, producer, consumer, collision, apart, redelivered, members, delayed, said = answer
        self.name = name
        self.keys = keys
        self.now: int = now
        self.marks: list[bytes] = marks
        self.at = {
            key: KeyState(kind.decode(), size, value)
            for key, (kind, size, value) in zip((*keys.specified, *keys.ours), seen, strict=True)
        }
        self.leases = {
            role: _lease(lease) if lease else None for role, lease in zip(ROLES, (producer, consumer), strict=True)
        }
        """The leases on the roles."""
        self.members = [Lease(*member) if member else Lease(b"") for member in members]
        """The clients that share the consumer role."""
        self.foreign: dict[bytes, int] = {keys.apart: apart, keys.redelivered: redelivered, keys.delayed: delayed}
        """How many entries of these keys were written by other programs."""
        self.collision = keys.collisions()[collision - 1] if collision else None
        self.bound = max(0, self.integer(keys.bound) or 0)
        """The most messages that may wait, 0 for no bound."""
        self.length = self.at[keys.messages].size
        """How many messages wait."""
        self.in_flight = self.at[keys.inflight].size + self.at[keys.apart].size
        """How many messages are in flight."""
        self.paused: bytes = said[0]
        """Since when it is paused, and by which client; empty if it is not."""
        self.limits = read_limits(*said[1]) if said[1] else UNLIMITED
        """How many messages it hands out."""

    @property
    def exists(self) -> bool:
        """Whether the queue exists (specification: Exists)."""
        return self.there(self.keys.bound)

    def there(self, key: bytes) -> bool:
        """Whether the key exists."""
        return self.at[key].kind != "none"

    def integer(self, key: bytes) -> int | None:
        """The number at a key: 0 where there is none, None where a queue cannot use the value."""
        state = self.at[key]
        if state.kind == "none":
            return 0
        usable = state.kind == "string" and state.size <= 18 and re.fullmatch(rb"0|-?[1-9][0-9]*", state.value)
        return int(state.value) if usable else None

    def hidden(self, role: Role) -> bool:
        """Whether the role's token is missing: a client that works step by step has it, or it is lost."""
        keys = self.keys
        return not any(map(self.there, (keys.free(role), keys.claim(role), keys.lease(role))))

    def holder(self, role: Role) -> str | None:
        """The name that the server shows for a role."""
        return text_of(self.at[self.keys.holder(role)].value) if self.there(self.keys.holder(role)) else None


def _lease(answer: list[Any]) -> Lease:
    if len(answer) == 1:
        return Lease(answer[0])
    uid, since, left, overlong = answer
    return Lease(uid, None if since < 0 else since, left, bool(overlong))


def diagnose(earlier: Snapshot | None, snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return what is wrong with a queue, and what else is worth knowing.

    Args:
        earlier: An earlier snapshot; None to leave out what may be an operation under way.
        snapshot: The snapshot.
    """
    return tuple(_Judge(earlier, snapshot).judge())


def suspicious(snapshot: Snapshot) -> bool:
    """Whether a second snapshot could show faults that one snapshot cannot."""
    return diagnose(snapshot, snapshot) != diagnose(None, snapshot)


class _Judge:
    """Two snapshots of a queue, and what they show. Its methods give the findings of one subject each."""

    def __init__(self, earlier: Snapshot | None, snapshot: Snapshot) -> None:
        self._earlier = earlier
        self._snapshot = snapshot
        self._keys = snapshot.keys
        self._there = snapshot.there

    def judge(self) -> Iterator[Finding]:
        """All findings."""
        snapshot = self._snapshot
        if snapshot.collision is not None:
            if snapshot.exists:  # otherwise the keys belong to the other queue
                yield self._found("collision", other=text_of(snapshot.collision.removesuffix(b":bound")))
            return
        damage = [*self._wrong_types(), *(self._numbers() if snapshot.exists else ())]
        yield from damage
        if any(found.kind in ("broken_bound", "wrong_type") for found in damage):
            return  # everything else depends on these keys
        for role in ROLES:
            yield from self._leases(role)
            yield from self._tokens(role)
        yield from self._entries()
        if snapshot.exists:
            if self._is_half_created():
                yield self._found("half_created")
                return
            for role in ROLES:
                yield from self._hidden(role)
            yield from self._permits()
            yield from self._state()
        elif any(map(snapshot.there, snapshot.at)):
            yield from self._remains()

    def _found(
        self, kind: FindingKind, role: Role | None = None, holder: str | None = None, form: str = "", key: bytes = b"",
        **values: object,
    ) -> Finding:  # fmt: skip
        """Return a finding of a kind, or of a form of it; `key` is the key concerned."""
        snapshot = self._snapshot
        values |= {"state": snapshot.at.get(key), "key": text_of(key), "command_key": quoted(key)}
        return finding(kind, form, role, holder, snapshot.name, snapshot=snapshot, **values)

    def _unmoved(self, role: Role | None = None) -> bool:
        """Whether nothing has changed since the earlier snapshot, in a role or in the whole queue."""
        index, earlier = 0 if role is None else 1 + ROLES.index(role), self._earlier
        return earlier is not None and earlier.marks[index] == self._snapshot.marks[index]

    def _wrong_types(self) -> Iterator[Finding]:
        keys = self._keys
        for key, expected in keys.types.items():
            if self._snapshot.at[key].kind in ("none", expected) or key in (*keys.statistics, keys.bound):
                continue
            form, aside = "" if key in keys.ours else ", by hand", quoted(key + b".damaged")
            yield self._found("wrong_type", form=form, key=key, expected=expected, aside=aside)

    def _numbers(self) -> Iterator[Finding]:
        keys, integer = self._keys, self._snapshot.integer
        bound = integer(keys.bound)
        if bound is None:
            yield self._found("broken_bound", key=keys.bound)
        elif bound < 0:
            yield self._found("negative_bound", key=keys.bound, bound=bound)
        for key in keys.statistics:
            if integer(key) is None:
                role: Role = "producer" if b":produced_" in key else "consumer"
                yield self._found("broken_statistic", role, key=key, operation="put" if role == "producer" else "get")

    def _leases(self, role: Role) -> Iterator[Finding]:
        snapshot, lease = self._snapshot, self._snapshot.leases[role]
        if lease is None:
            return
        holder = text_of(lease.uid)
        in_flight = snapshot.in_flight if role == "consumer" else 0
        items = f" {in_flight} messages are in flight there." if in_flight else ""
        if lease.ended:
            if lease.left is None:
                why = "cannot be read: another program wrote into it. It counts as expired."
            else:
                why = f"expired {duration(-lease.left)} ago: that client is dead, or blocked."
            yield self._found("expired_lease", role, holder, why=why, items=items)
            return
        if role == "consumer" and snapshot.members:
            yield from map(self._member, snapshot.members)
            return
        left = duration(lease.left or 0)
        if lease.overlong:
            yield self._found("overlong_lease", role, holder, left=left)
        holds = "holds" if lease.since is None else "has held"
        since = "" if lease.since is None else f" for {duration(snapshot.now - lease.since)}"
        yield self._found("leased", role, holder, holds=holds, since=since, left=left, items=items)

    def _member(self, member: Lease) -> Finding:
        """One of the clients that share the consumer role."""
        holder = text_of(member.uid)
        if member.ended:
            ended = "cannot be read" if member.left is None else f"ended {duration(-member.left)} ago"
            return self._found("expired_member", "consumer", holder, ended=ended)
        since, left = duration(self._snapshot.now - (member.since or 0)), duration(member.left or 0)
        return self._found("leased", "consumer", holder, ", and shared", since=since, left=left)

    def _tokens(self, role: Role) -> Iterator[Finding]:
        snapshot, keys = self._snapshot, self._keys
        if self._there(keys.claim(role)):
            until = snapshot.integer(keys.claim_until(role))
            if (until and snapshot.now >= until) or self._unmoved(role):
                yield self._found("abandoned_claim", role, seconds=CLAIM_MS // 1000)
        free, claimed = snapshot.at[keys.free(role)].size, snapshot.at[keys.claim(role)].size
        leased = self._there(keys.lease(role))
        if (tokens := free + claimed + leased) > 1:
            where = [f"{free} in the free list"] * bool(free) + [f"{claimed} claimed"] * bool(claimed)
            where += ["one under a lease"] * leased
            yield self._found("doubled_token", role, tokens=tokens, where=", ".join(where))

    def _entries(self) -> Iterator[Finding]:
        """Entries of our own keys that no client of ours can have left there."""
        snapshot = self._snapshot
        if snapshot.exists and snapshot.in_flight and snapshot.leases["consumer"] is None:
            yield self._found("orphaned_items", "consumer")
        for key, entries in snapshot.foreign.items():
            if entries:
                where = {self._keys.apart: "first in line", self._keys.delayed: "last in line"}.get(key, "away")
                yield self._found("foreign_entry", key=key, entries=entries, where=where)

    def _is_half_created(self) -> bool:
        keys = self._keys
        written = (
            keys.not_full, keys.messages, keys.closed, *keys.statistics, *map(keys.holder, ROLES), *keys.ours,
        )  # fmt: skip
        return self._unmoved() and not any(map(self._there, written))

    def _hidden(self, role: Role) -> Iterator[Finding]:
        """A client that works step by step has the role, or had it when it died."""
        snapshot, keys, there = self._snapshot, self._keys, self._there
        if not snapshot.hidden(role) or not self._unmoved(role):
            return
        holder = snapshot.holder(role)
        who = (
            "no client has written its name" if holder is None else f"the last client to write its name was {holder!r}"
        )
        if role == "producer" and snapshot.bound and snapshot.length >= snapshot.bound and not there(keys.not_full):
            yield self._found("waiting_role", role, holder, who=who, filled="full", waits="room")
        elif role == "consumer" and not snapshot.length and not there(keys.closed):
            yield self._found("waiting_role", role, holder, who=who, filled="empty", waits="a message")
        else:
            permit = ""
            if role == "producer" and not there(keys.closed) and not there(keys.not_full):
                permit = (
                    " If it is alive and waits (cmd=brpop), the permit that it waits for is lost: `redis-cli LPUSH "
                    f"{quoted(keys.not_full)} 0` restores the permit, and so does the next get of apressure that finds "
                    "a message."
                )
            yield self._found("stuck_role", role, holder, who=who, permit=permit)

    def _permits(self) -> Iterator[Finding]:
        snapshot, keys = self._snapshot, self._keys
        if snapshot.hidden("producer"):
            return  # the producer may have the permit with it
        if snapshot.hidden("consumer") and not self._unmoved():
            return  # the consumer may be about to bring it
        bound, length, permits = snapshot.bound, snapshot.length, snapshot.at[keys.not_full].size
        room = bound == 0 or length < bound
        # (A closed queue needs no permit, and the released C and Python clients bring none.)
        if room and not permits and not self._there(keys.closed):
            limit = f"the bound is {bound}" if bound else "no bound"
            yield self._found("lost_permit", "producer", limit=limit)
        elif permits > room:
            yield self._found("extra_permits", "producer", permits=permits, right="one" if room else "none")

    def _state(self) -> Iterator[Finding]:
        """What is worth knowing of a queue that works."""
        snapshot = self._snapshot
        if snapshot.bound and snapshot.length > snapshot.bound:
            yield self._found("overfull")
        if snapshot.paused:
            since, _, uid = snapshot.paused.partition(b":")
            ago = f" for {duration(snapshot.now - int(since))}" if re.fullmatch(rb"[0-9]{1,13}", since) else ""
            by = f" by {text_of(uid)!r}" if uid else ""
            yield self._found("paused", by=by, ago=ago, queue=shlex.quote(snapshot.name))
        if snapshot.limits != UNLIMITED:
            yield self._found("limited", limits=snapshot.limits, queue=shlex.quote(snapshot.name))

    def _remains(self) -> Iterator[Finding]:
        """What is left of a queue that does not exist."""
        snapshot, keys, there = self._snapshot, self._keys, self._there
        if any(there(keys.lease(role)) or there(keys.claim(role)) for role in ROLES):
            return  # its client gives the role back when it notices, or dies, and its lease expires
        if not self._unmoved():
            return
        if not any(map(there, keys.specified)):
            items = f", and {snapshot.in_flight} messages that were in flight" if snapshot.in_flight else ""
            yield self._found("leftovers", items=items)
            return
        waits = [role for role in ROLES if not there(keys.free(role)) and there(keys.holder(role))]
        if not waits:
            yield self._found("half_deleted")
        for role in waits:
            yield self._found("half_deleted", role, snapshot.holder(role), ", and waits")
