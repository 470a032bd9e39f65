"""How far a streaming query is with a queue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from apressure.connection.blocking import Blocking
from apressure.spark.options import Options
from apressure.spark.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Progress:
    """Looks at a query and at its queue, from any one thread.

    Args:
        query: The query.
        group: Its group.
        **options: `url`, `queue`, `prefix`, … as in `Options`.
    """

    def __init__(self, query: StreamingQuery, group: str, **options: Any) -> None:
        self._query = query
        self._group = group
        checked = Options.of({key: str(value) for key, value in options.items() if value is not None})
        settings = checked.settings()
        self._steps = Steps(Blocking(settings), settings.prefix, checked.names[0])

    def look(self) -> dict[str, Any]:
        """Return how far it is: `rows` since ever, restarts included; the latest `batch`, its `seconds`, `watermark`.

        Raises:
            PressureError: The server cannot be asked.
        """
        progress = self._query.lastProgress
        latest: dict[str, Any] = json.loads(progress.json) if progress is not None else {}
        rows, _, _ = self._steps.measure()
        done, last, _ = self._steps.flights().get(self._group, (0, 0, -1))
        done = max(done, _number(latest, self._steps.name))
        rows -= sum(self._steps.lengths(self._group, done + 1, last))  # taken, and not worked off
        return {
            "rows": rows,
            "batch": latest.get("batchId"),
            "seconds": latest.get("durationMs", {}).get("triggerExecution", 0) / 1000,
            "watermark": latest.get("eventTime", {}).get("watermark"),
        }


def _number(latest: dict[str, Any], name: str) -> int:
    """The number of the queue's last batch that the query has worked off."""
    for source in latest.get("sources", ()):
        end = source.get("endOffset")
        return int((json.loads(end) if isinstance(end, str) else end or {}).get(name, 0))
    return 0
