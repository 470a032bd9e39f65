"""Tests of the shop, on a private server."""

import asyncio
from pathlib import Path

import pytest
import worker
from shop import Order, accept, invoices

from apressure import Backoff, serve


def test_orders_become_invoices_and_a_wrong_one_a_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FOLDER", tmp_path)

    async def story() -> None:
        async with invoices("embedded://") as queue:
            await queue.create(bound=2)
            assert await accept(queue, Order(1, 1250)) == 202
            assert await accept(queue, Order(2, -1)) == 202
            assert await accept(queue, Order(3, 100), patience=0) == 503  # the queue is full
            await queue.close()
            await serve(worker.make_invoice, queue, retry=Backoff(0.01))
            assert [letter.error.message for letter in await queue.dead_letters()] == ["order 2 has no amount"]

    asyncio.run(story())
    assert [path.name for path in tmp_path.iterdir()] == ["1.txt"]
