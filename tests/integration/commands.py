"""The real `apressure` command in real processes, and how to be sure that nothing of it is left running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import psutil

import apressure
from apressure import AsyncQueue, QueueClosedError, QueueEmptyError, QueueStatistics, open_queue
from apressure.cli import main
from tests import processes

T = TypeVar("T")

PATIENCE = 240.0
"""Seconds after which something that should happen counts as not happening."""

MARK = "APRESSURE_TEST_MARK"
"""An environment variable by which the descendants of a process are found, also those whose parent has died."""

COMMAND = [sys.executable, "-m", "apressure"]


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a command: nothing of what this machine may have set for Redis, and our package."""
    unwanted = ("APRESSURE_", "REDIS_", "PRESSURE_", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    path = os.fspath(Path(apressure.__file__).parents[1])
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, (path, clean.get("PYTHONPATH"))))
    clean["TERM"] = "xterm"
    if url is not None:
        clean["APRESSURE_URL"] = url
    return {**clean, **more}


class Commands:
    """Runs commands against one server. The library does what only prepares or looks, because that is quicker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = environment(url)

    def __call__(
        self,
        *arguments: str | bytes,
        input: bytes = b"",
        code: int = 0,
        env: Mapping[str, str] | None = None,
        warned: str = "",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, and check its exit code, and that a good one warns of nothing else.

        It runs in this process where that is possible, since starting Python is what takes the time.
        """
        variables = {**self.environment, **(env or {})}
        if _can_run_here():
            done = _run_here([os.fsdecode(argument) for argument in arguments], input, variables)
        else:
            done = processes.run(
                [*COMMAND, *arguments],
                input=input,
                capture_output=True,
                env=variables,
                timeout=PATIENCE,
                check=False,
            )
        assert done.returncode == code, (done.returncode, done.stdout[-500:], done.stderr.decode())
        assert b"Traceback" not in done.stderr
        if code == 0:
            assert done.stderr.decode() == warned
        return done

    def json(self, *arguments: str) -> Any:
        """Run a command with `--json` and return what it prints."""
        return json.loads(self(*arguments, "--json").stdout)

    def library(self, name: str, use: Callable[[AsyncQueue[bytes]], Awaitable[T]]) -> T:
        """Do something with a queue in this process."""

        async def main() -> T:
            async with AsyncQueue(name, url=self.url) as queue:
                return await use(queue)

        return asyncio.run(main())

    def stat(self, name: str) -> QueueStatistics:
        return self.library(name, lambda queue: queue.statistics())

    def create(self, name: str, bound: int = 0) -> None:
        self.library(name, lambda queue: queue.create(bound))

    def fill(self, name: str, *items: bytes) -> None:
        self.library(name, lambda queue: queue.put_many(items, force=True))

    def empty(self, name: str) -> list[bytes]:
        """Get everything that is there."""

        async def get_all(queue: AsyncQueue[bytes]) -> list[bytes]:
            items: list[bytes] = []
            with contextlib.suppress(QueueEmptyError, QueueClosedError):
                while True:
                    items += await queue.get_many(1000, timeout=0)
            return items

        return self.library(name, get_all)

    def close(self, name: str) -> None:
        self.library(name, lambda queue: queue.close())

    def delete(self, name: str) -> None:
        self.library(name, lambda queue: queue.delete())

    @contextlib.contextmanager
    def running(self, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command, and see to it that it ends."""
        with running([*COMMAND, *arguments], env=self.environment, **streams) as process:
            yield process


def with_queue(url: str, address: str, use: Callable[[Any], Awaitable[T]], **options: Any) -> T:
    """Do something with a queue of any kind in this process. A directory needs no server."""
    if not address.startswith("files:"):
        options["url"] = url

    async def run() -> T:
        async with open_queue(address, codec="raw", **options) as queue:
            return await use(queue)

    return asyncio.run(run())


def _can_run_here() -> bool:
    """Whether no event loop runs here, and this is the thread that gets signals."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    return threading.current_thread() is threading.main_thread()


def _run_here(arguments: list[str], input: bytes, variables: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command in this process, with files as its standard input, output and errors."""
    with contextlib.ExitStack() as stack:
        given, *written = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(input)
        given.seek(0)
        for number, file in enumerate((given, *written)):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            stream = stack.enter_context(open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        for file in written:
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, *(file.read() for file in written))


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and see to it that it ends."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = processes.Popen(command, **{**streams, **options})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to a process's standard input, at once."""
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Wait for a process; returns its exit code and the rest of its output and errors."""
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output or b"", errors or b""


def read_to_the_end(terminal: int) -> str:
    """Read what is shown on a terminal until its other side is closed, and close it."""
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so at a terminal's end
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    return shown.decode()


def new_mark() -> dict[str, str]:
    """An environment that marks a process and all its descendants."""
    return {MARK: uuid.uuid4().hex}


def marked(mark: Mapping[str, str], directory: Path) -> list[psutil.Process]:
    """The processes that carry a mark or work in a directory, without those that have ended and wait to be buried.

    The directory is for servers: they write their title over their environment.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark[MARK] or process.cwd().startswith(os.fspath(directory)):
                found.append(process)
    return found


def stop(process: subprocess.Popen[bytes], signum: int = signal.SIGINT) -> tuple[int, bytes, bytes]:
    """Send a signal, and wait for the end."""
    process.send_signal(signum)
    return ended(process)
