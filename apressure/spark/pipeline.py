"""The parts of a pipeline that may be killed at any time and started again: what feeds it, and what cleans up after it.

Each part may be repeated, and goes on where it was:

* `feed` puts from where the queue's own count of produced messages says. One step on the server puts messages and
  counts them, so that the count is right even for a put whose answer was lost.
* The source's batches are sealed on the server until Spark has committed them, and Spark's checkpoint says which it
  has: an unfinished batch comes again, with the same rows.
* Parquet files count when Spark's log in their folder names them, and a batch is logged once. `sweep` removes the
  others, for readers that do not look into that log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from apressure.exceptions import QueueClosedError
from apressure.pressure.queue import AsyncQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE: Final = 10.0
"""Seconds after which another feeder may take over from one that was killed."""


async def feed(queue: AsyncQueue[Any], items: Iterable[Any]) -> int:
    """Put those of the items that the queue has not been given yet, wait while it is full, and close it.

    Killed, cancelled or disconnected at any time, it may be called again with the same items in the same order: it goes
    on with the first that is not in the queue. It holds the role of the producer, under a lease of 10 seconds: nobody
    else changes how many messages the queue has been given, and a second feeder waits.

    Args:
        queue: The queue, which exists. Nobody else has put anything into it.
        items: All items, also those that were put before.

    Returns:
        How many items it has put.

    Raises:
        LeaseLostError: The process stood still for longer than that. What was put is in the queue.
        QueueDoesNotExistError, ServerUnavailableError, …: As for `put_many`.
    """
    try:
        async with queue.producer(exclusive=True, lease=LEASE) as producer:
            known = (await queue.statistics()).produced_messages
            return await producer.put_many(itertools.islice(items, known, None))
    except QueueClosedError:  # by a feeder that had put all of them
        return 0


def sweep(spark: SparkSession, files: Path) -> None:
    """Remove Parquet files of tasks that were killed before Spark had logged their batch.

    Call it only while no query writes there.

    Args:
        spark: The session.
        files: The folder where the query has written, on this machine.
    """
    logged = {Path(unquote(urlsplit(url).path)).name for url in spark.read.parquet(str(files)).inputFiles()}
    for path in files.glob("*.parquet"):
        if path.name not in logged:
            path.unlink()
