"""Decodes messages into Arrow record batches. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    AnsiIntervalType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)

from apressure.exceptions import DecodeError
from apressure.spark.columns import ABOUT, BODY, check, has_type, known, unknown
from apressure.spark.ending import END
from apressure.spark.options import Options
from apressure.spark.source.formats import FORMATS, split

_UNPARSED: Final = (AnsiIntervalType, TimeType, VariantType)
"""Types that Arrow's parser of JSON lacks: no message would fit."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Decoder:
    """Decodes messages into the columns of a schema.

    Attributes:
        counts_attempts: The schema has the column `attempts`.
        attempts: How often Spark has begun to read the messages, for that column.

    Args:
        options: The options of the source.
        schema: The schema of the source.

    Raises:
        ValueError: The schema does not fit the format.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._format, self._schema = options.format, schema
        head = "_" if self._format == "json" else ""  # beside the columns of a JSON message
        about = {head + name: name for name in ABOUT}
        text = "body" in schema.names and isinstance(schema["body"].dataType, StringType)
        self._decodes = self._format != "raw" or text
        self._corrupt = options.corrupt_record if self._decodes else ""
        self._about = {name: about[name] for name in schema.names if name in about}
        self.attempts = 1
        self.counts_attempts = "attempts" in self._about.values()
        for field in schema.fields:
            if field.name in self._about:
                check(field, ABOUT[self._about[field.name]])
            elif field.name == self._corrupt:
                check(field, BODY)
            else:
                self._check_payload(field)
        if options.max_attempts and not self._decodes:
            raise ValueError(
                "maxAttempts needs messages that are decoded: format=json, format=cloudevents, or body STRING"
            )

    def _check_payload(self, field: Any) -> None:
        if self._format == "json":
            if has_type(field.dataType, MapType):
                raise ValueError(f"the column {field.name!r}: maps cannot be decoded. Use a STRUCT")
            if has_type(field.dataType, BinaryType):
                raise ValueError(f"the column {field.name!r}: JSON has no binary. Use STRING, and unbase64")
            if has_type(field.dataType, *_UNPARSED):
                kind = field.dataType.simpleString().upper()
                raise ValueError(f"the column {field.name!r}: {kind} cannot be decoded. Use STRING, and CAST")
        elif field.name in (columns := known(self._format)):
            check(field, columns[field.name])
        else:
            raise ValueError(unknown(field.name, self._format))
        if self._decodes and not field.nullable:
            raise ValueError(f"the column {field.name!r} must be nullable: a message may lack it")

    def _prepare(self) -> None:
        """Make the parts that are not pickled with the reader."""
        self._target = to_arrow_schema(self._schema, timezone="UTC")
        beside = {*self._about, self._corrupt}
        self._payload = pa.schema([field for field in self._target if field.name not in beside])
        self._messages = FORMATS[self._format](self._payload)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_target", "_payload", "_messages")}

    def batch(self, messages: Sequence[bytes], queue: str, first: int) -> pa.RecordBatch:
        """Decode messages, oldest first.

        Args:
            messages: The messages.
            queue: The queue's name.
            first: The sequence of the first message.

        Raises:
            DecodeError: A message cannot be decoded, and the schema has no column for such messages.
        """
        if not hasattr(self, "_target"):
            self._prepare()
        parts = list(split(self._messages, messages))
        bad = next((part[0] for found, part in parts if found is None), None)
        if bad is not None and self._corrupt not in self._target.names:
            raise DecodeError(
                f"a message of the queue {queue!r} {self._messages.problem(bad)}: add a column {self._corrupt} BINARY "
                "to the schema for such messages, or set maxAttempts",
                name=queue,
                raw=bad,
            )
        columns: dict[str, Any] = {}
        for field in self._target:
            name, kind, what = field.name, field.type, self._about.get(field.name)
            if what == "queue":
                columns[name] = pa.repeat(pa.scalar(queue, kind), len(messages))
            elif what == "sequence":
                columns[name] = pa.array(np.arange(first, first + len(messages)), kind)
            elif what == "attempts":
                columns[name] = pa.repeat(pa.scalar(self.attempts, kind), len(messages))
            elif name == self._corrupt:
                corrupt: list[Any] = [
                    one for found, part in parts for one in (part if found is None else [None] * len(part))
                ]
                if pa.types.is_string(kind):
                    corrupt = [None if one is None else one.decode(errors="replace") for one in corrupt]
                columns[name] = pa.array(corrupt, kind)
            else:
                pieces = [pa.nulls(1, kind) if found is None else found[name] for found, _ in parts]
                columns[name] = _joined(pieces, kind)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def check_end(self, options: Options) -> None:
        """Raise ValueError if the schema has no place for the end row."""
        name, column = options.ends, "body" if options.end_time_column is None else options.end_time_column
        if column not in self._schema.names or column in self._about or column == self._corrupt:
            raise ValueError(
                f"{name} needs a column {column!r} in the schema. Its columns are {', '.join(self._schema.names)}"
            )
        kind = self._schema[column].dataType
        if name == "endTimeColumn" and not isinstance(kind, (TimestampType, TimestampNTZType)):
            raise ValueError(
                f"endTimeColumn: the column {column!r} must be TIMESTAMP, not {kind.simpleString().upper()}. If its "
                "text is not as in ISO 8601, read with format=raw and endMessage"
            )
        if wrong := [field.name for field in self._schema.fields if field.name != column and not field.nullable]:
            raise ValueError(f"the column {wrong[0]!r} must be nullable: it is NULL in the row that ends the stream")

    def end_row(self, options: Options) -> pa.RecordBatch:
        """Return the row that ends the stream: all columns but one are NULL."""
        if not hasattr(self, "_target"):
            self._prepare()
        columns = {field.name: pa.nulls(1, field.type) for field in self._target}
        if options.end_message is not None:
            columns |= self._messages.columns([options.end_message.encode()]) or {}
        elif (name := options.end_time_column) is not None:
            micros = (END - _EPOCH) // dt.timedelta(microseconds=1)
            columns[name] = pa.array([micros], pa.int64()).cast(self._target.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def undecodable(self, messages: Sequence[bytes]) -> list[int]:
        """Return the positions of the messages that cannot be decoded."""
        found, at = [], 0
        for columns, part in split(self._messages, messages):
            if columns is None:
                found.append(at)
            at += len(part)
        return found


def _joined(pieces: Sequence[Any], kind: Any) -> Any:
    chunks = [chunk for piece in pieces for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)
