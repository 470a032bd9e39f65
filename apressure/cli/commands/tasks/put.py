"""`apressure tasks enqueue` and `schedule`: tasks for now, and for later."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from apressure.cli.commands.tasks.options import Parameters, Parse, Queue, chunks, moment_of
from apressure.cli.options import Common, Timeout
from apressure.cli.running import Remains, execute
from apressure.cli.show import print_json
from apressure.tasks import TaskQueue


def enqueue(
    common: Common, queue: Queue, parameters: Parameters = None, parse: Parse = False, timeout: Timeout = None
) -> None:
    """Enqueue tasks, and print their ids: one task for each argument, or for each line of standard input.

    While a queue with a bound is full, the command waits and reads no more input.
    """
    _put(common, queue, parameters, parse, timeout, None)


def schedule(
    common: Common,
    queue: Queue,
    parameters: Parameters = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="When they are due: ISO 8601, in local time unless it names a zone, or seconds since 1970.",
        ),
    ] = None,
    after: Annotated[
        float | None, typer.Option("--in", metavar="SECONDS", min=0, help="How long from now they are due.")
    ] = None,
    parse: Parse = False,
) -> None:
    """Schedule tasks for later, and print their ids. `apressure tasks run` starts them when they are due."""
    _put(common, queue, parameters, parse, None, (at, after))


def _put(
    common: Common,
    name: str,
    given: Sequence[str] | None,
    parse: bool,
    timeout: float | None,
    when: tuple[str | None, float | None] | None,
) -> None:
    ids: list[str] = []

    async def command() -> None:
        eta = None if when is None else moment_of(*when, time.time())
        async with common.tasks() as client:
            queue: TaskQueue[Any] = client.queue(name)
            async for chunk in chunks(given, parse):
                for parameters in chunk:
                    if eta is None:
                        task_id = await queue.enqueue(parameters, timeout=timeout)
                    else:
                        task_id = await queue.schedule(parameters, eta)
                    ids.append(task_id)
                    if not common.json:
                        sys.stdout.write(task_id + "\n")
                sys.stdout.flush()
        if common.json:
            print_json({"name": name, "ids": ids})

    def remains() -> Remains | None:
        sys.stdout.flush()
        done = "enqueued" if when is None else "scheduled"
        return Remains(f"{len(ids)} tasks were {done}", {done: len(ids)}) if ids else None

    execute(common, command(), remains=remains)
