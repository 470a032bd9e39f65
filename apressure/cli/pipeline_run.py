"""A run of the pipeline: a server, a queue, a feeder and Spark, and somebody who looks on.

Nothing here has to be told whether it is the first run: the folder, the queue and Spark's checkpoint know.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any, Final

from apressure import AsyncQueue, nycflights
from apressure.cli import demo_screen, pipeline_screen
from apressure.cli.demo_crew import Worker
from apressure.cli.demo_run import Server, all_of, serving
from apressure.cli.options import Common
from apressure.cli.pipeline_folder import Folder
from apressure.cli.pipeline_worker import Orders
from apressure.exceptions import QueueDoesNotExistError
from apressure.spark import pipeline

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the queue."""
_MODULE: Final = "apressure.cli.pipeline_worker"


async def run_pipeline(
    common: Common, folder: Folder, screen: demo_screen.Screen[pipeline_screen.Picture]
) -> dict[str, Any]:
    """Run feeder and Spark to the end, from wherever they were, and return the result; nothing is left running.

    Killed or cancelled at any time, it may be run again with the same folder and server.

    Raises:
        QueueDoesNotExistError: The server has lost the run's queue, or it is another server.
        WorkerDiedError: A process ended before its work was done.
        PressureError: As for the operations of a queue.
    """
    nycflights.data_directory("pipeline")
    run = folder.run
    if run.result is None or not run.deleted:
        default = f"embedded://{folder.path / 'server'}"
        async with (
            serving(common, default, pipeline.SERVER) as server,
            AsyncQueue(run.queue, url=server.url, prefix=common.prefix) as queue,
        ):
            if run.result is None:
                await _create(queue, folder)
                run.result = await _work(common, server, queue, folder, screen)
                folder.save()
            # Not before the result is safe: without its queue the run would begin again.
            where = {"url": server.url, "queue": run.queue, "prefix": common.prefix}
            await asyncio.to_thread(lambda: pipeline.forget(**where))
            if await queue.exists():
                await queue.delete()
            run.deleted = True
            folder.save()
    assert run.result is not None
    return run.result


async def _create(queue: AsyncQueue[bytes], folder: Folder) -> None:
    run = folder.run
    run.runs += 1
    if not run.created:
        await queue.create(run.bound, exist_ok=True)
        run.created = True
    elif not await queue.exists():
        raise QueueDoesNotExistError(
            f"the queue {run.queue!r} of the pipeline in {folder.path} is not on this server: use the server and the "
            "prefix that it began with, or another folder to begin again",
            name=run.queue,
        )
    folder.save()


async def _work(
    common: Common,
    server: Server,
    queue: AsyncQueue[bytes],
    folder: Folder,
    screen: demo_screen.Screen[pipeline_screen.Picture],
) -> dict[str, Any]:
    run = folder.run
    orders = Orders("feeder", server.url, common.prefix, run.queue, run.rows, str(folder.path), run.bound)
    feeder = Worker(orders, _MODULE)
    spark = Worker(dataclasses.replace(orders, role="spark"), _MODULE)
    watch = Watch(server, queue, feeder, spark, run.rows, run.bound, screen)
    with screen:
        screen.show(pipeline_screen.Picture(run.rows, run.bound))
        async with spark, feeder:
            await all_of(feeder.follow(), spark.follow(), watch.keep_looking(), watch.check_the_server())
    assert spark.result is not None  # follow() has seen to it
    return {**watch.result(), **_result(spark.result, folder), "server": server.description}


def _result(spark: dict[str, Any], folder: Folder) -> dict[str, Any]:
    return {
        "rows_out": spark["rows"],
        **{name: spark[name] for name in ("windows", "doubled", "batches", "carriers")},
        "exact": spark["rows"] == folder.run.rows and not spark["doubled"],
        "runs": folder.run.runs,
        "files": str(folder.path / "delays"),
        "chart": str(folder.path / "delays.png"),
    }


class Watch:
    """Looks at the queue and at Spark, and shows what it sees."""

    def __init__(
        self,
        server: Server,
        queue: AsyncQueue[bytes],
        feeder: Worker,
        spark: Worker,
        rows: int,
        bound: int,
        screen: demo_screen.Screen[pipeline_screen.Picture],
    ) -> None:
        self._server = server
        self._queue = queue
        self._feeder = feeder
        self._spark = spark
        self._rows = rows
        self._bound = bound
        self._screen = screen
        self._began = time.monotonic()
        self._full = pipeline_screen.Full(bound)
        self._rates = demo_screen.Rate(), demo_screen.Rate()
        self._fed = self._done = 0
        self._before: int | None = None

    async def keep_looking(self) -> None:
        """Look until Spark is done."""
        while self._spark.result is None:
            await self._look()
            await asyncio.sleep(_LOOK_EVERY)
        await self._look()

    async def check_the_server(self) -> None:
        """Look after our own server, beside the operations that may be waiting for it."""
        while self._spark.result is None:
            self._server.check()
            await asyncio.sleep(_LOOK_EVERY)

    def result(self) -> dict[str, Any]:
        """What the queue has seen."""
        seconds = time.monotonic() - self._began
        return {
            "rows_in": self._fed,
            "seconds": round(seconds, 3),
            "rows_per_second": round((self._rows - (self._before or 0)) / seconds),
            "bound": self._bound,
            "peak_depth": self._full.peak,
            "queue_full_seconds": round(self._full.seconds, 3),
        }

    async def _look(self) -> None:
        now = await self._queue.statistics()
        report = self._spark.latest
        # (The mark of the end is a message, and no row.)
        self._fed = min(now.produced_messages, self._rows)
        self._done = max(self._done, min(report.get("rows", 0), self._rows))
        if self._before is None and report:
            self._before = self._done
        full = self._full.of(now.length)
        self._screen.show(
            pipeline_screen.Picture(
                total=self._rows,
                bound=self._bound,
                fed=self._fed,
                done=self._done,
                fed_rate=self._rates[0].of(self._fed),
                done_rate=self._rates[1].of(self._done),
                depth=now.length,
                batch=report.get("batch"),
                batch_seconds=report.get("seconds", 0.0),
                watermark=report.get("watermark"),
                feeder="is done" if now.closed else "waits: the queue is full" if full else "works",
                spark=self._does(report, now.closed and not now.length),
            )
        )

    def _does(self, report: dict[str, Any], drained: bool) -> str:
        if self._spark.result is not None:
            return "is done"
        if not report:
            return "starts"
        return "finishes" if drained else "works"
