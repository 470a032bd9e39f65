"""The two lanes of a queue: a client's concurrent puts become one step, and so do its gets."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from apressure import validation
from apressure.concurrency.settle import note_sent, set_result_once
from apressure.connection.waiting.waiter import SLICE
from apressure.connection.wire.request import Request
from apressure.core.lanes import CARRIED, Entry, Lane
from apressure.core.taking import TakeLane
from apressure.core.waiting import FULL, Parked, Wait
from apressure.exceptions import DurabilityError, PressureError
from apressure.items import MAX_BYTES, Items, Progress
from apressure.pressure.engine.notices import Notice
from apressure.pressure.engine.steps import Steps
from apressure.pressure.engine.waits import Waits

T = TypeVar("T")

logger = logging.getLogger("apressure")

MAX_MESSAGES: Final = 2000
"""The most messages in one step, so that it does not hold up the server for more than a few milliseconds."""


class Put(Entry[None]):
    """Messages on their way into the queue.

    Attributes:
        messages: A chunk, small enough for one step.
        done: How many of the messages are in the queue, also when the operation failed or was cancelled.
    """

    done = 0

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = messages

    def fail(self, error: Exception) -> None:
        if isinstance(error, PressureError):
            error.accepted = self.done
        super().fail(error)


class PutLane(Lane[Put]):
    """The puts of a client's tasks.

    Args:
        steps, waits: As for `Lane`.
        token: The lease token of an exclusive producer; empty without one.
        force: Ignore the bound. Forced puts have a lane of their own, since they do not wait behind others.
    """

    _role = "producer"
    _steps: Steps
    _waits: Waits

    def __init__(self, steps: Steps, waits: Waits, token: bytes = b"", force: bool = False) -> None:
        super().__init__(steps, waits)
        self._notice = Notice(steps.name)
        self._series = steps.series()
        self._token = token
        self._force = force
        self._since: float | None = None  # since when there is room, and the permit is missing
        self._window = MAX_MESSAGES
        self._batch: list[tuple[Put, int]] = []
        self._size = 0
        self._served = 0

    def _send(self) -> None:
        first = self._first
        if len(self._entries) == 1 and len(first.messages) - first.done <= self._window:
            messages: Sequence[bytes] = first.messages[first.done :] if first.done else first.messages
            self._batch = [(first, len(messages))]
            first.state = CARRIED
        else:
            messages = self._gather()
        self._size = len(messages)
        lost = self._since is not None and asyncio.get_running_loop().time() - self._since >= SLICE
        claimed = self._waits.take_claim("producer")
        self._request = self._steps.put(self._series, messages, claimed, self._token, self._force, self._answered, lost)

    def _park(self, wait: Wait) -> Parked:
        return self._waits.park(wait, self._noted, self._token)

    def _answered(self, answer: Any) -> None:
        if not isinstance(answer, Wait) or answer.reason != "full":
            self._since = None
        else:
            self._window = 16
            if self._since is None:
                self._since = asyncio.get_running_loop().time()
        super()._answered(answer)

    def _gather(self) -> list[bytes]:
        messages: list[bytes] = []
        size = 0
        batch = self._batch = []
        waiting, served = len(self._entries), self._served
        # If all tasks that put in a loop shared one step, the server would be idle while they prepare their next puts.
        # So half of them leave; the others' puts are the next step.
        most = waiting if waiting <= served else (waiting + served + 1) // 2
        # The window: a nearly full queue accepts few messages, and the others would be sent again and again.
        for entry in self._entries:
            if len(batch) == most:
                break
            if entry.future.cancelled():
                continue
            begin = len(messages)
            for message in entry.messages[entry.done : entry.done + self._window - begin]:
                size += len(message)
                if size > MAX_BYTES and messages:
                    break
                messages.append(message)
            if len(messages) == begin:
                break
            entry.state = CARRIED
            batch.append((entry, len(messages) - begin))
            if len(messages) >= self._window or size > MAX_BYTES:
                break
        return messages

    def _accept(self, answer: int) -> Wait | None:
        accepted = answer
        full = accepted < self._size
        self._window = max(16, 2 * accepted) if full else MAX_MESSAGES
        batch, self._batch = self._batch, []
        self._served = 0
        for entry, sent in batch:
            taken = min(sent, accepted)
            accepted -= taken
            entry.done += taken
            self._steps.counts.put_count += taken
            if entry.done == len(entry.messages):
                self._served += 1
                self._remove(entry)
                entry.succeed(None)
        return FULL if full else None

    def _fail(self, in_flight: Sequence[Put], error: Exception) -> None:
        if isinstance(error, DurabilityError):
            # Those that found room are in the queue, and not durable: they fail. The others go on waiting.
            accepted, unsure = error.answer, []
            for entry, sent in self._batch:
                if accepted > 0:
                    unsure.append(entry)
                accepted -= sent
            in_flight = unsure
        self._batch, self._served = [], 0
        super()._fail(in_flight, error)

    def _timeout(self, entry: Put) -> Exception:
        return (self._blocked_by or FULL).error(self._steps.name, entry.done)

    def _recover(self, entry: Put) -> None:
        if entry.done:
            note_sent()  # the messages are in the queue


class Want(NamedTuple):
    """What a get asks for, beside messages: nothing, and it is at-most-once."""

    lease: int = 0
    expected: bool = True


GET: Final = Want()


class GetLane(TakeLane[Want, bytes]):
    """The gets of a client's tasks: at-most-once."""

    _most = MAX_MESSAGES
    _steps: Steps
    _waits: Waits

    def __init__(self, steps: Steps, waits: Waits) -> None:
        super().__init__(steps, waits)
        self._notice = Notice(steps.name)
        self._series = steps.gets()

    @property
    def _step(self) -> int:
        return 0 if self._series is None else self._series.number

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        place = self._waits.take_turn() if waits else b""
        claimed = self._waits.take_claim("consumer")
        return self._steps.get(self._series, claimed, most, place, self._answered)

    def _messages(self, answer: Any) -> list[bytes]:
        return answer if isinstance(answer, list) else []

    def _note(self, answer: list[bytes]) -> None:
        self._steps.counts.received_count += len(answer)

    def _return(self, step: int, messages: Sequence[bytes]) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._steps.give_back(self._series, step, messages, functools.partial(set_result_once, done))
        return done

    def _fate(self, messages: Sequence[bytes]) -> str:  # noqa: ARG002
        return "they are lost"


async def put_many(
    items: Items[T],
    some: Iterable[T] | AsyncIterable[T],
    timeout: float | None,
    put: Callable[[Put, float | None], Awaitable[None]],
) -> int:
    """Encode and put items in chunks, with one timeout for all; see `Items.put_chunks`."""
    validation.timeout(timeout)
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout

    async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
        remaining = None if deadline is None else max(0.0, deadline - loop.time())
        one = Put(chunk)
        try:
            await put(one, remaining)
        finally:
            progress.accepted += one.done

    return await items.put_chunks(some, put_chunk, MAX_MESSAGES, ahead=True)
