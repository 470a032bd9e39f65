"""The keys of a queue of events: those that okq uses, and ours beside them. No other module spells a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from apressure import validation
from apressure.connection.keys import KeysBeside, Ours
from apressure.connection.settings import MAX_NAME

_OKQ: Final = ("", ":claimed", ":items", ":consumers")
_OURS: Final = (
    "bound", "closed", "expiry", "attempts", "dead", "turns", "watch", "room", "putters", "scan", "end", "control",
    "resumed", "errors", "delayed", "later", "expires", "expired", "keyed", "lines", "ring",
)  # fmt: skip
"""Those of `lua/prelude.lua`, in its order."""

PATTERNS: Final = ((b"queue:{*}:items", b"hash"), (b"queue:{*}:consumers", b"zset"))
"""What SCAN looks for, with the type: a queue that has events or consumers is active (specification, "Commands")."""

OURS: Final = (
    (b"apressure:queue:{*}:bound", b"string"), (b"apressure:queue:{*}:delayed", b"zset"),
    (b"apressure:queue:{*}:dead", b"list"),
)  # fmt: skip
"""The same for queues that apressure has created, which may be empty, or that have delayed or dead events only."""

_HEAD: Final = b"queue:{"
_OURS_HEAD: Final = b"apressure:" + _HEAD


class EventKeys(KeysBeside):
    """The keys of one queue. All of them have its name as their hash tag, so a cluster keeps them on one node.

    Args:
        name: The queue's name.

    Attributes:
        okq: Those that okq uses.
        ours: Those beside them.
        as_source: The KEYS of this queue in a script that moves events from it to another one: behind those of that
            queue.
        unclaimed: The list of the ids of waiting events: pushed left, popped right. The channel has the same name.
        claimed: The list of the ids of events in flight.
        items: The hash from ids to contents.
        bound: Ours: the string that exists when the queue was created.
        closed: Ours: the list that is not empty when the queue is closed.
        turns: Ours: the list with a token for the next client that waits for events.
        room: Ours: the list with a token for the next client that waits for room.
        end: Ours: the list with a token for the client that watches the queue, when it was closed or deleted.
        control: Ours: the hash that says whether the queue is paused, and its limits.
        resumed: Ours: the list with a token when a pause has ended.
        delayed: Ours: the sorted set of the ids of delayed events, by when they are due.
        gone: Ours: the list with a token when the queue was deleted; it has a time to live.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty, too long or contains `}`.
    """

    gone = Ours()

    def __init__(self, name: str) -> None:
        encoded = validation.encoded(name, "a queue's name", MAX_NAME - 1)
        if b"}" in encoded:
            raise ValueError("a queue's name must not contain '}', which ends the name in its keys")
        base = _HEAD + encoded + b"}"
        self.okq = tuple(base + ending.encode() for ending in _OKQ)
        self.unclaimed, self.claimed, self.items, _ = self.okq
        self.ours = tuple(map(self._ours, _OURS))
        self.bound, self.closed, self.turns, self.room = (self.ours[place] for place in (0, 1, 5, 7))
        self.end, self.control, self.resumed = self.ours[10:13]
        self.delayed = self.ours[14]
        self.as_source = (*self.okq, *self.ours)

    def lock(self, event_id: bytes) -> bytes:
        """The string that exists while an event is claimed."""
        return self.unclaimed + b":lock:" + event_id

    def operation(self, series: str) -> bytes:
        """Ours: the record of the last step of a series; it has a time to live."""
        return self._ours(f"op:{series}")

    def replies(self, asker: str) -> bytes:
        """Ours: the list of the replies to what somebody has asked; it has a time to live."""
        return self._ours(f"reply:{asker}")

    def _ours(self, word: str) -> bytes:
        return b"apressure:" + self.unclaimed + b":" + word.encode()

    def for_script(self, series: str) -> tuple[bytes, ...]:
        """The KEYS of every script, as `lua/prelude.lua` names them."""
        return (*self.as_source, self.operation(series))


def names_among(found: Iterable[bytes]) -> list[str]:
    """Return the names of the queues that have one of these keys, sorted by their bytes."""
    names = set()
    for key in found:
        ours = key.startswith(_OURS_HEAD)
        name, _, ending = key.removeprefix(_OURS_HEAD if ours else _HEAD).rpartition(b"}")
        endings = (b":bound", b":delayed", b":dead") if ours else (b":items", b":consumers")
        if key.startswith((_HEAD, _OURS_HEAD)) and name and b"}" not in name and ending in endings:
            names.add(name)
    return [name.decode(errors="surrogateescape") for name in sorted(names) if len(name) < MAX_NAME]
