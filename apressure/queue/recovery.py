"""What is wrong with a queue, and mending it: the API under `apressure doctor`.

`examine` looks and changes nothing. `repair` mends what can be mended without knowing who lives, and with a holder's
name what only a human can know. `watch` does what needs no human, again and again: for queues that only clients use
which do not heal. All three may run beside any number of clients, and of each other: every condition is looked at
again on the server, in one piece with what is done about it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from apressure.connection.client import Client
from apressure.exceptions import PermissionDeniedError, Role, ScriptingRefusedError
from apressure.queue import keys as spelling
from apressure.queue.facts import Facts, shown, text_of
from apressure.queue.findings import CLAIM_MS, Finding, FindingKind, diagnose, suspicious
from apressure.queue.keys import Keys
from apressure.queue.steps import Steps

if TYPE_CHECKING:
    from apressure.queue.queue import AsyncQueue

__all__ = ["Action", "Finding", "FindingKind", "Repair", "Report", "examine", "find", "repair", "watch"]

PATIENCE = 1.0
_ROUNDS = 6  # what one repair sets free may be what another waits for
_NEEDS_NO_HUMAN = frozenset(
    {"abandoned_claim", "doubled_token", "expired_lease", "extra_permits", "lost_permit", "orphaned_items"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a look at a queue found.

    Attributes:
        name: The queue's name.
        exists: Whether the queue exists; also of one that does not something may be left.
        findings: What there is to know, faults and others.
    """

    name: str
    exists: bool
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.fault)

    @property
    def healthy(self) -> bool:
        """Nothing is wrong."""
        return not self.faults


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Something that a repair did.

    Attributes:
        kind: The kind of finding that it mended.
        text: What was done.
        role: The role that it was about, if it was about one.
        holder: Whose role, or lease, it was; None where nobody is named.
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
        report: A look afterwards.
    """

    name: str
    done: tuple[Action, ...]
    report: Report


async def examine(queue: AsyncQueue[Any], patience: float = PATIENCE) -> Report:
    """Look what is wrong with a queue. Nothing is changed.

    Where something may be an operation under way, it looks again after `patience`.

    Args:
        queue: The queue; it need not exist.
        patience: Seconds after which an operation of a client that works step by step counts as not moving any more.

    Raises:
        ScriptingRefusedError: The queue has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.

    Cancelled, nothing has happened.
    """
    steps, keys = _opened(queue.client, queue.name)
    facts, findings = await _look(steps, keys, patience)
    return Report(queue.name, facts.exists, findings)


async def repair(queue: AsyncQueue[Any], holder: str | None = None, patience: float = PATIENCE) -> Repair:
    """Mend what is wrong with a queue, as far as that needs no human, and say what was done.

    A claim that was noticed only now is given back after five seconds, which this waits for.

    Args:
        queue: The queue; it need not exist.
        holder: The name that the server shows for a role whose holder, a client that works step by step, is dead
            **as you know**: the role is given back. It must be the very name (`Finding.holder`; the empty string
            where none is shown), and nothing may have moved there for `patience`. Of a client that lives, it makes two
            in one role.
        patience: As for `examine`.

    Raises:
        ScriptingRefusedError: The queue has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached. What was mended until then is.

    Cancelled, some of it has been mended; repeating it is safe. When the connection broke in between, what was done
    just before may be missing in `done`.
    """
    steps, keys = _opened(queue.client, queue.name)
    named = None if holder is None else holder.encode(errors="surrogateescape")
    done: list[Action] = []
    for _ in range(_ROUNDS):
        facts, findings = await _look(steps, keys, patience)
        mendable = [
            finding
            for finding in findings
            if finding.repair == "automatic"
            or (finding.repair == "holder" and holder is not None and holder == (finding.holder or ""))
        ]
        if not mendable:
            break
        did = await steps.repair(facts.marks, True, named)
        done += _actions(keys, did)
        if not did and any(finding.kind == "abandoned_claim" for finding in mendable):
            await asyncio.sleep(CLAIM_MS / 1000)
    else:
        facts, findings = await _look(steps, keys, patience)
    return Repair(queue.name, tuple(done), Report(queue.name, facts.exists, findings))


async def watch(
    target: AsyncQueue[Any] | Client,
    interval: float = 1.0,
    on_repair: Callable[[Repair], object] | None = None,
) -> NoReturn:
    """Heal a queue, or all queues of a client, again and again, until it is cancelled.

    It does what needs no human and loses nothing: expired leases, abandoned claims, messages in flight that nobody
    answers for, permits and tokens. (Operations of apressure clients do so themselves: this is for queues that only
    other clients use.) What stays damaged is for `examine` to tell.

    Args:
        target: A queue, which may come and go; or a client: every queue under its prefix, but for those that its user
            may not touch. The whole key space is scanned each time then, so choose the interval.
        interval: Seconds between two looks, and what counts as not moving.
        on_repair: Called with what was done, whenever something was.

    Raises:
        ScriptingRefusedError: The client has `scripting=False`.
        ServerError, ServerUnavailableError: The server refused, or cannot be reached for `retry_timeout`.

    Cancelled, every repair has been made wholly or not at all.
    """
    client = target if isinstance(target, Client) else target.client
    earlier: dict[str, Facts] = {}
    while True:
        names = await find(target) if isinstance(target, Client) else [target.name]
        looks: dict[str, Facts] = {}
        for name in names:
            try:
                steps, keys = _opened(client, name)
                facts = looks[name] = Facts(name, keys, await steps.examine())
            except (ValueError, PermissionDeniedError):
                if target is not client:
                    raise
                continue  # somebody else's: no name for this cluster, or not for this user
            findings = diagnose(earlier.get(name), facts)
            if any(finding.kind in _NEEDS_NO_HUMAN for finding in findings):
                did = await steps.repair(facts.marks, False, None)
                if did and on_repair is not None:
                    after = Facts(name, keys, await steps.examine())
                    report = Report(name, after.exists, diagnose(facts, after))
                    on_repair(Repair(name, tuple(_actions(keys, did)), report))
        earlier = looks
        await asyncio.sleep(interval)


async def find(client: Client) -> list[str]:
    """Return the names of all queues under a client's prefix, and of all of which something is left, sorted.

    The whole key space is scanned, in portions.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.

    Cancelled, nothing has happened.
    """
    client.check()
    found: set[bytes] = set()
    for pattern in spelling.patterns(client.prefix):
        for kind in (b"string", b"list", b"hash"):
            found.update([key async for key in client.scan(pattern, kind)])
    return spelling.names_among(client.prefix, found)


def _opened(client: Client, name: str) -> tuple[Steps, Keys]:
    client.check()
    if not client.settings.scripting:
        raise ScriptingRefusedError("recovery needs scripts on the server: open the queue without scripting=False")
    keys = Keys(client.prefix, name)
    return Steps(client, keys, name), keys


async def _look(steps: Steps, keys: Keys, patience: float) -> tuple[Facts, tuple[Finding, ...]]:
    facts = Facts(steps.name, keys, await steps.examine())
    if not suspicious(facts):
        return facts, diagnose(None, facts)
    await asyncio.sleep(patience)
    later = Facts(steps.name, keys, await steps.examine())
    return later, diagnose(facts, later)


def _actions(keys: Keys, did: Iterable[Any]) -> list[Action]:
    """Put into words what the step `repair` answers."""
    actions = []
    for kind, role, text, number in did:
        name: FindingKind = kind.decode()
        whose: Role | None = role.decode() or None
        names_holder = name in ("expired_lease", "stuck_role")
        holder = text_of(text) if names_holder and text else None
        actions.append(Action(name, _words(keys, name, whose, text, number), whose, holder))
    return actions


def _words(keys: Keys, kind: FindingKind, role: Role | None, text: bytes, number: int) -> str:
    match kind:
        case "broken_statistic":
            key = text_of(keys.specified[abs(number) - 1])
            was = shown(text) if number > 0 else f"a {text.decode()}"
            return f"set the statistic {key!r} to 0; it was {was}"
        case "expired_lease":
            back = f", and put {number} messages back that were in flight" if number else ""
            return f"gave back the {role} role, whose lease {text_of(text)!r} let run out{back}"
        case "orphaned_items":
            return f"put {number} messages back that were in flight with nobody responsible"
        case "abandoned_claim":
            return f"gave back the {role} role, which was claimed and not used"
        case "doubled_token":
            return f"removed {number - 1} of the {number} tokens of the {role} role"
        case "stuck_role":
            whose = repr(text_of(text)) if text else "whoever had it"
            items = "what it had got is lost" if role == "consumer" else "what it was putting is in the queue, or lost"
            return f"gave back the {role} role of {whose}; {items}"
        case "half_created":
            return "made the tokens that were missing"
        case "lost_permit":
            return "brought back the permit to put"
        case "extra_permits":
            return f"removed {number} permits to put too many"
        case "half_deleted":
            return f"deleted what was left of the queue, with {number} messages"
        case "leftovers":
            what = f"{number} messages that were in flight" if number else "apressure's notes"
            return f"removed {what} of a queue that does not exist"
        case _:
            return kind
