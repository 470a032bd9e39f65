"""The keys of a queue: the specification's twelve, and ours. Only this module spells a key.

The namespace `PREFIX:` belongs to the specification, where `jobs:processing` is a legal name of another queue. Our keys
begin with `apressure:` and end with a word without a colon, so that no two queues share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from apressure.connection.keys import KeysBeside, Ours
from apressure.connection.settings import MAX_NAME

_SPECIFIED: Final = {
    "": "list", ":bound": "string",
    ":producer": "string", ":consumer": "string",
    ":producer_free": "list", ":consumer_free": "list",
    ":stats:produced_messages": "string", ":stats:produced_bytes": "string",
    ":stats:consumed_messages": "string", ":stats:consumed_bytes": "string",
    ":not_full": "list", ":closed": "list",
}  # fmt: skip
_OURS: Final = {
    "producer_lease": "hash", "consumer_lease": "hash",
    "producer_claim": "list", "consumer_claim": "list",
    "producer_claim_until": "string", "consumer_claim_until": "string",
    "inflight": "list", "apart": "hash", "redelivered": "list",
    "control": "hash",
    "delayed": "zset", "popped": "string", "sooner": "list", "room": "list",
}  # fmt: skip
_COUNTERS: Final = tuple(suffix.replace("stats:", "stats_") for suffix in _SPECIFIED if suffix.startswith(":stats:"))


class Keys(KeysBeside):
    """The keys of one queue.

    Args:
        prefix: The client's prefix.
        name: The queue's name.

    Attributes:
        specified: The twelve keys of the specification, in the order of its list.
        messages: The list of messages, oldest at the right end.
        bound: The string that makes a queue exist.
        statistics: The four statistics.
        not_full: The list that holds a token while there is room.
        closed: The list that is not empty when the queue is closed.
        ours: The keys of ours: leases, claims and what is in flight.
        control: Ours: the hash that says whether the queue is paused, since when, and by which client; and its limits.
        delayed: Ours: the sorted set of the messages that wait for their time, by that time.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty or too long.
    """

    inflight = Ours()
    """The list of the latest messages that were received and are not acknowledged yet."""
    apart = Ours()
    """The hash of those among them that later ones have overtaken, or that had been delivered before."""
    redelivered = Ours()
    """The list that says how often messages that came back have been delivered."""
    sooner = Ours()
    """The list that wakes clients which wait for messages, when one is due earlier. It expires."""
    room = Ours()
    """The list that wakes clients which wait for a place that a delayed message takes. It expires."""
    resumed = Ours()
    """The list that consumers wait for while the queue is paused. It expires."""
    reasons = Ours()
    """The hash beside a dead-letter queue that says why messages failed. It expires."""

    def __init__(self, prefix: str, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a queue's name must be a string, not {type(name).__name__}")
        try:
            base = f"{prefix}:{name}".encode(errors="surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"a queue's name and prefix must be text that UTF-8 can encode: {error}") from None
        if not name:
            raise ValueError("a queue's name must not be empty")
        if len(base) > MAX_NAME:
            raise ValueError(f"a queue's name must be shorter than {MAX_NAME} bytes with its prefix")
        self._base = base
        self.specified = tuple(base + suffix.encode() for suffix in _SPECIFIED)
        self.messages, self.bound = self.specified[:2]
        self.statistics = self.specified[6:10]
        self.not_full, self.closed = self.specified[10:]
        self.ours = tuple(map(self._ours, _OURS))
        self.control, self.delayed = self.ours[9:11]

    def holder(self, role: str) -> bytes:
        """The string that names the role's holder, or its last one."""
        return self._base + f":{role}".encode()

    def free(self, role: str) -> bytes:
        """The list that holds the role's token while the role is free."""
        return self._base + f":{role}_free".encode()

    def messages_count(self, role: str) -> bytes:
        """The statistic of messages produced or consumed."""
        return self.specified[6 if role == "producer" else 8]

    def bytes_count(self, role: str) -> bytes:
        """The statistic of bytes produced or consumed."""
        return self.specified[7 if role == "producer" else 9]

    @property
    def counters(self) -> tuple[bytes, ...]:
        """Strings in which the released Go client counts, beside the specification's statistics."""
        return tuple(self._base + suffix.encode() for suffix in _COUNTERS)

    def claim(self, role: str) -> bytes:
        """Ours: the list that holds the role's token on its way to a client that waited for it."""
        return self._ours(f"{role}_claim")

    def lease(self, role: str) -> bytes:
        """Ours: the hash that says which client has the role, and until when."""
        return self._ours(f"{role}_lease")

    def claim_until(self, role: str) -> bytes:
        """Ours: the string that says when a claim counts as abandoned."""
        return self._ours(f"{role}_claim_until")

    @property
    def types(self) -> dict[bytes, str]:
        """The type of each key, but for the records of operations."""
        return dict(zip((*self.specified, *self.ours), (*_SPECIFIED.values(), *_OURS.values()), strict=True))

    def operation(self, series: str) -> bytes:
        """Ours: the record of the last step of a series; it has a time to live."""
        return self._ours(f"op:{series}")

    def replies(self, asker: str) -> bytes:
        """Ours: the list of the replies to what somebody has asked; it has a time to live."""
        return self._ours(f"reply:{asker}")

    def line(self) -> tuple[bytes, ...]:
        """Ours: the line of clients that wait for messages: its tokens, and who watches the queue. They expire."""
        return self._ours("turns"), self._ours("watch")

    def for_look(self) -> tuple[bytes, ...]:
        """The KEYS of a wait in `lua/look.lua`."""
        return (
            self.bound, self.messages, self.closed, self.not_full, *self.ours[:4], self.inflight, self.apart,
            *self.line(), self.delayed, self.control,
        )  # fmt: skip

    def for_script(self, sequence: str) -> tuple[bytes, ...]:
        """The KEYS of every script, as `lua/prelude/01_keys.lua` names them."""
        return (*self.specified, *self.ours, self.operation(sequence))

    def as_dead_letters(self) -> tuple[bytes, ...]:
        """The KEYS of this queue in a script that moves dead letters."""
        return (*self.specified, *self.ours, self.reasons)

    def collisions(self) -> tuple[bytes, ...]:
        """The `:bound` keys of the queues that this one cannot exist beside.

        A queue `jobs:closed` would keep its messages in a key of the queue `jobs`, and the other way round.
        """
        inner = [key + b":bound" for key in self.specified[1:]]
        outer = [
            self._base.removesuffix(suffix.encode()) + b":bound"
            for suffix in _SPECIFIED
            if suffix and self._base.endswith(suffix.encode())
        ]
        return (*inner, *outer)

    def overlaps(self, other: Keys) -> bool:
        """Whether the two queues cannot exist beside each other, since they share a key."""
        return not set(self.specified).isdisjoint(other.specified)

    def _ours(self, word: str) -> bytes:
        return b"apressure:" + self._base + b":" + word.encode()


