"""Moves between two queues of one server: results are put in the same step that acknowledges what they came from."""

# ruff: noqa: SLF001 (a move looks into both queue objects, and into deliveries)

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from apressure.connection.waiter import SLICE
from apressure.exceptions import DurabilityError, ExactlyOnceError, LeaseLostError, PermissionDeniedError
from apressure.items import Items
from apressure.protocols import Move
from apressure.queue.engine.answers import FULL
from apressure.queue.engine.dead_letters import DeadLetters
from apressure.queue.engine.scripted import Scripted
from apressure.queue.engine.waits import Wait

if TYPE_CHECKING:
    from apressure.queue.delivery import Delivery
    from apressure.queue.leases.acknowledgements import AcknowledgementTracker
    from apressure.queue.leases.lease import Lease

_NONCE_MS = 60_000
"""Milliseconds after which the key that recognizes a server expires, if it is not deleted before."""
MOST_RESULTS = 100_000
"""The most results of one input, or batch: the server does nothing else while it puts them."""
MOST_BYTES = 1 << 28
"""The most bytes of these results. A server ends a connection that sends 1 GiB."""


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
        lease.check()
        if len(moves[0][1]) > MOST_RESULTS or sum(map(len, moves[0][1])) > MOST_BYTES:
            raise ValueError(
                f"there are too many results of one input: at most {MOST_RESULTS:,} messages, or {MOST_BYTES:,} bytes, "
                "are put in one step"
            )
        runs, results = _packed(moves, lease.unsettled)
        step = functools.partial(self._step, moves, lease.token, runs, results)
        standstill = lease.renewal.standstill
        standstill.excused += 1  # the destination may stay full for long: its consumers are paused, for example
        try:
            await destination.waits.until(step, None, destination.name)
        except LeaseLostError:
            name = self._source.name
            raise LeaseLostError(
                f"deliveries of the queue {name!r} went back before their results were put: nothing was put",
                name=name, role="consumer",
            ) from None  # fmt: skip
        finally:
            standstill.excused -= 1

    async def _step(
        self, moves: Sequence[Move], token: bytes, runs: Sequence[int], results: Sequence[bytes]
    ) -> int | Wait:
        destination, loop = self._destination, asyncio.get_running_loop()
        lost = self._since is not None and loop.time() - self._since >= SLICE
        claimed = destination.waits.take_claim("producer")
        steps, source = destination.steps, self._source.keys
        try:
            answer = await steps.move(
                self._series, source, claimed, token, lost, runs, results, self._dead_letters_of(moves)
            )
        except DurabilityError as error:
            _settle(moves[: error.answer])
            raise
        if isinstance(answer, Wait):
            waits_for_permit = answer.reason == "full"
            self._since = (self._since or loop.time()) if waits_for_permit else None
            return answer
        self._since = None
        _settle(moves[:answer])
        return answer or FULL

    def _dead_letters_of(self, moves: Sequence[Move]) -> DeadLetters | None:
        """Return where errors are to be forgotten, if any message in flight was redelivered."""
        dead = self._source.dead
        return dead if dead is not None and _lease_of(moves).failures.possible else None


def _settle(moved: Sequence[Move]) -> None:
    numbers = []
    for deliveries, _ in moved:
        for delivery in cast("Sequence[Delivery[Any]]", deliveries):
            delivery.settled = True
            numbers.append(delivery._number)
    if moved:
        lease = _lease_of(moved)
        lease.unsettled.settled(numbers)
        lease.failures.settled(numbers)


def _lease_of(moves: Sequence[Move]) -> Lease:
    return cast("Delivery[Any]", moves[0][0][0])._lease


def _packed(moves: Sequence[Move], tracker: AcknowledgementTracker) -> tuple[list[int], list[bytes]]:
    """Return the moves as `move.lua` takes them: runs of units, and all results."""
    runs: list[int] = []
    results: list[bytes] = []
    first = last = each = -1  # of the run of single deliveries that is being made
    for deliveries, some in cast("Sequence[tuple[Sequence[Delivery[Any]], Sequence[bytes]]]", moves):
        results += some
        number = deliveries[0]._number
        if len(deliveries) == 1 and number == last + 1 and len(some) == each:
            last = number
            continue
        if each >= 0:
            runs += (last - first + 1, each, 1, *tracker.run(first, last))
        if len(deliveries) == 1:
            first, last, each = number, number, len(some)
            continue
        first = last = each = -1
        runs += (1, len(some), len(deliveries))
        for one in sorted(delivery._number for delivery in deliveries):
            runs += tracker.run(one, one)
    if each >= 0:
        runs += (last - first + 1, each, 1, *tracker.run(first, last))
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
    from apressure.queue.queue import AsyncQueue

    name = source.name

    there_name = getattr(destination, "name", destination)

    def impossible(why: str) -> ExactlyOnceError:
        return ExactlyOnceError(
            f"exactly once is impossible from the queue {name!r} to {there_name!r}: {why}", name=name
        )

    if not isinstance(destination, AsyncQueue):
        raise impossible(
            f"the destination is a {type(destination).__name__}, and only two queues on one server share a step"
        )
    for queue in (source, destination):
        if not queue.client.settings.scripting:
            raise impossible(f"it needs scripts; open {queue.name!r} without scripting=False")
    if source.client.settings.durability != destination.client.settings.durability:
        raise impossible("the two queues have different durability=; give both the same, or one client")
    here, there = source._engine.scripted("pipe"), destination._engine.scripted("pipe")
    here.check()
    there.check()
    try:
        there.client.server.node_of((*there.keys.specified, *here.keys.specified))
    except ValueError:
        raise impossible(
            "they are in different slots of the cluster; give their names the same text in braces, as in '{jobs}:in' "
            "and '{jobs}:out'"
        ) from None
    try:
        same_server = await _same_server(here, there)
    except PermissionDeniedError as error:
        raise impossible(f"one user needs the rights on the keys of both queues ({error})") from None
    if not same_server:
        raise impossible("they are on different servers, or in different databases; put both into one")
    if here.keys.overlaps(there.keys):
        raise ValueError(f"a pipe cannot lead from the queue {name!r} to itself, or to one that shares a key with it")
    return AtomicMover(here, there, destination._items)


async def _same_server(here: Scripted, there: Scripted) -> bool:
    """Return whether a key that one client writes is visible to the other. (Addresses have aliases.)"""
    key = here.keys.operation(os.urandom(16).hex())
    # `reads`: each of them may be carried out twice, so a reply that was lost is no reason to fail.
    await here.steps.connection.ask(b"SET", key, b":", b"PX", _NONCE_MS, reads=True)
    found = bool(await there.steps.connection.ask(b"EXISTS", key, reads=True))
    await here.steps.connection.ask(b"DEL", key, reads=True)
    return found
