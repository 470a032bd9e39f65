"""Standard input and output that never block the event loop, whatever is at their other end.

asyncio's own pipe transports refuse regular files, and they make the descriptor non-blocking, which every process
that shares it then sees. A thread of ours that sits in `read` or `write` works with files, pipes, terminals and
sockets alike. It is a daemon: a command that is told to stop does not wait for somebody to type another line.

Nothing is read before it is asked for, so a queue that is full stops the reading, and the pipe stops the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import select
import stat
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


class BlockingThread:
    """One daemon thread that does blocking calls, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def do(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns in the thread, or is cancelled and leaves the call to end on its own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def job() -> None:
            result, error = None, None
            try:
                result = call()
            except BaseException as caught:  # noqa: BLE001 - whoever waits for it gets it
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return await future

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class Input:
    """Bytes from a file descriptor.

    Args:
        fd: The descriptor; its flags are left alone.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._thread = BlockingThread("apressure-input")

    async def read(self, size: int) -> bytes:
        """Return the bytes that are there, at most `size`; wait for one if there is none. Empty at the end.

        When it is cancelled, bytes that come later may be read by the thread and are lost: for a command that ends.
        """
        return await self._thread.do(functools.partial(self._read, size))

    def _read(self, size: int) -> bytes:
        while True:
            try:
                return os.read(self._fd, size)
            except BlockingIOError:  # somebody has made the descriptor non-blocking
                select.select([self._fd], [], [])


class Output:
    """Bytes to a file descriptor: what has been written is out, nothing is kept in a buffer.

    Args:
        fd: The descriptor; its flags are left alone.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._thread = BlockingThread("apressure-output")
        mode = os.fstat(fd).st_mode
        self._is_file = stat.S_ISREG(mode)
        self._is_pipe = stat.S_ISFIFO(mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        When it is cancelled some of it may be written, and more of it as long as the process lives.

        Raises:
            BrokenPipeError: Nobody reads the other end any more.
        """
        rest = memoryview(data)
        while rest:
            # A pipe that is ready takes PIPE_BUF bytes without blocking. Most messages are smaller, and a thread
            # for each would cost more than everything else.
            if self._is_file or (len(rest) <= select.PIPE_BUF and self._poll.poll(0)):
                written = self._write(rest)
            else:
                written = await self._thread.do(functools.partial(self._write, rest))
            rest = rest[written:]

    @contextlib.contextmanager
    def watched(self, gone: Callable[[], None]) -> Iterator[None]:
        """Call `gone` once if the reader of the pipe goes away, even while nothing is written.

        A consumer that waits for an item that never comes would not notice otherwise. Only pipes tell.
        """
        if not self._is_pipe:
            yield
            return
        loop = asyncio.get_running_loop()

        def noticed() -> None:
            loop.remove_reader(self._fd)
            gone()

        # The writing end of a pipe is never readable, but an error on it is reported as if it were.
        loop.add_reader(self._fd, noticed)
        try:
            yield
        finally:
            loop.remove_reader(self._fd)

    @contextlib.contextmanager
    def noticing_the_reader(self) -> Iterator[None]:
        """Turn the end of whoever reads our output into a BrokenPipeError, also while nothing is written."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def reader_has_gone() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        try:
            with self.watched(reader_has_gone):
                yield
        except asyncio.CancelledError:
            if gone and task.uncancel() == 0:
                raise BrokenPipeError from None
            raise

    def _write(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:
                select.select([], [self._fd], [])
