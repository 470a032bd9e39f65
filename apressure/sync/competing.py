"""What `EventQueue`, `TaskQueue` and `FileQueue` have in common, for code without asyncio."""

from __future__ import annotations

from typing import Any, TypeVar

from apressure.core import producer as producers
from apressure.core import queue as queues
from apressure.sync.blocks import Producer
from apressure.sync.calls import blocking
from apressure.sync.getting import GettingQueue

T = TypeVar("T")


class BlockingQueueProducer(Producer[T]):
    """The producing end of a queue; see `QueueProducer`."""

    put = blocking(producers.QueueProducer[T].put)
    put_nowait = blocking(producers.QueueProducer[T].put_nowait)


class CompetingQueue(GettingQueue[T]):
    """A queue for any number of competing consumers."""

    bound = blocking(queues.Queue[T, Any].bound)
    close = blocking(queues.Queue[T, Any].close)
    closed = blocking(queues.Queue[T, Any].closed)
    create = blocking(queues.Queue[T, Any].create)
    dead_letters = blocking(queues.Queue[T, Any].dead_letters)
    delete = blocking(queues.Queue[T, Any].delete)
    exists = blocking(queues.Queue[T, Any].exists)
    get = blocking(queues.Queue[T, Any].get)
    get_many = blocking(queues.Queue[T, Any].get_many)
    get_nowait = blocking(queues.Queue[T, Any].get_nowait)
    pause = blocking(queues.Queue[T, Any].pause)
    paused = blocking(queues.Queue[T, Any].paused)
    peek = blocking(queues.Queue[T, Any].peek)
    peek_newest = blocking(queues.Queue[T, Any].peek_newest)
    purge = blocking(queues.Queue[T, Any].purge)
    put = blocking(queues.Queue[T, Any].put)
    put_nowait = blocking(queues.Queue[T, Any].put_nowait)
    qsize = blocking(queues.Queue[T, Any].qsize)
    requeue = blocking(queues.Queue[T, Any].requeue)
    resume = blocking(queues.Queue[T, Any].resume)
    unblock = blocking(queues.Queue[T, Any].unblock)
    wait_closed = blocking(queues.Queue[T, Any].wait_closed)
