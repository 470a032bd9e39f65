"""Queues between processes that behave like a bounded `asyncio.Queue`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from apressure.codecs import Codec, TypedCodec
from apressure.connection.client import Client
from apressure.connection.settings import ClientOptions, Durability
from apressure.exceptions import (
    AuthenticationError,
    ClientClosedError,
    ConnectionLimitError,
    DecodeError,
    DurabilityError,
    LeaseLostError,
    MissingExtraError,
    OperationUnblockedError,
    OutcomeUnknownError,
    OutOfMemoryError,
    PermissionDeniedError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueError,
    QueueFullError,
    QueueInUseError,
    ReadOnlyError,
    ScriptingRefusedError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
    StorageError,
)
from apressure.queue.delivery import Delivery
from apressure.queue.queue import AsyncQueue
from apressure.queue.roles import Consumer, Producer

if TYPE_CHECKING:
    from apressure.files import FileMessage, FileQueue, FileQueueOptions, FileQueueStatistics
    from apressure.queue import recovery
    from apressure.queue.service import serve
    from apressure.queue.serving import Served
    from apressure.queue.statistics import QueueStatistics, RoleStatistics

__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "AuthenticationError",
    "Client",
    "ClientClosedError",
    "ClientOptions",
    "Codec",
    "ConnectionLimitError",
    "Consumer",
    "DecodeError",
    "Delivery",
    "Durability",
    "DurabilityError",
    "FileMessage",
    "FileQueue",
    "FileQueueOptions",
    "FileQueueStatistics",
    "LeaseLostError",
    "MissingExtraError",
    "OperationUnblockedError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "PressureError",
    "Producer",
    "QueueAlreadyExistsError",
    "QueueClosedError",
    "QueueDoesNotExistError",
    "QueueEmptyError",
    "QueueError",
    "QueueFullError",
    "QueueInUseError",
    "QueueStatistics",
    "ReadOnlyError",
    "RoleStatistics",
    "ScriptingRefusedError",
    "Served",
    "ServerError",
    "ServerTooOldError",
    "ServerUnavailableError",
    "StorageError",
    "TypedCodec",
    "recovery",
    "serve",
]

# What most programs do without is imported when it is asked for.
_LATER = {
    "FileMessage": "apressure.files",
    "FileQueue": "apressure.files",
    "FileQueueOptions": "apressure.files",
    "FileQueueStatistics": "apressure.files",
    "QueueStatistics": "apressure.queue.statistics",
    "RoleStatistics": "apressure.queue.statistics",
    "Served": "apressure.queue.serving",
    "recovery": "apressure.queue.recovery",
    "serve": "apressure.queue.service",
}

if not TYPE_CHECKING:  # with a __getattr__, a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_LATER[name])
        found = globals()[name] = getattr(module, name, module)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
