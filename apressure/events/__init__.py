"""Events in the format of okq, for many competing consumers: the steps on the server, and `EventQueue`."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.events.consumer import EventConsumers as EventConsumers
    from apressure.events.delivery import EventDelivery as EventDelivery
    from apressure.events.producer import EventProducer as EventProducer
    from apressure.events.queue import EventQueue as EventQueue
    from apressure.events.queue import RemoteEventQueue as RemoteEventQueue
    from apressure.events.remote.consumer import RemoteEventConsumer as RemoteEventConsumer
    from apressure.events.remote.delivery import RemoteEventDelivery as RemoteEventDelivery
    from apressure.events.statistics import EventQueueStatistics as EventQueueStatistics
    from apressure.events.statistics import RemoteEventStatistics as RemoteEventStatistics
else:
    _MODULES = {
        "EventConsumers": "apressure.events.consumer",
        "EventDelivery": "apressure.events.delivery",
        "EventProducer": "apressure.events.producer",
        "EventQueue": "apressure.events.queue",
        "EventQueueStatistics": "apressure.events.statistics",
        "RemoteEventConsumer": "apressure.events.remote.consumer",
        "RemoteEventDelivery": "apressure.events.remote.delivery",
        "RemoteEventQueue": "apressure.events.queue",
        "RemoteEventStatistics": "apressure.events.statistics",
    }
    __all__ = list(_MODULES)
    __getattr__ = on_first_use(__name__, _MODULES)
