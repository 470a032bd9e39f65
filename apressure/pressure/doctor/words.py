"""How the doctor writes: a finding, what it says of each kind, and names, values, durations and commands."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from typing import Final, Literal, NamedTuple

from apressure.exceptions import Role

FindingKind = Literal[
    "abandoned_claim", "broken_bound", "broken_statistic", "bypassed", "collision", "dead_letters", "delayed",
    "doubled_token", "expired_lease", "expired_member", "extra_permits", "foreign_entry", "full", "half_created",
    "half_deleted", "in_flight", "key_schema", "late_schedule", "leased", "leftovers", "limited", "lost_permit",
    "negative_bound", "orphaned_items", "overdue", "overfull", "overlong_lease", "parked", "paused", "slow_handler",
    "spark_batches", "stuck_role", "unconsumed", "unfinished", "waiting_role", "wrong_type",
]  # fmt: skip

How = Literal["automatic", "holder", "by hand", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something about a queue that a person may want to know.

    Attributes:
        kind: What it is.
        fault: Whether something is wrong. A healthy queue may have findings that are no faults.
        repair: How it can be repaired. `"automatic"`: by `repair`. `"holder"`: by `repair`, given the name of a holder
            that is dead. `"by hand"`: as the advice says. `"none"`: there is nothing to do, or not yet.
        text: What was found.
        advice: What to do; empty where there is nothing to do.
        role: The role concerned; None where it is about no role.
        holder: The identity that the server shows for the role; None where it shows none.
    """

    kind: FindingKind
    fault: bool
    repair: How
    text: str
    advice: str = ""
    role: Role | None = None
    holder: str | None = None


class Sentences(NamedTuple):
    """What the doctor says of findings of one kind. What stands in braces are values of the finding.

    Attributes:
        text: What was found.
        advice: What to do; empty where there is nothing to do.
        done: What a repair says that it did; empty where none does anything.
        repair: How it can be repaired, as `Finding.repair`.
        fault: Whether something is wrong.
    """

    text: str
    advice: str = ""
    done: str = ""
    repair: How = "automatic"
    fault: bool = True


_by_hand = functools.partial(Sentences, repair="by hand")
_note = functools.partial(Sentences, repair="none", fault=False)
_fault_of = functools.partial(Sentences, repair="holder")
_note_on = functools.partial(Sentences, repair="holder", fault=False)

