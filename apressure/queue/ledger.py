"""What a client has in hand under a lease, and what it has acknowledged of that.

Numbers come in order, and most are acknowledged in order: so acknowledgements travel as ranges, and one more costs no
more than to let a number grow.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int, int]
"""Acknowledged messages: the first number, the last one, and how many bytes they have together."""


def firsts(ranges: Iterable[Range]) -> set[int]:
    """What tells ranges from each other, also when one grows: their first numbers."""
    return {first for first, _, _ in ranges}


class Ledger:
    """The messages in flight under one lease, and the acknowledgements that have gathered since the last step left."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # of what is not settled, and of the run
        self._ranges: list[Range] = []
        self._first = 0
        self._next = 0  # the number that the run of acknowledgements would go on with; 0 where there is none

    def __bool__(self) -> bool:
        """Something is in flight that nobody has settled."""
        self._end_run()
        return bool(self._sizes)

    def __contains__(self, number: int) -> bool:
        self._end_run()
        return number in self._sizes

    @property
    def acked(self) -> bool:
        """There are acknowledgements to be sent."""
        return bool(self._next or self._ranges)

    @property
    def acks(self) -> list[Range]:
        """The acknowledgements that are to be sent."""
        self._end_run()
        return self._ranges

    def receive(self, numbers: range, sizes: Iterable[int]) -> None:
        """Messages have come."""
        self._sizes.update(zip(numbers, sizes, strict=True))

    def ack(self, number: int) -> bool:
        """A message is acknowledged. Returns whether that begins a run: the others leave with its first one."""
        begins = number != self._next
        if begins:
            self._end_run()
            self._first = number
        self._next = number + 1
        return begins

    def give_back(self, number: int) -> None:
        """A message goes back to the queue."""
        self._end_run()
        self._sizes.pop(number, None)

    def take(self) -> list[Range]:
        """Return the acknowledgements for a step to carry. Sent again, they are the same ranges."""
        acks, self._ranges = self.acks, []
        return acks

    def take_back(self, acks: list[Range]) -> None:
        """The step was refused: its acknowledgements go with another one."""
        self._ranges = acks + self.acks

    def clear(self) -> None:
        """Nothing of it is this client's any more."""
        self._next = 0
        self._ranges.clear()
        self._sizes.clear()

    def _end_run(self) -> None:
        if self._next:
            sizes = self._sizes
            size = sum([sizes.pop(number, 0) for number in range(self._first, self._next)])
            self._ranges.append((self._first, self._next - 1, size))
            self._next = 0
