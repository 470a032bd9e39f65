"""`apressure workers`: what works on queues, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from apressure.cli import exits
from apressure.cli.asking import must_exist
from apressure.cli.options import Addresses, Common, Pattern, complain
from apressure.cli.show import answer, print_json, print_rows, printable
from apressure.core.workers import WorkerStatistics
from apressure.exceptions import QueueDoesNotExistError, ServerError
from apressure.monitor.telling import as_data
from apressure.queue_addresses import QueueAddress

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


async def drain(
    common: Common,
    worker: Annotated[
        str, typer.Argument(metavar="ID", help="The worker, as `workers ls` shows it.", show_default=False)
    ],
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
