"""Queues between processes that behave like a bounded `asyncio.Queue`."""

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
)
from apressure.queue import recovery
from apressure.queue.delivery import Delivery
from apressure.queue.queue import AsyncQueue
from apressure.queue.roles import Consumer, Producer
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
    "TypedCodec",
    "recovery",
    "serve",
]
