"""What `serve` does: the consumer role is held, messages are handed to handlers, and each is settled or given back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from signal import Signals
from typing import TYPE_CHECKING, Any, Final

from apressure.connection import background
from apressure.connection.replies import NOT_EXECUTED
from apressure.exceptions import (
    DurabilityError,
    LeaseLostError,
    OutcomeUnknownError,
    OutOfMemoryError,
    PressureError,
    ReadOnlyError,
    ServerError,
    ServerUnavailableError,
)
from apressure.queue.delivery import Delivery
from apressure.queue.queue import AsyncQueue
from apressure.queue.roles import Consumer

if TYPE_CHECKING:
    from anyio import CancelScope

logger = logging.getLogger("apressure")

MAX_RETRY_DELAY: Final = 60.0
"""Seconds: the pause before a retry does not grow beyond this (nor below the first one)."""

_FIRST_RETURN: Final = 0.5
_MAX_RETURN: Final = 30.0
"""Seconds: the pauses before the role is taken again."""


@dataclasses.dataclass(frozen=True)
class Served:
    """What `serve` has done when it returns.

    Attributes:
        handled: How often a handler returned.
        failed: How often a handler raised.
        signal: The signal that ended it; None where the queue was closed and drained.
    """

    handled: int
    failed: int
    signal: Signals | None = None


class _StoppedError(Exception):
    """The service is to end: its block gives everything back, and does not wait for ever to hear so."""


@dataclasses.dataclass(eq=False)
class Service:
    """One call of `serve`; the fields are its arguments.

    A message is held by a task from the moment it was handed out until it is settled, or given back with the lease:
    the task runs the handler, and after a failure waits for the retry. `_slots` has the tasks whose handler runs.
    """

    handler: Callable[[Any], Awaitable[object]]
    queue: AsyncQueue[Any]
    deliveries: bool
    concurrency: int
    prefetch: int
    retry_delay: float
    retrying: int
    grace: float
    lease: float
    stop_listening: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._handled = 0
        self._failed = 0
        self._signal: Signals | None = None
        self._stopped = asyncio.Event()
        self._changed = asyncio.Event()
        self._scope: CancelScope | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: set[asyncio.Task[Any] | None] = set()
        self._paused = 0
        self._ending = False
        self._failure: BaseException | None = None
        self._reached = False
        self._returns = 0

    def consumer(self) -> Consumer[Delivery[Any]]:
        """Return the block that holds the role."""
        return self.queue.consumer(ack="manual", prefetch=self.prefetch, lease=self.lease)

    def stop(self, signum: int) -> None:
        """A signal came."""
        if not self._stopped.is_set():
            self._signal = Signals(signum)
            self._stopped.set()
            self._interrupt()
        else:
            self.stop_listening()
            self._cancel_handlers()

    async def run(self) -> Served:
        """Hold the role, and take it again when it was lost, until the service ends."""
        async with contextlib.AsyncExitStack() as stack:
            if not self.queue._core.used:  # noqa: SLF001 (of this package)
                with self._interruptible():
                    await stack.enter_async_context(self.queue)
            while not self._stopped.is_set():
                try:
                    await self._hold()
                    break
                except _StoppedError:
                    break
                except PressureError as error:
                    if not self._reached or not _passes(error):
                        raise
                    pause = min(_MAX_RETURN, _FIRST_RETURN * 2.0**self._returns) * random.uniform(0.5, 1.0)
                    self._returns = min(self._returns + 1, 10)
                    logger.warning(
                        "the service of the queue %r lost the consumer role, and takes it again in %.1f s: %s",
                        self.queue.name, pause, error,
                    )  # fmt: skip
                    await self._pause(pause)
        return Served(self._handled, self._failed, self._signal)

    async def _hold(self) -> None:
        """Hold the role until the queue is drained.

        Raises:
            _StoppedError: A signal came first.
            PressureError: The role was lost, or cannot be had.
        """
        self._failure, self._ending = None, False
        async with contextlib.AsyncExitStack() as stack:
            drained = False
            try:
                with self._interruptible():
                    await self.queue.statistics()
                    self._reached = True
                    consumer = await stack.enter_async_context(self.consumer())
                    consumer.on_lost(self._fail)
                    await self._receive(consumer)
                    drained = True
                if self._tasks and not self._ending:
                    await asyncio.wait(self._tasks, timeout=self.grace)
            finally:
                self._cancel_handlers()
                await self._join_handlers()
            if self._failure is not None:
                raise self._failure
            if not drained:
                raise _StoppedError

    async def _receive(self, consumer: Consumer[Delivery[Any]]) -> None:
        """Begin a handler for each message, until there is none left and none can come back."""
        while True:
            while len(self._slots) + max(0, self._paused - self.retrying) >= self.concurrency:
                await self._change()
            all_settled = not self._tasks
            try:
                delivery = await anext(consumer)
            except StopAsyncIteration:
                # Closed and empty; but what a handler has in its hands it may give back.
                if all_settled:
                    return
                await self._change()
                continue
            except DurabilityError as error:  # what came is there, and is handed out next
                self._unconfirmed(error)
                continue
            self._returns = 0
            task = background.start(self._work(delivery), f"handling a message of the queue {self.queue.name!r}")
            self._tasks.add(task)
            self._slots.add(task)
            task.add_done_callback(self._done)

    async def _work(self, delivery: Delivery[Any]) -> None:
        """Run the handler, and say what became of the message."""
        error: BaseException | None = None
        try:
            await self._handle(delivery)
        except asyncio.CancelledError:
            if self._ending:
                raise  # the message goes back with the lease
            error = asyncio.CancelledError("the handler cancelled itself")
        except Exception as failure:  # noqa: BLE001 (whatever it is, the message is tried again)
            error = failure
        except BaseException as failure:  # noqa: BLE001 (raised by serve, when everything has been given back)
            self._fail(failure)
            return
        if error is None:
            self._leave_slot(asyncio.current_task())
            await self._acknowledge(delivery)
        else:
            self._failed += 1
            await self._retry(delivery, error)

    async def _handle(self, delivery: Delivery[Any]) -> None:
        running = self.handler(delivery if self.deliveries else delivery.item)
        if inspect.isawaitable(running):
            await running
        else:
            self._fail(TypeError(f"the handler must be an async function: it returned {type(running).__name__}"))
            await asyncio.sleep(0)  # where the cancellation arrives

    async def _acknowledge(self, delivery: Delivery[Any]) -> None:
        self._handled += 1
        if not delivery.settled:
            try:
                await delivery.ack()
            except DurabilityError as error:
                self._unconfirmed(error)
            except PressureError:  # the lease is lost, which ends this hold; the message comes again
                self._handled -= 1

    def _unconfirmed(self, error: DurabilityError) -> None:
        logger.warning("the service of the queue %r goes on, but: %s", self.queue.name, error)

    async def _retry(self, delivery: Delivery[Any], error: BaseException) -> None:
        """Give the message back after a pause, during which it stays in flight and keeps no handler's place."""
        doubled = self.retry_delay * 2.0 ** min(delivery.attempts - 1, 30)
        pause = min(max(MAX_RETRY_DELAY, self.retry_delay), doubled) * random.uniform(0.5, 1.0)
        if delivery.settled:
            what = "which had settled it"
        elif self._ending or self._stopped.is_set():
            what = "it goes back"
        else:
            most = self.queue.max_attempts
            last = most is not None and delivery.attempts >= most
            what = f"it {'becomes a dead letter' if last else 'goes back'} in {pause:.1f} s"
        logger.error(
            "the handler of a message of the queue %r failed at attempt %d: %s",
            self.queue.name, delivery.attempts, what, exc_info=error,
        )  # fmt: skip
        if delivery.settled:
            return
        self._paused += 1
        self._leave_slot(asyncio.current_task())
        try:
            await self._pause(pause)
        finally:
            self._paused -= 1
        if not self._stopped.is_set():  # then all that is left goes back in order, with the lease
            with contextlib.suppress(PressureError):
                await delivery.nack()

    def _leave_slot(self, task: asyncio.Task[Any] | None) -> None:
        self._slots.discard(task)
        self._changed.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._leave_slot(task)

    def _fail(self, error: BaseException) -> None:
        """The hold has to end, with this error."""
        if self._failure is None:
            self._failure = error
        self._interrupt()
        self._cancel_handlers()

    def _cancel_handlers(self) -> None:
        self._ending = True
        for task in self._tasks:
            if not task.cancelling():  # once: what it does then, it shall do in peace
                task.cancel()

    async def _join_handlers(self) -> None:
        """Wait until all have ended, whatever is cancelled meanwhile: afterwards their messages go back."""
        from anyio import CancelScope

        cancelled: asyncio.CancelledError | None = None
        with CancelScope(shield=True):
            while self._tasks:
                try:
                    await asyncio.wait(self._tasks)
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """What waits in this block ends when the service has to."""
        from anyio import CancelScope  # here, since it loads anyio's backend

        try:
            with CancelScope() as self._scope:
                yield
        finally:
            self._scope = None

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _change(self) -> None:
        """Wait until a handler has ended, or a message has been settled, since the last time."""
        await self._changed.wait()
        self._changed.clear()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for longer than the service goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()


def _passes(error: PressureError) -> bool:
    """Whether trying again helps."""
    if isinstance(error, ServerError):
        return isinstance(error, (OutOfMemoryError, ReadOnlyError)) or error.code in NOT_EXECUTED
    return isinstance(error, (LeaseLostError, OutcomeUnknownError, ServerUnavailableError))
