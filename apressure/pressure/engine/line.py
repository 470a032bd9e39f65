"""The line of clients that wait for messages: one of them watches the queue, and a put gives the next one its turn."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from apressure.connection.waiting.waiter import Waiter
from apressure.pressure.engine.keys import Keys


class MakesWaiters(Protocol):
    """Makes a waiter for the elements of a list."""

    def __call__(self, source: bytes, destination: bytes | None, on_unwanted: Callable[[], None]) -> Waiter: ...


class Line:
    """This client's place in the line.

    Args:
        keys: The queue's keys.
        waiter: Makes its waiters.
        resign: Called when nobody waits for messages here any more, with the place, and whether its turn had come.

    Attributes:
        place: The place, as the server knows it.
        messages: Waits for messages, if this client watches the queue.
        turns: Waits for this client's turn.
        watching: It watches the queue, or a step has said that it is to.
    """

    def __init__(self, keys: Keys, waiter: MakesWaiters, resign: Callable[[bytes, bool], None]) -> None:
        self.place = os.urandom(8).hex().encode()
        self.messages = waiter(keys.messages, keys.messages, lambda: self.leave(False))
        self.turns = waiter(keys.line()[0], None, lambda: self.leave(True))
        self.watching = False
        self._resign = resign

    def take_turn(self) -> bytes:
        """A step for messages is about to be sent: it sees to it that others get their turn. Returns the place."""
        self.turns.take_claim()
        self.watching = False
        return self.place

    def leave(self, unused: bool) -> None:
        """Have another client watch the queue, if nobody waits for messages here any more.

        Args:
            unused: A turn came for nobody.
        """
        if (self.watching or unused) and not (self.messages.watched or self.turns.watched):
            self.watching = False
            self._resign(self.place, unused)
