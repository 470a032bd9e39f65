"""How far a stage works ahead: of its transforms with what it receives, of its destination with what they return."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from apressure.protocols import Delivery, Excusable, Move

MOST_MESSAGES: Final = 1000
"""At most so many inputs, and about so many results, are moved in one step."""
MOST_BYTES: Final = 2 << 20
"""At most so many bytes of inputs and results together."""
_MOST_FINISHED: Final = 2000
"""At most so many inputs, or batches of them, have results that wait to be moved."""
_QUICK, _SLOW = 0.01, 0.05
"""Seconds: the limit is adapted until the received messages keep the transforms busy for about so long."""


def excused(delivery: Delivery[Any]) -> AbstractContextManager[None]:
    """Return a block in which a delivery waits for the destination; see `protocols.Excusable`."""
    return delivery.excused() if isinstance(delivery, Excusable) else nullcontext()


class ReadAhead:
    """Limits how many messages are received ahead of the transforms, to what they need for a moment.

    More would be unfair: a message that was received and goes back unused has lost an attempt.

    Args:
        least: The lowest limit.

    Attributes:
        limit: How many messages may wait for a transform.
    """

    def __init__(self, least: int) -> None:
        self.limit = self._least = least
        self._filled_at: float | None = None

    def filled(self) -> None:
        """Note that the limit has been reached."""
        if self._filled_at is None:
            self._filled_at = asyncio.get_running_loop().time()

    def used_up(self) -> None:
        """Note that no message waits any more, and adapt the limit to how long they lasted."""
        if self._filled_at is not None:
            elapsed = asyncio.get_running_loop().time() - self._filled_at
            self._filled_at = None
            if elapsed < _QUICK:
                self.limit = min(2 * self.limit, max(MOST_MESSAGES, self._least))
            elif elapsed > _SLOW:
                self.limit = max(self._least, self.limit // 2)


class Outbox:
    """Results that wait to be moved, in order, with the deliveries that they came from.

    Args:
        least: It is never full with fewer.
    """

    def __init__(self, least: int) -> None:
        self._moves: deque[tuple[Move, int]] = deque()
        self._window = self._least = max(16, least)
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._moves)

    @property
    def first(self) -> Delivery[Any]:
        """The first delivery whose results wait."""
        return self._moves[0][0][0][0]

    @property
    def full(self) -> bool:
        """Whether transforms must wait: twice as much is here as the destination took lately, or as fits in a step."""
        return len(self._moves) >= self._window or self._bytes >= 2 * MOST_BYTES

    def add(self, deliveries: Sequence[Delivery[Any]], results: Sequence[Any]) -> None:
        """Add the results of these deliveries."""
        size = 0
        for delivery in deliveries:
            size += len(delivery.raw)
        for result in results:
            if isinstance(result, bytes):
                size += len(result)
        self._bytes += size
        self._moves.append(((deliveries, results), size))

    def portion(self) -> list[Move]:
        """Return what to move in the next step. It stays in the outbox until `take_moved` finds it settled."""
        portion: list[Move] = []
        inputs = messages = total = 0
        for move, size in self._moves:
            inputs += len(move[0])
            messages += len(move[1])
            total += size
            if portion and (inputs > MOST_MESSAGES or messages > MOST_MESSAGES or total > MOST_BYTES):
                break
            portion.append(move)
        return portion

    def take_moved(self, tried: int) -> list[Move]:
        """Remove and return the moves that were carried out, of the `tried` first ones."""
        moved: list[Move] = []
        while self._moves and self._moves[0][0][0][0].settled:
            moved.append(self._take())
        if len(moved) == tried:
            self._window = min(2 * self._window, max(_MOST_FINISHED, self._least))
        else:
            self._window = max(self._least, 2 * len(moved))
        return moved

    def take_first(self) -> Sequence[Delivery[Any]]:
        """Remove the first move, which can never be carried out, and return its deliveries."""
        return self._take()[0]

    def _take(self) -> Move:
        move, size = self._moves.popleft()
        self._bytes -= size
        return move
