# ruff: noqa: SLF001 (pyspark has no public way from its objects to those in Java)
"""What a query of Spark reads and writes, and whether a row may end its streams.

Spark's Python API does not tell that, so this asks Spark's objects in Java. It does not work with Spark Connect, where
they are elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure.spark.ending import END, LOST
from apressure.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("apressure.spark")
_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"


class Plan:
    """The plan of a query that was started.

    Args:
        query: The query.

    Raises:
        AttributeError: The query runs elsewhere, with Spark Connect.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._execution: Any = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        self._root = self._execution.analyzedPlan()

    def sources(self) -> list[Options]:
        """The options of the streams of queues that it reads."""
        return [options for options, _ in self._sources()]

    def checkpoint(self) -> Path | None:
        """The folder of its checkpoint; None if it is not on this machine."""
        return _local(str(self._execution.resolvedCheckpointRoot()))

    def files(self) -> Path | None:
        """The folder where it writes files; None if it writes none, or not on this machine."""
        sink = self._execution.sink().toString()
        return _local(sink[len("FileSink[") : -1]) if sink.startswith("FileSink[") else None

    def writes_files_elsewhere(self) -> bool:
        """Whether it writes files that are not on this machine."""
        return self.files() is None and str(self._execution.sink().toString()).startswith("FileSink[")

    def is_torn(self) -> bool:
        """Whether its latest batch was logged, and not its commit: it is run once more, unless its sink has it already.

        A sink that has it does not run it, and Spark forgets how far its rows had moved the watermark.
        """
        logged, committed = (
            log.getLatestBatchId() for log in (self._execution.offsetLog(), self._execution.commitLog())
        )
        return bool(logged.isDefined() and logged.toString() != committed.toString())

    def why_no_end_row(self, spark: SparkSession) -> list[tuple[Options, str]]:
        """Why no row may end each of the streams that have that option; '' if it may.

        It may if it moves the watermark, and if an aggregation keeps it until its window is finished, which is never.
        The row is tried: it goes through the query's own steps before the aggregation, which takes a small job.
        """
        return [(options, self._why_not(spark, options, path)) for options, path in self._sources() if options.ends]

    def _why_not(self, spark: SparkSession, options: Options, path: list[Any]) -> str:
        name, column = options.ends, "body" if options.end_time_column is None else options.end_time_column
        if column not in {one.name() for one in _all(path[-1].output())}:
            return ""  # the source says so itself
        mode = self._execution.outputMode().toString()
        if mode != "Append":
            return (
                f"{name}: in the output mode {mode.lower()} the row that ends the stream would appear in the output, "
                "with its time far in the future. Use .outputMode('append'), or leave the option out"
            )
        chain = []
        for node in reversed(path[:-1]):
            if node.nodeName() == "Aggregate" or _size(node.children()) != 1:
                break
            chain.append(node)
        watermarks = [node for node in chain if node.nodeName() == "EventTimeWatermark"]
        if not watermarks:
            return (
                f"{name}: the row that ends the stream needs a watermark to move. Call .withWatermark(…) on the stream "
                "itself, before it is grouped, joined or united with another one; or leave the option out"
            )
        aggregate = next((node for node in reversed(path) if node.nodeName() == "Aggregate"), None)
        if aggregate is None:
            return (
                f"{name}: the row that ends the stream would appear in the output. Only an aggregation by windows "
                "of the time keeps it back: .groupBy(window(…)). Or leave the option out"
            )
        if any("-T0ms" in str(one) and "struct" not in one.dataType().typeName() for one in _grouping(aggregate)):
            return (
                f"{name}: the row that ends the stream would appear in the output, because the watermark has no delay "
                "and the query groups by the time itself. Give the watermark a delay, or group by windows"
            )
        if spark.conf.get(_POLICY, "min") == "max" and sum(1 for _ in _watermarks(self._root)) > 1:
            return (
                f"{name}: with {_POLICY}=max the end of one stream would drop the rows of the others as late. Use min, "
                "the default"
            )
        try:
            arrived = _try_row(spark, options, path[-1], chain)
        except Exception as error:  # noqa: BLE001 (Spark's errors have no common base)
            _log.warning("%s cannot be tried with this query, so see whether its last windows come: %s", name, error)
            return ""
        return "" if arrived else f"{name}: {LOST}"

    def _sources(self) -> Iterator[tuple[Options, list[Any]]]:
        """The options of each stream of queues, and the nodes of the plan from the root to it."""
        for path in _paths(self._root, []):
            leaf = path[-1]
            if leaf.nodeName() == "StreamingRelationV2" and leaf.sourceName() == "pressure":
                yield Options.of(dict(leaf.extraOptions().asCaseSensitiveMap())), path


def _local(place: str) -> Path | None:
    """The path of a folder on this machine, from Hadoop's name for it."""
    scheme, colon, rest = place.partition(":")
    if not colon or "/" in scheme:
        return Path(place)
    return Path("/" + rest.lstrip("/")) if scheme == "file" else None


def _paths(node: Any, above: list[Any]) -> Iterator[list[Any]]:
    path = [*above, node]
    children = _all(node.children())
    for child in children:
        yield from _paths(child, path)
    if not children:
        yield path


def _watermarks(node: Any) -> Iterator[Any]:
    if node.nodeName() == "EventTimeWatermark":
        yield node
    for child in _all(node.children()):
        yield from _watermarks(child)


def _grouping(aggregate: Any) -> list[Any]:
    return _all(aggregate.groupingExpressions())


def _all(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(_size(sequence))]


def _size(sequence: Any) -> int:
    return int(sequence.size())


def _try_row(spark: SparkSession, options: Options, leaf: Any, nodes: list[Any]) -> bool:
    """Whether the end row comes through these nodes, which are above the leaf of a source, the lowest one first."""
    from pyspark.sql import DataFrame

    jvm: Any = spark.sparkContext._jvm
    seq, names = jvm.PythonUtils.toSeq, jvm.org.apache.spark.sql
    output = leaf.output()
    values = ", ".join(_value(options, column.name(), column.dataType().sql()) for column in _all(output))
    one: Any = spark.sql(f"SELECT {values}")
    rows = one._jdf.queryExecution().executedPlan().executeCollect()
    plan = names.catalyst.plans.logical.LocalRelation(output, seq([rows[0]]), False, _object(jvm, "scala.None$"))
    for node in nodes:
        plan = node.withNewChildren(seq([plan]))
    frame = _object(jvm, "org.apache.spark.sql.classic.Dataset$").ofRows(spark._jsparkSession, plan)  # type: ignore[attr-defined]
    return not DataFrame(frame, spark).isEmpty()


def _value(options: Options, column: str, kind: str) -> str:
    """A column of the end row in SQL."""
    if options.end_message is not None and column == "body":
        return f"CAST(X'{options.end_message.encode().hex()}' AS {kind})"
    if column == options.end_time_column:
        return f"CAST('{END:%Y-%m-%dT%H:%M:%S}{'' if kind == 'TIMESTAMP_NTZ' else 'Z'}' AS {kind})"
    return f"CAST(NULL AS {kind})"


def _object(jvm: Any, name: str) -> Any:
    """A singleton of Scala."""
    return getattr(getattr(jvm, name), "MODULE$")
