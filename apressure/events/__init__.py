"""Events in the format of okq, for many competing consumers: the steps on the server, and `EventQueue`."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.events.consumer import EventConsumers
    from apressure.events.delivery import EventDelivery
    from apressure.events.producer import EventProducer
    from apressure.events.queue import EventQueue, RemoteEventQueue
    from apressure.events.remote.consumer import RemoteEventConsumer
    from apressure.events.remote.delivery import RemoteEventDelivery
    from apressure.events.statistics import EventQueueStatistics, RemoteEventStatistics

__all__ = [
    "EventConsumers",
    "EventDelivery",
    "EventProducer",
    "EventQueue",
    "EventQueueStatistics",
    "RemoteEventConsumer",
    "RemoteEventDelivery",
    "RemoteEventQueue",
    "RemoteEventStatistics",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "EventConsumers": "apressure.events.consumer",
            "EventDelivery": "apressure.events.delivery",
            "EventProducer": "apressure.events.producer",
            "EventQueue": "apressure.events.queue",
            "RemoteEventQueue": "apressure.events.queue",
            "RemoteEventConsumer": "apressure.events.remote.consumer",
            "RemoteEventDelivery": "apressure.events.remote.delivery",
            "EventQueueStatistics": "apressure.events.statistics",
            "RemoteEventStatistics": "apressure.events.statistics",
        },
    )
