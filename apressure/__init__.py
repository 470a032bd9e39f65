"""Queues between processes that behave like a bounded `asyncio.Queue`."""

from typing import TYPE_CHECKING

from apressure.codecs import CloudEventsCodec, Codec, PydanticCodec, TypedCodec
from apressure.connection.client import Client
from apressure.connection.settings import ClientOptions, Durability
from apressure.dead_letters import DeadLetter, Failure, Requeued
from apressure.envelopes import Envelope
from apressure.exceptions import (
    AuthenticationError,
    ClientClosedError,
    ConnectionLimitError,
    DeadlineError,
    DeadlineOutcomeUnknownError,
    DecodeError,
    DuplicateEventError,
    DuplicateMessageError,
    DurabilityError,
    ExactlyOnceError,
    LeaseLostError,
    MissingExtraError,
    NoReplyError,
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
    QueueOpenError,
    ReadOnlyError,
    RequestFailedError,
    ScheduleDoesNotExistError,
    ScriptingRefusedError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
    StorageError,
    TaskDoesNotExistError,
    TaskError,
    TaskFailedError,
    TaskStatusError,
    TaskUnfinishedError,
    UnsupportedError,
)
from apressure.lazy import on_first_use
from apressure.pressure.queue import AsyncQueue

if TYPE_CHECKING:
    from apressure.concurrency.backoff import Backoff
    from apressure.core.browsing import BrowsedMessage, MessagePage
    from apressure.core.consumer import QueueConsumer
    from apressure.core.limits import KeyLimit, Limits, Rate
    from apressure.core.occasions import Schedule
    from apressure.core.producer import QueueProducer
    from apressure.core.searching import DeadLetterPage, DeadLetterSearch
    from apressure.events.consumer import EventConsumers
    from apressure.events.delivery import EventDelivery
    from apressure.events.producer import EventProducer
    from apressure.events.queue import EventQueue, RemoteEventQueue
    from apressure.events.remote.consumer import RemoteEventConsumer
    from apressure.events.remote.delivery import RemoteEventDelivery
    from apressure.events.statistics import EventQueueStatistics, RemoteEventStatistics
    from apressure.files import FileDelivery, FileQueue, FileQueueOptions, FileQueueStatistics
    from apressure.opening import open_queue
    from apressure.pressure.consumer import Consumer
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.doctor import recovery
    from apressure.pressure.producer import Producer
    from apressure.pressure.statistics import QueueStatistics, RoleStatistics
    from apressure.service.pipe import Piped, pipe
    from apressure.service.retry import Hold, Retry
    from apressure.service.serve import serve
    from apressure.service.service import Served
    from apressure.service.stages.results import Many
    from apressure.tasks.client import TaskClient
    from apressure.tasks.queue import TaskQueue
    from apressure.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "AuthenticationError",
    "Backoff",
    "BrowsedMessage",
    "Client",
    "ClientClosedError",
    "ClientOptions",
    "CloudEventsCodec",
    "Codec",
    "ConnectionLimitError",
    "Consumer",
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterSearch",
    "DeadlineError",
    "DeadlineOutcomeUnknownError",
    "DecodeError",
    "Delivery",
    "DuplicateEventError",
    "DuplicateMessageError",
    "Durability",
    "DurabilityError",
    "Envelope",
    "EventConsumers",
    "EventDelivery",
    "EventProducer",
    "EventQueue",
    "EventQueueStatistics",
    "ExactlyOnceError",
    "Failure",
    "FileDelivery",
    "FileQueue",
    "FileQueueOptions",
    "FileQueueStatistics",
    "Hold",
    "KeyLimit",
    "LeaseLostError",
    "Limits",
    "Many",
    "MessagePage",
    "MissingExtraError",
    "NoReplyError",
    "OperationUnblockedError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "Piped",
    "PressureError",
    "Producer",
    "PydanticCodec",
    "QueueAlreadyExistsError",
    "QueueClosedError",
    "QueueConsumer",
    "QueueDoesNotExistError",
    "QueueEmptyError",
    "QueueError",
    "QueueFullError",
    "QueueInUseError",
    "QueueOpenError",
    "QueueProducer",
    "QueueStatistics",
    "Rate",
    "ReadOnlyError",
    "RemoteEventConsumer",
    "RemoteEventDelivery",
    "RemoteEventQueue",
    "RemoteEventStatistics",
    "RequestFailedError",
    "Requeued",
    "Retry",
    "RoleStatistics",
    "Schedule",
    "ScheduleDoesNotExistError",
    "ScriptingRefusedError",
    "Served",
    "ServerError",
    "ServerTooOldError",
    "ServerUnavailableError",
    "StorageError",
    "TaskClient",
    "TaskDoesNotExistError",
    "TaskError",
    "TaskFailedError",
    "TaskQueue",
    "TaskStatusError",
    "TaskUnfinishedError",
    "TypedCodec",
    "UnsupportedError",
    "Worker",
    "open_queue",
    "pipe",
    "recovery",
    "serve",
]

# Most programs do not use these names: they are imported on first use.
_LATER = {
    "Backoff": "apressure.concurrency.backoff",
    "BrowsedMessage": "apressure.core.browsing",
    "Consumer": "apressure.pressure.consumer",
    "DeadLetterPage": "apressure.core.searching",
    "DeadLetterSearch": "apressure.core.searching",
    "Delivery": "apressure.pressure.delivery",
    "EventConsumers": "apressure.events.consumer",
    "EventDelivery": "apressure.events.delivery",
    "EventProducer": "apressure.events.producer",
    "EventQueue": "apressure.events.queue",
    "EventQueueStatistics": "apressure.events.statistics",
    "FileDelivery": "apressure.files",
    "FileQueue": "apressure.files",
    "FileQueueOptions": "apressure.files",
    "FileQueueStatistics": "apressure.files",
    "Many": "apressure.service.stages.results",
    "MessagePage": "apressure.core.browsing",
    "Piped": "apressure.service.pipe",
    "Producer": "apressure.pressure.producer",
    "QueueConsumer": "apressure.core.consumer",
    "KeyLimit": "apressure.core.limits",
    "Limits": "apressure.core.limits",
    "QueueProducer": "apressure.core.producer",
    "Rate": "apressure.core.limits",
    "QueueStatistics": "apressure.pressure.statistics",
    "RemoteEventConsumer": "apressure.events.remote.consumer",
    "RemoteEventDelivery": "apressure.events.remote.delivery",
    "RemoteEventQueue": "apressure.events.queue",
    "RemoteEventStatistics": "apressure.events.statistics",
    "Hold": "apressure.service.retry",
    "Retry": "apressure.service.retry",
    "RoleStatistics": "apressure.pressure.statistics",
    "Schedule": "apressure.core.occasions",
    "Served": "apressure.service.service",
    "TaskClient": "apressure.tasks.client",
    "TaskQueue": "apressure.tasks.queue",
    "Worker": "apressure.worker.worker",
    "open_queue": "apressure.opening",
    "pipe": "apressure.service.pipe",
    "recovery": "apressure.pressure.doctor.recovery",
    "serve": "apressure.service.serve",
}

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
