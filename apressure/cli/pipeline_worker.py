"""The pipeline's other two processes: `python -m apressure.cli.pipeline_worker` is the feeder or Spark's driver.

Standard input is the line of life to the command, as with the demo's workers. What Spark and Java print goes to
`spark.log` in the pipeline's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.cli import demo_worker
from apressure.cli.demo_worker import LifeLine
from apressure.cli.exits import message_of, one_line
from apressure.exceptions import PressureError
from apressure.spark import pipeline
from apressure.spark.progress import Progress

INTERVAL = 0.2
"""Seconds between two reports."""


@dataclasses.dataclass(frozen=True)
class Orders(demo_worker.Orders):
    """What a worker is told.

    Attributes:
        folder: The pipeline's folder.
        bound: How many rows the queue takes.
    """

    folder: str = ""
    bound: int = 0


async def feed(orders: Orders, lifeline: LifeLine) -> dict[str, Any]:
    """Put what has not been put yet."""
    async with AsyncQueue(orders.queue, url=orders.url, prefix=orders.prefix, codec="json") as queue:
        with lifeline.cancels(asyncio.current_task()):
            return {"rows": await pipeline.feed(queue, pipeline.flights(orders.rows))}


def compute(orders: Orders, told: int) -> dict[str, Any]:
    """Run the query until the queue is closed and empty, and draw the chart."""
    folder = Path(orders.folder)
    files = folder / "delays"
    where: dict[str, Any] = {"url": orders.url, "queue": orders.queue, "prefix": orders.prefix}
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # what a driver that was killed has left
    configuration = {**pipeline.SESSION, "spark.local.dir": str(scratch)}
    # A task whose Python worker dies is tried again.
    spark = pressure.session("apressure pipeline", "local[*,4]", configuration)
    stream = pipeline.read(spark, maxRowsPerBatch=max(orders.bound, 1000), **where)
    query = pipeline.write(pipeline.delays(stream), files, folder / "checkpoint")
    with _telling(told, Progress(query, pipeline.GROUP, **where)):
        pressure.await_end(query, **where)
    pipeline.sweep(spark, files)
    delays = pipeline.table(files)
    pipeline.chart(delays, folder / "delays.png")
    spark.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    by_carrier = delays.assign(minutes=delays["mean_delay"] * delays["departed"]).groupby("carrier").sum(True)
    return {
        "rows": int(delays["flights"].sum()),
        "windows": len(delays),
        "doubled": int(delays.duplicated(["start", "carrier"]).sum()),
        "batches": sum(one.name.isdigit() for one in (folder / "checkpoint" / "commits").iterdir()),
        "carriers": [
            {
                "carrier": carrier,
                "flights": int(row.flights),
                "departed": int(row.departed),
                "mean_delay": round(row.minutes / row.departed, 2) if row.departed else None,
            }
            for carrier, row in by_carrier.iterrows()
        ],
    }


@contextlib.contextmanager
def _telling(told: int, progress: Progress) -> Iterator[None]:
    """Report, from a thread, how far the query is."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(INTERVAL):
            with contextlib.suppress(PressureError):  # the query knows better what to do then
                _write(told, report="progress", **progress.look())

    thread = threading.Thread(target=tell, name="apressure-pipeline-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _write(descriptor: int, **report: Any) -> None:
    rest = json.dumps({"waited": 0.0, **report}).encode() + b"\n"
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _spark(orders: Orders, lifeline: LifeLine, told: int) -> dict[str, Any]:
    """Be the driver. Told to stop it is gone at once: it could be killed at any time, too, and Java goes with it."""
    log = Path(orders.folder) / "spark.log"
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with lifeline.calls(lambda: os._exit(1)):
        return compute(orders, told)


def main() -> int:
    """Be a worker, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business; it tells us
    lifeline = LifeLine()
    orders = lifeline.read_orders(Orders)
    if orders is None:
        return 0
    told, complaints = os.dup(1), os.dup(2)
    try:
        done = asyncio.run(feed(orders, lifeline)) if orders.role == "feeder" else _spark(orders, lifeline, told)
    except asyncio.CancelledError:
        return 1
    except Exception as error:  # noqa: BLE001 - Spark's have no common base; the log has its traceback
        traceback.print_exc()
        sys.stderr.flush()
        rest = "" if orders.role == "feeder" else f" ({Path(orders.folder) / 'spark.log'} has the rest)"
        os.write(complaints, f"{type(error).__name__}: {_why(error)}{rest}\n".encode())
        os._exit(1)  # Java, and its threads, have nothing to tell any more
    _write(told, report="done", **done)
    return 0


def _why(error: Exception) -> str:
    """The line of an error that says most: what Python said in Spark's processes, or else what Java began with."""
    lines = [line.strip() for line in [*str(error).splitlines(), *getattr(error, "_stackTrace", "").splitlines()]]
    python = [line for line in lines if line.startswith(("apressure.", "pyspark.errors."))]
    java = [line for line in lines if line.startswith("Caused by: ")]
    return one_line((python or java or [message_of(error)])[-1])[:500]


if __name__ == "__main__":
    sys.exit(main())
