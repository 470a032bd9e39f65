"""What a look at a queue says, without a server: facts in, findings out."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest

from apressure.connection.wire.script import prelude_of
from apressure.pressure.doctor.findings import CLAIM_MS, Snapshot, diagnose, suspicious
from apressure.pressure.engine.keys import Keys, names_among, patterns

KEYS = Keys("p", "jobs")
NOW = 1_000_000
LUA = resources.files("apressure.pressure.engine") / "lua"

HEALTHY: dict[bytes, tuple[str, int, bytes]] = {
    KEYS.bound: ("string", 1, b"2"),
    KEYS.free("producer"): ("list", 1, b""),
    KEYS.free("consumer"): ("list", 1, b""),
    KEYS.not_full: ("list", 1, b""),
}


def look(changes: dict[bytes, tuple[str, int, bytes] | None], mark: str = "1", **more: Any) -> Snapshot:
    """A healthy queue, but for some keys; None is a key that is not there."""
    at = {**HEALTHY, **changes}
    seen = [
        [kind.encode(), size, value]
        for kind, size, value in (at.get(key) or ("none", 0, b"") for key in (*KEYS.specified, *KEYS.ours))
    ]
    marks = [f"{what}{mark}".encode() for what in ("all", "producer", "consumer")]
    nobody: list[Any] = []
    return Snapshot(
        "jobs",
        KEYS,
        [
            NOW,
            marks,
            seen,
            more.get("producer", nobody),
            more.get("consumer", nobody),
            more.get("collision", 0),
            *more.get("foreign", (0, 0, 0))[:2],
            more.get("members", []),
            more.get("foreign", (0, 0, 0))[2],
            more.get("said", [b"", []]),
        ],
    )


def kinds(earlier: Snapshot | None, snapshot: Snapshot) -> list[str]:
    return [finding.kind for finding in diagnose(earlier, snapshot)]


def test_a_healthy_queue_gives_no_reason_to_look_again() -> None:
    snapshot = look({})
    assert diagnose(snapshot, snapshot) == ()
    assert not suspicious(snapshot)


UNSURE: dict[str, dict[bytes, tuple[str, int, bytes] | None]] = {
    "stuck_role": {KEYS.free("producer"): None, KEYS.holder("producer"): ("string", 1, b"p")},
    "waiting_role": {KEYS.free("consumer"): None, KEYS.holder("producer"): ("string", 1, b"p")},
    "abandoned_claim": {KEYS.free("consumer"): None, KEYS.claim("consumer"): ("list", 1, b"")},
    "half_created": {KEYS.free("consumer"): None, KEYS.not_full: None},
    "half_deleted": {KEYS.bound: None},
    "leftovers": {**dict.fromkeys(HEALTHY), KEYS.inflight: ("list", 3, b"")},
}


@pytest.mark.parametrize("kind", UNSURE)
def test_what_may_be_an_operation_under_way_counts_only_when_it_has_not_moved(kind: str) -> None:
    snapshot = look(UNSURE[kind])
    assert diagnose(None, snapshot) == ()
    assert suspicious(snapshot)
    assert kinds(look(UNSURE[kind]), snapshot) == [kind]
    assert kinds(look(UNSURE[kind], mark="0"), snapshot) == []


def test_a_permit_is_no_matter_while_a_producer_may_have_it() -> None:
    used = {KEYS.holder("producer"): ("string", 1, b"p"), KEYS.not_full: None}
    snapshot = look({**used, KEYS.free("producer"): None})
    assert kinds(snapshot, snapshot) == ["stuck_role"]
    assert "restores the permit" in diagnose(snapshot, snapshot)[0].advice
    assert kinds(None, look(used)) == ["lost_permit"]


def test_a_lease_ends_at_its_deadline() -> None:
    leased = {KEYS.free("consumer"): None, KEYS.lease("consumer"): ("hash", 6, b"token")}
    for left, kind in ((1, "leased"), (0, "expired_lease"), (-5, "expired_lease")):
        snapshot = look(leased, consumer=[b"web-1:5", 400000, left, 0])
        (finding,) = diagnose(None, snapshot)
        assert (finding.kind, finding.holder) == (kind, "web-1:5")
        assert ("for 10 min" in finding.text) == (kind == "leased")


def test_a_lease_that_somebody_else_wrote_into() -> None:
    leased = {KEYS.free("consumer"): None, KEYS.lease("consumer"): ("hash", 6, b"token")}
    (unreadable,) = diagnose(None, look(leased, consumer=[b"web-1:5"]))
    assert (unreadable.kind, "cannot be read" in unreadable.text) == ("expired_lease", True)
    overlong, since_ever = diagnose(None, look(leased, consumer=[b"web-1:5", -1, 30000, 1]))
    assert (overlong.kind, overlong.fault, since_ever.kind, since_ever.fault) == (
        "overlong_lease",
        True,
        "leased",
        False,
    )
    assert "by now" not in since_ever.text
    assert "--repair --holder web-1:5" in since_ever.advice


def test_entries_of_somebody_else() -> None:
    (apart, redelivered, delayed) = diagnose(None, look({}, foreign=(1, 2, 3)))
    assert (apart.kind, redelivered.kind) == ("foreign_entry", "foreign_entry")
    assert ("1 entries" in apart.text, "first in line" in apart.advice) == (True, True)
    assert ("2 entries" in redelivered.text, "away" in redelivered.advice) == (True, True)
    assert ("3 entries" in delayed.text, "last in line" in delayed.advice) == (True, True)


@pytest.mark.parametrize("text", [b"x", b"", b"-", b"1.0", b"01", b"-0", b" 1", b"1\n", b"9" * 19])
def test_a_statistic_that_is_no_integer(text: bytes) -> None:
    key = KEYS.bytes_count("consumer")
    assert kinds(None, look({key: ("string", len(text), text)})) == ["broken_statistic"]


@pytest.mark.parametrize("text", [b"0", b"-5", b"9" * 18])
def test_a_statistic_that_is_one(text: bytes) -> None:
    key = KEYS.bytes_count("consumer")
    assert kinds(None, look({key: ("string", len(text), text)})) == []


def test_another_queue_with_a_key_of_this_one_hides_everything_else() -> None:
    damaged = {KEYS.free("producer"): ("list", 2, b"")}
    assert kinds(None, look(damaged)) == ["doubled_token"]
    assert kinds(None, look(damaged, collision=11)) == ["collision"]
    assert "'p:jobs:closed'" in diagnose(None, look(damaged, collision=11))[0].text
    assert kinds(None, look({KEYS.bound: None}, collision=11)) == []


def test_the_advice_can_be_pasted_into_a_shell() -> None:
    damaged = {KEYS.free("producer"): None, KEYS.holder("producer"): ("string", 4, b"a 'b")}
    snapshot = look(damaged)
    assert """--repair --holder 'a '"'"'b'""" in diagnose(snapshot, snapshot)[0].advice


def test_the_scripts_and_the_words_agree() -> None:
    prelude, repair = prelude_of("apressure.pressure.engine"), (LUA / "repair.lua").read_text()
    assert f"CLAIM_MS = {CLAIM_MS} " in prelude
    types = list(KEYS.types.values())
    for kind in ("list", "hash"):
        table = re.search(rf" {kind} = \{{([\d, ]*)\}}", repair)
        assert table is not None
        numbers = {int(number) for number in re.findall(r"\d+", table[1])}
        assert numbers == {index for index, found in enumerate(types, 1) if found == kind}


def test_names_are_found_by_what_is_there() -> None:
    assert names_among("p", []) == []
    assert names_among("p", KEYS.specified) == ["jobs"]
    assert names_among("p", [KEYS.free("producer")]) == ["jobs"]
    assert names_among("p", [KEYS.messages, KEYS.inflight]) == ["jobs"]
    # A queue that exists has its keys for itself, whatever they look like.
    closed = Keys("p", "jobs:closed")
    assert names_among("p", closed.specified) == ["jobs:closed"]
    assert names_among("p", [b"other:jobs:bound", b"p:", b"p::bound", b"apressure:p:jobs:op:5", b"apressure:p:x"]) == []


def test_patterns_are_taken_literally() -> None:
    assert patterns("a*[b") == (rb"a\*\[b:*", rb"apressure:a\*\[b:*")
