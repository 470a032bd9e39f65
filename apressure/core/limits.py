"""The limits of a queue as data: its rate, how many messages may be in flight, of which key, and whether it is held."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
class KeyLimit:
    """How many messages of the same key are handled at a time; see `set_key`.

    Attributes:
        at_most: So many; None for any number.
        pointer: Where the key is in messages of JSON that were put without one: a JSON pointer. None for nowhere.
        fair: Keys take turns. False: those go first that came first.
    """

    at_most: int | None = 1
    pointer: str | None = None
    fair: bool = True

    def __str__(self) -> str:
        """Say it in words, such as `1 of a key (/customer), in turns`."""
        most = "any number" if self.at_most is None else f"{self.at_most:,}"
        return f"{most} of a key{f' ({self.pointer})' if self.pointer else ''}{', in turns' if self.fair else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What limits how many messages a queue hands out, in all processes together.

    Attributes:
        rate: The rate; None without one.
        concurrency: How many messages may be in flight; None for any number.
        held_for: Seconds for which nothing is handed out; 0 where the queue is not held.
        key: How many of a key; None where keys do not matter.
    """

    rate: Rate | None = None
    concurrency: int | None = None
    held_for: float = 0.0
    key: KeyLimit | None = None

    def __str__(self) -> str:
        """Say it in words, such as `nothing for 3.0 s, then at most 100 in 60 s and 20 in flight`."""
        words = [f"nothing for {self.held_for:.1f} s"] if self.held_for else []
        if self.most:
            words.append(f"at most {self.most}")
        return ", then ".join(words) or "any number"

    @property
    def most(self) -> str:
        """What it hands out at most, in words, such as `100 in 60 s and 20 in flight`; empty for any number."""
        most = [] if self.rate is None else [str(self.rate)]
        if self.concurrency is not None:
            most.append(f"{self.concurrency:,} in flight")
        if self.key is not None:
            most.append(str(self.key))
        return " and ".join(most)


UNLIMITED: Final = Limits()


def read_limits(
    held: int, count: int, per: int, burst: int, concurrency: int, key: tuple[int, int, bytes] | None = None
) -> Limits:
    """Return what `told_limits` of the scripts says: times in milliseconds, and 0 where there is no limit."""
    rate = Rate(count, per / 1000, burst or None) if count and per else None
    keys = None
    if key is not None and (key[0] or key[1]):
        most, fair, pointer = key
        keys = KeyLimit(most or None, pointer.decode(errors="surrogateescape") or None, fair == 1)
    return Limits(rate, concurrency or None, held / 1000, keys)


Changes = Mapping[str, int | str | None]
"""Limits to change, by the names that the scripts give them; None removes one."""


def arguments_of(changes: Changes) -> list[bytes | str | int]:
    """Return changes of limits as the scripts read them: names and values, where an empty one removes a limit."""
    return [one for name, value in changes.items() for one in (name, "" if value is None else value)]
