"""Moves between two queues of events on one server: results are put in the step that acknowledges their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from apressure.connection.moves import check_results, impossible, nothing_put, obstacle
from apressure.core.waiting import FULL, Wait
from apressure.events.delivery import EventDelivery
from apressure.events.driver import RedisDriver
from apressure.events.engine.steps import Unit
from apressure.exceptions import DurabilityError, LeaseLostError
from apressure.items import new_id
from apressure.protocols import Move


class EventMover:
    """Moves deliveries of one queue to another one, each move wholly or not at all. See `protocols.Mover`.

    Args:
        source: The queue that the deliveries are from.
        destination: The queue that gets the results.
    """

    def __init__(self, source: RedisDriver[Any], destination: RedisDriver[Any]) -> None:
        self.encode = destination.items.encode
        self._source = source
        self._destination = destination
        self._series = destination.steps.series()

    async def move(self, moves: Sequence[Move]) -> None:
        """Wait until there is room for the first of these moves, then make as many as there is room for, in one step.

        Cancelled while it waits, nothing was moved. Cancelled while the step is on its way, it waits for the answer.
        """
        destination = self._destination
        destination.check()
        check_results(moves[0][1])
        some = cast("Sequence[tuple[Sequence[EventDelivery[Any]], Sequence[bytes]]]", moves)
        if not all(one.in_hand for one in some[0][0]):
            raise nothing_put(self._source.name)
        units: list[Unit] = [
            ([one.claim for one in deliveries], [(new_id(), result) for result in results])
            for deliveries, results in some
        ]

        async def step() -> int | Wait:
            destination.waits.take_room()
            try:
                moved = await destination.steps.move(self._series, self._source.steps.keys, units, destination.expected)
            except DurabilityError as error:
                self._settle(moves[: error.answer])
                raise
            self._settle(moves[:moved])
            return moved or FULL

        with some[0][0][0].excused():
            try:
                await destination.waits.until(step, None, destination.name)
            except LeaseLostError:
                raise nothing_put(self._source.name) from None

    def _settle(self, moved: Sequence[Move]) -> None:
        for deliveries, results in moved:
            self._source.counts.deleted_count += len(deliveries)
            self._destination.counts.put_count += len(results)
            for delivery in cast("Sequence[EventDelivery[Any]]", deliveries):
                delivery.moved()


async def mover_between(source: Any, destination: Any) -> EventMover:
    """Return what moves messages from one queue to another, after a check that both are on one server.

    Args:
        source: The driver of the queue that messages are from.
        destination: The driver of the queue that they go to.

    Raises:
        ExactlyOnceError: No single step can write to both queues; the message says why.
        ValueError: The queues are the same.
    """
    if not (isinstance(source, RedisDriver) and isinstance(destination, RedisDriver)):
        why = "an okq server has no command for that, and only two queues of one Redis server share a step"
        raise impossible(source, destination, why)
    source.check()
    destination.check()
    slots = "in a cluster, each queue of events has a slot of its own"
    if why := await obstacle(source.steps, destination.steps, slots):
        raise impossible(source, destination, why)
    if source.name == destination.name:
        raise ValueError(f"a pipe cannot lead from the queue {source.name!r} to itself")
    return EventMover(source, destination)
