"""The two kinds of work of a `Runner`: a process of its own for each task, or a coroutine in this one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from apressure.concurrency import background
from apressure.tasks.runner.output import Output
from apressure.tasks.runner.reports import OnProgress, current_progress


class Times(NamedTuple):
    """When a process is ended unless its lease is renewed before, in seconds of CLOCK_BOOTTIME.

    Attributes:
        term_at: When it gets SIGTERM.
        kill_at: When it gets SIGKILL.
    """

    term_at: float
    kill_at: float


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


class TaskCoroutine:
    """A task that runs as a coroutine in this process.

    Args:
        handler: `async def handle(parameters)`.
        order: The task.

    Attributes:
        pid: This process.
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
