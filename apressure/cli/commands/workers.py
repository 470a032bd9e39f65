"""`apressure workers`: what works on queues, what it does, and how it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from apressure.cli import exits
from apressure.cli.asking import must_exist
from apressure.cli.options import Addresses, Common, Pattern, complain
from apressure.cli.show import answer, print_json, print_rows, printable
from apressure.core.workers import WorkerStatistics
from apressure.exceptions import QueueDoesNotExistError, ServerError
from apressure.monitor.telling import as_data
from apressure.queue_addresses import QueueAddress

WorkerId = Annotated[
    str, typer.Argument(metavar="ID", help="The worker, as `workers ls` shows it.", show_default=False)
]

_PATIENCE: Final = 10.0
"""Seconds to wait for a stack: twice the time within which a worker tells it."""
_AGAIN: Final = 0.25
"""Seconds from one look for it to the next."""

_UNSEEN: Final = "it runs in a process of its own, where its stack cannot be seen"

_COLUMNS = ("queue", "id", "kind", "handler", "in hand", "handled", "failed", "busy", "oldest", "seen", "state")


async def ls(common: Common, queues: Addresses = None, pattern: Pattern = False) -> None:
    """List what works on queues: services, Runners, consumers and Spark queries, as they told a few seconds ago.

    The columns are the queue, the id, the kind, the handler, how many items it has in hand of how many at a time, how
    many it has handled, how many attempts have failed, how much of its handlers' time was used, for how long the
    longest handler runs, how long ago it told this, and whether it drains.
    """
    found: list[tuple[QueueAddress, WorkerStatistics]] = []

    async def ask(address: QueueAddress, queue: Any) -> None:
        workers = (await queue.statistics()).workers
        if not workers and queues and not pattern:
            await must_exist(queue)
        found.extend((address, worker) for worker in workers)

    damaged = await _ask_each(common, queues or [], ask, pattern=pattern)
    if common.json:
        print_json([{"queue": str(address), **as_data(worker)} for address, worker in found])
    else:
        now = datetime.now(UTC)
        print_rows(_COLUMNS, [_cells(address, worker, now) for address, worker in found], whole=("id",))
    if damaged:
        raise typer.Exit(int(exits.Exit.ERROR))


async def stack(common: Common, worker: WorkerId, queues: Addresses = None, pattern: Pattern = False) -> None:
    """Show where the longest of a worker's handlers is: files, lines and functions, and no values.

    The worker learns that within five seconds. One whose event loop is blocked does not.
    """
    found: list[tuple[QueueAddress, WorkerStatistics]] = []
    asked = 0

    async def ask(address: QueueAddress, queue: Any) -> None:
        nonlocal asked
        if told := await queue.show_stack(worker):
            asked += told
            found.extend((address, one) for one in await _shown(queue, worker, told))

    await _ask_each(common, queues or [], ask, pattern=pattern)
    if not asked:
        raise exits.NoWorkerError(f"nothing with the id {worker!r} works there that can tell its stack")
    if not found:
        raise exits.NoWorkerError(
            f"the worker {worker!r} told no stack within {_PATIENCE:g} s: it has ended, or its event loop is blocked. "
            "Look at its log: with max_hold=, the stack of a handler that blocks is there"
        )
    if common.json:
        print_json([{"queue": str(address), **as_data(one)} for address, one in found])
        return
    for address, one in found:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in _stack_lines(address, one)))


async def _shown(queue: Any, worker: str, told: int) -> list[WorkerStatistics]:
    """Wait until so many registrations of a worker tell their stacks; returns those that do."""
    until = time.monotonic() + _PATIENCE
    while True:
        workers: Iterable[WorkerStatistics] = (await queue.statistics()).workers
        found = [one for one in workers if one.id == worker and one.stack is not None]
        if len(found) >= told or time.monotonic() >= until:
            return found
        await asyncio.sleep(_AGAIN)


def _stack_lines(address: QueueAddress, worker: WorkerStatistics) -> Iterator[str]:
    handler = worker.handler or worker.kind
    if worker.oldest is None:
        yield f"{address}: no {handler} runs"
        return
    yield f"{address}: {handler} has run for {worker.oldest:.1f} s"
    yield from (f"  {frame}" for frame in worker.stack or (_UNSEEN,))


async def drain(
    common: Common,
    worker: WorkerId,
    queues: Addresses = None,
    pattern: Pattern = False,
) -> None:
    """Have a worker end as after its first SIGTERM: it receives no more, and finishes what it has in hand.

    It learns that within five seconds. A process of `apressure worker` ends, and is not started again.
    """
    told = 0

    async def ask(_: QueueAddress, queue: Any) -> None:
        nonlocal told
        told += await queue.drain(worker)

    await _ask_each(common, queues or [], ask, pattern=pattern)
    if not told:
        raise exits.NoWorkerError(f"nothing with the id {worker!r} works there that can be drained")
    text = f"{worker}: {told} service{'s' * (told != 1)} told to drain"
    answer({"worker": worker, "told": told}, text, as_json=common.json)


async def _ask_each(
    common: Common, queues: list[str], ask: Callable[[QueueAddress, Any], Awaitable[None]], *, pattern: bool
) -> bool:
    """Ask the queues that are named, or all that match. Of those, a damaged one is told, and passed over.

    Returns:
        Whether there was one.
    """
    damaged = False
    async with common.finder() as finder:
        for address in () if pattern else map(common.read, queues):
            async with finder.open(address) as queue:
                await ask(address, queue)
        for asked in queues if pattern else () if queues else ["*"]:
            for address in await finder.find(asked):
                try:
                    async with finder.open(address) as queue:
                        await ask(address, queue)
                except QueueDoesNotExistError:
                    pass  # it has been deleted meanwhile
                except (ServerError, ValueError) as error:
                    if not finder.may_be_hidden(error, address, asked):
                        complain(f"apressure: {printable(str(address))}: {exits.message_of(error)}")
                        damaged = True
    return damaged


def _cells(address: QueueAddress, worker: WorkerStatistics, now: datetime) -> tuple[str, ...]:
    lived = (worker.seen - worker.since).total_seconds() * max(1, worker.concurrency)
    busy = "-" if worker.kind == "consumer" or lived <= 0 else f"{min(1.0, worker.busy / lived):.0%}"
    at_most = f" of {worker.concurrency}" if worker.concurrency else ""
    return (
        printable(str(address)), printable(worker.id), worker.kind, printable(worker.handler) or "-",
        f"{worker.in_hand}{at_most}", str(worker.handled), str(worker.failed), busy,
        "-" if worker.oldest is None else f"{worker.oldest:.1f} s",
        f"{max(0.0, (now - worker.seen).total_seconds()):.0f} s ago", "draining" if worker.draining else "works",
    )  # fmt: skip
