"""`serve`: handlers for the messages of a queue; `pipe`: stages between queues.

These modules know `apressure.protocols`, and no kind of queue.
"""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.service.pipe import Piped
    from apressure.service.retry import Hold, Retry
    from apressure.service.service import Served
    from apressure.service.stages.results import Many

__all__ = [
    "Hold",
    "Many",
    "Piped",
    "Retry",
    "Served",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "Piped": "apressure.service.pipe",
            "Hold": "apressure.service.retry",
            "Retry": "apressure.service.retry",
            "Served": "apressure.service.service",
            "Many": "apressure.service.stages.results",
        },
    )
