"""Runs a handler for each message of a consumer, and settles the message when its handler has ended.

One task receives. Workers, which are tasks that live on, call the handlers. A worker owns a message from the moment it
was handed out until it is settled, or given back with the consumer's block: it runs the handler and, after a failure,
waits for the retry. Only then does it take another message.

A handler that returns without waiting for anything costs no task, no future and no turn of the event loop: its worker
goes on with the next message at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

from apressure import logs
from apressure.exceptions import DurabilityError, PressureError
from apressure.protocols import AcknowledgesSoon, Consumer, Delivery
from apressure.service import handlers
from apressure.service.calls import Caller, ExecutorEndedError, NotAwaitableError, TimedCaller
from apressure.service.dispatcher import Arguments, Dispatcher
from apressure.service.pool import Member
from apressure.service.stages.flow import excused

logger = logging.getLogger("apressure")

_WOKEN: Final = 2
"""How many workers are woken at a time. Each wakes as many again, if the first of them leave it any work."""


class Handling(Dispatcher):
    """Handles the messages of one consumer block."""

    def __init__(self, arguments: Arguments, stopped: asyncio.Event) -> None:
        super().__init__(arguments, stopped)
        options = arguments.options
        how = arguments.handler, options.timeout, options.executor, arguments.calls
        self._caller = Caller(*how) if arguments.observe is None else TimedCaller(*how, arguments.observe)
        self._ready: deque[Any] = deque()  # what a worker takes next: a message, or a batch
        self._open = 0  # messages that were received, and neither settled nor given back
        self._acknowledging = 0  # of these, messages whose handler has returned
        self._idle: list[asyncio.Future[None]] = []
        self._waking = 0
        self._ending = False
        self._replies = options.reply
        self._soon: bool | None = None  # whether deliveries can `ack_soon`; None before the first one
        if arguments.member is not None:
            arguments.member.taken = self._places_taken

    @property
    def in_hand(self) -> int:
        return self._open

    async def _receive(self, consumer: Consumer[Delivery[Any]]) -> None:
        """Hand messages to workers, until the queue is drained and no worker can give a message back."""
        tasks, arguments = self.tasks, self._arguments
        counted = False  # the pace has counted the next handler
        # Where services share their places, the pool gives them out, and one message more waits for that.
        most = arguments.concurrency + (arguments.member is not None)
        try:
            while True:
                while self._places_taken() >= most:
                    await tasks.change()
                if arguments.pace is not None and not counted and self._begins_with_the_next():
                    if arguments.member is not None:
                        arguments.member.idle()
                    await arguments.pace.turn()
                    counted = True
                all_settled = not self._open
                delivery = await self._next(consumer)
                if delivery is not None:
                    self._open += 1
                    if arguments.member is not None:
                        await self._turn(arguments.member, delivery)
                    self._arrived(delivery)
                    counted = False
                    continue
                self._release()
                if all_settled:
                    return
                await tasks.change()
        finally:
            self._release()
            self._end_workers()

    def interrupt(self) -> None:
        self._end_workers()
        super().interrupt()

    def _end_workers(self) -> None:
        """Have each worker end when it finds nothing to do."""
        self._ending = True
        for idle in self._idle:
            if not idle.done():
                self._waking += 1
                idle.set_result(None)

    async def _turn(self, member: Member, delivery: Delivery[Any]) -> None:
        """Wait until the other services leave a place for a message."""
        try:
            with excused(delivery):
                await member.turn()
        except BaseException:
            self._open -= 1  # the consumer's block gives it back
            raise

    def _arrived(self, delivery: Delivery[Any]) -> None:
        """Hand a message to a worker."""
        self._ready.append(delivery)
        if self._waking < _WOKEN:
            self._wake()

    def _begins_with_the_next(self) -> bool:
        """Return whether the next message begins a call of the handler."""
        return True

    def _release(self) -> None:
        """Hand over what is held back: nothing more comes for now."""

    def _places_taken(self) -> int:
        """Return how many handlers run, or are about to, and how many failed items are too many to wait beside them."""
        retrying = self.tasks.retrying
        waiting_beside = min(retrying, self._arguments.most_retries)
        return self._open - self._acknowledging - waiting_beside

    def _wake(self) -> None:
        """Have workers look at what is ready, unless enough of them are about to."""
        while self._waking < min(_WOKEN, len(self._ready)) and not self.tasks.cancelled:
            self._waking += 1
            while self._idle:
                if not (idle := self._idle.pop()).done():
                    idle.set_result(None)
                    break
            else:
                self.tasks.start(self._work(), f"handling messages of the queue {self._arguments.queue.name!r}")

    async def _work(self) -> None:
        """Handle messages until the service ends, or a handler cancels this task."""
        task = asyncio.current_task()
        assert task is not None
        ready = self._ready
        loop = task.get_loop()
        try:
            while True:
                self._waking -= 1
                while ready and not self.tasks.cancelled:
                    await self._handle_next()
                    if task.cancelling():
                        return  # the cancellation was for the handler that has ended: it may still be pending
                if self._ending:
                    return
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
        finally:
            self._wake()

    async def _handle_next(self) -> None:
        """Run the handler for the next message, and settle the message."""
        delivery = self._ready.popleft()
        reply = None
        if self._ready and self._waking < _WOKEN:
            self._wake()  # this handler may take its time
        try:
            if self._replies and delivery.asked:
                reply = await self._replied(delivery)
            elif (rest := self._caller.begin(self._argument_of(delivery))) is not None:
                await rest
        except BaseException as error:  # noqa: BLE001 (`_failure_of` raises what is not a failure)
            failure = self._failure_of(error)
            if failure is not None:
                await self._retry(delivery, failure)
        else:
            await self._acknowledge(delivery, reply)
        finally:
            self._open -= 1
            self.tasks.changed()

    def _failure_of(self, error: BaseException) -> BaseException | None:
        """Return with what a handler has failed; None if the service ends because of it.

        Raises:
            asyncio.CancelledError: The handler was cancelled with the service.
        """
        if isinstance(error, asyncio.CancelledError):
            if self.tasks.cancelled:
                raise error  # the consumer's block gives the message back
            return asyncio.CancelledError("the handler cancelled itself")
        if isinstance(error, NotAwaitableError):
            self._fail(handlers.not_awaitable(self._arguments.handler, error.returned))
            return None
        if isinstance(error, ExecutorEndedError):
            self._fail(error.reason)
            return None
        if isinstance(error, Exception):
            return error
        self._fail(error)  # `run` raises it when everything has been given back
        return None

    async def _retry_alone(self, delivery: Delivery[Any], error: Exception) -> None:
        """Retry a message for which no handler could be called, in a task of its own."""
        try:
            if self._replies and not await self._is_wanted(delivery):
                await self._acknowledge(delivery)
            else:
                await self._retry(delivery, error)
        finally:
            self._open -= 1
            self.tasks.changed()

    async def _returned(self, argument: Any) -> Any:
        """Run the handler; returns what it has returned."""
        rest = self._caller.begin(argument, reply=True)
        if rest is not None:
            return await rest
        returned, self._caller.returned = self._caller.returned, None
        return returned

    def _argument_of(self, delivery: Any) -> Any:
        """Return what the handler gets. It raises where the item cannot be decoded."""
        return delivery if self._arguments.deliveries else delivery.item

    async def _replied(self, delivery: Any) -> bytes | None:
        """Run the handler; returns its reply, or None if it has settled the message, or its asker has left.

        Raises:
            TypeError, ValueError: What it has returned cannot be sent: that is a failure of the handler.
            BaseException: What the handler raised.
        """
        if not await self._is_wanted(delivery):
            return None
        returned = await self._returned(self._argument_of(delivery))
        reply: bytes | None = None if delivery.settled else delivery.encode_reply(returned)
        return reply

    async def _is_wanted(self, delivery: Any) -> bool:
        """Whether a message is to be handled: not if it is a request whose asker has left."""
        try:
            if not delivery.asked or await delivery.still_asked():
                return True
        except PressureError:
            return True  # the acknowledgement fails, too, if that lasts
        name, dropped = self._arguments.queue.name, logs.printable(delivery.id)
        logger.info(
            "the request %s of the queue %r is dropped: its asker has left", dropped, name,
            extra={"event": "request_dropped", "queue": name, "delivery": dropped},
        )  # fmt: skip
        return False

    async def _acknowledge(self, delivery: Delivery[Any], reply: bytes | None = None) -> None:
        self.handled += 1
        if delivery.settled:
            return
        if self._soon is None:
            self._soon = isinstance(delivery, AcknowledgesSoon)
        try:
            if reply is not None:
                delivery.ack_soon(reply)  # type: ignore[attr-defined]
            elif self._soon:
                delivery.ack_soon()  # type: ignore[attr-defined]
            else:
                await self._acknowledge_now(delivery)
        except DurabilityError as error:
            self._warn(error)
        except PressureError as error:  # the message comes again
            self.handled -= 1
            if not self.tasks.cancelled:
                self._warn(error)

    async def _acknowledge_now(self, delivery: Delivery[Any]) -> None:
        """Wait for the acknowledgement. Meanwhile another handler takes the place of this one."""
        self._acknowledging += 1
        try:
            with self._settles():
                await delivery.ack()
        finally:
            self._acknowledging -= 1
