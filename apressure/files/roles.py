"""The consumer of a queue in a directory, as an `async with` block."""

# ruff: noqa: SLF001 (a block is a part of the queue object that made it)

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.lifetime import IteratingTask
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.files.delivery import FileDelivery

if TYPE_CHECKING:
    from apressure.files.queue import FileQueue

T = TypeVar("T")

logger = logging.getLogger("apressure")


class FileConsumer(Generic[T]):
    """A consuming end of a queue, at-least-once; made by `FileQueue.consumer`. Any number of them compete.

    Iterating hands out items until the queue is closed and drained. An item is acknowledged when the loop asks for the
    next one, and at the end of the block. If the body raises or is cancelled, the item goes back, first in line, marked
    as redelivered. If the process dies, that happens when the lease ends. A timer renews the leases of everything in
    hand while the event loop runs.

    The loop ends when the queue is closed, nothing waits and nothing is in flight, so it gets what another consumer
    fails to handle. While it has deliveries of its own in hand (`ack="manual"`), it does not wait for other consumers.

    `T` is what the iteration hands out: an item, or with `ack="manual"` its `FileDelivery`.
    """

    acknowledges_the_one_before: Final = True
    """`put_many` reads ahead, so it refuses a consumer; see `validation.batch`."""

    def __init__(self, queue: FileQueue[Any], manual: bool, delete: bool, prefetch: int, lease: float) -> None:
        self._queue = queue
        self._manual = manual
        self._delete = delete
        self._prefetch = prefetch
        self._lease = lease
        self._in_hand: dict[FileDelivery[Any], None] = {}
        """The deliveries that are neither settled nor lost, in order."""
        self._buffer: deque[FileDelivery[Any]] = deque()
        """Those of them that the loop has not asked for yet."""
        self._current: FileDelivery[Any] | None = None
        self._iterating = IteratingTask()
        self._renewal: asyncio.Task[None] | None = None
        self._drained = False
        self._on_lost: Callable[[Exception], None] | None = None

    async def __aenter__(self) -> Self:
        if self._renewal is not None:
            raise RuntimeError("this consumer's block has begun already: make one for each block")
        with self._queue._operation():
            await self._queue._make()
        self._queue._consumers.add(self)
        self._renewal = background.start(
            self._renew(), f"renewing a consumer's leases in the queue {self._queue.name!r}"
        )
        logs.role("role_taken", self._queue.name, "consumer", shared=True, kind="FileQueue")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._renewal is None:
            return  # closing the queue object gave everything back
        try:
            if kind is None:
                await self._acknowledge()
            elif self._current is not None and isinstance(error, Exception):  # no cancellation: it is no failure
                self._current.note_error(error)
        finally:
            finished = self._drained and not self._in_hand
            await self.end()
        if kind is None and self._delete and finished:
            await self._delete_queue()

    async def end(self) -> None:
        """Give back everything in hand, also when cancelled."""
        renewal, self._renewal = self._renewal, None
        self._queue._consumers.discard(self)
        cancelled: asyncio.CancelledError | None = None
        if renewal is not None:
            logs.role("role_released", self._queue.name, "consumer", shared=True, kind="FileQueue")
            renewal.cancel()
            while not renewal.done():
                try:
                    await asyncio.wait((renewal,))
                except asyncio.CancelledError as error:
                    cancelled = error
        unseen = set(self._buffer)
        back = [one.given_back(one not in unseen) for one in self._in_hand if not one.settled]
        self._buffer.clear()
        self._in_hand.clear()
        self._current = None
        if back:
            with self._queue._operation():
                await self._queue._receiver.give_back(back)
        if cancelled is not None:
            raise cancelled

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next `FileDelivery`.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: The queue is closed and drained.
            DecodeError: The message cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease of the previous item ended before it was acknowledged: another client gets it.
            RuntimeError: Another task iterates already, or the block has ended.
            PressureError: As for `FileQueue.receive`.
        """
        self._check()
        await self._acknowledge()
        while True:
            while self._buffer:
                ours = await self._is_ours(self._buffer[0])  # if this is cancelled, it stays prefetched
                if self._queue._store.index.paused:
                    await self._give_back_prefetched()
                if not self._buffer:  # also if the renewal gave them back
                    break
                delivery = self._buffer.popleft()
                if ours and self._manual:
                    return delivery  # type: ignore[return-value]
                if ours:
                    self._current = delivery
                    return delivery.item  # type: ignore[no-any-return]
            await self._receive()

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, when a message in hand is lost: its lease ended, and others get it.

        A renewal notices it, so the call comes within a third of the lease after the event loop runs again.
        """
        self._on_lost = callback

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 if there is none."""
        return self._current.attempts if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """Whether the current item was delivered before."""
        return self.attempts > 1

    def _check(self) -> None:
        self._queue.check()
        if self._renewal is None:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        self._iterating.check()

    async def _acknowledge(self) -> None:
        """Acknowledge the current item."""
        if self._current is not None and not self._current.settled:
            try:
                await self._current.ack()
            except LeaseLostError:
                self._current = None
                raise
        self._current = None

    async def _receive(self) -> None:
        """Receive messages into the buffer, or end the loop."""
        index = self._queue._store.index
        try:
            got = await self._queue._take(self._prefetch, None, self._lease, lambda: not self._in_hand)
        except QueueClosedError:
            pass
        except QueueDoesNotExistError:
            # Another consumer may have deleted the drained queue before this one saw that it was closed.
            if not self._delete and (not index.closed or index.waiting):
                raise
        else:
            deliveries = [FileDelivery(self._queue, one, self._in_hand) for one in got]
            self._in_hand.update(dict.fromkeys(deliveries))
            self._buffer.extend(deliveries)
            self._drained = False
            return
        self._drained = True
        raise StopAsyncIteration

    async def _give_back_prefetched(self) -> None:
        """Give back what the loop has not asked for yet, as if it had not been received."""
        back = [one.given_back(seen=False) for one in self._buffer if self._in_hand.pop(one, self) is None]
        self._buffer.clear()
        if back:
            with self._queue._operation():
                await self._queue._receiver.give_back(back)

    async def _is_ours(self, delivery: FileDelivery[Any]) -> bool:
        """Return whether a prefetched message is still ours: its renewal may have been too late."""
        if delivery not in self._in_hand:
            return False
        if self._left(delivery) > 0:
            await self._queue._breathe()
            return True
        try:
            await delivery.extend(self._lease)
        except LeaseLostError as error:
            self._in_hand.pop(delivery, None)
            self._lost(delivery, error)
            return False
        return True

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            if self._buffer:
                await self._look_for_a_pause()
            for delivery in [*self._in_hand]:
                if delivery.settled or self._left(delivery) > self._lease:  # the program has extended it for longer
                    continue
                try:
                    await delivery.extend(self._lease)
                except LeaseLostError as error:
                    self._in_hand.pop(delivery, None)
                    self._lost(delivery, error)
                except PressureError as error:
                    logger.warning("the lease of the message %s could not be renewed: %s", delivery.id, error)

    async def _look_for_a_pause(self) -> None:
        """Without notifications, and while the body is busy, the loop does not see a pause."""
        with contextlib.suppress(PressureError), self._queue._operation():  # the next step of the loop raises it
            await self._queue._store.refresh()
            if self._queue._store.index.paused:
                await self._give_back_prefetched()

    def _left(self, delivery: FileDelivery[Any]) -> float:
        """Return the seconds that are left of a lease."""
        return delivery.expires.timestamp() - self._queue._store.time()

    def _lost(self, delivery: FileDelivery[Any], error: LeaseLostError) -> None:
        logs.lease_lost(
            "FileQueue", self._queue.name, 1, error,
            delivery=delivery.id, attempts=delivery.attempts, message=delivery.raw,
        )  # fmt: skip
        if delivery not in self._buffer and self._on_lost is not None:
            callback, self._on_lost = self._on_lost, None
            asyncio.get_running_loop().call_soon(callback, error)  # it may raise

    async def _delete_queue(self) -> None:
        with contextlib.suppress(QueueDoesNotExistError):  # another consumer was first
            seen = await self._queue.statistics()
            if seen.closed and not (seen.length or seen.in_flight or seen.unfinished):
                await self._queue.delete()
