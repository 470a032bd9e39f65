"""The driver whose Java is killed: it sums up the closed queue `flights` in files. Its output ends with `done`.

The query is started by `pressure.start`, or simply by Spark's own `start`: nobody mends its checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from apressure import spark as pressure
from apressure.demo import pipeline
from tests.spark.quick import QUICK


def main(url: str, place: str, how: str) -> None:
    folder = Path(place)
    spark = pressure.session("windows", "local[2]", {**pipeline.SESSION, **QUICK})
    stream = pipeline.read(spark, url=url, queue="flights", maxRowsPerBatch=400)
    frame, files, checkpoint = pipeline.delays(stream), folder / "delays", folder / "checkpoint"
    if how == "start":
        pipeline.write(frame, files, checkpoint).awaitTermination()
    else:
        sink = frame.writeStream.format("parquet").option("path", str(files))
        pressure.await_end(sink.option("checkpointLocation", str(checkpoint)).start())
    pressure.sweep(spark, folder / "delays")
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
