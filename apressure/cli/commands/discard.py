"""`apressure discard`: deletes dead letters."""

from __future__ import annotations

import functools
import os
from typing import Annotated

from apressure.cli.asking import told
from apressure.cli.commands.dead import Source, check_name, from_source, letters_of
from apressure.cli.commands.dead import count as count_of
from apressure.cli.exits import UsageError
from apressure.cli.letters import Job, Rate, Which, complain_of, told_before
from apressure.cli.options import Address, Common, Progress, Timeout, option
from apressure.cli.running import execute
from apressure.cli.show import answer
from apressure.cli.streams.meter import Meter
from apressure.monitor.finding import bare_name


def discard(
    common: Common, queue: Address, source: Source = None, which: Which = Which(),
    everything: Annotated[bool, option("all", "All dead letters.")] = False,
    rate: Rate = None,
    most: Annotated[int | None, option("max", "Delete at most N.", "N", shown="all", min=1)] = None,
    timeout: Timeout = None, progress: Progress = None,
) -> None:  # fmt: skip
    """Delete dead letters for good, the oldest first.

    The command deletes the dead letters that exist when it starts. However it ends, each of them is deleted, or a dead
    letter as before. If no dead letter has one of the ids, the others are deleted, and the exit code is 1.
    """
    address = common.read(queue)
    search = which.search()
    if search.everything is not everything:
        raise UsageError(
            "say which dead letters to delete: give --all, or one of --id, --error, --text, --since, --until"
        )
    meter = Meter(f"discard {address}", shown=os.isatty(2) if progress is None else progress)
    not_found: tuple[str, ...] = ()

    async def command() -> None:
        nonlocal not_found
        job = Job("discard", search, from_source(address, source), rate, most, timeout, meter)
        with meter:
            async with common.finder() as finder, finder.open(address) as opened:
                if not await count_of(finder, opened, address, source):
                    await check_name(finder, address, source, "discard")
                not_found = await job.run(opened)

    execute(common, command(), remains=functools.partial(told_before, meter, "deleted", "discarded"))
    letters = letters_of(address, source)
    where = address if letters is None else bare_name(letters)
    answer(
        told(address, discarded=meter.messages, **({"not_found": list(not_found)} if which.ids else {})),
        f"deleted {meter.messages} dead letters of {where}",
        as_json=common.json,
    )
    complain_of(not_found, address)
