"""The driver on a cluster of two executors: it copies the queue `in` to the queue `out` until `in` has ended.

Each task waits in the middle of its rows, until the file `go` is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apressure import spark as pressure
from tests.spark.quick import JAVA, QUICK

PATIENCE = 300.0


def main(url: str, place: str) -> None:
    folder = Path(place)

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            deadline = time.monotonic() + PATIENCE
            while number == 20 and not (folder / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch

    small = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA,
        "spark.local.dir": f"{folder}/scratch",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    }
    spark = pressure.session("cluster", "local-cluster[2,1,1024]", {**QUICK, **small})
    stream = spark.readStream.format("pressure").options(url=url, queue="in", group="g", fetchSize=250)
    rows = stream.option("numPartitions", 2).load().select("body").mapInArrow(hold, "body BINARY")
    sink = rows.writeStream.format("pressure").options(url=url, queue="out", fetchSize=250)
    query = sink.option("checkpointLocation", f"{folder}/checkpoint").start()
    pressure.await_end(query, url=url, queue="in")
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
