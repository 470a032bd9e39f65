"""Queues in the protocol pressure 0.15: keys, then steps, then the objects that users see."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.pressure.consumer import Consumer
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.doctor import recovery
    from apressure.pressure.producer import Producer
    from apressure.pressure.queue import AsyncQueue
    from apressure.pressure.statistics import QueueStatistics, RoleStatistics

__all__ = [
    "AsyncQueue",
    "Consumer",
    "Delivery",
    "Producer",
    "QueueStatistics",
    "RoleStatistics",
    "recovery",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "Consumer": "apressure.pressure.consumer",
            "Delivery": "apressure.pressure.delivery",
            "recovery": "apressure.pressure.doctor.recovery",
            "Producer": "apressure.pressure.producer",
            "AsyncQueue": "apressure.pressure.queue",
            "QueueStatistics": "apressure.pressure.statistics",
            "RoleStatistics": "apressure.pressure.statistics",
        },
    )
