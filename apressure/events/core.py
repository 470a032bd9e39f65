"""The life of a queue object: its client, its lanes, and how everything ends."""

from __future__ import annotations

from apressure import validation
from apressure.connection.client import Client
from apressure.core.objects import Block, QueueObject
from apressure.core.taking import Take, Taken
from apressure.events.engine.answers import Event
from apressure.events.engine.batching import EventSettler, PopLane, Push, PushLane
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits
from apressure.exceptions import PressureError


class Core(QueueObject[Client, Block]):
    """The part of `EventQueue` that knows no items.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        client: As given.
        max_attempts: As given.
    """

    def __init__(
        self, client: Client, owns_client: bool, name: str, max_attempts: int | None, keep_errors: bool
    ) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        self.max_attempts = max_attempts
        self._steps = EventSteps(client, name)
        self._waits = EventWaits(self._steps)
        self._lanes = {front: PushLane(self._steps, self._waits, front) for front in (False, True)}
        self._pops = PopLane(self._steps, self._waits)
        self._settler = EventSettler(self._steps, keep_errors and max_attempts is not None)
        self._expected = False  # this object has created the queue: if it is gone, it was deleted

    def _end(self, error: PressureError) -> int:
        pushes = sum(lane.end(error) for lane in self._lanes.values())
        return pushes + self._pops.end(error) + self._waits.end(error)

    def _release(self, error: PressureError) -> None:
        if self._waits.close(error) and self.client.on_its_loop:
            self._finish(self._waits.hand_over(), "leaving the line of clients that wait")

    async def _push(self, push: Push, timeout: float | None, front: bool = False) -> None:
        validation.timeout(timeout)
        self.check()
        await self._lanes[front].run(push, timeout, False)

    async def _pop(self, max_events: int, timeout: float | None, seconds: float) -> Taken[Event]:
        validation.timeout(timeout)
        self.check()
        want = Want(int(seconds * 1000), self.max_attempts or 0, self._expected)
        return await self._pops.run(Take(min(max_events, MAX_EVENTS), want), timeout, False)  # type: ignore[no-any-return]
