"""A worker: it makes invoices of orders. Start as many as you like."""

import asyncio
from pathlib import Path

from shop import Order, invoices

from apressure import Backoff, serve

FOLDER = Path("made")


async def make_invoice(order: Order) -> None:
    """Write an invoice. An order that comes twice writes the same file again."""
    if order.cents < 0:
        raise ValueError(f"order {order.number} has no amount")
    await asyncio.sleep(0.02)  # some work
    (FOLDER / f"{order.number}.txt").write_text(f"{order.cents / 100:.2f}\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    service = serve(make_invoice, invoices(), concurrency=4, lease=5, retry=Backoff(0.1), shutdown_timeout=20)
    print(asyncio.run(service))


if __name__ == "__main__":
    main()
