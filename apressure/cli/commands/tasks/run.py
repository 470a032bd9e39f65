"""`apressure tasks run`: a node that runs a command, or a function, for each task."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Annotated, Any, Final, Literal

import typer

from apressure.cli.commands.tasks.options import Queue, opened
from apressure.cli.commands.tasks.watching import Bars
from apressure.cli.exits import UsageError
from apressure.cli.options import CONCURRENCY, HANDLING_TIMEOUT, SHUTDOWN_TIMEOUT, Common, Progress, option
from apressure.cli.show import answer
from apressure.cli.streams.meter import is_shown
from apressure.protocols import DEFAULT_LEASE
from apressure.tasks import Command, Function, Ran, Runner, Scheduler, Task, TaskClient, TaskDelivery

_SIGNALS: Final = (SIGTERM, SIGINT, SIGHUP)
_SHOWN: Final = 20
"""How many running tasks are shown."""
_EVERY: Final = 0.5
"""Seconds between two looks at them."""


async def run(
    common: Common,
    queue: Queue,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="What to run, after --, without a shell. The task's parameters become arguments.",
            show_default=False,
        ),
    ] = None,
    call: Annotated[
        str | None, option("call", "Call a Python function instead, in a process.", "MODULE:FUNCTION")
    ] = None,
    stdin: Annotated[
        bool, option("stdin", "The command reads the parameters as JSON, and gets no arguments.")
    ] = False,
    concurrency: Annotated[int, CONCURRENCY] = 1,
    timeout: Annotated[float | None, HANDLING_TIMEOUT] = None,
    grace: Annotated[float, option("grace", "Time from SIGTERM to SIGKILL for a task.", "SECONDS", min=0)] = 10.0,
    lease: Annotated[
        float,
        option("lease", "Other nodes get the tasks of this one if it is dead or cut off for so long.", "SECONDS",
               min=0.1),
    ] = DEFAULT_LEASE,
    on_orphan: Annotated[
        Literal["retry", "fail"], option("on-orphan", "What happens to a task whose node died.")
    ] = "retry",
    max_attempts: Annotated[
        int, option("max-attempts", "How often to try a task; 0 for no limit.", "N", min=0)
    ] = 3,
    shutdown_timeout: Annotated[float, SHUTDOWN_TIMEOUT] = 30.0,
    scheduler: Annotated[
        bool, option("scheduler/--no-scheduler", "Also run a scheduler for the queue.")
    ] = True,
    output: Annotated[bool, option("output", "Show what the tasks write, as it comes.")] = False,
    progress: Progress = None,
) -> None:  # fmt: skip
    """Run tasks until the queue is closed and all its tasks have ended, or a signal comes.

    The first SIGTERM or Ctrl-C lets tasks finish, the second one ends them and gives them back.
    """
    if bool(command) == bool(call):
        raise UsageError("what is to run? Give a command after --, or --call MODULE:FUNCTION")
    if call and stdin:
        raise UsageError("--stdin needs a command: a function gets the parameters as its argument")
    if call and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    work = Function(call) if call else Command(command or [], parameters="stdin" if stdin else "arguments")
    async with opened(common, queue) as (client, name):
        runner = Runner(
            client, name, work, concurrency=concurrency, timeout=timeout, grace=grace, lease=lease,
            on_orphan=on_orphan, max_attempts=max_attempts or None, shutdown_timeout=shutdown_timeout,
            on_output=_show if output else None,
            signals=_SIGNALS,
        )  # fmt: skip
        _leave_signals_to_the_runner()
        beside = [Scheduler(client, queues=[name]).run()] if scheduler else []
        if is_shown(progress, busy=0):
            beside.append(_follow(client, name))
        ran = await _run(runner, beside)
    done = {name: getattr(ran, name) for name in ("complete", "failed", "given_back", "lost")}
    text = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in done.items())
    answer({"name": name, **done}, f"tasks of {name}: {text}", as_json=common.json)
    if ran.signal is not None:
        raise typer.Exit(128 + ran.signal)


def _leave_signals_to_the_runner() -> None:
    """Undo what cancels a command at a signal: the Runner lets tasks finish."""
    loop = asyncio.get_running_loop()
    for signum in _SIGNALS:
        loop.remove_signal_handler(signum)


async def _run(runner: Runner, beside: Sequence[Coroutine[Any, Any, object]]) -> Ran:
    """Run tasks, and do other things meanwhile; if one of those fails, so does this, and the tasks go back."""
    running = asyncio.ensure_future(runner.run())
    others = [asyncio.ensure_future(each) for each in beside]
    try:
        await asyncio.wait((running, *others), return_when=asyncio.FIRST_COMPLETED)
        for failed in filter(asyncio.Future.done, others):
            failed.result()
        return await running
    finally:
        for each in (running, *others):
            each.cancel()
        await asyncio.wait((running, *others))


async def _follow(client: TaskClient, name: str) -> None:
    """Show the progress of the tasks that run, on all nodes."""
    queue = client.queue(name)
    with Bars(shown=True) as bars:
        while True:
            started: list[Task] = []
            async for task in queue.tasks(status="started"):
                started.append(task)
                if len(started) == _SHOWN:
                    break
            bars.keep(started)
            await asyncio.sleep(_EVERY)


def _show(_: TaskDelivery[Any], stream: str, text: str) -> None:
    """Write a piece of a task's output where this command's goes."""
    file = sys.stdout if stream == "stdout" else sys.stderr
    file.write(text)
    file.flush()
