"""Messages that are put once: `put(dedup_id=)`."""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from apressure import validation
from apressure.exceptions import DuplicateMessageError, UnsupportedError

MOST_WINDOW: Final = 315_360_000.0
"""Seconds: ten years."""

MOST_ID: Final = 1024
"""Bytes: the longest dedup id."""


class Dedup(NamedTuple):
    """What tells a message from another one that is put later.

    Attributes:
        id: What the program says.
        token: What is new with each put, to tell a repeat of its step.
        window: Milliseconds for which a repeat is refused; None until the message is done.
        replace: It takes the place of one that waits.
    """

    id: bytes
    token: bytes
    window: int | None
    replace: bool = False

    @property
    def arguments(self) -> tuple[bytes, bytes, bytes | int]:
        """Those of a script, behind the messages."""
        return self.id, self.token, (b"!" if self.replace else b"") if self.window is None else self.window


def dedup_of(dedup_id: Any, dedup_window: Any, unable: str = "", replace: Any = False) -> Dedup | None:
    """Return what tells a message from a repeat; None if it is put in any case.

    `unable` is the kind of queue, if it cannot tell whether a message is done.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The id is empty or too long, or the window is not a time; there is a window or `replace` without an
            id, both of them, or no window where there must be one.
    """
    if not isinstance(replace, bool):
        raise TypeError(f"replace must be True or False, not {type(replace).__name__}")
    if dedup_id is None:
        if dedup_window is not None:
            raise ValueError("dedup_window says how long a dedup_id counts: give dedup_id=, too")
        if replace:
            raise ValueError("replace=True replaces the message with the same dedup_id: give dedup_id=, too")
        return None
    encoded = validation.encoded(dedup_id, "dedup_id", MOST_ID)
    if replace and unable:
        raise ValueError(
            f"messages of {unable} have no ids, so none can be replaced: leave out replace=, or use an EventQueue or "
            "TaskQueue"
        )
    if replace and dedup_window is not None:
        raise ValueError(
            "a message is replaced as long as it waits, and dedup_window= refuses repeats: leave out one of them"
        )
    if dedup_window is None:
        if unable:
            raise ValueError(
                f"{unable} cannot tell when a message is done: say for how many seconds a repeat is refused with "
                "dedup_window=, or use an EventQueue or TaskQueue"
            )
        return Dedup(encoded, os.urandom(8).hex().encode(), None, replace)
    seconds = validation.seconds(dedup_window, "dedup_window", most=MOST_WINDOW, above=True, none=True)
    return Dedup(encoded, os.urandom(8).hex().encode(), max(1, round(seconds * 1000)))


def knows_no_repeats(name: str, why: str) -> UnsupportedError:
    """The error for a queue that cannot put a message once."""
    return UnsupportedError(
        f"{why}, so it cannot refuse repeats: use an AsyncQueue, or an EventQueue or TaskQueue with the address of its "
        "Redis or Valkey server. Nothing was put",
        name=name,
    )


def duplicate(name: str, dedup_id: bytes) -> DuplicateMessageError:
    """The error for a repeat."""
    shown = dedup_id.decode(errors="surrogateescape")
    return DuplicateMessageError(
        f"the queue {name!r} has had a message with the dedup_id {shown!r}: nothing was put", name=name, id=shown
    )
