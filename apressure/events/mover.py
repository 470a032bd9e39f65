"""Moves between two queues of events on one server: results are put in the step that acknowledges their inputs."""

# ruff: noqa: SLF001 (a move looks into both queue objects)

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from apressure.connection.moves import End, check_results, impossible, nothing_put, obstacle, other_kind, probe
from apressure.core.waiting import FULL, Wait
from apressure.events.engine.steps import Unit
from apressure.events.ids import new_id
from apressure.exceptions import DurabilityError, LeaseLostError
from apressure.protocols import Move

if TYPE_CHECKING:
    from apressure.events.delivery import EventDelivery
    from apressure.events.driver import RedisDriver
    from apressure.events.queue import EventQueue


class EventMover:
    """Moves deliveries of one queue to another one, each move wholly or not at all. See `protocols.Mover`.

    Args:
        source: The queue that the deliveries are from.
        destination: The queue that gets the results.
        here, there: Their drivers.
    """

    def __init__(
        self, source: EventQueue[Any], destination: EventQueue[Any], here: RedisDriver[Any], there: RedisDriver[Any]
    ) -> None:
        self._source = source
        self._destination = destination
        self._here = here
        self._there = there
        self._series = there.steps.series()
        self.encode = destination._items.encode

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
        with some[0][0][0].excused():
            try:
                await self._there.waits.until(functools.partial(self._step, moves, units), None, destination.name)
            except LeaseLostError:
                raise nothing_put(self._source.name) from None

    async def _step(self, moves: Sequence[Move], units: Sequence[Unit]) -> int | Wait:
        self._there.waits.take_room()
        try:
            moved = await self._there.steps.move(
                self._series, self._here.steps.keys, units, self._destination._expected
            )
        except DurabilityError as error:
            self._settle(moves[: error.answer])
            raise
        self._settle(moves[:moved])
        return moved or FULL

    def _settle(self, moved: Sequence[Move]) -> None:
        for deliveries, results in moved:
            self._here.counts.deleted_count += len(deliveries)
            self._there.counts.put_count += len(results)
            for delivery in cast("Sequence[EventDelivery[Any]]", deliveries):
                delivery.moved()


async def mover_between(source: EventQueue[Any], here: RedisDriver[Any], destination: Any) -> EventMover:
    """Return what moves messages from one queue to another, after a check that both are on one server.

    Args:
        source: The queue that messages are from.
        here: Its driver.
        destination: The queue that they go to, of any kind.

    Raises:
        ExactlyOnceError: No single step can write to both queues; the message says why.
        ValueError: The queues are the same.
    """
    from apressure.events.driver import RedisDriver
    from apressure.events.queue import EventQueue

    if not isinstance(destination, EventQueue):
        raise other_kind(source, destination)
    there = destination._driver
    if not isinstance(there, RedisDriver):
        raise impossible(
            source, destination, "the destination is on an okq server, and only two queues of one Redis share a step"
        )
    source.check()
    destination.check()
    slots = "in a cluster, each queue of events has a slot of its own"
    if why := await obstacle(_end(source, here), _end(destination, there), slots):
        raise impossible(source, destination, why)
    if source.name == destination.name:
        raise ValueError(f"a pipe cannot lead from the queue {source.name!r} to itself")
    return EventMover(source, destination, here, there)


def _end(queue: EventQueue[Any], driver: RedisDriver[Any]) -> End:
    steps = driver.steps
    return End(queue.client, steps.connection, steps.keys.okq, steps.keys.operation(probe()))
