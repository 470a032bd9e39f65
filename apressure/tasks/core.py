"""The life of a queue object: its client, its lanes, and how everything ends."""

from __future__ import annotations

from typing import Literal, Protocol

from apressure.connection.client import Client
from apressure.core import objects
from apressure.exceptions import PressureError
from apressure.tasks.delivery import Hand
from apressure.tasks.engine.answers import Claim
from apressure.tasks.engine.lanes import PutLane, ReserveLane, TaskSettler
from apressure.tasks.engine.steps import TaskSteps, Want
from apressure.tasks.engine.waits import TaskWaits
from apressure.tasks.nodes import processes


class Block(objects.Block, Protocol):
    """A consumer's block.

    Attributes:
        hand: What it has in hand.
    """

    hand: Hand


class Core(objects.QueueObject[Client, Block]):
    """The part of `TaskQueue` that knows no parameters.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        max_attempts: How often a task is tried at most; None for no limit.
        on_orphan: What happens to a task whose node dies.
        result_ttl: Seconds for which results are kept; 0 keeps them.

    Attributes:
        client: As given.
        max_attempts: As given.
        on_orphan: As given.
        result_ttl: As given.
        steps: The queue's steps.
        settler: Notes what happens to tasks.
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
        super().__init__(client, owns_client, name)
        self.client = client
        self.max_attempts = max_attempts
        self.on_orphan: Literal["retry", "fail"] = on_orphan
        self.result_ttl = result_ttl
        self.steps = TaskSteps(client, name)
        self.settler = TaskSettler(self.steps, result_ttl)
        self._waits = TaskWaits(client, self.steps)
        self._puts = PutLane(self.steps, self._waits)
        self._schedules = PutLane(self.steps, self._waits)  # these do not wait for room
        self._reservations = ReserveLane(self.steps, self._waits)
        self._expected = False  # this object has created the queue: if it is gone, it was deleted
        self._listener = b""

    def want(self, lease: float, listener: bytes, expected: bool, in_hand: int | None = None) -> Want:
        """Return what a reservation for so many seconds asks for."""
        return Want(int(lease * 1000), self.max_attempts or 0, self.on_orphan, listener, expected, in_hand)

    async def listener(self) -> bytes:
        """Return the listener that this process is."""
        if not self._listener:
            self._listener = (await processes.listener_id()).encode(errors="surrogateescape")
        return self._listener

    def forget(self, claim: Claim) -> None:
        """A task that a consumer of this object has in hand was settled by a processor."""
        for block in self.blocks:
            block.hand.pop(claim, None)

    def _end(self, error: PressureError) -> int:
        lanes = (self._puts, self._schedules, self._reservations)
        return sum(lane.end(error) for lane in lanes) + self._waits.end(error)

    def _release(self, error: PressureError) -> None:
        self._waits.close(error)
