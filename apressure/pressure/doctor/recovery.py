"""Finding and repairing faults of a queue: the API under `apressure doctor`.

`examine` reads and changes nothing. `repair` makes all repairs that are safe while any client may be alive. Given the
name of a dead holder, it also gives back that client's roles. `watch` keeps making the repairs that need no human. All
three may run beside any number of clients, and beside each other: each repair checks its conditions again on the
server, in the same step.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from apressure import validation
from apressure.connection.client import Client
from apressure.exceptions import PermissionDeniedError, Role, ScriptingRefusedError, ServerError
from apressure.pressure.doctor.finding import Finding, FindingKind
from apressure.pressure.doctor.findings import CLAIM_MS, diagnose, suspicious
from apressure.pressure.doctor.snapshot import Snapshot
from apressure.pressure.doctor.words import shown, text_of
from apressure.pressure.engine import keys as spelling
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.steps import Steps

if TYPE_CHECKING:
    from apressure.pressure.queue import AsyncQueue

__all__ = ["Action", "Finding", "FindingKind", "Repair", "Report", "examine", "find", "repair", "watch"]

PATIENCE = 1.0
_ROUNDS = 6  # one repair may set free what another waits for
_NEEDS_NO_HUMAN = frozenset(
    {
        "abandoned_claim", "doubled_token", "expired_lease", "expired_member", "extra_permits", "lost_permit",
        "orphaned_items", "overlong_lease",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What `examine` found.

    Attributes:
        name: The queue's name.
        exists: Whether the queue exists. Keys may be left of one that does not.
        findings: Faults, and other things worth knowing.
    """

    name: str
    exists: bool
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are faults."""
        return tuple(finding for finding in self.findings if finding.fault)

    @property
    def healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Something that a repair did.

    Attributes:
        kind: The kind of finding that it repaired.
        text: What was done.
        role: The role concerned; None where it was about no role.
        holder: The client that held the role or lease; None where no client is named.
    """

    kind: FindingKind
    text: str
    role: Role | None = None
    holder: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did, and what it leaves.

    Attributes:
        name: The queue's name.
        done: What was done, in order.
        report: What `examine` finds afterwards.
    """

    name: str
    done: tuple[Action, ...]
    report: Report


async def examine(queue: AsyncQueue[Any], patience: float = PATIENCE) -> Report:
    """Find what is wrong with a queue. Nothing is changed.

    Where a fault may be an operation under way, it takes a second snapshot after `patience`.

    Args:
        queue: The queue; it need not exist.
        patience: Seconds after which an operation of a client that works step by step counts as stopped.

    Raises:
        TypeError, ValueError: `patience` is not a number of at least 0 seconds.
        ScriptingRefusedError: The queue has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.

    Cancelled, nothing has changed.
    """
    validation.seconds(patience, "patience")
    steps = _steps(queue.client, queue.name)
    snapshot, findings = await _look(steps, patience)
    return Report(queue.name, snapshot.exists, findings)


async def repair(queue: AsyncQueue[Any], holder: str | None = None, patience: float = PATIENCE) -> Repair:
    """Repair what is wrong with a queue, as far as that needs no human, and return what was done.

    A claim goes back five seconds after a client first noticed it; this waits for that.

    Args:
        queue: The queue; it need not exist.
        holder: The name that the server shows for the holder of a role, if **you know** that this client is dead: its
            role goes back, and its lease ends at once. It must be the exact name (`Finding.holder`; the empty string
            where none is shown), and nothing may have moved there for `patience`. If the client is alive after all,
            a client of apressure gets LeaseLostError; with one that works step by step, two clients hold the role.
        patience: As for `examine`.

    Raises:
        TypeError, ValueError: `patience` is not a number of at least 0 seconds.
        ScriptingRefusedError: The queue has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached. Repairs made before that stay.

    Cancelled, some repairs have been made; repeating it is safe. When the connection broke in between, the repairs made
    just before may be missing in `done`.
    """
    validation.seconds(patience, "patience")
    steps = _steps(queue.client, queue.name)
    named = None if holder is None else holder.encode(errors="surrogateescape")
    done: list[Action] = []
    for _ in range(_ROUNDS):
        snapshot, findings = await _look(steps, patience)
        repairable = [
            finding
            for finding in findings
            if finding.repair == "automatic"
            or (finding.repair == "holder" and holder is not None and holder == (finding.holder or ""))
        ]
        if not repairable:
            break
        if any(finding.kind == "leased" for finding in repairable):
            await asyncio.sleep(patience)  # nothing may move meanwhile: the step compares
        did = await steps.repair(snapshot.marks, True, named)
        done += _actions(steps.keys, did)
        if not did and any(finding.kind == "abandoned_claim" for finding in repairable):
            await asyncio.sleep(CLAIM_MS / 1000)
    else:
        snapshot, findings = await _look(steps, patience)
    return Repair(queue.name, tuple(done), Report(queue.name, snapshot.exists, findings))


async def watch(
    target: AsyncQueue[Any] | Client, interval: float = 1.0, on_repair: Callable[[Repair], object] | None = None
) -> NoReturn:
    """Repair a queue, or all queues of a client, again and again, until it is cancelled.

    It repairs what needs no human, and loses nothing: expired leases, abandoned claims, orphaned messages in flight,
    permits and tokens. (Operations of apressure clients do so themselves: this is for queues that only other clients
    use.) `examine` shows what stays damaged.

    Args:
        target: A queue, which may come and go; or a client, for all queues under its prefix that its user may touch.
            With a client the whole key space is scanned each time, so choose the interval.
        interval: Seconds between two snapshots, and after which an operation counts as stopped.
        on_repair: Called with what was done after each repair.

    Raises:
        TypeError, ValueError: `interval` is not a number of at least 0 seconds.
        ScriptingRefusedError: The client has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached for `retry_timeout`.

    Cancelled, each repair has been made or not; none is half made.
    """
    validation.seconds(interval, "interval")
    client = target if isinstance(target, Client) else target.client
    earlier: dict[str, Snapshot] = {}
    while True:
        names = await find(target) if isinstance(target, Client) else [target.name]
        looks: dict[str, Snapshot] = {}
        for name in names:
            try:
                steps = _steps(client, name)
                snapshot = looks[name] = await _snapshot(steps)
                repaired = await _heal(steps, earlier.get(name), snapshot)
            except (ValueError, ServerError) as error:
                if target is not client or not _of_one_queue(error):
                    raise
                continue
            if repaired is not None and on_repair is not None:
                on_repair(repaired)
        earlier = looks
        await asyncio.sleep(interval)


async def _heal(steps: Steps, earlier: Snapshot | None, snapshot: Snapshot) -> Repair | None:
    """Repair what needs no human; returns None where nothing was repaired."""
    if not any(finding.kind in _NEEDS_NO_HUMAN for finding in diagnose(earlier, snapshot)):
        return None
    did = await steps.repair(snapshot.marks, False, None)
    if not did:
        return None
    after = await _snapshot(steps)
    report = Report(steps.name, after.exists, diagnose(snapshot, after))
    return Repair(steps.name, tuple(_actions(steps.keys, did)), report)


def _of_one_queue(error: ValueError | ServerError) -> bool:
    """Whether an error concerns one queue, so that the others can be repaired.

    The name may not fit this cluster, the user may lack the rights, or a key of the queue may have a strange value.
    """
    if isinstance(error, (ValueError, PermissionDeniedError)):
        return True
    return type(error) is ServerError and error.code in ("ERR", "WRONGTYPE")


async def find(client: Client) -> list[str]:
    """Return the names of all queues under a client's prefix, and of deleted ones that left keys, sorted.

    The whole key space is scanned, in chunks.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.

    Cancelled, nothing has changed.
    """
    client.check()
    found: set[bytes] = set()
    for pattern in spelling.patterns(client.prefix):
        for kind in (b"string", b"list", b"hash"):
            keys = [key async for key in client.scan(pattern, kind)]
            found.update(key for key in keys if kind != b"string" or not spelling.is_counter(key))
    return spelling.names_among(client.prefix, found)


def _steps(client: Client, name: str) -> Steps:
    client.check()
    if not client.settings.scripting:
        raise ScriptingRefusedError("recovery needs scripts on the server: open the queue without scripting=False")
    return Steps(client, Keys(client.prefix, name), name)


async def _snapshot(steps: Steps) -> Snapshot:
    return Snapshot(steps.name, steps.keys, await steps.examine())


async def _look(steps: Steps, patience: float) -> tuple[Snapshot, tuple[Finding, ...]]:
    """Return a snapshot and its findings: a second one, where the first may show an operation under way."""
    snapshot = await _snapshot(steps)
    if not suspicious(snapshot):
        return snapshot, diagnose(None, snapshot)
    await asyncio.sleep(patience)
    later = await _snapshot(steps)
    return later, diagnose(snapshot, later)


def _actions(keys: Keys, did: Iterable[Any]) -> list[Action]:
    """Put the answer of the step `repair` into words."""
    actions = []
    for kind, role, text, number in did:
        name: FindingKind = kind.decode()
        whose: Role | None = role.decode() or None
        names_holder = name in ("expired_lease", "leased", "overlong_lease", "stuck_role")
        holder = text_of(text) if names_holder and text else None
        actions.append(Action(name, _words(keys, name, whose, text, number), whose, holder))
    return actions


_WORDS: dict[str, str] = {
    "abandoned_claim": "gave back the {role} role, which was claimed and not used",
    "doubled_token": "removed {all_but_one} of the {number} tokens of the {role} role",
    "expired_lease": "gave back the {role} role of {text}, whose lease had expired{back}",
    "expired_member": "removed a member of the shared consumer role that had ended{back}",
    "extra_permits": "removed {number} permits to put too many",
    "foreign_entry": "put {number} entries of the key {text} {where} that are not apressure's",
    "half_created": "added the missing tokens",
    "half_deleted": "deleted what was left of the queue, with {number} messages",
    "leased": "ended the lease of {text} on the {role} role{back}",
    "lost_permit": "restored the permit to put",
    "orphaned_items": "put {number} messages back that were in flight without a lease",
    "overlong_lease": "shortened the lease of {text} on the {role} role to its duration",
    "wrong_type": "renamed a key of the wrong type: {text}",
}


def _words(keys: Keys, kind: FindingKind, role: Role | None, text: bytes, number: int) -> str:
    match kind:
        case "broken_statistic":
            key = text_of(keys.specified[abs(number) - 1])
            was = shown(text) if number > 0 else f"a {text.decode()}"
            return f"set the statistic {key!r} to 0; it was {was}"
        case "stuck_role":
            whose = repr(text_of(text)) if text else "an unnamed client"
            items = "what it took is lost" if role == "consumer" else "what it was putting is in the queue, or lost"
            return f"gave back the {role} role of {whose}; {items}"
        case "leftovers":
            what = f"{number} messages that were in flight" if number else "apressure's own keys"
            return f"removed {what} of a queue that does not exist"
    return _WORDS.get(kind, kind).format(
        role=role,
        text=repr(text_of(text)),
        number=number,
        all_but_one=number - 1,
        back=f", and put {number} messages back that were in flight" if number else "",
        where="first in line" if text == keys.apart else "away",
    )
