"""`FileQueue` for code without asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from apressure.files.delivery import FileDelivery
from apressure.files.queue import FileQueue
from apressure.sync.calls import block, blocking, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.verbs import BlockingQueueProducer, KindQueue

T = TypeVar("T")


class BlockingFileDelivery(Delivery[T]):
    """A message of a `BlockingFileQueue` in flight; see `FileDelivery`."""

    extend = blocking(FileDelivery[T].extend)

    @property
    def expires(self) -> datetime:
        """When its lease ends; from then on another client may get it."""
        expires: datetime = self._behind.expires
        return expires

    @property
    def put_at(self) -> datetime:
        """When it was put, as its id says."""
        put_at: datetime = self._behind.put_at
        return put_at


class BlockingFileQueue(KindQueue[T]):
    """A `FileQueue` for code without asyncio. Its methods are those of `FileQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same.
    """

    ack = blocking(FileQueue[T].ack)
    dead_letters = blocking(FileQueue[T].dead_letters)
    give_back_in_flight = blocking(FileQueue[T].give_back_in_flight)
    producer = block(FileQueue[T].producer, BlockingQueueProducer[T])
    receive = receiving(FileQueue[T].receive, BlockingFileDelivery[T])
    receive_many = receiving_many(FileQueue[T].receive_many, BlockingFileDelivery[T])
    requeue = blocking(FileQueue[T].requeue)
    statistics = blocking(FileQueue[T].statistics)

    _delivery = BlockingFileDelivery

    @property
    def dead_letter_queue(self) -> str | None:
        """The name of the dead-letter queue, in a directory beside this one; None without `max_attempts`."""
        name: str | None = self._behind.dead_letter_queue
        return name

    @property
    def put_count(self) -> int:
        """How many messages this object has put."""
        return int(self._behind.put_count)
