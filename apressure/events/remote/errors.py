"""What the errors of an okq server mean for a program."""

from __future__ import annotations

from apressure.core.errors import closed, missing
from apressure.events.engine import answers
from apressure.exceptions import (
    OutcomeUnknownError,
    PressureError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)


def no_extend(name: str) -> ServerTooOldError:
    """Return the error for a claim that cannot be extended."""
    return ServerTooOldError(
        f"the lease of an event of {name!r} cannot be extended: the released okq has no such command. Receive with a "
        "longer lease=, or use apressure's server (apressure events serve)"
    )


def no_limit(name: str) -> ServerTooOldError:
    """Return the error for a limit of attempts."""
    return ServerTooOldError(
        f"max_attempts= of the queue {name!r} cannot be kept: the released okq counts no deliveries, and has no dead "
        "letters. Leave it out, or use apressure's server (apressure events serve), or EventQueue with the URL of the "
        "server's Redis (redis://…), which works on the same queue"
    )


def no_delays(name: str) -> ServerTooOldError:
    """Return the error for an event that should be delayed."""
    return ServerTooOldError(
        f"an event of the queue {name!r} cannot be delayed: okq's commands know no delays. Use EventQueue with the "
        "URL of the server's Redis (redis://…), which works on the same queue"
    )


def error_of(error: Exception, name: str) -> Exception:
    """Return what an error reply means for a program.

    Args:
        error: The error.
        name: The queue's name.
    """
    if not isinstance(error, ServerError):
        return error
    text = str(error)
    if text == "ERR queue closed":
        return closed(name)
    if text == "ERR no such queue":
        return missing(name)
    if "may have been carried out" in text or text.startswith("ERR server-side:"):
        return OutcomeUnknownError(f"the okq server failed: {text}. The operation may have been carried out, or not")
    if text.startswith("ERR cannot reach"):
        return ServerUnavailableError(f"the okq server has lost its Redis: {text.removeprefix('ERR ')}")
    return error


def duplicate(name: str, event: bytes, lost: bool) -> PressureError:
    """Return the error for an id that is in use; `lost`: an earlier reply was lost."""
    if lost:
        event_id = event.decode(errors="surrogateescape")
        return OutcomeUnknownError(
            f"the connection broke, and now the queue {name!r} has an event with the id {event_id!r}: this put, or one "
            "before it, put it there"
        )
    return answers.duplicate(name, event)
