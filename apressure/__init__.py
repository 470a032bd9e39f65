"""Queues between processes that behave like a bounded `asyncio.Queue`."""

from typing import TYPE_CHECKING

from apressure.lazy import on_first_use

if TYPE_CHECKING:
    from apressure.codecs import CloudEventsCodec, Codec, PydanticCodec, TypedCodec
    from apressure.concurrency.backoff import Backoff
    from apressure.connection.client import Client
    from apressure.connection.settings import ClientOptions, Durability
    from apressure.core.browsing import BrowsedMessage, MessagePage
    from apressure.core.consumer import QueueConsumer
    from apressure.core.limits import KeyLimit, Limits, Rate
    from apressure.core.occasions import Schedule
    from apressure.core.producer import QueueProducer
    from apressure.dead_letters import DeadLetter, Failure, Requeued
    from apressure.envelopes import Envelope
    from apressure.events.consumer import EventConsumers
    from apressure.events.delivery import EventDelivery
    from apressure.events.producer import EventProducer
    from apressure.events.queue import EventQueue, RemoteEventQueue
    from apressure.events.remote.consumer import RemoteEventConsumer
    from apressure.events.remote.delivery import RemoteEventDelivery
    from apressure.events.statistics import EventQueueStatistics, RemoteEventStatistics
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
    from apressure.files import FileDelivery, FileQueue, FileQueueOptions, FileQueueStatistics
    from apressure.opening import open_queue
    from apressure.pressure.consumer import Consumer
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.doctor import recovery
    from apressure.pressure.producer import Producer
    from apressure.pressure.queue import AsyncQueue
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

# `import apressure` loads none of them: a name is imported when it is first used.
_MODULES = {
    "AsyncQueue": "apressure.pressure.queue",
    "AuthenticationError": "apressure.exceptions",
    "Backoff": "apressure.concurrency.backoff",
    "BrowsedMessage": "apressure.core.browsing",
    "Client": "apressure.connection.client",
    "ClientClosedError": "apressure.exceptions",
    "ClientOptions": "apressure.connection.settings",
    "CloudEventsCodec": "apressure.codecs",
    "Codec": "apressure.codecs",
    "ConnectionLimitError": "apressure.exceptions",
    "Consumer": "apressure.pressure.consumer",
    "DeadLetter": "apressure.dead_letters",
    "DeadlineError": "apressure.exceptions",
    "DeadlineOutcomeUnknownError": "apressure.exceptions",
    "DecodeError": "apressure.exceptions",
    "Delivery": "apressure.pressure.delivery",
    "DuplicateEventError": "apressure.exceptions",
    "DuplicateMessageError": "apressure.exceptions",
    "Durability": "apressure.connection.settings",
    "DurabilityError": "apressure.exceptions",
    "Envelope": "apressure.envelopes",
    "EventConsumers": "apressure.events.consumer",
    "EventDelivery": "apressure.events.delivery",
    "EventProducer": "apressure.events.producer",
    "EventQueue": "apressure.events.queue",
    "EventQueueStatistics": "apressure.events.statistics",
    "ExactlyOnceError": "apressure.exceptions",
    "Failure": "apressure.dead_letters",
    "FileDelivery": "apressure.files",
    "FileQueue": "apressure.files",
    "FileQueueOptions": "apressure.files",
    "FileQueueStatistics": "apressure.files",
    "Hold": "apressure.service.retry",
    "KeyLimit": "apressure.core.limits",
    "LeaseLostError": "apressure.exceptions",
    "Limits": "apressure.core.limits",
    "Many": "apressure.service.stages.results",
    "MessagePage": "apressure.core.browsing",
    "MissingExtraError": "apressure.exceptions",
    "NoReplyError": "apressure.exceptions",
    "OperationUnblockedError": "apressure.exceptions",
    "OutOfMemoryError": "apressure.exceptions",
    "OutcomeUnknownError": "apressure.exceptions",
    "PermissionDeniedError": "apressure.exceptions",
    "Piped": "apressure.service.pipe",
    "PressureError": "apressure.exceptions",
    "Producer": "apressure.pressure.producer",
    "PydanticCodec": "apressure.codecs",
    "QueueAlreadyExistsError": "apressure.exceptions",
    "QueueClosedError": "apressure.exceptions",
    "QueueConsumer": "apressure.core.consumer",
    "QueueDoesNotExistError": "apressure.exceptions",
    "QueueEmptyError": "apressure.exceptions",
    "QueueError": "apressure.exceptions",
    "QueueFullError": "apressure.exceptions",
    "QueueInUseError": "apressure.exceptions",
    "QueueOpenError": "apressure.exceptions",
    "QueueProducer": "apressure.core.producer",
    "QueueStatistics": "apressure.pressure.statistics",
    "Rate": "apressure.core.limits",
    "ReadOnlyError": "apressure.exceptions",
    "RemoteEventConsumer": "apressure.events.remote.consumer",
    "RemoteEventDelivery": "apressure.events.remote.delivery",
    "RemoteEventQueue": "apressure.events.queue",
    "RemoteEventStatistics": "apressure.events.statistics",
    "RequestFailedError": "apressure.exceptions",
    "Requeued": "apressure.dead_letters",
    "Retry": "apressure.service.retry",
    "RoleStatistics": "apressure.pressure.statistics",
    "Schedule": "apressure.core.occasions",
    "ScheduleDoesNotExistError": "apressure.exceptions",
    "ScriptingRefusedError": "apressure.exceptions",
    "Served": "apressure.service.service",
    "ServerError": "apressure.exceptions",
    "ServerTooOldError": "apressure.exceptions",
    "ServerUnavailableError": "apressure.exceptions",
    "StorageError": "apressure.exceptions",
    "TaskClient": "apressure.tasks.client",
    "TaskDoesNotExistError": "apressure.exceptions",
    "TaskError": "apressure.exceptions",
    "TaskFailedError": "apressure.exceptions",
    "TaskQueue": "apressure.tasks.queue",
    "TaskStatusError": "apressure.exceptions",
    "TaskUnfinishedError": "apressure.exceptions",
    "TypedCodec": "apressure.codecs",
    "UnsupportedError": "apressure.exceptions",
    "Worker": "apressure.worker.worker",
    "open_queue": "apressure.opening",
    "pipe": "apressure.service.pipe",
    "recovery": "apressure.pressure.doctor.recovery",
    "serve": "apressure.service.serve",
    "exceptions": "apressure.exceptions",
}

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
