"""Every error that a user of apressure can catch.

Errors are named by their condition, have their data as attributes and say what to do. An error with a twin in the
standard library (`asyncio.QueueFull`, `ConnectionError`, `TimeoutError`, …) is a subclass of it, so code written for
`asyncio.Queue` keeps working.
"""

from __future__ import annotations

import asyncio
import errno as errnos
from typing import Any, Final, Literal

__all__ = [
    "AuthenticationError", "ClientClosedError", "ConnectionLimitError", "DeadlineError",
    "DeadlineOutcomeUnknownError", "DecodeError", "DuplicateEventError", "DuplicateMessageError", "DurabilityError",
    "ExactlyOnceError", "LeaseLostError", "MissingExtraError", "NoReplyError", "OperationUnblockedError",
    "OutOfMemoryError", "OutcomeUnknownError", "PermissionDeniedError", "PressureError", "QueueAlreadyExistsError",
    "QueueClosedError", "QueueDoesNotExistError", "QueueEmptyError", "QueueError", "QueueFullError",
    "QueueInUseError", "QueueOpenError", "ReadOnlyError", "RequestFailedError", "ScheduleDoesNotExistError",
    "ScriptingRefusedError", "ServerError", "ServerTooOldError", "ServerUnavailableError", "StorageError",
    "TaskDoesNotExistError", "TaskError", "TaskFailedError", "TaskStatusError", "TaskUnfinishedError",
    "UnsupportedError",
]  # fmt: skip

Role = Literal["producer", "consumer"]
"""The two roles of a queue. At most one client holds each of them at a time."""

ROLES: Final[tuple[Role, Role]] = ("producer", "consumer")


class PressureError(Exception):
    """The base of every error that apressure raises on purpose. They can be copied and pickled.

    Attributes:
        accepted: How many items a `put_many` (or `requeue`) had put before it raised this error; otherwise 0.
        temporary: Whether the cause is an outage that may end without a change to the program, such as a server that
            cannot be reached, is loading or is out of memory, or a lost lease. False for states of a queue, such as
            full or closed. `serve` goes on after temporary errors.
    """

    accepted: int = 0
    temporary: bool = False

    @property
    def help(self) -> str:
        """The command that says what happened, why, what to do and what was lost: `apressure explain QueueFullError`.

        It prints the page `docs/reference/errors/QueueFullError.md`, and needs the extra `cli` and no network.
        A subclass of yours has the page of the class that it is derived from.
        """
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return f"apressure explain {kind.__name__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PressureError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PressureError:
    error = kind.__new__(kind, *args)
    error.args = args
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


class QueueError(PressureError):
    """An error about one queue.

    Attributes:
        name: The queue's name, without the prefix.
    """

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class ScheduleDoesNotExistError(QueueError, LookupError):
    """The queue has no schedule of this name."""


class QueueAlreadyExistsError(QueueError):
    """`create` found an existing queue of this name, or one whose keys would collide with it."""


class QueueDoesNotExistError(QueueError):
    """The queue was not created, or was deleted meanwhile."""


_QueueShutDown: type[Exception] = getattr(asyncio, "QueueShutDown", Exception)  # Python 3.13 and later have it


class QueueClosedError(QueueError, _QueueShutDown):  # type: ignore[misc,valid-type]
    """The queue is closed: nothing can be put any more, or nothing is left to get.

    On Python 3.13 and later this is an `asyncio.QueueShutDown` too.
    """


class DuplicateMessageError(QueueError):
    """The queue has had a message with this `dedup_id`, and it still counts. Nothing was put.

    Attributes:
        id: The `dedup_id`.
    """

    def __init__(self, message: str, *, name: str, id: str) -> None:
        super().__init__(message, name=name)
        self.id = id


class DuplicateEventError(DuplicateMessageError, ValueError):
    """An `EventQueue` has an event with this id already, waiting or in flight. Nothing was put.

    Attributes:
        id: The id.
    """


class RequestFailedError(QueueError):
    """A request (`ask`) was handled, and failed for good: it was tried `max_attempts` times.

    Attributes:
        id: The id of its message, which is a dead letter.
        error: Why the latest attempt failed, as its service said.
    """

    def __init__(self, message: str, *, name: str, id: str, error: str) -> None:
        super().__init__(message, name=name)
        self.id = id
        self.error = error


class NoReplyError(QueueError, TimeoutError):
    """A request (`ask`) got no reply within its timeout, or nobody will reply. It may have been handled.

    Attributes:
        id: The id of its message.
    """

    def __init__(self, message: str, *, name: str, id: str) -> None:
        super().__init__(message, name=name)
        self.id = id


class TaskError(PressureError):
    """An error about one task of a `TaskQueue`.

    Attributes:
        id: The task's id.
    """

    def __init__(self, message: str, *, id: str) -> None:
        super().__init__(message)
        self.id = id


class TaskDoesNotExistError(TaskError, LookupError):
    """There is no such task: it was deleted or has expired, or never was."""


class TaskFailedError(TaskError):
    """A task that was waited for has failed.

    Attributes:
        error: Why, as its processor said.
    """

    def __init__(self, message: str, *, id: str, error: str) -> None:
        super().__init__(message, id=id)
        self.error = error


class TaskUnfinishedError(TaskError, TimeoutError):
    """A task that was waited for has not ended within the timeout. It goes on."""


class TaskStatusError(TaskError, ValueError):
    """The operation does not fit the task's status. Nothing was changed.

    Attributes:
        status: The status, as the task says it; None if it has none.
    """

    def __init__(self, message: str, *, id: str, status: str | None) -> None:
        super().__init__(message, id=id)
        self.status = status


