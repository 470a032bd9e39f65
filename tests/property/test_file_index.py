"""The index agrees with a plain model after any changes, in any order that a directory allows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from apressure.files.storage import names
from apressure.files.storage.index import Index

KEYS = st.integers(1, 12).map(lambda number: number * 2000)
NAMES = st.one_of(
    KEYS.map(names.id_of),
    KEYS.map(names.new_name),
    st.tuples(KEYS, st.integers(1, 5)).map(lambda pair: f"{names.id_of(pair[0])}.{pair[1]}"),
    st.tuples(KEYS, st.integers(1, 5)).map(lambda pair: names.delayed_name(*pair)),
    st.just("README"),
    st.sampled_from(
        [".queue-v1-closed", ".queue-v1-bound-3", ".queue-v1-bound-20", ".queue-v2-else", ".queue-v1-bound-x"]
    ),
)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "discard", "list"]), NAMES), max_size=80)


def check(index: Index, there: dict[str, None]) -> None:
    parsed: dict[str, Any] = {name: names.parse(name) for name in there}
    ready = sorted(name.key for name in parsed.values() if name and name.state == "ready")
    taken = {text: name for text, name in parsed.items() if name and name.state == "taken"}
    new = [name.key for name in parsed.values() if name and name.state == "new"]
    later = sorted((name.expires, name.key, text) for text, name in parsed.items() if name and name.state == "later")
    assert index.waiting == len(ready)
    assert index.in_flight == len(taken)
    assert index.head() == (ready[0] if ready else None)
    assert sorted(index.unfinished) == sorted(new)
    assert index.waiting_names() == [names.id_of(key) for key in ready]
    assert sorted(index.taken.oldest_first()) == sorted(taken)
    expiry = index.taken.first()
    assert (expiry is None) == (not taken)
    if expiry is not None:
        assert expiry[0] == min(name.expires for name in taken.values())
        assert expiry[1] in taken
    assert index.room(50) == 50 - len(ready) - len(taken) - len(new) - len(later)
    assert len(index.delayed) == len(later)
    assert index.delayed.names() == [text for _, _, text in later]
    assert index.delayed.next_due() == (later[0][0] if later else None)
    for now in (0, 1000, 3000, 5000):
        for most in (1, 3, 100):
            due = [(text, key) for when, key, text in later if when <= now]
            assert index.delayed.due(now, most) == due[:most]
    assert index.drained == (index.closed and not (ready or new or later))
    for key in ready:
        assert index.filename_of(key) == names.id_of(key)
    assert index.newest_waiting() == (ready[-1] if ready else None)
    assert index.bound == (3 if ".queue-v1-bound-3" in there else 20 if ".queue-v1-bound-20" in there else 0)
    assert index.unknown == next((name for name in (".queue-v1-bound-x", ".queue-v2-else") if name in there), None)
    assert index.closed or ".queue-v1-closed" not in there


@given(CHANGES)
@settings(max_examples=300)
def test_the_index_says_what_is_there(changes: list[tuple[str, str]]) -> None:
    index = Index()
    there: dict[str, None] = {}
    for number, (change, name) in enumerate(changes):
        if change == "add":
            there[name] = None
            index.add(name, number)
        elif change == "discard":
            there.pop(name, None)
            index.discard(name)
        else:
            index.become(Index.of(list(there), number))
        check(index, there)
    assert index.closed == (("add", ".queue-v1-closed") in changes)  # once closed, it stays so


@given(CHANGES)
def test_being_told_twice_makes_no_difference(changes: list[tuple[str, str]]) -> None:
    """After a listing, the changes that were made meanwhile are told once more."""
    index, there = Index(), {}
    for change, name in changes:
        if change == "discard":
            there.pop(name, None)
        else:
            there[name] = None
    index.become(Index.of(list(there), 0))
    for change, name in changes:
        if change == "discard":
            index.discard(name)
        else:
            index.add(name, 0)
    check(index, dict(there))


@given(st.lists(KEYS, unique=True, min_size=1), st.integers(0, 12))
def test_the_first_ones_get_the_room_that_there_is(keys: list[int], bound: int) -> None:
    index = Index()
    for key in keys:
        index.add(names.new_name(key), 0)
    may = [key for key in keys if index.room(bound, key) > 0]
    assert may == keys[:bound]
    assert sum(index.room(bound, key, ordered=False) > 0 for key in keys) in {0, len(keys)}


@given(st.lists(KEYS, unique=True, min_size=1))
def test_names_that_come_late_are_told_apart(keys: list[int]) -> None:
    index = Index()
    newest = -1
    for key in keys:
        index.add(names.new_name(key), 0)
        assert (key in index.behind) == (key < newest)
        newest = max(newest, key)
    for key in keys:
        index.discard(names.new_name(key))
    assert not index.behind


@given(st.lists(KEYS, unique=True, min_size=1))
def test_names_of_a_listing_are_in_no_order(keys: list[int]) -> None:
    index = Index()
    index.become(Index.of(map(names.new_name, keys), 0))
    assert index.behind == set(keys)


def test_heaps_do_not_grow_with_what_has_gone() -> None:
    index = Index()
    for number in range(10_000):
        index.add(f"{number}", 0)
        index.discard(f"{number}")
        index.add(f"{number}.{number}", 0)
        index.discard(f"{number}.{number}")
        index.add(f".queue-later-{number}-{number}", 0)
        index.discard(f".queue-later-{number}-{number}")
    assert len(index._line) < 200
    assert len(index.delayed._line) < 200
    assert len(index.taken._line) < 200
