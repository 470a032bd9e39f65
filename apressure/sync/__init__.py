"""Queues for scripts and notebooks without asyncio: each call waits for its result.

An event loop in a thread of its own does the work, so this also runs where a loop runs already, as in Jupyter. Ctrl-C
cancels the operation under way, and waits until it has ended: no message is left in between.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from apressure.sync.blocks import Consumer, EventConsumers, Producer
from apressure.sync.delivery import Delivery
from apressure.sync.queue import AsyncioQueue, Queue

if TYPE_CHECKING:
    from apressure.sync.events import BlockingEventQueue
    from apressure.sync.files import BlockingFileDelivery, BlockingFileQueue
    from apressure.sync.pressure import BlockingQueue
    from apressure.sync.tasks import BlockingTaskDelivery, BlockingTaskQueue

__all__ = [
    "AsyncioQueue", "BlockingEventQueue", "BlockingFileDelivery", "BlockingFileQueue", "BlockingQueue",
    "BlockingTaskDelivery", "BlockingTaskQueue", "Consumer", "Delivery", "EventConsumers", "Producer", "Queue",
]  # fmt: skip

# A program uses one kind of queue: the others are imported on first use.
_LATER = {
    "BlockingEventQueue": "apressure.sync.events",
    "BlockingFileDelivery": "apressure.sync.files",
    "BlockingFileQueue": "apressure.sync.files",
    "BlockingQueue": "apressure.sync.pressure",
    "BlockingTaskDelivery": "apressure.sync.tasks",
    "BlockingTaskQueue": "apressure.sync.tasks",
}

if not TYPE_CHECKING:  # with a __getattr__, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
