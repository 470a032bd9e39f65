"""Codecs: what goes in comes out, and what does not fit is refused in words."""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure import MissingExtraError, TypedCodec
from apressure.codecs import JSONCodec, MessagePackCodec, RawCodec, TextCodec, resolve


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str]


class Address(TypedDict):
    city: str
    number: int


class Point(NamedTuple):
    x: int
    y: int


class Record(msgspec.Struct):
    key: str
    value: float | None = None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(alphabet=st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.binary())
def test_raw_returns_the_bytes(data: bytes) -> None:
    assert RawCodec().decode(RawCodec().encode(data)) == data


@pytest.mark.parametrize("item", [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]])
def test_raw_takes_whatever_is_bytes(item: Any) -> None:
    encoded = RawCodec().encode(item)
    assert encoded == b"ab"
    assert type(encoded) is bytes


@pytest.mark.parametrize("item", ["text", 5, None, [b"a"], {}, object()])
def test_raw_refuses_what_is_no_bytes_and_names_the_way(item: Any) -> None:
    with pytest.raises(TypeError, match=r"must be bytes, not .*codec="):
        RawCodec().encode(item)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_returns_the_text(text: str) -> None:
    assert TextCodec().decode(TextCodec().encode(text)) == text


def test_text_refuses_what_is_no_text() -> None:
    with pytest.raises(TypeError, match="must be str, not bytes"):
        TextCodec().encode(b"x")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        TextCodec().decode(b"\xff")
    with pytest.raises(ValueError):
        TextCodec().encode("\ud800")


@given(json_values)
def test_json_returns_the_value(value: Any) -> None:
    assert JSONCodec().decode(JSONCodec().encode(value)) == value


@given(json_values)
def test_messagepack_returns_the_value(value: Any) -> None:
    assert MessagePackCodec().decode(MessagePackCodec().encode(value)) == value


@pytest.mark.parametrize("item", [math.nan, math.inf, [-math.inf]])
def test_json_refuses_numbers_that_json_has_not(item: Any) -> None:
    with pytest.raises(ValueError):
        JSONCodec().encode(item)


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b'{"a": -Infinity}'])
def test_json_reads_no_numbers_that_json_has_not(text: bytes) -> None:
    with pytest.raises(ValueError):
        JSONCodec().decode(text)


@pytest.mark.parametrize("item", [{1, 2}, object(), b"bytes", 1j])
def test_json_refuses_what_json_cannot_say(item: Any) -> None:
    with pytest.raises(TypeError):
        JSONCodec().encode(item)


@pytest.mark.parametrize("codec", [JSONCodec(), MessagePackCodec()], ids=["json", "msgpack"])
def test_what_is_nested_too_deeply_is_a_value_error_both_ways(codec: Any) -> None:
    deep: Any = []
    for _ in range(sys.getrecursionlimit() * 100):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        codec.encode(deep)
    with pytest.raises(ValueError):
        codec.decode(b"[" * 200_000 if isinstance(codec, JSONCodec) else b"\x91" * 200_000)
    while deep:  # taken apart by hand: the interpreter would do it by recursion
        deep = deep[0]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"nonsense", b"[1,]"])
def test_json_that_is_none_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        JSONCodec().decode(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02"])
def test_messagepack_that_is_none_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        MessagePackCodec().decode(data)


def test_messagepack_refuses_integers_that_it_has_not() -> None:
    with pytest.raises(ValueError):
        MessagePackCodec().encode(2**70)


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize(
    "item",
    [Order(1, ["a", "b"]), Point(1, 2), Record("k", 1.5), Record("k")],
    ids=["dataclass", "namedtuple", "struct", "struct-default"],
)
def test_a_typed_codec_returns_equal_objects_of_the_class(item: Any, form: str) -> None:
    codec: TypedCodec[Any] = TypedCodec(type(item), form)
    decoded = codec.decode(codec.encode(item))
    assert decoded == item
    assert type(decoded) is type(item)


def test_a_typed_dictionary_is_validated() -> None:
    codec = TypedCodec(Address)
    assert codec.decode(codec.encode({"city": "Ulm", "number": 3})) == {"city": "Ulm", "number": 3}
    with pytest.raises(ValueError, match="number"):
        codec.decode(b'{"city":"Ulm"}')


def test_a_typed_codec_refuses_objects_of_another_class() -> None:
    with pytest.raises(TypeError, match="must be Order, not dict"):
        TypedCodec(Order).encode({"number": 1, "lines": []})  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"{}", b'{"number":"x","lines":[]}', b'{"number":1,"lines":[2]}', b"[", b"\xff"])
def test_what_does_not_validate_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        TypedCodec(Order).decode(data)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="'json' or 'msgpack', not 'yaml'"):
        TypedCodec(Order, "yaml")


def test_codec_names_and_classes_are_resolved() -> None:
    assert isinstance(resolve(None), RawCodec)
    assert isinstance(resolve("raw"), RawCodec)
    assert isinstance(resolve("text"), TextCodec)
    assert isinstance(resolve("json"), JSONCodec)
    assert isinstance(resolve("msgpack"), MessagePackCodec)
    assert isinstance(resolve(Order), TypedCodec)
    own = TypedCodec(Order)
    assert resolve(own) is own


def test_a_codec_that_is_none_is_refused_in_clear_words() -> None:
    with pytest.raises(ValueError, match=r"'yaml'.*'json'"):
        resolve("yaml")
    with pytest.raises(TypeError, match="encode and decode"):
        resolve(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        resolve(collections.ChainMap())  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["msgpack", Order], ids=["msgpack", "class"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(MissingExtraError, match=r"msgspec: pip install 'apressure\[") as raised:
        resolve(codec)
    assert f"apressure[{raised.value.extra}]" in str(raised.value)
