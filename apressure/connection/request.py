"""One step on its way: what has to be known to send it again, and to say how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apressure.connection.command import Argument
from apressure.connection.script import Call


class Request:
    """One step on its way.

    Args:
        call: The script to run, with its KEYS.
        arguments: Its ARGV.
        on_reply: Called exactly once with the reply, or with the exception that stands for it.
        resend: The step may be sent again when its reply was lost.
        again: The index in arguments that becomes `b"1"` when it is.
        whole: Send the script with its source: nothing may overtake this step while the server learns the script.
        changed: Whether an answer says that the step wrote what has to be as durable as `durability=` says; None
            where nothing has to.

    Attributes:
        doubtful: A reply was lost: the step may have been carried out.
        number: Its place among all that were sent.
    """

    __slots__ = (
        "again", "arguments", "call", "changed", "doubtful", "number", "on_reply", "pause", "resend", "until", "whole",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        arguments: list[Argument],
        on_reply: Callable[[Any], None],
        resend: bool,
        again: int | None = None,
        whole: bool = False,
        changed: Callable[[Any], bool] | None = None,
    ) -> None:
        self.call = call
        self.arguments = arguments
        self.on_reply = on_reply
        self.resend = resend
        self.again = again
        self.whole = whole
        self.changed = changed
        self.doubtful = False
        self.number = 0
        self.until = 0.0
        self.pause = 0.01
