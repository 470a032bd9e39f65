"""The formats of messages: each turns messages into Arrow columns. No I/O."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import json

from apressure import envelopes

Columns = Mapping[str, Any]


class Format(Protocol):
    """What the decoder needs to know of a format."""

    def columns(self, messages: Sequence[bytes]) -> Columns | None:
        """Return the columns of messages; None if one of the messages does not fit."""

    def problem(self, message: bytes) -> str:
        """Say what is wrong with a message that does not fit."""


class Bodies:
    """`format=raw`: a message is the column `body`, as it is or as text."""

    def __init__(self, payload: pa.Schema) -> None:
        self._type = payload.field("body").type if "body" in payload.names else None

    def columns(self, messages: Sequence[bytes]) -> Columns | None:
        if self._type is None:
            return {}
        found = pa.array(messages, pa.binary())
        try:
            return {"body": found if pa.types.is_binary(self._type) else found.cast(self._type)}
        except pa.ArrowInvalid:  # it checks that text is UTF-8
            return None

    def problem(self, message: bytes) -> str:  # noqa: ARG002
        return "is not text in UTF-8"


class Objects:
    """`format=json`: a message is an object with the columns of the user's schema."""

    def __init__(self, payload: pa.Schema) -> None:
        parsed = [pa.field(one.name, _parsed(one.type)) for one in payload]
        self._parse = json.ParseOptions(
            explicit_schema=pa.schema(parsed), unexpected_field_behavior="ignore", newlines_in_values=True
        )
        self._payload = payload

    def columns(self, messages: Sequence[bytes]) -> Columns | None:
        """Parse all messages at once.

        Each one begins and ends with a brace, so no object spans two messages, and as many rows as messages means one
        row for each.
        """
        if len(messages) == 1:
            messages = [messages[0].strip()]
        if not all(one[:1] == b"{" and one[-1:] == b"}" for one in messages):
            return None
        text = b"\n".join(messages)
        reading = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            text.decode()
            table = json.read_json(io.BytesIO(text), reading, self._parse)
            if table.num_rows != len(messages):
                return None
            table = table.cast(self._payload)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return {name: table.column(name) for name in self._payload.names}

    def problem(self, message: bytes) -> str:  # noqa: ARG002
        return "is not a JSON object that fits the schema"


def _parsed(kind: pa.DataType) -> pa.DataType:
    """The type with text instead of dates, because Arrow's parser has no dates."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_parsed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _parsed(one.type)) for one in kind])
    return kind


class Events:
    """`format=cloudevents`: a message has an envelope."""

    def __init__(self, payload: pa.Schema) -> None:
        self._payload = payload

    def columns(self, messages: Sequence[bytes]) -> Columns | None:
        try:
            found = [envelopes.decode(message) for message in messages]
            return {
                field.name: pa.array([_FIELDS[field.name](one) for one in found], pa.binary()).cast(field.type)
                if field.name == "body"
                else pa.array([_FIELDS[field.name](one) for one in found], field.type)
                for field in self._payload
            }
        except (ValueError, pa.ArrowInvalid):  # the second one for a body that is not text
            return None

    def problem(self, message: bytes) -> str:
        try:
            envelopes.decode(message)
        except ValueError as error:
            return f"is not a CloudEvent ({error})"
        return "is a CloudEvent whose data is not text in UTF-8"


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FIELDS: Final[Mapping[str, Callable[[envelopes.Envelope[bytes]], Any]]] = {
    "body": lambda one: one.data,
    "key": lambda one: one.key,
    "put_time": lambda one: one.time and (one.time - _EPOCH) // _MICROSECOND,  # Arrow takes 15 µs for a datetime
    "headers": lambda one: list(one.headers.items()),
    "id": lambda one: one.id,
    "source": lambda one: one.source,
    "type": lambda one: one.type,
}
FORMATS: Final[Mapping[str, Callable[[pa.Schema], Format]]] = {"raw": Bodies, "json": Objects, "cloudevents": Events}


def split(format: Format, messages: Sequence[bytes]) -> Iterator[tuple[Columns | None, Sequence[bytes]]]:
    """Turn messages into columns, part by part. Each message that does not fit comes alone, with None.

    This tries all at once. If that fails it tries the halves, until each bad message is alone.
    """
    if not messages:
        return
    found = format.columns(messages)
    if found is not None or len(messages) == 1:
        yield found, messages
        return
    half = len(messages) // 2
    yield from split(format, messages[:half])
    yield from split(format, messages[half:])
