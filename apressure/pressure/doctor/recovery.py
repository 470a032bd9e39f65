"""Finding and repairing faults of a queue: the API under `apressure doctor`.

`examine` reads and changes nothing. `repair` makes all repairs that are safe while any client may be alive. Given the
name of a dead holder, it also gives back that client's roles. `watch` keeps making the repairs that need no human. All
three may run beside any number of clients, and beside each other: each repair checks its conditions again on the
server, in the same step.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from apressure import validation
from apressure.connection.client import Client
from apressure.exceptions import PermissionDeniedError, Role, ScriptingRefusedError, ServerError
from apressure.pressure.doctor.findings import CLAIM_MS, Snapshot, diagnose, suspicious
from apressure.pressure.doctor.words import SENTENCES, Finding, FindingKind, shown, text_of
from apressure.pressure.engine import keys as spelling
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.steps import Steps

if TYPE_CHECKING:
    from apressure.pressure.queue import AsyncQueue

__all__ = ["Action", "Finding", "FindingKind", "Repair", "Report", "examine", "find", "repair", "watch"]

PATIENCE = 1.0
_ROUNDS = 6  # one repair may set free what another waits for
_NEEDS_NO_HUMAN: Final = (
    "abandoned_claim", "doubled_token", "expired_lease", "expired_member", "extra_permits", "lost_permit",
    "orphaned_items", "overlong_lease",
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
    return (await _look(_steps(queue.client, queue.name), patience))[1]


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
        snapshot, report = await _look(steps, patience)
        repairable = {
            finding.kind
            for finding in report.findings
            if finding.repair == "automatic" or (finding.repair == "holder" and holder == (finding.holder or ""))
        }
        if not repairable:
            break
        if "leased" in repairable:
            await asyncio.sleep(patience)  # nothing may move meanwhile: the step compares
        did = await steps.repair(snapshot.marks, True, named)
        done += (_action(steps.keys, *one) for one in did)
        if not did and "abandoned_claim" in repairable:
            await asyncio.sleep(CLAIM_MS / 1000)
    else:
        _, report = await _look(steps, patience)
    return Repair(queue.name, tuple(done), report)


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
    done = tuple(_action(steps.keys, *one) for one in did)
    return Repair(steps.name, done, _report(snapshot, await _snapshot(steps)))


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


async def _look(steps: Steps, patience: float) -> tuple[Snapshot, Report]:
    """Return a snapshot and what it shows: a second one, where the first may show an operation under way."""
    earlier, snapshot = None, await _snapshot(steps)
    if suspicious(snapshot):
        await asyncio.sleep(patience)
        earlier, snapshot = snapshot, await _snapshot(steps)
    return snapshot, _report(earlier, snapshot)


def _report(earlier: Snapshot | None, snapshot: Snapshot) -> Report:
    return Report(snapshot.name, snapshot.exists, diagnose(earlier, snapshot))


def _action(keys: Keys, kind: bytes, concerned: bytes, text: bytes, number: int) -> Action:
    """Put a part of the answer of the step `repair` into words."""
    name: FindingKind = kind.decode()  # type: ignore[assignment]
    role: Role | None = concerned.decode() or None  # type: ignore[assignment]
    values = {
        "role": role,
        "text": text_of(text),
        "number": number,
        "all_but_one": number - 1,
        "back": f", and put {number} messages back that were in flight" if number else "",
        "removed": f"{number} messages that were in flight" if number else "apressure's own keys",
        "taken": "what it took is lost" if role == "consumer" else "what it was putting is in the queue, or lost",
        "where": {keys.apart: "first in line", keys.delayed: "last in line"}.get(text, "away"),
        "whose": repr(text_of(text)) if text else "an unnamed client",
    }
    if name == "broken_statistic":
        values["statistic"] = text_of(keys.specified[abs(number) - 1])
        values["was"] = shown(text) if number > 0 else f"a {text.decode()}"
    names_holder = name in ("expired_lease", "leased", "overlong_lease", "stuck_role")
    return Action(name, SENTENCES[name].done.format(**values), role, text_of(text) if names_holder and text else None)
