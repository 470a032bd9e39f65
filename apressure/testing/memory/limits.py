"""The limits of a queue in memory: what `connection/lua/05_control.lua` does on a server."""

from __future__ import annotations

import math
from typing import Any

from apressure.core.limits import Changes, KeyLimit, Limits, read_limits

_NAMES = ("count", "per", "burst", "concurrency")


class StoredLimits:
    """What was said of how many messages a queue hands out. Times are seconds of the server's clock."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._held_until = -math.inf
        self._next = -math.inf

    def change(self, changes: Changes, now: float) -> None:
        """See `LimitSteps`."""
        before = dict(self._said)
        for name, value in changes.items():
            if name == "spent":
                self.spend(int(str(value).partition(":")[0]), now)
            elif name == "held":
                self._held_until = max(self._held_until, now + float(value) / 1000) if value else -math.inf
            elif value is None:
                self._said.pop(name, None)
            else:
                self._said[name] = value
        if "count" in self._said and self._said != before:
            _, size, interval = self._pace(now)
            self._next = min(self._next, now + size * interval)  # the rate may have been slower

    def held_for(self, now: float) -> float:
        """Return for how long nothing is handed out."""
        return max(0.0, self._held_until - now)

    def look(self, now: float) -> Limits:
        """Return what programs see."""
        count, per, burst, concurrency = (self._said.get(name, 0) for name in _NAMES)
        return read_limits(math.ceil(1000 * self.held_for(now)), count, per, burst, concurrency, self._key)

    @property
    def key(self) -> KeyLimit | None:
        """How many of a key; None where keys do not matter."""
        return read_limits(0, 0, 0, 0, 0, self._key).key

    def note_key(self) -> None:
        """A message has a key: where nothing was said, one of a key is handled at a time."""
        self._said.setdefault("key_most", 1)

    @property
    def _key(self) -> tuple[int, int, bytes] | None:
        if "key_most" not in self._said:
            return None
        return self._said["key_most"], self._said.get("key_fair", 1), self._said.get("key_pointer", "").encode()

    def allowance(self, flying: int | None, now: float) -> tuple[float, float | None]:
        """Return how many messages may be handed out now, and after how long one more may be; None for no such time.

        Args:
            flying: How many are in flight; None where that does not matter.
            now: The time.
        """
        most, after = math.inf, None
        if "count" in self._said:
            ahead, size, interval = self._pace(now)
            most = self.budget(now)
            after = max(0.001, ahead - (size - 1) * interval) if most < 1 else None
        if held := self.held_for(now):
            most, after = 0, max(after or 0.0, held)
        if flying is not None and (free := max(0, self._said.get("concurrency", math.inf) - flying)) < most:
            most, after = free, None if free == 0 else after
        return most, after

    def budget(self, now: float) -> float:
        """Return what messages may cost together until no more may be handed out."""
        if "count" not in self._said:
            return math.inf
        ahead, size, interval = self._pace(now)
        return max(0, math.floor(size - ahead / interval + 1e-6))

    def spend(self, units: int, now: float) -> None:
        """Messages that cost so much together were handed out. Below 0, they have cost less than was said."""
        if "count" in self._said and units:
            ahead, _, interval = self._pace(now)
            self._next = now + ahead + units * interval

    def _pace(self, now: float) -> tuple[float, int, float]:
        """Return by how much what was handed out is ahead of the rate, how much may come at once, and the interval."""
        count, per, burst = self._said["count"], self._said["per"] / 1000, self._said.get("burst")
        size = burst or max(1, count // 50)
        interval = per / (count if burst else count - size + 1)
        return max(0.0, self._next - now), size, interval
