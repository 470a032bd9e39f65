"""Why deliveries under a lease failed, until the step leaves that gives them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from apressure import dead_letters
from apressure.connection.wire.command import Argument
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.leases.acknowledgements import Range


class Failures:
    """The errors of one lease's deliveries, and which deliveries may have an error on the server.

    Args:
        dead: Where messages go that were delivered too often; None to keep nothing.
    """

    def __init__(self, dead: DeadLetters | None) -> None:
        self._dead = dead
        self._errors: dict[int, bytes] = {}
        self._redelivered: set[int] = set()

    def arrived(self, numbers: range, attempts: Sequence[int]) -> None:
        """Deliveries have come, with the number of the attempt of each."""
        if self._dead is not None:
            self._redelivered.update(number for number, attempt in zip(numbers, attempts, strict=False) if attempt > 1)

    def note(self, number: int, error: BaseException | str) -> None:
        """Keep the error of a delivery that will go back."""
        text = dead_letters.encode(error)
        if self._dead is not None and self._dead.keep_errors:
            self._errors[number] = text

    @property
    def possible(self) -> bool:
        """Whether any message in flight may have an error on the server."""
        return bool(self._redelivered)

    def known(self, ranges: Iterable[Range]) -> bool:
        """Whether any of these messages may have an error on the server."""
        redelivered = self._redelivered
        return bool(redelivered) and any(first <= number <= last for first, last, _ in ranges for number in redelivered)

    def take(
        self, acks: Iterable[Range], nacks: Sequence[int], leave: bool = False
    ) -> tuple[Sequence[Argument], DeadLetters | None]:
        """Return `nacks` and `dead` as the step takes them that settles these deliveries.

        With `leave`, it settles all others, too.
        """
        if not (self._errors or self._redelivered):
            return nacks, None
        acks = list(acks)
        reasons = self.known(acks)
        for numbers in (self._errors, self._redelivered):
            for number in [n for n in numbers for first, last, _ in acks if first <= n <= last]:
                self._forget(number)
        arguments: list[Argument] = []
        for number in dict.fromkeys((*nacks, *sorted(self._errors))) if leave else nacks:
            error = self._errors.get(number)
            arguments.append(number if error is None else b"%d:%b" % (number, error))
            reasons |= error is not None
            self._forget(number)
        return arguments, self._dead if reasons else None

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._errors.clear()
        self._redelivered.clear()

    def settled(self, numbers: Iterable[int]) -> None:
        """Another step than a lease's own has acknowledged these."""
        if self._errors or self._redelivered:
            for number in numbers:
                self._forget(number)

    def _forget(self, number: int) -> None:
        self._errors.pop(number, None)
        self._redelivered.discard(number)
