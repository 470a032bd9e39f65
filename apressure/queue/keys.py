"""The keys of a queue: the specification's twelve, and ours. Nothing else in the package spells a key.

The namespace `PREFIX:` belongs to the specification, where `jobs:processing` is a legal name for another queue. Ours
begin with `apressure:` and end with a word without a colon, so that no two queues share one.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_NAME = 4096
"""The longest name in bytes."""

_SPECIFIED = (
    "",
    ":bound",
    ":producer",
    ":consumer",
    ":producer_free",
    ":consumer_free",
    ":stats:produced_messages",
    ":stats:produced_bytes",
    ":stats:consumed_messages",
    ":stats:consumed_bytes",
    ":not_full",
    ":closed",
)
_OURS = (
    "producer_lease",
    "consumer_lease",
    "producer_claim",
    "consumer_claim",
    "producer_claim_until",
    "consumer_claim_until",
    "inflight",
    "apart",
    "redelivered",
)
_TYPES = (
    "list", "string", "string", "string", "list", "list", "string", "string", "string", "string", "list", "list",
    "hash", "hash", "list", "list", "string", "string", "list", "hash", "list",
)  # fmt: skip


class Keys:
    """The keys of one queue.

    Args:
        prefix: The client's prefix.
        name: The queue's name.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty or too long.
    """

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
        """The twelve keys of the specification, in the order of its list."""
        self.ours = tuple(b"apressure:" + base + b":" + word.encode() for word in _OURS)
        """Ours: leases, claims and what is in flight."""

    @property
    def messages(self) -> bytes:
        """The list of messages, oldest at the right end."""
        return self.specified[0]

    @property
    def bound(self) -> bytes:
        """The string that makes a queue exist."""
        return self.specified[1]

    @property
    def not_full(self) -> bytes:
        """The list that holds a token while there is room."""
        return self.specified[10]

    @property
    def closed(self) -> bytes:
        """The list that is not empty when the queue is closed."""
        return self.specified[11]

    def holder(self, role: str) -> bytes:
        """The string that shows who has, or had, the role."""
        return self.specified[2 if role == "producer" else 3]

    def free(self, role: str) -> bytes:
        """The list that holds the role's token while nobody has it."""
        return self.specified[4 if role == "producer" else 5]

    def messages_count(self, role: str) -> bytes:
        """The statistic of messages produced or consumed."""
        return self.specified[6 if role == "producer" else 8]

    def bytes_count(self, role: str) -> bytes:
        """The statistic of bytes produced or consumed."""
        return self.specified[7 if role == "producer" else 9]

    @property
    def statistics(self) -> tuple[bytes, ...]:
        """The four of them."""
        return self.specified[6:10]

    def claim(self, role: str) -> bytes:
        """Ours: the list that holds the role's token on its way to a client that waited for it."""
        return self.ours[2 if role == "producer" else 3]

    def lease(self, role: str) -> bytes:
        """Ours: the hash that says who has the role, and until when."""
        return self.ours[0 if role == "producer" else 1]

    def claim_until(self, role: str) -> bytes:
        """Ours: the string that says when a claim counts as abandoned."""
        return self.ours[4 if role == "producer" else 5]

    @property
    def inflight(self) -> bytes:
        """Ours: the list of messages that were received and are not acknowledged yet, the latest ones."""
        return self.ours[6]

    @property
    def apart(self) -> bytes:
        """Ours: the hash of those among them that later ones have overtaken, or that had been delivered before."""
        return self.ours[7]

    @property
    def types(self) -> dict[bytes, str]:
        """The type that each key has where it exists, but for the records of operations."""
        return dict(zip((*self.specified, *self.ours), _TYPES, strict=True))

    def operation(self, sequence: str) -> bytes:
        """Ours: the record of the last step of one sequence of operations; it has a time to live."""
        return b"apressure:" + self._base + b":op:" + sequence.encode()

    def for_script(self, sequence: str) -> tuple[bytes, ...]:
        """The KEYS of every script, as `lua/prelude.lua` names them."""
        return (*self.specified, *self.ours, self.operation(sequence))

    def as_second(self) -> tuple[bytes, ...]:
        """The KEYS of a script that moves messages to this queue or from it, behind those of its own queue."""
        return self.for_script("none")

    def collisions(self) -> tuple[bytes, ...]:
        """The `:bound` keys of the queues that this one cannot exist beside.

        A queue `jobs:closed` would keep its messages in a key of the queue `jobs`, and the other way round.
        """
        inner = [key + b":bound" for key in self.specified[1:]]
        outer = [
            self._base.removesuffix(suffix.encode()) + b":bound"
            for suffix in _SPECIFIED[1:]
            if self._base.endswith(suffix.encode())
        ]
        return (*inner, *outer)

    def overlaps(self, other: Keys) -> bool:
        """Whether the two cannot exist beside each other, since they share a key, or all of them."""
        return not set(self.specified).isdisjoint(other.specified)


def patterns(prefix: str) -> tuple[bytes, bytes]:
    """What the keys of all queues under a prefix look like, for SCAN: the specification's, and ours."""
    head = prefix.encode(errors="surrogateescape")
    escaped = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in head)
    return escaped + b":*", b"apressure:" + escaped + b":*"


def names_among(prefix: str, found: Iterable[bytes]) -> list[str]:
    """Return the names of the queues that have, or had, a key among those, sorted.

    What belongs to a queue that exists names no other; of what is left the longest ending of a key counts.
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
