"""Queues for scripts, notebooks and web applications without asyncio: each call waits for its result.

An event loop in a thread of its own does the work, so this also runs where a loop runs already, as in Jupyter. Ctrl-C
cancels the operation under way, and waits until it has ended: no message is left in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use
from apressure.sync.blocks import Consumer, EventConsumers, Producer
from apressure.sync.delivery import Delivery
from apressure.sync.queue import AsyncioQueue, Queue

if TYPE_CHECKING:
    from apressure.sync.events import BlockingEventQueue
    from apressure.sync.files import BlockingFileDelivery, BlockingFileQueue
    from apressure.sync.pressure import BlockingQueue
    from apressure.sync.serving import serve
    from apressure.sync.tasks import BlockingTaskDelivery, BlockingTaskQueue

__all__ = [
    "AsyncioQueue", "BlockingEventQueue", "BlockingFileDelivery", "BlockingFileQueue", "BlockingQueue",
    "BlockingTaskDelivery", "BlockingTaskQueue", "Consumer", "Delivery", "EventConsumers", "Producer", "Queue",
    "serve",
]  # fmt: skip

# A program uses one kind of queue: the others are imported on first use.
_LATER = {
    "BlockingEventQueue": "apressure.sync.events", "BlockingFileDelivery": "apressure.sync.files",
    "BlockingFileQueue": "apressure.sync.files", "BlockingQueue": "apressure.sync.pressure",
    "BlockingTaskDelivery": "apressure.sync.tasks", "BlockingTaskQueue": "apressure.sync.tasks",
    "serve": "apressure.sync.serving",
}  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _LATER)
