"""A request: one step that is to be sent, perhaps more than once, and answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Call


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One step that is to be sent, perhaps more than once, and answered.

    Attributes:
        call: The script to run, with its KEYS.
        arguments: Its ARGV.
        on_reply: Called exactly once, with the reply or an exception.
        resend: The step may be sent again after its reply was lost.
        again: The index of the argument that becomes `b"1"` when the step is sent again.
        whole: Send the script's source, so that no other step overtakes this one while the server learns the script.
        changed: Returns whether an answer means that the step wrote something that `durability=` applies to; None
            for steps that it does not apply to.
        reply_lost: A reply was lost, so the step may have been executed.
        began: When it was first to be sent, by the event loop's clock.
        until: When it may no longer be sent again, by the event loop's clock; 0 before its first failure.
        refusals: How often the server gave a temporary refusal.
    """

    call: Call
    arguments: list[Argument]
    on_reply: Callable[[Any], None]
    resend: bool
    again: int | None = None
    whole: bool = False
    changed: Callable[[Any], bool] | None = None
    reply_lost: bool = False
    began: float = 0.0
    until: float = 0.0
    refusals: int = 0
