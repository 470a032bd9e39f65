"""What services have in common: they receive from a consumer block, retry what fails, and end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from apressure import logs
from apressure.concurrency.backoff import Backoff, pause_until
from apressure.concurrency.blocked import Cause, on_block
from apressure.concurrency.settle import Ending
from apressure.core.registration import Calls
from apressure.exceptions import DurabilityError, PressureError, QueueDoesNotExistError, UnsupportedError
from apressure.protocols import Consumer, Delays, Delivery, DeliverySource, Holdable, NotesErrors, Releasable, Tally
from apressure.service.options import Options
from apressure.service.pace import Pace
from apressure.service.pool import Member
from apressure.service.retry import Hold, Retry
from apressure.service.tasks import Tasks

if TYPE_CHECKING:
    from types import TracebackType

    from anyio import CancelScope

logger = logging.getLogger("apressure")

MOST_RETRIES: Final = 100
"""So many failed messages may wait in hand for their retry beside the handlers, where the queue cannot keep them."""

_SETTLING: Final = 5.0
"""Seconds that a service which ends waits for messages to go back whose handlers have failed, as `settle_timeout`."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of `serve`, or of `pipe`.

    Attributes:
        title: The name of the service in logs.
        role: The name of the handler in logs.
        retry: How long to pause before retries.
        ordered: Nothing overtakes a message that has failed.
        member: Shares the places of handlers with other services; None for a service that has its own.
        observe: Called with the seconds of each call of the handler; None if nobody looks on.
        calls: Counts the time that handlers take.
        ending: The end of the service.
    """

    handler: Callable[[Any], Any]
    queue: DeliverySource[Any]
    concurrency: int
    deliveries: bool
    prefetch: int | None
    retry: Backoff
    ordered: bool
    shutdown_timeout: float
    lease: float | None
    max_hold: float | None
    shared: bool
    title: str
    role: str = "handler"
    options: Options = dataclasses.field(default_factory=Options)
    pace: Pace | None = None
    member: Member | None = None
    observe: Callable[[float], object] | None = None
    calls: Calls = dataclasses.field(default_factory=Calls)
    ending: Ending = dataclasses.field(default_factory=Ending)

    @property
    def most_retries(self) -> int:
        """How many failed messages may wait in hand for their retry without taking the place of a handler."""
        return 0 if self.ordered else MOST_RETRIES

    def consumer(self) -> Consumer[Delivery[Any]]:
        """Return a new consumer block of the queue."""
        # Not every kind of queue has these two.
        more: dict[str, Any] = {} if self.max_hold is None else {"max_hold": self.max_hold}
        if self.shared:
            more["shared"] = True
        consumer = self.queue.consumer("manual", prefetch=self.prefetch, lease=self.lease, **more)
        if hasattr(consumer, "registers"):
            consumer.registers = False  # the service does that
        return consumer


_OURS: Final = ("apressure.service.", "apressure.sync.", "concurrent.futures.")
"""The modules between a service and the handler that it calls."""


def _traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of a handler's error from the handler's own frame on. The log shows all of it at DEBUG."""
    traceback = error.__traceback__
    if logger.isEnabledFor(logging.DEBUG):
        return traceback
    while traceback is not None and f"{traceback.tb_frame.f_globals.get('__name__')}.".startswith(_OURS):
        traceback = traceback.tb_next
    return traceback or error.__traceback__  # it may be an error of the service, such as that of a timeout


class StoppedError(Exception):
    """A signal came. Raised through the consumer's block, which then gives back its messages without waiting long."""


