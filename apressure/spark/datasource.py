"""The data source `pressure`, as Spark knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from apressure.spark.options import Options

if TYPE_CHECKING:
    from apressure.spark.reader import QueueReader
    from apressure.spark.source import QueueStream
    from apressure.spark.writer import BatchSink, StreamSink


class PressureSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("pressure")`.

    Args:
        options: The user's; see `Options`.

    Raises:
        ValueError: An option is unknown, or of no use.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self._checked = Options.of(options)
        self._checked.settings()

    def __repr__(self) -> str:
        return f"<pressure: {self._checked!r}>"

    @classmethod
    def name(cls) -> str:
        """What goes into `.format(…)`."""
        return "pressure"

    def schema(self) -> StructType:
        """The columns, where the user does not say which."""
        from apressure.spark.decoding import schema_of

        return schema_of(self._checked)

    def reader(self, schema: StructType) -> QueueReader:
        """`spark.read`."""
        from apressure.spark.reader import QueueReader

        return QueueReader(self._checked, schema)

    def streamReader(self, schema: StructType) -> QueueStream:  # noqa: N802
        """`spark.readStream`."""
        from apressure.spark.source import QueueStream

        return QueueStream(self._checked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """`df.write`."""
        from apressure.spark.writer import BatchSink

        return BatchSink(self._checked, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """`df.writeStream`."""
        from apressure.spark.writer import StreamSink

        return StreamSink(self._checked, schema, overwrite)


DefaultSource = PressureSource
"""The name under which Spark looks for a data source in a module `pyspark_…`."""
