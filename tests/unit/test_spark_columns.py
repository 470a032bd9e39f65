"""What Spark's source and sink make of columns and messages, without Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

types = pytest.importorskip("pyspark.sql.types")
pa = pytest.importorskip("pyarrow")

from apressure.spark.encoding import Encoder  # noqa: E402
from apressure.spark.options import Options  # noqa: E402
from apressure.spark.source.decoding import Decoder  # noqa: E402

DAY = dt.date(2013, 1, 1)


def schema(**columns: Any) -> Any:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def options(format: str) -> Options:
    return Options.of({"url": "redis://127.0.0.1", "queue": "jobs", "format": format})


def test_dates_inside_of_columns_are_decoded() -> None:
    day = types.DateType()
    columns = schema(s=types.StructType().add("d", day), a=types.ArrayType(types.ArrayType(day)), d=day)
    message = b'{"s": {"d": "2013-01-01"}, "a": [["2013-01-01", null], null], "d": "2013-01-01"}'
    (row,) = Decoder(options("json"), columns).batch([message], "jobs", 0).to_pylist()
    assert row == {"s": {"d": DAY}, "a": [[DAY, None], None], "d": DAY}


@pytest.mark.parametrize(
    "kind", [types.BinaryType(), types.DayTimeIntervalType(), types.VariantType(), types.TimeType()], ids=str
)
def test_a_type_that_no_message_would_fit_is_refused(kind: Any) -> None:
    for column in (kind, types.ArrayType(types.StructType().add("x", kind))):
        with pytest.raises(ValueError, match=r"the column 'c': .* Use STRING"):
            Decoder(options("json"), schema(c=column))


@pytest.mark.parametrize("format", ["json", "cloudevents"])
def test_a_time_that_python_does_not_have_is_a_clear_error(format: str) -> None:
    late = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))  # the year 10,000
    rows = pa.record_batch({"body": ["x"], "put_time": late})
    encoder = Encoder(options(format), schema(body=types.StringType(), put_time=types.TimestampType()))
    with pytest.raises(ValueError, match="not in the years 1 to 9999"):
        encoder.messages(rows)
