"""The consumer of a queue in a directory, as an `async with` block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.concurrency import background
from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.driver import Connection, OnAnswer
from apressure.core.leases.in_hand import ClaimHand, Options
from apressure.core.leases.renewal import Timer
from apressure.core.prefetch import Chunk
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.files.core import Core
from apressure.files.delivery import FileDelivery
from apressure.files.receiving import Receiver

T = TypeVar("T")

logger = logging.getLogger("apressure")

_PREFETCH: Final = 1
"""A message that waits in a consumer's hands could be in another's."""


class FileHand(ClaimHand[FileDelivery[Any]]):
    """The messages that a consumer has in hand.

    A name of a file says when its lease ends, by the time of day, which all processes know. When to renew is told by
    the core's clock, which nobody sets.

    Args:
        receiver: That of the queue object.
        options: As for `ClaimHand`.
    """

    kind = "FileQueue"
    _noun = "messages"

    def __init__(self, receiver: Receiver, options: Options) -> None:
        super().__init__(Timer(), (), receiver.settings.name, options)
        self.clock = receiver.settings.clock  # each step of the loop checks what it returns
        self._receiver = receiver
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
                with self._receiver.operation():
                    await self._receiver.give_back(back)

    async def give_back_if_paused(self) -> None:
        """If the queue is paused, give back what was not handed out, as if it had not been received.

        Cancelled, it is given back all the same.
        """
        if self._receiver.store.index.paused and (answers := self.give_back_unseen()):
            await asyncio.wait(answers)

    async def assure(self) -> None:
        for delivery in list(self.claims):
            await self._extend(delivery)

    def _renew(self, milliseconds: int, on_answer: OnAnswer, connection: Connection | None) -> None:  # noqa: ARG002
        if self._running is None or self._running.done():  # a disk may be slow
            name = f"renewing a consumer's leases in the queue {self.name!r}"
            self._running = background.start(self._renew_all(), name)

    async def _renew_all(self) -> None:
        if self.buffer:  # without notifications, and while the body is busy, the loop does not see a pause
            with contextlib.suppress(PressureError), self._receiver.operation():  # the next step of the loop raises it
                await self._receiver.store.refresh()
                await self.give_back_if_paused()
        for delivery in list(self.claims):
            try:
                await self._extend(delivery)
            except PressureError as error:
                logger.warning("the lease of the message %s could not be renewed: %s", delivery.id, error)

    async def _extend(self, delivery: FileDelivery[Any]) -> None:
        """Renew the lease of a delivery, unless the program has extended it for longer, or settled it."""
        seconds = self.term.seconds
        async with self._renaming:
            if delivery in self.claims and not delivery.settled and delivery.certain_until - self.clock() <= seconds:
                self._renewed([delivery], [await delivery.renew(seconds)], 0.0)


class FileConsumer(QueueConsumer[T, FileDelivery[Any]]):
    """The consuming end of a `FileQueue`. An acknowledgement is awaited: it deletes a file."""

    hand: FileHand
    _queue: Core[Any]

    def __init__(self, queue: Core[Any], receiver: Receiver, options: ConsumerOptions) -> None:
        chunk = Chunk(options.prefetch or _PREFETCH)
        # Its end takes as long as the file system does.
        super().__init__(queue, FileHand(receiver, options), chunk, options, math.inf)
        if chunk.size > 1:
            chunk.turn_at = 0.0  # what was read ahead has to be looked at: the queue may be paused meanwhile
        self._receiver = receiver

    async def _enter(self) -> None:
        await self._queue.prepare()
        self._open()

    async def _delete_drained(self) -> None:
        store = self._receiver.store
        with self._receiver.operation():
            await store.refresh()
        if store.index.drained and not store.index.in_flight:
            await self._queue.delete()

    async def __anext__(self) -> T:
        if self._task is not None and asyncio.current_task(self._loop) is self._task:
            await self._acknowledge()
        return await super().__anext__()

    async def _acknowledge(self) -> None:
        """Delete the current message. If that fails, this raises; where another try may succeed, it stays current."""
        current = self.hand.current
        try:
            if current is not None and not current.settled:
                await current.ack()
        finally:
            if current is None or current.settled:
                self.hand.current = None

    async def _receive(self) -> None:
        queue, index = self._queue, self._receiver.store.index
        try:
            got = await queue.take(self._chunk.size, None, self.hand.term.seconds, lambda: not self.hand.claims)
        except QueueDoesNotExistError as error:
            if index.closed and not index.waiting:
                # Another consumer may have deleted the drained queue before this one saw that it was closed.
                raise QueueClosedError(f"the queue {queue.name!r} was drained, and deleted", name=queue.name) from error
            raise
        if self._state == "left":  # the block has ended meanwhile
            await self._receiver.undo(got)
            self._begin()
        self.hand.took(queue.deliveries(got, self.hand))

    async def _next_of_buffer(self) -> FileDelivery[Any] | None:
        await self._queue.breathe()
        await self.hand.give_back_if_paused()
        return await super()._next_of_buffer() if self.hand.buffer else None
