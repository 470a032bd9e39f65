"""Several processes of a worker: started together, started again when they die, and ended in an orderly way.

Each process runs the same command. It has its number in its environment, and a socket to its parent as its standard
input. The end of the socket tells it that the parent has died. Through the socket it tells the parent that its queues
are drained: an exit code of 0 alone may come from `os._exit(0)` in a handler. It is in a session of its own, so Ctrl-C
at a terminal reaches it through the parent alone, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff, pause_until
from apressure.concurrency.signals import listening
from apressure.exceptions import MissingExtraError

logger = logging.getLogger("apressure")

NUMBER: Final = "APRESSURE_WORKER_PROCESS"
"""The environment variable with the number of a process, from 0."""

_RESTART: Final = Backoff(0.5, 30.0)
"""The pauses before a process is started again."""

_HEALTHY: Final = 10.0
"""Seconds after which a process that ends counts as having worked: the pauses begin anew."""

_DRAINED: Final = b"drained"
"""What a process sends to its parent before it ends, if its queues are drained."""

_NOT_STARTED: Final = 126
"""The exit code of a process that could not be started, as in a shell."""


def number_of_this_process() -> int | None:
    """Return the number of this process among those of a parent, or None. Its own children do not see it."""
    text = os.environ.pop(NUMBER, None)
    return None if text is None else int(text)


@contextlib.contextmanager
def parent_watched(on_death: Callable[[], object]) -> Iterator[None]:
    """Call `on_death()` on the event loop when the parent has died."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 64):
            loop.remove_reader(0)
            on_death()

    loop.add_reader(0, readable)
    try:
        yield
    finally:
        loop.remove_reader(0)


def tell_drained() -> None:
    """Tell the parent that the queues of this process are drained: it is not to be started again."""
    with contextlib.suppress(OSError):  # the parent has died
        os.write(0, _DRAINED)


