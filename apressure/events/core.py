"""The life of a queue object: its client, its lanes, and how everything ends."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Final, Protocol

from apressure import background, validation
from apressure.connection.client import Client
from apressure.events.engine.answers import Event
from apressure.events.engine.batching import Pop, PopLane, Push, PushLane, Settler
from apressure.events.engine.steps import MAX_EVENTS, EventSteps
from apressure.events.engine.waits import EventWaits
from apressure.exceptions import ClientClosedError, OperationUnblockedError, PressureError
from apressure.lifetime import AsyncClosing
from apressure.protocols import DEFAULT_LEASE

SHORTEST_LEASE: Final = 0.1
LONGEST_LEASE: Final = 86400.0
"""Seconds."""


class Block(Protocol):
    """A consumer's block."""

    async def end(self) -> None:
        """Give back everything in hand."""


class Core(AsyncClosing):
    """The part of `EventQueue` that knows no items.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        name: As given.
        client: As given.
        max_attempts: As given.
        opened: Whether the queue object has been used.
    """

    def __init__(
        self, client: Client, owns_client: bool, name: str, max_attempts: int | None, keep_errors: bool
    ) -> None:
        self.name = name
        self.client = client
        self.max_attempts = max_attempts
        self.opened = False
        self._owns_client = owns_client
        self._steps = EventSteps(client, name)
        self._waits = EventWaits(self._steps)
        self._lanes = {front: PushLane(self._steps, self._waits, front) for front in (False, True)}
        self._pops = PopLane(self._steps, self._waits, max_attempts or 0)
        self._settler = Settler(self._steps, keep_errors and max_attempts is not None)
        self._blocks: set[Block] = set()
        self._expected = False  # this object has created the queue: if it is gone, it was deleted
        self._closed_by: PressureError | None = None

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        Returns:
            How many operations were blocked.
        """
        self._check()
        return self._end(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Waiting tasks get ClientClosedError, and consumers' blocks give back what they have in hand. Deliveries of
        `receive` stay in flight until their lease ends. A client that was given as `client=` stays open. Cancelled, the
        connections are released all the same.
        """
        error = ClientClosedError("the queue object was closed (aclose) while the operation waited")
        if self._closed_by is not None:
            return
        self._closed_by = error
        try:
            if self.client.on_its_loop:
                for block in list(self._blocks):
                    with contextlib.suppress(PressureError):  # what it has comes back when the leases end
                        await block.end()
        finally:
            self.client_closed(error)
            if self._owns_client:
                await self.client.aclose()

    def client_closed(self, error: PressureError) -> None:
        """Fail waiting operations, give back what is in hand, and release connections."""
        self._closed_by = self._closed_by or error
        self._end(error)
        handing_over = self._waits.close(error)
        if self.client.on_its_loop:
            for block in list(self._blocks):
                self._finish(block.end(), "giving back events of a closed client")
            if handing_over:
                self._finish(self._waits.hand_over(), "leaving the line of clients that wait")
        self.client.detach(self)

    def _end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        pushes = sum(lane.end(error) for lane in self._lanes.values())
        return pushes + self._pops.end(error) + self._waits.end(error)

    def _finish(self, work: Awaitable[None], what: str) -> None:
        async def quietly() -> None:
            with contextlib.suppress(PressureError):
                await work

        self.client.finish_before_close(background.start(quietly(), what))

    def _check(self) -> None:
        if self._closed_by is not None:
            raise ClientClosedError("this queue object was closed (aclose); open a new one")
        self.client.check()
        if not self.opened:
            self.client.attach(self)
            self.opened = True

    async def _push(self, push: Push, timeout: float | None, front: bool = False) -> None:
        validation.timeout(timeout)
        self._check()
        await self._lanes[front].run(push, timeout, False)

    async def _pop(self, max_events: int, timeout: float | None, seconds: float) -> list[Event]:
        validation.timeout(timeout)
        self._check()
        pop = Pop(min(max_events, MAX_EVENTS), int(seconds * 1000), self._expected)
        return await self._pops.run(pop, timeout, False)  # type: ignore[no-any-return]


def lease_of(lease: float | None, name: str = "lease") -> float:
    """Return a lease in seconds, checked; None for the default."""
    if lease is None:
        return DEFAULT_LEASE
    return validation.seconds(lease, name, SHORTEST_LEASE, LONGEST_LEASE, none=True)
