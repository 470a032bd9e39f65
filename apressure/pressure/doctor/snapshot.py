"""A snapshot of a queue: what the step `examine` answered. `findings` judges it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from apressure.exceptions import ROLES, Role
from apressure.pressure.doctor.words import shown, text_of
from apressure.pressure.engine.keys import Keys


class KeyState(NamedTuple):
    """The value of a key: its type, its size, and the beginning of a string."""

    kind: str
    size: int
    value: bytes

    def __str__(self) -> str:
        return shown(self.value) if self.kind == "string" else f"a {self.kind}"


class Lease(NamedTuple):
    """Which client holds a role under a lease, and for how long.

    Attributes:
        uid: The client.
        since: Milliseconds of the server's clock; None where it is unknown.
        left: Milliseconds until it ends; None where another program wrote there.
        overlong: Its deadline is further away than its duration: the server's clock was set back.
    """

    uid: bytes
    since: int | None = None
    left: int | None = None
    overlong: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has expired."""
        return self.left is None or self.left <= 0


class Snapshot:
    """A snapshot of a queue.

    Args:
        name: The queue's name.
        keys: Its keys.
        answer: What the step `examine` answers.
    """

    def __init__(self, name: str, keys: Keys, answer: list[Any]) -> None:
        now, marks, seen, producer, consumer, collision, apart, redelivered, members, delayed = answer
        self.name = name
        self.keys = keys
        self.now: int = now
        self.marks: list[bytes] = marks
        self.at = {
            key: KeyState(kind.decode(), size, value)
            for key, (kind, size, value) in zip((*keys.specified, *keys.ours), seen, strict=True)
        }
        self._leases = {
            role: _lease(lease) if lease else None for role, lease in zip(ROLES, (producer, consumer), strict=True)
        }
        self.members = [Lease(*member) if member else Lease(b"") for member in members]
        """The clients that share the consumer role."""
        self.foreign: dict[bytes, int] = {keys.apart: apart, keys.redelivered: redelivered, keys.delayed: delayed}
        """How many entries of these keys were written by other programs."""
        self.collision = keys.collisions()[collision - 1] if collision else None
        self.bound = max(0, self.integer(keys.bound) or 0)
        """The most messages that may wait, 0 for no bound."""
        self.length = self.at[keys.messages].size
        """How many messages wait."""
        self.in_flight = self.at[keys.inflight].size + self.at[keys.apart].size
        """How many messages are in flight."""

    @property
    def exists(self) -> bool:
        """Whether the queue exists (specification: Exists)."""
        return self.there(self.keys.bound)

    @property
    def anything(self) -> bool:
        """Whether any key of the queue exists."""
        return any(state.kind != "none" for state in self.at.values())

    def there(self, key: bytes) -> bool:
        """Whether the key exists."""
        return self.at[key].kind != "none"

    def integer(self, key: bytes) -> int | None:
        """The number at a key: 0 where there is none, None where a queue cannot use the value."""
        state = self.at[key]
        if state.kind == "none":
            return 0
        usable = state.kind == "string" and state.size <= 18 and re.fullmatch(rb"0|-?[1-9][0-9]*", state.value)
        return int(state.value) if usable else None

    def lease(self, role: Role) -> Lease | None:
        """The lease on a role."""
        return self._leases[role]

    def hidden(self, role: Role) -> bool:
        """Whether the role's token is missing: a client that works step by step has it, or it is lost."""
        keys = self.keys
        return not any(map(self.there, (keys.free(role), keys.claim(role), keys.lease(role))))

    def holder(self, role: Role) -> str | None:
        """The name that the server shows for a role."""
        return text_of(self.at[self.keys.holder(role)].value) if self.there(self.keys.holder(role)) else None

    def unmoved(self, earlier: Snapshot | None, role: Role | None = None) -> bool:
        """Whether nothing has changed since an earlier snapshot, in a role or in the whole queue."""
        index = 0 if role is None else 1 + ROLES.index(role)
        return earlier is not None and earlier.marks[index] == self.marks[index]


def _lease(answer: list[Any]) -> Lease:
    if len(answer) == 1:
        return Lease(answer[0])
    uid, since, left, overlong = answer
    return Lease(uid, None if since < 0 else since, left, bool(overlong))
