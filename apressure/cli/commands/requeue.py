"""`apressure requeue`: moves dead letters back to their queue, or to another one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from apressure.cli.asking import told
from apressure.cli.commands.dead import Source, check_name, count, from_source, letters_of
from apressure.cli.exits import UsageError
from apressure.cli.letters import Job, Rate, Which, complain_of, told_before
from apressure.cli.options import Address, Common, Most, Progress, Timeout, option
from apressure.cli.running import execute
from apressure.cli.show import answer
from apressure.cli.streams.meter import Meter
from apressure.exceptions import PressureError, QueueFullError, QueueInUseError
from apressure.monitor.finding import Finder, bare_name
from apressure.queue_addresses import QueueAddress

_CHUNK: Final = 1000
"""How many dead letters are moved between two updates of the progress."""


To = Annotated[
    str | None, option("to", "Move them to this queue, of any kind.", "QUEUE", shown="the queue that they come from")
]


def requeue(
    common: Common, queue: Address, source: Source = None, to: To = None, which: Which = Which(),
    rate: Rate = None, most: Most = None, timeout: Timeout = None, progress: Progress = None,
) -> None:  # fmt: skip
    """Move dead letters back to the end of their queue, the oldest first.

    The command moves the dead letters that exist when it starts, and waits while the queue is full. However it ends,
    each dead letter is in one of the two queues. If no dead letter has one of the ids, the others are moved, and the
    exit code is 1.

    With `--to`, each is put into the other queue and then deleted here: if the command is killed in between, it is in
    both.
    """
    address = common.read(queue)
    target = None if to is None else common.read(to)
    if target == address:
        raise UsageError("--to is the queue that they come from: leave it out")
    search = which.search()
    meter = Meter(f"requeue {address}", shown=os.isatty(2) if progress is None else progress)
    not_found: tuple[str, ...] = ()

    async def command() -> None:
        nonlocal not_found
        where = from_source(address, source)
        with meter:
            async with common.finder() as finder, finder.open(address) as opened:
                left = await _count(finder, opened, address, source)
                if target is not None:
                    async with finder.open(target) as other:
                        job = Job("move", search, where, rate, most, timeout, meter, other)
                        not_found = await job.run(opened)
                elif search.everything and rate is None:
                    moving = _Moving(opened.requeue, where, timeout, meter)
                    await moving.oldest(left if most is None else min(most, left))
                else:
                    not_found = await Job("requeue", search, where, rate, most, timeout, meter).run(opened)

    execute(common, command(), remains=functools.partial(told_before, meter, "requeued", "requeued"))
    letters = letters_of(address, source)
    origin = {} if letters is None else {"from": bare_name(letters)}
    missing = {"not_found": list(not_found)} if which.ids else {}
    if target is not None:
        where = f"from {address if letters is None else bare_name(letters)} to {target}"
        origin["to"] = str(target)
    else:
        where = f"in {address}" if letters is None else f"from {bare_name(letters)} to {address}"
    answer(
        told(address, **origin, requeued=meter.messages, **missing),
        f"requeued {meter.messages} {where}",
        as_json=common.json,
    )
    complain_of(not_found, address)


async def _count(finder: Finder, opened: Any, address: QueueAddress, source: str | None) -> int:
    """Return how many dead letters there are; without any, the names must be right."""
    left = await count(finder, opened, address, source)
    if not left:
        await check_name(finder, address, source, "requeue")
    return left


class _Moving:
    """Moves dead letters back.

    Args:
        requeue: The method of the queue.
        source: Its argument for where the dead letters are.
        timeout: Seconds to wait for room, each time; None to wait for ever.
        meter: Counts what was moved.
    """

    def __init__(
        self, requeue: Callable[..., Any], source: Mapping[str, str], timeout: float | None, meter: Meter
    ) -> None:
        self._requeue = functools.partial(requeue, **source)
        self._timeout = timeout
        self._meter = meter

    async def oldest(self, left: int) -> None:
        """Move `left` dead letters: as many as there is room for, then one as soon as there is room."""
        self._meter.expect(left)
        while True:
            before = self._meter.messages
            try:
                await self._step(max_items=max(1, min(left, _CHUNK)), timeout=0)
            except (QueueFullError, QueueInUseError):
                if self._meter.messages == before:
                    await self._step(max_items=1, timeout=self._timeout)
            moved = self._meter.messages - before
            left -= moved
            if left <= 0 or not moved:
                return

    async def _step(self, **arguments: Any) -> Any:
        try:
            moved = await self._requeue(**arguments)
        except PressureError as error:
            self._meter.add(error.accepted, 0)
            raise
        self._meter.add(moved, 0)
        return moved
