"""What a consumer of a directory has in hand. A timer on the event loop renames the files: that renews their leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from apressure.concurrency import background
from apressure.core.driver import Connection, OnAnswer
from apressure.core.leases.in_hand import ClaimHand, Options
from apressure.core.leases.timer import Timer
from apressure.exceptions import LeaseLostError, PressureError
from apressure.files.delivery import Access, FileDelivery

logger = logging.getLogger("apressure")


class FileHand(ClaimHand[FileDelivery[Any]]):
    """The messages that a consumer has in hand.

    A name of a file says when its lease ends, by the time of day, which all processes know. When to renew is told by
    the core's clock, which nobody sets.

    Args:
        access: What deliveries use of the queue object.
        options: As for `ClaimHand`.
        look: Awaited before each renewal.
    """

    kind = "FileQueue"
    _noun = "messages"

    def __init__(self, access: Access, options: Options, look: Callable[[], Awaitable[None]]) -> None:
        super().__init__(Timer(), (), access.store.settings.name, options)
        self.clock = access.store.time
        self._access = access
        self._look = look
        self._renaming = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    def send_back(
        self, unseen: Sequence[FileDelivery[Any]], seen: Sequence[FileDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        """Give deliveries back, first in line, in a task that ends though others are cancelled."""
        name = f"giving back messages of the queue {self.name!r}"
        return [background.start(self._give_back([*unseen, *seen]), name)]

    async def _give_back(self, deliveries: Sequence[FileDelivery[Any]]) -> None:
        """Give deliveries back, first in line, but those that were settled. What goes back already does so first."""
        async with self._renaming:  # or a renewal could rename them meanwhile
            back = [one.given_back() for one in deliveries if not one.settled]
            if back:
                with self._access.operation():
                    await self._access.receiver.give_back(back)

    async def assure(self) -> None:
        for delivery in list(self.claims):
            await self._extend(delivery)

    def _renew(self, milliseconds: int, on_answer: OnAnswer, connection: Connection | None) -> None:  # noqa: ARG002
        if self._running is None or self._running.done():  # a disk may be slow
            name = f"renewing a consumer's leases in the queue {self.name!r}"
            self._running = background.start(self._renew_all(), name)

    async def _renew_all(self) -> None:
        await self._look()
        for delivery in list(self.claims):
            try:
                await self._extend(delivery)
            except PressureError as error:
                logger.warning("the lease of the message %s could not be renewed: %s", delivery.id, error)

    async def _extend(self, delivery: FileDelivery[Any]) -> None:
        """Renew the lease of a delivery, unless the program has extended it for longer, or settled it."""
        seconds = self.term.seconds
        async with self._renaming:
            if delivery not in self.claims or delivery.settled or delivery.certain_until - self.clock() > seconds:
                return
            try:
                await delivery.renew(seconds)
            except LeaseLostError:
                self._renewed([delivery], [False], 0.0)
