"""Helper processes of tests: what one has written is shown with the report, if its test fails.

That holds whatever the test does with the output: inherits it, reads it, drops it, or never looks at it. All tests
start their processes here (tests/unit/test_processes.py looks for others).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import multiprocessing.context
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, AnyStr, Final, Generic

import pytest

FORKING: Final = """
import asyncio, os, sys, traceback

children = []
for name in "AB":
    child = os.fork()
    if not child:
        try:
            asyncio.run(run(name))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
"""The end of a program with an `async def run(name)`: two children run it. If one fails, so does the program."""

_MOST: Final = 10_000
"""The most bytes of one process that are shown: the last ones."""

_outputs: list[Output] = []
"""What the processes of the running test have written."""


class Output:
    """What one process has written.

    Attributes:
        path: The file for what is not read by the test.
        ended: Whether the process has ended.
        left_open: Its pipes, if an event loop reads them: the loop may end before it has read their end.
    """

    def __init__(self, what: object) -> None:
        shown = (
            what if isinstance(what, str) else " ".join(map(str, what)) if isinstance(what, Sequence) else repr(what)
        )
        self._what = shown if len(shown) <= 200 else f"{shown[:200]}…"
        self._file = tempfile.NamedTemporaryFile(prefix="apressure-test-", buffering=0)  # noqa: SIM115 - see `close`
        self._read = bytearray()
        self._pipes: list[weakref.ref[Recorded]] = []  # one that is dropped is closed at once, and not in a cycle
        self.left_open: tuple[Any, ...] = ()
        self.path = self._file.name
        self.ended: Callable[[], bool] = lambda: True
        _outputs.append(self)

    def add(self, data: bytes) -> None:
        """Note what the test has read."""
        self._read += data

    def streams(self, options: dict[str, Any]) -> None:
        """Have a process write into the file what the test does not read."""
        for name in ("stdout", "stderr"):
            if options.get(name) in {None, subprocess.DEVNULL}:
                options[name] = self._file

    def recorded(self, pipe: Any) -> Any:
        """Return what reads the same pipe, and notes it."""
        if isinstance(pipe, io.TextIOWrapper):
            encoding, errors = pipe.encoding, pipe.errors
            return io.TextIOWrapper(self.recorded(pipe.detach()), encoding, errors)
        if isinstance(pipe, io.BufferedReader):
            return io.BufferedReader(self.recorded(pipe.detach()))
        recorder = Recorded(pipe, self)
        self._pipes.append(weakref.ref(recorder))
        return recorder

    def show(self) -> tuple[str, str] | None:
        """Return a section of a report; None if there is nothing to show."""
        for reference in self._pipes:
            if (pipe := reference()) is not None:
                pipe.look()
        written = Path(self.path).read_bytes()
        text = b"\n".join(filter(None, (written[-_MOST:], bytes(self._read[-_MOST:])))).decode(
            errors="backslashreplace"
        )
        return (f"written by: {self._what}", text) if text.strip() else None

    def close(self) -> None:
        """Delete the file, and close the pipes that an event loop has left open."""
        for pipe in self.left_open:
            pipe.close()
        self._file.close()


class Recorded(io.RawIOBase):
    """A pipe that notes what is read from it, and what is left when it is closed.

    It is a bare descriptor: a file object in a cycle of garbage would warn that nobody closed it.
    """

    def __init__(self, raw: io.RawIOBase, output: Output) -> None:
        self._fd = os.dup(raw.fileno())
        raw.close()
        self._output = output
        self._seen = b""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("the pipe is closed")
        return self._fd

    def readinto(self, buffer: Any) -> int | None:
        if self._seen:
            count = min(len(buffer), len(self._seen))
            buffer[:count], self._seen = self._seen[:count], self._seen[count:]
            return count
        try:
            data = os.read(self._fd, len(buffer))
        except BlockingIOError:
            return None
        buffer[: len(data)] = data
        self._output.add(data)
        return len(data)

    def look(self) -> None:
        """Note what nobody has read yet. It can still be read."""
        with contextlib.suppress(OSError, ValueError):  # closed
            os.set_blocking(self.fileno(), False)
            while data := os.read(self.fileno(), 65536):
                self._seen += data
                self._output.add(data)

    def close(self) -> None:
        if not self.closed:
            self.look()
            os.close(self._fd)
        super().close()


class Popen(subprocess.Popen[AnyStr], Generic[AnyStr]):
    """A process as `subprocess.Popen` starts it."""

    def __init__(self, command: Sequence[Any] | str, **options: Any) -> None:
        self.output = Output(command)
        self.output.streams(options)
        super().__init__(command, **options)
        self.output.ended = lambda: self.poll() is not None
        if self.stdout is not None:
            self.stdout = self.output.recorded(self.stdout)
        if self.stderr is not None:
            self.stderr = self.output.recorded(self.stderr)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        try:
            written = super().communicate(input, timeout)
        except subprocess.TimeoutExpired as late:
            self._note(late.output, late.stderr)
            raise
        if len(pipes) > 1 or self.stdin is not None:  # otherwise it was read as tests read it
            self._note(*written)
        return written

    def _note(self, *written: str | bytes | None) -> None:
        for part in filter(None, written):
            self.output.add(part.encode() if isinstance(part, str) else part)


def run(
    command: Sequence[Any] | str, *, input: Any = None, capture_output: bool = False, timeout: float | None = None,
    check: bool = False, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """Run a process to its end, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen[Any](command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


async def start(*command: Any, **options: Any) -> asyncio.subprocess.Process:
    """Start a process, as `asyncio.create_subprocess_exec` does."""
    output = Output(command)
    output.streams(options)
    process = await asyncio.create_subprocess_exec(*command, **options)
    output.ended = lambda: process.returncode is not None
    popen: subprocess.Popen[bytes] = process._transport.get_extra_info("subprocess")  # type: ignore[attr-defined]
    output.left_open = tuple(pipe for pipe in (popen.stdout, popen.stderr) if pipe is not None)
    for reader in (process.stdout, process.stderr):
        if reader is not None:
            output.add(bytes(reader._buffer))  # type: ignore[attr-defined]
            reader.feed_data = _noting(output, reader.feed_data)  # type: ignore[method-assign]
    return process


def _noting(output: Output, feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def noting(data: bytes) -> None:
        output.add(data)
        feed(data)

    return noting


def process(
    context: multiprocessing.context.BaseContext, target: Callable[..., object], *arguments: Any, daemon: bool = True
) -> Any:
    """Start a process of `multiprocessing`."""
    output = Output(getattr(target, "__qualname__", target))
    made = context.Process(target=_written, args=(output.path, target, arguments), daemon=daemon)  # type: ignore[attr-defined]
    made.start()
    output.ended = lambda: not made.is_alive()
    return made


def executor() -> ProcessPoolExecutor:
    """Return an executor of one fresh process."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), write_to, (Output("an executor").path,))


def _written(path: str, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    write_to(path)
    target(*arguments)


def write_to(path: str) -> None:
    """Have this process write into the file of an `Output` from now on: the initializer of an executor."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115


def forked(work: Callable[[], object]) -> int:
    """Do work in a fork of this process, outside the event loop. Returns its exit code: 1 if the work raised."""
    output = Output(f"a fork for {getattr(work, '__qualname__', work)}")
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        write_to(output.path)
        asyncio.events._set_running_loop(None)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of the test's may run in here


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget processes of tests that are over, except those that several tests share."""
    for output in [*_outputs]:
        if output.ended():
            _outputs.remove(output)
            output.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += filter(None, [output.show() for output in _outputs])
    return report


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
