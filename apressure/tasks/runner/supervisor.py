"""Runs one command, and sees to it that nothing of it runs longer than it may.

    python -I -S supervisor.py CONTROL STATUS REPORTS TERM_AT KILL_AT GRACE COMMAND [ARGUMENT ...]

This program imports nothing but the standard library, and is never imported. A `Runner` starts one for each task, so
that the command ends even where the Runner is killed or stands still, before another node may run the task.

CONTROL is a descriptor from which it reads lines:

* `go`: start the command, in a session and process group of its own.
* `renew TERM_AT KILL_AT`: these times hold from now on.
* `stop GRACE`: SIGTERM to everything that the command has started, and SIGKILL after so many seconds. `stop 0` kills.
* the end of the file: the Runner has ended. The same as `stop` with the GRACE that this program was started with.

Without a renewal, SIGTERM comes at TERM_AT and SIGKILL at KILL_AT, in seconds of CLOCK_BOOTTIME. SIGTERM, SIGINT and
SIGHUP to this program have the effect of `stop`.

STATUS is a descriptor to which it writes lines:

* `started PID`
* `refused ERRNO`: the command cannot be executed.
* `late`: TERM_AT has passed without a renewal.
* `ended STATUS`: the command has ended, with this exit status or, if negative, by this signal; and nothing runs any
  more of what it has started. This is the last line.

REPORTS is a descriptor that the command gets as descriptor 3.

On Linux, this process is the parent of everything that the command leaves behind (PR_SET_CHILD_SUBREAPER), and the
command is killed when this process is (PR_SET_PDEATHSIG). Elsewhere only the process group is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
REPORTS = 3
"""The descriptor by which the command reports."""

LONGEST_WAIT = 1.0
"""Seconds; the time for which `poll` waits does not go on while the machine is suspended, and CLOCK_BOOTTIME does."""

AGAIN = 0.05
"""Seconds between two SIGKILLs for what was forked meanwhile."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NEVER = float("inf")

now = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Supervisor:
    """Runs one command.

    Args:
        control: The descriptor that is read.
        status: The descriptor that is written to.
        reports: The descriptor that the command gets.
        term_at: When SIGTERM is due.
        kill_at: When SIGKILL is due.
        grace: Seconds from SIGTERM to SIGKILL after the end of `control`.
    """

    def __init__(self, control: int, status: int, reports: int, term_at: float, kill_at: float, grace: float) -> None:
        self._control, self._status, self._reports = control, status, reports
        self._term_at, self._kill_at, self._grace = term_at, kill_at, grace
        self._pid = 0
        self._result: int | None = None  # how the command has ended
        self._stopped_until = NEVER  # when a stop becomes a kill
        self._signalled = False

    def run(self, command: list[str]) -> None:
        """Wait for `go`, run the command, and end everything that is left of it."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note_signal)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        unread = b""
        while not self._over():
            for descriptor, _ in poll.poll(self._pause() * 1000):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif data := os.read(self._control, 4096):
                    *lines, unread = (unread + data).split(b"\n")
                    for line in lines:
                        self._obey(command, *line.split())
                else:
                    poll.unregister(self._control)
                    self._stop(self._grace)
        if self._result is not None:
            self._tell(f"ended {self._result}")

    def _obey(self, command: list[str], word: bytes, *values: bytes) -> None:
        if word == b"go" and now() < self._term_at:
            self._start(command)
        elif word == b"renew":
            self._term_at, self._kill_at = map(float, values)
        elif word == b"stop":
            self._stop(float(values[0]))

    def _over(self) -> bool:
        """Do what is due now; returns whether nothing runs any more, and nothing will."""
        if self._signalled:
            self._stop(self._grace)
        if now() >= self._term_at and self._stopped_until == NEVER:
            self._tell("late")
            self._stop(self._grace)
        if not self._pid:
            return self._stopped_until != NEVER
        if self._reap():
            return True
        # What the command leaves behind when it ends by itself is killed; after a stop it has the rest of the time.
        by_itself = self._result is not None and self._stopped_until == NEVER
        kill = by_itself or now() >= min(self._stopped_until, self._kill_at)
        if self._result is None and not kill:
            return False
        reached = self._signal_all(signal.SIGKILL if kill else 0)
        return self._result is not None and not reached

    def _pause(self) -> float:
        """Return for how many seconds to wait for a signal or a line."""
        due = self._term_at if self._stopped_until == NEVER else min(self._stopped_until, self._kill_at)
        if self._result is not None or due <= now():
            return AGAIN
        return min(due - now(), LONGEST_WAIT)

    def _start(self, command: list[str]) -> None:
        """Start the command; if that fails, say so."""
        supervisor = os.getpid()
        if LINUX:
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        failure, failed = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.setsid()
                if LINUX:
                    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    if os.getppid() != supervisor:
                        return
                for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                    signal.signal(signum, signal.SIG_DFL)
                failed = os.dup(failed)  # in case it is the descriptor for reports
                os.dup2(self._reports, REPORTS)
                os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)
            except OSError as error:
                os.write(failed, b"%d" % (error.errno or 0))
            finally:
                os._exit(127)
        os.close(failed)
        os.close(self._reports)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # the command's streams end with the command
            os.dup2(nothing, descriptor)
        reason = os.read(failure, 16).decode()
        self._tell(f"refused {reason}" if reason else f"started {self._pid}")

    def _stop(self, grace: float) -> None:
        """Send SIGTERM, unless that was done before, and SIGKILL after so many seconds at the latest."""
        if self._stopped_until == NEVER and grace and self._pid:
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process would not get the first one
        self._stopped_until = min(self._stopped_until, now() + grace)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signalled = True

    def _signal_all(self, signum: int) -> bool:
        """Send a signal to everything that the command has started; returns whether there is anything to get it."""
        if not LINUX:
            return _send(os.killpg, self._pid, signum)
        return sum(_send(os.kill, pid, signum) for pid in _descendants()) > 0

    def _reap(self) -> bool:
        """Note what has ended; returns whether everything has."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    self._result = os.waitstatus_to_exitcode(status)
                if not pid:
                    return False
        except ChildProcessError:
            return LINUX or not self._signal_all(0)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            os.write(self._status, f"{line}\n".encode())


def _send(send: Callable[[int, int], None], target: int, signum: int) -> bool:
    try:
        send(target, signum)
    except (ProcessLookupError, PermissionError):  # it has ended, or it belongs to somebody else (setuid)
        return False
    return True


def _descendants() -> list[int]:
    """Return the processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes longer to import than the rest to run)
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry))
                if state in b"ZX":
                    ended.add(int(entry))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return [pid for pid in found if pid not in ended]


def main() -> None:
    """Run the command that the arguments say."""
    control, status, reports = map(int, sys.argv[1:4])
    term_at, kill_at, grace = map(float, sys.argv[4:7])
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    Supervisor(control, status, reports, term_at, kill_at, grace).run(sys.argv[7:])


if __name__ == "__main__":
    main()
