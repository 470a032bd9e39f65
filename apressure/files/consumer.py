"""The consumer of a queue in a directory, as an `async with` block."""

# ruff: noqa: SLF001 (a block is a part of the queue object that made it)

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, TypeVar

from apressure.core.consumer import QueueConsumer
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.files.delivery import FileDelivery, Hand
from apressure.files.renewing import Renewing

if TYPE_CHECKING:
    from apressure.files.queue import FileQueue

T = TypeVar("T")


class FileConsumer(QueueConsumer[T, FileDelivery[Any]]):
    """The consuming end of a `FileQueue`. An acknowledgement is awaited: it deletes a file."""

    hand: Hand
    _renewing: Renewing

    def __init__(
        self, queue: FileQueue[Any], manual: bool, delete: bool, prefetch: int, lease: float, max_hold: float
    ) -> None:
        # The end of the block takes as long as the file system does.
        hand, blocks, timeout = Hand(self._failed), [queue.blocks], math.inf
        super().__init__(queue.check, blocks, timeout, manual=manual, delete=delete, hand=hand)
        self._queue = queue
        self._prefetch = prefetch
        self._renewing = Renewing(queue, hand, lease, max_hold, self._lost, self._look_for_a_pause)
        self._turn_at = 0.0  # each item has to be looked at: the queue may be paused

    async def _enter(self) -> None:
        await self._queue.prepare()
        self._open()

    async def _return(self, unseen: list[FileDelivery[Any]], seen: list[FileDelivery[Any]]) -> None:
        both = (*unseen, *seen)
        await self._renewing.give_back(both)
        for one in both:
            one.settled = True

    async def _delete_drained(self) -> None:
        seen = await self._queue.statistics()
        if seen.closed and not (seen.length or seen.in_flight or seen.unfinished):
            await self._queue.delete()

    def _begin(self) -> None:
        super()._begin()
        self._task = None  # each acknowledgement is waited for

    async def _acknowledge(self) -> None:
        """Delete the current message. If that fails, this raises; where another try may succeed, it stays current."""
        if self._current is not None and not self._current.settled:
            try:
                await self._current.ack()
            except LeaseLostError:
                self._current = None
                raise
        self._current = None

    async def _flush(self) -> None:
        """Each acknowledgement has been waited for."""

    async def _receive(self) -> None:
        queue, index = self._queue, self._queue._store.index
        try:
            got = await queue._take(self._prefetch, None, self._renewing.term.seconds, lambda: not self.hand)
        except QueueDoesNotExistError as error:
            if index.closed and not index.waiting:
                # Another consumer may have deleted the drained queue before this one saw that it was closed.
                raise QueueClosedError(f"the queue {queue.name!r} was drained, and deleted", name=queue.name) from error
            raise
        if self._left:  # the block has ended meanwhile
            await queue._receiver.undo(got)
            self._begin()
        deliveries = [FileDelivery(queue, one, self.hand) for one in got]
        self._buffer.extend(deliveries)
        self._renewing.took([(one, one) for one in deliveries])

    async def _next_of_buffer(self) -> FileDelivery[Any] | None:
        await self._queue._breathe()
        if self._queue._store.index.paused:
            await self._give_back_unseen()
        return await super()._next_of_buffer() if self._buffer else None

    def _hand_out(self, delivery: FileDelivery[Any]) -> T:
        self._renewing.progress += 1
        delivery.handed_out = True
        if self._manual:
            return delivery  # type: ignore[return-value]
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    async def _look_for_a_pause(self) -> None:
        """Without notifications, and while the body is busy, the loop does not see a pause."""
        if self._buffer:
            with contextlib.suppress(PressureError), self._queue._operation():  # the next step of the loop raises it
                await self._queue._store.refresh()
                if self._queue._store.index.paused:
                    await self._give_back_unseen()

    async def _give_back_unseen(self) -> None:
        """Give back what the loop has not asked for yet, as if it had not been received. If cancelled, it goes on."""
        unseen = [one for one in self._buffer if self.hand.pop(one, None) is not None]
        self._buffer.clear()
        if unseen:
            await asyncio.wait((self._renewing.give_back_soon(unseen),))
