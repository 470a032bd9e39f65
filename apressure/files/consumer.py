"""The consumer of a queue in a directory, as an `async with` block."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, Final, TypeVar

from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.prefetch import Chunk
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.files.administration import Administration
from apressure.files.delivery import Access, FileDelivery
from apressure.files.hand import FileHand

T = TypeVar("T")

_PREFETCH: Final = 1
"""A message that waits in a consumer's hands could be in another's."""


class FileConsumer(QueueConsumer[T, FileDelivery[Any]]):
    """The consuming end of a `FileQueue`. An acknowledgement is awaited: it deletes a file."""

    hand: FileHand

    def __init__(self, queue: Administration[Any], access: Access, options: ConsumerOptions) -> None:
        hand, chunk = FileHand(access, options, self._look_for_a_pause), Chunk(options.prefetch or _PREFETCH)
        super().__init__([queue], hand, chunk, options, math.inf)  # its end takes as long as the file system does
        chunk.turn_at = 0.0  # each item has to be looked at: the queue may be paused
        self._queue = queue
        self._store = access.store
        self._access = access

    async def _enter(self) -> None:
        await self._queue.prepare()
        self._open()

    async def _delete_drained(self) -> None:
        seen = await self._queue.statistics()
        if seen.closed and not (seen.length or seen.in_flight or seen.unfinished):
            await self._queue.delete()

    def _begin(self) -> None:
        super()._begin()
        self._task = None  # each acknowledgement is waited for

    async def _acknowledge(self) -> None:
        """Delete the current message. If that fails, this raises; where another try may succeed, it stays current."""
        current = self.hand.current
        if current is not None and not current.settled:
            try:
                await current.ack()
            except LeaseLostError:
                self.hand.current = None
                raise
        self.hand.current = None

    async def _receive(self) -> None:
        queue, index = self._queue, self._store.index
        try:
            got = await queue.take(self._chunk.size, None, self.hand.term.seconds, lambda: not self.hand.claims)
        except QueueDoesNotExistError as error:
            if index.closed and not index.waiting:
                # Another consumer may have deleted the drained queue before this one saw that it was closed.
                raise QueueClosedError(f"the queue {queue.name!r} was drained, and deleted", name=queue.name) from error
            raise
        if self._state == "left":  # the block has ended meanwhile
            await self._access.receiver.undo(got)
            self._begin()
        self.hand.took([FileDelivery(self._access, one, self.hand) for one in got])

    async def _next_of_buffer(self) -> FileDelivery[Any] | None:
        await self._queue.breathe()
        if self._store.index.paused:
            await self._give_back_unseen()
        return await super()._next_of_buffer() if self.hand.buffer else None

    async def _look_for_a_pause(self) -> None:
        """Without notifications, and while the body is busy, the loop does not see a pause."""
        if self.hand.buffer:
            with contextlib.suppress(PressureError), self._access.operation():  # the next step of the loop raises it
                await self._store.refresh()
                if self._store.index.paused:
                    await self._give_back_unseen()

    async def _give_back_unseen(self) -> None:
        """Give back what the loop has not asked for yet, as if it had not been received. If cancelled, it goes on."""
        if answers := self.hand.give_back_unseen():
            await asyncio.wait(answers)
