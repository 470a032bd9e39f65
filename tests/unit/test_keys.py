"""The keys of a queue: the specification's, and ours out of its way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure.pressure.engine.keys import MAX_NAME, Keys
from tests.reference import TWELVE

names = st.text(alphabet="ab:", min_size=1, max_size=8) | st.builds(
    ":".join,
    st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                "",
                "bound",
                "closed",
                "stats",
                "produced_bytes",
                "producer_lease",
                "inflight",
                "op",
                "apressure",
            ]
        ),
        min_size=1,
        max_size=4,
    ),
).filter(bool)
prefixes = st.sampled_from(["__pressure__", "p", "p:q", "p:a", ":", "apressureish"])


def ours(keys: Keys, series: str = "s") -> set[bytes]:
    return set(keys.for_script(series)) - set(keys.specified)


def test_the_twelve_keys_are_those_of_the_specification() -> None:
    assert Keys("__pressure__", "jobs").specified == tuple(f"__pressure__:jobs{suffix}".encode() for suffix in (
        "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free",
        ":stats:produced_messages", ":stats:produced_bytes", ":stats:consumed_messages", ":stats:consumed_bytes",
        ":not_full", ":closed",
    ))  # fmt: skip


def test_the_reference_client_spells_the_same_keys() -> None:
    assert set(Keys("p", "q").specified) == {f"p:q{suffix}".encode() for suffix in TWELVE}


def test_each_key_has_the_name_of_what_it_holds() -> None:
    keys = Keys("p", "q")
    assert (keys.messages, keys.bound, keys.not_full, keys.closed) == (
        b"p:q",
        b"p:q:bound",
        b"p:q:not_full",
        b"p:q:closed",
    )
    for role, verb in (("producer", "produced"), ("consumer", "consumed")):
        assert keys.holder(role) == f"p:q:{role}".encode()
        assert keys.free(role) == f"p:q:{role}_free".encode()
        assert keys.messages_count(role) == f"p:q:stats:{verb}_messages".encode()
        assert keys.bytes_count(role) == f"p:q:stats:{verb}_bytes".encode()
        assert keys.claim(role) in ours(keys)


@given(prefixes, names)
def test_our_keys_are_never_under_the_prefix(prefix: str, name: str) -> None:
    for key in ours(Keys(prefix, name)):
        assert key.startswith(b"apressure:")
        assert not key.startswith(prefix.encode() + b":")


@given(prefixes, names, prefixes, names)
def test_no_two_queues_share_a_key_of_ours(prefix: str, name: str, other_prefix: str, other_name: str) -> None:
    if f"{prefix}:{name}" != f"{other_prefix}:{other_name}":
        one, two = ours(Keys(prefix, name)), ours(Keys(other_prefix, other_name))
        assert not one & two


@given(prefixes, names, names)
def test_queues_whose_specified_keys_overlap_are_found_by_create(prefix: str, name: str, other: str) -> None:
    if name == other:
        return
    one, two = Keys(prefix, name), Keys(prefix, other)
    overlap = set(one.specified) & set(two.specified)
    assert bool(overlap) == (two.bound in one.collisions()), overlap
    assert bool(overlap) == (one.bound in two.collisions()), overlap


def test_collisions_name_the_queues_inside_and_outside() -> None:
    collisions = Keys("p", "jobs:closed").collisions()
    assert b"p:jobs:bound" in collisions
    assert b"p:jobs:closed:not_full:bound" in collisions
    assert b"p:jobs:closed:bound" not in collisions


@given(prefixes, names, names)
def test_two_queues_beside_each_other_share_no_key(prefix: str, name: str, other: str) -> None:
    one, two = Keys(prefix, name), Keys(prefix, other)
    assert one.overlaps(two) == two.overlaps(one)
    if not one.overlaps(two):
        assert set(one.for_script("s")).isdisjoint(two.for_script("none"))
        assert two.bound not in one.collisions()
    else:
        assert name == other or two.bound in one.collisions()


@pytest.mark.parametrize(
    "name", ["a b", "a\nb", "{jobs}", "*", "[a-z]?", "ü", "日本語", "\x00", "a:b", ":", "🚀", "x" * (MAX_NAME - 2)]
)
def test_any_text_is_a_name(name: str) -> None:
    assert Keys("p", name).messages == f"p:{name}".encode()


def test_bytes_that_are_no_text_are_a_name_as_the_operating_system_gives_them() -> None:
    assert Keys("p", b"\xff".decode(errors="surrogateescape")).messages == b"p:\xff"


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("", ValueError, "must not be empty"),
        ("x" * MAX_NAME, ValueError, "must be shorter"),
        ("ü" * (MAX_NAME // 2), ValueError, "must be shorter"),
        ("\ud800", ValueError, "name"),
        (b"jobs", TypeError, "must be a string"),
        (None, TypeError, "must be a string"),
        (5, TypeError, "must be a string"),
    ],
)
def test_a_bad_name_is_refused(name: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Keys("p", name)  # type: ignore[arg-type]
