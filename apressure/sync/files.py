"""`FileQueue` for code without asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from apressure.files import roles
from apressure.files.delivery import FileDelivery
from apressure.files.queue import FileQueue
from apressure.sync.blocks import Producer
from apressure.sync.calls import block, blocking, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.getting import GettingQueue

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


class BlockingFileProducer(Producer[T]):
    """The producing end of a `BlockingFileQueue`; see `FileProducer`."""

    put = blocking(roles.FileProducer[T].put)
    put_nowait = blocking(roles.FileProducer[T].put_nowait)


class BlockingFileQueue(GettingQueue[T]):
    """A `FileQueue` for code without asyncio. Its methods are those of `FileQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same.
    """

    ack = blocking(FileQueue[T].ack)
    bound = blocking(FileQueue[T].bound)
    close = blocking(FileQueue[T].close)
    closed = blocking(FileQueue[T].closed)
    create = blocking(FileQueue[T].create)
    dead_letters = blocking(FileQueue[T].dead_letters)
    delete = blocking(FileQueue[T].delete)
    exists = blocking(FileQueue[T].exists)
    get = blocking(FileQueue[T].get)
    get_many = blocking(FileQueue[T].get_many)
    get_nowait = blocking(FileQueue[T].get_nowait)
    give_back_in_flight = blocking(FileQueue[T].give_back_in_flight)
    pause = blocking(FileQueue[T].pause)
    paused = blocking(FileQueue[T].paused)
    peek = blocking(FileQueue[T].peek)
    peek_newest = blocking(FileQueue[T].peek_newest)
    producer = block(FileQueue[T].producer, BlockingFileProducer[T])
    purge = blocking(FileQueue[T].purge)
    put = blocking(FileQueue[T].put)
    put_nowait = blocking(FileQueue[T].put_nowait)
    qsize = blocking(FileQueue[T].qsize)
    receive = receiving(FileQueue[T].receive, BlockingFileDelivery[T])
    receive_many = receiving_many(FileQueue[T].receive_many, BlockingFileDelivery[T])
    requeue = blocking(FileQueue[T].requeue)
    resume = blocking(FileQueue[T].resume)
    statistics = blocking(FileQueue[T].statistics)
    unblock = blocking(FileQueue[T].unblock)
    wait_closed = blocking(FileQueue[T].wait_closed)

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
