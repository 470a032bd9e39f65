"""Queues between processes that behave like a bounded `asyncio.Queue`."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    # Names that programs imported from here before their rooms were public: see _ROOMS.
    from apressure.codecs import *  # noqa: F403
    from apressure.concurrency.backoff import Backoff
    from apressure.connection import *  # noqa: F403
    from apressure.connection.client import Client
    from apressure.connection.settings import Durability
    from apressure.core import *  # noqa: F403
    from apressure.core.occasions import Schedule
    from apressure.dead_letters import *  # noqa: F403
    from apressure.dead_letters import DeadLetter
    from apressure.envelopes import Envelope
    from apressure.events import *  # noqa: F403
    from apressure.events.queue import EventQueue
    from apressure.exceptions import *  # noqa: F403
    from apressure.exceptions import DeadlineError, PressureError, QueueFullError
    from apressure.files import *  # noqa: F403
    from apressure.files import FileQueue
    from apressure.opening import open_queue
    from apressure.pressure import *  # noqa: F403
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.doctor import recovery
    from apressure.pressure.queue import AsyncQueue
    from apressure.service import *  # noqa: F403
    from apressure.service.pipe import pipe
    from apressure.service.retry import Hold, Retry
    from apressure.service.serve import serve
    from apressure.service.stages.results import Many
    from apressure.tasks.client import TaskClient
    from apressure.tasks.queue import TaskQueue
    from apressure.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "Backoff",
    "Client",
    "DeadLetter",
    "DeadlineError",
    "Delivery",
    "Durability",
    "Envelope",
    "EventQueue",
    "FileQueue",
    "Hold",
    "Many",
    "PressureError",
    "QueueFullError",
    "Retry",
    "Schedule",
    "TaskClient",
    "TaskQueue",
    "Worker",
    "open_queue",
    "pipe",
    "recovery",
    "serve",
]

# `import apressure` loads none of them: a name is imported when it is first used.
_MODULES = {
    "AsyncQueue": "apressure.pressure.queue",
    "Backoff": "apressure.concurrency.backoff",
    "Client": "apressure.connection.client",
    "DeadLetter": "apressure.dead_letters",
    "DeadlineError": "apressure.exceptions",
    "Delivery": "apressure.pressure.delivery",
    "Durability": "apressure.connection.settings",
    "Envelope": "apressure.envelopes",
    "EventQueue": "apressure.events.queue",
    "FileQueue": "apressure.files",
    "Hold": "apressure.service.retry",
    "Many": "apressure.service.stages.results",
    "PressureError": "apressure.exceptions",
    "QueueFullError": "apressure.exceptions",
    "Retry": "apressure.service.retry",
    "Schedule": "apressure.core.occasions",
    "TaskClient": "apressure.tasks.client",
    "TaskQueue": "apressure.tasks.queue",
    "Worker": "apressure.worker.worker",
    "exceptions": "apressure.exceptions",
    "open_queue": "apressure.opening",
    "pipe": "apressure.service.pipe",
    "recovery": "apressure.pressure.doctor.recovery",
    "serve": "apressure.service.serve",
}

_ROOMS = (
    "apressure.exceptions",
    "apressure.codecs",
    "apressure.connection",
    "apressure.core",
    "apressure.dead_letters",
    "apressure.events",
    "apressure.pressure",
    "apressure.service",
    "apressure.files",
)
"""Where all other public classes are. They were public here before, and still work here."""

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _MODULES, _ROOMS)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
