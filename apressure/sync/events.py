"""`EventQueue` for code without asyncio."""

from __future__ import annotations

from typing import Any, TypeVar

from apressure.events.producer import EventProducer
from apressure.events.queue import EventQueue
from apressure.sync.blocks import EventConsumers, Producer
from apressure.sync.calls import block, blocking, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.verbs import KindQueue

T = TypeVar("T")


class BlockingEventProducer(Producer[T]):
    """The producing end of a `BlockingEventQueue`; see `EventProducer`."""

    put = blocking(EventProducer[T].put)
    put_nowait = blocking(EventProducer[T].put_nowait)


class BlockingEventQueue(KindQueue[T]):
    """An `EventQueue` for code without asyncio. Its methods are those of `EventQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same. With an `okq://` address,
    a method that a released okq cannot carry out raises ServerTooOldError, and says what to use instead.
    """

    producer = block(EventQueue[T].producer, BlockingEventProducer[T])
    put = blocking(EventQueue[T].put)
    put_nowait = blocking(EventQueue[T].put_nowait)
    receive = receiving(EventQueue[T].receive, Delivery[T])
    receive_many = receiving_many(EventQueue[T].receive_many, Delivery[T])
    statistics = blocking(EventQueue[T].statistics)

    @classmethod
    def consume(cls, *names: str, **options: Any) -> EventConsumers:
        """Return a consumer of several queues at once, for `with` and `for`: at-least-once.

        It hands out deliveries; `name` of the consumer says which queue the latest one is from.

        Args:
            *names: The names of the queues.
            **options: As for `EventQueue.consume`.
        """
        return EventConsumers(EventQueue.consume(*names, **options))
