"""The lane of an okq client's pops: tasks that get or receive from one queue ask its server together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from apressure.core.driver import Request
from apressure.core.taking import TakeLane
from apressure.core.waiting import Wait
from apressure.events.consumer import Misses
from apressure.events.engine.answers import Event
from apressure.events.engine.steps import Want
from apressure.events.remote.commands import MOST, Popped

if TYPE_CHECKING:
    from apressure.events.remote.driver import OkqDriver

Claimed = tuple[Event, float]
"""An event, and until when its lease has certainly not ended."""


class PopLane(TakeLane[Want, Claimed]):
    """The pops of a queue object's tasks.

    Args:
        driver: The driver of the queue.
    """

    _most = MOST
    _step = 0  # what several steps took goes back in one command, in order

    def __init__(self, driver: OkqDriver[Any]) -> None:
        super().__init__(driver, driver.waits)
        self._driver = driver
        self._misses = Misses()
        self._began = 0.0  # when the latest wait did
        self._returning: asyncio.Future[Any] | None = None

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        self._driver.client.soon(self._pop(most, want)).add_done_callback(lambda task: self._answered(task.result()))

    async def _pop(self, most: int, want: Want) -> Popped | Wait:
        if self._returning is not None:
            await asyncio.wait((self._returning,))  # the server may carry out the two side by side
        popped = await self._driver.pop(most, want.lease / 1000, want.expected)
        return popped if popped.events else popped.wait

    def _messages(self, answer: Popped) -> Sequence[Claimed]:
        return [(event, answer.until) for event in answer.events]

    def _note(self, answer: Popped) -> None:  # noqa: ARG002
        self._misses = Misses()

    def _return(self, step: int, messages: Sequence[Claimed]) -> asyncio.Future[Any]:  # noqa: ARG002
        ids = [event.id for event, _ in messages]
        self._returning = self._driver.client.soon(self._driver.steps.put_back(ids))
        return self._returning

    def _wait(self, wait: Wait) -> None:
        self._began = asyncio.get_running_loop().time()
        super()._wait(wait)

    def _woken(self, parked: asyncio.Future[None]) -> None:
        if parked is self._parked and not parked.cancelled() and parked.exception() is None:
            loop = asyncio.get_running_loop()
            if pause := self._misses.pause(loop.time() - self._began):
                loop.call_later(pause, super()._woken, parked)
                return
        super()._woken(parked)
