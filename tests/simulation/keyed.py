"""What must be true of a queue whose messages have keys after each command, whatever clients and operators do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from apressure.events.engine.keys import EventKeys

_OKQ: Final = ("unclaimed", "claimed", "items")
_OURS: Final = ("delayed", "later", "dead", "control", "attempts", "keyed", "lines", "ring")


def key_of(contents: bytes, pointed: bool) -> str:
    """The key of a message: what it was put with, which it says itself, or what the queue's pointer points to."""
    said = json.loads(contents)
    return str(said.get("key") or (said.get("customer", "") if pointed else ""))


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a look has found, by the ids of messages.

    Attributes:
        waiting: Those of the list, the next one first.
        claimed: Those in flight, the first that was claimed first, and what tells one delivery from another.
        parked: Those in the lines of their keys, in order, each with its key and its number.
        items: The contents of all of these.
        delayed: When those are due that are delayed.
        later: Their contents.
        letters: Those of dead letters.
        most: How many of a key may be handled; None for any number.
    """

    waiting: list[bytes]
    claimed: dict[bytes, object]
    parked: dict[bytes, tuple[str, int]]
    items: dict[bytes, bytes]
    delayed: dict[bytes, float]
    later: dict[bytes, bytes]
    letters: list[bytes]
    most: int | None


class Keyed:
    """Looks at a queue of events with keys.

    A message has started when it was delivered, and is done when it is no longer in the queue. In between it counts,
    also while it waits to be delivered again: what may come again must come before the others of its key.

    Args:
        database: Of fakeredis.
        name: The queue's.
        pointed: Messages have keys at a pointer, too.
        in_order: Nothing is put in front of others.

    Attributes:
        acked: The messages that were acknowledged.
        vanished: Those that went while they waited, and became no dead letters: a purge or a `get` has taken them.
        letters: Those that became dead letters.
        purging: A purge may be on its way.
    """

    def __init__(self, database: Any, name: str, pointed: bool, in_order: bool) -> None:
        self._database = database
        self._pointed = pointed
        self._in_order = in_order
        keys = EventKeys(name)
        self._keys = {word: getattr(keys, word) for word in _OKQ}
        self._keys |= {word: next(key for key in keys.ours if key.endswith(b":" + word.encode())) for word in _OURS}
        self._bound, self._lock = keys.bound, keys.lock
        self.acked: set[bytes] = set()
        self.vanished: set[bytes] = set()
        self.letters: set[bytes] = set()
        self.purging = False
        self.forget()

    def forget(self) -> None:
        """What was here before is gone."""
        self._seen = Seen([], {}, {}, {}, {}, {}, [], None)
        self._key: dict[bytes, str] = {}
        self._contents: dict[bytes, bytes] = {}
        self._place: dict[bytes, int] = {}
        """In which order they came."""
        self._places = 0
        self._started: set[bytes] = set()
        self._retried: set[bytes] = set()
        """Those that were delayed after they had started: they have lost their place in the list, not in their key."""
        self._returned: set[bytes] = set()
        """Those that a `get` had taken, and gave back: one of the same key may have had its turn meanwhile."""
        self._before: set[bytes] = set()
        """Those that had been admitted when a limit was lowered."""

    def complaint(self) -> str:
        """Return what is wrong, if anything."""
        if self._database.get(self._bound) is None:
            self.forget()
            return ""  # it was not created yet, or was deleted
        before, after = self._seen, self._look()
        self._seen = after
        there = before.items.keys() | before.later.keys() | set(before.letters)
        self._returned.update(id_ for id_ in after.items if id_ in self._contents and id_ not in there)
        for id_, contents in (after.items | after.later).items():
            if id_ not in self._contents:
                self._contents[id_], self._key[id_] = contents, key_of(contents, self._pointed)
        return (
            self._whole(after)
            or self._come(before, after)
            or self._gone(before, after)
            or self._starts(before, after)
            or self._lowered(before, after)
            or self._inside(after)
        )

    def _whole(self, after: Seen) -> str:
        """Each message is in one place."""
        places = sorted([*after.waiting, *after.claimed, *after.parked])
        if sorted(after.items) != places or after.later.keys() != after.delayed.keys():
            return f"lost or doubled: events {sorted(after.items)} and {sorted(after.later)}, in place are {after}"
        if both := after.items.keys() & after.later.keys():
            return f"{sorted(both)} are delayed, and wait"
        return ""

    def _gone(self, before: Seen, after: Seen) -> str:
        """What is no longer there is done."""
        new, wrong = list(after.letters), ""
        for letter in before.letters:
            if letter in new:
                new.remove(letter)
        self.letters.update(self._contents[id_] for id_ in new)
        got: dict[str, int] = {}
        for id_ in sorted(
            (before.items.keys() | before.later.keys()) - after.items.keys() - after.later.keys(),
            key=lambda id_: self._place.get(id_, 0),
        ):
            if id_ not in new and id_ not in before.claimed:
                wrong = wrong or ("" if self.purging else self._start(id_, before, after))
                self.vanished.add(self._contents[id_])
                got[self._key[id_]] = got.get(self._key[id_], 0) + 1
            elif id_ not in new:
                self.acked.add(self._contents[id_])
            self._started.discard(id_)
            self._retried.discard(id_)
            self._before.discard(id_)
            if id_ in new:
                self._place.pop(id_, None)
        most = max(got.values(), default=0) if not self.purging and before.most and not got.pop("", None) else 0
        if most > (before.most or most):
            wrong = wrong or f"a get has taken {most} of a key, and the limit is {before.most}"
        return wrong

    def _come(self, before: Seen, after: Seen) -> str:
        """What was put, or is due, has its place."""
        due = sorted((before.delayed[id_], id_) for id_ in before.delayed.keys() - after.delayed.keys())
        self._retried.update(id_ for _, id_ in due if id_ in self._started)
        delayed = [id_ for _, id_ in due if id_ not in self._place]
        fresh = [id_ for id_ in after.waiting if id_ not in self._place and id_ not in before.delayed]
        for id_ in [*delayed, *fresh]:
            self._places += not (delayed and fresh)  # which of them were first is not known
            self._place[id_] = self._places
        return ""

    def _starts(self, before: Seen, after: Seen) -> str:
        """What was delivered was next."""
        for id_, delivery in after.claimed.items():
            if before.claimed.get(id_) != delivery:
                if wrong := self._start(id_, before, after):
                    return wrong
                self._started.add(id_)
        return ""

    def _start(self, id_: bytes, before: Seen, after: Seen) -> str:
        key = self._key[id_]
        if not key or id_ in self._started or before.most is None:
            return ""
        others = [one for one in self._started if self._key[one] == key and (one in after.items or one in after.later)]
        named = f"{self._contents[id_]!r} was delivered"
        if len(others) >= before.most and id_ not in self._before:
            return (
                f"{named}, the limit of its key is {before.most}, and it has {[self._contents[id_] for id_ in others]}"
            )
        again = [one for one in others if one in after.waiting and one not in self._retried | self._before]
        if again and self._in_order:
            return f"{named} before what came again: {[self._contents[one] for one in again]}"
        place, others = self._place.get(id_, self._places), self._started | self._returned
        of_key = [one for one in after.items if self._key[one] == key and one not in others]
        earlier = [one for one in of_key if self._place[one] < place]
        if earlier and self._in_order and id_ not in self._before:
            return f"{named} before {[self._contents[one] for one in earlier]}"
        return ""

    def _lowered(self, before: Seen, after: Seen) -> str:
        """Where a limit was lowered, more may be admitted for a while."""
        if after.most != before.most and after.most is not None:
            self._before = {id_ for id_ in after.items | after.later if self._state(id_)[:1] == b"a"}
        return ""

    def _inside(self, after: Seen) -> str:
        """The keys of the lines agree, and what could be handed out is seen."""
        states = {field[1:]: value for field, value in self._hash("keyed").items() if field[:1] == b"i"}
        parked = {id_: b"p%013d%s" % (number, key.encode()) for id_, (key, number) in after.parked.items()}
        if parked != {id_: value for id_, value in states.items() if value[:1] == b"p"}:
            return f"parked are {parked}, and known is {states}"
        if strangers := states.keys() - after.items.keys() - after.later.keys():
            return f"gone, and known: {strangers}"
        if not after.items and not after.later and any(self._keys[word] in self._database for word in _OURS[-3:]):
            return f"nothing waits, and there is {states}, {self._hash('keyed')}, {self._scores('ring')}"
        if after.most is None:
            return ""
        ring, free = self._scores("ring"), set()
        for key in {key for key, _ in after.parked.values()}:
            admitted = {id_ for id_, value in states.items() if value == b"a" + key.encode()}
            noted = self._hash("keyed").get(b"k" + key.encode(), b"")
            if key and noted.count(b":") != len(admitted):
                return f"{admitted} of {key} are admitted, and noted is {noted!r}"
            if not key or len(admitted) < after.most:
                free.add(key.encode())
        if free - ring.keys():
            return f"{sorted(free - ring.keys())} have parked messages and places, and no turn"
        return f"{sorted(free)} have a turn, and nobody sees that" if free and not after.waiting else ""

    def _look(self) -> Seen:
        attempts, control = self._hash("attempts"), self._hash("control")
        claimed = dict.fromkeys(reversed(self._list("claimed")))
        for id_ in claimed:
            lock = self._database.get(self._lock(id_))
            # A lock that has ended is still that of the same delivery, as long as nobody has another one.
            known = self._seen.claimed.get(id_, (None, None))
            claimed[id_] = (lock.value if lock else known[0], attempts.get(id_))
        parked = {}
        for member in sorted(self._scores("lines")):
            key, rest = _unpacked(member)
            parked[rest[13:]] = (key.decode(), int(rest[:13]))
        most = int(control.get(b"key_most", 0)) or None
        return Seen(
            self._list("unclaimed")[::-1], claimed, parked, self._hash("items"), self._scores("delayed"),
            self._hash("later"), [_id_of(letter) for letter in self._list("dead")], most,
        )  # fmt: skip

    def _state(self, id_: bytes) -> bytes:
        return self._hash("keyed").get(b"i" + id_, b"")

    def _value(self, word: str) -> Any:
        found = self._database.get(self._keys[word])
        return None if found is None else found.value

    def _list(self, word: str) -> list[bytes]:
        return list(self._value(word) or ())

    def _hash(self, word: str) -> dict[bytes, bytes]:
        return dict(getattr(self._value(word), "items", dict)())

    def _scores(self, word: str) -> dict[bytes, float]:
        return dict(getattr(self._value(word), "items", dict)())


def _unpacked(packed: bytes) -> tuple[bytes, bytes]:
    """The text that a packed text begins with, and the rest."""
    length, _, rest = packed.partition(b":")
    return rest[: int(length)], rest[int(length) :]


def _id_of(letter: bytes) -> bytes:
    if letter[:1] == b"#":
        _, letter = _unpacked(letter[1:])
    return _unpacked(letter.removeprefix(b"+"))[0]
