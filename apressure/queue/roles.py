"""The producer and the consumer of a queue, as blocks of code."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterable, Callable, Iterable
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from apressure.connection.settle import answered
from apressure.exceptions import (
    LeaseLostError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
)
from apressure.queue.batching import Put, PutLane
from apressure.queue.core import Core
from apressure.queue.delivery import Delivery
from apressure.queue.lease import Lease, Received

T = TypeVar("T")

MAX_PREFETCH = 1000
PREFETCH_SECONDS = 0.05
"""An adaptive prefetch takes about as many messages as the body of the loop works off in this time."""

TURN_SECONDS = 0.05
"""How long a body that waits for nothing keeps the event loop from turning, apart from its latest item."""

READ_AHEAD = 16
"""From so many on, half of what is prefetched is asked for while the body works on the other half."""


class Producer(Generic[T]):
    """The end of a queue that puts; made by `AsyncQueue.producer`.

    When the block ends well, the queue is closed (unless `close=False`): consumers end when they have got what is
    left. When it ends with an exception, or is cancelled, the queue stays open, so that another producer can go on.
    """

    def __init__(self, queue: Core[T], close: bool, exclusive: bool, lease: float, timeout: float | None) -> None:
        self._queue = queue
        self._close = close
        self._exclusive = _Exclusive(queue, lease, timeout) if exclusive else None
        self._entered = False

    async def __aenter__(self) -> Self:
        if self._exclusive is not None:
            await self._exclusive.enter()
        elif not await self._queue.operations.exists():
            raise QueueDoesNotExistError(
                f"the queue {self._queue.name!r} does not exist: create it first", name=self._queue.name
            )
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        close = self._close and kind is None
        if self._exclusive is not None:
            await self._exclusive.exit(close, hurry=kind is not None)
        elif close:
            with contextlib.suppress(QueueClosedError):  # another producer was first
                await self._queue.operations.close(None)

    async def put(self, item: T, timeout: float | None = None) -> None:
        """Put an item, as `AsyncQueue.put` does.

        Raises:
            LeaseLostError: The producer is exclusive and has lost its role. Nothing was put.
        """
        await self._queue.put(Put([self._queue.encode(item)]), timeout, lane=self._lane())

    async def put_nowait(self, item: T) -> None:
        """Put an item, as `AsyncQueue.put_nowait` does."""
        await self._queue.put(Put([self._queue.encode(item)]), None, now=True, lane=self._lane())

    async def put_many(self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None) -> int:
        """Put items in order, as `AsyncQueue.put_many` does."""
        return await self._queue.put_many(items, timeout, lane=self._lane())

    def _lane(self) -> PutLane | None:
        if not self._entered:
            raise RuntimeError("put inside the producer's block: async with queue.producer() as producer")
        return None if self._exclusive is None else self._exclusive.checked_lane()


class _Exclusive:
    """The producer role under a lease: nobody else puts or closes while the block lasts."""

    def __init__(self, queue: Core[Any], seconds: float, timeout: float | None) -> None:
        self._queue = queue
        self._seconds = seconds
        self._timeout = timeout
        self._token = secrets.token_hex(8).encode()
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self.lane: PutLane | None = None

    async def enter(self) -> None:
        scripted = self._queue.scripted("an exclusive producer")
        self._series = scripted.steps.series()
        self._queue.take("producer")
        try:
            await scripted.waits.until(
                lambda: scripted.steps.occupy(
                    "producer", scripted.waits.take_claim("producer"), self._token, int(self._seconds * 1000)
                ),
                self._timeout,
                self._queue.name,
            )
        except BaseException:
            self._queue.leave("producer")
            raise
        try:
            self._queue.check()  # a client that was closed meanwhile gives back what it knew to be held
        except BaseException:
            await self.exit(close=False, hurry=True)
            raise
        self.lane = scripted.put_lane(self._token)
        self._queue.hold(self)
        self._beat_later()

    def checked_lane(self) -> PutLane:
        if self._error is not None:
            raise self._error
        if self.lane is None:
            raise RuntimeError("the producer's block has not begun, or has ended")
        return self.lane

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def end(self, error: PressureError) -> None:
        """The client is closed underneath: give the role back, and refuse with the error what comes later."""
        if self._error is None:
            self._error = error
            await self._send(leave=True)

    async def exit(self, close: bool, hurry: bool) -> None:
        scripted = self._queue.scripted("an exclusive producer")
        self._queue.let_go(self)
        try:
            if close:
                with contextlib.suppress(QueueClosedError):
                    await scripted.close(0, self._token)
        except asyncio.CancelledError:
            hurry = True
            raise
        finally:
            if self.lane is not None:
                scripted.drop_lane(self.lane)
                self.lane = None
            self.stop()
            self._queue.leave("producer")
            if self._error is None:
                answer = self._send(leave=True)
                settle_timeout = scripted.client.settings.settle_timeout
                # In a hurry nobody needs to know: what a server that stands still answers later is as good.
                if await answered(answer, settle_timeout if hurry else None, settle_timeout):
                    error = answer.result()
                    if close and error is not None and not isinstance(error, QueueDoesNotExistError):
                        raise error

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds / 3, self._beat)

    def _beat(self) -> None:
        self._send(leave=False)
        self._beat_later()

    def _send(self, leave: bool) -> asyncio.Future[Exception | None]:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def on_answer(answer: Any) -> None:
            error = answer if isinstance(answer, Exception) else None
            if isinstance(error, (LeaseLostError, QueueDoesNotExistError)):
                self._error = error
                self.stop()
            if not done.done():
                done.set_result(error)

        steps = self._queue.scripted("an exclusive producer").steps
        steps.leave(self._series, self._token, int(self._seconds * 1000), leave, on_answer)
        return done


class Consumer(Generic[T]):
    """The end of a queue that gets, at-least-once; made by `AsyncQueue.consumer`.

    The block holds the consumer role under a lease that a timer renews. Iterating hands out one item after the other
    until the queue is closed and drained. An item is acknowledged when the loop asks for the next one, or when the
    block ends well. When the body raises, is cancelled or dies, the item comes again, first in line, marked as
    redelivered; and so does everything that was prefetched.

    An iteration belongs to the task that began it. A task that the body starts and does not wait for is not covered
    by the acknowledgement. `T` is what the iteration hands out: an item, or with `ack="manual"` its `Delivery`.
    """

    def __init__(
        self,
        queue: Core[Any],
        ack: Literal["auto", "manual"],
        delete: bool,
        prefetch: int | None,
        lease: float,
        timeout: float | None,
    ) -> None:
        self._queue = queue
        self._manual = ack == "manual"
        self._delete = delete
        self._prefetch = prefetch
        self._seconds = lease
        self._timeout = timeout
        self._lease: Lease | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # to ask for it each time is slow before Python 3.12
        self._current: Received | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        self._most = MAX_PREFETCH
        self._portion = 1
        self._half = 0
        self._worked = 0
        self._since = 0.0
        self._turn_at = 0.0
        self._turned = True

    async def __aenter__(self) -> Self:
        scripted = self._queue.scripted("the consumer role")
        self._loop = asyncio.get_running_loop()
        self._queue.take("consumer")
        try:
            lease = Lease(scripted, self._seconds, held=True)
            await lease.occupy(self._timeout)
            self._lease = lease
            self._queue.check()  # a client that was closed meanwhile gives back what it knew to be held
            self._queue.hold(lease)
            bound = int((await scripted.inspect())[0])
            self._most = max(1, min(MAX_PREFETCH, bound)) if bound else MAX_PREFETCH
        except BaseException:
            taken, self._lease = self._lease, None
            try:
                if taken is not None:
                    self._queue.let_go(taken)
                    await self._leave_quietly(taken)
            finally:
                self._queue.leave("consumer")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        self._queue.let_go(lease)
        try:
            if kind is None and self._current is not None and lease.error is None:
                lease.ack(self._current[0])
            if kind is None:
                finished = self._ended and not lease.unsettled
                await lease.leave()
                # The queue is closed: what is in it now is what was given back, and nobody has done that work.
                if self._delete and finished and not (await self._queue.operations.inspect())[1]:
                    self._queue.leave("consumer")
                    await self._queue.operations.delete(None)
            else:
                await self._leave_quietly(lease)
        finally:
            self._current = None
            self._queue.leave("consumer")

    async def _leave_quietly(self, lease: Lease) -> None:
        """The body's own exception is what the caller has to see; a lease that is lost gave everything back already."""
        with contextlib.suppress(PressureError):
            await lease.leave(hurry=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next `Delivery`.

        Cancelled while it waits, nothing is lost: what was received is given back when the block ends.

        Raises:
            StopAsyncIteration: The queue is closed, and everything was handed out.
            DecodeError: The message cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease ran out, since the event loop stood still or the server was out of reach for
                longer than it lasted. What was in flight has been given back.
            RuntimeError: Another task iterates already, or the block has ended.
        """
        lease = self._lease
        if lease is None or self._task is None or asyncio.current_task(self._loop) is not self._task:
            lease = self._checked()
        if lease.error is not None or lease.unsure is not None:
            lease.check()
        if self._current is not None:
            lease.ack(self._current[0])
            self._current = None
        buffer = lease.buffer
        if buffer:
            if monotonic() > self._turn_at:
                await self._turn(lease)
            received = buffer.popleft()
            if len(buffer) + 1 == self._half:  # the half that was asked for has come already
                self._plan(lease, lease.handed_out - 1)
                self._begin(lease)
        else:
            self._plan(lease, lease.handed_out)
            try:
                received = await lease.receive(self._half or self._portion, None)
            except QueueClosedError:
                await lease.flush()
                self._ended = True
                raise StopAsyncIteration from None
            self._begin(lease)
        if self._manual:
            return Delivery(lease, received, self._queue.decode)  # type: ignore[return-value]
        self._current = received
        return self._queue.decode(received[1])  # type: ignore[no-any-return]

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called when the lease is lost: at once, not only when the loop goes on.

        For `ack="manual"`: what is in the handlers' hands comes again, so they may as well stop.
        """
        self._checked().on_lost = callback

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 where there is none."""
        return self._current[2] if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """The current item was delivered before, and not acknowledged by whoever had it."""
        return self.attempts > 1

    async def _turn(self, lease: Lease) -> None:
        """Have the event loop turn where the body waits for nothing.

        Or nobody would renew the lease, send acknowledgements or cancel before the buffer is empty.
        """
        if not self._turned:
            self._turned = True  # also where this is cancelled: whoever comes back then does not wait
            await asyncio.sleep(0)
            lease.check()
        self._turned = False
        asyncio.get_running_loop().call_soon(self._has_turned)
        self._turn_at = monotonic() + TURN_SECONDS

    def _has_turned(self) -> None:
        self._turned = True

    def _plan(self, lease: Lease, worked: int) -> None:
        """Decide how many to have in hand: what the body works off in a moment, never more than the bound.

        Of many, half are asked for while the body works on the other half.
        """
        if self._prefetch is not None:
            self._portion = min(self._prefetch, self._most)
        elif done := worked - self._worked:
            elapsed = asyncio.get_running_loop().time() - self._since
            quick = int(done * PREFETCH_SECONDS / elapsed) if elapsed > 0 else self._most
            more = self._portion * 2 if lease.full else self._portion
            self._portion = max(1, min(self._most, more, quick))
        self._half = self._portion // 2 if self._portion >= READ_AHEAD else 0

    def _begin(self, lease: Lease) -> None:
        """The body begins with a message: see how quickly it works, and ask for more in good time."""
        self._worked, self._since = lease.handed_out - 1, asyncio.get_running_loop().time()
        if self._half and lease.full:  # otherwise the queue was empty behind them
            lease.ahead(self._half)

    def _checked(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        self._queue.client.check()
        task = asyncio.current_task()
        if self._task is None or self._task.done():
            self._task = task
        elif self._task is not task:
            raise RuntimeError(
                "this consumer is being iterated by another task: an item is acknowledged when its loop goes on, so "
                "each loop needs one task; use ack='manual' or receive() to hand messages to several"
            )
        return self._lease
