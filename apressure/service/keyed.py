"""Runs the handlers of one key one after the other, and those of different keys side by side."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final

from apressure.protocols import Consumer, Delivery
from apressure.service.dispatcher import Arguments
from apressure.service.handling import Handling

_HELD: Final = 10
"""For each handler, so many items may wait for their key."""

_GONE_SECONDS: Final = 5.0
"""If nothing has come for so long, an item that went back does not come again: it was purged, or another has it."""

_GONE_MESSAGES: Final = 2500
"""More than a consumer has in hand: if so many have come, an item that went back first in line does not come again."""


@dataclasses.dataclass(eq=False)
class _Return:
    """An item that went back, and is to come again.

    Attributes:
        raw: Its bytes.
        attempts: What the delivery will say.
        arrived: How many messages had come before it went back.
        asked: How often the consumer had been asked when it was back; None before.
    """

    raw: bytes
    attempts: int
    arrived: int
    asked: int | None = None


@dataclasses.dataclass(eq=False)
class _Lane:
    """The items of one key that are here.

    Attributes:
        key: The key.
        waiting: Those that wait for their turn, in order.
        busy: One is being handled, or waits for its retry, or is to come again.
        returning: The one that is to come again.
    """

    key: Hashable
    waiting: deque[Delivery[Any]] = dataclasses.field(default_factory=deque)
    busy: bool = False
    returning: _Return | None = None


class Keyed(Handling):
    """Hands an item to a worker when nothing of its key is being handled or tried again.

    An item that failed goes back to the queue and comes again. Until then the others of its key wait here.
    """

    _in_hand_only = True  # what the queue keeps comes behind the others of its key

    def __init__(self, arguments: Arguments, stopped: asyncio.Event) -> None:
        super().__init__(arguments, stopped)
        self._lanes: dict[Hashable, _Lane] = {}
        self._free: deque[_Lane] = deque()  # lanes with an item that may begin
        self._returning: dict[_Return, _Lane] = {}
        self._failing: dict[str, _Lane] = {}  # by the id of the delivery
        self._held = 0
        self._calls = 0  # handlers that run, or are about to
        self._arrivals = 0
        self._asked = 0
        self._asking_since = math.inf

    def _places_taken(self) -> int:
        concurrency = self._arguments.concurrency
        if self._held >= _HELD * concurrency and not self._returning:
            return concurrency
        too_many = max(0, self.tasks.retrying - self._arguments.most_retries)
        return self._calls + too_many

    async def _next(self, consumer: Consumer[Delivery[Any]]) -> Delivery[Any] | None:
        self._asked += 1
        self._asking_since = asyncio.get_running_loop().time()
        try:
            return await super()._next(consumer)
        finally:
            self._asking_since = math.inf

    def _arrived(self, delivery: Delivery[Any]) -> None:
        self._arrivals += 1
        key = self._arguments.options.key
        assert key is not None
        try:
            value = key(delivery.item)
            lane = self._lanes.get(value) or self._lanes.setdefault(value, _Lane(value))
        except Exception as error:  # noqa: BLE001 (the message is tried again after any error)
            self.tasks.start(self._retry_alone(delivery, error), f"a failed item of {self._arguments.queue.name!r}")
            return
        self._held += 1
        back = lane.returning
        if back is not None and back.attempts == delivery.attempts and back.raw == delivery.raw:
            lane.waiting.appendleft(delivery)
            self._end_return(back)
        else:
            lane.waiting.append(delivery)
            if not lane.busy:
                self._may_go_on(lane)
        for late in [each for each in self._returning if self._arrivals - each.arrived > _GONE_MESSAGES]:
            self._end_return(late)

    def _release(self) -> None:
        """The queue is closed and empty: what was back before the consumer was asked does not come again."""
        for back in [each for each in self._returning if each.asked is not None and each.asked < self._asked]:
            self._end_return(back)

    def _look_for(self, back: _Return, since: float) -> None:
        """End a return when the consumer has waited in vain for so long, since then and without a break."""
        if back not in self._returning or self._ending:
            return
        loop = asyncio.get_running_loop()
        waited = loop.time() - max(self._asking_since, since)
        if waited >= _GONE_SECONDS:
            self._end_return(back)
        else:
            loop.call_later(min(_GONE_SECONDS, _GONE_SECONDS - waited), self._look_for, back, since)

    def _end_return(self, back: _Return) -> None:
        lane = self._returning.pop(back)
        lane.returning = None
        self._may_go_on(lane)

    def _may_go_on(self, lane: _Lane) -> None:
        """Nothing of this lane is being handled: begin with its next item when there is a place."""
        lane.busy = bool(lane.waiting)
        if lane.busy:
            self._free.append(lane)
            self._begin_calls()
        else:
            self._lanes.pop(lane.key, None)

    def _begin_calls(self) -> None:
        while self._free and self._calls < self._arguments.concurrency and not self._stopped.is_set():
            lane = self._free.popleft()
            self._calls += 1
            self._held -= 1
            self._ready.append((lane, lane.waiting.popleft()))
        self._wake()

    async def _handle_next(self) -> None:
        """Run the handler for the next item, and settle the item."""
        lane, delivery = self._ready.popleft()
        reply = None
        if self._ready:
            self._wake()  # this handler may take its time
        try:
            try:
                if self._replies and delivery.asked:
                    reply = await self._replied(delivery)
                elif (rest := self._caller.begin(self._argument_of(delivery))) is not None:
                    await rest
            finally:
                self._calls -= 1
                self._begin_calls()
                self.tasks.changed()
        except BaseException as error:  # noqa: BLE001 (`_failure_of` raises what is not a failure)
            failure = self._failure_of(error)
            if failure is not None:
                self._failing[delivery.id] = lane
                try:
                    await self._retry(delivery, failure)
                finally:
                    if self._failing.pop(delivery.id, None) is not None:  # it did not go back
                        self._may_go_on(lane)
        else:
            try:
                await self._acknowledge(delivery, reply)
            finally:
                self._may_go_on(lane)
        finally:
            self._open -= 1
            self.tasks.changed()

    async def _give_back(self, deliveries: Sequence[Delivery[Any]], pause: float | None = 0.0) -> None:
        lanes = [(lane, each) for each in deliveries if (lane := self._failing.get(each.id)) is not None]
        backs = [self._expect(lane, each, counts=pause is not None) for lane, each in lanes]
        await super()._give_back(deliveries, pause)
        for back in backs:
            if back is not None:
                back.asked = self._asked
                self._look_for(back, asyncio.get_running_loop().time())

    def _expect(self, lane: _Lane, delivery: Delivery[Any], counts: bool) -> _Return | None:
        """Keep a lane for an item that goes back, unless it becomes a dead letter. `counts`: it was an attempt."""
        if counts and self._is_last(delivery):
            return None
        del self._failing[delivery.id]
        back = lane.returning = _Return(delivery.raw, delivery.attempts + counts, self._arrivals)
        self._returning[back] = lane
        return back
