"""`apressure tasks cancel` and `purge`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from apressure.cli.asking import must_exist
from apressure.cli.commands.tasks.options import Ids, Queue, opened
from apressure.cli.exits import Exit, message_of
from apressure.cli.options import Common, Progress, complain, option
from apressure.cli.show import answer
from apressure.cli.streams.meter import Meter
from apressure.exceptions import TaskError
from apressure.tasks.options import Purgeable


async def cancel(common: Common, ids: Ids) -> None:
    """Cancel tasks: one that waits fails at once, and the node of one that runs is asked to stop it.

    If one cannot be cancelled, since it has ended or does not exist, the others are, and the exit code is 1.
    """
    cancelled: list[str] = []
    async with common.tasks() as client:
        for each in ids:
            try:
                task = await client.task(each)
                await client.queue(task.queue or "").cancel(each)
            except TaskError as error:
                complain(f"apressure: {message_of(error)}")
            else:
                cancelled.append(each)
    answer({"cancelled": cancelled}, f"cancelled {len(cancelled)} of {len(ids)} tasks", as_json=common.json)
    if len(cancelled) < len(ids):
        raise typer.Exit(int(Exit.ERROR))


async def purge(
    common: Common,
    queue: Queue,
    status: Annotated[Purgeable, option("status", "Which tasks to delete.")] = "complete",
    older_than: Annotated[
        float | None,
        option("older-than", "Only tasks that have not changed for so long.", "SECONDS", shown="all", min=0),
    ] = None,
    progress: Progress = None,
) -> None:  # fmt: skip
    """Delete tasks that have one status, with their results. Tasks in the hands of nodes stay."""
    async with opened(common, queue) as (client, name):
        target = client.queue(name)
        with Meter(f"purge {name}", shown=os.isatty(2) if progress is None else progress) as meter:
            done = await target.purge(
                status, older_than=older_than, on_progress=lambda deleted: meter.add(deleted - meter.messages, 0)
            )
        if not done:
            await must_exist(target)
    result = {"name": name, "status": status, "purged": done}
    answer(result, f"purged {done} {status} tasks from {name}", as_json=common.json)
