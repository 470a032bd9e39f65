"""A queue as a server in memory keeps it: each step is a plain method, without I/O."""

from __future__ import annotations

import heapq
import itertools
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Final

from apressure.core.added_letters import Added
from apressure.core.browsing import Asked, Found
from apressure.core.dedup import Dedup
from apressure.core.dedup_lane import Answer
from apressure.core.due import EXPIRED, Due
from apressure.core.leases.clock import Clock
from apressure.core.limits import Changes
from apressure.core.requests import DEAD, PURGED, Asker, is_request
from apressure.core.waiting import Parked, Reason, Wait, moment
from apressure.exceptions import QueueClosedError, QueueDoesNotExistError
from apressure.testing.memory.dedup import StoredDedup
from apressure.testing.memory.keys import StoredKeys
from apressure.testing.memory.limits import StoredLimits
from apressure.testing.memory.messages import Change, Extended, Message, New, Popped, Status, Taken, Want

MOST: Final = 2000
"""The most messages in a step, as on a server."""


class StoredQueue:
    """A queue as the server has it. Each step is a method, which returns a value or a `Wait`, or raises.

    Attributes:
        name: Its name.
        changed: The moment of the latest change that might end a wait.
        workers: The registrations of those that work on it, as `core.workers.stored` writes them, by their names.
        parked: The operations that wait for such a change.
        askers: Those that may wait for replies, by their ids.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.changed = 0
        self.workers: dict[bytes, bytes] = {}
        self.parked: dict[Parked, None] = {}
        self.askers: weakref.WeakValueDictionary[str, Asker] = weakref.WeakValueDictionary()
        self._clock = clock
        self._epoch = time.time() - clock()
        self._numbers = itertools.count(1)
        self._clear()

    def _clear(self) -> None:
        self._bound: int | None = None
        self._closed = self._paused = False
        self._waiting: list[Message] = []
        self._delayed: list[tuple[float, Message]] = []
        self._claims: dict[int, tuple[Message, float]] = {}
        self._dead: dict[str, Message] = {}
        self._expired = 0
        self._limits = StoredLimits()
        self._records: dict[str, bytes] = {}
        self._dedup = StoredDedup()
        self._keys = StoredKeys()

    # The queue as a whole.

    def create(self, bound: int) -> bool:
        new = self._bound is None
        if new:
            self._bound, self._closed, self._paused = bound, False, False
            self._limits = StoredLimits()
            self._change()
        return new

    def close(self, expected: bool) -> None:
        self._check_open(expected)
        self._bound, self._closed = self._bound or 0, True
        self._change()

    def pause(self, pausing: bool, expected: bool) -> bool:
        self._check(expected or not self.look().exists)
        new, self._paused = self._paused is not pausing, pausing
        self._change()
        return new

    def limit(self, changes: Changes, expected: bool) -> None:
        self._check(expected or not self.look().exists)
        if "bound" in changes:
            self._bound = int(changes["bound"] or 0)
        else:
            self._limits.change(changes, self._clock())
        self._change()

    def delete(self) -> None:
        self._check(not self.look().exists)
        for message in self._unfinished():
            self._reply(message, PURGED)
        self._clear()
        self._change()

    def purge(self, most: int, expected: bool) -> int:
        self._check(expected)
        purged = min(most, len(self._waiting))
        for _ in range(purged):
            self._reply(heapq.heappop(self._waiting), PURGED)
        if not purged:
            purged = min(most, len(self._delayed))
            for _, message in self._delayed[:purged]:
                self._reply(message, PURGED)
            del self._delayed[:purged]
            heapq.heapify(self._delayed)
        self._change()
        return purged

    def look(self) -> Status:
        created, waiting, claimed = self._bound is not None, len(self._waiting), len(self._claims)
        delayed = len(self._delayed)
        next_due = math.ceil(1000 * max(0.0, self._delayed[0][0] - self._now())) if delayed else None
        return Status(
            self._bound or 0,
            created,
            self._closed,
            self._paused,
            waiting,
            claimed,
            delayed,
            next_due,
            self._expired,
            self._limits.look(self._clock()),
            len(self._ready()[1]),
        )

    def peek(self, newest: bool) -> bytes | None:
        if not self._waiting:
            return None
        return (max(self._waiting) if newest else self._waiting[0]).data

    def browse(self, asked: Asked) -> Found:
        messages: list[tuple[Message, float | None]]
        if asked.place == "in_flight":
            messages = sorted((message, self._epoch + until) for message, until in self._claims.values())
        elif asked.place == "delayed":
            messages = [(message, due) for due, message in sorted(self._delayed)]
        else:
            parked = {*self._ready()[1]}
            is_parked = asked.place == "parked"
            messages = [(message, None) for message in sorted(self._waiting) if (message in parked) is is_parked]
        if asked.newest:
            messages.reverse()
        chosen = messages[asked.passed : asked.passed + asked.limit]
        return Found.of([one.seen(asked.most_bytes, due) for one, due in chosen], asked, len(chosen), len(messages))

    def promote(self, most: int, ids: Sequence[str] | None, expected: bool) -> int:
        """Make delayed messages due; return how many."""
        self._check(expected)
        chosen = [one for one in sorted(self._delayed) if ids is None or one[1].id in ids][:most]
        self._delayed = sorted(one for one in self._delayed if one not in chosen)
        for _, message in chosen:
            message.number = next(self._numbers)
            heapq.heappush(self._waiting, message)
        self._change(bool(chosen))
        return len(chosen)

    def dead(self) -> list[Message]:
        return list(self._dead.values())

    def bury(self, letters: Sequence[Added], expected: bool) -> None:
        """Add dead letters."""
        self._check(expected)
        for one in letters:
            number = next(self._numbers)
            message = Message(number, f"added-{number}", one.raw, one.attempts or 0, one.error, one.attempt)
            message.dead_since = one.when / 1000
            self._dead[message.id] = message
        self._change()

    def revive(self, ids: Sequence[str], expected: bool) -> list[bool]:
        """Return whether each dead letter was there, and waits again; those behind the list's end have no room."""
        self._check_open(expected)
        moved: list[bool] = []
        for message_id in ids:
            letter = self._dead.get(message_id)
            if letter is not None:
                if not self._room:
                    break
                del self._dead[message_id]
                heapq.heappush(self._waiting, Message(next(self._numbers), message_id, letter.data, key=letter.key))
            moved.append(letter is not None)
        self._change(any(moved))
        return moved

    def discard(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters; return whether each was there."""
        return [self._dead.pop(message_id, None) is not None for message_id in ids]

    # Schedules.

    def records(self) -> tuple[int, dict[str, bytes]]:
        """Return the time in milliseconds since 1970, and the records of schedules by name."""
        return int(1000 * self._now()), dict(sorted(self._records.items()))

    def write_record(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        """Write the record of a schedule, or delete it, if it was that before; returns whether it was."""
        if self._records.get(name) != was:
            return False
        if becomes is not None:
            self._records[name] = becomes
        elif was is not None:
            del self._records[name]
        return True

    def put_occasion(self, name: str, was: bytes, becomes: bytes, item: New) -> str:
        """The same, and put a message; returns `put`, or why nothing was done."""
        if self._closed:
            return "closed"
        if not self._room:
            return "full"
        if not self.write_record(name, was, becomes):
            return "changed"
        self.put([item], False)
        return "put"

    # Messages.

    def put(self, items: Sequence[New], expected: bool) -> int:
        """Return how many of the items there was room for."""
        self._check_open(expected)
        accepted = items[: self._room]
        for message_id, data, due in accepted:
            message = Message(next(self._numbers), message_id, data)
            if due is not None:
                message.key, message.cost = due.key, due.cost
            if message.key:
                self._limits.note_key()
            if due is not None and due.expires is not None:
                message.expires_at = self._clock() + due.expires / 1000
            if due is None or not due.milliseconds:
                heapq.heappush(self._waiting, message)
            else:
                self._delay(message, due)
        self._change(bool(accepted))
        return len(accepted)

    def put_once(self, items: Sequence[tuple[str, bytes, Due | None, Dedup]], expected: bool) -> Answer:
        """Put messages that have a dedup id, and are no repeats, as far as there is room."""
        self._check_open(expected)
        letters, replaced = b"", []
        for message_id, data, due, dedup in items:
            counts = self._dedup.counts(dedup.id, (message.id for message in self._unfinished()), self._clock())
            there = self._dedup.message_of(dedup.id) if counts and dedup.replace else ""
            if there and self._replace(there, data, due):
                replaced.append(there.encode())
                letters += b"r"
            elif counts and not there:
                letters += b"d"
            elif self.put([(message_id, data, due)], expected):
                self._dedup.note(dedup, message_id, self._clock())
                letters += b"k"
            else:
                break
        return Answer(letters, replaced)

    def _replace(self, message_id: str, data: bytes, due: Due | None) -> bool:
        """Put contents in the place of those of a message that waits or is delayed; returns whether there is one."""
        delayed = next((message for _, message in self._delayed if message.id == message_id), None)
        message = delayed or next((one for one in self._waiting if one.id == message_id), None)
        if message is None:
            return False
        message.data, message.attempts, message.error, message.failed = data, 0, b"", 0
        message.cost = 1 if due is None else due.cost
        expires = None if due is None else due.expires
        message.expires_at = math.inf if expires is None else self._clock() + expires / 1000
        if delayed is not None:
            self._delayed = [one for one in self._delayed if one[1] is not delayed]
            heapq.heapify(self._delayed)
            self._delay(delayed, due or Due(0))
            delayed.admitted = False
        self._change()
        return True

    @property
    def dedup_ids(self) -> int:
        """How many dedup ids it remembers."""
        return len(self._dedup)

    def _unfinished(self) -> Iterator[Message]:
        yield from self._waiting
        yield from (message for _, message in self._delayed)
        yield from (message for message, _ in self._claims.values())

    def take(self, most: int, want: Want) -> Popped | Wait:
        self._check(want.expected)
        if self._paused:
            return self._wait("paused")
        popped = Popped([], [])
        allowed, after = self._limits.allowance(len(self._claims) if want.lease else None, self._clock())
        budget, units = self._limits.budget(self._clock()), 0
        while len(popped.taken) < min(most, allowed) and units < budget and (message := self._next()) is not None:
            expired = message.expires_at <= self._clock()
            if expired:
                message.error, message.failed = EXPIRED, message.attempts
                self._expired += 1
                if is_request(message.id):
                    continue  # the program that has asked waits no more
            if expired or (want.limit and message.attempts >= want.limit):
                message.dead_since = round(time.time(), 3)
                self._dead[message.id] = message
                popped.dead.append(message)
                self._reply(message, DEAD + message.error)
                continue
            message.attempts += 1
            claim = next(self._numbers) if want.lease else 0
            if claim:
                self._claims[claim] = message, self._clock() + want.lease / 1000
            popped.taken.append(Taken(message, message.attempts, claim))
            units += message.cost
        self._limits.spend(units, self._clock())
        if popped.taken or popped.dead:
            self._change()
            return popped
        if self._waiting and allowed < 1:
            return self._wait("limited", after)
        if not self._closed:
            return self._wait("empty")
        if self._waiting or self._delayed or (want.in_hand is not None and len(self._claims) > want.in_hand):
            return self._wait("draining")
        raise self._closed_error()

    def _ready(self) -> tuple[list[Message], list[Message]]:
        """Return the messages that may be handed out, those first that are next; and those that wait for their key."""
        key = self._limits.key
        return (self._waiting[:1], []) if key is None else self._keys.waiting(self._waiting, self._unfinished(), key)

    def _next(self) -> Message | None:
        """Take the message whose turn it is from those that wait."""
        ready, _ = self._ready()
        key = self._limits.key
        if not ready or key is None:
            return heapq.heappop(self._waiting) if ready else None
        self._waiting.remove(ready[0])
        heapq.heapify(self._waiting)
        self._keys.admit(ready[0], key, next(self._numbers))
        return ready[0]

    def settle(self, changes: Sequence[Change]) -> list[bool]:
        """Return which of the claims were there."""
        outcomes = []
        for change in changes:
            claimed = self._claims.pop(change.claim, None)
            outcomes.append(claimed is not None)
            if claimed is not None and change.ack:
                self._reply(claimed[0], change.reply)
            elif claimed is not None:
                message, _ = claimed
                message.attempts -= change.released
                if change.error:
                    message.error, message.failed = change.error, message.attempts
                if change.due is None:
                    heapq.heappush(self._waiting, message)
                else:
                    self._delay(message, change.due)
        self._change(any(outcomes))
        return outcomes

    def _reply(self, message: Message, reply: bytes) -> None:
        """Tell the program that has asked what has become of its request, if that is one."""
        asker = self.askers.get(message.id.split(":")[1]) if is_request(message.id) else None
        if asker is not None:
            asker.came(message.id, reply)

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Put messages back that nobody has seen: that was no attempt."""
        for message, _, claim in taken:
            if not claim or self._claims.pop(claim, None) is not None:
                message.attempts -= 1
                heapq.heappush(self._waiting, message)
        self._change(bool(taken))

    def extend(self, claims: Sequence[int], milliseconds: int) -> Extended:
        until, outcomes = self._clock() + milliseconds / 1000, [claim in self._claims for claim in claims]
        for claim in self._claims.keys() & set(claims):
            message, before = self._claims[claim]
            self._claims[claim] = message, max(before, until)
        return Extended(outcomes, self._paused or self._limits.held_for(self._clock()) > 0)

    def pass_time(self) -> None:
        """Put back what is in flight under a lease that has ended, and have wait what is due."""
        now = self._clock()
        ended = [claim for claim, (_, until) in self._claims.items() if until <= now]
        for claim in ended:
            heapq.heappush(self._waiting, self._claims.pop(claim)[0])
        changed = bool(ended)
        while self._delayed and self._delayed[0][0] <= self._now():
            _, message = heapq.heappop(self._delayed)
            message.number = next(self._numbers)
            heapq.heappush(self._waiting, message)
            changed = True
        self._change(changed)

    @property
    def _room(self) -> int:
        """How many messages there is room for now, in one step."""
        return MOST if not self._bound else min(MOST, max(0, self._bound - len(self._waiting) - len(self._delayed)))

    def _now(self) -> float:
        """Return the seconds since 1970, by the clock that also ends leases."""
        return self._epoch + self._clock()

    def _delay(self, message: Message, due: Due) -> None:
        heapq.heappush(self._delayed, (due.at(1000 * self._now()) / 1000, message))

    def _wait(self, reason: Reason, after: float | None = None) -> Wait:
        times = [until for _, until in self._claims.values()]
        if after is not None:
            times.append(self._clock() + after)
        if self._delayed:
            times.append(self._delayed[0][0] - self._epoch)
        due = min(times, default=None)
        lease = None if due is None else math.ceil(1000 * max(0.0, due - self._clock()))
        return Wait(
            reason, lease, created=self._bound is not None, due=None if after is None else math.ceil(1000 * after)
        )

    def _change(self, changed: bool = True) -> None:
        """Have all that wait try again, if something has changed: otherwise they would wake each other for ever."""
        if changed:
            self.changed = moment()
            for parked in list(self.parked):
                wake(parked)

    def _check(self, expected: bool) -> None:
        if expected and self._bound is None:
            raise QueueDoesNotExistError(f"the queue {self.name!r} does not exist: create it first", name=self.name)

    def _check_open(self, expected: bool) -> None:
        self._check(expected)
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> QueueClosedError:
        return QueueClosedError(f"the queue {self.name!r} is closed", name=self.name)


def wake(parked: Parked) -> None:
    """Have an operation that waits try again."""
    if not parked.done():
        parked.set_result(None)
        if parked.on_wake is not None:
            parked.on_wake(parked)
