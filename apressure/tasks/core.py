"""The life of a queue object: its client, its lanes, and how everything ends."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Literal, Protocol

from apressure import background
from apressure.connection.client import Client
from apressure.exceptions import ClientClosedError, OperationUnblockedError, PressureError
from apressure.lifetime import AsyncClosing
from apressure.tasks.delivery import Hand
from apressure.tasks.engine.answers import Claim
from apressure.tasks.engine.lanes import PutLane, ReserveLane, Settler
from apressure.tasks.engine.steps import Policy, TaskSteps
from apressure.tasks.engine.waits import TaskWaits
from apressure.tasks.nodes import processes


class Block(Protocol):
    """A consumer's block.

    Attributes:
        hand: What it has in hand.
    """

    hand: Hand

    async def end(self) -> None:
        """Give back everything in hand."""


class Core(AsyncClosing):
    """The part of `TaskQueue` that knows no parameters.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        max_attempts: How often a task is tried at most; None for no limit.
        on_orphan: What happens to a task whose node dies.
        result_ttl: Seconds for which results are kept; 0 keeps them.

    Attributes:
        name: As given.
        client: As given.
        max_attempts: As given.
        on_orphan: As given.
        result_ttl: As given.
        opened: Whether the queue object has been used.
        steps: The queue's steps.
        settler: Notes what happens to tasks.
        blocks: The consumers' blocks that are open.
    """

    def __init__(
        self,
        client: Client,
        owns_client: bool,
        name: str,
        max_attempts: int | None,
        on_orphan: Literal["retry", "fail"],
        result_ttl: float,
    ) -> None:
        self.name = name
        self.client = client
        self.max_attempts = max_attempts
        self.on_orphan: Literal["retry", "fail"] = on_orphan
        self.result_ttl = result_ttl
        self.opened = False
        self.steps = TaskSteps(client, name)
        self.settler = Settler(self.steps, result_ttl)
        self.blocks: set[Block] = set()
        self._owns_client = owns_client
        self._waits = TaskWaits(client, self.steps)
        self._puts = PutLane(self.steps, self._waits)
        self._schedules = PutLane(self.steps, self._waits)  # these do not wait for room
        self._reservations = ReserveLane(self.steps, self._waits)
        self._expected = False  # this object has created the queue: if it is gone, it was deleted
        self._closed_by: PressureError | None = None
        self._listener = b""

    def policy(self, lease: float) -> Policy:
        """Return how tasks are reserved for so many seconds."""
        return Policy(int(lease * 1000), self.max_attempts or 0, self.on_orphan)

    async def listener(self) -> bytes:
        """Return the listener that this process is."""
        if not self._listener:
            self._listener = (await processes.listener_id()).encode(errors="surrogateescape")
        return self._listener

    def forget(self, claim: Claim) -> None:
        """A task that a consumer of this object has in hand was settled by a processor."""
        for block in self.blocks:
            block.hand.pop(claim, None)

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        Returns:
            How many operations were blocked.
        """
        self.check()
        return self._end(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Waiting operations get ClientClosedError, and consumers' blocks give back what they have in hand. Deliveries of
        `receive` stay in hand until their lease ends. A client that was given as `client=` stays open. Cancelled, the
        connections are released all the same.
        """
        error = ClientClosedError("the queue object was closed (aclose) while the operation waited")
        if self._closed_by is not None:
            return
        self._closed_by = error
        try:
            if self.client.on_its_loop:
                for block in list(self.blocks):
                    with contextlib.suppress(PressureError):  # what it has comes back when the leases end
                        await block.end()
        finally:
            self.client_closed(error)
            if self._owns_client:
                await self.client.aclose()

    def client_closed(self, error: PressureError) -> None:
        """Fail waiting operations, and give back what is in hand."""
        self._closed_by = self._closed_by or error
        self._end(error)
        self._waits.close(error)
        if self.client.on_its_loop:
            for block in list(self.blocks):
                self._finish(block.end(), "giving back tasks of a closed client")
        self.client.detach(self)

    def check(self) -> None:
        """Raise a clear error if the object cannot be used."""
        if self._closed_by is not None:
            raise ClientClosedError("this queue object was closed (aclose); open a new one")
        self.client.check()
        if not self.opened:
            self.client.attach(self)
            self.opened = True

    def _end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        lanes = (self._puts, self._schedules, self._reservations)
        return sum(lane.end(error) for lane in lanes) + self._waits.end(error)

    def _finish(self, work: Awaitable[None], what: str) -> None:
        async def quietly() -> None:
            with contextlib.suppress(PressureError):
                await work

        self.client.finish_before_close(background.start(quietly(), what))
