"""Runs a handler for several messages at a time."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections import deque
from typing import Any

from apressure.protocols import Delivery
from apressure.service.dispatcher import Arguments
from apressure.service.handling import Handling


class Batching(Handling):
    """Gathers batches, and hands them to workers.

    What comes again is handled alone: a bad message must not use up the attempts of those beside it.
    """

    def __init__(self, arguments: Arguments, stopped: asyncio.Event) -> None:
        super().__init__(arguments, stopped)
        self._most = arguments.options.batch or 1
        self._gathered: list[Delivery[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._batches: deque[list[Delivery[Any]]] = deque()
        self._calls = 0  # handlers that run, or are about to

    def _places_taken(self) -> int:
        too_many = max(0, self.tasks.retrying - self._arguments.most_retries)
        return self._calls + len(self._batches) + too_many

    def _arrived(self, delivery: Delivery[Any]) -> None:
        if delivery.redelivered and self._gathered:
            self._release()
            if self._arguments.pace is not None:
                self._arguments.pace.count()
        self._gathered.append(delivery)
        if delivery.redelivered or len(self._gathered) >= self._most:
            self._release()
        elif self._timer is None:
            linger = self._arguments.options.linger
            self._timer = asyncio.get_running_loop().call_later(linger, self._release)

    def _begins_with_the_next(self) -> bool:
        return not self._gathered

    def _release(self) -> None:
        """Hand over what has been gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathered:
            self._batches.append(self._gathered)
            self._gathered = []
            self._begin_calls()

    def _begin_calls(self) -> None:
        """Hand over what there is a place for."""
        while self._batches and self._calls < self._arguments.concurrency:
            self._calls += 1
            self._ready.append(self._batches.popleft())
        self._wake()

    def _end_call(self) -> None:
        self._calls -= 1
        self._begin_calls()
        self.tasks.changed()

    async def _handle_next(self) -> None:
        """Run the handler for the next batch, and settle its messages."""
        batch: list[Delivery[Any]] = self._ready.popleft()
        argument: list[Any] = batch
        if not self._arguments.deliveries:
            batch, argument = self._decode(batch)
        if self._ready:
            self._wake()  # this handler may take its time
        asked = self._has_requests(batch)
        if asked:
            batch, argument = await self._wanted(batch, argument)
            asked = self._has_requests(batch)
        if not batch:
            self._end_call()
            return
        replies: list[bytes | None] = [None] * len(batch)
        try:
            try:
                if asked:
                    replies = self._replies_of(batch, await self._returned(argument.copy()))
                elif (rest := self._caller.begin(argument.copy())) is not None:
                    await rest
            finally:
                self._end_call()
        except BaseException as error:  # noqa: BLE001 (`_failure_of` raises what is not a failure)
            failure = self._failure_of(error)
            if failure is not None:
                first, *others = [delivery for delivery in batch if not delivery.settled] or batch[-1:]
                self.handled += len(batch) - len(others) - 1
                await self._retry(first, failure, others)
        else:
            for delivery, reply in zip(batch, replies, strict=True):
                await self._acknowledge(delivery, reply)
        finally:
            self._open -= len(batch)
            self.tasks.changed()

    def _has_requests(self, batch: list[Any]) -> bool:
        """Return whether the service replies, and somebody has asked one of these."""
        return self._replies and any(delivery.asked for delivery in batch)

    async def _wanted(self, batch: list[Any], argument: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return what is to be handled of a batch; requests whose askers have left are acknowledged."""
        wanted = await asyncio.gather(*map(self._is_wanted, batch))
        for delivery in itertools.compress(batch, map(operator.not_, wanted)):
            self._open -= 1
            await self._acknowledge(delivery)
        return [*itertools.compress(batch, wanted)], [*itertools.compress(argument, wanted)]

    def _replies_of(self, batch: list[Any], returned: Any) -> list[bytes | None]:
        """Return what the service replies to each message of a batch."""
        if not isinstance(returned, (list, tuple)) or len(returned) != len(batch):
            what = f"{len(returned)} values" if isinstance(returned, (list, tuple)) else type(returned).__name__
            raise TypeError(
                f"with reply=True, a handler of batches must return a list with a reply for each of its {len(batch)} "
                f"messages, not {what}"
            )
        return [
            delivery.encode_reply(reply) if delivery.asked and not delivery.settled else None
            for delivery, reply in zip(batch, returned, strict=True)
        ]

    def _decode(self, batch: list[Delivery[Any]]) -> tuple[list[Delivery[Any]], list[Any]]:
        """Return the messages that can be decoded, and their items. The others fail by themselves."""
        decoded: list[Delivery[Any]] = []
        items: list[Any] = []
        for delivery in batch:
            try:
                items.append(delivery.item)
            except Exception as error:  # noqa: BLE001 (the message is tried again after any error)
                self.tasks.start(self._retry_alone(delivery, error), f"a failed item of {self._arguments.queue.name!r}")
            else:
                decoded.append(delivery)
        return decoded, items
