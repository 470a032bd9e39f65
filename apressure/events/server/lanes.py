"""Many clients' commands for one queue share steps: those that come while a step is on its way leave together.

The rule that these lanes keep: the order in which commands came is the order in which they are carried out, and one
step at a time is on its way. So a step costs one round trip for any number of clients, and no client is served twice
before another is served once.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from apressure.concurrency.settle import set_result_once
from apressure.connection.waiting.waiter import Waiter, park
from apressure.connection.wire.request import Request
from apressure.connection.wire.series import Series
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.steps import MAX_EVENTS, EventSteps
from apressure.exceptions import DurabilityError

W = TypeVar("W")

LARGEST: Final = 1 << 20
"""Bytes of contents in one step, unless a single command has more."""
LOOK: Final = 5.0
"""Seconds after which pushes that wait for room look again: an okq beside us makes room without telling."""


@dataclasses.dataclass(slots=True, eq=False)
class Job(Generic[W]):
    """A command of a client, or the rest of it.

    Attributes:
        work: What to do.
        events: How many events it is about.
        size: How many bytes it has.
        outcome: Completes with the outcome. A client that does not want it any more cancels it.
        patient: It waits for room.
    """

    work: W
    events: int
    size: int
    outcome: asyncio.Future[Any]
    patient: bool = False


class Lane(ABC, Generic[W]):
    """Commands of one kind for one queue.

    Args:
        steps: The queue's steps.
    """

    def __init__(self, steps: EventSteps) -> None:
        self._steps = steps
        self._series: Series | None = None
        self._jobs: deque[Job[W]] = deque()
        self._sent: list[Job[W]] = []
        self._turn: asyncio.Handle | None = None
        self._shared = False  # whether the latest step was for several commands

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._jobs and not self._sent

    def _submit(self, work: W, events: int, size: int, *, patient: bool = False) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        job = Job(work, events, size, loop.create_future(), patient)
        self._jobs.append(job)
        self._soon()
        return job.outcome

    def _soon(self) -> None:
        """Leave at once; where commands come together, at the end of this turn of the event loop, with the others."""
        if self._turn is None and not self._sent:
            if self._shared:
                self._turn = asyncio.get_running_loop().call_soon(self._go)
            else:
                self._go()

    def _go(self) -> None:
        self._turn = None
        if self._sent:
            return
        events = size = 0
        while self._jobs:
            job = self._jobs[0]
            if job.outcome.done():
                self._jobs.popleft()
                continue
            events, size = events + job.events, size + job.size
            if self._sent and (events > MAX_EVENTS or size > LARGEST or not self._fits(self._sent[0], job)):
                break
            self._sent.append(self._jobs.popleft())
        self._shared = len(self._sent) > 1
        if self._sent:
            self._series = self._series or self._steps.series()
            self._send(self._series, self._sent)

    def _fits(self, first: Job[W], job: Job[W]) -> bool:  # noqa: ARG002
        """Whether two commands can share a step."""
        return True

    @abstractmethod
    def _send(self, series: Series, jobs: Sequence[Job[W]]) -> Request:
        """Send one step for these commands; `_answered` receives its answer."""

    @abstractmethod
    def _settle(self, jobs: Sequence[Job[W]], answer: Any) -> None:
        """Tell these commands their outcomes by the answer."""

    def _answered(self, answer: Any) -> None:
        jobs, self._sent = self._sent, []
        if isinstance(answer, Exception):
            self._series = None  # the step may still arrive
            for job in jobs:
                if not job.outcome.done():
                    job.outcome.set_exception(copy.copy(answer))
        else:
            self._settle(jobs, answer)
        if self._jobs:
            self._soon()


Pair = tuple[bytes, bytes]


class PushLane(Lane[Sequence[Pair]]):
    """Pushes at one end of a queue.

    Args:
        steps: The queue's steps.
        front: The end.
    """

    def __init__(self, steps: EventSteps, front: bool) -> None:
        super().__init__(steps)
        self._front = front
        self._room = Waiter(steps.connection.node, steps.keys.room, None, on_unwanted=steps.pass_room)
        self._parked = False

    def push(self, events: Sequence[Pair], *, patient: bool = False) -> asyncio.Future[bytes]:
        """Push events.

        Args:
            events: At most `MAX_EVENTS`.
            patient: Wait while the queue is full. Those that wait are served in order, before all others.

        Returns:
            A future with a letter for each event: `k` pushed, `d` duplicate. Fewer letters: the queue is full. With
            `patient` there is a letter for each. Cancelled, the events are pushed or not; while it waits: no further
            ones are.
        """
        if self._parked and not patient:
            full: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            full.set_result(b"")
            return full
        return self._submit(events, len(events), sum(len(one[0]) + len(one[1]) for one in events), patient=patient)

    def _soon(self) -> None:
        if not self._parked:
            super()._soon()

    def _send(self, series: Series, jobs: Sequence[Job[Sequence[Pair]]]) -> Request:
        events = [pair for job in jobs for pair in job.work]
        return self._steps.send_push(series, events, self._front, False, False, self._answered)

    def _settle(self, jobs: Sequence[Job[Sequence[Pair]]], answer: bytes) -> None:
        at, full = 0, False
        patient: list[Job[Sequence[Pair]]] = []
        for job in jobs:
            letters = answer[at : at + job.events]
            at += job.events
            if len(letters) == job.events or not job.patient:
                full = full or len(letters) < job.events
                set_result_once(job.outcome, letters)
            else:
                full = True
                patient.append(job)
                self._keep_rest(job, letters)
        if full:
            # Those that came later must not overtake.
            for job in self._jobs:
                if job.patient:
                    patient.append(job)
                else:
                    set_result_once(job.outcome, b"")
            self._jobs = deque(patient)
            self._park()
        elif not self._jobs and self._room.connected:
            self.leave()

    @staticmethod
    def _keep_rest(job: Job[Sequence[Pair]], letters: bytes) -> None:
        """Reduce a job to the events that were not looked at, and have its outcome tell of all of them."""
        if not letters:
            return
        whole, rest = job.outcome, asyncio.get_running_loop().create_future()
        job.work, job.events, job.outcome = job.work[len(letters) :], job.events - len(letters), rest

        def pass_on(done: asyncio.Future[bytes]) -> None:
            if whole.done() or done.cancelled():
                return
            error = done.exception()
            if error is None:
                whole.set_result(letters + done.result())
            else:
                whole.set_exception(error)

        rest.add_done_callback(pass_on)
        whole.add_done_callback(lambda done: rest.cancel() if done.cancelled() else None)

    def _park(self) -> None:
        """Wait for room, if somebody is patient."""
        self._jobs = deque(job for job in self._jobs if not job.outcome.done())
        if not self._jobs:
            self.leave()
            return
        self._parked = True
        self._room.take_claim()
        parked = park((self._room,), (self._room.generation,), LOOK)
        parked.add_done_callback(self._unpark)

    def _unpark(self, parked: asyncio.Future[None]) -> None:
        if not parked.cancelled() and parked.exception() is not None:
            # The server refuses to let us wait, for lack of rights: look now and then.
            asyncio.get_running_loop().call_later(1.0, self._look)
        else:
            self._look()

    def _look(self) -> None:
        self._parked = False
        if all(job.outcome.done() for job in self._jobs):
            self._jobs.clear()
            self.leave()
        else:
            self._room.take_claim()
            self._soon()

    def leave(self) -> None:
        """Nobody waits for room any more: close the connection that waits."""
        if self._room.close():
            self._steps.pass_room()


@dataclasses.dataclass(frozen=True, slots=True)
class Taking:
    """A pop.

    Attributes:
        most: How many events at most.
        lease: Milliseconds; 0 acknowledges them at once.
    """

    most: int
    lease: int


class PopLane(Lane[Taking]):
    """Pops from a queue."""

    def pop(self, most: int, lease: float) -> asyncio.Future[list[Event]]:
        """Pop events.

        Args:
            most: How many at most.
            lease: Seconds; 0 acknowledges them at once.

        Returns:
            A future with the events, none if the queue is empty. Cancelled, they go back, without counting as an
            attempt.
        """
        return self._submit(Taking(most, int(lease * 1000)), most, 0)

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, DurabilityError) and isinstance(answer.answer, Popped) and answer.answer.events:
            self._steps.give_back_soon(answer.answer.events)  # the clients get the error instead
        super()._answered(answer)

    def _fits(self, first: Job[Taking], job: Job[Taking]) -> bool:
        return first.work.lease == job.work.lease

    def _send(self, series: Series, jobs: Sequence[Job[Taking]]) -> Request:
        most = min(sum(job.events for job in jobs), MAX_EVENTS)
        return self._steps.send_pop(series, most, jobs[0].work.lease, b"", 0, False, None, False, self._answered)

    def _settle(self, jobs: Sequence[Job[Taking]], answer: Any) -> None:
        if not isinstance(answer, Popped):
            for job in jobs:
                set_result_once(job.outcome, [])
            return
        events = answer.events
        again: list[Job[Taking]] = []
        at = 0
        for job in jobs:
            if job.outcome.done():
                continue
            mine = events[at : at + job.events]
            at += len(mine)
            if mine:
                job.outcome.set_result(mine)
            else:
                again.append(job)  # the step may have ended early, at large events: there may be more
        if unseen := events[at:]:
            self._steps.give_back_soon(unseen)
        self._jobs.extendleft(reversed(again))


@dataclasses.dataclass(frozen=True, slots=True)
class Settling:
    """Acknowledgements, or events to give back.

    Attributes:
        ids: The events.
        how: As `EventSteps.settle` takes it.
    """

    ids: Sequence[bytes]
    how: str


class SettleLane(Lane[Settling]):
    """Acknowledgements of a queue, and events that are given back."""

    def settle(self, ids: Sequence[bytes], how: str) -> asyncio.Future[bytes]:
        """Settle events, no matter which client claimed them.

        Returns:
            A future with a letter for each: `1` if it was settled. Cancelled, they are settled or not.
        """
        return self._submit(Settling(ids, how), len(ids), 0)

    def _fits(self, first: Job[Settling], job: Job[Settling]) -> bool:
        return first.work.how == job.work.how == "ack"  # of what is given back, the last one is the first again

    def _send(self, series: Series, jobs: Sequence[Job[Settling]]) -> Request:
        claims = [(one, b"") for job in jobs for one in job.work.ids]
        how = jobs[0].work.how
        return self._steps.send_settle(series, how, claims, how == "ack", self._answered)

    def _settle(self, jobs: Sequence[Job[Settling]], answer: bytes) -> None:
        at = 0
        for job in jobs:
            set_result_once(job.outcome, answer[at : at + job.events])
            at += job.events
