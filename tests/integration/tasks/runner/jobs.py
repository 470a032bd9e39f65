"""A queue for the tests of `Runner`, and a Runner in a process of its own.

`python -m tests.integration.tasks.runner.jobs URL QUEUE OPTIONS COMMAND...`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from apressure import TaskFailedError
from apressure.tasks import Command, Ran, Runner, Task, TaskClient
from tests.integration.commands import PATIENCE, environment, marked, new_mark, running

LONG = 3600.0
"""Seconds: it never comes."""


class Jobs:
    """A queue, the folder in which its tasks work, and how to see what becomes of them."""

    def __init__(self, client: TaskClient, url: str, folder: Path) -> None:
        self.client = client
        self.url = url
        self.folder = folder
        self.mark = new_mark()
        self.queue = client.queue("jobs")

    def shell(self, script: str, **options: Any) -> Command:
        return Command(["sh", "-c", textwrap.dedent(script), "sh"], cwd=self.folder, env=self.mark, **options)

    def runner(self, work: Any, **options: Any) -> Runner:
        return Runner(self.client, "jobs", work, **{"signals": (), **options})

    async def run(self, work: Any, *parameters: Any, **options: Any) -> list[Task]:
        """Run tasks until all have ended, and return them."""
        ids = [await self.queue.enqueue(one) for one in parameters]
        async with self.running(self.runner(work, **options)):
            return [await self.finished(one) for one in ids]

    @contextlib.asynccontextmanager
    async def running(self, one: Runner) -> AsyncIterator[asyncio.Task[Ran]]:
        task = asyncio.create_task(one.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait((task,))
        assert not self.alive()

    async def task(self, task_id: str) -> Task:
        return await self.client.task(task_id)

    async def finished(self, task_id: str) -> Task:
        with contextlib.suppress(TaskFailedError):
            await (await self.task(task_id)).wait(PATIENCE)
        return await self.task(task_id)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def has(self, name: str) -> None:
        await self.until((self.folder / name).exists)

    async def has_status(self, task_id: str, status: str) -> Task:
        async with asyncio.timeout(PATIENCE):
            while (task := await self.task(task_id)).status != status:
                await asyncio.sleep(0.01)
        return task

    def alive(self) -> list[psutil.Process]:
        return marked(self.mark, Path("/nowhere"))


async def main(url: str, queue: str, options: str, *command: str) -> None:
    async with TaskClient(url) as client:
        print(await Runner(client, queue, Command(command), **json.loads(options)).run())


@contextlib.contextmanager
def runner(url: str, queue: str, command: Command, **options: Any) -> Iterator[Popen[bytes]]:
    """Start a Runner, and see to it that it ends."""
    module = [sys.executable, "-m", "tests.integration.tasks.runner.jobs", url, queue, json.dumps(options)]
    with running([*module, *command.command], env=environment(**command.env), stderr=None) as process:
        yield process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
