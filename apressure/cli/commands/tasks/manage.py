"""`apressure tasks create`, `retry`, `cancel`, `purge`, `pause`, `resume`, `close` and `delete`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from apressure.cli.commands.tasks.options import Ids, Queue, must_exist
from apressure.cli.exits import Exit, UsageError, message_of
from apressure.cli.options import Common, Most, Progress, complain
from apressure.cli.show import answer, bound_text, printable
from apressure.cli.streams.meter import Meter
from apressure.exceptions import TaskError
from apressure.tasks.administration import Purgeable


async def create(
    common: Common,
    queue: Queue,
    bound: Annotated[
        int, typer.Option("--bound", metavar="N", min=0, help="How many tasks may wait; 0 for no limit.")
    ] = 0,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the queue was created before.")] = False,
) -> None:
    """Create a queue, with a bound. A queue without a bound needs no `create`: the first task makes it."""
    async with common.tasks() as client:
        target = client.queue(queue)
        created = await target.create(bound, exist_ok=exist_ok)
        actual = bound if created else await target.bound()
    limit = bound_text(actual)
    text = f"created {queue} ({limit})" if created else f"{queue} exists already ({limit})"
    answer({"name": queue, "bound": actual, "created": created}, text, as_json=common.json)


async def retry(
    common: Common,
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Retry the task with this id.", show_default="all")
    ] = None,
    most: Most = None,
) -> None:
    """Enqueue failed tasks again, the oldest first; their attempts count from the beginning.

    If no failed task has one of the ids, the others are enqueued, and the exit code is 1.
    """
    if ids and most is not None:
        raise UsageError("give either --id or --max, not both")
    async with common.tasks() as client:
        target = client.queue(queue)
        done = await (target.requeue(ids=ids) if ids else target.requeue(most))
        if not done:
            await must_exist(target)
    result: dict[str, object] = {"name": queue, "requeued": int(done)}
    if ids:
        result["not_found"] = list(done.not_found)
    answer(result, f"enqueued {int(done)} failed tasks of {queue} again", as_json=common.json)
    for missing in done.not_found:
        complain(f"apressure: no failed task of {printable(queue)} has the id {printable(missing)!r}")
    if done.not_found:
        raise typer.Exit(int(Exit.ERROR))


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
    status: Annotated[Purgeable, typer.Option("--status", help="Which tasks to delete.")] = "complete",
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="SECONDS", min=0, help="Only tasks that have not changed for so long.",
            show_default="all",
        ),
    ] = None,
    progress: Progress = None,
) -> None:  # fmt: skip
    """Delete tasks that have one status. Tasks in the hands of nodes stay."""
    meter = Meter(f"purge {queue}", shown=os.isatty(2) if progress is None else progress)
    async with common.tasks() as client:
        target = client.queue(queue)
        with meter:
            done = await target.purge(
                status, older_than=older_than, on_progress=lambda deleted: meter.add(deleted - meter.messages, 0)
            )
        if not done:
            await must_exist(target)
    result = {"name": queue, "status": status, "purged": done}
    answer(result, f"deleted {done} {status} tasks of {queue}", as_json=common.json)


async def pause(common: Common, queue: Queue) -> None:
    """Pause a queue: nodes of apressure take no further task until `apressure tasks resume`."""
    async with common.tasks() as client:
        changed = await client.queue(queue).pause()
    text = f"paused {queue}" if changed else f"{queue} is paused already"
    answer({"name": queue, "paused": True, "changed": changed}, text, as_json=common.json)


async def resume(common: Common, queue: Queue) -> None:
    """Resume a paused queue."""
    async with common.tasks() as client:
        changed = await client.queue(queue).resume()
    text = f"resumed {queue}" if changed else f"{queue} is not paused"
    answer({"name": queue, "paused": False, "changed": changed}, text, as_json=common.json)


async def close(common: Common, queue: Queue) -> None:
    """Close a queue: nothing more can be enqueued, and nodes end when all its tasks have ended."""
    async with common.tasks() as client:
        await client.queue(queue).close()
    answer({"name": queue, "closed": True}, f"closed {queue}", as_json=common.json)


async def delete(common: Common, queue: Queue) -> None:
    """Delete a queue with all its tasks and their results. Nodes that run a task of it end it."""
    async with common.tasks() as client:
        await client.queue(queue).delete()
    answer({"name": queue, "deleted": True}, f"deleted {queue}", as_json=common.json)
