"""The data source `pressure`: what Spark calls for each way to read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from apressure.spark.options import Options

if TYPE_CHECKING:
    from apressure.spark.sink import BatchSink, StreamSink
    from apressure.spark.source.slices import QueueReader
    from apressure.spark.source.stream import QueueStream


class PressureSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("pressure")`.

    Args:
        options: The user's options; see `Options`.

    Raises:
        ValueError: An option is unknown or invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self._checked = Options.of(options)
        self._checked.settings()

    def __repr__(self) -> str:
        return f"<pressure: {self._checked!r}>"

    @classmethod
    def name(cls) -> str:
        """The name for `.format(…)`."""
        return "pressure"

    def schema(self) -> StructType:
        """The columns, if the user gives no schema."""
        from apressure.spark.columns import CLOUDEVENTS, RAW

        if self._checked.format == "json":
            raise ValueError(
                "format=json needs a schema, for example "
                ".schema('carrier STRING, delay DOUBLE, _corrupt_record BINARY')"
            )
        return CLOUDEVENTS if self._checked.format == "cloudevents" else RAW

    def reader(self, schema: StructType) -> QueueReader:
        """`spark.read`."""
        from apressure.spark.source.slices import QueueReader

        return QueueReader(self._checked, schema)

    def streamReader(self, schema: StructType) -> QueueStream:  # noqa: N802
        """`spark.readStream`."""
        from apressure.spark.source.stream import QueueStream

        return QueueStream(self._checked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """`df.write`."""
        from apressure.spark.sink import BatchSink

        return BatchSink(self._checked, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """`df.writeStream`."""
        from apressure.spark.sink import StreamSink

        return StreamSink(self._checked, schema, overwrite)


DefaultSource = PressureSource
"""Spark looks for this name in modules called `pyspark_…`."""
