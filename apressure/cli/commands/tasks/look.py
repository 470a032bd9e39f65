"""`apressure tasks ls`, `show`, `stat` and `wait`: what there is to do, what is being done, and what came of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from typing import Annotated, Literal

import typer

from apressure.cli.commands.tasks import views
from apressure.cli.commands.tasks.options import Ids, Queue, must_exist
from apressure.cli.commands.tasks.watching import Bars, View
from apressure.cli.exits import Exit, UsageError, message_of
from apressure.cli.options import Common, Interval, Progress, Timeout, Watch, complain, seconds_between
from apressure.cli.show import plain, print_json, printable
from apressure.cli.streams.meter import is_shown
from apressure.exceptions import ServerError
from apressure.tasks import Task, TaskClient, TaskStatistics

Status = Literal["scheduled", "pending", "reserved", "started", "complete", "failed"]


async def ls(
    common: Common,
    queue: Annotated[str | None, typer.Argument(help="The queue whose tasks to list.", show_default=False)] = None,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only tasks with this status.", show_default="all")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most N tasks.")] = 100,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """List the queues, or the tasks of one queue.

    Into a pipe: one line for each, separated by tabs. For a queue: name, pending, scheduled, in flight, started,
    complete, failed, consumers and state. For a task: id, status, attempts, node, time of the last change, progress and
    parameters.
    """
    seconds = seconds_between(interval, watch) if watch or interval is not None else None
    if queue is None and status is not None:
        raise UsageError("--status needs the name of a queue")
    async with common.tasks() as client:
        if queue is None:
            damaged: set[str] = set()
            await _queues(client, damaged).show(common, seconds)
            if damaged:
                raise typer.Exit(int(Exit.ERROR))
        else:
            await _tasks(client, queue, status, limit).show(common, seconds)


async def show(common: Common, ids: Ids, watch: Watch = False, interval: Interval = None) -> None:
    """Show all that is known of tasks: one line for each value. With --watch, until they have ended."""
    seconds = seconds_between(interval, watch) if watch or interval is not None else None
    async with common.tasks() as client:

        async def look() -> list[Task]:
            return [await client.task(each) for each in ids]

        await View(
            look,
            lambda found: [views.as_dict(task) for task in found],
            lambda found: itertools.chain.from_iterable(map(views.lines, found)),
            views.several,
            lambda found: all(task.finished for task in found),
        ).show(common, seconds)


async def stat(common: Common, queue: Queue, watch: Watch = False, interval: Interval = None) -> None:
    """Show how many tasks of a queue wait, run and have ended: one line for each value, with --watch one each time."""
    seconds = seconds_between(interval, watch) if watch or interval is not None else None
    async with common.tasks() as client:
        target = client.queue(queue)

        def lines(found: TaskStatistics) -> list[str]:
            shown = views.statistics_dict(found).items()
            return (
                ["  ".join(f"{key} {plain(value)}" for key, value in shown)]
                if watch
                else [f"{key}\t{plain(value)}" for key, value in shown]
            )

        async def look() -> TaskStatistics:
            await must_exist(target)
            return await target.statistics()

        await View(look, views.statistics_dict, lines, lambda found: views.queues_table([found])).show(common, seconds)


async def wait(common: Common, ids: Ids, timeout: Timeout = None, progress: Progress = None) -> None:
    """Wait until tasks have ended, and print their results, one a line, in the order of the ids.

    The exit code is 1 if one has failed. On a terminal, the progress of the tasks is shown.
    """
    async with common.tasks() as client:
        loop = asyncio.get_running_loop()
        deadline = math.inf if timeout is None else loop.time() + timeout
        with Bars(shown=is_shown(progress, busy=1)) as bars:

            async def ended(task: Task) -> Task:
                bars.show(task)
                while not task.finished:
                    left = deadline - loop.time()
                    if left <= 0:
                        await task.wait(0)  # raises the error that says so
                    task = await task.wait_for_change(None if left == math.inf else left)
                    bars.show(task)
                return task

            found = [await client.task(each) for each in ids]
            waiting = [asyncio.ensure_future(ended(task)) for task in found]
            try:
                found = await asyncio.gather(*waiting)
            finally:
                for each in waiting:
                    each.cancel()
    failed = [task for task in found if task.status == "failed"]
    if common.json:
        print_json([views.as_dict(task) for task in found])
    else:
        for task in found:
            if task not in failed:
                sys.stdout.write(plain(views.text(task.result)) + "\n")
        sys.stdout.flush()
        for task in failed:
            complain(f"apressure: the task {task.id} failed: {task.error}")
    if failed:
        raise typer.Exit(int(Exit.ERROR))


def _queues(client: TaskClient, damaged: set[str]) -> View[list[TaskStatistics]]:
    async def look() -> list[TaskStatistics]:
        found = []
        for name in await client.queues():
            try:
                found.append(await client.queue(name).statistics())
            except (ServerError, ValueError) as error:
                if name not in damaged:
                    complain(f"apressure: {printable(name)}: {message_of(error)}")
                damaged.add(name)
        return found

    return View(
        look,
        lambda found: [views.statistics_dict(statistics) for statistics in found],
        lambda found: map(views.queue_line, found),
        views.queues_table,
    )


def _tasks(client: TaskClient, name: str, status: str | None, limit: int) -> View[list[Task]]:
    async def look() -> list[Task]:
        found: list[Task] = []
        queue = client.queue(name)
        async for task in queue.tasks(status=status):
            found.append(task)
            if len(found) == limit:
                break
        if not found:
            await must_exist(queue)
        return found

    return View(
        look, lambda found: [views.as_dict(task) for task in found], lambda found: map(views.line, found), views.table
    )
