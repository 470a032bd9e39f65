"""`AsyncQueue` for code without asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from apressure.pressure import producer as producers
from apressure.pressure.queue import AsyncQueue
from apressure.sync.blocks import Producer
from apressure.sync.calls import block, blocking, put_in_chunks, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.getting import GettingQueue

T = TypeVar("T")


class BlockingProducer(Producer[T]):
    """The producing end of a `BlockingQueue`; see `Producer` of `AsyncQueue`."""

    put = blocking(producers.Producer[T].put)
    put_nowait = blocking(producers.Producer[T].put_nowait)


class BlockingQueue(GettingQueue[T]):
    """An `AsyncQueue` for code without asyncio. Its methods are those of `AsyncQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same.
    """

    bound = blocking(AsyncQueue[T].bound)
    close = blocking(AsyncQueue[T].close)
    closed = blocking(AsyncQueue[T].closed)
    create = blocking(AsyncQueue[T].create)
    dead_letters = blocking(AsyncQueue[T].dead_letters)
    delete = blocking(AsyncQueue[T].delete)
    exists = blocking(AsyncQueue[T].exists)
    get = blocking(AsyncQueue[T].get)
    get_many = blocking(AsyncQueue[T].get_many)
    get_nowait = blocking(AsyncQueue[T].get_nowait)
    pause = blocking(AsyncQueue[T].pause)
    paused = blocking(AsyncQueue[T].paused)
    peek = blocking(AsyncQueue[T].peek)
    peek_newest = blocking(AsyncQueue[T].peek_newest)
    producer = block(AsyncQueue[T].producer, BlockingProducer[T])
    purge = blocking(AsyncQueue[T].purge)
    put = blocking(AsyncQueue[T].put)
    put_nowait = blocking(AsyncQueue[T].put_nowait)
    qsize = blocking(AsyncQueue[T].qsize)
    receive = receiving(AsyncQueue[T].receive, Delivery[T])
    receive_many = receiving_many(AsyncQueue[T].receive_many, Delivery[T])
    requeue = blocking(AsyncQueue[T].requeue)
    resume = blocking(AsyncQueue[T].resume)
    statistics = blocking(AsyncQueue[T].statistics)
    unblock = blocking(AsyncQueue[T].unblock)
    wait_closed = blocking(AsyncQueue[T].wait_closed)

    def put_many(self, items: Iterable[T], timeout: float | None = None, force: bool = False) -> int:
        """Put items in order, waiting while the queue is full; see `Queue.put_many`.

        Args:
            items: As for `Queue.put_many`.
            timeout: As for `Queue.put_many`.
            force: Put them even when the queue is full.
        """
        return put_in_chunks(self._loop, self._behind.put_many, items, timeout, force=force)

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        return str(self._behind.prefix)
