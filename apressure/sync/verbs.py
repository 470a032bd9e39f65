"""The verbs that queues of all our kinds have, for code without asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from apressure.core import producer as producers
from apressure.core import queue as queues
from apressure.exceptions import QueueClosedError
from apressure.sync.blocks import Producer
from apressure.sync.calls import blocking
from apressure.sync.queue import Queue

T = TypeVar("T")


class BlockingQueueProducer(Producer[T]):
    """The producing end of a queue; see `QueueProducer`."""

    put = blocking(producers.QueueProducer[T].put)
    put_nowait = blocking(producers.QueueProducer[T].put_nowait)


class KindQueue(Queue[T]):
    """A queue of one of our kinds."""

    add_dead_letters = blocking(queues.Queue[T, Any].add_dead_letters)
    ask = blocking(queues.Queue[T, Any].ask)
    bound = blocking(queues.Queue[T, Any].bound)
    browse = blocking(queues.Queue[T, Any].browse)
    close = blocking(queues.Queue[T, Any].close)
    closed = blocking(queues.Queue[T, Any].closed)
    create = blocking(queues.Queue[T, Any].create)
    dead_letters = blocking(queues.Queue[T, Any].dead_letters)
    discard = blocking(queues.Queue[T, Any].discard)
    drain = blocking(queues.Queue[T, Any].drain)
    show_stack = blocking(queues.Queue[T, Any].show_stack)
    delete_schedule = blocking(queues.Queue[T, Any].delete_schedule)
    drive_schedules = blocking(queues.Queue[T, Any].drive_schedules)
    every = blocking(queues.Queue[T, Any].every)
    delete = blocking(queues.Queue[T, Any].delete)
    exists = blocking(queues.Queue[T, Any].exists)
    find_dead_letters = blocking(queues.Queue[T, Any].find_dead_letters)
    get = blocking(queues.Queue[T, Any].get)
    get_many = blocking(queues.Queue[T, Any].get_many)
    get_nowait = blocking(queues.Queue[T, Any].get_nowait)
    history = blocking(queues.Queue[T, Any].history)
    hold = blocking(queues.Queue[T, Any].hold)
    limits = blocking(queues.Queue[T, Any].limits)
    pause = blocking(queues.Queue[T, Any].pause)
    promote = blocking(queues.Queue[T, Any].promote)
    pause_schedule = blocking(queues.Queue[T, Any].pause_schedule)
    paused = blocking(queues.Queue[T, Any].paused)
    peek = blocking(queues.Queue[T, Any].peek)
    peek_newest = blocking(queues.Queue[T, Any].peek_newest)
    purge = blocking(queues.Queue[T, Any].purge)
    put = blocking(queues.Queue[T, Any].put)
    put_nowait = blocking(queues.Queue[T, Any].put_nowait)
    qsize = blocking(queues.Queue[T, Any].qsize)
    requeue = blocking(queues.Queue[T, Any].requeue)
    resume = blocking(queues.Queue[T, Any].resume)
    resume_schedule = blocking(queues.Queue[T, Any].resume_schedule)
    run_schedule = blocking(queues.Queue[T, Any].run_schedule)
    schedules = blocking(queues.Queue[T, Any].schedules)
    set_bound = blocking(queues.Queue[T, Any].set_bound)
    set_concurrency = blocking(queues.Queue[T, Any].set_concurrency)
    set_key = blocking(queues.Queue[T, Any].set_key)
    set_rate = blocking(queues.Queue[T, Any].set_rate)
    spend = blocking(queues.Queue[T, Any].spend)
    unblock = blocking(queues.Queue[T, Any].unblock)
    wait_closed = blocking(queues.Queue[T, Any].wait_closed)
    write_history = blocking(queues.Queue[T, Any].write_history)

    def __iter__(self) -> Iterator[T]:
        """Get items until the queue is closed and drained: at-most-once. `consumer` is at-least-once."""
        return self

    def __next__(self) -> T:
        try:
            item: T = self._loop.call(self._behind.get)
        except QueueClosedError:
            raise StopIteration from None
        return item
