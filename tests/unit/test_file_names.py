"""The names of files in both units, and names that are refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apressure.files.storage import names
from apressure.files.storage.names import FileName, Unit

MILLISECONDS = st.integers(0, names.FIRST_MICROSECONDS - 1)
MICROSECONDS = st.integers(names.FIRST_MICROSECONDS, 10**17 - 1)
IDS = st.one_of(MILLISECONDS, MICROSECONDS)
SECONDS = st.floats(0, 4e9)


def time_of(number: int) -> int:
    """A number's time in microseconds."""
    return number if number >= names.FIRST_MICROSECONDS else number * 1000


@pytest.mark.parametrize(
    ("filename", "meaning"),
    [
        ("1415776871123", FileName(2 * 1415776871123000, "ready")),
        ("1415776871123.new", FileName(2 * 1415776871123000, "new")),
        ("1415776871123.1415776879654", FileName(2 * 1415776871123000, "taken", 1415776879654000)),
        ("1415776871123456", FileName(2 * 1415776871123456 + 1, "ready")),
        ("1415776871123456.1415776879654321", FileName(2 * 1415776871123456 + 1, "taken", 1415776879654321)),
        # vsqs 0.3, asked for a timeout that is no whole number
        ("1415776871123456.1415776879654321.0", FileName(2 * 1415776871123456 + 1, "taken", 1415776879654321)),
        # and what consumed a message of ours, in its own unit
        ("1415776871123.1415776879654321", FileName(2 * 1415776871123000, "taken", 1415776879654321)),
        ("0", FileName(0, "ready")),
        (".queue-later-1415776880000-1415776871123", FileName(2 * 1415776871123000, "later", 1415776880000000)),
        (".queue-later-5-1415776871123456", FileName(2 * 1415776871123456 + 1, "later", 5000)),
    ],
)
def test_names_of_messages(filename: str, meaning: FileName) -> None:
    assert names.parse(filename) == meaning


@pytest.mark.parametrize(
    "filename",
    [
        "", ".", "..", ".new", "new", "a", "1a", "1.", "1.New", "1.new.new", "1.2.3.4", "1.2.", "1..2", "01", "-1",
        "+1", " 1", "1 ", "1_000", "1\n", "1.new\n", "1.2\n", "\u0661", "\u00b2", "1.\u0662", "1" * 18, "1." + "1" * 18,
        "../1", "/1", "1/2", "1e5", "0x1", "1.new~", "1.-5", "1.2.1234567",
        ".queue-later-", ".queue-later-1", ".queue-later-1-", ".queue-later-1-01", ".queue-later-x-1",
        ".queue-later-1-1.new", f".queue-later-{10**14}-1", ".queue-later-1-1\n", ".queue-v1-later-1", "queue-later-1",
    ],
)  # fmt: skip
def test_names_of_other_files(filename: str) -> None:
    assert names.parse(filename) is None


@given(st.text(max_size=40))
@example("1.2.new")
def test_any_text_is_a_message_only_if_it_is_digits(text: str) -> None:
    name = names.parse(text)
    if name is not None and name.state != "later":
        assert set(text) <= set("0123456789.new")
        assert names.id_of(name.key) == text.partition(".")[0]


@given(IDS, st.sampled_from(["", ".new", ".123456", ".1415776879654321", ".1415776879654321.0"]))
def test_a_name_can_be_made_of_its_key(number: int, extension: str) -> None:
    name = names.parse(f"{number}{extension}")
    assert name is not None
    assert names.id_of(name.key) == str(number)
    assert names.time_of(name.key) == time_of(number)
    assert names.key_of(str(number)) == name.key


@given(IDS, IDS)
def test_keys_sort_by_time_in_both_units(one: int, other: int) -> None:
    first, second = names.key_of(str(one)), names.key_of(str(other))
    assert first is not None
    assert second is not None
    if time_of(one) != time_of(other):
        assert (first < second) == (time_of(one) < time_of(other))
    assert (first == second) == (one == other)


@given(IDS, st.integers(0, names.FIRST_MICROSECONDS - 1))
def test_the_name_of_a_delayed_message_says_when_it_is_due(number: int, due: int) -> None:
    key = names.key_of(str(number))
    assert key is not None
    assert names.parse(names.delayed_name(key, due)) == FileName(key, "later", due * 1000)


def test_numbers_sort_as_numbers() -> None:
    ninety_nine, hundred = names.key_of("99"), names.key_of("100")
    assert ninety_nine is not None
    assert hundred is not None
    assert ninety_nine < hundred


@given(IDS, SECONDS, st.sampled_from(["ms", "us"]))
def test_what_follows_is_behind_everything_and_not_behind_the_clock(number: int, now: float, unit: Unit) -> None:
    newest = names.key_of(str(number))
    assert newest is not None
    try:
        key = names.following(newest, now, unit)
    except OverflowError:
        assert number > 10**13
        return
    assert key > newest
    assert names.time_of(key) > names.time_of(newest)
    assert names.time_of(key) >= int(now * 1000) * 1000
    name = names.parse(names.id_of(key))
    assert name == FileName(key, "ready")
    assert (key & 1) == (unit == "us")


@given(SECONDS, st.sampled_from(["ms", "us"]))
def test_the_first_message_has_the_time_of_the_clock(now: float, unit: Unit) -> None:
    key = names.following(-1, max(now, 1e9), unit)
    assert abs(names.time_of(key) / 1e6 - max(now, 1e9)) < 0.0011


@given(IDS, SECONDS)
def test_who_took_a_message_and_until_when(number: int, until: float) -> None:
    key = names.key_of(str(number))
    assert key is not None
    until = max(until, 1e9)
    name = names.parse(names.taken_name(key, until))
    assert name is not None
    assert (name.key, name.state) == (key, "taken")
    assert abs(name.expires / 1e6 - until) < 0.0011
    assert names.new_name(key) == f"{number}.new"


@given(IDS, st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
@example(1415776871123, -31.0)
@example(1415776871123456, 1e11)
def test_the_name_of_a_message_that_was_taken_is_always_understood(number: int, until: float) -> None:
    key = names.key_of(str(number))
    assert key is not None
    name = names.parse(names.taken_name(key, until))
    assert name is not None
    assert (name.key, name.state) == (key, "taken")


@given(st.text(max_size=300))
@example("a/../../b")
@example("1415776871123.new")
def test_a_queue_name_is_refused_or_is_one_name_that_is_no_message(text: str) -> None:
    try:
        name = names.check_queue_name(text)
    except ValueError:
        return
    assert name == text
    assert names.parse(name) is None
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    parent, last = names.node_of(name, "spool")
    assert (parent / last).parent == parent


@given(st.text(alphabet="./ab\0", max_size=20))
def test_a_path_never_goes_up(path: str) -> None:
    try:
        parent, name = names.node_of(path, None)
    except ValueError:
        return
    assert ".." not in (parent / name).parts
