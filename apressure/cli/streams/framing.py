"""Where one message ends and the next begins in a stream of bytes.

This module does no I/O: it turns bytes into messages and messages into bytes, so tests can feed it every case.

Three framings are read and written:

* **lines**: a newline ends a message. The last one may lack it; an empty line is an empty message; a carriage
  return belongs to the message.
* **NUL**: the same with a NUL byte, as `find -print0` writes and `xargs -0` reads.
* **length-prefixed**: four bytes, the length as a big-endian unsigned integer, and then the message: any bytes.

Messages can also be written, and not read, as **JSON**: an object on a line for each, with the message as `item`, or as
`base64` if it is not UTF-8.
"""

from __future__ import annotations

import base64
import enum
import json as jsons
import struct
from abc import ABC, abstractmethod
from typing import Final

from apressure.exceptions import PressureError

DEFAULT_LIMIT: Final = 64 * 1024 * 1024
"""The default limit for the size of a message that is read, in bytes."""

_PREFIX: Final = struct.Struct(">I")


class Framing(enum.Enum):
    """How messages are separated."""

    LINES = "lines"
    NUL = "nul"
    LENGTH_PREFIXED = "length-prefixed"
    JSON = "json"


_DELIMITERS: Final = {Framing.LINES: b"\n", Framing.NUL: b"\0"}
_DELIMITER_NAMES: Final = {Framing.LINES: "a newline", Framing.NUL: "a NUL byte"}
_ADVICE: Final = {
    Framing.LINES: "use -0 or --length-prefixed",
    Framing.NUL: "use --length-prefixed",
}


class FramingError(PressureError, ValueError):
    """The stream does not fit the framing."""


class TruncatedInputError(FramingError):
    """The input ended inside a length-prefixed message.

    Attributes:
        expected: The full size of the incomplete part, in bytes.
        received: How many of these bytes came.
    """

    def __init__(self, message: str, *, expected: int, received: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.received = received


class MessageTooLargeError(FramingError):
    """A message is larger than the limit.

    Attributes:
        limit: The limit in bytes.
    """

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


def encode(message: bytes, framing: Framing, *, strict: bool = True) -> bytes:
    """Return the bytes that carry `message` in a stream.

    Args:
        message: Any bytes.
        framing: How messages are separated.
        strict: Refuse a message that contains the delimiter, since a reader would see two messages. With False, the
            message is encoded as it is.

    Raises:
        FramingError: The message contains the delimiter, or is too long for four bytes of length.
    """
    if framing is Framing.LENGTH_PREFIXED:
        if len(message) > 0xFFFFFFFF:
            raise FramingError(f"a message of {len(message)} bytes is too long for a length of 4 bytes")
        return _PREFIX.pack(len(message)) + message
    if framing is Framing.JSON:
        return jsons.dumps(as_dict(message)).encode() + b"\n"
    if strict and not fits(message, framing):
        raise FramingError(f"a message contains {_DELIMITER_NAMES[framing]}: {_ADVICE[framing]}")
    return message + _DELIMITERS[framing]


def fits(message: bytes, framing: Framing) -> bool:
    """Return whether a reader of the stream gets `message` back unchanged."""
    return framing not in _DELIMITERS or _DELIMITERS[framing] not in message


def as_dict(message: bytes) -> dict[str, str]:
    """Return a message for JSON: as text, or in base64."""
    try:
        return {"item": message.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(message).decode()}


class Decoder(ABC):
    """Bytes in, messages out, in pieces of any size.

    An error in the middle of a chunk never costs the messages before it: they are returned first, and the error
    is raised by the next call.

    Attributes:
        framing: How messages are separated.
        limit: The largest message in bytes.
    """

    def __init__(self, framing: Framing, *, limit: int = DEFAULT_LIMIT) -> None:
        self.framing = framing
        self.limit = limit
        self._error: FramingError | None = None

    @property
    @abstractmethod
    def pending(self) -> int:
        """How many bytes of an incomplete message (and its length) have come."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream and return the messages that they complete.

        Raises:
            MessageTooLargeError: The next message is larger than the limit.
        """
        if self._error is not None:
            raise self._error
        messages: list[bytes] = []
        try:
            self._split(data, messages)
        except FramingError as error:
            self._error = error
            if not messages:
                raise
        return messages

    def finish(self) -> list[bytes]:
        """Return the last message, if the stream ended without a delimiter after it.

        Raises:
            TruncatedInputError: The stream ended in the middle of a message.
            MessageTooLargeError: The last chunk held a message larger than the limit.
        """
        if self._error is not None:
            raise self._error
        return self._rest()

    @abstractmethod
    def _split(self, data: bytes, messages: list[bytes]) -> None:
        """Append the messages that the data completes."""

    @abstractmethod
    def _rest(self) -> list[bytes]:
        """Return what is left at the end of the stream."""

    def _too_large(self, size: str) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"a message of {size} is larger than the limit of {self.limit} bytes (--max-size sets it)",
            limit=self.limit,
        )


class DelimitedDecoder(Decoder):
    """Messages that end with a newline or a NUL byte."""

    def __init__(self, framing: Framing, *, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(framing, limit=limit)
        self._delimiter = _DELIMITERS[framing]
        # A list, since one long line may come in very many pieces, and gluing each to the last is quadratic.
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        return self._size

    def _split(self, data: bytes, messages: list[bytes]) -> None:
        *complete, rest = data.split(self._delimiter)
        for piece in complete:
            self._grow(piece)
            messages.append(self._take())
        self._grow(rest)

    def _rest(self) -> list[bytes]:
        return [self._take()] if self._size else []

    def _grow(self, piece: bytes) -> None:
        if self._size + len(piece) > self.limit:
            raise self._too_large(f"{self._size + len(piece)} bytes or more")
        if piece:
            self._parts.append(piece)
            self._size += len(piece)

    def _take(self) -> bytes:
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._size = 0
        return message


class LengthPrefixedDecoder(Decoder):
    """Messages that follow their length: four bytes, big-endian."""

    def __init__(self, *, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(Framing.LENGTH_PREFIXED, limit=limit)
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        return len(self._buffer)

    def _split(self, data: bytes, messages: list[bytes]) -> None:
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= _PREFIX.size:
                (length,) = _PREFIX.unpack_from(buffer, position)
                # Checked before the message is read: a garbage length must not make us collect four gigabytes.
                if length > self.limit:
                    raise self._too_large(f"{length} bytes")
                end = position + _PREFIX.size + length
                if end > len(buffer):
                    break
                messages.append(bytes(memoryview(buffer)[position + _PREFIX.size : end]))
                position = end
        finally:
            del buffer[:position]

    def _rest(self) -> list[bytes]:
        received = len(self._buffer)
        if not received:
            return []
        if received < _PREFIX.size:
            raise TruncatedInputError(
                f"the input ends in the middle of a length: {received} of {_PREFIX.size} bytes came",
                expected=_PREFIX.size,
                received=received,
            )
        (length,) = _PREFIX.unpack_from(self._buffer)
        received -= _PREFIX.size
        raise TruncatedInputError(
            f"the input ends in the middle of a message: {received} of {length} bytes came",
            expected=length,
            received=received,
        )


def decoder(framing: Framing, *, limit: int = DEFAULT_LIMIT) -> Decoder:
    """Return a new decoder for `framing` that takes messages of at most `limit` bytes."""
    if framing is Framing.LENGTH_PREFIXED:
        return LengthPrefixedDecoder(limit=limit)
    return DelimitedDecoder(framing, limit=limit)
