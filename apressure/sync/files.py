"""`FileQueue` for code without asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from apressure.files.delivery import FileDelivery
from apressure.files.queue import FileQueue
from apressure.sync.calls import Behind, block, blocking, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.verbs import BlockingQueueProducer, KindQueue

T = TypeVar("T")


class BlockingFileDelivery(Delivery[T]):
    """A message of a `BlockingFileQueue` in flight; see `FileDelivery`."""

    extend = blocking(FileDelivery[T].extend)

    expires = Behind[datetime]("When its lease ends; from then on another client may get it.")
    put_at = Behind[datetime]("When it was put, as its id says.")


class BlockingFileQueue(KindQueue[T]):
    """A `FileQueue` for code without asyncio. Its methods are those of `FileQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same.
    """

    ack = blocking(FileQueue[T].ack)
    dead_letters = blocking(FileQueue[T].dead_letters)
    discard = blocking(FileQueue[T].discard)
    find_dead_letters = blocking(FileQueue[T].find_dead_letters)
    give_back_in_flight = blocking(FileQueue[T].give_back_in_flight)
    producer = block(FileQueue[T].producer, BlockingQueueProducer[T])
    receive = receiving(FileQueue[T].receive, BlockingFileDelivery[T])
    receive_many = receiving_many(FileQueue[T].receive_many, BlockingFileDelivery[T])
    requeue = blocking(FileQueue[T].requeue)
    statistics = blocking(FileQueue[T].statistics)

    _delivery = BlockingFileDelivery

    dead_letter_queue = Behind[str | None](
        "The name of the dead-letter queue, in a directory beside this one; None without `max_attempts`."
    )
    put_count = Behind[int]("How many messages this object has put.")
