"""`apressure tasks schedule`: tasks for later."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

from apressure.cli.commands.tasks.options import Parameters, Parse, Queue, chunks, opened
from apressure.cli.exits import UsageError
from apressure.cli.options import Common, moment_of, option
from apressure.cli.running import Remains, execute
from apressure.cli.show import print_json
from apressure.tasks import TaskQueue


def schedule(
    common: Common,
    queue: Queue,
    parameters: Parameters = None,
    at: Annotated[
        Any,
        option(
            "at",
            "When they are due: ISO 8601, in local time unless it names a zone, or seconds since 1970.",
            "TIME",
            parser=moment_of,
        ),
    ] = None,
    after: Annotated[float | None, option("in", "How long from now they are due.", "SECONDS", min=0)] = None,
    parse: Parse = False,
) -> None:
    """Schedule tasks for later, and print their ids: one task for each argument, or for each line of standard input.

    `apressure tasks run` starts them when they are due. `apressure put tasks:QUEUE --ids` enqueues tasks for now.
    """
    ids: list[str] = []

    async def command() -> None:
        if (at is None) == (after is None):
            raise UsageError("when? Give either --at TIME or --in SECONDS")
        eta = at if after is None else time.time() + after
        async with opened(common, queue) as (client, name):
            target: TaskQueue[Any] = client.queue(name)
            async for chunk in chunks(parameters, parse):
                for one in chunk:
                    ids.append(await target.schedule(one, eta))
                    if not common.json:
                        sys.stdout.write(ids[-1] + "\n")
                sys.stdout.flush()
        if common.json:
            print_json({"name": name, "ids": ids})

    def remains() -> Remains | None:
        sys.stdout.flush()
        return Remains(f"{len(ids)} tasks were scheduled", {"scheduled": len(ids)}) if ids else None

    execute(common, command(), remains=remains)
