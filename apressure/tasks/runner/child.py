"""One command that runs under a supervisor (supervisor.py), as its Runner sees it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from apressure.concurrency.settle import set_result_once
from apressure.tasks.runner.command import Job
from apressure.tasks.runner.output import Output
from apressure.tasks.runner.reports import VARIABLE, Reports

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")

_REPORTS: Final = 3
"""The descriptor by which the command reports: shells know those of one digit only."""

_REST: Final = 1.0
"""Seconds for which to read on when the command has ended: something may hold its streams open."""

_PIECE: Final = 1 << 17


class Times(NamedTuple):
    """When a command is ended unless its lease is renewed before, in seconds of CLOCK_BOOTTIME.

    Attributes:
        term_at: When it gets SIGTERM.
        kill_at: When it gets SIGKILL.
    """

    term_at: float
    kill_at: float


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


class Child:
    """A command under a supervisor. It starts with `go`, and must be awaited with `wait`.

    Made on the event loop.

    Args:
        job: What to run.
        environment: Its environment.
        cwd: Its working directory; None for this process's.
        times: When it is ended.
        grace: Seconds from SIGTERM to SIGKILL when this process has ended.
        output: Takes what it writes.
        reports: Takes what it reports.

    Attributes:
        pid: The supervisor's process id. The supervisor lives for as long as anything of the command.

    Raises:
        OSError: The supervisor cannot be started: too many processes or descriptors, too long arguments, no such
            working directory.
    """

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        times: Times,
        grace: float,
        output: Output,
        reports: Reports,
    ) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            stdin = theirs.enter_context(tempfile.TemporaryFile(buffering=0))
            stdin.write(job.stdin)
            stdin.seek(0)
            control_end, control = _pipe(theirs, ours)
            reading = {name: _pipe(ours, theirs) for name in ("status", "reports", "stdout", "stderr")}
            passed = (control_end, reading["status"][1], reading["reports"][1])
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, *map(str, (*passed, *times, grace)), *job.command],
                stdin=stdin, stdout=reading["stdout"][1], stderr=reading["stderr"][1], pass_fds=passed, cwd=cwd,
                env={**environment, VARIABLE: str(_REPORTS)}, start_new_session=True,
            )  # fmt: skip
            ours.pop_all()
        self.pid = self._process.pid
        self._said: list[list[str]] = []
        self._unread = b""
        self._control: int | None = control
        self._writing = threading.Lock()
        os.set_blocking(control, False)
        takers: dict[str, Callable[[bytes], None]] = {
            "status": self._listen,
            "reports": reports.feed,
            "stdout": functools.partial(output.feed, "stdout"),
            "stderr": functools.partial(output.feed, "stderr"),
        }
        self._readers = {name: _Reader(ends[0], takers[name]) for name, ends in reading.items()}

    def go(self) -> None:
        """Start the command, unless its time has passed."""
        self._order("go")

    def renew(self, times: Times) -> None:
        """Let the command run for longer. Called in any thread."""
        self._order(f"renew {times.term_at} {times.kill_at}")

    def stop(self, grace: float) -> None:
        """Send SIGTERM to everything of the command, and SIGKILL after `grace` seconds; 0 kills at once."""
        self._order(f"stop {grace}")

    async def wait(self) -> Ended:
        """Wait until nothing of the command runs any more. Cancelled, call it again.

        If the supervisor was killed, the command's process group is killed here.
        """
        await asyncio.wait((self._readers["status"].ended,))
        self._process.wait()  # it has closed its descriptors, so this is a moment
        with self._writing:
            if self._control is not None:
                os.close(self._control)
            self._control = None
        ended = [int(value) for word, value in self._said if word == "ended"]
        started = [int(value) for word, value in self._said if word == "started"]
        if started and not ended:
            await _kill_group(started[0])
        await asyncio.wait([reader.ended for reader in self._readers.values()], timeout=_REST)
        for reader in self._readers.values():
            reader.close()
        refused = [int(value) for word, value in self._said if word == "refused"]
        return Ended(
            status=ended[0] if ended else None,
            refused=refused[0] if refused else 0,
            late=any(word == "late" for word, _ in self._said),
        )

    def _order(self, line: str) -> None:
        with self._writing, contextlib.suppress(BlockingIOError, BrokenPipeError):
            if self._control is not None:
                os.write(self._control, f"{line}\n".encode())

    def _listen(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._said += [[*line.decode().split(), ""][:2] for line in lines]


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
            set_result_once(self.ended, None)


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
