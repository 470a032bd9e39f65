"""Moves between two queues of one server: results are put in the same step that acknowledges what they came from."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from apressure.connection.moves import check_results, impossible, nothing_put, obstacle, other_kind
from apressure.connection.waiting.waiter import SLICE
from apressure.core.waiting import FULL, Wait
from apressure.exceptions import DurabilityError, LeaseLostError
from apressure.items import Items
from apressure.pressure.engine.engine import Scripted
from apressure.protocols import Move

if TYPE_CHECKING:
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.leases.hand import RangeHand
    from apressure.pressure.leases.lease import Lease


class AtomicMover:
    """Moves deliveries of one queue to another one, each move wholly or not at all. See `protocols.Mover`.

    The deliveries are those of an exclusive consumer, or of a member of those that share the source.

    Args:
        source: The engine of the queue that the deliveries are from.
        destination: The engine of the queue that gets the results.
        items: Encodes the results.
    """

    def __init__(self, source: Scripted, destination: Scripted, items: Items[Any]) -> None:
        self._source = source
        self._destination = destination
        self._series = destination.steps.series()
        self._since: float | None = None  # when the wait for the permit began; None while there is no such wait
        self.encode = items.encode

    async def move(self, moves: Sequence[Move]) -> None:
        """Wait until there is room for the first of these moves, then make as many as there is room for, in one step.

        Cancelled while it waits, nothing was moved. Cancelled while the step is on its way, it waits for the answer.
        """
        destination = self._destination
        destination.check("producer")
        lease = _lease_of(moves)
        lease.state.check()
        check_results(moves[0][1])
        runs, results = _packed(moves, lease.state.unsettled)
        step = functools.partial(self._step, moves, lease.token, runs, results)
        with lease.renewal.standstill.excuse():
            try:
                await destination.waits.until(step, None, destination.name)
            except LeaseLostError:
                raise nothing_put(self._source.name) from None

    async def _step(
        self, moves: Sequence[Move], token: bytes, runs: Sequence[int], results: Sequence[bytes]
    ) -> int | Wait:
        destination, loop = self._destination, asyncio.get_running_loop()
        lost = self._since is not None and loop.time() - self._since >= SLICE
        steps, source = destination.steps, self._source.keys
        try:
            dead = _lease_of(moves).state.unsettled.kept_errors
            answer = await steps.move(self._series, source, token, lost, runs, results, dead)
        except DurabilityError as error:
            self._settle(moves[: error.answer])
            raise
        if isinstance(answer, Wait):
            waits_for_permit = answer.reason == "full"
            self._since = (self._since or loop.time()) if waits_for_permit else None
            return answer
        self._since = None
        self._settle(moves[:answer])
        return answer or FULL

    def _settle(self, moved: Sequence[Move]) -> None:
        numbers = []
        for deliveries, results in moved:
            self._destination.counts.put_count += len(results)
            for delivery in cast("Sequence[Delivery[Any]]", deliveries):
                delivery.settled = True
                numbers.append(delivery.claim[1])
        if moved:
            self._source.counts.deleted_count += len(numbers)
            _lease_of(moved).state.unsettled.settled(numbers)


def _lease_of(moves: Sequence[Move]) -> Lease:
    return cast("Delivery[Any]", moves[0][0][0]).claim[0]


def _packed(moves: Sequence[Move], hand: RangeHand) -> tuple[list[int], list[bytes]]:
    """Return the moves as `move.lua` takes them: runs of units, and all results.

    Single deliveries whose numbers follow each other, with as many results each, are one run.
    """
    units: list[tuple[list[int], int]] = []
    results: list[bytes] = []
    for deliveries, encoded in cast("Sequence[tuple[Sequence[Delivery[Any]], Sequence[bytes]]]", moves):
        units.append((sorted(delivery.claim[1] for delivery in deliveries), len(encoded)))
        results += encoded

    def run_of(placed: tuple[int, tuple[list[int], int]]) -> tuple[bool, int, int]:
        place, (numbers, each) = placed
        return (True, numbers[0] - place, each) if len(numbers) == 1 else (False, place, each)

    runs: list[int] = []
    for (single, _, each), run in itertools.groupby(enumerate(units), run_of):
        numbers = [number for _, unit in run for number in unit[0]]
        if single:
            runs += (len(numbers), each, 1, *hand.run(numbers[0], numbers[-1]))
        else:
            runs += (1, each, len(numbers), *itertools.chain.from_iterable(hand.run(n, n) for n in numbers))
    return runs, results


async def mover_between(source: Any, destination: Any) -> AtomicMover:
    """Return what moves messages from one queue to another, after a check that both are on one server.

    Args:
        source: The `AsyncQueue` that messages are from.
        destination: The queue that they go to, of any kind.

    Raises:
        ExactlyOnceError: No single step can write to both queues; the message says why.
        ValueError: The queues are the same, or share a key.
    """
    from apressure.pressure.queue import AsyncQueue

    if not isinstance(destination, AsyncQueue):
        raise other_kind(source, destination)
    for queue in (source, destination):
        if not queue.client.settings.scripting:
            raise impossible(source, destination, f"it needs scripts; open {queue.name!r} without scripting=False")
    here, there = [queue._engine.scripted("pipe") for queue in (source, destination)]  # noqa: SLF001 (their mover)
    here.check()
    there.check()
    slots = "give their names the same text in braces, as in '{jobs}:in' and '{jobs}:out'"
    if why := await obstacle(here.steps, there.steps, slots):
        raise impossible(source, destination, why)
    if here.keys.overlaps(there.keys):
        raise ValueError(
            f"a pipe cannot lead from the queue {source.name!r} to itself, or to one that shares a key with it"
        )
    return AtomicMover(here, there, destination._items)  # noqa: SLF001
