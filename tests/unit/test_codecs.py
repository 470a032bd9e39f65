"""Codecs: decoding restores the item, and invalid items and messages are clear errors."""

from __future__ import annotations

import collections
import dataclasses
import math
import numbers
import pathlib
import sys
from datetime import date
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.v1
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure import AsyncQueue, FileQueue, MissingExtraError, PydanticCodec, TypedCodec
from apressure.codecs import JSONCodec, MessagePackCodec, RawCodec, TextCodec, codec_for


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


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    number: int = pydantic.Field(alias="invoiceNumber")
    lines: list[str] = []
    due: date | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.lines)


@pydantic.dataclasses.dataclass
class Range:
    first: int
    last: int


class OldModel(pydantic.v1.BaseModel):
    number: int


class Unknown:
    """A class that no codec can encode."""


@dataclasses.dataclass
class Deep:
    inside: dict[str, list[Unknown | None]]


@dataclasses.dataclass
class Holder:
    invoice: Invoice


@dataclasses.dataclass
class Tree:
    branches: list[Tree]
    size: numbers.Number
    anything: object = None


class Hexadecimal:
    def encode(self, item: int, /) -> bytes:
        return b"%x" % item

    def decode(self, data: bytes, /) -> int:
        return int(data, 16)


class Asynchronous:
    async def encode(self, item: int, /) -> bytes:
        return b"%x" % item

    async def decode(self, data: bytes, /) -> int:
        return int(data, 16)


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
def test_raw_refuses_other_types_and_says_what_to_do(item: Any) -> None:
    with pytest.raises(TypeError, match=r"must be bytes, not .*codec="):
        RawCodec().encode(item)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_returns_the_text(text: str) -> None:
    assert TextCodec().decode(TextCodec().encode(text)) == text


def test_text_refuses_other_types() -> None:
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


@pytest.mark.parametrize("item", [{1, 2}, object(), b"bytes", 1j])
def test_json_refuses_what_json_cannot_express(item: Any) -> None:
    with pytest.raises(TypeError):
        JSONCodec().encode(item)


@pytest.mark.parametrize("codec", [JSONCodec(), MessagePackCodec()], ids=["json", "msgpack"])
def test_deep_nesting_is_a_value_error_both_ways(codec: Any) -> None:
    deep: Any = []
    for _ in range(sys.getrecursionlimit() * 100):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        codec.encode(deep)
    with pytest.raises(ValueError):
        codec.decode(b"[" * 200_000 if isinstance(codec, JSONCodec) else b"\x91" * 200_000)
    while deep:  # taken apart by hand: the interpreter would do it by recursion
        deep = deep[0]


INVALID: dict[Any, list[bytes]] = {
    "json": [b"", b"{", b"\xff\xfe", b"nonsense", b"[1,]", b"NaN", b"[Infinity]", b'{"a": -Infinity}'],
    "msgpack": [b"", b"\xc1", b"\x92\x01", b"\x01\x02"],
    Order: [b"{}", b'{"number":"x","lines":[]}', b'{"number":1,"lines":[2]}', b"[", b"\xff"],
    Invoice: [b"{}", b'{"invoiceNumber":"x"}', b'{"invoiceNumber":1,"more":2}', b"[", b"\xff"],
}


@pytest.mark.parametrize(("codec", "data"), [(codec, data) for codec, invalid in INVALID.items() for data in invalid])
def test_an_invalid_message_is_a_value_error(codec: Any, data: bytes) -> None:
    with pytest.raises(ValueError):
        codec_for(codec).decode(data)


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


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="'json' or 'msgpack', not 'yaml'"):
        TypedCodec(Order, "yaml")


def test_codec_names_and_classes_are_resolved() -> None:
    assert isinstance(codec_for(None), RawCodec)
    assert isinstance(codec_for("raw"), RawCodec)
    assert isinstance(codec_for("text"), TextCodec)
    assert isinstance(codec_for("json"), JSONCodec)
    assert isinstance(codec_for("msgpack"), MessagePackCodec)
    assert isinstance(codec_for(Order), TypedCodec)
    own = TypedCodec(Order)
    assert codec_for(own) is own


def test_a_codec_that_is_none_is_refused_in_clear_words() -> None:
    with pytest.raises(ValueError, match=r"'yaml'.*'json'"):
        codec_for("yaml")
    with pytest.raises(TypeError, match="encode and decode"):
        codec_for(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        codec_for(collections.ChainMap())  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["msgpack", Order], ids=["msgpack", "class"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(MissingExtraError, match=r"msgspec. Run pip install 'apressure\[") as raised:
        codec_for(codec)
    assert f"apressure[{raised.value.extra}]" in str(raised.value)


INVOICES = [
    Invoice(invoiceNumber=1),
    Invoice(invoiceNumber=2, lines=["a", "ä"], due=date(2026, 3, 1)),
]


@pytest.mark.parametrize("item", [*INVOICES, Range(1, 2)])
def test_a_pydantic_model_returns_equal_objects(item: Any) -> None:
    codec = codec_for(type(item))
    assert isinstance(codec, PydanticCodec)
    assert codec.decode(codec.encode(item)) == item


def test_a_pydantic_message_has_the_names_of_the_aliases() -> None:
    assert codec_for(Invoice).encode(INVOICES[0]) == b'{"invoiceNumber":1,"lines":[],"due":null}'


def test_a_pydantic_codec_takes_any_type_that_pydantic_understands() -> None:
    several = PydanticCodec(list[Invoice])
    assert several.decode(several.encode(INVOICES)) == INVOICES
    holder = PydanticCodec(Holder)
    assert holder.decode(holder.encode(Holder(INVOICES[0]))) == Holder(INVOICES[0])


def test_a_pydantic_codec_refuses_objects_of_another_class() -> None:
    with pytest.raises(TypeError, match="must be Invoice, not dict"):
        codec_for(Invoice).encode({"invoiceNumber": 1})


def test_pydantic_without_pydantic_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtraError, match=r"pydantic, version 2. Run pip install 'apressure\[pydantic\]'"):
        PydanticCodec(Range)


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Unknown, "cannot be decoded to Unknown: msgspec does not know that class. Use a dataclass"),
        (Deep, "cannot be decoded to Deep, which contains Unknown"),
        (pathlib.Path, "cannot be decoded to Path"),
        (OldModel, r"cannot be decoded to OldModel.*pydantic \(2\) model"),
        (Holder, r"contains Invoice, a pydantic model. Give codec=PydanticCodec\(Holder\)"),
        (Hexadecimal, r"the class of a codec. Give an instance: codec=Hexadecimal\(\)"),
        (Asynchronous(), "asynchronous. Write encode and decode with `def`"),
    ],
)
def test_an_invalid_codec_is_refused_by_the_constructor(codec: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        AsyncQueue("orders", codec=codec, url="redis://127.0.0.1:1")
    with pytest.raises(TypeError, match=why):
        FileQueue("orders", codec=codec)


def test_a_typed_codec_takes_types_that_contain_themselves_and_abstract_classes() -> None:
    tree = Tree([Tree([], 2.5)], 1, ["x"])
    codec = TypedCodec(Tree)
    assert codec.decode(codec.encode(tree)) == tree


def test_a_pydantic_model_and_a_codec_of_ones_own_make_queues() -> None:
    AsyncQueue("orders", codec=Invoice, url="redis://127.0.0.1:1")
    AsyncQueue("orders", codec=Hexadecimal(), url="redis://127.0.0.1:1")
