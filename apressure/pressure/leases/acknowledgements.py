"""What a client has in hand under a lease, and what it has acknowledged of that.

Numbers come in order, and most are acknowledged in order: so acknowledgements travel as ranges, and one more costs no
more than to let a number grow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

Range = tuple[int, int, int]
"""Acknowledged messages: the first number, the last one, and how many bytes they have together."""


def firsts(ranges: Iterable[Range]) -> set[int]:
    """What tells ranges from each other, also when one grows: their first numbers."""
    return {first for first, _, _ in ranges}


class AcknowledgementTracker:
    """The messages in flight under one lease, and the acknowledgements that have gathered since the last step left.

    Attributes:
        on_first: Called with the first acknowledgement of a run: the others leave with it.
    """

    on_first: Callable[[], None]

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
    def outstanding(self) -> int:
        """How many messages are in flight, with those whose acknowledgements have not left. Changes nothing."""
        return len(self._sizes)

    @property
    def acked(self) -> bool:
        """There are acknowledgements to be sent."""
        return bool(self._next or self._ranges)

    @property
    def progress(self) -> Hashable:
        """Another value after each acknowledgement, also before it leaves. Changes nothing: another thread asks."""
        return len(self._sizes), self._next, bool(self._ranges)

    @property
    def acks(self) -> list[Range]:
        """The acknowledgements that are to be sent."""
        self._end_run()
        return self._ranges

    def ranges(self) -> list[tuple[int, int]]:
        """The numbers of the messages in flight without those that are to be acknowledged, as ranges: first, last."""
        self._end_run()
        ranges: list[tuple[int, int]] = []
        first = last = -1
        for number in self._sizes:
            if number == last + 1 and ranges:
                last = number
                ranges[-1] = (first, last)
            else:
                first = last = number
                ranges.append((first, last))
        return ranges

    def receive(self, numbers: range, sizes: Iterable[int]) -> None:
        """Messages have come."""
        self._sizes.update(zip(numbers, sizes, strict=True))

    def ack(self, number: int) -> None:
        """Acknowledge a message with the next step that leaves, at the latest in the next turn of the event loop."""
        if number == self._next:
            self._next = number + 1
            return
        self._end_run()
        self._first, self._next = number, number + 1
        self.on_first()

    def run(self, first: int, last: int) -> Range:
        """Return the range of these messages, which another step acknowledges; `settled` says when it has."""
        return first, last, sum([self._sizes.get(number, 0) for number in range(first, last + 1)])

    def settled(self, numbers: Iterable[int]) -> None:
        """Another step than a lease's own has acknowledged these messages."""
        for number in numbers:
            self._sizes.pop(number, None)

    def give_back(self, number: int) -> None:
        """A message goes back to the queue."""
        self._end_run()
        self._sizes.pop(number, None)

    def take(self) -> list[Range]:
        """Return the acknowledgements for a step to carry. Sent again, they are the same ranges."""
        acks, self._ranges = self.acks, []
        return acks

    def take_back(self, acks: Iterable[Range]) -> None:
        """The step was refused: its acknowledgements go with another one."""
        self._ranges = [*acks, *self.acks]

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
