"""What is wrong with a queue, in plain words: facts go in, findings come out, nothing is sent.

Most of what is wrong cannot be told from an operation under way at a single look: a client that works step by step has
the role's token with it. So two looks are compared. Only what has not moved from one to the other counts.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Literal

from apressure.exceptions import ROLES, Role
from apressure.queue.facts import Facts, shown, text_of

FindingKind = Literal[
    "abandoned_claim",
    "broken_bound",
    "broken_statistic",
    "collision",
    "doubled_token",
    "expired_lease",
    "extra_permits",
    "half_created",
    "half_deleted",
    "leased",
    "leftovers",
    "lost_permit",
    "orphaned_items",
    "overfull",
    "spark_batches",
    "stuck_role",
    "waiting_role",
    "wrong_type",
]

CLAIM_MS = 5000
"""As in the scripts: a claim that nobody uses for so many milliseconds belongs to a dead client."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something about a queue that a person may want to know.

    Attributes:
        kind: What it is.
        fault: Something is wrong. What is not a fault is as it may be in a healthy queue.
        repair: Who can mend it. `"automatic"`: `repair` does. `"holder"`: `repair` does, if somebody who knows that the
            holder is dead says its name. `"by hand"`: the advice says how. `"none"`: nothing is to be done, or not yet.
        text: What is the case.
        advice: What to do; empty where nothing is to be done.
        role: The role that it is about, if it is about one.
        holder: The identity that the server shows for the role; None where it shows none.
    """

    kind: FindingKind
    fault: bool
    repair: Literal["automatic", "holder", "by hand", "none"]
    text: str
    advice: str = ""
    role: Role | None = None
    holder: str | None = None


def diagnose(earlier: Facts | None, facts: Facts) -> tuple[Finding, ...]:
    """Return what is wrong with a queue, and what else is worth knowing.

    Args:
        earlier: An earlier look; None to leave out what may turn out to be an operation under way.
        facts: The look.
    """
    if facts.collision is not None:
        return tuple(_collision(facts))
    findings = [*_wrong_types(facts)]
    if facts.exists:
        findings += _numbers(facts)
    if any(finding.repair == "by hand" for finding in findings):
        return tuple(findings)  # of what else it looks like one cannot be sure
    for role in ROLES:
        findings += _lease(facts, role)
        findings += _claim(earlier, facts, role)
        findings += _doubled(facts, role)
    findings += _orphaned(facts)
    if facts.exists:
        if half := [*_half_created(earlier, facts)]:
            return (*findings, *half)
        for role in ROLES:
            findings += _hidden(earlier, facts, role)
        findings += _permits(earlier, facts)
        findings += _overfull(facts)
    elif any(map(facts.there, facts.keys.specified)):
        findings += _half_deleted(earlier, facts)
    elif facts.anything:
        findings += _leftovers(earlier, facts)
    return tuple(findings)


def suspicious(facts: Facts) -> bool:
    """Whether a second look could find what the first one cannot be sure of."""
    return diagnose(facts, facts) != diagnose(None, facts)


def _fault(kind: FindingKind, text: str, advice: str, role: Role | None = None, holder: str | None = None) -> Finding:
    return Finding(kind, True, "automatic", text, advice, role, holder)


def _collision(facts: Facts) -> Iterator[Finding]:
    if not facts.exists:
        return  # the keys that there are belong to the other queue
    assert facts.collision is not None
    other = text_of(facts.collision.removesuffix(b":bound"))
    yield Finding(
        "collision",
        True,
        "by hand",
        f"The queue shares a key with the queue whose messages are at {other!r}: each takes the other's messages or "
        "tokens for its own.",
        "Let both run empty, delete them, and choose other names. As long as both exist nothing is repaired.",
    )


def _wrong_types(facts: Facts) -> Iterator[Finding]:
    statistics = facts.keys.statistics
    for key, kind in facts.keys.types.items():
        found = facts.at[key].kind
        if found in ("none", kind) or key in statistics or key == facts.keys.bound:
            continue
        yield Finding(
            "wrong_type",
            True,
            "by hand",
            f"The key {text_of(key)!r} is a {found}, where a queue has a {kind}; somebody else has written it.",
            f"Look what it is, and move it away: redis-cli RENAME {_quoted(key, key + b'.damaged')}, or delete it: "
            f"redis-cli DEL {_quoted(key)}. Then ask the doctor again: what the queue lacks then it can mend.",
        )


def _numbers(facts: Facts) -> Iterator[Finding]:
    keys = facts.keys
    bound = facts.integer(keys.bound)
    if bound is None or bound < 0:
        what = shown(facts.at[keys.bound].value) if facts.at[keys.bound].kind == "string" else facts.at[keys.bound].kind
        yield Finding(
            "broken_bound",
            True,
            "by hand",
            f"The bound is no number of messages, but {what}: no operation works.",
            f"Say how many messages N may wait, 0 for any number: redis-cli SET {_quoted(keys.bound)} N.",
        )
    for key in keys.statistics:
        if facts.integer(key) is None:
            look = facts.at[key]
            what = shown(look.value) if look.kind == "string" else f"a {look.kind}"
            yield _fault(
                "broken_statistic",
                f"The statistic {text_of(key)!r} is no integer that a queue can count with, but {what}: "
                f"{'put' if b':produced_' in key else 'get'} refuses to work.",
                "Repairing sets it to 0.",
                "producer" if b":produced_" in key else "consumer",
            )


def _lease(facts: Facts, role: Role) -> Iterator[Finding]:
    lease = facts.lease(role)
    if lease is None:
        return
    holder = text_of(lease.uid)
    items = facts.in_flight if role == "consumer" else 0
    with_items = f" {items} messages are in flight there." if items else ""
    if facts.now >= lease.deadline:
        ended = _duration(facts.now - lease.deadline)
        yield _fault(
            "expired_lease",
            f"The lease of {holder!r} on the {role} role ended {ended} ago, and it has not come back: it is dead, or "
            f"stands still.{with_items}",
            "The next operation of any apressure client mends it, and so does repairing: what was in flight becomes "
            "first in line, and the role is free.",
            role,
            holder,
        )
    else:
        yield Finding(
            "leased",
            False,
            "none",
            f"{holder!r} has the {role} role under a lease, for {_duration(facts.now - lease.since)} by now; it ends "
            f"in {_duration(lease.deadline - facts.now)} unless it is renewed.{with_items}",
            "",
            role,
            holder,
        )


def _claim(earlier: Facts | None, facts: Facts, role: Role) -> Iterator[Finding]:
    keys = facts.keys
    if not facts.there(keys.claim(role)):
        return
    until = facts.integer(keys.claim_until(role))
    if (until and facts.now >= until) or facts.unmoved(earlier, role):
        yield _fault(
            "abandoned_claim",
            f"The token of the {role} role was given to an apressure client that waited for it and does not use it: it "
            "is dead, or stands still.",
            f"Repairing gives it back {CLAIM_MS // 1000} seconds after somebody has noticed; operations of apressure "
            "clients do so too.",
            role,
        )


def _doubled(facts: Facts, role: Role) -> Iterator[Finding]:
    keys = facts.keys
    free, claimed = facts.at[keys.free(role)].size, facts.at[keys.claim(role)].size
    tokens = free + claimed + facts.there(keys.lease(role))
    if tokens > 1:
        where = [f"{free} in the free list"] * bool(free) + [f"{claimed} claimed"] * bool(claimed)
        where += ["one under a lease"] * facts.there(keys.lease(role))
        yield _fault(
            "doubled_token",
            f"There are {tokens} tokens of the {role} role ({', '.join(where)}): two clients could work in it at once.",
            "Somebody gave back a role that was not lost. Repairing leaves one token.",
            role,
        )


def _orphaned(facts: Facts) -> Iterator[Finding]:
    if facts.exists and facts.in_flight and facts.lease("consumer") is None:
        yield _fault(
            "orphaned_items",
            f"{facts.in_flight} messages are in flight, and nobody has the lease that they were received under.",
            "Repairing puts them back, first in line, as the next operation of any apressure client does.",
            "consumer",
        )


def _half_created(earlier: Facts | None, facts: Facts) -> Iterator[Finding]:
    keys = facts.keys
    written = (
        keys.not_full, keys.messages, keys.closed, *keys.statistics, *map(keys.holder, ROLES), *keys.ours,
    )  # fmt: skip
    if facts.unmoved(earlier) and not any(map(facts.there, written)):
        yield _fault(
            "half_created",
            "The queue has a bound and not all of its tokens, and nobody has ever used it: whoever created it, step by "
            "step, died on the way.",
            "Repairing makes what is missing.",
        )


def _hidden(earlier: Facts | None, facts: Facts, role: Role) -> Iterator[Finding]:
    if not facts.hidden(role) or not facts.unmoved(earlier, role):
        return
    keys, holder = facts.keys, facts.holder(role)
    bound, length = facts.integer(keys.bound) or 0, facts.at[keys.messages].size
    closed = facts.there(keys.closed)
    if role == "producer":
        waits = "room" if bound and length >= bound and not facts.there(keys.not_full) else ""
    else:
        waits = "a message" if not length and not closed else ""
    who = "nobody has ever written a name for it" if holder is None else f"the last to write a name was {holder!r}"
    if waits:
        text = (
            f"The {role} role is with a client that works step by step; {who}. The queue is "
            f"{'full' if role == 'producer' else 'empty'}, so that client may be waiting for {waits}, as it should; or "
            "it died while it waited."
        )
    else:
        text = (
            f"The {role} role is taken, not by a client of apressure, and nothing has moved there: a client that works "
            f"step by step died in the middle of an operation, or is very slow; {who}."
        )
    permit = ""
    if role == "producer" and not waits and not facts.there(keys.not_full):
        permit = (
            " If it lives, it may wait for the permit, which is lost: `apressure get --no-follow` or any other get of "
            "apressure brings that back."
        )
    yield Finding(
        "waiting_role" if waits else "stuck_role",
        not waits,
        "holder",
        text,
        f"{_find_out(holder)} If it is dead: {_give_back(facts, holder)}.{permit}",
        role,
        holder,
    )


def _permits(earlier: Facts | None, facts: Facts) -> Iterator[Finding]:
    keys = facts.keys
    if facts.hidden("producer"):
        return  # the producer may have the permit with it
    if facts.hidden("consumer") and not facts.unmoved(earlier):
        return  # the consumer may be about to bring it
    bound, permits = facts.integer(keys.bound) or 0, facts.at[keys.not_full].size
    length = facts.at[keys.messages].size
    room = bound == 0 or length < bound
    if room and not permits:
        yield _fault(
            "lost_permit",
            f"There is room ({length} messages; {f'the bound is {bound}' if bound else 'no bound'}), and the permit "
            "that says so is lost: producers that work step by step wait for ever.",
            "Repairing brings it back, as the next operation of any apressure client does.",
            "producer",
        )
    elif permits > room:
        yield _fault(
            "extra_permits",
            f"Of permits to put there are {permits}, where {'one' if room else 'none'} belongs: the bound may "
            "be exceeded. A put by force may leave one, and a client of protocol 0.1 two.",
            "Repairing takes them away, as the next operation of any apressure client does.",
            "producer",
        )


def _overfull(facts: Facts) -> Iterator[Finding]:
    bound, length = facts.integer(facts.keys.bound) or 0, facts.at[facts.keys.messages].size
    if bound and length > bound:
        yield Finding(
            "overfull",
            False,
            "none",
            f"{length} messages wait, more than the bound of {bound}: puts by force do that, and what is given back.",
        )


def _half_deleted(earlier: Facts | None, facts: Facts) -> Iterator[Finding]:
    keys = facts.keys
    length = facts.at[keys.messages].size
    what = f"The queue does not exist any more, but keys of it do, with {length} messages: "
    waits: list[Role] = []
    for role in ROLES:
        if facts.there(keys.lease(role)) or facts.there(keys.claim(role)):
            return  # its client notices the end of the queue, and gives the role back; or it dies, and that is found
        if not facts.there(keys.free(role)) and facts.there(keys.holder(role)):
            waits.append(role)
    if not facts.unmoved(earlier):
        return
    if not waits:
        yield _fault(
            "half_deleted",
            f"{what}whoever deleted it died on the way.",
            "Repairing deletes the rest.",
        )
    for role in waits:
        holder = facts.holder(role)
        yield Finding(
            "half_deleted",
            True,
            "holder",
            what
            + f"whoever deletes it waits for the {role} role, or died on the way. The last to write a name for the "
            f"role was {holder!r}.",
            f"{_find_out(holder)} If it is dead: {_give_back(facts, holder)}.",
            role,
            holder,
        )


def _leftovers(earlier: Facts | None, facts: Facts) -> Iterator[Finding]:
    if any(facts.lease(role) or facts.there(facts.keys.claim(role)) for role in ROLES):
        return  # as above
    if facts.unmoved(earlier):
        held = f", and {facts.in_flight} messages that were in flight" if facts.in_flight else ""
        yield _fault(
            "leftovers",
            f"There is no such queue, but apressure's notes about one{held}: a client that knows nothing of them has "
            "deleted it.",
            "Repairing removes them; creating the queue again does so too.",
        )


def _find_out(holder: str | None) -> str:
    name = "" if holder is None else " Names of apressure clients say HOST:PID:THREAD."
    return (
        f"Find out whether that client lives.{name} `redis-cli CLIENT LIST` shows the connections of the server; one "
        "that waits has cmd=brpop, or the like."
    )


def _give_back(facts: Facts, holder: str | None) -> str:
    return f"apressure doctor {shlex.quote(facts.name)} --repair --holder {shlex.quote(holder or '')}"


def _quoted(*arguments: bytes) -> str:
    return " ".join(shlex.quote(text_of(argument)) for argument in arguments)


def _duration(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
