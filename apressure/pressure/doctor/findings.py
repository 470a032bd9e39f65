"""Judges a queue by its snapshots: what is wrong, in plain words, and what to do. This module sends nothing.

In a single snapshot most faults look like an operation under way: a client that works step by step has the role's token
with it. So two snapshots are compared, and only what has not moved between them is a fault.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from apressure.exceptions import ROLES, Role
from apressure.pressure.doctor.finding import Finding, by_hand, fault, remark
from apressure.pressure.doctor.snapshot import Snapshot
from apressure.pressure.doctor.words import duration, how_to_find, how_to_give_back, quoted, text_of

CLAIM_MS = 5000
"""Milliseconds after which an unused claim belongs to a dead client; as in `lua/prelude/01_keys.lua`."""


def diagnose(earlier: Snapshot | None, snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return what is wrong with a queue, and what else is worth knowing.

    Args:
        earlier: An earlier snapshot; None to leave out what may be an operation under way.
        snapshot: The snapshot.
    """
    if snapshot.collision is not None:
        return tuple(_collision(snapshot))
    findings = [*_wrong_types(snapshot)]
    if snapshot.exists:
        findings += _numbers(snapshot)
    if any(finding.kind in ("broken_bound", "wrong_type") for finding in findings):
        return tuple(findings)  # everything else depends on these keys
    for role in ROLES:
        findings += _lease(snapshot, role)
        findings += _claim(earlier, snapshot, role)
        findings += _doubled(snapshot, role)
    findings += _orphaned(snapshot)
    findings += _foreign(snapshot)
    if snapshot.exists:
        if half := [*_half_created(earlier, snapshot)]:
            return (*findings, *half)
        for role in ROLES:
            findings += _hidden(earlier, snapshot, role)
        findings += _permits(earlier, snapshot)
        findings += _overfull(snapshot)
        findings += _paused(snapshot)
    elif any(map(snapshot.there, snapshot.keys.specified)):
        findings += _half_deleted(earlier, snapshot)
    elif snapshot.anything:
        findings += _leftovers(earlier, snapshot)
    return tuple(findings)


def suspicious(snapshot: Snapshot) -> bool:
    """Whether a second snapshot could show faults that one snapshot cannot."""
    return diagnose(snapshot, snapshot) != diagnose(None, snapshot)


