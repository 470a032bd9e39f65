"""The lanes of a queue of tasks: concurrent puts become one step, and so do reservations and settling."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from apressure import logs
from apressure.concurrency.settle import set_result_once, wait_shielded
from apressure.connection.wire.request import Request
from apressure.core.lanes import Entry, Lane
from apressure.core.putting import Putting, PuttingLane
from apressure.core.waiting import EMPTY, FULL, Wait
from apressure.exceptions import DurabilityError
from apressure.items import MAX_BYTES
from apressure.tasks.engine.answers import Reservation, Reserved, raw
from apressure.tasks.engine.steps import MAX_TASKS, Change, New, Policy, TaskSteps
from apressure.tasks.engine.waits import TaskWaits

logger = logging.getLogger("apressure")


class Put(Putting[New]):
    """Tasks on their way into the queue."""


class PutLane(PuttingLane[Put]):
    """The puts of a client's tasks."""

    _wait_type = Wait
    _most = MAX_TASKS
    _full = FULL
    _steps: TaskSteps

    def _put(self, items: Sequence[New], expected: bool) -> Request:
        return self._steps.send_enqueue(self._series, items, expected, self._answered)


class Reserve(Entry[list[Reserved]]):
    """A reservation of one to `most` tasks.

    Attributes:
        most: As given.
        policy: How they are reserved.
        listener: For which listener.
        expected: The queue must have been created.
    """

    def __init__(self, most: int, policy: Policy, listener: bytes, expected: bool) -> None:
        self.most = most
        self.policy = policy
        self.listener = listener
        self.expected = expected

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the reservations of one step have in common."""
        return self.policy, self.listener, self.expected


class ReserveLane(Lane[Reserve]):
    """The reservations of a client's tasks, for `receive`."""

    _role = "consumer"
    _wait_type = Wait
    _steps: TaskSteps

    def __init__(self, steps: TaskSteps, waits: TaskWaits) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()
        self._kind: tuple[Any, ...] = ()
        self._back: list[tuple[Sequence[Reserved], asyncio.Future[None]]] = []

    def give_back(self, tasks: Sequence[Reserved]) -> asyncio.Future[None]:
        """Give back tasks that nobody has seen; the future completes when they are back, or that has failed.

        Tasks of several cancelled callers go back together and in order, before the next step of this lane.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._back:
            loop.call_soon(self._send_back)
        self._back.append((tasks, done))
        return done

    def _send_back(self) -> None:
        back, self._back = self._back, []
        if back:
            gone = self._steps.give_back_soon([task for some, _ in back for task in some])
            gone.add_done_callback(functools.partial(self._given_back, [done for _, done in back]))

    def _given_back(self, waiting: Sequence[asyncio.Future[None]], gone: asyncio.Future[Any]) -> None:
        if isinstance(error := gone.result(), Exception):
            logger.error(
                "tasks of the queue %r, taken by a cancelled operation, could not be given back: they come back when "
                "their leases end: %s", self._steps.name, error,
            )  # fmt: skip
        for done in waiting:
            set_result_once(done, None)

    def _send(self) -> None:
        self._send_back()
        first, wanted = self._first, 0
        self._kind = first.kind
        for entry in self._entries:
            if wanted >= MAX_TASKS:
                break
            if entry.future.cancelled():
                continue
            if entry.kind != self._kind:
                break
            entry.in_flight = True
            wanted += min(entry.most, MAX_TASKS - wanted)
        self._request = self._steps.send_reserve(
            self._series, wanted, first.policy, first.listener, first.expected, None, self._answered
        )

    def _accept(self, answer: Reservation) -> None:
        note_reserved(self._steps, answer)
        tasks, begin = answer.tasks, 0
        for entry in list(self._entries):
            if entry.withdrawn or entry.future.cancelled():
                continue  # perhaps it joined after the step had left, and was cancelled in this turn of the loop
            if begin == len(tasks) or entry.kind != self._kind:
                break
            share = tasks[begin : begin + entry.most]
            begin += len(share)
            self._remove(entry)
            entry.succeed(share)
        if begin < len(tasks):
            # The rest was taken for cancelled callers: those that still wait do so until it has been given back.
            self._follow(self.give_back(tasks[begin:]), [entry for entry in self._entries if entry.withdrawn])

    def _follow(self, undone: asyncio.Future[None], entries: Sequence[Reserve]) -> None:
        for entry in entries:
            self._remove(entry)
            undone.add_done_callback(functools.partial(_end_of, entry.future))

    def _fail(self, in_flight: Sequence[Reserve], error: Exception) -> None:
        if isinstance(error, DurabilityError) and isinstance(error.answer, Reservation) and error.answer.tasks:
            self._follow(self.give_back(error.answer.tasks), [entry for entry in in_flight if entry.withdrawn])
            in_flight = [entry for entry in in_flight if not entry.withdrawn]
        super()._fail(in_flight, error)

    def _wait(self, wait: Wait) -> None:
        for entry in self._entries:
            entry.expected = entry.expected or wait.created
        super()._wait(wait)

    def _timeout(self, entry: Reserve) -> Exception:  # noqa: ARG002
        return (self._blocked_by or EMPTY).error(self._steps.name)

    def _recover(self, entry: Reserve) -> asyncio.Future[None] | None:
        if entry.future.cancelled() or entry.future.exception() is not None:
            return None
        return self.give_back(entry.future.result())


def _end_of(outcome: asyncio.Future[Any], _: asyncio.Future[None]) -> None:
    set_result_once(outcome, [])


def note_reserved(steps: TaskSteps, answer: Reservation) -> None:
    """Count what a step has reserved; log what it has dropped, and the tasks that were tried before."""
    name = steps.name
    steps.counts.received_count += len(answer.tasks)
    for one in answer.tasks:
        attempts = one.fields.get("attempts", "")[:9]  # another program may have written it
        if attempts.isdecimal() and int(attempts) > 1:
            task_id, parameters = one.id.decode(errors="backslashreplace"), raw(one.fields.get("parameters", ""))
            logs.redelivered("TaskQueue", name, task_id, int(attempts), parameters)
    if answer.dropped:
        logger.warning(
            "%d ids that waited in the queue %r were dropped: their tasks were deleted, or do not wait",
            answer.dropped, name,
        )  # fmt: skip


MANY: Final = 128
"""How many changes make a step that leaves at once."""

MOST_STEPS: Final = 8
"""The most steps with changes that are on their way at a time."""


class _Change:
    """A change on its way.

    Attributes:
        change: As given.
        ended: Its outcome is known.
        on_settled: Called with the outcome; None where somebody waits for `outcome`.
        outcome: Replaced when the caller that waits for it is cancelled.
    """

    __slots__ = ("change", "ended", "on_settled", "outcome")

    def __init__(self, change: Change, on_settled: OnSettled | None) -> None:
        self.change = change
        self.ended = False
        self.on_settled = on_settled
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, outcome: str | Exception) -> None:
        """Tell the caller that waits for it."""
        self.ended = True
        if self.on_settled is not None:
            self.on_settled(outcome)
        elif not self.outcome.done():
            if isinstance(outcome, Exception):
                self.outcome.set_exception(copy.copy(outcome))
            else:
                self.outcome.set_result(outcome)


OnSettled = Callable[[str | Exception], None]


class Settler:
    """Notes what happens to tasks. Changes that are made while a step is on its way form the next one.

    Where many are made, the next steps leave before that one is answered: so the server works while the client reads
    the answers. One connection keeps their order.

    Args:
        steps: The queue's steps.
        ttl: Seconds for which results are kept; 0 keeps them.
    """

    def __init__(self, steps: TaskSteps, ttl: float) -> None:
        self._steps = steps
        self._ttl = ttl
        self._waiting: deque[_Change] = deque()
        self._on_their_way = 0
        self._idle: asyncio.Future[None] | None = None

    def soon(self, change: Change, on_settled: OnSettled | None) -> _Change:
        """Make a change; `on_settled` is called once, with a letter as in `lua/settle.lua`, or the error."""
        made = _Change(change, on_settled)
        self._waiting.append(made)
        if not self._on_their_way:
            self._on_their_way = 1
            if on_settled is None:
                self._send()  # somebody waits for it; what comes meanwhile is the next step
            else:
                asyncio.get_running_loop().call_soon(self._send)  # others may follow in this turn of the event loop
        elif len(self._waiting) >= MANY and self._on_their_way < MOST_STEPS:
            self._on_their_way += 1
            self._send()
        return made

    async def settle(self, change: Change) -> str:
        """Make a change and wait for the outcome, a letter as in `lua/settle.lua`.

        Cancelled, it waits for the outcome, then raises.
        """
        loop = asyncio.get_running_loop()
        made = self.soon(change, None)
        try:
            return await made.outcome
        except asyncio.CancelledError:
            if made.ended:
                raise  # the outcome came in this very turn of the event loop
            made.outcome = loop.create_future()
            await wait_shielded(made.outcome, self._steps.settle_timeout)
            if made.outcome.done():
                made.outcome.exception()  # the cancellation is raised instead
            raise

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that completes when everything so far has been settled, or has failed."""
        if self._idle is None or self._idle.done():
            self._idle = asyncio.get_running_loop().create_future()
            if not self._on_their_way:
                self._idle.set_result(None)
        return self._idle

    def _send(self) -> None:
        """Send the next step, in place of one that was answered."""
        if not self._waiting or (self._on_their_way > 1 and len(self._waiting) < MANY):
            self._on_their_way -= 1
            if self._idle is not None and not self._on_their_way:
                set_result_once(self._idle, None)
            return
        batch: list[_Change] = []
        size = 0
        while self._waiting and len(batch) < MANY and size < MAX_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].change.value)

        def on_answer(answer: Any) -> None:
            outcomes = [answer] * len(batch) if isinstance(answer, Exception) else answer
            for made, outcome in zip(batch, outcomes, strict=True):
                if outcome == "1" and made.change.how in ("complete", "fail"):
                    self._steps.counts.deleted_count += 1
            for made, outcome in zip(batch, outcomes, strict=True):
                made.end(outcome)
            self._send()

        self._steps.send_settle([made.change for made in batch], self._ttl, on_answer)
