"""The demo: a feeder process puts flights, this process receives them and sums up delays, and a proof follows."""

from __future__ import annotations

import secrets
from typing import Any

from apressure import AsyncQueue
from apressure.demo import flights
from apressure.demo.flow import beside, run_process, serving
from apressure.demo.screen import Screen, print_report


async def run_demo(rows: int, bound: int, screen: Screen, url: str | None, prefix: str | None) -> dict[str, Any]:
    """Run feeder and consumer to the end and return the result. Cancelled, it leaves nothing running either.

    Without a URL it starts an embedded server.

    Raises:
        MissingExtraError: The data package is not installed.
        ChildProcessError: The feeder ended before its work was done.
        PressureError: As for the operations of a queue.
    """
    name = f"apressure-demo-{secrets.token_hex(4)}"
    pick, file, in_order, found = flights.columns("carrier", "dep_delay"), flights.lines(rows), True, []
    async with serving(url) as (address, server):
        orders = {"url": address, "prefix": prefix, "queue": name, "rows": rows, "codec": "text"}
        async with AsyncQueue[str](name, url=address, prefix=prefix, codec="text") as queue:
            await queue.create(bound)
            try:
                async with (
                    beside(run_process("feeder", "apressure.demo.feeder", orders)),
                    screen.watching(queue, rows),
                    queue.consumer(prefetch=100) as consumer,  # not all that the queue holds: it would look empty
                ):
                    async for row in consumer:
                        in_order = in_order and row == next(file, None)
                        carrier, text = pick(row.split(","))
                        delay = flights.minutes(text)
                        found.append((carrier, 1, int(delay is not None), delay or 0))
                sent = (await queue.statistics()).produced_messages
            finally:
                if server is None or server.running:
                    await queue.delete(timeout=0)
    counts = {"rows_sent": sent, "rows_received": len(found), "in_order": in_order}
    proven = in_order and sent == len(found) == rows
    return {**counts, "proven": proven, **screen.figures, "carriers": flights.by_carrier(found)}


def report(result: dict[str, Any]) -> None:
    """Print the result for a person: the delays by carrier, the rates, and the proof."""
    order = "each as it is in the file, and in its order" if result["in_order"] else "not as they are in the file"
    print_report(result, "proven", f"{{rows_sent:,}} rows sent, {{rows_received:,}} rows received, {order}")
