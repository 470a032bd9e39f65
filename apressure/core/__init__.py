"""What all kinds of queue share. It knows no kind of queue, and no server: what takes the steps is a driver."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.core.browsing import BrowsedMessage, MessagePage
    from apressure.core.consumer import QueueConsumer
    from apressure.core.limits import KeyLimit, Limits, Rate
    from apressure.core.occasions import Schedule
    from apressure.core.producer import QueueProducer
    from apressure.core.searching import DeadLetterPage, DeadLetterSearch

__all__ = [
    "BrowsedMessage",
    "DeadLetterPage",
    "DeadLetterSearch",
    "KeyLimit",
    "Limits",
    "MessagePage",
    "QueueConsumer",
    "QueueProducer",
    "Rate",
    "Schedule",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "BrowsedMessage": "apressure.core.browsing",
            "MessagePage": "apressure.core.browsing",
            "QueueConsumer": "apressure.core.consumer",
            "KeyLimit": "apressure.core.limits",
            "Limits": "apressure.core.limits",
            "Rate": "apressure.core.limits",
            "Schedule": "apressure.core.occasions",
            "QueueProducer": "apressure.core.producer",
            "DeadLetterPage": "apressure.core.searching",
            "DeadLetterSearch": "apressure.core.searching",
        },
    )
