"""A `Runner` in a process of its own: `python -m tests.integration.tasks.runners URL QUEUE OPTIONS COMMAND...`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

from apressure.tasks import Command, Runner, TaskClient
from tests.integration.commands import environment, running


async def main(url: str, queue: str, options: str, *command: str) -> None:
    async with TaskClient(url) as client:
        print(await Runner(client, queue, Command(command), **json.loads(options)).run())


@contextlib.contextmanager
def runner(url: str, queue: str, command: Command, **options: Any) -> Iterator[Popen[bytes]]:
    """Start a Runner, and see to it that it ends."""
    module = [sys.executable, "-m", "tests.integration.tasks.runners", url, queue, json.dumps(options)]
    with running([*module, *command.command], env=environment(**command.env), stderr=None) as process:
        yield process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
