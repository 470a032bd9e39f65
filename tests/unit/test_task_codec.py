"""Parameters and results come back as what they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apressure.tasks.codec import TaskCodec, decoded

codec = TaskCodec()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\ud800" not in repr(value))
texts = st.text(st.characters(exclude_categories=["Cs"]))
json_texts = st.builds(json.dumps, values)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.one_of(texts, json_texts, values))
def test_everything_round_trips(value: Any) -> None:
    try:
        encoded = codec.encode(value)
    except UnicodeEncodeError:  # lone surrogates
        return
    assert codec.decode(encoded) == value


@pytest.mark.parametrize("text", ["a.mov", "", " plain", "NaN", "-Infinity", "12a", "{not json", "tru", "\x00"])
def test_plain_strings_stay_as_they_are(text: str) -> None:
    assert codec.encode(text) == text.encode()
    assert decoded(text) == text


@pytest.mark.parametrize("text", ["1", "null", "true", '"a"', "[]", " 1 ", "1e999", "[" * 20000])
def test_strings_that_are_json_are_written_as_json_strings(text: str) -> None:
    assert codec.encode(text) == json.dumps(text, ensure_ascii=False).encode()
    assert codec.decode(codec.encode(text)) == text


def test_what_others_wrote_is_read_as_it_is() -> None:
    assert decoded('{"file": "a.mov"}') == {"file": "a.mov"}
    assert decoded("NaN") == "NaN"
    assert decoded("[" * 20000) == "[" * 20000


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], "\ud800", {"a": "\ud800"}])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        codec.encode(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        codec.encode(value)


def test_a_deep_value_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deeply"):
        codec.encode(deep)
