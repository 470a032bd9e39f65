"""Messages become Arrow record batches: bytes in, columns out, no I/O."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from apressure.exceptions import DecodeError
from apressure.spark.options import Options

RAW: Final = StructType(
    [StructField("body", BinaryType()), StructField("queue", StringType()), StructField("sequence", LongType())]
)
"""The columns without a format: the message, its queue, and its number in what the group has read of the queue."""

_ABOUT: Final = {"_queue": "queue", "_sequence": "sequence"}
"""What the columns of `RAW` are called beside those of a JSON message."""


def schema_of(options: Options) -> StructType:
    """The schema of a source whose user gives none.

    Raises:
        ValueError: The format needs the user's.
    """
    if options.format == "json":
        raise ValueError(
            "format=json needs to know the columns: .schema('carrier STRING, delay DOUBLE, _corrupt_record BINARY')"
        )
    return RAW


class Decoder:
    """Decodes messages into the columns of one schema.

    Args:
        options: The source's options.
        schema: Its schema.

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
                    f"there is no column {field.name!r}: without format=json the columns are {names} (or some of these)"
                )
            if not allowed and not field.nullable:
                raise ValueError(f"the column {field.name!r} must be nullable: a message may lack it")
            if not allowed and has_map(field.dataType):
                raise ValueError(f"the column {field.name!r}: maps cannot be decoded; read the object as a STRUCT")
        self._schema = schema

    def _prepare(self) -> None:
        """What cannot travel with a pickled reader, or need not."""
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
        """Decode messages, oldest first; `first` is the number of the first one.

        Raises:
            DecodeError: A message cannot be decoded, and there is no column for such.
        """
        if not hasattr(self, "_target"):
            self._prepare()
        columns: dict[str, Any] = {}
        if self._json:
            parts = list(self._parsed(messages))
            for field in self._payload:
                pieces = [
                    table.column(field.name) if table is not None else pa.nulls(1, field.type) for table, _ in parts
                ]
                columns[field.name] = _joined(pieces, field.type)
            corrupt: Sequence[bytes | None] = [message for table, message in parts for _ in range(_rows(table))]
            if self._corrupt not in self._about and (bad := next((one for one in corrupt if one is not None), None)):
                raise DecodeError(
                    f"a message of the queue {queue!r} is no JSON object that fits the schema; add a column "
                    f"{self._corrupt} BINARY to the schema, which gets such messages",
                    name=queue,
                    raw=bad,
                )
        else:
            corrupt = messages
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

    def _parsed(self, messages: Sequence[bytes]) -> Iterator[tuple[Any, bytes | None]]:
        """Parse messages: tables of many, and in between None with each message that does not parse.

        All at once where that goes well; else the halves, until the culprits are alone. Between a message that ends
        with a brace and one that begins with one nothing can go on, so as many rows as messages are one of each.
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


def _rows(table: Any) -> int:
    return 1 if table is None else int(table.num_rows)


def _joined(pieces: Sequence[Any], kind: Any) -> Any:
    chunks = [chunk for piece in pieces for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def has_map(kind: DataType) -> bool:
    """Whether there is a map somewhere in a type."""
    if isinstance(kind, ArrayType):
        return has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)
