"""The file of `apressure export`: JSON in ASCII, an object on a line. docs/rely/leave.md describes it.

This module does no I/O: it makes lines of what a queue has, and reads them without trust.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json as jsons
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Final, NamedTuple

from apressure.core.added_letters import Added
from apressure.core.browsing import PLACES, BrowsedMessage
from apressure.core.limits import KeyLimit, Limits, Rate
from apressure.core.occasions import Schedule
from apressure.core.statistics import BoundedStatistics
from apressure.dead_letters import DeadLetter, Failure, moment_of
from apressure.exceptions import PressureError
from apressure.queue_addresses import KINDS, QueueAddress

VERSION: Final = 1


class ArchiveError(PressureError, ValueError):
    """A line is not what `apressure export` writes."""


class Head(NamedTuple):
    """The first line: where the file comes from, and the settings of the queue."""

    kind: str
    bound: int
    closed: bool
    paused: bool
    limits: Limits


class Message(NamedTuple):
    """A message that waited, was in flight, delayed or parked."""

    place: str
    raw: bytes
    id: str | None
    key: str | None
    due: datetime | None


class End(NamedTuple):
    """The last line."""


Entry = Head | Message | DeadLetter[bytes] | Schedule | End


def line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as a line. What is None is left out."""
    return jsons.dumps({name: value for name, value in entry.items() if value is not None}).encode() + b"\n"


def head(address: QueueAddress, found: BoundedStatistics) -> bytes:
    """Return the first line."""
    limits = found.limits
    rate, key = limits.rate, limits.key
    return line(
        {
            "apressure": VERSION, "kind": address.kind, "queue": found.name, "at": datetime.now(UTC).isoformat(),
            "bound": found.bound, "closed": found.closed, "paused": found.paused,
            "rate": rate and {"count": rate.count, "per": rate.per, "burst": rate.burst},
            "concurrency": limits.concurrency,
            "key_limit": key and {"at_most": key.at_most, "pointer": key.pointer, "fair": key.fair},
        }
    )  # fmt: skip


def schedule(planned: Schedule) -> bytes:
    """Return the line of a schedule."""
    return line(
        {
            "schedule": planned.name, "when": planned.when, "timezone": planned.timezone, "missed": planned.missed,
            "paused": planned.paused, **_body(planned.raw),
        }
    )  # fmt: skip


def message(place: str, found: BrowsedMessage[bytes]) -> bytes:
    """Return the line of a message."""
    due = found.due.isoformat() if place == "delayed" and found.due is not None else None
    return line(
        {"place": place, "id": found.id, "key": found.key, "attempts": found.attempts, "due": due, **_body(found.raw)}
    )


def letter(found: DeadLetter[bytes]) -> bytes:
    """Return the line of a dead letter."""
    error = found.error
    told = error and {"type": error.type, "message": error.message, "attempt": error.attempt}
    moment = moment_of(found)
    when = moment and moment.isoformat()
    return line(
        {"place": "dead", "id": found.id, "attempts": found.attempts, "error": told, "when": when, **_body(found.raw)}
    )


def end(counts: Mapping[str, int]) -> bytes:
    """Return the last line."""
    return line({"end": dict(counts)})


def read(text: bytes) -> Entry:
    """Return what a line says.

    Raises:
        ArchiveError: It is damaged, or of a later version; the message says why.
    """
    try:
        entry = jsons.loads(text)
    except (ValueError, RecursionError):
        raise ArchiveError("it is not JSON") from None
    if not isinstance(entry, dict):
        raise ArchiveError("it is not an object of JSON")
    if "apressure" in entry:
        if entry["apressure"] != VERSION:
            raise ArchiveError(
                f"it has version {entry['apressure']!r} of the format, and this apressure reads {VERSION}"
            )
        return _head(entry)
    if "end" in entry:
        return End()
    if "schedule" in entry:
        return _schedule(entry)
    match entry.get("place"):
        case "dead":
            return _letter(entry)
        case str(place) if place in PLACES:
            return Message(place, _raw(entry), _get(entry, "id", str), _get(entry, "key", str), _moment(entry, "due"))
        case _:
            raise ArchiveError("it is neither a message nor a schedule: `place` is unknown")


def _head(entry: dict[str, Any]) -> Head:
    rate, key = _get(entry, "rate", dict), _get(entry, "key_limit", dict)
    limits = Limits(
        rate=rate and Rate(_need(rate, "count", int), _number(rate, "per"), _get(rate, "burst", int)),
        concurrency=_get(entry, "concurrency", int),
        key=key and KeyLimit(_get(key, "at_most", int), _get(key, "pointer", str), _need(key, "fair", bool)),
    )
    kind, bound = _need(entry, "kind", str), _need(entry, "bound", int)
    if kind not in KINDS:
        raise ArchiveError("`kind` is unknown")
    if bound < 0:
        raise ArchiveError("`bound` is a wrong value")
    return Head(kind, bound, _need(entry, "closed", bool), _need(entry, "paused", bool), limits)


def _schedule(entry: dict[str, Any]) -> Schedule:
    when = entry.get("when")
    return Schedule(
        name=_need(entry, "schedule", str),
        when=when if isinstance(when, str) else _number(entry, "when"),
        timezone=_need(entry, "timezone", str),
        missed=_need(entry, "missed", str),
        paused=_need(entry, "paused", bool),
        raw=_raw(entry),
    )


def _letter(entry: dict[str, Any]) -> DeadLetter[bytes]:
    told, when = _get(entry, "error", dict), _moment(entry, "when")
    failure = told and Failure(_need(told, "type", str), _need(told, "message", str), _need(told, "attempt", int))
    seconds = None if when is None else when.timestamp()
    found = DeadLetter(
        _need(entry, "id", str), _raw(entry), _get(entry, "attempts", int), failure or None, seconds, bytes
    )
    try:
        Added.of(found)
    except (TypeError, ValueError) as error:
        raise ArchiveError(str(error)) from None
    return found


def _body(raw: bytes) -> dict[str, str]:
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _raw(entry: dict[str, Any]) -> bytes:
    text, encoded = _get(entry, "text", str), _get(entry, "base64", str)
    if (text is None) is (encoded is None):
        raise ArchiveError("it needs either `text` or `base64`")
    try:
        return base64.b64decode(encoded, validate=True) if text is None else text.encode()
    except (UnicodeEncodeError, binascii.Error):
        raise ArchiveError(f"`{'base64' if text is None else 'text'}` cannot be read") from None


def _get(entry: dict[str, Any], name: str, kind: type[Any] | UnionType) -> Any:
    """Return a field of a kind; None if it is missing."""
    value = entry.get(name)
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise ArchiveError(f"`{name}` is a wrong value")


def _need(entry: dict[str, Any], name: str, kind: type[Any] | UnionType) -> Any:
    value = _get(entry, name, kind)
    if value is None:
        raise ArchiveError(f"`{name}` is missing")
    return value


def _number(entry: dict[str, Any], name: str) -> float:
    value = _need(entry, name, int | float)
    with contextlib.suppress(OverflowError):  # of an int
        if math.isfinite(value):
            return float(value)
    raise ArchiveError(f"`{name}` is a wrong value")


def _moment(entry: dict[str, Any], name: str) -> datetime | None:
    text = _get(entry, name, str)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ArchiveError(f"`{name}` is not a time with a zone, such as 2030-01-31T18:00:00+00:00")
    return moment
