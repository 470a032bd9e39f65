"""Starts queries, and waits for the end of what they read. No pyspark is needed to import this."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from apressure.exceptions import ServerUnavailableError
from apressure.spark import ending
from apressure.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from apressure.spark.engine.steps import QueueSteps

_log = logging.getLogger("apressure.spark")


def start(writer: DataStreamWriter, **options: Any) -> StreamingQuery:
    """Start a query that reads queues, and stop it when they are closed and empty and everything is processed.

    Before that its checkpoint is repaired, if its last run died at a moment from which Spark cannot go on rightly by
    itself; see `mend_checkpoint`. So `query.awaitTermination()` waits for the end. A thread of this process watches the
    queues; a pattern of queues has no end, and such a query runs until it is stopped or fails.

    With Spark Connect the checkpoint is not repaired and nothing is checked at the start, and the end is watched only
    if `options` say where the queues are.

    Args:
        writer: The query to start: `frame.writeStream…` with its format, options and trigger.
        **options: With Spark Connect: `url`, `queue` or `queues`, `prefix`, … as in `Options`.

    Returns:
        The query.

    Raises:
        ValueError: The row that ends a stream (`endTimeColumn`, `endMessage`) would appear in the query's output, or
            would not move its watermark. The query is stopped.
    """
    spark = getattr(writer, "_spark", None)
    if spark is None:  # Spark Connect
        query = writer.start()
        watched = [Options.of(options)] if options else []
    else:
        from apressure.spark.plans import Plan
        from apressure.spark.starts import listen

        listener = listen(spark)
        query = writer.start()
        if why_not := listener.refused.pop(str(query.runId), ""):
            query.stop()
            raise ValueError(why_not)
        watched = Plan(query).sources()
    if watched and all(one.names for one in watched):
        threading.Thread(target=_watch, args=(query, watched), name="apressure-spark-end", daemon=True).start()
    return query


def await_end(query: StreamingQuery, **options: Any) -> None:
    """Wait until a query's queues are closed and empty and everything is processed, then stop the query.

    Args:
        query: The streaming query.
        **options: `url`, `queue` or `queues` (names, no pattern), `prefix`, … as in `Options`. By default those of the
            query's streams; with Spark Connect they must be given.

    Raises:
        StreamingQueryException: The query failed.
        QueueDoesNotExistError: A queue does not exist.
        ValueError: The queues are a pattern, which may match new queues at any time. Or the row that ends the stream
            (`endTimeColumn`, `endMessage`) did not come to the watermark; the query is stopped.
    """
    _await_end(query, [Options.of(options)] if options else _sources(query))


def close_queue(queue: str, **options: Any) -> None:
    """Close a queue, so that its consumers end. A stream's sink cannot do that itself. A closed queue stays closed.

    Args:
        queue: The queue's name.
        **options: `url`, `prefix`, … as in `Options`.

    Raises:
        QueueDoesNotExistError: The queue does not exist.
        QueueInUseError: Another client held the producer role for `roleTimeout` seconds.
    """
    checked = Options.of({"queue": queue, **options})
    with _queues([checked]) as (steps,):
        steps.run_when_ready(steps.close, checked.role_timeout)


def forget_group(queue: str, group: str, **options: Any) -> None:
    """Delete what the server keeps of a group whose query is finished. An interrupted call may be repeated.

    Spark commits a batch when it asks for the next one, so the last one stays on the server. Without it, the query
    cannot be started again with its checkpoint.

    Args:
        queue: The queue's name. It may have been deleted.
        group: The group.
        **options: `url`, `prefix`, … as in `Options`.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
        ValueError: An option, or the name of the group, is invalid.
    """
    from apressure.connection.wire.blocking import Blocking
    from apressure.spark.engine.source_steps import SourceSteps

    checked = Options.of({"queue": queue, "group": group, **options})
    with contextlib.closing(Blocking(checked.settings())) as server:
        SourceSteps(server, queue, group).forget()


def _sources(query: StreamingQuery) -> list[Options]:
    try:
        from apressure.spark.plans import Plan

        found = Plan(query).sources()
    except AttributeError:
        raise ValueError("with Spark Connect, name the queues: await_end(query, url=…, queue=…)") from None
    if not found:
        raise ValueError("the query reads no queues")
    return found


def _await_end(query: StreamingQuery, sources: Sequence[Options]) -> None:
    with _queues(sources) as queues:
        while not query.awaitTermination(1):  # it takes whole seconds only
            if all(closed and not length for _, length, closed in (steps.measure() for steps in queues)):
                # The first call may return before Spark has noticed that the queue is closed. In a restarted query,
                # Spark finishes the last windows only after that.
                query.processAllAvailable()
                query.processAllAvailable()
                query.stop()
                break
    if any(ending.is_lost(json.loads(progress.json)) for progress in query.recentProgress):
        raise ValueError(ending.LOST)


def _watch(query: StreamingQuery, sources: Sequence[Options]) -> None:
    """Wait for the end in a thread. What the query itself fails with, it tells itself."""
    while True:
        try:
            _await_end(query, sources)
        except ServerUnavailableError as error:
            if query.isActive:
                _log.warning("%s. The query goes on, and its end is looked for again", error)
                time.sleep(1)
                continue
        except Exception as error:  # noqa: BLE001 (Spark's errors have no common base)
            with contextlib.suppress(Exception):  # the session may have ended
                if query.exception() is None:
                    _log.error("the end of the query %s is not watched any more: %s", query.name or query.id, error)
        return


@contextlib.contextmanager
def _queues(sources: Sequence[Options]) -> Iterator[list[QueueSteps]]:
    """The steps of the queues in the options, over connections of their own."""
    from apressure.connection.wire.blocking import Blocking
    from apressure.spark.engine.steps import QueueSteps

    if not all(one.names for one in sources):
        raise ValueError("name the queues, separated by commas: a pattern has no end, as new queues may match it")
    with contextlib.ExitStack() as stack:
        found = []
        for one in sources:
            server = stack.enter_context(contextlib.closing(Blocking(one.settings())))
            found += [QueueSteps(server, name) for name in one.names]
        yield found
