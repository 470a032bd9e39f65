"""A consumer of several queues at once: the loop that okq's specification asks every consumer to write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Any, Self

from apressure.connection.client import Client
from apressure.core.waiting import Wait
from apressure.events.consumer import EventConsumer
from apressure.events.core import Core
from apressure.events.delivery import EventDelivery
from apressure.exceptions import QueueClosedError


class EventConsumers:
    """A consumer of several queues; made by `EventQueue.consume`.

    Attributes:
        name: The name of the queue that the latest delivery is from; empty before the first one.
    """

    def __init__(self, consumers: dict[Core[Any], EventConsumer[Any]], client: Client | None) -> None:
        self.name = ""
        self._consumers = consumers
        self._client = client
        self._open: list[Core[Any]] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._client is not None:
                await stack.enter_async_context(self._client)
            for queue, consumer in self._consumers.items():
                await stack.enter_async_context(queue)
                await stack.enter_async_context(consumer)
            self._stack = stack.pop_all()
        self._open = list(self._consumers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the block: what was handed out and not settled goes back, first in line."""
        await self._stack.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventDelivery[Any]:
        """Return the next delivery of any of the queues.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: All queues are closed and drained.
            PressureError, RuntimeError: As for a consumer of one queue.
        """
        while self._open:
            noted = {queue: queue.waits.note() for queue in self._open}
            blocked: dict[Core[Any], Wait] = {}
            try:
                for queue in random.sample(self._open, len(self._open)):  # a busy queue must not starve the others
                    try:
                        answer = await self._consumers[queue].poll()
                    except QueueClosedError:
                        self._open.remove(queue)
                        continue
                    if isinstance(answer, Wait):
                        blocked[queue] = answer
                        continue
                    if answer is not None:
                        self.name = queue.name
                        return answer
                    break  # look again
                else:
                    if blocked:
                        await self._park(blocked, noted)
                        blocked = {}
            finally:
                for queue, wait in blocked.items():
                    queue.waits.drop(wait)
        raise StopAsyncIteration

    async def _park(self, blocked: dict[Core[Any], Wait], noted: dict[Core[Any], list[int]]) -> None:
        """Wait until one of the queues may have something."""
        parked = {queue: queue.waits.park(wait, noted[queue]) for queue, wait in blocked.items()}
        try:
            await asyncio.wait(parked.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for queue, future in parked.items():
                if not future.done():
                    future.cancel()
                    queue.waits.hand_back("consumer")
        for future in parked.values():
            if not future.cancelled():
                future.result()
