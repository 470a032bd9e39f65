"""`apressure metrics`: an exporter of queues' metrics for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from typing import Annotated, Any

import typer

from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import Common, Pattern, option
from apressure.cli.show import answer, print_json
from apressure.monitor.recorder import Recorder
from apressure.monitor.search import QueuePattern
from apressure.telemetry import Metrics, Scaling


async def metrics(
    common: Common,
    queues: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE", help="The queues, such as orders, events:clicks or files:spool/orders."),
    ],
    pattern: Pattern = False,
    port: Annotated[int, option("port", "Where to listen; 0 for a free port.", min=0, max=65535)] = 9100,
    host: Annotated[str, option("host", "The address. 0.0.0.0 opens it to other machines.", "ADDRESS")] = "127.0.0.1",
    interval: Annotated[float, option("interval", "Time between two looks.", "SECONDS", min=0.05, max=3600)] = 5.0,
    target: Annotated[
        float, option("target", "Wanted workers: enough to finish the work in this time.", "SECONDS", min=0.05, max=1e6)
    ] = 60.0,
    worker_concurrency: Annotated[
        int | None,
        option(
            "worker-concurrency", "Wanted workers: how many items one handles at a time.", "N", "as they report", min=1
        ),
    ] = None,
    min_workers: Annotated[int, option("min-workers", "Wanted workers: the fewest.", "N", min=0)] = 1,
    max_workers: Annotated[
        int | None, option("max-workers", "Wanted workers: the most.", "N", "no limit", min=1)
    ] = None,
    once: Annotated[bool, option("once", "Print the metrics once, and end.")] = False,
) -> None:
    """Serve the metrics of queues to Prometheus, at /metrics, until Ctrl-C. /healthz says whether it runs.

    /scale/QUEUE says how many worker processes a queue needs, as JSON for autoscalers such as KEDA.
    While a server cannot be reached, apressure_up is 0 for its queues. With --once, the exit code is 7 in that case.
    With --pattern, new queues are found every 30 s.
    """
    if max_workers is not None and max_workers < min_workers:
        raise UsageError("--max-workers must not be less than --min-workers")
    scaling = Scaling(
        target=target, worker_concurrency=worker_concurrency, min_workers=min_workers, max_workers=max_workers
    )
    async with contextlib.AsyncExitStack() as stack:
        shown = Metrics(interval=interval, port=None if once else port, host=host, local=False, scaling=scaling)
        recorder = Recorder(shown.reader, writes=not once)
        finder = await stack.enter_async_context(common.finder())
        for queue in queues:
            monitored: Any = QueuePattern(queue, recorder, finder) if pattern else finder.open(common.read(queue))
            stack.push_async_callback(monitored.aclose)
            recorder.add(monitored)
            if once and pattern:
                await monitored.search()
        if once:
            await _print(shown, common)
            return
        stack.push_async_callback(recorder.aclose)
        await stack.enter_async_context(shown)
        if common.json or not sys.stderr.isatty():  # otherwise the log says so
            url = f"http://{f'[{host}]' if ':' in host else host}:{shown.port}/metrics"
            answer({"url": url}, f"metrics are at {url}", as_json=common.json)
        await asyncio.Event().wait()


async def _print(shown: Metrics, common: Common) -> None:
    """Print the metrics once."""
    await shown.sample()
    readings = shown.readings()
    if common.json:
        print_json(
            [
                {
                    "name": f"apressure_{each.family.name}",
                    "labels": dict(zip(each.family.labels, each.labels, strict=True)),
                    "value": each.value if math.isfinite(each.value) else None,
                }
                for each in readings
            ]
        )
    else:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(shown.collector())
        sys.stdout.write(generate_latest(registry).decode())
    if any(each.family.name == "up" and not each.value for each in readings):
        raise typer.Exit(int(Exit.SERVER))
