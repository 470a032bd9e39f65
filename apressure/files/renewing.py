"""Keeps the leases of a consumer's messages renewed: a timer on the event loop renames their files."""

# ruff: noqa: SLF001 (it is a part of the queue object whose messages they are)

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from apressure.concurrency import background
from apressure.core.driver import Connection
from apressure.core.leases.in_hand import LeasesInHand
from apressure.core.leases.timer import Timer
from apressure.exceptions import LeaseLostError, PressureError
from apressure.files.delivery import FileDelivery, Hand

if TYPE_CHECKING:
    from apressure.files.queue import FileQueue

logger = logging.getLogger("apressure")


class Renewing(LeasesInHand[FileDelivery[Any], FileDelivery[Any]]):
    """Renews the leases of all messages that a consumer has in hand.

    A name of a file says when its lease ends, by the time of day, which all processes know. When to renew is told by
    the core's clock, which nobody sets.

    Args:
        queue: The queue object.
        hand: What the consumer has in hand.
        seconds: As for `LeasesInHand`.
        max_hold: As for `LeasesInHand`.
        on_lost: As for `LeasesInHand`.
        look: Awaited before each renewal.
    """

    kind = "FileQueue"

    def __init__(
        self,
        queue: FileQueue[Any],
        hand: Hand,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[FileDelivery[Any]]], None],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(hand, Timer(), (), "messages", queue.name, seconds, max_hold, on_lost)
        self.clock = queue._store.time
        self._queue = queue
        self._look = look
        self._renaming = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    async def assure(self) -> None:
        """Renew all leases now; what others have got is in hand no more."""
        for delivery in [*self._hand]:
            await self._extend(delivery)

    def give_back_soon(self, deliveries: Iterable[FileDelivery[Any]]) -> asyncio.Task[None]:
        """Give deliveries back, first in line, in a task that ends though others are cancelled."""
        return background.start(self.give_back(deliveries), f"giving back messages of the queue {self.name!r}")

    async def give_back(self, deliveries: Iterable[FileDelivery[Any]]) -> None:
        """Give deliveries back, first in line, but those that were settled. What goes back already does so first."""
        async with self._renaming:  # or a renewal could rename them meanwhile
            back = [one.given_back() for one in deliveries if not one.settled]
            if back:
                with self._queue._operation():
                    await self._queue._receiver.give_back(back)

    def _give_back(self, lost: list[FileDelivery[Any]]) -> None:
        self.give_back_soon(lost)

    def _renew(
        self,
        token: bytes,  # noqa: ARG002
        milliseconds: int,  # noqa: ARG002
        on_answer: Callable[[Any], None],  # noqa: ARG002
        connection: Connection | None,  # noqa: ARG002
    ) -> None:
        if self._running is None or self._running.done():  # a disk may be slow
            name = f"renewing a consumer's leases in the queue {self.name!r}"
            self._running = background.start(self._renew_all(), name)

    async def _renew_all(self) -> None:
        await self._look()
        for delivery in [*self._hand]:
            try:
                await self._extend(delivery)
            except PressureError as error:
                logger.warning("the lease of the message %s could not be renewed: %s", delivery.id, error)

    async def _extend(self, delivery: FileDelivery[Any]) -> None:
        """Renew the lease of a delivery, unless the program has extended it for longer, or settled it."""
        seconds = self.term.seconds
        async with self._renaming:
            if delivery not in self._hand or delivery.settled or delivery.certain_until - self.clock() > seconds:
                return
            try:
                await delivery.renew(seconds)
            except LeaseLostError:
                self._renewed([(delivery, False)], 0.0)
