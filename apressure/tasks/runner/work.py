"""The two kinds of work of a `Runner`: a process of its own for each task, or a coroutine in this one."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from apressure.concurrency import background
from apressure.tasks.runner.child import Child, Ended, Times
from apressure.tasks.runner.command import Command, Function
from apressure.tasks.runner.output import Output
from apressure.tasks.runner.reports import OnProgress, Reports, current_progress

_MOST_OF_ERROR: Final = 1000
"""How many characters of the standard error are in the error of a task."""

BUSY: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
"""Errors that say more of this machine than of the command."""


class Outcome(NamedTuple):
    """How a task has ended.

    Attributes:
        error: Why it failed; None where it is complete.
        result: Its result.
        crashed: It failed for a reason that is not its own: another attempt may succeed.
        output: The end of what it wrote, without its result.
        status: The exit status of its process; if negative, the signal that ended it; None without one.
    """

    error: str | None
    result: Any = None
    crashed: bool = False
    output: str = ""
    status: int | None = None


@dataclasses.dataclass(frozen=True)
class Order:
    """What is known of a task when it begins.

    Attributes:
        name: The task, for logs.
        parameters: Its parameters.
        variables: What its process has in its environment besides that of the Runner.
        times: When it is ended.
        grace: Seconds from SIGTERM to SIGKILL.
        output: Takes what it writes.
        on_progress: Takes what it reports.
    """

    name: str
    parameters: Any
    variables: Mapping[str, str]
    times: Times
    grace: float
    output: Output
    on_progress: OnProgress


class Running(Protocol):
    """A task that runs, or is about to.

    Attributes:
        pid: The process in which it runs.
    """

    @property
    def pid(self) -> int: ...

    def go(self) -> None:
        """Begin."""

    def renew(self, times: Times) -> None:
        """Let it run for longer. Called in any thread."""

    def stop(self, grace: float) -> None:
        """Ask it to end, and make it end after so many seconds."""

    async def wait(self) -> Outcome:
        """Wait until nothing of it runs any more. Cancelled, call it again."""


class TaskProcess:
    """A task that runs as a process.

    Args:
        work: What to run.
        order: The task.

    Raises:
        TypeError, ValueError: The parameters are invalid.
        OSError: The process cannot be started.
    """

    def __init__(self, work: Command | Function, order: Order) -> None:
        job = work.job(order.parameters)
        self._program = job.command[0]
        self._reports_result = job.reports_result
        self._output = order.output
        self._reports = Reports(order.on_progress, order.name)
        environment = {**os.environ, **work.env, **order.variables}
        self._child = Child(job, environment, work.cwd, order.times, order.grace, order.output, self._reports)
        self._stopped = False
        self.pid = self._child.pid
        self.go, self.renew = self._child.go, self._child.renew

    def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after so many seconds. However it ends, it is not complete."""
        self._stopped = True
        self._child.stop(grace)

    async def wait(self) -> Outcome:
        """Wait until nothing of it runs any more."""
        ended, reports, output = await self._child.wait(), self._reports, self._output
        error = reports.error or self._error(ended)
        if error is not None:
            crashed = ended.status in {None, -signal.SIGKILL} or ended.late or ended.refused in BUSY
            return Outcome(error, None, crashed, output.both.text, ended.status)
        if self._reports_result or reports.result is not None:
            return Outcome(None, json.loads(reports.result or "null"), output=output.both.text, status=0)
        return Outcome(None, output.stdout.text.removesuffix("\n"), output=output.stderr.text, status=0)

    def _error(self, ended: Ended) -> str | None:
        """Return why the process has failed; None if it has not."""
        if self._stopped:
            return "it was stopped"
        if ended.late:
            return "its lease was not renewed in time, so it was ended"
        if ended.refused:
            return f"cannot run {self._program}: {os.strerror(ended.refused)}"
        if ended.status is None:
            reason = "the process that supervises the command was killed, or could not start"
        elif ended.status < 0:
            reason = f"killed by {signal.Signals(-ended.status).name}"
        elif ended.status > 0:
            reason = f"exit status {ended.status}"
        else:
            return None
        written = self._output.stderr.text.strip()[-_MOST_OF_ERROR:]
        return f"{reason}: {written}" if written else reason


class TaskCoroutine:
    """A task that runs as a coroutine in this process.

    Args:
        handler: `async def handle(parameters)`.
        order: The task.
    """

    def __init__(self, handler: Callable[[Any], Awaitable[Any]], order: Order) -> None:
        self.pid = os.getpid()
        self._handler = handler
        self._order = order
        self._task: asyncio.Task[Any] | None = None

    def go(self) -> None:
        """Begin."""
        self._task = background.start(self._run(), f"handling {self._order.name}")

    def renew(self, times: Times) -> None:
        """Nothing to do: a coroutine whose lease is lost is cancelled."""

    def stop(self, grace: float) -> None:  # noqa: ARG002 (nothing can kill a coroutine)
        """Cancel the coroutine."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> Outcome:
        """Wait until the coroutine has ended."""
        if self._task is None:
            return Outcome("it was stopped before it began", crashed=True)
        await asyncio.wait((self._task,))
        return self._task.result() if not self._task.cancelled() else Outcome("the handler cancelled itself")

    async def _run(self) -> Outcome:
        loop, on_progress = asyncio.get_running_loop(), self._order.on_progress

        def report(fraction: float, message: str) -> None:  # in any thread: `asyncio.to_thread` passes it on
            loop.call_soon_threadsafe(on_progress, fraction, message)

        current_progress.set(report)
        try:
            return Outcome(None, await self._handler(self._order.parameters))
        except Exception as error:  # noqa: BLE001 (the handler's own)
            reason = "".join(traceback.format_exception_only(error)).strip()
            return Outcome(reason, output=traceback.format_exc())
