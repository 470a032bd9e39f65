"""What one look at a queue saw: the answer of the step `examine`, read. Nothing is judged here."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from apressure.exceptions import ROLES, Role
from apressure.queue.keys import Keys


class Look(NamedTuple):
    """What is at a key: its type, its size, and of a string the beginning."""

    kind: str
    size: int
    value: bytes


class Lease(NamedTuple):
    """Who has a role under a lease, and until when; milliseconds of the server's clock."""

    uid: bytes
    since: int
    deadline: int


class Facts:
    """One look at a queue.

    Args:
        name: The queue's name.
        keys: Its keys.
        answer: What the step `examine` answers.
    """

    def __init__(self, name: str, keys: Keys, answer: list[Any]) -> None:
        now, marks, seen, producer, consumer, collision = answer
        self.name = name
        self.keys = keys
        self.now: int = now
        self.marks: list[bytes] = marks
        self.at = {
            key: Look(look[0].decode(), look[1], look[2])
            for key, look in zip((*keys.specified, *keys.ours), seen, strict=True)
        }
        self._leases = {
            role: Lease(uid, int(since or 0), int(deadline)) if deadline else None
            for role, (uid, since, deadline) in zip(ROLES, (producer, consumer), strict=True)
        }
        self.collision = keys.collisions()[collision - 1] if collision else None

    @property
    def exists(self) -> bool:
        """The queue exists (specification: Exists)."""
        return self.there(self.keys.bound)

    @property
    def anything(self) -> bool:
        """There is a key that belongs to the queue."""
        return any(look.kind != "none" for look in self.at.values())

    def there(self, key: bytes) -> bool:
        """The key exists."""
        return self.at[key].kind != "none"

    def integer(self, key: bytes) -> int | None:
        """The number at a key, 0 where there is none, None for what is no number that a queue can use."""
        look = self.at[key]
        if look.kind == "none":
            return 0
        usable = look.kind == "string" and look.size <= 18 and re.fullmatch(rb"0|-?[1-9][0-9]*", look.value)
        return int(look.value) if usable else None

    def lease(self, role: Role) -> Lease | None:
        """The lease on a role."""
        return self._leases[role]

    @property
    def in_flight(self) -> int:
        """How many messages are in flight."""
        return self.at[self.keys.inflight].size + self.at[self.keys.apart].size

    def hidden(self, role: Role) -> bool:
        """The role's token is nowhere to be seen: it is with a client that works step by step, or lost."""
        keys = self.keys
        return not any(map(self.there, (keys.free(role), keys.claim(role), keys.lease(role))))

    def holder(self, role: Role) -> str | None:
        """The name that the server shows for a role."""
        return text_of(self.at[self.keys.holder(role)].value) if self.there(self.keys.holder(role)) else None

    def unmoved(self, earlier: Facts | None, role: Role | None = None) -> bool:
        """Nothing has moved since an earlier look, in a role or at all."""
        index = 0 if role is None else 1 + ROLES.index(role)
        return earlier is not None and earlier.marks[index] == self.marks[index]


def text_of(value: bytes) -> str:
    """Return a name as text from which the very bytes can be made again."""
    return value.decode(errors="surrogateescape")


def shown(value: bytes) -> str:
    """Return the beginning of a value as a person reads it."""
    return repr(value[:100].decode(errors="backslashreplace")) + (" …" if len(value) > 100 else "")
