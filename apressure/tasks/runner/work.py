"""The two kinds of work of a `Runner`: a process of its own for each task (supervisor.py), or a coroutine here."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from apressure.concurrency import background
from apressure.tasks.runner.command import Command, Function
from apressure.tasks.runner.reports import VARIABLE, OnProgress, Output, Reports, current_progress

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")

BUSY: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
"""Errors that say more of this machine than of the command."""

_REPORTS: Final = 3
"""The descriptor by which the command reports: shells know those of one digit only."""

_REST: Final = 1.0
"""Seconds for which to read on when the command has ended: something may hold its streams open."""

_PIECE: Final = 1 << 17

_MOST_OF_ERROR: Final = 1000
"""How many characters of the standard error are in the error of a task."""


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


class Ended(NamedTuple):
    """How a command has ended.

    Attributes:
        status: Its exit status; if negative, the signal that ended it; None if nobody knows, since its supervisor
            was killed.
        refused: The number of the error with which it could not be executed; 0 if it was.
        late: It got SIGTERM because its lease was not renewed in time.
    """

    status: int | None
    refused: int
    late: bool


class TaskProcess:
    """A task that runs as a process. Made on the event loop.

    Args:
        work: What to run.
        order: The task.

    Attributes:
        pid: The supervisor's process id. The supervisor lives for as long as anything of the command.

    Raises:
        TypeError, ValueError: The parameters are invalid.
        OSError: The supervisor cannot be started: too many processes or descriptors, too long arguments, no such
            working directory.
    """

    def __init__(self, work: Command | Function, order: Order) -> None:
        self._job = job = work.job(order.parameters)
        self._output = output = order.output
        self._reports = Reports(order.on_progress, order.name)
        self._stopped = False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            stdin = theirs.enter_context(tempfile.TemporaryFile(buffering=0))
            stdin.write(job.stdin)
            stdin.seek(0)
            control_end, control = _pipe(theirs, ours)
            takers: dict[str, Callable[[bytes], None]] = {
                "status": self._listen,
                "reports": self._reports.feed,
                "stdout": functools.partial(output.feed, "stdout"),
                "stderr": functools.partial(output.feed, "stderr"),
            }
            reading = {name: _pipe(ours, theirs) for name in takers}
            passed = (control_end, reading["status"][1], reading["reports"][1])
            limits = (*order.times, order.grace)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, *map(str, (*passed, *limits)), *job.command],
                stdin=stdin, stdout=reading["stdout"][1], stderr=reading["stderr"][1], pass_fds=passed, cwd=work.cwd,
                env={**os.environ, **work.env, **order.variables, VARIABLE: str(_REPORTS)}, start_new_session=True,
            )  # fmt: skip
            ours.pop_all()
        self.pid = self._process.pid
        self._said: dict[str, str] = {}  # what the supervisor has said: a word, and a value
        self._unread = b""
        self._control: int | None = control
        self._writing = threading.Lock()
        os.set_blocking(control, False)
        self._readers = {name: _Reader(ends[0], takers[name]) for name, ends in reading.items()}

    def go(self) -> None:
        """Start the command, unless its time has passed."""
        self._order("go")

    def renew(self, times: Times) -> None:
        """Let the command run for longer. Called in any thread."""
        self._order(f"renew {times.term_at} {times.kill_at}")

    def stop(self, grace: float) -> None:
        """Send SIGTERM to everything of the command, and SIGKILL after `grace` seconds; 0 kills at once.

        However it ends, it is not complete.
        """
        self._stopped = True
        self._order(f"stop {grace}")

    async def wait(self) -> Outcome:
        """Wait until nothing of it runs any more. Cancelled, call it again."""
        ended, reports, output = await self.ended(), self._reports, self._output
        error = reports.error or self._error(ended)
        if error is not None:
            crashed = ended.status in {None, -signal.SIGKILL} or ended.late or ended.refused in BUSY
            return Outcome(error, None, crashed, output.both.text, ended.status)
        if self._job.reports_result or reports.result is not None:
            return Outcome(None, json.loads(reports.result or "null"), output=output.both.text, status=0)
        return Outcome(None, output.stdout.text.removesuffix("\n"), output=output.stderr.text, status=0)

    async def ended(self) -> Ended:
        """Wait until nothing of the command runs any more. Cancelled, call it again.

        If the supervisor was killed, the command's process group is killed here.
        """
        await asyncio.wait((self._readers["status"].ended,))
        self._process.wait()  # it has closed its descriptors, so this is a moment
        with self._writing:
            if self._control is not None:
                os.close(self._control)
            self._control = None
        said = self._said
        if "started" in said and "ended" not in said:
            await _kill_group(int(said["started"]))
        await asyncio.wait([reader.ended for reader in self._readers.values()], timeout=_REST)
        for reader in self._readers.values():
            reader.close()
        status = int(said["ended"]) if "ended" in said else None
        return Ended(status, int(said.get("refused", 0)), "late" in said)

    def _error(self, ended: Ended) -> str | None:
        """Return why the process has failed; None if it has not."""
        if self._stopped:
            return "it was stopped"
        if ended.late:
            return "its lease was not renewed in time, so it was ended"
        if ended.refused:
            return f"cannot run {self._job.command[0]}: {os.strerror(ended.refused)}"
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

    def _order(self, line: str) -> None:
        with self._writing, contextlib.suppress(BlockingIOError, BrokenPipeError):
            if self._control is not None:
                os.write(self._control, f"{line}\n".encode())

    def _listen(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            self._said[word] = value


class _Reader:
    """Reads a descriptor on the event loop, and closes it at its end.

    Attributes:
        ended: Done when it is closed.
    """

    def __init__(self, descriptor: int, feed: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._descriptor = descriptor
        self._feed = feed
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(self._descriptor, _PIECE):
                self._feed(data)
            else:
                self.close()

    def close(self) -> None:
        """Read no more."""
        if not self.ended.done():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set_result(None)


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """Return the two ends of a new pipe, each to be closed by one of these stacks."""
    read, write = os.pipe()
    reading.callback(os.close, read)
    writing.callback(os.close, write)
    return read, write


async def _kill_group(leader: int) -> None:
    """Kill a process group whose supervisor was killed, and wait until it has ended.

    The leader itself is dead on Linux. A process that nobody waits for after its end counts as ended after a second.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for _ in range(100):
            os.killpg(leader, signal.SIGKILL)
            await asyncio.sleep(0.01)
