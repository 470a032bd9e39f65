"""The demo: a feeder process puts flights, a consumer process receives them and sums up delays, and a proof follows.

`feeder` and `consumer` run in processes of their own. The rest puts a server, a queue and a screen around them, and
leaves nothing of it behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from apressure import AsyncQueue
from apressure.demo import flights
from apressure.demo.flow import Server, run_flow, serving
from apressure.demo.screen import Screen, print_report
from apressure.demo.worker import Worker
from apressure.exceptions import PressureError, QueueDoesNotExistError
from apressure.pressure.statistics import QueueStatistics

_CLEANING: Final = 6.0
"""Seconds that deleting the queue may take."""
_PREFETCH: Final = 100
"""Rows that the consumer receives ahead. By default it takes all that the queue holds, and the queue looks empty."""


def _queue(orders: dict[str, Any]) -> AsyncQueue[bytes]:
    return AsyncQueue(orders["queue"], url=orders["url"], prefix=orders["prefix"])


async def feeder(orders: dict[str, Any], _: object) -> dict[str, Any]:
    """Put every row, in order, and close the queue."""
    proof, began = flights.StreamProof(), time.monotonic()

    def messages() -> Iterator[bytes]:
        for message in flights.numbered(flights.lines(orders["rows"])):
            proof.add(message)
            yield message

    async with _queue(orders) as queue, queue.producer() as producer:
        await producer.put_many(messages())
    return {"began": began, "rows_sent": proof.rows, "sha256_sent": proof.sha256}


async def consumer(orders: dict[str, Any], _: object) -> dict[str, Any]:
    """Receive every row, check that none is missing, and sum up the delays. Cancelled, delete the queue."""
    proof, delays = flights.StreamProof(), flights.Delays(flights.header())
    try:
        async with _queue(orders) as queue, queue.consumer(prefetch=_PREFETCH) as items:
            async for item in items:
                delays.add(proof.add(item))
    except asyncio.CancelledError:
        with contextlib.suppress(PressureError):  # the parent deletes it, too, unless it was killed
            async with _queue(orders) as queue:
                await queue.delete(timeout=1.5)
        raise
    return {
        "ended": time.monotonic(),
        "rows_received": proof.rows,
        "sha256_received": proof.sha256,
        "in_order": proof.out_of_order == 0,
        "first_error": proof.first_error,
        "carriers": delays.table(flights.airlines()),
    }


async def run_demo(rows: int, bound: int, screen: Screen, url: str | None, prefix: str | None) -> dict[str, Any]:
    """Run feeder and consumer to the end and return the result. Cancelled, it leaves nothing running either.

    Without a URL it starts an embedded server.

    Raises:
        MissingExtraError: The data package is not installed.
        WorkerDiedError: A process ended before its work was done.
        PressureError: As for the operations of a queue.
    """
    flights.data_directory()  # before anything starts
    name = f"apressure-demo-{secrets.token_hex(4)}"

    def progress(now: QueueStatistics) -> tuple[int | None, str]:
        received = now.consumed_messages if now.produced_messages else None
        return received, f"{now.in_flight:,} in flight"

    async with (
        serving(url or "embedded://") as server,
        AsyncQueue[bytes](name, url=server.url, prefix=prefix, settle_timeout=1.0) as queue,
        _created(queue, bound, server),
    ):
        orders = {"url": server.url, "prefix": prefix, "queue": name, "rows": rows}
        putting, receiving = (Worker("apressure.demo.run", role, orders) for role in ("feeder", "consumer"))
        seen = await run_flow(server, queue, putting, receiving, rows, screen, progress)
    result = {**putting.result, **receiving.result, **seen}
    seconds = max(result.pop("ended") - result.pop("began"), 1e-6)
    same = result["sha256_sent"] == result["sha256_received"]
    return {
        **result,
        "proven": result["rows_sent"] == result["rows_received"] == rows and result["in_order"] and same,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds),
    }


@contextlib.asynccontextmanager
async def _created(queue: AsyncQueue[bytes], bound: int, server: Server) -> AsyncIterator[None]:
    """Create the queue, and delete it at the end."""
    try:
        await queue.create(bound)
        yield
    finally:
        own = server.embedded  # takes its queues with it, unless it keeps its data
        if own is None or (own.directory is not None and own.running):
            try:
                async with asyncio.timeout(_CLEANING):
                    await queue.delete(timeout=_CLEANING / 2)
            except QueueDoesNotExistError:
                pass
            except (PressureError, TimeoutError) as error:
                logging.getLogger("apressure.demo").warning("cannot delete the demo's queue %s: %s", queue.name, error)


def report(result: dict[str, Any]) -> None:
    """Print the result for a person: the table of delays in minutes, the rates, and the proof."""
    columns = {
        "Carrier\n": "name",
        "Flights\n": "flights",
        "Cancelled\n": "cancelled",
        "Dep.\nmean": "departure_delay_mean",
        "\nmedian": "departure_delay_median",
        "Arr.\nmean": "arrival_delay_mean",
        "\nmedian ": "arrival_delay_median",
        "% over\n15 min": "late_percent",
    }
    sent, received = result["rows_sent"], result["rows_received"]
    hashes = dict.fromkeys((result["sha256_sent"], result["sha256_received"]))  # two only if they differ
    same = "the same" if len(hashes) == 1 else "not the same"
    proof = (
        (sent == received, f"{sent:,} rows sent, {received:,} rows received"),
        (result["in_order"], result["first_error"] or "every sequence number in its place"),
        (len(hashes) == 1, "\n   ".join((f"{same} SHA-256 over all rows on both sides", *hashes))),
    )
    print_report(result, "Delays of flights from New York City in 2013, in minutes", columns, proof)