class Processes:
    """Processes that run the same command.

    Args:
        command: The command, with its arguments.
        count: How many processes.
        final: The exit codes after which starting it again is pointless; then all others end, too.
        watched: Directories: when a Python file in them changes, the processes end and start again. None to watch none.
    """

    def __init__(
        self, command: Sequence[str], count: int, *, final: Sequence[int] = (), watched: Sequence[Path] | None = None
    ) -> None:
        self._command = command
        self._count = count
        self._final = final
        self._watched = watched
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._told: set[int] = set()
        """Those of them that have been told to end: a second signal would cancel their handlers."""
        self._stopping = False
        self._ended = asyncio.Event()
        """The processes that run now have been told to end."""
        self._retry = asyncio.Event()
        """What waits for a file to change starts again: one has, or nothing watches files any more."""
        self._code = 0
        self._sent: set[int] = set()
        """The signals that processes have been told to end with."""

    async def run(self, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) -> int:
        """Run the processes until all have ended, or a signal has ended them.

        Each signal is passed on: the first lets handlers finish, the second cancels them. A process that dies is
        started again, after a pause that grows. One that has called `tell_drained`, and ends with 0, is not. (One that
        a signal has ended says so by its exit code, 128 and the signal.)

        Returns:
            The exit code: 0, or the first one after which starting again is pointless, or of a process that has failed
            after the signal, as a shell shows it.

        Raises:
            MissingExtraError: There are directories to watch, and watchfiles is not installed.

        Cancelled, it ends the processes, and waits for them.
        """
        with listening(signals, self._stop):
            watcher = None
            if self._watched is not None:
                watching = self._reload(self._watched, _changes(self._watched))
                watcher = background.start(watching, "watching a worker's files")
            keepers = [background.start(self._keep(number), "running a process") for number in range(self._count)]
            try:
                await asyncio.wait(keepers)
            except asyncio.CancelledError:
                self._stop(signal.SIGTERM)
                await asyncio.wait(keepers)
                raise
            finally:
                if watcher is not None:
                    watcher.cancel()
                    await asyncio.wait((watcher,))
        for keeper in keepers:
            keeper.result()
        return self._code

    def _stop(self, signum: int) -> None:
        """End all processes for good."""
        self._stopping = True
        self._end(signum)

    async def _reload(self, directories: Sequence[Path], changes: AsyncGenerator[set[Any], None]) -> None:
        """Start all processes again whenever a file has changed. Where that cannot be seen, they go on without it."""
        try:
            await self._watch(directories, changes)
        except Exception as raised:  # noqa: BLE001 (watchfiles has errors of its own, such as that a limit is reached)
            error = raised
            while isinstance(error, ExceptionGroup):  # anyio puts them into one
                error = error.exceptions[0]
            logger.warning(
                "the worker goes on, but does not start again when a file changes: %s. Start it anew to watch files",
                str(error).rstrip("."), extra={"event": "reload_ended", "error": type(error).__name__},
            )  # fmt: skip
        self._watched = None
        self._retry.set()

    async def _watch(self, directories: Sequence[Path], changes: AsyncGenerator[set[Any], None]) -> None:
        """End all processes, to start them again, whenever a file has changed.

        Raises:
            FileNotFoundError: A directory is not there any more.
            Exception: watchfiles has failed, or ended.
        """
        places = [(directory, directory.stat()) for directory in directories]
        async with contextlib.aclosing(changes):
            async for changed in changes:
                _check_that_all_are_there(places)
                if changed:
                    names = ", ".join(sorted({Path(name).name for _, name in changed}))
                    extra = {"event": "worker_reloaded", "count": len(changed)}
                    logger.warning("%s changed: the worker starts again", names, extra=extra)
                    self._end(signal.SIGTERM, again=False)
        raise RuntimeError("watchfiles has ended")

    def _end(self, signum: int, again: bool = True) -> None:
        """End the processes; without `again`, those that end already are left alone."""
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()
        self._retry.set()
        for number in self._running.keys() - (set() if again else self._told):
            self._tell(number, signum)

    def _tell(self, number: int, signum: int) -> None:
        self._told.add(number)
        self._sent.add(signum)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            self._running[number].send_signal(signum)

    async def _keep(self, number: int) -> None:
        """Run one of the processes, again and again."""
        failures = 0
        while not self._stopping:
            began, ended = time.monotonic(), self._ended
            try:
                code, drained = await self._once(number, ended)
                how = f"ended with {in_words(code)}" + (", and has not drained" if code == 0 else "")
            except OSError as error:  # no memory, no more processes: that may pass
                code, drained, how = _NOT_STARTED, False, f"could not be started: {error}"
            if self._stopping:
                self._code = self._code or self._failure_of(code)
            if code == 0 and drained and not ended.is_set():
                return
            if code in self._final and self._watched is None and not ended.is_set():
                self._code = code
                self._stop(signal.SIGTERM)
            if ended.is_set():
                continue
            failures = 0 if time.monotonic() - began > _HEALTHY else failures + 1
            # A file that changes may mend what failed; nothing else will, in the time that a person takes to edit it.
            pause = None if self._watched is not None else _RESTART.pause(failures)
            logger.warning(
                "process %d of the worker %s: it starts again %s", number, how,
                "when a file changes" if pause is None else f"in {pause:.1f} s",
                extra={"event": "worker_restarted", "number": number, "exit_code": code, "seconds": pause},
            )  # fmt: skip
            if pause is None:
                self._retry.clear()
            await pause_until(self._retry if pause is None else ended, pause)

    async def _once(self, number: int, ended: asyncio.Event) -> tuple[int, bool]:
        """Run one of the processes to its end.

        Returns:
            Its exit code, or the negative number of the signal; and whether it has told that its queues are drained.
        """
        environment = {**os.environ, NUMBER: str(number)}
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=theirs.fileno(), env=environment, start_new_session=True
                )
            self._running[number] = process
            if ended.is_set():  # while it was being started
                self._tell(number, signal.SIGTERM)
            try:
                code = await process.wait()
            finally:
                del self._running[number]
                self._told.discard(number)
            ours.setblocking(False)  # a process that it has started may have inherited the socket
            try:
                return code, ours.recv(len(_DRAINED)) == _DRAINED
            except BlockingIOError:
                return code, False

    def _failure_of(self, code: int) -> int:
        """Return with what a process has failed that was told to end; 0 if the signal has ended it, as it should."""
        shown = code if code >= 0 else 128 - code
        return 0 if shown - 128 in self._sent else shown


def in_words(code: int) -> str:
    """Return how a process ended."""
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:  # most of the real-time signals have no names
        return f"signal {-code}"


def _changes(directories: Sequence[Path]) -> AsyncGenerator[set[Any], None]:
    try:
        import watchfiles
    except ImportError:
        raise MissingExtraError(
            "--reload needs watchfiles. Run pip install 'apressure[worker]'", extra="worker"
        ) from None
    # Every few seconds it gives nothing, so that a directory that is gone is noticed: watchfiles does not tell.
    return watchfiles.awatch(*directories, watch_filter=watchfiles.PythonFilter(), yield_on_timeout=True)


def _check_that_all_are_there(places: Sequence[tuple[Path, os.stat_result]]) -> None:
    """Raise where a directory is not the one any more that is watched."""
    for directory, before in places:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(directory.stat(), before):
                continue
        raise FileNotFoundError(f"the directory {str(directory)!r} was deleted or replaced")
