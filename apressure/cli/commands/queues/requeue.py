"""`apressure requeue`: moves dead letters back to their queue."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Final

import typer

from apressure import AsyncQueue
from apressure.cli.commands.queues.dead import Source
from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import Common, Most, Name, Progress, Timeout, complain
from apressure.cli.running import Remains, execute
from apressure.cli.show import answer, printable
from apressure.cli.streams.meter import Meter
from apressure.exceptions import PressureError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from apressure.pressure.engine.dead_letters import SUFFIX

_CHUNK: Final = 1000
"""How many dead letters are moved between two updates of the progress."""


def requeue(
    common: Common,
    name: Name,
    source: Source = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Move the dead letter that `apressure dead` shows with this id.",
            show_default="all",
        ),
    ] = None,
    most: Most = None,
    timeout: Timeout = None,
    progress: Progress = None,
) -> None:
    """Move dead letters back to the end of their queue, the oldest first.

    The command moves the dead letters that exist when it starts, and waits while the queue is full. However it ends,
    each dead letter is in one of the two queues. If no dead letter has one of the ids, the others are moved, and the
    exit code is 1.
    """
    dead_letters = name + SUFFIX if source is None else source
    meter = Meter(f"requeue {name}", shown=os.isatty(2) if progress is None else progress)

    async def command() -> None:
        if ids and most is not None:
            raise UsageError("give either --id or --max, not both")
        not_found: tuple[str, ...] = ()
        with meter:
            async with common.queue(name) as queue:
                left = await _dead_letters(queue, dead_letters, source)
                if ids:
                    not_found = await _requeue_chosen(queue, dead_letters, ids, timeout, meter)
                else:
                    left = left if most is None else min(most, left)
                    meter.expect(left)
                    await _requeue(queue, dead_letters, left, timeout, meter)
        done = {"name": name, "from": dead_letters, "requeued": meter.messages}
        text = f"requeued {meter.messages} from {dead_letters} to {name}"
        report(common, name, done, text, not_found if ids else None)

    def remains() -> Remains | None:
        if not meter.messages:
            return None
        return Remains(f"{meter.messages} items were requeued before", {"requeued": meter.messages})

    execute(common, command(), remains=remains)


def report(common: Common, name: str, done: Mapping[str, object], text: str, not_found: Collection[str] | None) -> None:
    """Print what has been moved, and the ids that no dead letter has; with some, the exit code is 1.

    `not_found` is None where no ids were given.
    """
    answer(done if not_found is None else {**done, "not_found": list(not_found)}, text, as_json=common.json)
    for missing in not_found or ():
        complain(f"apressure: no dead letter of {printable(name)} has the id {printable(missing)!r}")
    if not_found:
        raise typer.Exit(int(Exit.ERROR))


async def _dead_letters(queue: AsyncQueue[bytes], dead_letters: str, source: str | None) -> int:
    """Return how many dead letters there are. The queue must exist if --from (`source`) names it."""
    try:
        return await AsyncQueue(dead_letters, client=queue.client).qsize()
    except QueueDoesNotExistError:
        if source is not None:
            raise
        name = queue.name.removesuffix(SUFFIX)
        if name and name != queue.name:
            raise UsageError(
                f"{queue.name} is a dead-letter queue: give the name of the queue that its items go back to, "
                f"`apressure requeue {name}`, or any other one, `apressure requeue NAME --from {queue.name}`"
            ) from None
        return 0


async def _requeue_chosen(
    queue: AsyncQueue[bytes], dead_letters: str, ids: list[str], timeout: float | None, meter: Meter
) -> tuple[str, ...]:
    """Move the dead letters with these ids. Returns the ids that none has."""
    meter.expect(len(ids))
    try:
        moved = await queue.requeue(timeout=timeout, source=dead_letters, ids=ids)
    except PressureError as error:
        meter.add(error.accepted, 0)
        raise
    meter.add(moved, 0)
    return moved.not_found


async def _requeue(queue: AsyncQueue[bytes], dead_letters: str, left: int, timeout: float | None, meter: Meter) -> None:
    """Move `left` dead letters: as many as there is room for, then one as soon as there is room."""
    while True:
        try:
            try:
                moved: int = await queue.requeue(max(1, min(left, _CHUNK)), 0, dead_letters)
            except (QueueFullError, QueueInUseError) as blocked:
                moved = blocked.accepted or await queue.requeue(1, timeout, dead_letters)
        except PressureError as error:
            meter.add(error.accepted, 0)
            raise
        meter.add(moved, 0)
        left -= moved
        if left <= 0 or not moved:
            return
