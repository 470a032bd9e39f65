"""`Runner`: runs the tasks of a queue, in processes of their own or as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Final, Literal

from apressure import validation
from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.signals import listening
from apressure.core.registration import Calls, Doing, registered
from apressure.exceptions import PressureError
from apressure.protocols import DEFAULT_LEASE, CarriesContext, Observer, ObservesCalls, Tally
from apressure.tasks.runner.command import Command, Function
from apressure.tasks.runner.performing import Ending, OnOutput, Performance, Reason, Settings

if TYPE_CHECKING:
    from anyio import CancelScope

    from apressure.core.consumer import QueueConsumer
    from apressure.tasks.client import TaskClient
    from apressure.tasks.delivery import TaskDelivery

logger = logging.getLogger("apressure")

Work = Command | Function | str | Callable[[Any], Any]

_MOST: Final = 10_000
"""The most tasks at a time."""

_AGAIN: Final = Backoff(0.5, 30.0)
"""The pauses before the Runner asks for tasks again after a temporary error."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a `Runner` has done when it returns.

    Attributes:
        complete: How many tasks completed.
        failed: How many tasks failed.
        given_back: How often a task was given back, to be run again.
        lost: How often a task was lost: its lease ended, or it was deleted.
        signal: The signal that ended it; None if the queue was closed and drained.
        drained: Somebody has ended it by `drain` of its queue, or by `apressure workers drain`.
    """

    complete: int
    failed: int
    given_back: int
    lost: int
    signal: Signals | None = None
    drained: bool = False


class Runner:
    """Runs the tasks of a queue: commands and functions in processes of their own, or coroutines in this one.

    A command that exits with status 0 completes its task; the result is what it wrote to its standard output, or for a
    function what it returned. Another exit status fails the task. The field `output` keeps the end of what was written.

    Each process has a supervisor, which ends it, and everything that it has started, before another node may run the
    task: also if this process is killed, stands still, or loses its server. What was killed by somebody else, and what
    a dead node had, runs again, up to `max_attempts` times.

    Args:
        client: The client.
        queue: The queue's name.
        work: A `Command`. Or a function, as `"module:function"`, as `Function` or itself, which is called with the
            parameters in a new process for each task. Or `async def handle(parameters)`, which runs in this process,
            and is cancelled where a process would be ended.
        concurrency: How many tasks run at a time.
        timeout: Seconds for one attempt, which then fails; None for no limit.
        grace: Seconds from SIGTERM to SIGKILL. Where a lease is about to end, it is at most a fifth of the lease.
        lease: Seconds after which another node gets the tasks of one that is dead or cut off. A process gets SIGTERM
            when its lease could not be renewed for about two thirds of that.
        on_orphan: What happens to a task whose node or process was killed: `"retry"` runs it again, `"fail"` does not.
        max_attempts: How often a task is tried at most; None for no limit.
        shutdown_timeout: Seconds that tasks may take to finish after a signal. Then they are ended, and given back.
        max_output: How many bytes are kept of what a process writes to its standard output and standard error.
        on_output: `on_output(delivery, "stdout" or "stderr", text)` is called for each piece of output.
        signals: The signals that end `run`. The first one lets tasks finish, the second one ends them and gives them
            back, and further ones have the effect that they had before. () for none.
        observer: Looks on, such as an `apressure.telemetry.Metrics`; see `serve`.

    Attributes:
        queue: The queue.
        handler: The work: a function, its name, or the name of the program of a command.

    Raises:
        TypeError, ValueError: An argument is invalid.
        FileNotFoundError: The program of the command cannot be found.
    """

    def __init__(
        self,
        client: TaskClient,
        queue: str,
        work: Work,
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        grace: float = 10.0,
        lease: float = DEFAULT_LEASE,
        on_orphan: Literal["retry", "fail"] = "retry",
        max_attempts: int | None = 3,
        shutdown_timeout: float = 30.0,
        max_output: int = 65536,
        on_output: OnOutput | None = None,
        signals: Sequence[int] = (SIGTERM, SIGINT),
        observer: Observer | None = None,
    ) -> None:
        validation.optional(validation.seconds, timeout, "timeout", above=True, none=True)
        self._settings = Settings(
            concurrency=validation.whole(concurrency, "concurrency", 1, _MOST),
            shutdown_timeout=validation.seconds(shutdown_timeout, "shutdown_timeout"),
            grace=validation.seconds(grace, "grace"),
            max_output=validation.whole(max_output, "max_output", 0, unit="bytes"),
            work=_work_of(work),
            timeout=timeout,
            lease=lease,
            attempts=max_attempts if on_orphan == "retry" else 1,
            on_output=on_output,
            signals=signals,
            observer=observer,
        )
        self._observe: Callable[[float], object] | ObservesCalls | None = None
        self.handler = work.command[0] if isinstance(work, Command) else work
        self.queue = client.queue(queue, lease=lease, max_attempts=max_attempts, on_orphan=on_orphan)
        self._running: dict[asyncio.Task[None], Performance] = {}
        self._endings: Counter[Ending] = Counter()
        self._receiving: CancelScope | None = None
        self._received: list[Signals] = []
        self._drained = False
        self._calls = Calls()
        self._failure: BaseException | None = None

    async def run(self) -> Ran:
        """Run tasks until the queue is closed and drained, or a signal comes. Call it once.

        Raises:
            ValueError: The function that processes are to call cannot be imported. No task was taken.
            RuntimeError: It was called before, or signals were asked for outside the main thread.
            PressureError: An error that a retry does not solve (`temporary` is False), or one before the first task.

        Cancelled, it ends the tasks as after a second signal, waits until nothing of them runs, and gives them back.
        """
        from anyio import CancelScope  # here, since it loads anyio's backend

        if self._receiving is not None:
            raise RuntimeError("this Runner has run already: make one for each run")
        self._receiving, settings = CancelScope(), self._settings
        async with contextlib.AsyncExitStack() as stack:
            self._stop_listening = stack.enter_context(listening(settings.signals, self._signalled))
            if settings.observer is not None:
                self._observe = stack.enter_context(settings.observer.observing(self))
            stack.enter_context(registered(self.queue, "runner", self._name, self._doing, self._drain))
            self._log(logging.INFO, "serve_started", "begins")
            block = self.queue.consumer("manual", prefetch=1)
            block.registers = False  # the Runner does that
            async with block as consumer:
                try:
                    with self._receiving:
                        await self._receive(consumer)
                    if self._running:
                        await asyncio.wait(self._running, timeout=settings.shutdown_timeout)
                finally:
                    self._end()
                    await background.join(self._running)
        if self._failure is not None:
            raise self._failure
        ended, signal = self._endings, self._received[0] if self._received else None
        ran = Ran(ended["complete"], ended["failed"], ended["given back"], ended["lost"], signal, self._drained)
        keys = {"handled": ran.complete, "failed": ran.failed, "signal": signal and signal.name}
        self._log(logging.INFO, "serve_ended", f"has ended: {ran.complete} complete, {ran.failed} failed", **keys)
        return ran

    def tally(self) -> Tally:
        """Return what has been done so far. Tasks that failed are the dead letters of their queue."""
        ended = self._endings
        failed, given_back = ended["failed"], ended["given back"]
        return Tally(ended["complete"], failed, given_back, failed, in_hand=len(self._running))

    def _doing(self) -> Doing:
        """Return what this Runner does, for those who look at the queue."""
        tally, calls, concurrency = self.tally(), self._calls, self._settings.concurrency
        draining = bool(self._received) or self._drained
        return Doing(concurrency, tally.in_hand, tally.handled, tally.failed, calls.oldest, calls.busy, draining)

    async def _receive(self, consumer: QueueConsumer[TaskDelivery[Any], TaskDelivery[Any]]) -> None:
        """Reserve a task whenever there is room for one, until the queue is drained and no task can go back to it."""
        settings, failures = self._settings, 0
        if isinstance(settings.work, Function):
            await settings.work.check()
        while True:
            while len(self._running) >= settings.concurrency:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            idle = not self._running
            try:
                self._start(await anext(consumer))
                failures = 0
            except StopAsyncIteration:
                if idle:
                    return
                if self._running:  # otherwise the last one has just ended: it may have gone back
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            except PressureError as error:
                if not error.temporary:
                    raise
                pause = _AGAIN.pause(failures)
                failures += 1
                text = f"asks for tasks again in {pause:.1f} s: {error}"
                name = type(error).__name__
                self._log(logging.WARNING, "serve_interrupted", text, error=name, seconds=pause)
                await asyncio.sleep(pause)

    def _start(self, delivery: TaskDelivery[Any]) -> None:
        performance = Performance(delivery, self._settings)
        task = background.start(self._perform(performance), f"running the task {delivery.id}")
        self._running[task] = performance
        task.add_done_callback(self._ended)
        if len(self._received) > 1 or self._failure is not None:  # that came while the task was on its way
            performance.stop(Reason.GIVE_BACK)

    async def _perform(self, performance: Performance) -> None:
        began, observe = time.perf_counter(), self._observe
        self._calls.running[performance] = began
        call = observe.call(performance.delivery) if isinstance(observe, ObservesCalls) else None
        if isinstance(call, CarriesContext):
            performance.variables = call.environment()
        try:
            with call or contextlib.nullcontext():
                self._endings[await performance.run()] += 1
        finally:
            self._calls.end(performance)
            if call is not None:
                call.end(performance.error or sys.exception())
        if observe is not None:
            observe(time.perf_counter() - began)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            assert self._receiving is not None
            self._receiving.cancel()
            self._end()

    def _signalled(self, signum: int) -> None:
        assert self._receiving is not None
        self._received.append(Signals(signum))
        running, name = len(self._running), Signals(signum).name
        if len(self._received) == 1:
            if not self._drained:
                self._begin_to_drain(name)
        else:
            self._stop_listening()
            text = f"ends its tasks after a second signal, {name}: {running} go back"
            self._log(logging.WARNING, "serve_cancelled", text, signal=name, count=running)
            self._end()

    def _drain(self) -> None:
        """End as after the first signal: somebody has asked for that."""
        if not self._received:
            self._drained = True
            self._begin_to_drain(None)

    def _begin_to_drain(self, signal: str | None) -> None:
        assert self._receiving is not None
        running = len(self._running)
        text = f"drains after {signal or 'an operator has asked for that'}: {running} tasks run"
        self._log(logging.INFO, "serve_draining", text, signal=signal, drained=self._drained, count=running)
        self._receiving.cancel()

    @property
    def _name(self) -> str:
        """The name of its work."""
        work = self.handler
        return work if isinstance(work, str) else getattr(work, "__name__", type(work).__name__)

    def _log(self, level: int, event: str, text: str, **keys: object) -> None:
        """Log an event of the life of this Runner."""
        about = {"event": event, "queue": self.queue.name, "kind": "TaskQueue", "handler": self._name}
        logger.log(level, "the Runner of %r %s", self.queue.name, text, extra={**about, **keys})

    def _end(self) -> None:
        """End all tasks: they go back."""
        for performance in self._running.values():
            performance.stop(Reason.GIVE_BACK)


def _work_of(work: Work) -> Command | Function | Callable[[Any], Any]:
    """Return what runs: a command, a function for processes of their own, or a coroutine function.

    Raises:
        TypeError, ValueError: It is nothing that can run.
        FileNotFoundError: There is no such program.
    """
    if isinstance(work, Command):
        work.check()
    if isinstance(work, (Command, Function)):
        return work
    if isinstance(work, str):
        return Function(work)
    if not callable(work):
        raise TypeError(f"a Runner runs a Command, a function or 'module:function', not {type(work).__name__}")
    if inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(getattr(work, "__call__", None)):  # noqa: B004
        return work
    return Function(_name_of(work))


def _name_of(function: Callable[[Any], Any]) -> str:
    """Return a function as `module:function`.

    Raises:
        TypeError: Another process could not import it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function or module == "__main__":
        raise TypeError(
            f"{function!r} cannot be imported by the process that is to call it: define it at the top level of a "
            "module other than the main program, or make it asynchronous to run it in this process"
        )
    return f"{module}:{name}"
