"""What must be true of the limits of a queue after each command, whatever clients and operators do."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from apressure.pressure.engine.keys import Keys

MEMBER: Final = b"member:"
"""How the fields of a lease begin that say what a member has."""

Delivery = tuple[bytes, int]
"""The token of a lease, and a number under it: no other delivery has both."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a look has found.

    Attributes:
        waiting: The messages that wait, or are delayed.
        flying: The messages in flight.
        control: What was said of the queue.
        members: How many deliveries each member has.
        watch: Who watches the queue, and until when, in milliseconds.
    """

    waiting: frozenset[bytes]
    flying: Mapping[Delivery, bytes]
    control: Mapping[bytes, bytes]
    members: Mapping[bytes, int]
    watch: tuple[bytes, int]

    def said(self, name: bytes) -> int:
        """A number that was said of the queue; 0 for none."""
        return int(self.control.get(name, 0))


class Limited:
    """Looks at a queue with limits, each message of which is another one.

    The rate is counted by the server's clock. Where somebody sets that or the rate, or another server takes over, it is
    counted anew.

    Args:
        database: Of fakeredis.
        clock: The server's.
        keys: Those of the queue.
        held_to_the_end: Nobody ends a hold before its time.
    """

    def __init__(self, database: Any, clock: Callable[[], float], keys: Keys, held_to_the_end: bool) -> None:
        self._database = database
        self._clock = clock
        self._keys = keys
        self._held_to_the_end = held_to_the_end
        self._ahead = 0.0
        self.forget()

    def forget(self) -> None:
        """What was here before is gone."""
        self._seen: Seen | None = None
        self._handed: deque[tuple[float, int]] = deque()
        """When something was handed out, in milliseconds, and how many, while the rate was what it is."""
        self._held = self._longest = 0.0
        """Until when the queue is held, and for how long that was said, in milliseconds."""

    def complaint(self) -> str:
        """Return what is wrong, if anything."""
        if self._database.get(self._keys.bound) is None:
            self.forget()
            return ""  # it is being deleted
        now, ahead = 1000 * self._clock(), self._clock() - time.time()
        if abs(ahead - self._ahead) > 1e-6:
            self._ahead = ahead
            self._handed.clear()
        before, after = self._seen, self._look()
        self._seen = after
        if before is None:
            self._held, self._longest = after.said(b"held"), after.said(b"held_for")
            return ""
        fresh = after.flying.keys() - before.flying.keys()
        got = before.waiting - after.waiting - set(after.flying.values())
        return (
            self._hold(before, after, now, len(fresh) + len(got))
            or self._rate(before, after, now, len(fresh) + len(got))
            or self._concurrency(before, after, len(fresh))
            or self._shares(before, after, now)
        )

    def _hold(self, before: Seen, after: Seen, now: float, handed: int) -> str:
        """Nothing is handed out, and a hold lasts as long as it was said. (A clock that was set back adds nothing.)"""
        self._held = min(self._held, now + self._longest)
        left = self._held - now
        if left > 1 and handed:
            return f"{handed} were handed out while the queue is held for another {left:.0f} ms"
        if b"held" not in after.control:
            if left > 1 and self._held_to_the_end:
                return f"a hold ended {left:.0f} ms before its time"
            self._held = 0.0
        elif after.said(b"held") != before.said(b"held"):
            self._held, self._longest = max(self._held, after.said(b"held")), after.said(b"held_for")
        return ""

    def _rate(self, before: Seen, after: Seen, now: float, handed: int) -> str:
        """No window has more than the rate allows."""
        count, per, burst = rate = before.said(b"count"), before.said(b"per"), before.said(b"burst")
        most, wrong = count + max(0, burst - 1), ""
        if count:
            self._handed.append((now, handed))
            while self._handed[0][0] <= now - per + 0.01:
                self._handed.popleft()
            if (total := sum(number for _, number in self._handed)) > most:
                wrong = f"{total} were handed out in {per} ms, where {most} may be"
        if rate != (after.said(b"count"), after.said(b"per"), after.said(b"burst")):
            self._handed.clear()
        return wrong

    def _concurrency(self, before: Seen, after: Seen, fresh: int) -> str:
        """Nothing is delivered beyond the limit. (Where it was lowered, more may be in flight.)"""
        most = before.said(b"concurrency")
        if fresh and 0 < most < len(after.flying):
            return f"{fresh} were delivered: {len(after.flying)} are in flight, and the limit is {most}"
        return ""

    def _shares(self, before: Seen, after: Seen, now: float) -> str:
        """While a client waits that watches the queue, no member takes more than its share of what may be in flight."""
        most = before.said(b"concurrency")
        if not (most and before.watch[0]) or before.watch[0] != after.watch[0] or before.watch[1] <= now:
            return ""
        share = math.ceil(most / max(1, len(after.members)))
        for token, has in after.members.items():
            if has > max(share, before.members.get(token, 0)):
                return f"a member has {has}, while another one waits: its share is {share}"
        return ""

    def _look(self) -> Seen:
        lease, watch = self._hash(self._keys.lease("consumer")), self._hash(self._keys.line()[1])
        token = lease.get(b"token", b"")
        apart, queue = self._hash(self._keys.apart), self._list(self._keys.inflight)
        flying = {(token, int(number)): entry.partition(b":")[2] for number, entry in apart.items()}
        flying.update({(token, int(lease.get(b"next", 0)) - 1 - back): one for back, one in enumerate(queue)})
        later = [entry.split(b":", 4)[4] for entry in self._hash(self._keys.delayed)]
        return Seen(
            frozenset([*self._list(self._keys.messages), *later]),
            flying,
            self._hash(self._keys.control),
            {field: _size(record) for field, record in lease.items() if field.startswith(MEMBER)},
            (watch.get(b"id", b""), int(watch.get(b"until", 0))),
        )

    def _list(self, key: bytes) -> list[bytes]:
        found = self._database.get(key)
        return [] if found is None else list(found.value)

    def _hash(self, key: bytes) -> dict[bytes, Any]:
        found = self._database.get(key)
        return {} if found is None else dict(found.value.items())


def _size(record: bytes) -> int:
    """How many deliveries a member has, from its record."""
    ranges = (text.split(b"-") for text in record.split(b":")[6].split())
    return sum(int(last) - int(first) + 1 for first, last in ranges)
