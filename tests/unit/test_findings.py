"""What a look at a queue says, without a server: facts in, findings out."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest

from apressure.queue.facts import Facts
from apressure.queue.findings import CLAIM_MS, diagnose, suspicious
from apressure.queue.keys import Keys, names_among, patterns

KEYS = Keys("p", "jobs")
NOW = 1_000_000
LUA = resources.files("apressure.queue") / "lua"

HEALTHY: dict[bytes, tuple[str, int, bytes]] = {
    KEYS.bound: ("string", 1, b"2"),
    KEYS.free("producer"): ("list", 1, b""),
    KEYS.free("consumer"): ("list", 1, b""),
    KEYS.not_full: ("list", 1, b""),
}


def look(changes: dict[bytes, tuple[str, int, bytes] | None], mark: str = "1", **more: Any) -> Facts:
    """A healthy queue, but for some keys; None is a key that is not there."""
    at = {**HEALTHY, **changes}
    seen = [
        [kind.encode(), size, value]
        for kind, size, value in (at.get(key) or ("none", 0, b"") for key in (*KEYS.specified, *KEYS.ours))
    ]
    marks = [f"{what}{mark}".encode() for what in ("all", "producer", "consumer")]
    nobody = [b"", b"", b""]
    return Facts(
        "jobs",
        KEYS,
        [NOW, marks, seen, more.get("producer", nobody), more.get("consumer", nobody), more.get("collision", 0)],
    )


def kinds(earlier: Facts | None, facts: Facts) -> list[str]:
    return [finding.kind for finding in diagnose(earlier, facts)]


def test_a_healthy_queue_gives_no_reason_to_look_again() -> None:
    facts = look({})
    assert diagnose(facts, facts) == ()
    assert not suspicious(facts)


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
    facts = look(UNSURE[kind])
    assert diagnose(None, facts) == ()
    assert suspicious(facts)
    assert kinds(look(UNSURE[kind]), facts) == [kind]
    assert kinds(look(UNSURE[kind], mark="0"), facts) == []


def test_a_permit_is_no_matter_while_a_producer_may_have_it() -> None:
    used = {KEYS.holder("producer"): ("string", 1, b"p"), KEYS.not_full: None}
    facts = look({**used, KEYS.free("producer"): None})
    assert kinds(facts, facts) == ["stuck_role"]
    assert "brings that back" in diagnose(facts, facts)[0].advice
    assert kinds(None, look(used)) == ["lost_permit"]


def test_a_lease_ends_at_its_deadline() -> None:
    leased = {KEYS.free("consumer"): None, KEYS.lease("consumer"): ("hash", 6, b"token")}
    for deadline, kind in ((NOW + 1, "leased"), (NOW, "expired_lease")):
        facts = look(leased, consumer=[b"web-1:5", b"400000", str(deadline).encode()])
        (finding,) = diagnose(None, facts)
        assert (finding.kind, finding.holder) == (kind, "web-1:5")
        assert ("for 10 min by now" in finding.text) == (kind == "leased")


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
    facts = look(damaged)
    assert """--repair --holder 'a '"'"'b'""" in diagnose(facts, facts)[0].advice


def test_the_scripts_and_the_words_agree() -> None:
    prelude, repair = ((LUA / f"{name}.lua").read_text() for name in ("prelude", "repair"))
    assert f"CLAIM_MS = {CLAIM_MS} " in prelude
    types = list(KEYS.types.values())
    for word, kind in (("LISTS", "list"), ("HASHES", "hash")):
        table = re.search(rf"local {word} = \{{(.*)\}}", repair)
        assert table is not None
        numbers = {int(number) for number in re.findall(r"\[(\d+)\] = true", table[1])}
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
