"""What only several looks at a queue can tell: how old its next message is, and when it will be empty."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from typing import Any, Final

_WINDOW: Final = 60.0
"""Seconds: a prediction uses the looks of this time."""

_MOST: Final = 1000
"""As many looks are kept until the messages that were put meanwhile are gone. Then every second one is forgotten."""


class Trend:
    """Predicts when a queue will be empty, from its lengths in the last minute."""

    def __init__(self) -> None:
        self._lengths: deque[tuple[float, int]] = deque()

    def drain(self, now: float, length: int) -> float | None:
        """Return in how many seconds a queue of this length will be empty; infinity if it does not shrink.

        None before the second look.
        """
        lengths = self._lengths
        lengths.append((now, length))
        while now - lengths[0][0] > _WINDOW and len(lengths) > 2:
            lengths.popleft()
        if length == 0:
            return 0.0
        then, before = lengths[0]
        if now <= then:
            return None
        rate = (before - length) / (now - then)
        return length / rate if rate > 0 else math.inf


class Arrivals:
    """Tells the age of a queue's next message from how many had been put at earlier looks.

    If `produced` messages were put and `length` wait, then the next one is number `produced - length`. It was there at
    the first look that counted more than that. So its age is right to one interval, and never too high. Messages that
    were put before the first look count from that.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def age(self, now: float, produced: int, length: int) -> float:
        """Return the age of the next message in seconds; 0 if none waits."""
        looks = self._looks
        if looks and produced < looks[-1][1]:  # another queue of this name
            looks.clear()
        if not looks or produced > looks[-1][1]:
            looks.append((now, produced))
        while len(looks) > 1 and looks[0][1] <= produced - length:
            looks.popleft()
        if len(looks) > _MOST:
            self._looks = looks = deque(list(looks)[::2] if len(looks) % 2 else [*list(looks)[::2], looks[-1]])
        return max(0.0, now - looks[0][0]) if length else 0.0


class Head:
    """Tells for how long the same message has been the next one. It keeps a hash of the message, not the message.

    Messages of the same content, one after the other, look like one.
    """

    def __init__(self) -> None:
        self._hash = b""
        self._since = 0.0

    def age(self, now: float, item: Any) -> float:
        """Return for how many seconds this has been the next message."""
        content = item if isinstance(item, bytes) else repr(item).encode(errors="backslashreplace")
        found = hashlib.blake2b(content, digest_size=16).digest()
        if found != self._hash:
            self._hash, self._since = found, now
        return now - self._since

    def gone(self) -> None:
        """No message waits."""
        self._hash = b""
