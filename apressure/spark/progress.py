"""How far a streaming query is with a queue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from apressure.connection.wire.blocking import Blocking
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Progress:
    """Looks at a query and at its queue. Use it from one thread.

    Args:
        query: The query.
        group: Its group.
        **options: `url`, `queue`, `prefix`, … as in `Options`.
    """

    def __init__(self, query: StreamingQuery, group: str, **options: Any) -> None:
        self._query = query
        checked = Options.of(options)
        self._steps = SourceSteps(Blocking(checked.settings()), checked.names[0], group)

    def look(self) -> dict[str, Any]:
        """Return how many `rows` were ever processed, and how many are `in_flight`: taken, and not processed yet.

        And the latest `batch`, its `seconds` and its `watermark`.

        Raises:
            ServerError, ServerUnavailableError: The server refused, or cannot be reached.
        """
        progress = self._query.lastProgress
        latest: dict[str, Any] = json.loads(progress.json) if progress is not None else {}
        rows, _, _ = self._steps.measure()
        committed, last, _ = self._steps.unfinished()
        processed = max(committed, _last_batch(latest, self._steps.name))
        in_flight = sum(self._steps.lengths(processed + 1, last))
        return {
            "rows": rows - in_flight,
            "in_flight": in_flight,
            "batch": latest.get("batchId"),
            "seconds": latest.get("durationMs", {}).get("triggerExecution", 0) / 1000,
            "watermark": latest.get("eventTime", {}).get("watermark"),
        }


def _last_batch(latest: dict[str, Any], name: str) -> int:
    """The number of the queue's last batch that the query has processed."""
    for source in latest.get("sources", ()):
        end = source.get("endOffset")
        return int((json.loads(end) if isinstance(end, str) else end or {}).get(name, 0))
    return 0
