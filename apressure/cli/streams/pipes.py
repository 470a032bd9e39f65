"""Standard input and output that never block the event loop: files, pipes, terminals and sockets.

asyncio's pipe transports refuse regular files, and they make the descriptor non-blocking, also for the other processes
that share it. So a thread calls `read` and `write`. It is a daemon thread: a command that ends does not wait until
somebody types another line.

Input is read only on request. So a full queue stops the reading, and the full pipe stops its writer.
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

from apressure.cli.show import visible
from apressure.cli.streams.framing import Framing, encode
from apressure.exceptions import PressureError

_T = TypeVar("_T")


class BlockingThread:
    """One daemon thread that runs blocking calls, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def do(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call` in the thread. Cancelled, it leaves the call to end by itself."""
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
            except BaseException as caught:  # noqa: BLE001 (passed on to the caller)
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has been closed, so nobody waits
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
    """Bytes from standard input. The flags of the descriptor stay as they are."""

    def __init__(self) -> None:
        self._thread = BlockingThread("apressure-input")

    async def read(self, size: int) -> bytes:
        """Return the available bytes, at most `size`, waiting for at least one. Returns no bytes at the end.

        Cancelled, it may lose bytes that come later, since the thread still reads: only for a command that ends.
        """
        return await self._thread.do(functools.partial(self._read, size))

    def _read(self, size: int) -> bytes:
        while True:
            try:
                return os.read(0, size)
            except BlockingIOError:  # another process has made the descriptor non-blocking
                select.select([0], [], [])


def input_size() -> int | None:
    """Return how many bytes are left in standard input; None if it is not a file."""
    try:
        status = os.fstat(0)
        return max(0, status.st_size - os.lseek(0, 0, os.SEEK_CUR)) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


class Output:
    """Bytes to standard output, without a buffer. The flags of the descriptor stay as they are."""

    def __init__(self) -> None:
        self._thread = BlockingThread("apressure-output")
        mode = os.fstat(1).st_mode
        self._is_file = stat.S_ISREG(mode)
        self._is_pipe = stat.S_ISFIFO(mode)
        self._is_terminal = os.isatty(1)
        self._poll = select.poll()
        self._poll.register(1, select.POLLOUT)

    async def write_item(self, item: bytes, framing: Framing, *, strict: bool = True) -> None:
        """Write an item, framed. A terminal gets it with control characters made visible.

        Args:
            item: Any bytes.
            framing: How items are separated.
            strict: Refuse an item that contains the delimiter.

        Raises:
            FramingError: The item does not fit the framing. Nothing was written.
            PressureError: There is not enough memory for a copy of the item. Nothing was written.
            BrokenPipeError: The reader has closed the other end.
        """
        try:
            framed = encode(item, framing, strict=strict)
        except MemoryError:
            raise PressureError(
                f"cannot write an item: its {len(item)} bytes do not fit into memory twice. Allow more memory"
            ) from None
        if self._is_terminal and framing is not Framing.JSON:
            prefixed = framing is Framing.LENGTH_PREFIXED
            framed = visible(framed) if prefixed else visible(item) + framed[len(item) :]
        await self.write(framed)

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Cancelled, a part of it may be written, then or later while the process lives.

        Raises:
            BrokenPipeError: The reader has closed the other end.
        """
        rest = memoryview(data)
        while rest:
            # A pipe that is ready takes PIPE_BUF bytes without blocking. Most messages are smaller, and passing each
            # one to the thread would be slow.
            if self._is_file or (len(rest) <= select.PIPE_BUF and self._poll.poll(0)):
                written = self._write(rest)
            else:
                written = await self._thread.do(functools.partial(self._write, rest))
            rest = rest[written:]

    @contextlib.contextmanager
    def watched(self, gone: Callable[[], None]) -> Iterator[None]:
        """Call `gone` once when the reader of the pipe closes it, even while nothing is written.

        Otherwise a consumer that waits for an item would not notice. This works for pipes only.
        """
        if not self._is_pipe:
            yield
            return
        loop = asyncio.get_running_loop()

        def noticed() -> None:
            loop.remove_reader(1)
            gone()

        # The writing end of a pipe is never readable, but the loop reports an error on it as readable.
        loop.add_reader(1, noticed)
        try:
            yield
        finally:
            loop.remove_reader(1)

    @contextlib.contextmanager
    def noticing_the_reader(self) -> Iterator[None]:
        """Raise BrokenPipeError when the reader of the output closes it, even while nothing is written."""
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
                return os.write(1, data)
            except BlockingIOError:
                select.select([], [1], [])
