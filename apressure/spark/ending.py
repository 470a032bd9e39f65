"""The end row of a stream: it moves the watermark past the last windows when all queues are closed and empty.

It is in no queue. Spark's offset says how many end rows the stream has had, under a name that no queue can have, so a
batch that Spark runs again has its end row again, and a stream that has ended is recognised by its checkpoint alone.

Only the driver can tell whether the row would appear in the query's output. It leaves its answer in a folder that the
process of the source, a child of the driver's Java, is told by an environment variable. No pyspark is needed here.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from apressure.spark.options import Options

END: Final = dt.datetime(2262, 1, 1, tzinfo=dt.UTC)
"""The time of the end row: the last New Year that fits into nanoseconds, which pandas uses in functions of users."""
ROWS: Final = ""
"""The name in an offset, beside those of the queues, of the number of end rows."""
ANSWERS: Final = "APRESSURE_SPARK_ANSWERS"
"""The environment variable with the folder of the driver's answers."""
LOST: Final = (
    "the row that ends the stream does not reach the aggregation, so the last windows are not written: a filter drops "
    "it because its other columns are NULL, or withWatermark names another column. Let the row pass, for example with "
    "`… OR column IS NULL`, and start the query again with the same checkpoint"
)


def rows(offset: Mapping[str, int]) -> int:
    """How many end rows a stream has had."""
    return offset.get(ROWS, 0)


def positions(offset: Mapping[str, int]) -> dict[str, int]:
    """An offset without the end rows: the last batch of each queue."""
    return {name: number for name, number in offset.items() if name != ROWS}


def answer(folder: str, options: Options, why_not: str = "", again: bool = False) -> None:
    """Leave the driver's answer for a source.

    Args:
        folder: The folder of the answers.
        options: Those of the source.
        why_not: Why it gives no end row; '' if it may.
        again: Whether a stream that has had its end row gets it once more.
    """
    path = _answer(folder, options)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"why_not": why_not, "again": again}))
    new.replace(path)


def is_given_again(options: Options) -> bool:
    """Ask, in the process of the source, whether a stream that has had its end row gets it once more.

    It does if the driver says so, and also where no driver answers, with Spark Connect and without `register`: then
    nobody knows whether the row has moved the watermark.

    Raises:
        ValueError: The row would appear in the query's output, or the driver could not look at the query.
    """
    if (folder := os.environ.get(ANSWERS)) is None:
        return True
    try:
        found = json.loads(_answer(folder, options).read_text())
    except FileNotFoundError:
        raise ValueError(
            "nothing has checked whether the row that ends the stream appears in the output of the query: start it "
            "with apressure.spark.start(writer), or call apressure.spark.register with its session before"
        ) from None
    if found["why_not"]:
        raise ValueError(found["why_not"])
    return bool(found["again"])


def is_lost(progress: Mapping[str, Any]) -> bool:
    """Whether a batch, from its progress, had the end row, and its time did not come to the watermark."""
    ended = any(
        _rows_of(source.get("endOffset")) > _rows_of(source.get("startOffset"))
        for source in progress.get("sources", ())
    )
    return ended and "max" not in (progress.get("eventTime") or {})


def _rows_of(offset: Any) -> int:
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:  # another source's
        return 0
    number = found.get(ROWS) if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0


def _answer(folder: str, options: Options) -> Path:
    name = json.dumps([options.group, options.names])
    return Path(folder) / hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
