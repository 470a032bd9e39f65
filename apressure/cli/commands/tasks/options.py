"""What the commands of tasks share."""

from __future__ import annotations

import contextlib
import json as jsons
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from apressure.cli.exits import UsageError
from apressure.cli.options import Common, option
from apressure.queue_addresses import QueueAddress
from apressure.tasks import TaskClient

Queue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", help="The queue of tasks: encode, tasks:encode, or a URL such as redis://host:6379/0/tasks:encode.",
        show_default=False,
    ),
]  # fmt: skip
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the task.", show_default=False)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="The ids of tasks.", show_default=False)]
Parse = Annotated[bool, option("parse", "Read the values as JSON. Without it, they are plain strings.")]


def read(common: Common, queue: str) -> QueueAddress:
    """Return the address of a queue of tasks; its name alone is enough.

    Raises:
        UsageError: It is the address of another kind of queue.
    """
    address = common.read(queue, "tasks")
    if address.kind != "tasks":
        raise UsageError(f"{address} is no queue of tasks: write tasks:{address.name}, or its name alone")
    return address


@contextlib.asynccontextmanager
async def opened(common: Common, queue: str) -> AsyncIterator[tuple[TaskClient, str]]:
    """Return a client, which is closed at the end of the block, and the name of the queue."""
    address = read(common, queue)
    async with common.tasks(address.url) as client:
        yield client, address.name


def parameters_of(text: str, parse: bool) -> Any:
    """Return parameters as a program would give them."""
    if not parse:
        return text
    try:
        return jsons.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--parse cannot read {text[:80]!r} as JSON: {error}. Leave out --parse, or correct it"
        ) from None