class Dispatcher(ABC):
    """Handles the messages of one consumer block. A subclass has `_receive`.

    Attributes:
        handled: How often a handler returned.
        failed: How often a handler raised.
        outcomes: How many messages were `retried`, `dead_lettered` and `redelivered`; see `Tally`.
        reached: The queue has been reached, and exists.
        received: A message has been received.
        tasks: The tasks that own the messages in flight.
    """

    def __init__(self, arguments: Arguments, stopped: asyncio.Event) -> None:
        self.handled = 0
        self.failed = 0
        self.outcomes: Counter[str] = Counter()
        self.reached = False
        self.received = False
        self._arguments = arguments
        self._stopped = stopped
        self.tasks = Tasks(None if arguments.member is None else arguments.member.changed)
        self._settling = 0  # tasks whose handlers have ended, and that wait for the queue
        self._interrupted_at: float | None = None
        self._failure: BaseException | None = None
        self._scope: CancelScope | None = None
        self._pause_told = False

    async def run(self) -> None:
        """Handle messages until the queue is closed and drained.

        However it ends, no handler runs any more, and messages that were not settled have been given back.

        Raises:
            StoppedError: A signal came first.
            QueueDoesNotExistError: There is no such queue.
            PressureError: The consumer lost its messages, or cannot receive any.
            BaseException: What a handler raised that is not an `Exception`.
        """
        from anyio import CancelScope  # here, since it loads anyio's backend

        queue, drained = self._arguments.queue, False
        if self._arguments.member is not None:
            self._arguments.member.look()
        async with contextlib.AsyncExitStack() as stack:
            try:
                with CancelScope() as self._scope:
                    if not await queue.exists():
                        raise QueueDoesNotExistError(
                            f"the queue {queue.name!r} does not exist: create it first, or use create=True "
                            "(on the command line --create)",
                            name=queue.name,
                        )
                    self.reached = True
                    consumer = await stack.enter_async_context(self._arguments.consumer())
                    consumer.on_lost(self._fail)
                    await self._receive(consumer)
                    drained = True
                self._scope = None
                await self._finish(self._arguments.shutdown_timeout)
            finally:
                self._scope = None
                self.tasks.cancel()
                try:
                    await self.tasks.join()
                finally:
                    if self._arguments.member is not None:
                        self._arguments.member.leave()
            if self._failure is not None:
                raise self._failure
            if not drained:
                raise StoppedError

    async def _finish(self, timeout: float) -> None:
        """Wait until no task runs, also those that others start meanwhile: for so many seconds since `interrupt`.

        When nothing runs any more but what settles, it has `_SETTLING` seconds.
        """
        end = timeout + (time.monotonic() if self._interrupted_at is None else self._interrupted_at)
        with contextlib.suppress(TimeoutError):
            while self.tasks.all and not self.tasks.cancelled:
                self._look_at_end()
                since = self._arguments.ending.since
                until = end if since is None else min(end, since + _SETTLING)
                async with asyncio.timeout(until - time.monotonic()):
                    await self.tasks.change()

    def interrupt(self) -> None:
        """Receive no more messages: `run` lets handlers finish for `shutdown_timeout` from now on, and ends."""
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()
        self.tasks.watch = self._look_at_end
        self._look_at_end()
        if self._scope is not None:
            self._scope.cancel()

    def _look_at_end(self) -> None:
        """Note when nothing runs any more but what settles: from then on, the end of the service has a limit."""
        ending = self._arguments.ending
        if self._arguments.calls.running:  # a message has come all the same
            ending.since = None
        elif ending.since is None and self._stopped.is_set() and len(self.tasks.all) <= self._settling:
            ending.since = time.monotonic()

    @contextlib.contextmanager
    def _settles(self) -> Iterator[None]:
        """In this block, a task whose handler has ended waits for the queue."""
        self._settling += 1
        self.tasks.changed()
        try:
            yield
        finally:
            self._settling -= 1

    @property
    @abstractmethod
    def in_hand(self) -> int:
        """How many messages were received, and neither settled nor given back."""

    def tally(self) -> Tally:
        """Return what has been done so far."""
        return Tally(self.handled, self.failed, in_hand=self.in_hand, **self.outcomes)

    @abstractmethod
    async def _receive(self, consumer: Consumer[Delivery[Any]]) -> None:
        """Handle messages until the queue is drained, and none that was received can go back to it."""

    async def _next(self, consumer: Consumer[Delivery[Any]]) -> Delivery[Any] | None:
        """Return the next delivery; None where the queue is closed and empty. A handler may still give some back."""
        while True:
            before = on_block.set(self._blocked)
            try:
                delivery = await anext(consumer)
            except StopAsyncIteration:
                return None
            except DurabilityError as error:  # the messages have been received; the next call returns one
                self._warn(error)
                continue
            finally:
                on_block.reset(before)
            self.received = True
            if self._arguments.observe is not None and delivery.redelivered:
                self.outcomes["redelivered"] += 1
            return delivery

    def _blocked(self, cause: Cause) -> None:
        """There is no message yet. Other services learn that they need not wait for it, and people of a pause."""
        if self._arguments.member is not None:
            self._arguments.member.idle()
        if cause != "paused":
            self._pause_told = False
        elif not self._pause_told:
            self._pause_told = True
            queue = self._arguments.queue
            logger.warning(
                "%s waits: the queue is paused, until resume() (on the command line `apressure resume`)",
                self._arguments.title,
                extra={"event": "pause_awaited", "queue": queue.name, "kind": type(queue).__name__},
            )

    def _warn(self, error: PressureError) -> None:
        extra = {"event": "serve_continues", "queue": self._arguments.queue.name, "error": type(error).__name__}
        logger.warning("%s continues after an error: %s", self._arguments.title, error, extra=extra)

    _in_hand_only = False
    """Messages wait for their retry in hand, also where their queue could keep them."""

    async def _retry(self, delivery: Delivery[Any], error: BaseException, others: Sequence[Delivery[Any]] = ()) -> None:
        """Have a message tried again after a pause. Meanwhile its queue keeps it: the pause outlives this process.

        Where the queue cannot do that, and where others must not overtake it, it stays in flight until then, and counts
        as `retrying`.

        Args:
            delivery: The message.
            error: Why its handler failed.
            others: The other messages of its batch, which failed with it.
        """
        failed = (delivery, *others)
        if isinstance(error, Hold):
            await self._hold(error, failed)
            return
        self.failed += len(failed)
        kept = isinstance(delivery, Delays) and delivery.can_delay
        kept = kept and not (self._in_hand_only or self._arguments.ordered)
        if kept and self._is_last(delivery):
            pause = 0.0  # it goes to the dead letters
        elif isinstance(error, Retry) and error.after is not None:
            pause = error.after
        else:
            pause = self._arguments.retry.pause(delivery.attempts - 1)
        settled = "it had settled the delivery before" if delivery.settled else "on_error has settled the delivery"
        for each in failed:
            if isinstance(each, NotesErrors):
                each.note_error(error)
        try:
            for each in failed:
                await self._call_on_error(each, error)
        finally:
            self._log_failure(delivery, error, settled if delivery.settled else "", pause, len(others), kept)
        unsettled = [each for each in failed if not each.settled]
        if not unsettled or self.tasks.cancelled:
            return
        if kept:
            await self._give_back(unsettled, pause)
            return
        with self.tasks.retry(len(unsettled)):
            await pause_until(self._stopped, pause)
            if not self._stopped.is_set():  # otherwise the consumer's block gives all messages back, in order
                await self._give_back(unsettled)

    async def _hold(self, hold: Hold, deliveries: Sequence[Delivery[Any]]) -> None:
        """Hold the queue, and give messages back that have met the limits of something else: that was no attempt."""
        queue, role = self._arguments.queue, self._arguments.role
        reason = f" ({hold})" if str(hold) else ""
        logger.info("the %s holds the queue %r for %g s%s", role, queue.name, hold.seconds, reason)
        if not isinstance(queue, Holdable):
            self._fail(TypeError(f"the {role} raised Hold, and the queue {queue.name!r} cannot be held: raise Retry"))
            return
        try:
            with self._settles():
                await queue.hold(hold.seconds)
        except UnsupportedError as error:
            self._fail(error)
            return
        except PressureError as error:  # the message comes again sooner
            self._warn(error)
        if not self.tasks.cancelled:
            await self._give_back([each for each in deliveries if not each.settled], None)

    def _is_last(self, delivery: Delivery[Any]) -> bool:
        """Whether this was the last attempt: given back, it becomes a dead letter."""
        most = self._arguments.queue.max_attempts
        return most is not None and delivery.attempts >= most

    async def _give_back(self, deliveries: Sequence[Delivery[Any]], pause: float | None = 0.0) -> None:
        """Give messages back, after a pause; with None, as if they had not been delivered."""
        options: dict[str, Any] = {"delay": pause} if pause else {}
        for each in deliveries if pause else reversed(deliveries):  # the last one that goes back now comes first
            with self._settles(), contextlib.suppress(PressureError):
                if pause is None and isinstance(each, Releasable):
                    await each.release()
                    continue
                await each.nack(**options)
                self.outcomes["dead_lettered" if self._is_last(each) else "retried"] += 1

    async def _call_on_error(self, delivery: Delivery[Any], error: BaseException) -> None:
        """Tell the program of a failure. Its function may settle the delivery."""
        on_error = self._arguments.options.on_error
        if on_error is None:
            return
        try:
            running = on_error(delivery, error)
            if inspect.isawaitable(running):
                await running
        except (asyncio.CancelledError, Exception) as failure:
            if isinstance(failure, asyncio.CancelledError) and self.tasks.cancelled:
                raise
            name = self._arguments.queue.name
            logger.exception("on_error failed for the delivery %s of the queue %r", logs.printable(delivery.id), name)
        except BaseException as failure:  # noqa: BLE001 (`run` raises it when everything has been given back)
            self._fail(failure)

    def _log_failure(
        self, delivery: Delivery[Any], error: BaseException, outcome: str, pause: float, others: int, kept: bool
    ) -> None:
        name, most = self._arguments.queue.name, self._arguments.queue.max_attempts
        failed = logs.printable(delivery.id)
        if not outcome:
            last = self._is_last(delivery)
            outcome = "it goes to the dead letters" if last else "it goes back"
            if not self.tasks.cancelled and not (last if kept else self._stopped.is_set()):
                outcome += f" in {pause:.1f} s"
        asked = isinstance(error, Retry)
        logger.log(
            logging.INFO if asked else logging.ERROR,
            "the %s of the delivery %s%s of the queue %r %s at attempt %d%s: %s",
            self._arguments.role, failed, f" and {others} more" if others else "", name,
            f"asked for a retry ({error})" if asked else "failed", delivery.attempts,
            "" if most is None else f" of {most}", outcome,
            exc_info=None if asked else (type(error), error, _traceback_of(error)),
            extra={
                "event": "handler_failed", "queue": name, "delivery": failed, "attempts": delivery.attempts,
                "max_attempts": most, "error": type(error).__name__, "seconds": pause,
            },
        )  # fmt: skip

    def _fail(self, error: BaseException) -> None:
        """End `run` with this error."""
        if self._failure is None:
            self._failure = error
        self.interrupt()
        self.tasks.cancel()
