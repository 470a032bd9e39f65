"""One task in the hands of a `Runner`: from its reservation until it is settled, or belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff, pause_until
from apressure.exceptions import DecodeError, LeaseLostError, PressureError, TaskDoesNotExistError, TaskFailedError
from apressure.protocols import Observer
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.runner.command import Command, Function
from apressure.tasks.runner.reports import Output, Stream
from apressure.tasks.runner.work import BUSY, Order, Outcome, TaskCoroutine, TaskProcess, Times

logger = logging.getLogger("apressure")

OnOutput = Callable[[TaskDelivery[Any], Stream, str], object]
"""Called with a delivery, the name of a stream, and a piece of what its process wrote there."""

_AGAIN: Final = Backoff(0.2, 5.0)
"""The pauses before a task is settled once more, after a temporary error."""

_BETWEEN: Final = 0.5
"""Seconds between two writes of a task's progress."""

_SHORT: Final = 1.0
"""Seconds: for a task that ends within this time, nobody listens for a cancellation. Renewals find it out, too."""

_GONE: Final = (LeaseLostError, TaskDoesNotExistError)


class Reason(enum.StrEnum):
    """Why a task is stopped."""

    TIMEOUT = "timed out"
    CANCELLED = "cancelled"
    GIVE_BACK = "another attempt is to run it"
    LOST = "the lease was lost"


Running = TaskProcess | TaskCoroutine
"""A task that runs, or is about to."""