SENTENCES: Final = {
    "abandoned_claim": Sentences(
        "The token of the {role} role went to an apressure client that waited for it and does not use it: that client "
        "is dead, or blocked.",
        "Repairing gives it back {seconds} seconds after a client first noticed it, as do operations of apressure "
        "clients.",
        "gave back the {role} role, which was claimed and not used",
    ),
    "broken_bound": _by_hand(
        "The bound is not a number of messages, but {state}: every operation fails.",
        "Set how many messages N may wait, 0 for no bound: redis-cli SET {command_key} N.",
    ),
    "broken_statistic": Sentences(
        "The statistic {key!r} is not an integer that a queue can use, but {state}: every {operation} fails.",
        "Repairing sets it to 0.",
        "set the statistic {statistic!r} to 0; it was {was}",
    ),
    "collision": _by_hand(
        "The queue shares a key with the queue whose messages are at {other!r}: each mistakes the other's messages or "
        "tokens for its own.",
        "Drain both, delete them, and choose other names. While both exist, nothing is repaired.",
    ),
    "doubled_token": Sentences(
        "There are {tokens} tokens of the {role} role ({where}): two clients could hold it at once.",
        "A person or program gave back a role that was not lost. Repairing leaves one token.",
        "removed {all_but_one} of the {number} tokens of the {role} role",
    ),
    "expired_lease": Sentences(
        "The lease of {holder!r} on the {role} role {why}{items}",
        "The next operation of any apressure client repairs it, and so does repairing: messages in flight become first "
        "in line, and the role is free.",
        "gave back the {role} role of {text!r}, whose lease had expired{back}",
    ),
    "expired_member": Sentences(
        "The share of {holder!r} in the consumer role {ended}: that client is dead, or blocked.",
        "The next operation of another member repairs it, and so does repairing: its messages become first in line.",
        "removed a member of the shared consumer role that had ended{back}",
    ),
    "extra_permits": Sentences(
        "There are {permits} permits to put instead of {right}: the bound may be exceeded. A forced put may leave one, "
        "and a client of protocol 0.1 two.",
        "Repairing removes them, as does the next operation of any apressure client.",
        "removed {number} permits to put too many",
    ),
    "foreign_entry": Sentences(
        "{entries} entries of the key {key!r} are not apressure's: another program wrote them.",
        "Repairing puts them {where}.",
        "put {number} entries of the key {text!r} {where} that are not apressure's",
    ),
    "half_created": Sentences(
        "The queue has a bound and lacks tokens, and it was never used: the client that created it, step by step, died "
        "in between.",
        "Repairing adds the missing tokens.",
        "added the missing tokens",
    ),
    "half_deleted": Sentences(
        "The queue no longer exists, but some of its keys do, with {snapshot.length} messages: the client that deleted "
        "it died in between.",
        "Repairing deletes the rest.",
        "deleted what was left of the queue, with {number} messages",
    ),
    "half_deleted, and waits": _fault_of(
        "The queue no longer exists, but some of its keys do, with {snapshot.length} messages: the client that deletes "
        "it waits for the {role} role, or died in between. The last client to write its name for the role was "
        "{holder!r}.",
        "{find} If it is dead: {give_back}.",
    ),
    "leased": _note_on(
        "{holder!r} {holds} the {role} role under a lease{since}; it ends in {left} unless it is renewed.{items}",
        "If that client is dead and you do not want to wait: {give_back}.",
        "ended the lease of {text!r} on the {role} role{back}",
    ),
    "leased, and shared": _note_on(
        "{holder!r} has shared the consumer role for {since}; its lease ends in {left} unless it is renewed.",
        "If that client is dead and you do not want to wait: {give_back}.",
    ),
    "leftovers": Sentences(
        "The queue does not exist, but apressure's own keys for it do{items}: a client that does not know them deleted "
        "it.",
        "Repairing removes them, as does creating the queue again.",
        "removed {removed} of a queue that does not exist",
    ),
    "lost_permit": Sentences(
        "There is room ({snapshot.length} messages; {limit}), and the permit that says so is lost: producers that work "
        "step by step wait for ever.",
        "Repairing restores it. So does the next operation of apressure while no other client holds a role.",
        "restored the permit to put",
    ),
    "negative_bound": _note(
        "The bound is {bound}: apressure and the released C and Go clients put without a bound, as with 0; other "
        "clients may treat the queue as full.",
        "To make all clients agree: redis-cli SET {command_key} 0.",
    ),
    "orphaned_items": Sentences(
        "{snapshot.in_flight} messages are in flight, and the lease that they were received under is gone.",
        "Repairing puts them back, first in line, as does the next operation of any apressure client.",
        "put {number} messages back that were in flight without a lease",
    ),
    "overfull": _note(
        "{snapshot.length} messages wait, more than the bound of {snapshot.bound}: forced puts and messages that came "
        "back do that.",
    ),
    "overlong_lease": Sentences(
        "The lease of {holder!r} on the {role} role ends too late: the server's clock was set back.",
        "Repairing makes it end in {left} unless it is renewed, as does any operation of an apressure client.",
        "shortened the lease of {text!r} on the {role} role to its duration",
    ),
    "limited": _note(
        "Consumers of apressure get {limits}. Other clients are not limited.",
        "To end that: apressure limit {queue} --rate off --concurrency off, and apressure hold {queue} 0.",
    ),
    "paused": _note(
        "The queue has been paused{by}{ago}: consumers of apressure take nothing.",
        "To let them go on: apressure resume {queue}.",
    ),
    "stuck_role": _fault_of(
        "The {role} role is taken, not by a client of apressure, and nothing has moved there: a client that works step "
        "by step died during an operation, or is very slow; {who}.",
        "{find} If it is dead: {give_back}.{permit}",
        "gave back the {role} role of {whose}; {taken}",
    ),
    "waiting_role": _note_on(
        "A client that works step by step holds the {role} role; {who}. The queue is {filled}, so that client may be "
        "waiting for {waits}, as it should; or it died while it waited.",
        "{find} If it is dead: {give_back}.",
    ),
    "wrong_type": Sentences(
        "The key {key!r} is a {state.kind}, where a queue has a {expected}: another program wrote it.",
        "Operations on the queue fail. Repairing renames the key.",
        "renamed a key of the wrong type: {text!r}",
    ),
    "wrong_type, by hand": _by_hand(
        "The key {key!r} is a {state.kind}, where a queue has a {expected}: another program wrote it.",
        "Check what it is, then rename it: redis-cli RENAME {command_key} {aside}, or delete it: redis-cli DEL "
        "{command_key}. Then run the doctor again: it can repair what is missing.",
    ),
}


def text_of(value: bytes) -> str:
    """Return a name as text that can be encoded to the same bytes again."""
    return value.decode(errors="surrogateescape")


def shown(value: bytes) -> str:
    """Return the beginning of a value, readable."""
    return repr(value[:100].decode(errors="backslashreplace")) + (" …" if len(value) > 100 else "")


def quoted(*arguments: bytes) -> str:
    """Return arguments for a shell."""
    return shlex.join(map(text_of, arguments))


def duration(milliseconds: int) -> str:
    """Return a duration of seconds, minutes or hours; 0 for a negative one."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def finding(
    kind: FindingKind, form: str, role: Role | None, holder: str | None, queue: str, /, **values: object
) -> Finding:
    """Return a finding, in the words for its kind, or for a form of it. `values` stand in braces there."""
    sentences, named = SENTENCES[kind + form], shlex.quote(holder or "")
    name = "" if holder is None else " The name of an apressure client is HOST:PID:THREAD."
    values["find"] = (
        f"Find out whether that client is alive.{name} `redis-cli CLIENT LIST` shows the server's connections; one "
        "that waits has cmd=brpop or similar."
    )
    values["give_back"] = f"apressure doctor {shlex.quote(queue)} --repair --holder {named}"
    values |= {"role": role, "holder": holder}
    text, advice = sentences.text.format(**values), sentences.advice.format(**values)
    return Finding(kind, sentences.fault, sentences.repair, text, advice, role, holder)
