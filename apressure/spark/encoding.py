"""Turns the rows of a data frame into messages. No I/O."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
from pyspark.sql.types import MapType, StringType, StructType

from apressure import envelopes
from apressure.spark.columns import ABOUT, check, has_type, known, unknown
from apressure.spark.options import Options


class Encoder:
    """Turns rows into messages. The column of `queueColumn` is not part of a message.

    Args:
        options: The options of the sink.
        schema: The columns of the rows.

    Raises:
        ValueError: The columns do not fit the format.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._format = options.format
        fields = [field for field in schema.fields if field.name != options.queue_column]
        self._columns = [field.name for field in fields]
        if self._format == "json":
            if maps := [field.name for field in fields if has_type(field.dataType, MapType)]:
                raise ValueError(f"the column {maps[0]!r}: maps cannot be written. Use a STRUCT, or to_json")
            return
        if "body" not in self._columns:
            raise ValueError(
                f"without format=json the data frame needs a column `body`, BINARY or STRING; it has "
                f"{', '.join(self._columns) or 'none'}. Use for example .select(to_json(struct('*')).alias('body'))"
            )
        columns = known(self._format)
        for field in fields:
            if field.name not in columns:
                raise ValueError(unknown(field.name, self._format))
            check(field, columns[field.name])
        self._columns = [name for name in self._columns if name not in ABOUT]
        self._text = isinstance(schema["body"].dataType, StringType)

    def messages(self, batch: Any) -> Any:
        """Turn a record batch into an Arrow array of messages.

        Raises:
            ValueError: A row cannot be a message.
        """
        if self._format == "json":
            return pa.array([_json(row) for row in self._rows(batch)], pa.string())
        if self._format == "cloudevents":
            now = dt.datetime.now(dt.UTC)
            return pa.array([self._event(row, now) for row in self._rows(batch)], pa.binary())
        if batch.column("body").null_count:
            raise ValueError("the column 'body' is NULL in a row, and a message cannot be NULL: filter such rows out")
        return batch.column("body")

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        try:
            return batch.select(self._columns).to_pylist()  # type: ignore[no-any-return]
        except OverflowError:  # Spark's years have six digits
            raise ValueError("a date or a time is not in the years 1 to 9999: such a row cannot be written") from None

    def _event(self, row: dict[str, Any], now: dt.datetime) -> bytes:
        body = row["body"]
        headers = {name: value for name, value in row.get("headers") or () if value is not None}
        if self._text and body is not None:
            headers.setdefault(envelopes.CONTENT_TYPE, "text/plain")
            body = body.encode()
        given = {name: row[name] for name in ("id", "source", "type") if row.get(name) is not None}
        try:
            return envelopes.encode(
                envelopes.Envelope(body, row.get("key"), row.get("put_time") or now, headers, **given)
            )
        except ValueError as error:
            raise ValueError(f"a row cannot be a CloudEvent: {error}") from None


def _json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_plain, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), default=_plain, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by text, as Spark's own JSON does."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not have. A decimal becomes text, because a number would lose digits."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a column of {type(value).__name__} cannot be written as JSON")