Ending = Literal["complete", "failed", "given back", "lost"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a `Runner` was told, checked; see there.

    Attributes:
        work: What runs: a command, a function for processes of their own, or a coroutine function.
        attempts: How often a task is tried whose process was killed by somebody else; None for no limit.
    """

    work: Command | Function | Callable[[Any], Any]
    concurrency: int
    timeout: float | None
    grace: float
    lease: float
    attempts: int | None
    shutdown_timeout: float
    max_output: int
    on_output: OnOutput | None
    signals: Sequence[int]
    observer: Observer | None

    def times(self, certain_until: float) -> Times:
        """Return when a process has to end whose lease certainly lasts until then, by CLOCK_BOOTTIME.

        A tenth of the lease is for a busy machine, and at most a fifth for the process to clean up.
        """
        kill_at = certain_until - self.lease / 10
        return Times(kill_at - min(self.grace, self.lease / 5), kill_at)


class Performance:
    """One task that runs.

    Args:
        delivery: The task.
        settings: Those of its Runner.

    Attributes:
        delivery: As given.
        variables: What its process has in its environment besides what every task has.
        error: Why the task is not complete, for observers; None while it runs, and if it is.
    """

    def __init__(self, delivery: TaskDelivery[Any], settings: Settings) -> None:
        self.delivery = delivery
        self.variables: Mapping[str, str] = {}
        self.error: BaseException | None = None
        self._settings = settings
        on_text = None if settings.on_output is None else functools.partial(settings.on_output, delivery)
        self._output = Output(settings.max_output, on_text)
        self._progress = Progress(delivery)
        self._running: Running | None = None
        self._reason: Reason | None = None

    def stop(self, reason: Reason) -> None:
        """Have the task end, unless it has been stopped before; a lost lease kills it in any case."""
        if self._reason is None or reason is Reason.LOST:
            self._reason = reason
            if self._running is not None:
                self._running.stop(0.0 if reason is Reason.LOST else self._settings.grace)

    async def run(self) -> Ending:
        """Run the task, and settle it."""
        delivery, begun = self.delivery, time.monotonic()
        try:
            self._running = running = self._begin()
        except (DecodeError, TypeError, ValueError, OSError) as error:
            outcome = Outcome(f"cannot run: {error}", crashed=isinstance(error, OSError) and error.errno in BUSY)
        else:
            outcome = await self._perform(running)
        await self._progress.end()
        ending = await self._settle(outcome)
        self.error = None if ending == "complete" else self._error(outcome)
        seconds, why = time.monotonic() - begun, "" if ending == "complete" else self._reason or outcome.error or ""
        name = logs.printable(delivery.id)
        logger.log(
            logging.INFO if ending in ("complete", "failed") else logging.WARNING,  # `fail` warns
            "the task %s of the queue %r: %s after %.1f s, at attempt %d%s%s",
            name, delivery.task.queue, ending, seconds, delivery.attempts, why and ": ", why,
            extra={"queue": delivery.task.queue, "delivery": name, "attempts": delivery.attempts},
        )  # fmt: skip
        return ending

    def _begin(self) -> Running:
        """Prepare the task to run."""
        delivery, settings = self.delivery, self._settings
        variables = {
            **self.variables,
            "APRESSURE_TASK_ID": delivery.id,
            "APRESSURE_TASK_QUEUE": delivery.task.queue or "",
            "APRESSURE_TASK_ATTEMPT": str(delivery.attempts),
        }
        order = Order(
            f"the task {delivery.id}", delivery.item, variables, settings.times(delivery.certain_until),
            settings.grace, self._output, self._progress.report,
        )  # fmt: skip
        if isinstance(settings.work, (Command, Function)):
            return TaskProcess(settings.work, order)
        return TaskCoroutine(settings.work, order)

    def _error(self, outcome: Outcome) -> BaseException:
        """Return why the task is not complete. Its class says it without the texts of the task."""
        reason = self._reason
        if reason is None:
            return TaskFailedError("it failed", id=self.delivery.id, error=outcome.error or "")
        if reason is Reason.LOST:
            return LeaseLostError(reason.value, name=self.delivery.task.queue or "", role="consumer")
        return TimeoutError(reason.value) if reason is Reason.TIMEOUT else asyncio.CancelledError(reason.value)

    async def _perform(self, running: Running) -> Outcome:
        """Start the task, and wait for its end."""
        delivery, settings, stack = self.delivery, self._settings, contextlib.ExitStack()
        stack.callback(background.start(self._listen(), f"listening for a cancellation of {delivery.id}").cancel)
        try:
            delivery.on_renewed(lambda until: running.renew(settings.times(until)))
            running.renew(settings.times(delivery.certain_until))  # a renewal may have come before that
            delivery.on_cancel(lambda: self.stop(Reason.CANCELLED))
            delivery.on_lost(lambda: self.stop(Reason.LOST))
            if delivery.cancel_requested:
                self.stop(Reason.CANCELLED)
            try:
                await delivery.start(running.pid)
            except PressureError as error:
                self._warn("could not be noted as started", error)
                self.stop(Reason.LOST if isinstance(error, _GONE) else Reason.GIVE_BACK)
            if self._reason is None:
                running.go()
                if settings.timeout is not None:
                    timer = asyncio.get_running_loop().call_later(settings.timeout, self.stop, Reason.TIMEOUT)
                    stack.callback(timer.cancel)
            else:
                running.stop(0.0)
            return await running.wait()
        except BaseException:
            running.stop(0.0)  # the supervisor goes on with that
            raise
        finally:
            stack.close()

    async def _listen(self) -> None:
        """Learn at once of a request to cancel the task."""
        await asyncio.sleep(_SHORT)
        for failures in itertools.count():
            try:
                await self.delivery.wait_cancel_requested()
                break
            except PressureError as error:
                if not error.temporary:
                    break
            await asyncio.sleep(_AGAIN.pause(failures))

    async def _settle(self, outcome: Outcome) -> Ending:
        """Note how the task has ended; try again for as long as the lease lasts."""
        for failures in itertools.count():
            try:
                return await self._settle_once(outcome)
            except _GONE as error:
                self._warn("belongs to another node, or was deleted", error)
                return "lost"
            except PressureError as error:
                self._warn("could not be settled", error)
                if not error.temporary or (self._reason is Reason.GIVE_BACK and self.delivery.lease_left < 0):
                    return "lost"
            await asyncio.sleep(_AGAIN.pause(failures))
        raise AssertionError

    async def _settle_once(self, outcome: Outcome) -> Ending:
        delivery, reason, error = self.delivery, self._reason, outcome.error
        fields = {"output": outcome.output.encode(errors="replace").decode()}
        if outcome.status is not None:
            fields["exit_status"] = str(outcome.status)
        if reason is Reason.LOST:
            return "lost"
        if error is None:
            try:
                await delivery.complete(outcome.result, fields=fields)
                return "complete"
            except (TypeError, ValueError, RecursionError) as refused:
                error = f"the result is a {type(outcome.result).__name__} that cannot be kept: {refused}"
        if reason is Reason.GIVE_BACK:
            await delivery.release()
            return "given back"
        attempts = self._settings.attempts
        if reason is None and outcome.crashed and (attempts is None or delivery.attempts < attempts):
            await delivery.nack(error)
            return "given back"
        if reason is Reason.CANCELLED:
            error = "cancelled"
        elif reason is Reason.TIMEOUT:
            error = f"timed out after {self._settings.timeout:g} s"
        delivery.logged_reason = error
        await delivery.fail(error, fields=fields)
        return "failed"

    def _warn(self, what: str, error: PressureError) -> None:
        logger.warning("the task %s %s: %s", logs.printable(self.delivery.id), what, error)


class Progress:
    """Writes the progress of a task, the latest only.

    Args:
        delivery: The task.
    """

    def __init__(self, delivery: TaskDelivery[Any]) -> None:
        self._delivery = delivery
        self._latest: tuple[float, str] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def report(self, fraction: float, message: str) -> None:
        """Write this soon. Called on the event loop."""
        self._latest = fraction, message
        if self._ended.is_set():
            return
        if self._writing is None or self._writing.done():
            self._writing = background.start(self._write(), f"noting the progress of {self._delivery.id}")

    async def end(self) -> None:
        """Write what is left, and wait for that."""
        self._ended.set()
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _write(self) -> None:
        while self._latest is not None:
            (fraction, message), self._latest = self._latest, None
            try:
                await self._delivery.progress(fraction, message)
            except PressureError as error:
                logger.debug("the progress of the task %s was not noted: %s", logs.printable(self._delivery.id), error)
            await pause_until(self._ended, _BETWEEN)
