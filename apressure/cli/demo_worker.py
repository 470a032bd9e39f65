"""The demo's other two processes: `python -m apressure.cli.demo_worker` is the feeder or the consumer.

Standard input is the line of life to the demo itself. Its first line says what to do (JSON). A second line, `stop`,
or the end of input end the worker, whatever it waits for; the end of input without `stop` means that the demo has
died, and then the consumer removes the queue too. Standard output carries reports, one JSON object a line; standard
error, why it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from apressure import AsyncQueue, nycflights
from apressure.cli import demo_flights as flights
from apressure.exceptions import PressureError, QueueFullError

BATCH: Final = 100
"""Rows in one put."""

PREFETCH: Final = 100
"""Rows that the consumer receives at a time. Left to itself it would take all that the queue holds, and one could not
see how deep the queue is."""

INTERVAL: Final = 0.1
"""Seconds between two reports."""

GRACE: Final = 3.0
"""Seconds for which a worker that is told to stop may clean up."""

_STALL: Final = 0.002
"""A next row that takes longer than so many seconds was not there: more than a round trip."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a worker is told.

    Attributes:
        role: `"feeder"` or `"consumer"`.
        url: The server.
        prefix: The prefix of the keys, or None for the environment's.
        queue: The queue's name.
        rows: How many rows there will be.
    """

    role: str
    url: str
    prefix: str | None
    queue: str
    rows: int

    def line(self) -> bytes:
        """Return the line that carries them."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


_Orders = TypeVar("_Orders", bound=Orders)


class Reporter:
    """Tells the demo how far this worker is and whether it waits."""

    def __init__(self) -> None:
        self.rows = 0
        self.times_waited = 0
        self._waited = 0.0
        self._waiting_since: float | None = None
        self._next = 0.0

    @contextlib.contextmanager
    def waiting(self, at_least: float = 0.0) -> Iterator[None]:
        """Account for the time in the block as waiting, if it lasts at least so many seconds."""
        self._waiting_since = begin = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None
            seconds = time.monotonic() - begin
            if seconds >= at_least:
                self.times_waited += 1
                self._waited += seconds

    def tick(self) -> None:
        """Report if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            ongoing = 0.0 if self._waiting_since is None else now - self._waiting_since
            # A demo that was stopped (Ctrl-Z) does not read: then a report is dropped rather than waited for. And one
            # that has died is noticed by the line of life.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(1, _line(report="progress", rows=self.rows, waited=self._waited + ongoing))

    async def keep_ticking(self) -> None:
        """Report also while the worker waits."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.tick()

    def done(self, **result: Any) -> None:
        """Report the result."""
        os.set_blocking(1, True)
        rest = _line(report="done", rows=self.rows, waited=self._waited, times_waited=self.times_waited, **result)
        while rest:
            rest = rest[os.write(1, rest) :]


async def feed(rows: int, queue: AsyncQueue[bytes], reporter: Reporter) -> None:
    """Put every row, in order, and close the queue."""
    proof = flights.StreamProof()
    messages = flights.numbered(nycflights.lines(nycflights.data_directory(), rows))
    began = time.monotonic()
    async with queue.producer() as producer:
        while batch := list(itertools.islice(messages, BATCH)):
            for message in batch:
                proof.add(message)
            # `await producer.put_many(batch)` is all that it takes. The demo wants to tell who waits for whom, so it
            # asks first.
            try:
                await producer.put_many(batch, timeout=0)
            except QueueFullError as full:
                with reporter.waiting():
                    await producer.put_many(batch[full.accepted :])
            reporter.rows = proof.rows
            reporter.tick()
    reporter.done(sha256=proof.sha256, began=began)


async def consume(queue: AsyncQueue[bytes], reporter: Reporter) -> None:
    """Take every row, see to it that none is missing, and sum up the delays."""
    directory = nycflights.data_directory()
    proof = flights.StreamProof()
    delays = flights.Delays(nycflights.header(directory))
    ended = time.monotonic()
    async with queue.consumer(prefetch=PREFETCH) as consumer:
        items = aiter(consumer)
        while True:
            # `async for item in consumer` for a demo that wants to know how long the next one took.
            with reporter.waiting(at_least=_STALL):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    break
            delays.add(proof.add(item))
            reporter.rows = proof.rows
            if not proof.rows % 64:
                reporter.tick()
            ended = time.monotonic()
    reporter.done(
        sha256=proof.sha256,
        ended=ended,
        out_of_order=proof.out_of_order,
        first_error=proof.first_error,
        carriers=delays.table(nycflights.airlines(directory)),
    )


async def work(orders: Orders, stopped: LifeLine) -> None:
    """Do what the orders say, until it is done or the demo says stop."""
    reporter = Reporter()
    async with AsyncQueue(orders.queue, url=orders.url, prefix=orders.prefix) as queue:
        ticking = asyncio.ensure_future(reporter.keep_ticking())
        try:
            with stopped.cancels(asyncio.current_task()):
                await (feed(orders.rows, queue, reporter) if orders.role == "feeder" else consume(queue, reporter))
        except asyncio.CancelledError:
            if orders.role == "consumer" and stopped.orphaned:
                with contextlib.suppress(PressureError):
                    await queue.delete(timeout=GRACE / 2)
        finally:
            ticking.cancel()


class LifeLine:
    """Notices, in a thread, that the demo wants this worker to stop, or is gone.

    Attributes:
        orphaned: The demo is gone without a word.
    """

    def __init__(self) -> None:
        self.orphaned = False
        self._stop: Callable[[], None] | None = None
        self._stopped = False
        self._guard = threading.Lock()
        self._unread = b""

    def read_orders(self, kind: type[_Orders]) -> _Orders | None:
        """Return the orders, or None if the demo is gone already; from then on watch for its end."""
        line = self._read_line()
        if not line:
            return None
        threading.Thread(target=self._watch, name="apressure-demo-lifeline", daemon=True).start()
        return kind(**json.loads(line))

    def cancels(self, task: asyncio.Task[Any] | None) -> contextlib.AbstractContextManager[None]:
        """Cancel `task` when the line ends while the block runs."""
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)

        return self.calls(stop)

    @contextlib.contextmanager
    def calls(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop`, in a thread, when the line ends while the block runs."""
        with self._guard:
            self._stop = stop
            if self._stopped:
                stop()
        try:
            yield
        finally:
            with self._guard:
                self._stop = None

    def _read_line(self) -> bytes:
        # Not by `sys.stdin`: a daemon thread that sits in it holds a lock that the interpreter needs when it ends.
        while b"\n" not in self._unread:
            data = os.read(0, 4096)
            if not data:
                return b""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _watch(self) -> None:
        self.orphaned = self._read_line() != b"stop"
        with self._guard:
            self._stopped = True
            if self._stop is not None:
                self._stop()
        # Whatever happens, nothing of the demo outlives it for long.
        time.sleep(GRACE)
        os._exit(1)


def _line(**report: Any) -> bytes:
    return json.dumps(report).encode() + b"\n"


def main() -> int:
    """Be a worker, and return the exit code."""
    # Ctrl-C is the demo's business; it tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = LifeLine()
    orders = lifeline.read_orders(Orders)
    if orders is None:
        return 0
    os.set_blocking(1, False)
    try:
        asyncio.run(work(orders, lifeline))
    except (PressureError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
