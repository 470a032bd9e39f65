"""One call of `serve` or `pipe`: it holds the consumer, takes it again after a failure, and ends after a signal."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from signal import Signals
from typing import Final

from apressure.concurrency.backoff import Backoff, pause_until
from apressure.core.leases.stacks import frames_of
from apressure.core.registration import Doing, registered
from apressure.exceptions import PressureError
from apressure.protocols import Creatable, Tally
from apressure.service import handlers
from apressure.service.batching import Batching
from apressure.service.dispatcher import Arguments, Dispatcher, StoppedError
from apressure.service.handling import Handling
from apressure.service.keyed import Keyed
from apressure.service.scheduling import driving

logger = logging.getLogger("apressure")

_RETURN: Final = Backoff(0.5, 30.0)
"""The pauses before the service takes the consumer again."""


@dataclasses.dataclass(frozen=True)
class Served:
    """What `serve` has done when it returns.

    Attributes:
        handled: How often a handler returned. A batch counts each of its items.
        failed: How often a handler raised. A batch counts each item that it had not settled.
        signal: The signal that ended it; None if the queue was closed and drained, or `stop` was set.
        drained: Somebody has ended it by `drain` of its queue, or by `apressure workers drain`.
    """

    handled: int
    failed: int
    signal: Signals | None = None
    drained: bool = False


def _dispatcher(arguments: Arguments, stopped: asyncio.Event) -> Handling:
    """Return what handles the messages of one consumer block, as the options say."""
    if arguments.options.batch is not None:
        return Batching(arguments, stopped)
    if arguments.options.key is not None:
        return Keyed(arguments, stopped)
    return Handling(arguments, stopped)


class Service:
    """One call of `serve`, or of `pipe`.

    Args:
        arguments: Its arguments.
        dispatcher: Makes what handles the messages while the consumer is held.

    Attributes:
        stop_listening: Called at the second signal, so that a third one has the effect that it had before.
        on_drain: Called when somebody has asked this service to drain.
        queue: The queue.
        handler: The handler.
    """

    def __init__(
        self, arguments: Arguments, dispatcher: Callable[[Arguments, asyncio.Event], Dispatcher] = _dispatcher
    ) -> None:
        self.stop_listening: Callable[[], None] = lambda: None
        self.on_drain: Callable[[], object] = self.drain
        self.queue = arguments.queue
        self.handler = arguments.handler
        self._arguments = arguments
        self._dispatcher = dispatcher
        self._current: Dispatcher | None = None
        self._past = Tally()
        self._signal: Signals | None = None
        self._drained = False
        self._stopped = asyncio.Event()
        self._interrupt: Callable[[], None] = lambda: None
        self._cancel_handlers: Callable[[], None] = lambda: None

    def signalled(self, signum: int) -> None:
        """End the service after a signal: the first one lets handlers finish, the second one cancels them.

        Handlers of a service that drains already may finish after the first one, too.
        """
        if not self._stopped.is_set():
            self._signal = Signals(signum)
            self.stop()
        elif self._drained and self._signal is None:
            self._signal = Signals(signum)
        else:
            self.stop_listening()
            text = "%s cancels its handlers after a second signal, %s: %d in hand go back"
            self._tell(logging.WARNING, "serve_cancelled", text, Signals(signum))
            self._cancel_handlers()

    def drain(self) -> None:
        """End the service since somebody has asked for that: as after the first signal."""
        self._drained = self._drained or not self._stopped.is_set()
        self.stop()

    def stop(self) -> None:
        """Receive no more, and let the handlers finish."""
        if not self._stopped.is_set():
            self._stopped.set()
            if self._current is None:  # otherwise it notes when its handlers have ended
                self._arguments.ending.since = time.monotonic()
            text = "%s drains after %s: %d in hand"
            self._tell(logging.INFO, "serve_draining", text, self._signal, drained=self._drained)
            self._interrupt()

    def _tell(self, level: int, event: str, text: str, received: Signals | None, **more: object) -> None:
        in_hand, name = self.tally().in_hand, None if received is None else received.name
        extra = {"event": event, "signal": name, "count": in_hand, **more, **self._fields()}
        why = name or ("an operator has asked for that" if self._drained else "its stop event")
        logger.log(level, text, self._arguments.title, why, in_hand, extra=extra)

    def _fields(self) -> dict[str, object]:
        """Return what every record of the log says."""
        kind, handler = type(self.queue).__name__, handlers.name_of(self.handler)
        return {"queue": self.queue.name, "kind": kind, "handler": handler}

    async def run(self) -> Served:
        """Handle messages until the queue is drained or a signal comes."""
        title = self._arguments.title
        losses = 0
        reached = False
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._arguments.ending.limiting())
            if not self._arguments.queue.opened:
                await self._open(stack)
            if self._arguments.options.create:
                await self._create()
            await stack.enter_async_context(driving(self._arguments.queue))
            if self._arguments.options.observer is not None:
                observe = stack.enter_context(self._arguments.options.observer.observing(self))
                self._arguments = dataclasses.replace(self._arguments, observe=observe)
            name = handlers.name_of(self.handler)
            stack.enter_context(registered(self.queue, "serve", name, self._doing, self.on_drain, self._stack))
            extra = self._fields()
            logger.info("%s begins", title, extra={"event": "serve_started", **extra})
            while not self._stopped.is_set():
                dispatcher = self._current = self._dispatcher(self._arguments, self._stopped)
                self._interrupt, self._cancel_handlers = dispatcher.interrupt, dispatcher.tasks.cancel
                try:
                    await dispatcher.run()
                    break
                except StoppedError:
                    break
                except PressureError as error:
                    reached = reached or dispatcher.reached
                    if not (reached and error.temporary):
                        raise
                    losses = 0 if dispatcher.received else losses
                    pause = _RETURN.pause(losses)
                    losses += 1
                    drains = self._stopped.is_set()
                    again = " while it drains, and what it had in hand comes again"
                    then = again if drains else f", and takes it again in {pause:.1f} s"
                    seconds, cause = None if drains else pause, type(error).__name__
                    logger.warning(
                        "%s lost the consumer role%s: %s", title, then, error,
                        extra={"event": "serve_interrupted", "error": cause, "seconds": seconds, **extra},
                    )  # fmt: skip
                    await pause_until(self._stopped, pause)
                finally:
                    self._past, self._current = self.tally()._replace(in_hand=0), None
        logger.info(
            "%s has ended: %d handled, %d failed", title, self._past.handled, self._past.failed,
            extra={
                "event": "serve_ended", "handled": self._past.handled, "failed": self._past.failed,
                "signal": self._signal and self._signal.name, **extra,
            },
        )  # fmt: skip
        return Served(self._past.handled, self._past.failed, self._signal, self._drained)

    def tally(self) -> Tally:
        """Return what has been done so far, while the consumer was held now and before."""
        past, current = self._past, self._current
        return past if current is None else Tally(*map(sum, zip(past, current.tally(), strict=True)))

    def _doing(self) -> Doing:
        """Return what this service does, for those who look at the queue."""
        tally, calls, concurrency = self.tally(), self._arguments.calls, self._arguments.concurrency
        draining = self._stopped.is_set()
        return Doing(concurrency, tally.in_hand, tally.handled, tally.failed, calls.oldest, calls.busy, draining)

    def _stack(self) -> list[str]:
        """Return where the longest of its handlers is."""
        return frames_of(next(iter(self._arguments.calls.running), None))

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        from anyio import CancelScope  # here, since it loads anyio's backend

        with CancelScope() as scope:
            self._interrupt = scope.cancel
            await stack.enter_async_context(self._arguments.queue)

    async def _create(self) -> None:
        from anyio import CancelScope  # here, since it loads anyio's backend

        queue = self._arguments.queue
        assert isinstance(queue, Creatable)
        with CancelScope() as scope:
            self._interrupt = scope.cancel
            if not self._stopped.is_set():
                await queue.create(bound=self._arguments.options.bound or 0, exist_ok=True)
