"""What a queue knows of those that work on it, and of producers that wait: the records in which they tell it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, get_args

WorkerKind = Literal["serve", "consumer", "runner", "spark"]

KEY_SCHEMA: Final = 1
"""The version of apressure's own keys beside the formats. It grows with a change that an older apressure would misread.
"""

MOST: Final = 1000
"""The most registrations of a queue. The scripts that write them know this number, too."""

MAX_SIZE: Final = 4096
"""The most bytes of a record that is read. The script that reads them knows this number, too."""

_HEAD: Final = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15}) ([cwWdDp]) ")
"""Milliseconds since 1970 by the server's clock: until when it counts, and when it was written; and a letter."""

_LONGEST_HEAD: Final = 34
_LONGEST_TEXT: Final = 255
_CUT: Final = "…"
"""The outermost frame of a stack that was cut."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """What works on a queue, as it told a few seconds ago.

    Attributes:
        id: Its id: what works in one process, on any number of queues, has the same.
        kind: `serve` (and `pipe`, `apressure worker`), a `consumer()` block, a `Runner` or a Spark query.
        handler: The name of its handler; "" where there is none.
        host: The name of its machine.
        pid: Its process.
        version: Its version of apressure.
        schema: The version of apressure's own keys that it writes and reads.
        since: When it began.
        seen: When it told this.
        concurrency: How many messages it handles at a time, at most; 0 where that is not limited.
        in_hand: Messages that it has received and not settled.
        oldest: For how many seconds the longest of its handlers has run; None if none runs.
        handled: Messages whose handler has returned.
        failed: Attempts that have failed.
        busy: Seconds that its handlers have taken, in all.
        draining: It receives no more, and ends when what it has in hand is settled.
        stack: Where the longest of its handlers was, the outermost frame first: `file:line in function`. None unless
            `show_stack` has asked for it lately; empty if no handler ran, or it ran where that cannot be seen.
    """

    id: str
    kind: WorkerKind
    handler: str
    host: str
    pid: int
    version: str
    schema: int = KEY_SCHEMA
    since: datetime
    seen: datetime
    concurrency: int
    in_hand: int
    oldest: float | None
    handled: int
    failed: int
    busy: float
    draining: bool
    stack: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WaitingProducer:
    """A queue object whose puts wait, since the queue is full, as it told up to 20 seconds ago.

    Attributes:
        id: The id of its process, which is that of a worker in the same process.
        host: The name of its machine.
        pid: Its process.
        version: Its version of apressure.
        schema: The version of apressure's own keys that it writes and reads.
        since: Since when the first of its puts has waited.
        seen: When it told this.
        puts: How many of its puts wait.
        waited: For how many seconds the first of them has waited, by now.
    """

    id: str
    host: str
    pid: int
    version: str
    schema: int = KEY_SCHEMA
    since: datetime
    seen: datetime
    puts: int
    waited: float


Registered = WorkerStatistics | WaitingProducer


class Beside(NamedTuple):
    """What is kept beside a queue, as fields of its statistics."""

    schedules: int
    dedup_ids: int
    workers: tuple[WorkerStatistics, ...] = ()
    waiting_producers: tuple[WaitingProducer, ...] = ()


class Letter:
    """What a registration is: what its record says behind the two times.

    Attributes:
        CANNOT: A worker that cannot be drained.
        WORKS: A worker that can.
        ASKED: A worker that was asked to drain.
        SHOWS: One that can be drained, and that was asked for a stack.
        ASKED_SHOWS: One that was asked for both.
        PUTS: A producer that waits for room.
    """

    CANNOT: Final = b"c"
    WORKS: Final = b"w"
    ASKED: Final = b"d"
    SHOWS: Final = b"W"
    ASKED_SHOWS: Final = b"D"
    PUTS: Final = b"p"


def stored(until: int, now: int, letter: bytes, record: bytes) -> bytes:
    """Return a registration as the queue keeps it. Times are in milliseconds since 1970."""
    return b"%d %d %b %b" % (until, now, letter, record)


def letter_of(value: bytes, now: int) -> bytes | None:
    """Return the letter of a registration; None for one that has expired, or that another program has damaged."""
    head = _HEAD.match(value)
    return head[3] if head is not None and int(head[1]) > now else None


def encode(record: dict[str, Any], stack: Iterable[str] | None = None) -> bytes:
    """Return a record as JSON. Long texts in it are cut, and so is the outer part of a long stack."""
    cut = {name: value[:_LONGEST_TEXT] if isinstance(value, str) else value for name, value in record.items()}
    if stack is None:
        return _json(cut)
    left, frames = MAX_SIZE - _LONGEST_HEAD - len(_json({**cut, "stack": [_CUT]})), list[str]()
    for frame in reversed([frame[-_LONGEST_TEXT:] for frame in stack]):
        left -= len(_json(frame)) + 1
        if left < 0:
            frames.append(_CUT)
            break
        frames.append(frame)
    return _json({**cut, "stack": frames[::-1]})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def told(
    now: int, registrations: Iterable[tuple[bytes, bytes]]
) -> tuple[tuple[WorkerStatistics, ...], tuple[WaitingProducer, ...]]:
    """Return what registrations tell, without those that have expired or that cannot be read.

    Args:
        now: The time in milliseconds since 1970, by the clock of the records.
        registrations: Names and values, as the queue keeps them.

    Returns:
        The workers, by their names, and the producers that wait, the one that has waited longest first.
    """
    decoded = (_decoded(now, name, value) for name, value in sorted(registrations) if name)
    found = list(itertools.islice((one for one in decoded if one is not None), MOST))
    producers = [one for one in found if isinstance(one, WaitingProducer)]
    producers.sort(key=operator.attrgetter("since"))
    return tuple(one for one in found if isinstance(one, WorkerStatistics)), tuple(producers)


def told_of(reply: Sequence[Any]) -> tuple[tuple[WorkerStatistics, ...], tuple[WaitingProducer, ...]]:
    """Do the same with what a server tells: the time, and then names and values one after the other."""
    now, *flat = reply
    return told(now, zip(flat[::2], flat[1::2], strict=True))


def _decoded(now: int, name: bytes, value: bytes) -> Registered | None:
    head = _HEAD.match(value[:MAX_SIZE])
    worker_id, slash, _ = name.rpartition(b"/")
    if head is None or int(head[1]) <= now or not slash or len(name) > _LONGEST_TEXT or len(value) > MAX_SIZE:
        return None
    try:
        record = json.loads(value[head.end() :])
        seen, age = int(head[2]) / 1000, _number(record["age"])
        common: dict[str, Any] = {
            "id": worker_id.decode(),
            "host": _text(record["host"]),
            "pid": _whole(record["pid"]),
            "version": _text(record["version"]),
            "schema": _whole(record.get("schema", 1)),
            "since": datetime.fromtimestamp(seen - age, UTC),
            "seen": datetime.fromtimestamp(seen, UTC),
        }
        if head[3] == Letter.PUTS:
            waited = max(0.0, now / 1000 - seen + age)
            return WaitingProducer(**common, puts=_whole(record["puts"]), waited=waited)
        return WorkerStatistics(
            **common,
            kind=_kind(record["kind"]),
            handler=_text(record["handler"]),
            concurrency=_whole(record["concurrency"]),
            in_hand=_whole(record["in_hand"]),
            oldest=None if record["oldest"] is None else _number(record["oldest"]),
            handled=_whole(record["handled"]),
            failed=_whole(record["failed"]),
            busy=_number(record["busy"]),
            draining=bool(record["draining"]) or head[3] in (Letter.ASKED, Letter.ASKED_SHOWS),
            stack=_stack(record.get("stack")),
        )
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return None  # another program wrote it


def _kind(value: Any) -> WorkerKind:
    if value not in get_args(WorkerKind):
        raise ValueError(value)
    return value  # type: ignore[no-any-return]


def _stack(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(map(_text, value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # not half of a surrogate pair
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise TypeError(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise TypeError(value)
    return float(value)
