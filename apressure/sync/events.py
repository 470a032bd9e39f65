"""`EventQueue` for code without asyncio."""

from __future__ import annotations

from typing import Any, TypeVar

from apressure.events import producer as producers
from apressure.events.queue import EventQueue
from apressure.sync.blocks import EventConsumers, Producer
from apressure.sync.calls import block, blocking, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.getting import GettingQueue

T = TypeVar("T")


class BlockingEventProducer(Producer[T]):
    """The producing end of a `BlockingEventQueue`; see `EventProducer`."""

    put = blocking(producers.EventProducer[T].put)
    put_nowait = blocking(producers.EventProducer[T].put_nowait)


class BlockingEventQueue(GettingQueue[T]):
    """An `EventQueue` for code without asyncio. Its methods are those of `EventQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same. With an `okq://` address,
    a method that a released okq cannot carry out raises ServerTooOldError, and says what to use instead.
    """

    bound = blocking(EventQueue[T].bound)
    close = blocking(EventQueue[T].close)
    closed = blocking(EventQueue[T].closed)
    create = blocking(EventQueue[T].create)
    dead_letters = blocking(EventQueue[T].dead_letters)
    delete = blocking(EventQueue[T].delete)
    exists = blocking(EventQueue[T].exists)
    get = blocking(EventQueue[T].get)
    get_many = blocking(EventQueue[T].get_many)
    get_nowait = blocking(EventQueue[T].get_nowait)
    pause = blocking(EventQueue[T].pause)
    paused = blocking(EventQueue[T].paused)
    peek = blocking(EventQueue[T].peek)
    peek_newest = blocking(EventQueue[T].peek_newest)
    producer = block(EventQueue[T].producer, BlockingEventProducer[T])
    purge = blocking(EventQueue[T].purge)
    put = blocking(EventQueue[T].put)
    put_nowait = blocking(EventQueue[T].put_nowait)
    qsize = blocking(EventQueue[T].qsize)
    receive = receiving(EventQueue[T].receive, Delivery[T])
    receive_many = receiving_many(EventQueue[T].receive_many, Delivery[T])
    requeue = blocking(EventQueue[T].requeue)
    resume = blocking(EventQueue[T].resume)
    statistics = blocking(EventQueue[T].statistics)
    unblock = blocking(EventQueue[T].unblock)
    wait_closed = blocking(EventQueue[T].wait_closed)

    @classmethod
    def consume(cls, *names: str, **options: Any) -> EventConsumers:
        """Return a consumer of several queues at once, for `with` and `for`: at-least-once.

        It hands out deliveries; `name` of the consumer says which queue the latest one is from.

        Args:
            *names: The names of the queues.
            **options: As for `EventQueue.consume`.
        """
        return EventConsumers(EventQueue.consume(*names, **options))
