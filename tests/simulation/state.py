"""What must be true of the queues on a server after each command, whatever clients do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from apressure.events.engine.keys import EventKeys
from apressure.exceptions import ROLES
from apressure.pressure.engine.keys import Keys
from tests.simulation.keyed import Keyed
from tests.simulation.limits import MEMBER, Limited

SHARED: Final = b"shared:1"
"""The token of a lease that has members."""
LATER: Final = re.compile(rb"[0-9a-f]+:\d+:\d+:(\d+):")
"""How the entries of delayed messages begin: it says how often each has been delivered."""


class State:
    """Looks at queues, and remembers the first thing that is wrong.

    Args:
        database: Of fakeredis.
        clock: The server's.

    Attributes:
        wrong: What is wrong; empty if nothing is.
        commands: How many there have been.
    """

    def __init__(self, database: Any, clock: Callable[[], float]) -> None:
        self.wrong = ""
        self.commands = 0
        self._database = database
        self._clock = clock
        self._watched: list[_Watched | _Timetable | _Events | Limited | Keyed] = []

    def watch(self, *names: str, by_steps: bool = False, scheduled: bool = False) -> None:
        """Look at these queues.

        Args:
            names: Their names.
            by_steps: Some of their clients work step by step, so less is certain in between.
            scheduled: Only their schedules put messages.
        """
        for keys in (Keys("__pressure__", name) for name in names):
            self._watched.append(_Watched(self._database, self._clock, keys, by_steps))
            if scheduled:
                self._watched.append(_Timetable(self._database, self._clock, keys))

    def watch_events(self, name: str) -> None:
        """Look at a queue of events."""
        self._watched.append(_Events(self._database, self._clock, EventKeys(name)))

    def watch_limits(self, name: str, held_to_the_end: bool) -> None:
        """Look at the limits of a queue, each message of which is another one.

        Args:
            name: Its name.
            held_to_the_end: Nobody ends a hold before its time.
        """
        self._watched.append(Limited(self._database, self._clock, Keys("__pressure__", name), held_to_the_end))

    def watch_keys(self, name: str, pointed: bool, in_order: bool) -> Keyed:
        """Look at a queue of events with keys; the arguments are those of `Keyed`."""
        keyed = Keyed(self._database, name, pointed, in_order)
        self._watched.append(keyed)
        return keyed

    def taken_over(self) -> None:
        """Another server has taken over, which may not know of the latest messages."""
        for watched in self._watched:
            watched.forget()

    def look(self) -> None:
        """A command has been executed."""
        self.commands += 1
        if not self.wrong:
            self.wrong = next(filter(None, (watched.complaint() for watched in self._watched)), "")


class _Watched:
    """One queue.

    Attributes:
        later: The entries of delayed messages, and when each is due, in milliseconds.
    """

    def __init__(self, database: Any, clock: Callable[[], float], keys: Keys, by_steps: bool) -> None:
        self._database = database
        self._clock = clock
        self._keys = keys
        self._by_steps = by_steps
        self.later: dict[bytes, float] = {}
        self._accepted = 0
        self._closed = False
        self._messages: list[bytes] = []
        self._tokens = [
            (role, keys.free(role), keys.claim(role), keys.lease(role), keys.messages_count(role)) for role in ROLES
        ]

    def forget(self) -> None:
        """What was here before is gone."""
        self.later = {}

    def complaint(self) -> str:
        """Return what is wrong, if anything."""
        bound = self._value(self._keys.bound)
        if bound is None:
            return ""  # it is being deleted
        waiting = self._length(self._keys.messages)
        before, self.later = self.later, dict(getattr(self._value(self._keys.delayed), "items", dict)())
        early = [before[entry] - 1000 * self._clock() for entry in before.keys() - self.later.keys()]
        return (
            (f"{max(early):.0f} ms before its time a message is no longer delayed" if max(early, default=0) > 1 else "")
            or self._puts(int(bound), waiting)
            or self._roles()
            or (
                "" if self._by_steps else self._permits(int(bound), waiting) or self._flying(waiting) or self._members()
            )
        )

    def _puts(self, bound: int, waiting: int) -> str:
        """A put respects the bound, and the end."""
        # A delayed message that was never delivered counts as produced when it is due.
        new = len(self.later) - self._tried()
        accepted, before = self._number(self._keys.messages_count("producer")) + new, self._accepted
        closed, closed_before = self._keys.closed in self._database, self._closed
        messages, there = self._value(self._keys.messages) or [], self._messages
        self._accepted, self._closed, self._messages = accepted, closed, list(messages)
        if accepted > before and closed and closed_before:
            return "a message was put into a closed queue"
        # What is given back comes to the other end, and may exceed the bound.
        put = messages[1:] == there if self._by_steps else accepted > before
        if put and 0 < bound < waiting + len(self.later):
            return f"{waiting} messages wait after a put, {len(self.later)} are delayed, the bound is {bound}"
        return ""

    def _permits(self, bound: int, waiting: int) -> str:
        permits = self._length(self._keys.not_full)
        if permits != (bound == 0 or waiting < bound):
            return f"{permits} permits to put, {waiting} messages wait, the bound is {bound}"
        return ""

    def _roles(self) -> str:
        for role, free, claim, lease, _ in self._tokens:
            tokens = self._length(free) + self._length(claim) + (lease in self._database)
            if tokens > 1 or (tokens == 0 and not self._by_steps):
                return f"{tokens} clients may have the {role} role"
        return ""

    def _flying(self, waiting: int) -> str:
        """Every message that was put and not consumed waits, is in flight under a lease, or was and is delayed."""
        flying = self._length(self._keys.inflight) + self._length(self._keys.apart)
        if flying and self._keys.lease("consumer") not in self._database:
            return f"{flying} messages are in flight without a lease"
        produced, consumed = (self._number(count) for *_, count in self._tokens)
        if produced - consumed != waiting + flying + (tried := self._tried()):
            where = f"{waiting} wait, {flying} are in flight, {tried} wait for a retry"
            return f"{produced} messages produced, {consumed} consumed, {where}"
        return ""

    def _tried(self) -> int:
        """How many of the delayed messages have been delivered before."""
        return sum(int(LATER.match(entry)[1]) > 0 for entry in self.later)  # type: ignore[index]

    def _members(self) -> str:
        """Each message in flight belongs to one member of those that share the role."""
        lease = self._value(self._keys.lease("consumer"))
        if lease is None or lease.get(b"token") != SHARED:
            return ""
        owners: dict[int, int] = dict.fromkeys(map(int, self._value(self._keys.apart) or ()), 0)
        for field in lease:
            if field.startswith(MEMBER):
                for text in lease.get(field).split(b":")[6].split():
                    first, last = map(int, text.split(b"-"))
                    for number in owners.keys() & range(first, last + 1):
                        owners[number] += 1
        wrong = {number: count for number, count in owners.items() if count != 1}
        return f"messages in flight, and how many members have them: {wrong}" if wrong else ""

    def _value(self, key: bytes) -> Any:
        found = self._database.get(key)
        return None if found is None else found.value

    def _length(self, key: bytes) -> int:
        found = self._database.get(key)
        return 0 if found is None else len(found.value)

    def _number(self, key: bytes) -> int:
        return int(self._value(key) or 0)


class _Timetable:
    """The schedules of a queue that has no other messages."""

    def __init__(self, database: Any, clock: Callable[[], float], keys: Keys) -> None:
        self._database = database
        self._clock = clock
        self._keys = keys
        self._records: dict[bytes, dict[str, Any]] = {}
        self._now = 0.0
        """The latest that the clock has shown: who has looked before it was set back is not early."""

    def forget(self) -> None:
        """What was here before is gone."""
        self._records = {}

    def complaint(self) -> str:
        """Return what is wrong: each occasion that is counted is a message that was put, and none is early."""
        self._now = max(self._now, 1000 * self._clock())
        found = self._database.get(self._keys.schedules)
        if found is None:
            return ""  # none yet, or the queue was deleted
        before, self._records = self._records, {name: json.loads(text) for name, text in found.value.items()}
        produced = self._database.get(self._keys.messages_count("producer"))
        put, counted = int(produced.value if produced else 0), sum(one["count"] for one in self._records.values())
        if put != counted:
            return f"{put} messages were put, and the schedules count {counted}"
        return next(filter(None, (self._step(before.get(name), one) for name, one in self._records.items())), "")

    def _step(self, before: dict[str, Any] | None, after: dict[str, Any]) -> str:
        """Return what is wrong with a change of a record."""
        if before is None or before["next"] == after["next"] or before["paused"] or after["paused"]:
            return ""
        if after["count"] == before["count"] + 1 and before["next"] > self._now + 1:
            return f"an occasion of {before['next']} was put at {self._now:.0f}"
        if before["missed"] == after["missed"] == "all" and before["when"] == after["when"]:
            step = round(1000 * after["when"])
            if after["next"] - before["next"] != step or after["count"] != before["count"] + 1:
                return f"of all occasions, one was not put: {before} became {after}"
        return ""


class _Events:
    """A queue of events, none of which is taken without a lease."""

    def __init__(self, database: Any, clock: Callable[[], float], keys: EventKeys) -> None:
        self._database = database
        self._clock = clock
        self._keys = keys
        self._of_ours = {key.rpartition(b":")[2]: key for key in keys.ours}
        self.forget()

    def forget(self) -> None:
        """What was here before is gone."""
        self._there: set[bytes] = set()
        self._claimed: set[bytes] = set()
        self._expires: dict[bytes, int] = {}
        self._letters = 0

    def complaint(self) -> str:
        """Return what is wrong, if anything."""
        if self._database.get(self._keys.bound) is None:
            return ""  # it was not created yet, or was deleted
        waiting, claimed = (list(self._value(key, ())) for key in (self._keys.unclaimed, self._keys.claimed))
        items, later = set(self._value(self._keys.items, ())), set(self._value(self._of_ours[b"later"], ()))
        delayed = set(dict(getattr(self._value(self._keys.delayed, None), "items", dict)()))
        expires = self._value(self._of_ours[b"expires"], {})
        now, letters = int(1000 * self._clock() + 0.001), len(self._value(self._of_ours[b"dead"], ()))
        before, there = (self._there, self._claimed, self._expires, self._letters), items | later
        self._there, self._claimed, self._letters = there, set(claimed), letters
        self._expires = {id_: int(text.partition(b":")[0]) for id_, text in expires.items()}
        if sorted(items) != sorted([*waiting, *claimed]) or later != delayed or items & later:
            return f"events {sorted(items)}, {waiting} wait, {claimed} are claimed, {sorted(delayed)} are delayed"
        gone = before[0] - there - before[1]
        late = [id_ for id_ in self._claimed - before[1] if self._expires.get(id_, now + 1) <= now]
        early = [id_ for id_ in gone if before[2].get(id_, 0) > now]
        return (
            (f"{late} were handed out after they had expired" if late else "")
            or (f"{early} expired before their time" if early else "")
            or (f"{sorted(gone)} are gone" if letters < before[3] + len(gone) else "")
            or (f"{self._expires.keys() - there} are gone, and still expire" if self._expires.keys() - there else "")
        )

    def _value(self, key: bytes, otherwise: Any) -> Any:
        found = self._database.get(key)
        return otherwise if found is None else found.value
