"""A stage of a pipeline while it has the consumer: receives, transforms, and moves the results on.

Three kinds of tasks work side by side, and each ends when it has nothing to do: the one that receives, up to
`concurrency` that transform, and one that moves. What has finished during one move travels together with the next one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from types import CoroutineType
from typing import Any, Final

from apressure.concurrency.backoff import Backoff, pause_until
from apressure.exceptions import LeaseLostError, PressureError
from apressure.protocols import BufferedConsumer, Consumer, Delivery, Mover
from apressure.service import handlers
from apressure.service.calls import UNSEEN, Observation
from apressure.service.dispatcher import Arguments, Dispatcher
from apressure.service.stages import results
from apressure.service.stages.flow import Outbox, ReadAhead, excused

_PAUSES: Final = Backoff(0.5, 30.0)
"""Before results are moved again after an outage of the destination."""


@dataclasses.dataclass
class Plan:
    """What a stage does with results, and how many it has put.

    Attributes:
        mover: Puts results and acknowledges what they came from.
        batch: How many items the transform gets at most; None for items instead of lists.
        put: How many results have been put.
    """

    mover: Mover
    batch: int | None
    put: int = 0


class Stage(Dispatcher):
    """Transforms the messages of one consumer block, and moves the results."""

    def __init__(self, arguments: Arguments, stopped: asyncio.Event, plan: Plan) -> None:
        super().__init__(arguments, stopped)
        self._plan = plan
        self._size = plan.batch or 1
        self._ready: deque[Delivery[Any]] = deque()
        self._read_ahead = ReadAhead(arguments.concurrency * self._size)
        self._outbox = Outbox(arguments.concurrency)
        self._open = 0  # deliveries that were received, and neither moved nor given back
        self._returned = 0
        self._observation = None if arguments.observe is None else Observation(arguments.observe)
        self._transforming = 0
        self._moving = False

    @property
    def in_hand(self) -> int:
        return self._open

    async def _receive(self, consumer: Consumer[Delivery[Any]]) -> None:
        """Receive until the source is drained, and everything is moved or dead."""
        tasks, ready = self.tasks, self._ready
        most_retrying = self._arguments.most_retries + self._arguments.concurrency
        take_ready = consumer.take_ready if isinstance(consumer, BufferedConsumer) else None
        while True:
            while len(ready) >= self._read_ahead.limit or tasks.retrying >= most_retrying:
                self._read_ahead.filled()
                await tasks.change()
            all_settled, returned = not self._open, self._returned
            delivery = await self._next(consumer)
            if delivery is not None:
                ready.append(delivery)
                more = () if take_ready is None else take_ready(self._read_ahead.limit - len(ready))
                if self._arguments.observe is not None:
                    self.outcomes["redelivered"] += sum(each.redelivered for each in more)
                ready.extend(more)
                self._open += 1 + len(more)
                self._begin_to_transform(1 + len(more))
                continue
            if all_settled:
                return
            while self._open and self._returned == returned:  # an open delivery may go back to the source
                await tasks.change()

    def _begin_to_transform(self, calls: int) -> None:
        """Start up to `calls` more transforms, if there are messages for them and room for their results."""
        if not self._outbox.full:
            for _ in range(min(calls, len(self._ready), self._arguments.concurrency - self._transforming)):
                self._transforming += 1
                self.tasks.start(self._transform(), f"transforming for {self._arguments.title}")

    async def _transform(self) -> None:
        """Transform the messages that are ready, one portion after the other."""
        try:
            while self._ready and self._failure is None and not self._outbox.full:
                await self._transform_next()
        finally:
            self._transforming -= 1
        if not self._ready:
            self._read_ahead.used_up()

    async def _transform_next(self) -> None:
        transform, encode = self._arguments.handler, self._plan.mover.encode
        deliveries: Sequence[Delivery[Any]]
        batch: list[Any] | None = None
        if self._plan.batch is None:
            deliveries = (self._ready.popleft(),)
        else:
            deliveries, batch = self._take_batch()
            if not batch:
                return
        observed, calls, call = None, self._arguments.calls, asyncio.current_task()
        calls.running[call] = time.perf_counter()
        try:
            argument = deliveries[0].item if batch is None else batch
            if self._observation is not None:
                observed = self._observation.begin(argument)
            with UNSEEN if observed is None else observed.call:
                returned = transform(argument)
                if batch is not None:
                    found = results.of_batch(await results.outcome(returned))
                else:
                    value = await returned if isinstance(returned, CoroutineType) else await results.outcome(returned)
                    found = results.of_item(value)
            encoded = [encode(result) for result in found]
            if observed is not None:
                observed.end(None)
        except BaseException as error:
            if observed is not None:
                observed.end(error)
            if isinstance(error, asyncio.CancelledError) and self.tasks.cancelled:
                raise  # the consumer's block gives the messages back
            self._failed_with(error, deliveries)
            return
        finally:
            calls.end(call)
        self._outbox.add(deliveries, encoded)
        if not self._moving:
            self._moving = True
            self.tasks.start(self._move(), f"moving the results of {self._arguments.title}")

    def _failed_with(self, error: BaseException, deliveries: Sequence[Delivery[Any]]) -> None:
        """Handle a transform that raised: its messages are tried again, or the stage ends."""
        if isinstance(error, results.NotAwaitableError):
            self._fail(handlers.not_awaitable(self._arguments.handler, error.returned, self._arguments.role))
            return
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            error = asyncio.CancelledError("the transform cancelled itself")
        elif not isinstance(error, Exception):
            self._fail(error)  # `run` raises it when everything has been given back
            return
        for delivery in deliveries:
            self._give_up(delivery, error)

    def _take_batch(self) -> tuple[list[Delivery[Any]], list[Any]]:
        """Return the deliveries for the next call, and their items.

        A message that comes again is in a batch of its own: a bad one must not use up the attempts of others.
        """
        ready = self._ready
        deliveries: list[Delivery[Any]] = []
        items: list[Any] = []
        while ready and len(deliveries) < self._size and not (deliveries and ready[0].redelivered):
            delivery = ready.popleft()
            try:
                items.append(delivery.item)
            except Exception as error:  # noqa: BLE001 (a message that cannot be decoded fails by itself)
                self._give_up(delivery, error)
                continue
            deliveries.append(delivery)
            if delivery.redelivered:
                break
        return deliveries, items

    def _give_up(self, delivery: Delivery[Any], error: BaseException) -> None:
        """Give the message of a failed attempt back after a pause, as in `serve`."""
        self.tasks.start(self._return(delivery, error), f"a failed item of {self._arguments.title}")

    async def _return(self, delivery: Delivery[Any], error: BaseException) -> None:
        await self._retry(delivery, error)
        self._open -= 1
        self._returned += 1

    async def _move(self) -> None:
        """Move finished results, one portion after the other."""
        try:
            failures = 0
            while self._outbox:
                moved = await self._move_portion()
                failures = 0 if moved else failures + 1
                if self._failure is not None:
                    return
                if not moved and self._outbox:
                    with excused(self._outbox.first):
                        await pause_until(self._stopped, _PAUSES.pause(failures - 1))
        finally:
            self._moving = False

    async def _move_portion(self) -> int:
        """Move a portion. Returns how many inputs, or batches of them, left the outbox."""
        portion = self._outbox.portion()
        bad: Exception | None = None
        try:
            await self._plan.mover.move(portion)
        except LeaseLostError as error:
            self._fail(error)
        except PressureError as error:
            if error.temporary:
                self._warn(error)  # the messages stay in flight, and are moved later
            else:
                self._fail(error)
        except Exception as error:  # noqa: BLE001 (results that cannot be put are a failed attempt)
            bad = error
        moved = self._outbox.take_moved(len(portion))
        for deliveries, some in moved:
            self._open -= len(deliveries)
            self.handled += len(deliveries)
            self._plan.put += len(some)
        if bad is not None:
            for delivery in self._outbox.take_first():
                self._give_up(delivery, bad)
        self._begin_to_transform(len(self._ready))
        self.tasks.changed()
        return len(moved) + (bad is not None)
