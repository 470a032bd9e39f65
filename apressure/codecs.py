"""Codecs turn a program's objects into the bytes of messages, and back.

A codec knows no queues, does no I/O and never unpickles: messages come from other programs.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from types import NoneType
from typing import Any, Generic, Literal, Protocol, TypeVar, get_origin, is_typeddict

from apressure import envelopes
from apressure.envelopes import Envelope
from apressure.exceptions import MissingExtraError

__all__ = [
    "CloudEventsCodec",
    "Codec",
    "PydanticCodec",
    "TypedCodec",
]

T = TypeVar("T")

UntypedCodec = Literal["json", "msgpack", "cloudevents"]
"""The names of codecs whose items a type checker does not know."""


class Codec(Protocol[T]):
    """The methods of a codec. `decode` raises ValueError (or a subclass) for a message that it cannot decode."""

    def encode(self, item: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class RawCodec:
    """Messages are bytes."""

    def encode(self, item: bytes, /) -> bytes:
        if type(item) is bytes:
            return item
        if isinstance(item, (bytes, bytearray, memoryview)):
            return bytes(item)
        hint = " Encode the text first, or open the queue with codec='text'." if isinstance(item, str) else ""
        hint = hint or " Encode it first, or open the queue with codec='json'."
        raise TypeError(f"a message must be bytes, not {type(item).__name__}.{hint}")

    def decode(self, data: bytes, /) -> bytes:
        return data


class TextCodec:
    """Messages are text in UTF-8."""

    def encode(self, item: str, /) -> bytes:
        if not isinstance(item, str):
            raise TypeError(f"a message of a text queue must be str, not {type(item).__name__}")
        return item.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class JSONCodec:
    """Messages are JSON in UTF-8: anything that `json.dumps` takes, except NaN and infinities."""

    def encode(self, item: Any, /) -> bytes:
        try:
            text = json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return text.encode()

    def decode(self, data: bytes, /) -> Any:
        try:
            return json.loads(data, parse_constant=_not_json)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _msgspec() -> Any:
    try:
        import msgspec
    except ImportError as error:
        raise MissingExtraError(
            "this codec needs the package msgspec. Run pip install 'apressure[codecs]'", extra="codecs"
        ) from error
    return msgspec


class _MsgspecCodec(Generic[T]):
    def __init__(self, encoder: Any, decoder: Any, format: str) -> None:
        self.format = format
        self._encoder = encoder
        self._decoder = decoder

    def encode(self, item: T, /) -> bytes:
        try:
            return bytes(self._encoder.encode(item))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except OverflowError as error:
            raise ValueError(str(error)) from error

    def decode(self, data: bytes, /) -> T:
        try:
            decoded: T = self._decoder.decode(data)
            return decoded
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


class MessagePackCodec(_MsgspecCodec[Any]):
    """Messages are MessagePack, by msgspec (extra `codecs`)."""

    def __init__(self) -> None:
        msgpack = _msgspec().msgpack
        super().__init__(msgpack.Encoder(), msgpack.Decoder(), "msgpack")


class TypedCodec(_MsgspecCodec[T]):
    """Messages are objects of one type. msgspec (extra `codecs`) validates them when they are decoded.

    Args:
        type: A class that msgspec supports: a dataclass, attrs class, TypedDict, NamedTuple, `msgspec.Struct`, …
        format: `"json"` or `"msgpack"`.
    """

    def __init__(self, type: type[T], format: str = "json") -> None:
        msgspec = _msgspec()
        if format not in ("json", "msgpack"):
            raise ValueError(f"format must be 'json' or 'msgpack', not {format!r}")
        module = getattr(msgspec, format)
        super().__init__(module.Encoder(), module.Decoder(type), format)
        self._type = type
        self._checked = not is_typeddict(type) and isinstance(type, builtins.type)
        if (part := _unknown(msgspec.inspect, msgspec.inspect.type_info(type), set())) is not None:
            raise TypeError(_refusal(type, part))

    def encode(self, item: T, /) -> bytes:
        if self._checked and not isinstance(item, self._type):
            raise TypeError(f"a message of this queue must be {self._type.__name__}, not {type(item).__name__}")
        return super().encode(item)


def _unknown(inspect: Any, part: Any, seen: set[int]) -> Any:
    """Return the first class in a type that msgspec cannot decode; None if it can decode all."""
    if id(part) in seen:  # a type may contain itself
        return None
    seen.add(id(part))
    if isinstance(part, inspect.CustomType):
        kind = get_origin(part.cls) or part.cls
        # The decoder's own types may implement an abstract class, such as numbers.Number.
        made = (NoneType, bool, int, float, str, list, dict, bytes, datetime)
        return None if any(issubclass(one, kind) for one in made) else part.cls
    if isinstance(part, (inspect.Type, inspect.Field)):
        part = [getattr(part, name) for name in part.__struct_fields__]
    if not isinstance(part, (list, tuple)):
        return None
    return next((found for one in part if (found := _unknown(inspect, one, seen)) is not None), None)


def _refusal(type: Any, part: Any) -> str:
    name = getattr(type, "__name__", type)
    if part is type and _is_codec(type):
        return f"{name} is the class of a codec. Give an instance: codec={name}()"
    inside = "" if part is type else f", which contains {getattr(part, '__name__', part)}"
    if _is_pydantic(part):
        return f"msgspec cannot decode {name}{inside}, a pydantic model. Give codec=PydanticCodec({name})"
    return (
        f"messages cannot be decoded to {name}{inside}: msgspec does not know that class. Use a dataclass, an attrs "
        "class, TypedDict, NamedTuple, msgspec.Struct or pydantic (2) model, or give a codec with encode and decode."
    )


def _is_pydantic(type: Any) -> bool:
    """Whether it is a pydantic model, or dataclass, of version 2. Does not import pydantic."""
    return isinstance(type, builtins.type) and hasattr(type, "__pydantic_validator__")


class PydanticCodec(Generic[T]):
    """Messages are JSON. pydantic 2 (extra `pydantic`) validates them when they are decoded.

    Fields are encoded under their aliases, and computed fields are left out, so that messages can be decoded again.

    Args:
        type: A model, a pydantic dataclass, or any other type that pydantic supports, such as `list[Order]`.
    """

    def __init__(self, type: type[T]) -> None:
        try:
            from pydantic import TypeAdapter
        except ImportError as error:
            raise MissingExtraError(
                "this codec needs pydantic, version 2. Run pip install 'apressure[pydantic]'", extra="pydantic"
            ) from error
        self._type = type
        self._checked = _is_pydantic(type)
        self._adapter: Any = TypeAdapter(type)

    def encode(self, item: T, /) -> bytes:
        if self._checked and not isinstance(item, self._type):
            raise TypeError(f"a message of this queue must be {self._type.__name__}, not {type(item).__name__}")
        encoded: bytes = self._adapter.dump_json(item, by_alias=True, round_trip=True)
        return encoded

    def decode(self, data: bytes, /) -> T:
        decoded: T = self._adapter.validate_json(data)
        return decoded


class CloudEventsCodec(Generic[T]):
    """Messages are CloudEvents 1.0 in JSON, and items are `Envelope`s: an item with its id, key, time and headers.

    The time of an envelope without one is set when it is encoded, and the header `datacontenttype` is the one of the
    codec inside, so that data in JSON or text can be read by programs that know nothing of this codec.

    Args:
        codec: What the data of an envelope is: anything that `codec=` of a queue takes, also a class.
    """

    def __init__(self, codec: Codec[T] | type[T] | str | None = None) -> None:
        self._codec: Codec[T] = codec_for(codec)
        if isinstance(self._codec, CloudEventsCodec):
            raise TypeError("an envelope cannot hold an envelope: give CloudEventsCodec the codec of the data")
        self._content_type = _content_type(self._codec)

    def encode(self, item: Envelope[T], /) -> bytes:
        if not isinstance(item, Envelope):
            raise TypeError(f"an item of this queue must be an Envelope, not {type(item).__name__}: put Envelope(item)")
        headers = item.headers
        if self._content_type and item.data is not None and envelopes.CONTENT_TYPE not in headers:
            headers = {envelopes.CONTENT_TYPE: self._content_type, **headers}
        data = None if item.data is None else self._codec.encode(item.data)
        time = datetime.now(UTC) if item.time is None else item.time
        return envelopes.encode(dataclasses.replace(item, data=data, time=time, headers=headers))  # type: ignore[arg-type]

    def decode(self, data: bytes, /) -> Envelope[T]:
        found = envelopes.decode(data)
        item = None if found.data is None else self._codec.decode(found.data)
        return dataclasses.replace(found, data=item)  # type: ignore[arg-type, return-value]


def _content_type(codec: Codec[Any]) -> str:
    """Return what a codec makes, as a header; an empty string where that is unknown."""
    if isinstance(codec, _MsgspecCodec):
        return f"application/{codec.format}"
    if isinstance(codec, (JSONCodec, PydanticCodec)):
        return "application/json"
    return "text/plain" if isinstance(codec, TextCodec) else ""


_NAMED: dict[str, type[Any]] = {
    "raw": RawCodec,
    "text": TextCodec,
    "json": JSONCodec,
    "msgpack": MessagePackCodec,
    "cloudevents": CloudEventsCodec,
}


def _is_codec(codec: Any) -> bool:
    return callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))


def codec_for(codec: Codec[Any] | type[Any] | str | None) -> Codec[Any]:
    """Return the codec for the argument `codec=`.

    Args:
        codec: None or `"raw"` for bytes, `"text"`, `"json"`, `"msgpack"`, `"cloudevents"`, a class for
            `PydanticCodec` (a pydantic model) or `TypedCodec` (any other class), or a codec.

    Raises:
        MissingExtraError: The codec needs a package that is not installed.
        TypeError: It is none of these, or messages cannot be decoded to that class.
        ValueError: It is an unknown name.
    """
    if codec is None:
        return RawCodec()
    if isinstance(codec, str):
        if codec not in _NAMED:
            raise ValueError(f"unknown codec {codec!r}. Use one of {', '.join(map(repr, _NAMED))}")
        named: Codec[Any] = _NAMED[codec]()
        return named
    if isinstance(codec, type):
        return PydanticCodec(codec) if _is_pydantic(codec) else TypedCodec(codec)
    if _is_codec(codec):
        if iscoroutinefunction(codec.encode) or iscoroutinefunction(codec.decode):
            raise TypeError(f"the codec {codec!r} is asynchronous. Write encode and decode with `def`, not `async def`")
        return codec
    raise TypeError(f"codec must be a name, a class, or an object with encode and decode, not {codec!r}")
