"""The lane of puts into a queue whose steps put as many items as there is room for."""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure.concurrency.settle import note_sent
from apressure.core.backpressure import WaitingPuts
from apressure.core.driver import Request
from apressure.core.lanes import CARRIED, WAITING, Entry, Lane
from apressure.core.waiting import FOR_ROOM, FULL, Wait
from apressure.exceptions import DurabilityError, PressureError
from apressure.items import MAX_BYTES

I = TypeVar("I")  # noqa: E741 (an item)


class Putting(Entry["bytes | None"], Generic[I]):
    """Items on their way into a queue.

    Attributes:
        items: A chunk, small enough for one step.
        expected: The queue must have been created.
        done: How many of the items are in the queue, also when the operation failed or was cancelled.
        since: Since when it has waited for room, by the clock of the event loop; None if it has not.
        replaced: The id of the message whose place its only item has taken; None if it has a place of its own.
        named: The program has chosen the id of its only item, which may be in use.
    """

    expected = False
    named = False
    done = 0
    since: float | None = None
    replaced: bytes | None = None

    def __init__(self, items: Sequence[I], expected: bool = False) -> None:
        self.items = items
        if expected:
            self.expected = True

    def fail(self, error: Exception) -> None:
        if isinstance(error, PressureError):
            error.accepted = self.done
        super().fail(error)


P = TypeVar("P", bound=Putting[Any])


class PuttingLane(Lane[P]):
    """The puts of a client's tasks, in the order in which they began."""

    _role = "producer"
    _most: ClassVar[int]
    """The most items in one step."""

    _refuses: ClassVar[bool] = False
    """A step may refuse any item that there was room for; see `_refusal`."""

    _steps: Any

    def __init__(self, steps: Any, waits: Any) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()
        self._window = self._most
        self._batch: list[tuple[P, int]] = []
        self._size = 0  # how many items the step on its way has
        self._served = 0

    @abstractmethod
    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        """Send a step that puts items."""

    def _sizes(self, items: Sequence[Any]) -> Iterable[int]:
        """Return how many bytes each of these items has."""
        return [len(item[1]) for item in items]

    def _count(self, answer: Any) -> int:
        """Return how many of the items there was room for."""
        return answer  # type: ignore[no-any-return]

    def _refusal(self, entry: P, answer: Any, begin: int, end: int) -> Exception | None:  # noqa: ARG002
        """Return the error of an entry that was refused; what the step did with its items is there in the answer."""
        return None

    def _send(self, first: P) -> None:
        expected = first.expected
        if len(self._entries) == 1 and len(first.items) - first.done <= self._window:
            items = first.items[first.done :] if first.done else first.items
            self._batch = [(first, len(items))]
            first.state = CARRIED
        else:
            items = self._gather(expected)
        self._size = len(items)
        self._request = self._put(items, expected)

    def _gather(self, expected: bool) -> list[Any]:
        items: list[Any] = []
        batch = self._batch = []
        waiting, served = len(self._entries), self._served
        # If all tasks that put in a loop shared one step, the server would be idle while they prepare their next puts.
        # So half of them leave; the others' puts are the next step.
        most = waiting if waiting <= served else (waiting + served + 1) // 2
        # The window: a nearly full queue accepts few items, and the others would be sent again and again.
        room = self._window
        for entry in self._entries:
            if entry.expected != expected:
                break
            if entry.future.cancelled():
                continue
            part = entry.items
            if entry.done or len(part) > room:
                part = part[entry.done : entry.done + room]
            items += part
            entry.state = CARRIED
            batch.append((entry, len(part)))
            room -= len(part)
            if room == 0 or len(batch) == most:
                break
        if sum(self._sizes(items)) > MAX_BYTES:
            self._shorten(items)
        return items

    def _shorten(self, items: list[Any]) -> None:
        """Have the step take fewer items, because they are large: as many as MAX_BYTES allows, and at least one."""
        sizes = itertools.accumulate(self._sizes(items))
        fit = max(1, sum(size <= MAX_BYTES for size in sizes))
        del items[fit:]
        batch, self._batch = self._batch, []
        for entry, count in batch:
            if fit == 0:
                entry.state = WAITING
                continue
            sent = min(count, fit)
            fit -= sent
            self._batch.append((entry, sent))

    def _accept(self, answer: Any) -> Wait | None:
        count = self._count(answer)
        full = count < self._size
        self._window = max(16, 2 * count) if full else self._most
        batch, self._batch, begin = self._batch, [], 0
        entries, refuses, put, served = self._entries, self._refuses, 0, 0
        for entry, sent in batch:
            end = min(count, begin + sent)
            if (refuses or entry.named) and (error := self._refusal(entry, answer, begin, end)) is not None:
                self._remove(entry)
                entry.fail(error)
                begin = end
                continue
            entry.done += end - begin
            put += end - begin
            begin = end
            if entry.done == len(entry.items):
                served += 1
                entries.pop(entry, None)  # nothing is parked while a step is on its way: no need for `_remove`
                entry.succeed(entry.replaced)
        self._served = served
        self._steps.counts.put_count += put
        return FULL if full else None

    def _fail(self, in_flight: Sequence[P], error: Exception) -> None:
        if isinstance(error, DurabilityError):
            # Those that found room are in the queue, and not durable: they fail. The others go on waiting.
            accepted, unsure = self._count(error.answer), []
            for entry, sent in self._batch:
                if accepted > 0:
                    unsure.append(entry)
                accepted -= sent
            in_flight = unsure
        self._batch, self._served = [], 0
        super()._fail(in_flight, error)

    @property
    def for_room(self) -> WaitingPuts | None:
        """The puts that wait for room; None if none does."""
        if self._blocked_by is None or self._blocked_by.reason not in FOR_ROOM or not self._entries:
            return None
        now = asyncio.get_running_loop().time()
        for entry in reversed(self._entries):
            if entry.since is not None:
                break  # those before it have waited for longer
            entry.since = now
        return WaitingPuts(len(self._entries), self._first.since or now)

    def _wait(self, wait: Wait) -> None:
        for entry in self._entries:
            entry.expected = True  # it has a bound
        if wait.reason in FOR_ROOM and self._entries:
            self._first.since = self._first.since or asyncio.get_running_loop().time()
            self._waits.backpressure.note(self)
        super()._wait(wait)

    def _timeout(self, entry: P) -> Exception:
        return (self._blocked_by or FULL).error(self._steps.name, entry.done)

    def _recover(self, entry: P) -> None:
        if entry.done:
            note_sent()  # the items are in the queue
