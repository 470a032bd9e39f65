"""Bytes in, objects out: what a queue's messages are to the program.

The wire carries bytes. A codec turns the program's objects into them and back; it knows nothing of queues, does no
I/O and never unpickles: a message is data from somebody else.
"""

from __future__ import annotations

import builtins
import json
from typing import Any, Generic, Protocol, TypeVar, is_typeddict

from apressure.exceptions import MissingExtraError

T = TypeVar("T")


class Codec(Protocol[T]):
    """What a codec has to offer. `decode` raises ValueError (or a subclass) for what it cannot decode."""

    def encode(self, item: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class RawCodec:
    """Messages are bytes, and stay so."""

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
    """Messages are JSON in UTF-8: anything that `json.dumps` takes, NaN and infinities excepted."""

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
            "this codec needs the package msgspec: pip install 'apressure[codecs]'", extra="codecs"
        ) from error
    return msgspec


def _encode(encoder: Any, item: Any) -> bytes:
    try:
        return bytes(encoder.encode(item))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _decode(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


class MessagePackCodec:
    """Messages are MessagePack, by msgspec (extra `codecs`)."""

    def __init__(self) -> None:
        msgspec = _msgspec()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder()

    def encode(self, item: Any, /) -> bytes:
        return _encode(self._encoder, item)

    def decode(self, data: bytes, /) -> Any:
        return _decode(self._decoder, data)


class TypedCodec(Generic[T]):
    """Messages are objects of one type, validated when they are decoded, by msgspec (extra `codecs`).

    Args:
        type: A class that msgspec understands: a dataclass, attrs class, TypedDict, NamedTuple, `msgspec.Struct`, …
        format: `"json"` or `"msgpack"`.
    """

    def __init__(self, type: type[T], format: str = "json") -> None:
        msgspec = _msgspec()
        if format not in ("json", "msgpack"):
            raise ValueError(f"format must be 'json' or 'msgpack', not {format!r}")
        module = getattr(msgspec, format)
        self._type = type
        self._checked = not is_typeddict(type) and isinstance(type, builtins.type)
        self._encoder = module.Encoder()
        self._decoder = module.Decoder(type)

    def encode(self, item: T, /) -> bytes:
        if self._checked and not isinstance(item, self._type):
            raise TypeError(f"a message of this queue must be {self._type.__name__}, not {type(item).__name__}")
        return _encode(self._encoder, item)

    def decode(self, data: bytes, /) -> T:
        decoded: T = _decode(self._decoder, data)
        return decoded


_NAMED: dict[str, type[Any]] = {"raw": RawCodec, "text": TextCodec, "json": JSONCodec, "msgpack": MessagePackCodec}


def resolve(codec: Codec[Any] | type[Any] | str | None) -> Codec[Any]:
    """Return the codec that `codec=` asks for.

    Args:
        codec: None or `"raw"` for bytes, `"text"`, `"json"`, `"msgpack"`, a class for `TypedCodec`, or a codec.

    Raises:
        MissingExtraError: The codec needs a package that is not installed.
        TypeError: It is none of these.
        ValueError: It is a name that is not known.
    """
    if codec is None:
        return RawCodec()
    if isinstance(codec, str):
        if codec not in _NAMED:
            raise ValueError(f"unknown codec {codec!r}: use one of {', '.join(map(repr, _NAMED))}")
        named: Codec[Any] = _NAMED[codec]()
        return named
    if isinstance(codec, type):
        return TypedCodec(codec)
    if callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None)):
        return codec
    raise TypeError(f"codec must be a name, a class, or an object with encode and decode, not {codec!r}")
