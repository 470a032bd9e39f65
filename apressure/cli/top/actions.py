"""What `apressure top` changes. Each change says what it would do, then what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from apressure.cli.commands import dead
from apressure.core.workers import WorkerStatistics
from apressure.monitor.finding import Finder
from apressure.monitor.monitor import Seen

_TIMEOUT: Final = 10.0
"""Seconds for which dead letters wait for room in their queue."""


class Change(NamedTuple):
    """Something to confirm, and to do.

    Attributes:
        question: What it would do.
        do: Does it, and returns what it did. None: there is nothing to do, and the question says so.
    """

    question: str
    do: Callable[[], Awaitable[str]] | None


async def pause(seen: Seen) -> Change:
    """Pause a queue, or resume it."""
    address, queue = seen.address, seen.queue
    if await queue.paused():

        async def resume() -> str:
            return f"resumed {address}" if await queue.resume() else f"{address} is not paused"

        return Change(f"Resume {address}? Its consumers go on.", resume)

    async def do() -> str:
        return f"paused {address}" if await queue.pause() else f"{address} is paused already"

    return Change(f"Pause {address}? Its consumers get nothing until it is resumed. Items can still be put.", do)


async def requeue(seen: Seen, finder: Finder) -> Change:
    """Move the dead letters of a queue back."""
    address = dead.origin_of(seen.address)
    async with finder.open(address) as queue:
        found = await dead.count(finder, queue, address)
    if not found:
        return Change(f"{address} has no dead letters", None)

    async def do() -> str:
        async with finder.open(address) as queue:
            moved = await queue.requeue(max_items=found, timeout=_TIMEOUT)
        return f"requeued {moved:,} in {address}"

    what = "the dead letter" if found == 1 else f"all {found:,} dead letters"
    return Change(f"Move {what} of {address} back to the end of the queue? Attempts start anew.", do)


async def drain(seen: Seen, worker: WorkerStatistics) -> Change:
    """Have a worker finish what it has in hand, and end."""

    async def do() -> str:
        await seen.queue.drain(worker.id)
        return f"asked the worker {worker.id} to drain"

    where = f"{worker.handler or worker.kind}, process {worker.pid} on {worker.host}"
    if worker.draining:
        return Change(f"the worker {worker.id} drains already", None)
    return Change(
        f"Drain the worker {worker.id} ({where})? It receives no more, and ends when its {worker.in_hand:,} items in "
        "hand are settled.",
        do,
    )


async def stack(seen: Seen, worker: WorkerStatistics) -> Change:
    """Ask a worker where the longest of its handlers is."""

    async def do() -> str:
        told = await seen.queue.show_stack(worker.id)
        return f"asked the worker {worker.id} for its stack" if told else f"the worker {worker.id} cannot tell it"

    return Change(f"Ask the worker {worker.id} where the longest of its handlers is? It tells that within 5 s.", do)


def can_drain(seen: Seen) -> bool:
    """Whether the workers of a queue can be told to drain."""
    return hasattr(seen.queue, "drain")
