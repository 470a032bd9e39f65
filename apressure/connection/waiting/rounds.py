"""Looks at all queues in which a client waits: every four seconds, for all of them together.

A blocked command ends when something comes. What sends no wake-up needs a look: a queue that another program deleted, a
lease that expired, a server that is frozen, a connection that is half-open. If each wait looked for itself, a thousand
idle queues would take a few percent of a core.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from apressure.connection.wire.command import Argument
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.script import Request, Script

ROUND: Final = 2.0
"""Seconds from one look to the next where several clients wait in line; the others are looked at every other time."""

MOST: Final = 100
"""How many waits one script looks at: it takes a fraction of a millisecond."""

NOTHING, OVERDUE, KEPT, NOW = -1, -2, -3, 0
"""Answers of a look: nothing to do; a wake-up is missing, try now; nothing to do, and others wait in line; try now.
Others are milliseconds after which to try.
"""


@dataclasses.dataclass(slots=True, eq=False)
class Look:
    """What one wait asks.

    Attributes:
        keys: The KEYS of its part of the script.
        arguments: Its ARGV.
        on_answer: Receives this look, and the answer; not called if there is nothing to do.
        often: Look every time, since another client relies on it, or this one on another.
    """

    keys: tuple[bytes, ...]
    arguments: tuple[Argument, ...]
    on_answer: Callable[[Look, int], None]
    often: bool = False


class Waiting(Protocol):
    """The operations that wait in one queue."""

    def looks(self) -> Sequence[Look]:
        """Return what they want to know; nothing if none of them waits any more."""


class Rounds:
    """The looks of one client at one node.

    Args:
        connection: The client's connection for steps.
        script: Returns the script that looks.
    """

    def __init__(self, connection: ReconnectingConnection, script: Callable[[], Script]) -> None:
        self._connection = connection
        self._script = script
        self._waiting: dict[Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None  # of the round that is next, or under way
        self._begun = 0.0
        self._count = 0

    def add(self, waiting: Waiting) -> None:
        """Look for these until they want to know nothing any more. They may have been added before."""
        self._waiting[waiting] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND, self._begin)

    def discard(self, waiting: Waiting) -> None:
        """Look for these no more."""
        self._waiting.pop(waiting, None)

    def end(self) -> None:
        """Look no more: the client is being closed."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._begun = asyncio.get_running_loop().time()
        self._count += 1
        every, looks = self._count % 2 == 0, list[Look]()
        for waiting in list(self._waiting):
            some = waiting.looks()
            looks += some if every else [look for look in some if look.often]
            if not some:
                del self._waiting[waiting]
        self._send(looks)

    def _send(self, looks: Sequence[Look]) -> None:
        """Look at the first ones, and with their answer go on: the server has time for others in between."""
        if not looks:
            self._timer = None
            if self._waiting:
                self._timer = asyncio.get_running_loop().call_at(self._begun + ROUND, self._begin)
            return
        some = looks[:MOST]
        call = self._script().on([key for look in some for key in look.keys])
        arguments = [argument for look in some for argument in look.arguments]
        on_reply = functools.partial(self._answered, looks)
        # Never sent again: if the connection is lost, the steps find out what happened, and raise it.
        self._connection.send(Request(call, arguments, on_reply, resend=False))

    def _answered(self, looks: Sequence[Look], reply: Any) -> None:
        some, rest = looks[:MOST], looks[MOST:]
        if isinstance(reply, Exception):
            some, rest, reply = looks, (), [NOW] * len(looks)
        for look, answer in zip(some, reply, strict=True):
            if answer in (KEPT, NOTHING):
                look.often = answer == KEPT
            else:
                look.on_answer(look, answer)
        self._send(rest)
