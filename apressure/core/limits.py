"""The limits of a queue as data: its rate, how many messages may be in flight, and whether it is held."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """How many messages a queue hands out in which time.

    Attributes:
        count: So many messages.
        per: In so many seconds.
        burst: As given to `set_rate`; None where no window of `per` seconds has more than `count`.
    """

    count: int
    per: float
    burst: int | None = None

    def __str__(self) -> str:
        """Say it in words, such as `100 in 60 s`."""
        return f"{self.count:,} in {self.per:g} s" + (f" with bursts of {self.burst:,}" if self.burst else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What limits how many messages a queue hands out, in all processes together.

    Attributes:
        rate: The rate; None without one.
        concurrency: How many messages may be in flight; None for any number.
        held_for: Seconds for which nothing is handed out; 0 where the queue is not held.
    """

    rate: Rate | None = None
    concurrency: int | None = None
    held_for: float = 0.0

    def __str__(self) -> str:
        """Say it in words, such as `nothing for 3.0 s, then at most 100 in 60 s and 20 in flight`."""
        words = [f"nothing for {self.held_for:.1f} s"] if self.held_for else []
        most = [] if self.rate is None else [str(self.rate)]
        if self.concurrency is not None:
            most.append(f"{self.concurrency:,} in flight")
        if most:
            words.append("at most " + " and ".join(most))
        return ", then ".join(words) or "any number"


UNLIMITED: Final = Limits()


def read_limits(held: int, count: int, per: int, burst: int, concurrency: int) -> Limits:
    """Return what `told_limits` of the scripts says: times in milliseconds, and 0 where there is no limit."""
    rate = Rate(count, per / 1000, burst or None) if count and per else None
    return Limits(rate, concurrency or None, held / 1000)


def arguments_of(changes: dict[str, int | None]) -> list[bytes | str | int]:
    """Return changes of limits as the scripts read them: names and values, where an empty one removes a limit."""
    return [one for name, value in changes.items() for one in (name, "" if value is None else value)]
