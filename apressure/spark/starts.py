# ruff: noqa: SLF001 (pyspark's public listeners turn each event into Python, see `_Beginnings`)
"""Looks at each query when it starts, before it does anything: its checkpoint, and the row that ends its streams."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkFiles
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from apressure.spark import ending
from apressure.spark.checkpoint import mend_when_quiet
from apressure.spark.plans import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

_log = logging.getLogger("apressure.spark")


class StartListener(StreamingQueryListener):
    """Mends the checkpoint of each query that reads queues, and checks its end row. Spark waits for it meanwhile.

    Whatever fails in it is logged, and disturbs no query.

    Args:
        spark: The session.
        folder: The folder for the answers to the source; see `ending`.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark_of = weakref.ref(spark)
        self._folder = folder
        self.refused: dict[str, str] = {}
        """Why a run of a query was refused, by the run's id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query has begun, and has not looked at its checkpoint."""
        try:
            self._look(event)
        except Exception:  # noqa: BLE001 (Spark's errors have no common base)
            _log.exception("the query %s cannot be checked at its start", event.name or event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Is never called; see `_Beginnings`."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Is never called; see `_Beginnings`."""

    def _look(self, event: QueryStartedEvent) -> None:
        spark = self._spark_of()
        query = None if spark is None else spark.streams.get(str(event.id))
        if spark is None or query is None:
            return
        plan = Plan(query)
        if not plan.sources():
            return
        again = plan.files() is None and plan.is_torn()  # no other sink's log can be mended
        self._mend(plan, event.name or event.id)
        for options, why_not in plan.why_no_end_row(spark):
            ending.answer(self._folder, options, why_not, again)
            if why_not:
                self.refused[str(event.runId)] = why_not

    def _mend(self, plan: Plan, query: object) -> None:
        checkpoint = plan.checkpoint()
        try:
            if checkpoint is not None and mend_when_quiet(checkpoint, plan.files()):
                _log.warning("the checkpoint %s was repaired: its query had died in the middle of a batch", checkpoint)
        except OSError as error:
            _log.error(
                "the checkpoint %s cannot be repaired, call apressure.spark.mend_checkpoint: %s", checkpoint, error
            )
        if plan.writes_files_elsewhere() and plan.is_torn():
            _log.warning(
                "the query %s died in the middle of a batch, and its files are not on this machine, so its last "
                "windows may be missing: see apressure.spark.mend_checkpoint for what to repair",
                query,
            )


class _Beginnings(JStreamingQueryListener):
    """Hands over the starts of queries only: to turn each event of a batch into Python costs milliseconds."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, jevent: Any) -> None:  # noqa: N802
        pass


_listeners: Final[weakref.WeakKeyDictionary[SparkSession, StartListener]] = weakref.WeakKeyDictionary()


def listen(spark: SparkSession) -> StartListener:
    """Have each query that starts in a session looked at, and return the listener. Call it any number of times.

    Where Spark cannot call into this process, a warning says so, and queries are not looked at.

    Raises:
        AttributeError: The session runs elsewhere, with Spark Connect.
    """
    if (listener := _listeners.get(spark)) is None:
        folder = Path(SparkFiles.getRootDirectory()) / "apressure"  # deleted with the session
        folder.mkdir(exist_ok=True)
        listener = StartListener(spark, str(folder))
        jvm: Any = spark.sparkContext._jvm
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        listener._jlistenerobj = wrapper(_Beginnings(listener))
        try:
            spark.streams.addListener(listener)
        except Exception as error:  # noqa: BLE001 (another program may own the connection to Java)
            _log.warning("queries cannot be looked at when they start, so checkpoints are not repaired: %s", error)
        else:
            spark.sparkContext.environment[ending.ANSWERS] = str(folder)
        _listeners[spark] = listener
    return listener
