"""Parameters and results as text: a string stays as it is, and everything else is JSON.

A string that is JSON itself, such as `"123"` or `"null"`, is written as a JSON string, so that it comes back as the
string that it was. Reading tries JSON first: what is no JSON is a plain string.
"""

from __future__ import annotations

import json
from typing import Any, Final

from apressure.codecs import Codec

_JSON_BEGINS: Final = frozenset(' \t\n\r{["-0123456789tfn')


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
decode_json: Final = json.JSONDecoder(parse_constant=_refuse).decode


class TaskCodec:
    """Items are JSON, or strings as they are; see the module."""

    def encode(self, item: Any, /) -> bytes:
        """Return an item as UTF-8.

        Raises:
            TypeError: It is neither a string nor what JSON knows.
            ValueError: It has NaN or an infinity, is nested too deeply, or has text that UTF-8 cannot encode.
        """
        if isinstance(item, str) and (item[:1] not in _JSON_BEGINS or not _is_json(item)):
            return item.encode()
        try:
            return _encode(item).encode()
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def decode(self, data: bytes, /) -> Any:
        """Undo `encode`.

        Raises:
            ValueError: It is not UTF-8.
        """
        return decoded(data.decode())


def decoded(text: str) -> Any:
    """Return what a text stands for: a value of JSON, or itself."""
    try:
        return decode_json(text) if text[:1] in _JSON_BEGINS else text
    except (ValueError, RecursionError):
        return text


def _is_json(text: str) -> bool:
    """Whether `decoded` might return something else than this text, which begins as JSON does."""
    try:
        return decode_json(text) is not text
    except ValueError:
        return False
    except RecursionError:  # it depends on how deep the reader's stack is
        return True


class UTF8Codec:
    """A codec whose messages Blueque can read.

    Args:
        codec: The codec.
    """

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec
        self.decode = codec.decode

    def encode(self, item: Any, /) -> bytes:
        message: bytes = self._codec.encode(item)
        try:
            message.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"tasks are UTF-8, which every node of Blueque reads: {error}. Use another codec"
            ) from None
        return message
