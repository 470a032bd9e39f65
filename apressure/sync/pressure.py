"""`AsyncQueue` for code without asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, Unpack

from apressure.core.due import ManyTerms
from apressure.pressure import producer as producers
from apressure.pressure.queue import AsyncQueue
from apressure.sync.blocks import Producer
from apressure.sync.calls import block, blocking, put_in_chunks, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.verbs import KindQueue

T = TypeVar("T")


class BlockingProducer(Producer[T]):
    """The producing end of a `BlockingQueue`; see `Producer` of `AsyncQueue`."""

    put = blocking(producers.Producer[T].put)
    put_nowait = blocking(producers.Producer[T].put_nowait)


class BlockingQueue(KindQueue[T]):
    """An `AsyncQueue` for code without asyncio. Its methods are those of `AsyncQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same.
    """

    dead_letters = blocking(AsyncQueue[T].dead_letters)
    discard = blocking(AsyncQueue[T].discard)
    find_dead_letters = blocking(AsyncQueue[T].find_dead_letters)
    producer = block(AsyncQueue[T].producer, BlockingProducer[T])
    put = blocking(AsyncQueue[T].put)  # type: ignore[assignment]  # messages have no ids
    put_nowait = blocking(AsyncQueue[T].put_nowait)  # type: ignore[assignment]
    receive = receiving(AsyncQueue[T].receive, Delivery[T])
    receive_many = receiving_many(AsyncQueue[T].receive_many, Delivery[T])
    requeue = blocking(AsyncQueue[T].requeue)
    statistics = blocking(AsyncQueue[T].statistics)

    def put_many(
        self, items: Iterable[T], timeout: float | None = None, force: bool = False, **terms: Unpack[ManyTerms]
    ) -> int:
        """Put items in order, waiting while the queue is full; see `Queue.put_many`.

        Args:
            items: As for `Queue.put_many`.
            timeout: As for `Queue.put_many`.
            force: Put them even when the queue is full.
            **terms: As for `Queue.put_many`.
        """
        return put_in_chunks(self._loop, self._behind.put_many, items, timeout, force=force, **terms)

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        return str(self._behind.prefix)
