"""`apressure tasks ls`, `show` and `wait`: what there is to do, what is being done, and what came of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from typing import Annotated, Literal

import typer

from apressure.cli.asking import must_exist
from apressure.cli.commands.tasks import views
from apressure.cli.commands.tasks.options import Ids, Queue, opened
from apressure.cli.commands.tasks.watching import Bars, View
from apressure.cli.exits import Exit
from apressure.cli.options import Common, Interval, Progress, Timeout, Watch, complain, option, seconds_between
from apressure.cli.show import plain, print_json
from apressure.cli.streams.meter import is_shown
from apressure.tasks import Task, TaskClient

Status = Literal["scheduled", "pending", "reserved", "started", "complete", "failed"]


async def ls(
    common: Common,
    queue: Queue,
    status: Annotated[Status | None, option("status", "Only tasks with this status.", shown="all")] = None,
    limit: Annotated[int, option("limit", "Show at most N tasks.", "N", min=1)] = 100,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """List the tasks of a queue.

    Into a pipe: one line for each, with id, status, attempts, node, time of the last change, progress and parameters,
    separated by tabs.
    """
    seconds = seconds_between(interval, watch) if watch or interval is not None else None
    async with opened(common, queue) as (client, name):
        await _tasks(client, name, status, limit).show(common, seconds)


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
