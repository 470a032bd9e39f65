"""How a cancelled task learns what became of its operation before it raises.

The outcome is a plain future that the reader of the connection resolves. The task keeps waiting for it inside a
shield (a bare loop would spin under anyio, which delivers a cancellation again and again), survives further
cancellations, and then raises the original one: a fresh CancelledError would escape `move_on_after`.
"""

from __future__ import annotations

import asyncio
from typing import Any


async def settled(future: asyncio.Future[Any], timeout: float) -> bool:
    """Wait for a future whatever is cancelled meanwhile.

    Args:
        future: It is not cancelled by this.
        timeout: Seconds after which the outcome stays unknown, so that a frozen server cannot hold a task for ever.

    Returns:
        Whether the future is done.
    """
    from anyio import CancelScope  # here, since it loads anyio's backend, which only a cancellation needs

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    with CancelScope(shield=True):
        while not future.done():
            remaining = deadline - loop.time()
            if remaining <= 0:
                return False
            try:
                await asyncio.wait((future,), timeout=remaining)
            except asyncio.CancelledError:
                continue
    return True


async def answered(future: asyncio.Future[Any], patience: float | None, settle_timeout: float) -> bool:
    """Wait for an answer for up to `patience` seconds; None waits for as long as retries go on.

    A cancellation waits for it too, for up to `settle_timeout` seconds, before it comes out.

    Returns:
        Whether the answer is there.
    """
    try:
        await asyncio.wait((future,), timeout=patience)
    except asyncio.CancelledError:
        await settled(future, settle_timeout if patience is None else min(patience, settle_timeout))
        raise
    return future.done()


def resolve(future: asyncio.Future[Any], value: Any) -> None:
    """Give a future its value, unless whoever waited has gone."""
    if not future.done():
        future.set_result(value)