def patterns(prefix: str) -> tuple[bytes, bytes]:
    """Return the patterns of the keys of all queues under a prefix, for SCAN: the specification's, and ours."""
    head = prefix.encode(errors="surrogateescape")
    escaped = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in head)
    return escaped + b":*", b"apressure:" + escaped + b":*"


def is_counter(key: bytes) -> bool:
    """Whether a string with that key is a counter of the released Go client. (A list would be a queue's messages.)"""
    return key.endswith(tuple(suffix.encode() for suffix in _COUNTERS))


def names_among(prefix: str, found: Iterable[bytes]) -> list[str]:
    """Return the names of the queues that have, or had, a key among those, sorted.

    A key of a queue that exists names no other queue. Of the others, the longest ending counts.
    """
    head = f"{prefix}:".encode(errors="surrogateescape")
    rest = set(found)
    names = {key[len(head) : -len(b":bound")] for key in rest if key.startswith(head) and key.endswith(b":bound")}
    names.discard(b"")
    for name in names:
        rest.difference_update(head + name + suffix.encode() for suffix in _SPECIFIED)
    for key in rest:
        if key.startswith(head):
            endings = [suffix.encode() for suffix in _SPECIFIED if key.endswith(suffix.encode())]
            names.add(key[len(head) :].removesuffix(max(endings, key=len)))
        elif key.startswith(b"apressure:" + head):
            name, _, word = key[len(b"apressure:" + head) :].rpartition(b":")
            if word.decode(errors="replace") in _OURS and not name.endswith(b":op"):
                names.add(name)
    names.discard(b"")
    return sorted(name.decode(errors="surrogateescape") for name in names if len(head) + len(name) <= MAX_NAME)
