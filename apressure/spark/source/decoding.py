"""Decodes messages into Arrow record batches. No I/O."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from apressure.exceptions import DecodeError
from apressure.spark.options import Options

RAW: Final = StructType(
    [StructField("body", BinaryType()), StructField("queue", StringType()), StructField("sequence", LongType())]
)
"""The columns of `format=raw`. The sequence counts the messages that the group has read from the queue."""

_ABOUT: Final = {"_queue": "queue", "_sequence": "sequence"}
"""The names of the columns of `RAW` beside the columns of a JSON message."""


class Decoder:
    """Decodes messages into the columns of a schema.

    Args:
        options: The options of the source.
        schema: The schema of the source.

    Raises:
        ValueError: The schema does not fit the format.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._json = options.format == "json"
        self._corrupt = options.corrupt_record
        about = {**_ABOUT, self._corrupt: "body"} if self._json else {name: name for name in RAW.names}
        self._about = {name: about[name] for name in schema.names if name in about}
        for field in schema.fields:
            allowed = [RAW[self._about[field.name]].dataType] if field.name in self._about else []
            if field.name == self._corrupt and self._json:
                allowed.append(StringType())
            if allowed and field.dataType not in allowed:
                raise ValueError(f"the column {field.name!r} must be {allowed[0].simpleString().upper()}")
            if not allowed and not self._json:
                names = ", ".join(f"{one.name} {one.dataType.simpleString().upper()}" for one in RAW.fields)
                raise ValueError(
                    f"unknown column {field.name!r}: without format=json the columns are {names}, or some of these"
                )
            if not allowed and not field.nullable:
                raise ValueError(f"the column {field.name!r} must be nullable: a message may lack it")
            if not allowed and has_map(field.dataType):
                raise ValueError(f"the column {field.name!r}: maps cannot be decoded. Use a STRUCT")
        self._schema = schema

    def _prepare(self) -> None:
        """Make the parts that are not pickled with the reader."""
        self._target = to_arrow_schema(self._schema, timezone="UTC")
        payload = [field for field in self._target if field.name not in self._about]
        # Arrow's parser has no dates: they are read as text.
        parsed = [pa.field(one.name, pa.string()) if pa.types.is_date(one.type) else one for one in payload]
        self._parse = json.ParseOptions(
            explicit_schema=pa.schema(parsed), unexpected_field_behavior="ignore", newlines_in_values=True
        )
        self._payload = pa.schema(payload)

    def __getstate__(self) -> dict[str, Any]:
        return {key: self.__dict__[key] for key in ("_json", "_corrupt", "_about", "_schema")}

    def batch(self, messages: Sequence[bytes], queue: str, first: int) -> pa.RecordBatch:
        """Decode messages, oldest first. `first` is the sequence of the first one.

        Raises:
            DecodeError: A message cannot be decoded, and the schema has no column for such messages.
        """
        if not hasattr(self, "_target"):
            self._prepare()
        columns: dict[str, Any] = {}
        corrupt: Sequence[bytes | None] = messages
        if self._json:
            parts = list(self._parsed(messages))
            for field in self._payload:
                pieces = [
                    table.column(field.name) if table is not None else pa.nulls(1, field.type) for table, _ in parts
                ]
                columns[field.name] = _joined(pieces, field.type)
            corrupt = [message for table, message in parts for _ in range(1 if table is None else table.num_rows)]
            if self._corrupt not in self._about and (bad := next((one for one in corrupt if one is not None), None)):
                raise DecodeError(
                    f"a message of the queue {queue!r} is not a JSON object that fits the schema: add a column "
                    f"{self._corrupt} BINARY to the schema for such messages, or set maxAttempts",
                    name=queue,
                    raw=bad,
                )
        for name, what in self._about.items():
            target = self._target.field(name).type
            if what == "queue":
                columns[name] = pa.repeat(pa.scalar(queue, target), len(messages))
            elif what == "sequence":
                columns[name] = pa.array(np.arange(first, first + len(messages)), target)
            elif pa.types.is_binary(target):
                columns[name] = pa.array(corrupt, target)
            else:
                columns[name] = pa.array(
                    [None if one is None else one.decode(errors="replace") for one in corrupt], target
                )
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def undecodable(self, messages: Sequence[bytes]) -> list[int]:
        """Return the positions of the messages that are not JSON objects that fit the schema."""
        found, at = [], 0
        for table, _ in self._parsed(messages):
            if table is None:
                found.append(at)
            at += 1 if table is None else table.num_rows
        return found

    def _parsed(self, messages: Sequence[bytes]) -> Iterator[tuple[Any, bytes | None]]:
        """Parse messages into tables. Each message that does not parse comes as None with the message.

        This parses all at once. If that fails it tries the halves, until each bad message is alone. Each message begins
        and ends with a brace, so no object spans two messages, and as many rows as messages means one row for each.
        """
        if not messages:
            return
        if all(one[:1] == b"{" and one[-1:] == b"}" for one in messages):
            text = b"\n".join(messages)
            reading = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
            try:
                text.decode()
                table = json.read_json(io.BytesIO(text), reading, self._parse)
                if table.num_rows == len(messages):
                    yield table.cast(self._payload), None
                    return
            except (pa.ArrowException, UnicodeDecodeError):
                pass
        elif len(messages) == 1 and messages[0].strip() != messages[0]:
            ((table, _),) = self._parsed([messages[0].strip()])
            yield table, messages[0] if table is None else None
            return
        if len(messages) == 1:
            yield None, messages[0]
            return
        half = len(messages) // 2
        yield from self._parsed(messages[:half])
        yield from self._parsed(messages[half:])


def _joined(pieces: Sequence[Any], kind: Any) -> Any:
    chunks = [chunk for piece in pieces for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def has_map(kind: DataType) -> bool:
    """Whether a type contains a map."""
    if isinstance(kind, ArrayType):
        return has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)