def _collision(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.exists:
        return  # the keys belong to the other queue
    assert snapshot.collision is not None
    other = text_of(snapshot.collision.removesuffix(b":bound"))
    yield by_hand(
        "collision",
        f"The queue shares a key with the queue whose messages are at {other!r}: each mistakes the other's messages or "
        "tokens for its own.",
        "Drain both, delete them, and choose other names. While both exist, nothing is repaired.",
    )


def _wrong_types(snapshot: Snapshot) -> Iterator[Finding]:
    statistics = snapshot.keys.statistics
    for key, kind in snapshot.keys.types.items():
        found = snapshot.at[key].kind
        if found in ("none", kind) or key in statistics or key == snapshot.keys.bound:
            continue
        text = f"The key {text_of(key)!r} is a {found}, where a queue has a {kind}: another program wrote it."
        if key in snapshot.keys.ours:
            yield fault("wrong_type", text, "Operations on the queue fail. Repairing renames the key.")
            continue
        yield by_hand(
            "wrong_type",
            text,
            f"Check what it is, then rename it: redis-cli RENAME {quoted(key, key + b'.damaged')}, or delete it: "
            f"redis-cli DEL {quoted(key)}. Then run the doctor again: it can repair what is missing.",
        )


def _numbers(snapshot: Snapshot) -> Iterator[Finding]:
    keys = snapshot.keys
    bound = snapshot.integer(keys.bound)
    if bound is None:
        yield by_hand(
            "broken_bound",
            f"The bound is not a number of messages, but {snapshot.at[keys.bound]}: every operation fails.",
            f"Set how many messages N may wait, 0 for no bound: redis-cli SET {quoted(keys.bound)} N.",
        )
    elif bound < 0:
        yield remark(
            "negative_bound",
            f"The bound is {bound}: apressure and the released C and Go clients put without a bound, as with 0; other "
            "clients may treat the queue as full.",
            f"To make all clients agree: redis-cli SET {quoted(keys.bound)} 0.",
        )
    for key in keys.statistics:
        if snapshot.integer(key) is None:
            yield fault(
                "broken_statistic",
                f"The statistic {text_of(key)!r} is not an integer that a queue can use, but {snapshot.at[key]}: "
                f"every {'put' if b':produced_' in key else 'get'} fails.",
                "Repairing sets it to 0.",
                "producer" if b":produced_" in key else "consumer",
            )


def _lease(snapshot: Snapshot, role: Role) -> Iterator[Finding]:
    lease = snapshot.lease(role)
    if lease is None:
        return
    holder = text_of(lease.uid)
    items = snapshot.in_flight if role == "consumer" else 0
    with_items = f" {items} messages are in flight there." if items else ""
    if lease.ended:
        if lease.left is None:
            why = "cannot be read: another program wrote into it. It counts as expired."
        else:
            why = f"expired {duration(-lease.left)} ago: that client is dead, or blocked."
        yield fault(
            "expired_lease",
            f"The lease of {holder!r} on the {role} role {why}{with_items}",
            "The next operation of any apressure client repairs it, and so does repairing: messages in flight become "
            "first in line, and the role is free.",
            role,
            holder,
        )
        return
    if role == "consumer" and snapshot.members:
        yield from _members(snapshot)
        return
    left = duration(lease.left or 0)
    if lease.overlong:
        yield fault(
            "overlong_lease",
            f"The lease of {holder!r} on the {role} role ends too late: the server's clock was set back.",
            f"Repairing makes it end in {left} unless it is renewed, as does any operation of an apressure client.",
            role,
            holder,
        )
    holds = "holds" if lease.since is None else "has held"
    since = "" if lease.since is None else f" for {duration(snapshot.now - lease.since)}"
    yield Finding(
        "leased",
        False,
        "holder",
        f"{holder!r} {holds} the {role} role under a lease{since}; it ends in {left} unless it is renewed.{with_items}",
        f"If that client is dead and you do not want to wait: {how_to_give_back(snapshot.name, holder)}.",
        role,
        holder,
    )


def _members(snapshot: Snapshot) -> Iterator[Finding]:
    """The clients that share the consumer role."""
    for member in snapshot.members:
        holder = text_of(member.uid)
        if member.ended:
            ended = "cannot be read" if member.left is None else f"ended {duration(-member.left)} ago"
            yield fault(
                "expired_member",
                f"The share of {holder!r} in the consumer role {ended}: that client is dead, or blocked.",
                "The next operation of another member repairs it, and so does repairing: its messages become first in "
                "line.",
                "consumer",
                holder,
            )
            continue
        yield Finding(
            "leased",
            False,
            "holder",
            f"{holder!r} has shared the consumer role for {duration(snapshot.now - (member.since or 0))}; its lease "
            f"ends in {duration(member.left or 0)} unless it is renewed.",
            f"If that client is dead and you do not want to wait: {how_to_give_back(snapshot.name, holder)}.",
            "consumer",
            holder,
        )


def _claim(earlier: Snapshot | None, snapshot: Snapshot, role: Role) -> Iterator[Finding]:
    keys = snapshot.keys
    if not snapshot.there(keys.claim(role)):
        return
    until = snapshot.integer(keys.claim_until(role))
    if (until and snapshot.now >= until) or snapshot.unmoved(earlier, role):
        yield fault(
            "abandoned_claim",
            f"The token of the {role} role went to an apressure client that waited for it and does not use it: that "
            "client is dead, or blocked.",
            f"Repairing gives it back {CLAIM_MS // 1000} seconds after a client first noticed it, as do operations of "
            "apressure clients.",
            role,
        )


def _doubled(snapshot: Snapshot, role: Role) -> Iterator[Finding]:
    keys = snapshot.keys
    free, claimed = snapshot.at[keys.free(role)].size, snapshot.at[keys.claim(role)].size
    tokens = free + claimed + snapshot.there(keys.lease(role))
    if tokens > 1:
        where = [f"{free} in the free list"] * bool(free) + [f"{claimed} claimed"] * bool(claimed)
        where += ["one under a lease"] * snapshot.there(keys.lease(role))
        yield fault(
            "doubled_token",
            f"There are {tokens} tokens of the {role} role ({', '.join(where)}): two clients could hold it at once.",
            "A person or program gave back a role that was not lost. Repairing leaves one token.",
            role,
        )


def _orphaned(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.exists and snapshot.in_flight and snapshot.lease("consumer") is None:
        yield fault(
            "orphaned_items",
            f"{snapshot.in_flight} messages are in flight, and the lease that they were received under is gone.",
            "Repairing puts them back, first in line, as does the next operation of any apressure client.",
            "consumer",
        )


def _foreign(snapshot: Snapshot) -> Iterator[Finding]:
    for key, entries in snapshot.foreign.items():
        if entries:
            where = "first in line" if key == snapshot.keys.apart else "away"
            yield fault(
                "foreign_entry",
                f"{entries} entries of the key {text_of(key)!r} are not apressure's: another program wrote them.",
                f"Repairing puts them {where}.",
            )


def _half_created(earlier: Snapshot | None, snapshot: Snapshot) -> Iterator[Finding]:
    keys = snapshot.keys
    written = (
        keys.not_full, keys.messages, keys.closed, *keys.statistics, *map(keys.holder, ROLES), *keys.ours,
    )  # fmt: skip
    if snapshot.unmoved(earlier) and not any(map(snapshot.there, written)):
        yield fault(
            "half_created",
            "The queue has a bound and lacks tokens, and it was never used: the client that created it, step by step, "
            "died in between.",
            "Repairing adds the missing tokens.",
        )


def _hidden(earlier: Snapshot | None, snapshot: Snapshot, role: Role) -> Iterator[Finding]:
    if not snapshot.hidden(role) or not snapshot.unmoved(earlier, role):
        return
    keys, holder = snapshot.keys, snapshot.holder(role)
    bound, length, closed = snapshot.bound, snapshot.length, snapshot.there(keys.closed)
    if role == "producer":
        waits = "room" if bound and length >= bound and not snapshot.there(keys.not_full) else ""
    else:
        waits = "a message" if not length and not closed else ""
    who = "no client has written its name" if holder is None else f"the last client to write its name was {holder!r}"
    if waits:
        text = (
            f"A client that works step by step holds the {role} role; {who}. The queue is "
            f"{'full' if role == 'producer' else 'empty'}, so that client may be waiting for {waits}, as it should; or "
            "it died while it waited."
        )
    else:
        text = (
            f"The {role} role is taken, not by a client of apressure, and nothing has moved there: a client that works "
            f"step by step died during an operation, or is very slow; {who}."
        )
    permit = ""
    if role == "producer" and not waits and not closed and not snapshot.there(keys.not_full):
        permit = (
            " If it is alive and waits (cmd=brpop), the permit that it waits for is lost: "
            f"`redis-cli LPUSH {quoted(keys.not_full)} 0` restores the permit, and so does the next get of apressure "
            "that finds a message."
        )
    yield Finding(
        "waiting_role" if waits else "stuck_role",
        not waits,
        "holder",
        text,
        f"{how_to_find(holder)} If it is dead: {how_to_give_back(snapshot.name, holder)}.{permit}",
        role,
        holder,
    )


def _permits(earlier: Snapshot | None, snapshot: Snapshot) -> Iterator[Finding]:
    keys = snapshot.keys
    if snapshot.hidden("producer"):
        return  # the producer may have the permit with it
    if snapshot.hidden("consumer") and not snapshot.unmoved(earlier):
        return  # the consumer may be about to bring it
    bound, length, permits = snapshot.bound, snapshot.length, snapshot.at[keys.not_full].size
    room = bound == 0 or length < bound
    # (A closed queue needs no permit, and the released C and Python clients bring none.)
    if room and not permits and not snapshot.there(keys.closed):
        yield fault(
            "lost_permit",
            f"There is room ({length} messages; {f'the bound is {bound}' if bound else 'no bound'}), and the permit "
            "that says so is lost: producers that work step by step wait for ever.",
            "Repairing restores it. So does the next operation of apressure while no other client holds a role.",
            "producer",
        )
    elif permits > room:
        yield fault(
            "extra_permits",
            f"There are {permits} permits to put instead of {'one' if room else 'none'}: the bound may be exceeded. A "
            "forced put may leave one, and a client of protocol 0.1 two.",
            "Repairing removes them, as does the next operation of any apressure client.",
            "producer",
        )


def _overfull(snapshot: Snapshot) -> Iterator[Finding]:
    bound, length = snapshot.bound, snapshot.length
    if bound and length > bound:
        yield remark(
            "overfull",
            f"{length} messages wait, more than the bound of {bound}: forced puts and messages that came back do that.",
        )


def _paused(snapshot: Snapshot) -> Iterator[Finding]:
    state = snapshot.at[snapshot.keys.paused]
    if state.kind == "none":
        return
    since, _, uid = state.value.partition(b":")
    ago = f" for {duration(snapshot.now - int(since))}" if re.fullmatch(rb"[0-9]{1,13}", since) else ""
    by = f" by {text_of(uid)!r}" if uid else ""
    yield remark(
        "paused",
        f"The queue has been paused{by}{ago}: consumers of apressure take nothing.",
        f"To let them go on: apressure resume {shlex.quote(snapshot.name)}.",
    )


def _half_deleted(earlier: Snapshot | None, snapshot: Snapshot) -> Iterator[Finding]:
    keys = snapshot.keys
    what = f"The queue no longer exists, but some of its keys do, with {snapshot.length} messages: "
    waits: list[Role] = []
    for role in ROLES:
        if snapshot.there(keys.lease(role)) or snapshot.there(keys.claim(role)):
            return  # its client gives the role back when it notices, or dies, and its lease expires
        if not snapshot.there(keys.free(role)) and snapshot.there(keys.holder(role)):
            waits.append(role)
    if not snapshot.unmoved(earlier):
        return
    if not waits:
        text = f"{what}the client that deleted it died in between."
        yield fault("half_deleted", text, "Repairing deletes the rest.")
    for role in waits:
        holder = snapshot.holder(role)
        yield Finding(
            "half_deleted",
            True,
            "holder",
            f"{what}the client that deletes it waits for the {role} role, or died in between. The last client to write "
            f"its name for the role was {holder!r}.",
            f"{how_to_find(holder)} If it is dead: {how_to_give_back(snapshot.name, holder)}.",
            role,
            holder,
        )


def _leftovers(earlier: Snapshot | None, snapshot: Snapshot) -> Iterator[Finding]:
    if any(snapshot.lease(role) or snapshot.there(snapshot.keys.claim(role)) for role in ROLES):
        return  # as above
    if snapshot.unmoved(earlier):
        items = f", and {snapshot.in_flight} messages that were in flight" if snapshot.in_flight else ""
        yield fault(
            "leftovers",
            f"The queue does not exist, but apressure's own keys for it do{items}: a client that does not know them "
            "deleted it.",
            "Repairing removes them, as does creating the queue again.",
        )
