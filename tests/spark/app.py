"""The driver that the tests kill: it copies several queues to the queue `mid`, and `mid` to files, until all end.

A failed query is started again with its checkpoint. The last line of the output is `done`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apressure import spark as pressure
from tests.spark.quick import QUICK

INPUTS = ("in:0", "in:1", "in:2")


def main(url: str, place: str, master: str) -> None:
    spark = pressure.session("chaos", master, {**QUICK, "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(place)

    def reading(queues: str, group: str) -> Any:
        stream = spark.readStream.format("pressure").options(url=url, queues=queues, group=group, roleTimeout=2)
        return stream.option("maxRowsPerBatch", 1000).option("numPartitions", 2).load()

    def to_queue() -> Any:
        sink = (
            reading(",".join(INPUTS), "first")
            .select("body")
            .writeStream.format("pressure")
            .options(url=url, queue="mid")
        )
        return sink.option("checkpointLocation", str(folder / "first")).start()

    def to_files() -> Any:
        sink = reading("mid", "second").writeStream.format("parquet").option("path", str(folder / "out"))
        return sink.option("checkpointLocation", str(folder / "second")).start()

    def keep(start: Callable[[], Any], queues: str) -> None:
        spark.createDataFrame([(1,)], "one INT")  # makes the session active in this thread, which finding a sink needs
        while True:
            query = None
            try:
                query = start()
                pressure.await_end(query, url=url, queues=queues)
                return
            except Exception as error:
                lines = str(error).strip().splitlines()
                why = [line for line in lines if "rror" in line or "xception" in line] or lines
                print(f"again: {queues}: {type(error).__name__}: {' '.join(why)[:300]}", flush=True)
                with contextlib.suppress(Exception):
                    query.stop()
                time.sleep(0.2)

    def first() -> None:
        keep(to_queue, ",".join(INPUTS))
        pressure.close_queue("mid", url=url)

    threads = [threading.Thread(target=first), threading.Thread(target=keep, args=(to_files, "mid"))]
    print("started", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
