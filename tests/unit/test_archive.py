"""The lines of an export: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apressure.cli.streams import archive
from apressure.cli.streams.archive import ArchiveError, End, Head, Message
from apressure.core.browsing import BrowsedMessage
from apressure.core.limits import KeyLimit, Limits, Rate
from apressure.core.occasions import Schedule
from apressure.core.statistics import BoundedStatistics
from apressure.dead_letters import DeadLetter, Failure
from apressure.queue_addresses import QueueAddress

MOMENT = datetime(2030, 1, 31, 18, 0, 0, 250_000, UTC)
BODIES = [b"", b"text", "\u00fc\u20ac\U0001f600\n\0".encode(), b"\xff\xfe", bytes(range(256))]


def browsed(raw: bytes, **more: Any) -> BrowsedMessage[bytes]:
    known: dict[str, Any] = {
        "id": "a", "attempts": 2, "holder": None, "since": None, "due": MOMENT, "key": "k\udcff", **more,
    }  # fmt: skip
    return BrowsedMessage(item=raw, raw=raw, size=len(raw), error="", **known)


@pytest.mark.parametrize("raw", BODIES)
def test_a_message_is_read_as_it_was_written(raw: bytes) -> None:
    line = archive.message("delayed", browsed(raw))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert archive.read(line) == Message("delayed", raw, "a", "k\udcff", MOMENT)
    # When a lease ends is of no use to an import.
    assert archive.read(archive.message("in_flight", browsed(raw, id=None, key=None))) == Message(
        "in_flight", raw, None, None, None
    )


@pytest.mark.parametrize("raw", BODIES)
@pytest.mark.parametrize("error", [Failure("ValueError", "bad", 3), Failure("", "", 0), None])
def test_a_dead_letter_is_read_as_it_was_written(raw: bytes, error: Failure | None) -> None:
    for attempts, when in ((5, 1700000000.25), (None, None)):
        letter = DeadLetter("a", raw, attempts, error, when, bytes)
        assert archive.read(archive.letter(letter)) == letter


def test_a_dead_letter_with_a_time_that_cannot_be_shown_is_written_without_it() -> None:
    letter = DeadLetter("a", b"1", 1, None, 3e11, bytes)
    assert archive.read(archive.letter(letter)) == dataclasses.replace(letter, when=None)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(Rate(3, 60.0, 5), 7, key=KeyLimit(1, "/customer", False)),
        Limits(Rate(3, 0.5), key=KeyLimit(None, None, True)),
    ],
)
def test_the_settings_are_read_as_they_were_written(limits: Limits) -> None:
    found = BoundedStatistics(
        name="o", length=1, in_flight=0, waiting_putters=0, waiting_receivers=0, bound=9, closed=True, paused=False,
        limits=limits,
    )  # fmt: skip
    assert archive.read(archive.head(QueueAddress("events", "o"), found)) == Head("events", 9, True, False, limits)


@pytest.mark.parametrize("when", ["0 9 * * *", 60.0, 60])
def test_a_schedule_is_read_as_it_was_written(when: str | float) -> None:
    planned = Schedule(name="s", when=when, timezone="Europe/Berlin", missed="all", raw=b"\xff", paused=True)
    assert archive.read(archive.schedule(planned)) == planned


def test_the_last_line_is_one() -> None:
    assert isinstance(archive.read(archive.end({"waiting": 3})), End)


PLANNED = {"schedule": "s", "text": "a", "timezone": "UTC", "missed": "one", "paused": False}
HEAD = {"apressure": 1, "kind": "queue", "bound": 0, "closed": False, "paused": False}
GOOD = [
    archive.message("waiting", browsed(b"\xff")),
    archive.letter(DeadLetter("a", b"1", 5, Failure("E", "m", 1), 1.5, bytes)),
    archive.schedule(Schedule(name="s", when=60.0, raw=b"1")),
]


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"1", b"\xff", b'"text"', b"{}", b"[" * 100_000,
        b'{"place": "there", "text": "a"}',
        b'{"place": "waiting"}',
        b'{"place": "waiting", "text": "a", "base64": "YQ=="}',
        b'{"place": "waiting", "text": 1}',
        b'{"place": "waiting", "base64": "?"}',
        b'{"place": "waiting", "text": "\\ud800"}',
        b'{"place": "waiting", "text": "a", "key": 1}',
        b'{"place": "delayed", "text": "a", "due": "2030-01-31T18:00"}',
        b'{"place": "delayed", "text": "a", "due": "soon"}',
        b'{"place": "dead", "text": "a"}',
        b'{"place": "dead", "id": "a", "text": "a", "attempts": true}',
        b'{"place": "dead", "id": "a", "text": "a", "error": "why"}',
        b'{"schedule": "s", "text": "a"}',
        b'{"place": "dead", "id": "", "text": "a"}',
        b'{"place": "dead", "id": "\\ud800", "text": "a"}',
        b'{"place": "dead", "id": "a", "text": "a", "when": "9999-12-31T00:00:00+00:00"}',
        *(json.dumps({**PLANNED, "when": when}).encode() for when in (True, float("nan"), float("inf"), 10**400)),
        *(json.dumps({**HEAD, "rate": {"count": 1, "per": per}}).encode() for per in (True, 10**400)),
        b'{"apressure": 2}',
        b'{"apressure": 1, "kind": "topic", "bound": 0, "closed": false, "paused": false}',
        b'{"apressure": 1, "kind": "queue", "bound": "0", "closed": false, "paused": false}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused(damage: bytes) -> None:
    with pytest.raises(ArchiveError):
        archive.read(damage)


@pytest.mark.parametrize("seed", range(300))
def test_any_change_of_a_line_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    entry = json.loads(rng.choice(GOOD))
    values: list[Any] = [None, True, -1, 2**70, 1.5, float("inf"), "", "a", "9" * 5000, [], {}, {"type": 1}, b"".hex()]
    for _ in range(rng.randint(1, 3)):
        entry[rng.choice([*entry, "due", "error", "base64"])] = rng.choice(values)
    try:
        archive.read(json.dumps(entry).encode())
    except ArchiveError as error:
        assert str(error)  # noqa: PT017
