"""Every error that a user of apressure can catch.

Errors are named by their condition, carry their data as attributes and say what to do. Where the standard
library has a twin (`asyncio.QueueFull`, `ConnectionError`, `TimeoutError`, …) the error is that too, so code
written for `asyncio.Queue` keeps working.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

Role = Literal["producer", "consumer"]
"""The two roles of a queue: at most one client holds each at a time."""

ROLES: Final[tuple[Role, Role]] = ("producer", "consumer")


class PressureError(Exception):
    """The base of every error that apressure raises on purpose. They can be copied and pickled.

    Attributes:
        accepted: How many items the `put_many` (or `requeue`) that raised it had put before; otherwise 0.
    """

    accepted: int = 0

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


class QueueAlreadyExistsError(QueueError):
    """`create` found the queue, or a queue whose keys would collide with it."""


class QueueDoesNotExistError(QueueError):
    """The queue was never created, or was deleted meanwhile."""


if hasattr(asyncio, "QueueShutDown"):
    _QueueShutDown: type[Exception] = asyncio.QueueShutDown
else:  # Python < 3.13
    _QueueShutDown = Exception


class QueueClosedError(QueueError, _QueueShutDown):  # type: ignore[misc,valid-type]
    """The queue is closed: nothing can be put, and there is nothing left to get.

    On Python 3.13 and later this is an `asyncio.QueueShutDown` too.
    """


class QueueFullError(QueueError, asyncio.QueueFull, TimeoutError):
    """The queue was full, and stayed full until the timeout. `accepted` says how much of a `put_many` is in it."""

    def __init__(self, message: str, *, name: str, accepted: int = 0) -> None:
        super().__init__(message, name=name)
        self.accepted = accepted


class QueueEmptyError(QueueError, asyncio.QueueEmpty, TimeoutError):
    """The queue was empty, and stayed empty until the timeout."""


class QueueInUseError(QueueError, TimeoutError):
    """Another client held the role that the operation needs, until the timeout.

    Attributes:
        role: The role, `"producer"` or `"consumer"`.
        holder: The identity that the server shows for the role, or None where it shows none.
    """

    def __init__(self, message: str, *, name: str, role: Role, holder: str | None, accepted: int = 0) -> None:
        super().__init__(message, name=name)
        self.role = role
        self.holder = holder
        self.accepted = accepted


class OperationUnblockedError(QueueError):
    """`unblock()` of the same client ended this blocked operation. Nothing was put or taken by the wait."""


class LeaseLostError(QueueError):
    """This client's lease on a role ran out and somebody healed it: the role is no longer ours.

    What was in flight has gone back into the queue, first in line.

    Attributes:
        role: The role, `"producer"` or `"consumer"`.
    """

    def __init__(self, message: str, *, name: str, role: Role) -> None:
        super().__init__(message, name=name)
        self.role = role


class DecodeError(QueueError, ValueError):
    """A message could not be decoded by the queue's codec.

    Attributes:
        raw: The message as it came, so that nothing is lost with the error.
    """

    def __init__(self, message: str, *, name: str, raw: bytes) -> None:
        super().__init__(message, name=name)
        self.raw = raw


class StorageError(QueueError, OSError):
    """The file system refused an operation of a `FileQueue`: disk full, read-only, permissions, too many watches.

    Nothing was lost. What was to be published is not in the queue, and what was to be received is where it was.

    Attributes:
        errno: The number of the operating system's error, such as `errno.ENOSPC`.
    """

    def __init__(self, message: str, *, name: str, errno: int) -> None:
        super().__init__(message, name=name)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class ClientClosedError(PressureError):
    """The client was closed (`aclose()`, or its `async with` ended) before or during the operation."""


class ServerUnavailableError(PressureError, ConnectionError):
    """The server cannot be reached, or stopped answering for longer than the retries go on."""


class ConnectionLimitError(PressureError):
    """The operation needs one more connection than `max_connections` allows. Nothing was put or taken."""


class OutcomeUnknownError(PressureError, ConnectionError):
    """The operation was sent and its answer never came: it may have been carried out, or not."""


class DurabilityError(OutcomeUnknownError):
    """The server carried out the operation, and fewer replicas, or no disk, confirmed it than `durability=` asks for.

    It may be lost when the server fails, or not: the outcome is unknown until then. What a `get` took has been given
    back.

    Attributes:
        answer: What the server answered to the operation itself.
    """

    def __init__(self, message: str, *, answer: Any = None) -> None:
        super().__init__(message)
        self.answer = answer


class ServerError(PressureError):
    """The server refused a command.

    Attributes:
        code: The first word of the server's answer, such as `"WRONGTYPE"`.
    """

    def __init__(self, message: str, *, code: str = "ERR") -> None:
        super().__init__(message)
        self.code = code


class AuthenticationError(ServerError):
    """The server wants a password, or refused the one given (NOAUTH, WRONGPASS)."""


class PermissionDeniedError(ServerError, PermissionError):
    """The user may not run a command or touch a key that the operation needs (NOPERM)."""


class OutOfMemoryError(ServerError):
    """The server is at its `maxmemory` and refused a write (OOM). Nothing was written."""


class ReadOnlyError(ServerError):
    """The server is a read-only replica (READONLY). Nothing was written."""


class ServerTooOldError(ServerError):
    """The server lacks a command that apressure needs: Redis 6.2 or later, or any Valkey."""


class ScriptingRefusedError(ServerError):
    """The server refuses scripts, or the operation needs them and the queue has `scripting=False`."""


class MissingExtraError(PressureError, ImportError):
    """An optional package is not installed.

    Attributes:
        extra: The extra of apressure that brings it: `pip install 'apressure[EXTRA]'`.
    """

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra
