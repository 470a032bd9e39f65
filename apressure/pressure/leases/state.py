"""What the steps under a lease share: the lease itself, and the messages in flight under it."""

from __future__ import annotations

import asyncio
import copy
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from apressure.core.leases.clock import Term
from apressure.exceptions import DurabilityError
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.shared_steps import Range
from apressure.pressure.leases.hand import RangeHand

Received = tuple[int, bytes, int]
"""A message in flight: its number under the lease, its bytes, and how often it has been delivered."""


class Step(asyncio.Future[Any]):
    """A step on its way under a lease; done when it has been answered, also with an error as its result.

    Args:
        acks: The acknowledgements that travel with it.
        nacks: The numbers of the messages that it gives back.
        unseen: From this number on, they were never handed out; 0 if all were.

    Attributes:
        acks, nacks, unseen: As given.
        awaited: How many callers wait for it.
    """

    awaited = 0

    def __init__(self, acks: Sequence[Range], nacks: Sequence[int] = (), unseen: int = 0) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.acks = acks
        self.nacks = nacks
        self.unseen = unseen


class LeaseState:
    """A lease on the consumer role, and what is in flight under it.

    Args:
        term: How long it lasts.
        kept: Whether it lasts while nothing is in flight; otherwise the role goes back with the last message.
        shared: Whether it is a member's share of the role.
        dead: Where messages go that were delivered too often; None to deliver them for ever.
        on_broken: Called once, with the error, where a step finds that the lease is invalid.

    Attributes:
        token: The lease's name on the server.
        term, kept, shared: As given.
        unsettled: The messages in flight, and why they go back.
        buffer: Those of them that were not handed out yet.
        error: Why the lease is invalid; None while it is valid.
        drained: The consumer has got everything, and the queue is closed.
        unsure: Too few replicas confirmed a step that no caller waited for: the next caller gets this.
    """

    def __init__(
        self, term: Term, kept: bool, shared: bool, dead: DeadLetters | None, on_broken: Callable[[Exception], None]
    ) -> None:
        self.token = os.urandom(8).hex().encode()
        self.term = term
        self.kept = kept
        self.shared = shared
        self.unsettled = RangeHand(dead)
        self.buffer: deque[Received] = deque()
        self.error: Exception | None = None
        self.unsure: DurabilityError | None = None
        self.drained = False
        self._dead = dead
        self._on_broken = on_broken

    def check(self) -> None:
        """Raise the reason where the lease is invalid, or what no caller was told."""
        if self.error is not None:
            self.buffer.clear()
            raise copy.copy(self.error)
        if self.unsure is not None:
            unsure, self.unsure = self.unsure, None
            raise unsure

    def broken(self, error: Exception) -> None:
        """A step has failed: the lease is invalid from now on."""
        if self.error is None:
            self.error = error
            self._on_broken(error)
        self.clear()

    def is_last(self, attempts: int) -> bool:
        """Whether a message that was delivered so often becomes a dead letter when it goes back."""
        return self._dead is not None and attempts >= self._dead.max_attempts

    def clear(self) -> None:
        """Nothing is in flight any more. (The buffer stays: `check` empties it.)"""
        self.unsettled.clear()
