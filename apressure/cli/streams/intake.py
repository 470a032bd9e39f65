"""Puts what `apressure export` wrote into a queue, line by line, and knows which lines are done."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from apressure.cli.exits import UsageError
from apressure.cli.streams import archive
from apressure.cli.streams.archive import ArchiveError, End, Entry, Head, Message
from apressure.cli.streams.feed import Feeder
from apressure.cli.streams.framing import Framing, decoder
from apressure.cli.streams.meter import Meter
from apressure.cli.streams.pipes import Input
from apressure.cli.streams.texts import message_of, text_of
from apressure.core.occasions import Schedule
from apressure.dead_letters import DeadLetter
from apressure.events.remote.address import is_okq
from apressure.exceptions import PressureError, UnsupportedError
from apressure.queue_addresses import QueueAddress

_READ: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 30
_MOST: Final = 1000
_MOST_BYTES: Final = 1 << 20
"""The most messages, and the most bytes, that are put together."""


@dataclasses.dataclass(slots=True)
class _Group:
    """Entries that are put together: the first one is that of a line, and all have the same terms; None: dead letters.

    Attributes:
        first: The number of the first line.
        terms: How they are put.
        entries: The entries.
        messages: What is put: their messages, as those of this queue.
        size: How many bytes they have.
    """

    first: int
    terms: dict[str, Any] | None
    entries: list[Message | DeadLetter[bytes]] = dataclasses.field(default_factory=list)
    messages: list[bytes] = dataclasses.field(default_factory=list)
    size: int = 0

    @property
    def full(self) -> bool:
        return self.size >= _MOST_BYTES or len(self.entries) >= _MOST


@dataclasses.dataclass(kw_only=True, eq=False)
class Intake:
    """Puts the lines of a file into a queue.

    Attributes:
        queue: The queue, open.
        address: Its address.
        meter: Counts the messages that were put.
        skip: How many lines are done already.
        bound: The bound of a new queue, from the start; None for that of the file, which it gets at the end, since a
            queue may hold more than its bound: what is in flight, or was given back.
        drop: Leave out what this kind of queue cannot keep.
        timeout: Seconds to wait for room, each time; None to wait for ever.
        done: How many lines are done.
        counts: How many there were of each sort.
        dropped: What was left out.
        before: How many messages the queue had when the import began; 0 with `skip`, where it had begun before.
        paused: Whether the queue was paused at the end, as the exported one was.
    """

    queue: Any
    address: QueueAddress
    meter: Meter
    skip: int
    bound: int | None
    drop: bool
    timeout: float | None
    done: int = dataclasses.field(init=False)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    before: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        self.done = self.skip
        self._head: Head | None = None
        self._new = False
        self._ended = False
        self._number = 0
        self._group: _Group | None = None

    async def read(self, source: Input) -> None:
        """Put everything, to the last line.

        Raises:
            ArchiveError: A line is damaged, or the last one is missing. All lines before it are done.
            PressureError: As for the operations of the queue. `done` lines are done.

        Cancelled, `done` lines are done, and nothing else was put.
        """
        lines = decoder(Framing.LINES, limit=_LONGEST_LINE)
        while data := await source.read(_READ):
            for text in lines.feed(data):
                await self._take(text)
        for text in lines.finish():
            await self._take(text)
        await self._put()
        if self._head is None:
            raise ArchiveError("the input is empty: give it what `apressure export` has written")
        if self._number < self.skip:
            raise ArchiveError(f"the input has {self._number} lines, and --skip leaves out more. Nothing was put")
        if not self._ended:
            raise ArchiveError(
                f"the input ends behind line {self._number}, without the last line of an export: it was cut short. "
                "Everything in it is in the queue"
            )
        await self._finish(self._head)

    async def _take(self, text: bytes) -> None:
        self._number += 1
        try:
            entry = self._read(text)
        except ArchiveError as error:
            await self._put()
            raise _damaged(self._number, error) from None
        if isinstance(entry, Head):
            self._head = entry
            self._new = await self.queue.create(self.bound or 0, exist_ok=True)
            if not self._new and not self.skip:
                found = await self.queue.statistics()
                self.before = found.length + found.delayed + (found.in_flight or 0)
        self._ended = isinstance(entry, End)
        if self._number <= self.skip:
            return
        if isinstance(entry, (Message, DeadLetter)):
            await self._gather(entry)
        else:
            await self._put()
            try:
                with self._damage():
                    await self._carry_out(entry)
            except (ArchiveError, UsageError):
                if isinstance(entry, Head) and self._new:
                    await self.queue.delete()  # as if it had not been tried
                raise
            self.done = self._number

    def _read(self, text: bytes) -> Entry:
        entry = archive.read(text)
        if self._ended:
            raise ArchiveError("it is behind the last line of the export")
        if isinstance(entry, Head) and self._number > 1:
            raise ArchiveError("it begins another export")
        if self._number == 1 and not isinstance(entry, Head):
            raise ArchiveError("it is not the first line of an export")
        return entry

    async def _gather(self, entry: Message | DeadLetter[bytes]) -> None:
        """Keep an entry until there are enough of its sort to be put together."""
        try:
            message = self._convert(entry.raw)
        except ValueError as error:
            await self._put()
            if not self.drop:
                raise self._refused(error) from None
            self.dropped["items that are not text"] += 1
            self.done = self._number
            return
        terms = None if isinstance(entry, DeadLetter) else self._terms_of(entry)
        if self._group is not None and (terms != self._group.terms or self._group.full):
            await self._put()
        if self._group is None:
            self._group = _Group(self._number, terms)
        self._group.entries.append(entry)
        self._group.messages.append(message)
        self._group.size += len(entry.raw)

    async def _carry_out(self, entry: Entry) -> None:
        if isinstance(entry, Head):
            await self._set(entry)
        elif isinstance(entry, Schedule):
            await self._plan(entry)

    async def _set(self, head: Head) -> None:
        rate, concurrency, key = head.limits.rate, head.limits.concurrency, head.limits.key
        queue = self.queue
        if rate is not None:
            await self._if_possible("rate", lambda: queue.set_rate(rate.count, rate.per, rate.burst))
        if concurrency is not None:
            await self._if_possible("concurrency", lambda: queue.set_concurrency(concurrency))
        if key is not None:
            await self._if_possible("key limit", lambda: queue.set_key(key.pointer, key.at_most, fair=key.fair))
        if head.paused and not await queue.bound():
            await queue.pause()

    async def _finish(self, head: Head) -> None:
        """Set what would keep messages out, or make the queue wait for room that nobody makes."""
        queue = self.queue
        bound = head.bound if self.bound is None else self.bound
        if bound and (self._new or self.skip) and not await queue.bound():
            with self._damage(1, "Everything is in the queue"):
                await queue.set_bound(bound)
        if head.paused:
            await queue.pause()
            self.paused = True
        if head.closed:
            await queue.close(self.timeout)

    async def _plan(self, planned: Schedule) -> None:
        item = self._convert(planned.raw)

        async def plan() -> None:
            await self.queue.every(planned.name, planned.when, item, timezone=planned.timezone, missed=planned.missed)
            if planned.paused:
                await self.queue.pause_schedule(planned.name)
            self.counts["schedules"] += 1

        await self._if_possible("schedules", plan)

    async def _if_possible(self, what: str, change: Callable[[], Awaitable[Any]], count: int = 1) -> None:
        try:
            await change()
        except UnsupportedError as error:
            if not self.drop:
                raise self._refused(error) from None
            self.dropped[what] += count

    def _refused(self, error: Exception) -> UsageError:
        return UsageError(f"line {self.done + 1}: {error}. --drop leaves out what this queue cannot keep")

    async def _put(self) -> None:
        """Put what was gathered. Whatever happens, `done` is right afterwards."""
        group, self._group = self._group, None
        if group is None:
            return
        self.done = group.first - 1
        with self._damage():
            if group.terms is None:
                await self._if_possible("dead letters", lambda: self._bury(group), len(group.entries))
                self.done = group.first - 1 + len(group.entries)
            else:
                await self._feed(group, group.terms)

    async def _feed(self, group: _Group, terms: dict[str, Any]) -> None:
        before = self.meter.messages
        feeder = Feeder(self.queue, self.meter, bytes, timeout=self.timeout, **terms)
        try:
            await feeder.put(group.messages)
        except UnsupportedError as error:
            raise self._refused(error) from None
        finally:
            put = self.meter.messages - before
            self.done += put
            self.counts.update(one.place for one in group.entries[:put] if isinstance(one, Message))

    async def _bury(self, group: _Group) -> None:
        letters = [
            DeadLetter(one.id, message, one.attempts, one.error, one.when, bytes)
            for one, message in zip(group.entries, group.messages, strict=True)
            if isinstance(one, DeadLetter)
        ]
        adding = asyncio.ensure_future(self.queue.add_dead_letters(letters))
        try:
            await asyncio.shield(adding)
        finally:
            await asyncio.wait({adding})  # also if this was cancelled: it waits for no room
            error = adding.exception()
            added = adding.result() if error is None else error.accepted if isinstance(error, PressureError) else 0
            self.done += added
            self.counts["dead"] += added

    @contextlib.contextmanager
    def _damage(self, line: int | None = None, what: str = "Nothing of it was put") -> Iterator[None]:
        """Name the line with what the queue refuses in the block: the one behind those that are done, or another."""
        try:
            yield
        except ValueError as error:
            if isinstance(error, PressureError):
                raise
            raise _damaged(self.done + 1 if line is None else line, error, what) from None

    def _terms_of(self, message: Message) -> dict[str, Any]:
        """Return the terms on which a message is put."""
        assert self._head is not None
        terms: dict[str, Any] = {}
        if message.due is not None:
            terms["at"] = message.due
        keeps_keys = self.address.kind in ("events", "tasks") and not is_okq(self.address.url)
        if message.key is not None and self.drop and not keeps_keys:
            self.dropped["keys"] += 1
        elif message.key is not None:
            terms["key"] = message.key
        if message.id is not None and self.address.kind == self._head.kind == "events":
            terms["id"] = message.id  # a repeat is refused
        return terms

    def _convert(self, raw: bytes) -> bytes:
        """Return a message of the exported queue as one of this queue: the parameters of tasks are text, or JSON."""
        assert self._head is not None
        here = self.address
        if (self._head.kind == "tasks") is (here.kind == "tasks"):
            return raw
        return message_of(here)(raw) if here.kind == "tasks" else text_of(here._replace(kind="tasks"))(raw)


def _damaged(line: int, error: ValueError, what: str = "Nothing of it was put") -> ArchiveError:
    return ArchiveError(f"line {line} is damaged: {error}. {what}")
