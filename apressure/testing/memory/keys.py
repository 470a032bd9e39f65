"""Which message is next where messages have keys: what `connection/lua/06_keys.lua` does on a server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from apressure.core.limits import KeyLimit
from apressure.testing.memory.messages import Message


class StoredKeys:
    """The turns of the keys of a queue."""

    def __init__(self) -> None:
        self._turns: dict[bytes, int] = {}

    def waiting(
        self, waiting: Iterable[Message], unfinished: Iterable[Message], limit: KeyLimit
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages that may be handed out, the next one first; and those that wait for their key."""
        most = math.inf if limit.at_most is None else limit.at_most
        admitted = Counter(one.key_at(limit.pointer) for one in unfinished if one.admitted)
        ready: list[tuple[float, Message]] = []
        met: set[bytes] = set()
        parked: list[Message] = []
        for message in sorted(waiting):
            key = message.key_at(limit.pointer)
            if message.admitted:
                ready.append((-math.inf, message))
            elif not key:
                ready.append((message.number, message))
            elif admitted[key] >= most:
                parked.append(message)
            elif key not in met:
                met.add(key)
                turn = self._turns.get(key, 0) if limit.fair else 0
                ready.append((max(turn, message.number), message))
        return [message for _, message in sorted(ready)], parked

    def admit(self, message: Message, limit: KeyLimit, number: int) -> None:
        """It is this message's turn; the next one of its key is behind all that wait now."""
        message.admitted = True
        self._turns[message.key_at(limit.pointer)] = number