class QueueFullError(QueueError, asyncio.QueueFull, TimeoutError):
    """The queue stayed full until the timeout. `accepted` says how many items of a `put_many` are in it."""

    def __init__(self, message: str, *, name: str, accepted: int = 0) -> None:
        super().__init__(message, name=name)
        self.accepted = accepted


class QueueEmptyError(QueueError, asyncio.QueueEmpty, TimeoutError):
    """The queue stayed empty, or paused, until the timeout."""


class QueueOpenError(QueueError, TimeoutError):
    """`wait_closed`: the queue stayed open until the timeout."""


class QueueInUseError(QueueError, TimeoutError):
    """Another client held the role that the operation needs until the timeout.

    Attributes:
        role: The role, `"producer"` or `"consumer"`.
        holder: The identity of the role's holder on the server, or None if there is none.
    """

    def __init__(self, message: str, *, name: str, role: Role, holder: str | None, accepted: int = 0) -> None:
        super().__init__(message, name=name)
        self.role = role
        self.holder = holder
        self.accepted = accepted


class OperationUnblockedError(QueueError):
    """`unblock()` of the same client ended this blocked operation. The wait put and took nothing."""


class LeaseLostError(QueueError):
    """This client's lease on a role expired, and another client took the role.

    The messages that were in flight have gone back into the queue, first in line.

    Attributes:
        role: The role, `"producer"` or `"consumer"`.
    """

    temporary = True

    def __init__(self, message: str, *, name: str, role: Role) -> None:
        super().__init__(message, name=name)
        self.role = role


class ExactlyOnceError(QueueError, ValueError):
    """`pipe` was asked for exactly once, and these two queues cannot do that. The message says why, and what to do.

    The name is the source's.
    """


class DecodeError(QueueError, ValueError):
    """A message could not be decoded by the queue's codec.

    Attributes:
        raw: The encoded message, so that the error does not lose it.
    """

    def __init__(self, message: str, *, name: str, raw: bytes) -> None:
        super().__init__(message, name=name)
        self.raw = raw


_TEMPORARY_ERRNOS: Final = frozenset({errnos.EDQUOT, errnos.EIO, errnos.ENOSPC, errnos.ESTALE, errnos.ETIMEDOUT})


class StorageError(QueueError, OSError):
    """The file system refused an operation of a `FileQueue`: disk full, read-only, permissions, too many watches.

    Nothing was lost. A message that was being put is not in the queue; one that was being received stays there.

    Attributes:
        errno: The number of the operating system's error, such as `errno.ENOSPC`.
    """

    def __init__(self, message: str, *, name: str, errno: int) -> None:
        super().__init__(message, name=name)
        self.errno = errno

    @property
    def temporary(self) -> bool:  # type: ignore[override]
        """Whether the disk is full, or the file system of another machine does not answer."""
        return self.errno in _TEMPORARY_ERRNOS

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class UnsupportedError(QueueError, NotImplementedError):
    """This kind of queue cannot do that. The error says why, and what can."""


class ClientClosedError(PressureError):
    """The client was closed (`aclose()`, or its `async with` ended) before or during the operation."""


class ServerUnavailableError(PressureError, ConnectionError):
    """The server cannot be reached, or did not answer for longer than `retry_timeout`."""

    temporary = True


class ConnectionLimitError(PressureError):
    """The operation needs one more connection than `max_connections` allows. Nothing was put or taken."""


class OutcomeUnknownError(PressureError, ConnectionError):
    """The operation was sent, but its answer never came: it may have been carried out, or not."""

    temporary = True


class DeadlineError(QueueError, TimeoutError):
    """The `deadline=` of an operation passed. Nothing was done, apart from `accepted` items of a `put_many`."""


class DeadlineOutcomeUnknownError(DeadlineError, OutcomeUnknownError):
    """The `deadline=` of an operation passed after it was sent: it may have been carried out, or may be later.

    Messages that a `get` or `receive` takes then are given back, first in line.
    """


class DurabilityError(OutcomeUnknownError):
    """The server carried out the operation, but it is less durable than `durability=` asks for.

    It may be lost when the server fails. Messages that a `get` took have been given back.

    Attributes:
        answer: The server's answer to the operation itself.
    """

    def __init__(self, message: str, *, answer: Any = None) -> None:
        super().__init__(message)
        self.answer = answer


TEMPORARY_CODES: Final = frozenset(
    {
        "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN",
    }
)  # fmt: skip
"""Codes of replies that say "not now". The server did not carry out the command."""


class ServerError(PressureError):
    """The server refused a command.

    Attributes:
        code: The first word of the server's answer, such as `"WRONGTYPE"`.
    """

    def __init__(self, message: str, *, code: str = "ERR") -> None:
        super().__init__(message)
        self.code = code

    @property
    def temporary(self) -> bool:  # type: ignore[override]
        """Whether the code says "not now"."""
        return self.code in TEMPORARY_CODES


class AuthenticationError(ServerError):
    """The server needs a password, or refused the given one (NOAUTH, WRONGPASS)."""


class PermissionDeniedError(ServerError, PermissionError):
    """The user may not run a command or touch a key that the operation needs (NOPERM)."""


class OutOfMemoryError(ServerError):
    """The server is at its `maxmemory` and refused a write (OOM). Nothing was written."""


class ReadOnlyError(ServerError):
    """The server is a read-only replica (READONLY). Nothing was written."""


class ServerTooOldError(ServerError):
    """The server lacks a command that apressure needs: Redis 6.2 or later, or any Valkey."""


class ScriptingRefusedError(ServerError):
    """The server refuses scripts, or the operation needs scripts and the queue has `scripting=False`."""


class MissingExtraError(PressureError, ImportError):
    """An optional package is not installed.

    Attributes:
        extra: The extra of apressure that installs it: `pip install 'apressure[EXTRA]'`.
    """

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra
