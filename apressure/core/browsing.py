"""What is in a queue, page by page: what waits, is in flight, is delayed or is parked."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar, get_args

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration
from apressure.core.cursors import cursor_of, passed_by
from apressure.exceptions import DecodeError, UnsupportedError
from apressure.items import Items

T = TypeVar("T")

Place = Literal["waiting", "in_flight", "delayed", "parked"]
"""Where a message of a queue is."""

PLACES: Final[tuple[Place, ...]] = get_args(Place)
MOST: Final = 1000
"""The most messages of a page."""
MOST_READ: Final = 1 << 20
"""About how many bytes a page has: as `connection/lua/08_browsing.lua` says."""
_LARGEST: Final = 1 << 29


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedMessage(Generic[T]):
    """A message as `browse` shows it. It stays where it is.

    Attributes:
        item: The item; None if it cannot be decoded, or was not read as a whole.
        raw: The message in bytes, at most `most_bytes` of it.
        size: How many bytes it has.
        error: Why there is no item; empty otherwise.
        id: Its id, of kinds that have ids.
        attempts: How often it has been delivered, this time included; None where that is not known.
        holder: In flight: the client or listener that has it; None where that is not known.
        since: In flight: since when; otherwise: when it was put. None where that is not known.
        due: Delayed: when it is due. In flight: when its lease ends. None where that is not known.
        key: Its key (`set_key`, `put(key=)`); None if it has none, or it is not known.
    """

    item: T | None
    raw: bytes
    size: int
    error: str
    id: str | None
    attempts: int | None
    holder: str | None
    since: datetime | None
    due: datetime | None
    key: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePage(Generic[T]):
    """A page of what is in a place of a queue.

    Attributes:
        messages: The messages, in order.
        cursor: For the next page; None at the end.
        total: How many messages there are in this place now.
    """

    messages: tuple[BrowsedMessage[T], ...]
    cursor: str | None
    total: int


class Asked(NamedTuple):
    """What a program asks for.

    Attributes:
        place: Where it looks.
        newest: The newest first.
        passed: How many to pass over.
        limit: The most messages.
        most_bytes: The most bytes of each.
    """

    place: Place
    newest: bool
    passed: int
    limit: int
    most_bytes: int

    @property
    def arguments(self) -> tuple[bytes | int, ...]:
        """The ARGV of `browse.lua`."""
        return self.place.encode(), b"1" if self.newest else b"0", self.passed, self.limit, self.most_bytes


class Seen(NamedTuple):
    """A message as a queue has it. Times are in milliseconds since 1970; None is what is not known.

    Attributes:
        start: Its beginning; None if it cannot be read.
        size: How many bytes it has.
        error: Why it cannot be read.
    """

    start: bytes | None
    size: int
    id: bytes | None = None
    attempts: int | None = None
    holder: bytes | None = None
    since: float | None = None
    due: float | None = None
    key: bytes | None = None
    error: str = "its contents are gone: it was settled or deleted, or another program has changed the queue's keys"


class Found(NamedTuple):
    """A page as a queue answers.

    Attributes:
        seen: The messages.
        next: Where the next page begins; None at the end.
        total: How many messages there are.
    """

    seen: Sequence[Seen]
    next: int | None
    total: int

    @classmethod
    def read(cls, total: int, following: int, rows: list[list[Any]]) -> Self:
        """Read the answer of `browse.lua`."""
        seen = [
            Seen(start, size, message_id, attempts, holder, _number(since), _number(due), key)
            for start, size, message_id, attempts, holder, since, due, key in rows
        ]
        return cls(seen, None if following < 0 else following, total)

    @classmethod
    def of(cls, seen: Sequence[Seen], asked: Asked, looked: int, total: int) -> Self:
        """Return the page of a queue that has looked at so many messages, those passed over not included."""
        end = asked.passed + looked
        return cls(seen, end if looked and end < total else None, total)


class Browsing(Administration, Generic[T]):
    """A queue that shows what is in it."""

    _items: Items[T]

    _unable_to_browse: str = ""
    """Why this queue cannot show what is in it, if it cannot."""

    @abstractmethod
    async def _browse(self, asked: Asked) -> Found:
        """Return a page."""

    @with_deadline(reads=True)
    async def browse(
        self,
        place: Place = "waiting",
        *,
        newest: bool = False,
        cursor: str | None = None,
        limit: int = 100,
        most_bytes: int = 65536,
        deadline: float | None = None,  # noqa: ARG002 (of `with_deadline`)
    ) -> MessagePage[T]:
        """Return a page of the messages in a place of the queue, without taking any. It changes nothing.

        A page is one round trip. With a million messages instead of a thousand it takes about twice as long, and in the
        middle up to 3 times. A page is shorter than `limit` where messages are large: it reads about 1 MiB. Messages
        that come and go between two pages shift them, so that one may be shown twice, or left out.

        Args:
            place: `"waiting"`: what can be received next. `"in_flight"`: what was received and is not settled.
                `"delayed"`: what waits for its time. `"parked"`: what waits in the line of its key.
            newest: Begin at the other end: the message that was put last, was received last, or is due last.
            cursor: The `cursor` of the page before; None for the first page.
            limit: How many messages at most, up to 1,000.
            most_bytes: How many bytes of each message are read. A larger one has no `item`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            The page. It is empty where nothing is in that place, or this kind of queue has no such place.

        Raises:
            UnsupportedError: It is on a server with an `okq://` address.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`, and not about what waits.
            TypeError, ValueError: An argument is invalid, or the cursor is of another place or order.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.

        On this kind:
            AsyncQueue: Messages have neither ids nor keys, and nothing is parked. The attempts of what waits are known
                (0) while nothing that waits has been delivered before. In flight, `due` is when the lease of the holder
                ends. Of one consumer that has more than 10,000 messages behind ones that it has settled already, these
                are counted, and not shown.
            EventQueue: Nobody knows who has an event in flight.
            TaskQueue: `holder` is the listener. In flight are tasks in the order in which their leases end.
            FileQueue: Nothing is parked. In flight, the oldest message comes first. A page sorts the names of the
                directory in memory, which takes about 0.1 s for a million, and 0.5 s for a page in the middle.
        """
        asked = _asked(place, newest, cursor, limit, most_bytes)
        self.check()
        if self._unable_to_browse:
            raise UnsupportedError(
                f"{self._unable_to_browse}: browse() needs the address of the Redis or Valkey server", name=self.name
            )
        found = await self._browse(asked)
        following = None if found.next is None else cursor_of(place, found.next, newest)
        return MessagePage(tuple(self._shown(one) for one in found.seen), following, found.total)

    def _shown(self, seen: Seen) -> BrowsedMessage[T]:
        item, raw, error = None, seen.start or b"", ""
        if seen.start is None:
            error = seen.error
        elif len(raw) < seen.size:
            error = f"it has {seen.size} bytes, and {len(raw)} of them were read (most_bytes)"
        else:
            try:
                item = self._items.decode(raw)
            except DecodeError as undecodable:
                error = str(undecodable)
        return BrowsedMessage(
            item=item, raw=raw, size=seen.size, error=error, id=_text(seen.id), attempts=seen.attempts,
            holder=_text(seen.holder, "replace"), since=_time(seen.since), due=_time(seen.due), key=_text(seen.key),
        )  # fmt: skip


def _asked(place: Place, newest: bool, cursor: str | None, limit: int, most_bytes: int) -> Asked:
    """Return what a program asks for, checked."""
    if place not in PLACES:
        raise ValueError(f"place must be one of {', '.join(map(repr, PLACES))}, not {place!r}")
    validation.whole(limit, "limit", most=MOST)
    validation.whole(most_bytes, "most_bytes", most=_LARGEST)
    return Asked(place, bool(newest), passed_by(cursor, place, newest), limit, most_bytes)


def _text(data: bytes | None, errors: str = "surrogateescape") -> str | None:
    return data.decode(errors=errors) if data else None


def _number(text: bytes | None) -> float | None:
    return None if text is None else float(text)


def _time(milliseconds: float | None) -> datetime | None:
    """Return a time; None for one that Python cannot express: another program may have written it."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
