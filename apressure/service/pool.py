"""Handlers that several queues share: which queue gets the next place.

Each queue has its own service, which receives a message and then asks for a place. So an urgent message waits for at
most one handler, and no place is held by a queue that has nothing. When a place is free, and the next message of an
earlier queue is on its way, the later ones wait until it is here, or the queue has told that it has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from apressure.concurrency import background

T = TypeVar("T")

LOOK: Final = 0.05
"""Seconds for which others wait at most while a queue is asked for its next message: its server may be slow."""


class Member:
    """A service that shares the places of a pool.

    Args:
        pool: The pool.
        weight: How many messages it may handle for each one of a member of weight 1; None where the order decides.

    Attributes:
        weight: As given.
        credit: How much it is behind its share.
        waiting: Completes when it gets a place; None while it does not want one.
        since: Since when it wants one, by the event loop's clock.
        taken: Returns how many places it has.
        looking_until: While its next message may be on its way, until when the others wait for that.
    """

    def __init__(self, pool: Pool, weight: float | None) -> None:
        self.weight = weight
        self.credit = 0.0
        self.waiting: asyncio.Future[None] | None = None
        self.since = 0.0
        self.taken: Callable[[], int] = int
        self.looking_until = 0.0
        self._pool = pool

    async def turn(self) -> None:
        """Wait for a place. From then on, `taken` counts the message. Cancelled, it has none."""
        loop = asyncio.get_running_loop()
        self.waiting, self.since = loop.create_future(), loop.time()
        self._pool.changed()
        try:
            await self.waiting
        finally:
            self.waiting = None

    def changed(self) -> None:
        """Note that it may have fewer places than before."""
        self._pool.changed()

    def look(self) -> None:
        """Note that its queue is about to be asked for a message."""
        self.looking_until = asyncio.get_running_loop().time() + LOOK

    def idle(self) -> None:
        """Note that its queue has none at the moment."""
        if self.looking_until:
            self.looking_until = 0.0
            self._pool.changed()

    def leave(self) -> None:
        """Give back its places: no handler runs any more. What was received, and had no handler yet, counts no more."""
        self.taken, self.looking_until = int, 0.0
        self._pool.changed()

    @property
    def wants(self) -> bool:
        """Whether it has a message that waits for a place."""
        return self.waiting is not None and not self.waiting.done()

    @property
    def held(self) -> int:
        """How many places it has. What waits for its turn has none yet."""
        return self.taken() - self.wants


class Pool:
    """Places for handlers.

    Args:
        places: How many there are.
        count: How many services share them.
        weights: How the members share them, when all of them have messages; None for the order of the members.
        ageing: Without weights, a message that has waited for so many seconds goes first. None for never.
    """

    def __init__(self, places: int, count: int, weights: Sequence[float] | None, ageing: float | None) -> None:
        self.members = [Member(self, None if weights is None else weights[number]) for number in range(count)]
        self._places = places
        self._ageing = ageing
        self._in_order = weights is None
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Give out the places that are free."""
        wanting = [one for one in self.members if one.wants]
        free = self._places - sum(one.held for one in self.members) if wanting else 0
        while wanting and free > 0:
            first = self._first_in_order(wanting) if self._in_order else None
            if self._waits_for_another(first):
                return
            chosen = first or self._next_by_weight(wanting)
            wanting.remove(chosen)
            free -= 1
            assert chosen.waiting is not None
            chosen.waiting.set_result(None)
            chosen.look()

    def _first_in_order(self, wanting: Sequence[Member]) -> Member:
        oldest = min(wanting, key=lambda one: one.since)
        return oldest if self._is_old(oldest) else wanting[0]

    def _is_old(self, member: Member) -> bool:
        """Whether its message has waited for so long that it goes first."""
        return self._ageing is not None and asyncio.get_running_loop().time() - member.since >= self._ageing

    def _waits_for_another(self, first: Member | None) -> bool:
        """Whether the next message of another member could come first, and is on its way: then this looks again.

        Args:
            first: The first member of those that have a message; None where weights decide.
        """
        before = self.members if first is None else self.members[: self.members.index(first)]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        until = [one.looking_until for one in before if not one.wants and one.looking_until > now]
        if not until or (first is not None and self._is_old(first)):
            return False
        self._timer = loop.call_at(min(until), self.changed)
        return True

    def _next_by_weight(self, wanting: Sequence[Member]) -> Member:
        # Smooth weighted round robin: 6, 3 and 1 take turns as a a b a a b a a b c, and not as six in a row.
        for one in wanting:
            one.credit += one.weight or 0.0
        chosen = max(wanting, key=lambda one: one.credit)
        chosen.credit -= sum(one.weight or 0.0 for one in wanting)
        return chosen


async def all_of(services: Sequence[Coroutine[Any, Any, T]], stop: Callable[[], object]) -> list[T]:
    """Run services together; returns their results. If one fails, the others end in order, and its error is raised.

    Args:
        services: The services.
        stop: Called when one has failed: ends the others as a signal does.

    Cancelled, it cancels them, and waits for them.
    """
    running = [asyncio.ensure_future(one) for one in services]
    unfinished = set(running)
    for one in running:
        one.add_done_callback(unfinished.discard)
    try:
        _, others = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        if others:
            stop()
            await asyncio.wait(others)
    except asyncio.CancelledError:
        for one in running:
            one.cancel()
        await background.join(unfinished)
        raise
    finally:
        for one in running:
            if one.done() and not one.cancelled():
                one.exception()  # only the first one is raised: asyncio must not complain of the others
    return [one.result() for one in running]
