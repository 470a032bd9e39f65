"""`apressure tasks listen`, `complete`, `fail` and `progress`: a node in a shell script."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import typer

from apressure import logs
from apressure.cli.commands.tasks import views
from apressure.cli.commands.tasks.options import Id, Parse, Queue, opened, parameters_of
from apressure.cli.options import Common, Number
from apressure.cli.show import answer, plain, print_json
from apressure.exceptions import TaskDoesNotExistError
from apressure.tasks import Processor, Task


async def listen(common: Common, queue: Queue, number: Number = None) -> None:
    """Reserve tasks one by one, print the id and the parameters of each, and hold it until it has ended.

    `apressure tasks complete ID RESULT` and `apressure tasks fail ID ERROR` end a task, in any process. If this command
    ends before that, other nodes get the task. It ends when the queue is closed and empty.
    """
    done = 0
    async with opened(common, queue) as (client, name), client.listener(name) as listener:
        async for task in listener:
            if common.json:
                print_json(views.as_dict(task))
            else:
                sys.stdout.write(f"{plain(task.id)}\t{plain(views.text(task.parameters))}\n")
                sys.stdout.flush()
            await _ended(task)
            done += 1
            if done == number:
                break


async def complete(
    common: Common,
    task_id: Id,
    result: Annotated[str | None, typer.Argument(metavar="RESULT", help="The result.", show_default="none")] = None,
    parse: Parse = False,
) -> None:
    """Complete a task that a listener has reserved, with a result."""
    value = None if result is None else parameters_of(result, parse)
    await _change(common, task_id, lambda task: task.complete(value), {"status": "complete"}, f"completed {task_id}")


async def fail(
    common: Common,
    task_id: Id,
    error: Annotated[str, typer.Argument(metavar="ERROR", help="Why the task failed.", show_default=False)],
) -> None:
    """Fail a task that a listener has reserved, with an error."""
    logs.logger.setLevel(logging.ERROR)  # the answer says that it is a dead letter
    await _change(common, task_id, lambda task: task.fail(error), {"status": "failed"}, f"failed {task_id}")


async def progress(
    common: Common,
    task_id: Id,
    fraction: Annotated[
        float, typer.Argument(metavar="FRACTION", min=0, max=1, help="How far it is, from 0 to 1.", show_default=False)
    ],
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="A text for people.")] = None,
) -> None:
    """Say how far a task is that a listener has reserved."""
    noted, text = {"progress": fraction, "progress_message": message}, f"{task_id} is at {fraction:.0%}"
    await _change(common, task_id, lambda task: task.progress(fraction, message), noted, text)


async def _change(
    common: Common, task_id: str, change: Callable[[Processor], Awaitable[None]], noted: Mapping[str, Any], text: str
) -> None:
    """Change a task that a listener has reserved, and print what was noted."""
    async with common.tasks() as client:
        await change(client.processor(await client.task(task_id)))
    answer({"id": task_id, **noted}, text, as_json=common.json)


async def _ended(task: Task) -> None:
    """Wait until a task has ended, or belongs to another node, or is gone."""
    claim = task.claim
    with contextlib.suppress(TaskDoesNotExistError):
        while not task.finished and task.claim == claim:
            task = await task.wait_for_change()
