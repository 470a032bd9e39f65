"""Many clients' commands for one queue share steps: those that come while a step is on its way leave together.

The rule that these lanes keep: the order in which commands came is the order in which they are carried out, and one
step at a time is on its way. So a step costs one round trip for any number of clients, and no client is served twice
before another is served once.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from apressure import logs
from apressure.connection.waiting.waiter import Waiter, park
from apressure.connection.wire.request import Request
from apressure.connection.wire.series import Series
from apressure.core.waiting import EMPTY, Wait
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.server.outcomes import Outcome
from apressure.exceptions import DurabilityError

W = TypeVar("W")
R = TypeVar("R")

LARGEST: Final = 1 << 20
"""Bytes of contents in one step, unless a single command has more."""
LOOK: Final = 5.0
"""Seconds after which pushes that wait for room look again: an okq beside us makes room without telling."""


class Job(Outcome[R], Generic[W, R]):
    """A command of a client, or the rest of it. Cancelled, its client does not want the outcome any more.

    Attributes:
        work: What to do.
        events: How many events it is about.
        size: How many bytes it has.
        patient: It waits for room.
        expected: The queue must have been created, for a push.
        letters: What is known of the events before those in `work`, for a push that waits for room.
    """

    letters = b""

    def __init__(self, work: W, events: int, size: int, patient: bool, expected: bool) -> None:
        self.work = work
        self.events = events
        self.size = size
        self.patient = patient
        self.expected = expected


class Lane(ABC, Generic[W, R]):
    """Commands of one kind for one queue.

    Args:
        steps: The queue's steps.
    """

    _parked = False
    """Whether its commands wait for something else than the answer to a step."""

    def __init__(self, steps: EventSteps) -> None:
        self._steps = steps
        self._series: Series | None = None
        self._jobs: deque[Job[W, R]] = deque()
        self._sent: list[Job[W, R]] = []
        self._turn: asyncio.Handle | None = None
        self._shared = False  # whether the latest step was for several commands

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._jobs and not self._sent

    def _submit(self, work: W, events: int, size: int = 0, patient: bool = False, expected: bool = False) -> Job[W, R]:
        job: Job[W, R] = Job(work, events, size, patient, expected)
        self._jobs.append(job)
        self._soon()
        return job

    def _soon(self) -> None:
        """Leave at once; where commands come together, at the end of this turn of the event loop, with the others."""
        if self._turn is None and not self._sent and not self._parked:
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
            if job.done():
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

    def _fits(self, first: Job[W, R], job: Job[W, R]) -> bool:  # noqa: ARG002
        """Whether two commands can share a step."""
        return True

    @abstractmethod
    def _send(self, series: Series, jobs: Sequence[Job[W, R]]) -> Request:
        """Send one step for these commands; `_answered` receives its answer."""

    @abstractmethod
    def _settle(self, jobs: Sequence[Job[W, R]], answer: Any) -> Iterable[tuple[Job[W, R], R]]:
        """Return these commands, or some of them, with their results by the answer."""

    def _answered(self, answer: Any) -> None:
        jobs, self._sent = self._sent, []
        settled: Iterable[tuple[Job[W, R], R | Exception]]
        if isinstance(answer, Exception):
            self._series = None  # the step may still arrive
            settled = [(job, copy.copy(answer)) for job in jobs]
        else:
            settled = self._settle(jobs, answer)
        if self._jobs:
            self._soon()
        # Last: from within this call, the client of the first one may give this lane its next command.
        for job, outcome in settled:
            job.finish(outcome)


Pair = tuple[bytes, bytes]
PushJob = Job[Sequence[Pair], bytes]


class PushLane(Lane[Sequence[Pair], bytes]):
    """Pushes at one end of a queue.

    Args:
        steps: The queue's steps.
        front: The end.
    """

    def __init__(self, steps: EventSteps, front: bool) -> None:
        super().__init__(steps)
        self._front = front
        self._room = Waiter(steps.connection.node, steps.keys.room, None, on_unwanted=steps.pass_room)

    def push(self, events: Sequence[Pair], *, patient: bool = False, expected: bool = False) -> Outcome[bytes]:
        """Push events.

        Args:
            events: At most `MAX_EVENTS`.
            patient: Wait while the queue is full. Those that wait are served in order, before all others.
            expected: The queue must have been created.

        Returns:
            A letter for each event: `k` pushed, `d` duplicate. Fewer letters: the queue is full. With `patient` there
            is a letter for each. Cancelled, the events are pushed or not; while it waits: no further
            ones are.
        """
        if self._parked and not patient:
            full: Outcome[bytes] = Outcome()
            full.finish(b"")
            return full
        size = 0
        for event, contents in events:
            size += len(event) + len(contents)
        expected = expected or patient  # only a queue that was created can be full
        return self._submit(events, len(events), size, patient, expected)

    def _fits(self, first: PushJob, job: PushJob) -> bool:
        return first.expected == job.expected

    def _send(self, series: Series, jobs: Sequence[PushJob]) -> Request:
        events = [pair for job in jobs for pair in job.work]
        return self._steps.send_push(series, events, self._front, False, jobs[0].expected, self._answered)

    def _settle(self, jobs: Sequence[PushJob], answer: bytes) -> list[tuple[PushJob, bytes]]:
        at, full = 0, False
        settled: list[tuple[PushJob, bytes]] = []
        patient: list[PushJob] = []
        for job in jobs:
            letters = answer[at : at + job.events]
            at += job.events
            full = full or len(letters) < job.events
            if len(letters) == job.events or not job.patient:
                settled.append((job, job.letters + letters))
            else:
                job.work, job.events = job.work[len(letters) :], job.events - len(letters)
                job.letters += letters
                patient.append(job)
        if full:
            # Those that came later must not overtake.
            settled += [(job, b"") for job in self._jobs if not job.patient]
            self._jobs = deque((*patient, *(job for job in self._jobs if job.patient)))
            self._park()
        elif not self._jobs and self._room.connected:
            self.leave()
        return settled

    def _park(self) -> None:
        """Wait for room, if somebody is patient."""
        self._jobs = deque(job for job in self._jobs if not job.done())
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
        if all(job.done() for job in self._jobs):
            self._jobs.clear()
            self.leave()
        else:
            self._room.take_claim()
            self._soon()

    def leave(self) -> None:
        """Nobody waits for room any more: close the connection that waits."""
        if self._room.close():
            self._steps.pass_room()


class Taking(NamedTuple):
    """A pop.

    Attributes:
        most: How many events at most.
        want: What the step is told beside that.
    """

    most: int
    want: Want


class Found(list[Event]):
    """Events that were popped.

    Attributes:
        wait: Why there are none.
    """

    wait: Wait = EMPTY


PopJob = Job[Taking, Found]


class PopLane(Lane[Taking, Found]):
    """Pops from a queue."""

    _dead = 0

    def take_dead(self) -> int:
        """Return how many events its steps have made dead letters, and that no client was told of before."""
        dead, self._dead = self._dead, 0
        return dead

    def pop(self, most: int, want: Want) -> Outcome[Found]:
        """Pop events.

        Args:
            most: How many at most.
            want: What the step is told beside that.

        Returns:
            The events, none if the queue is empty. Cancelled, they go back, without counting as an
            attempt.
        """
        return self._submit(Taking(most, want), most)

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, DurabilityError) and isinstance(answer.answer, Popped) and answer.answer.events:
            self._steps.give_back_soon(answer.answer.events)  # the clients get the error instead
        super()._answered(answer)

    def _fits(self, first: PopJob, job: PopJob) -> bool:
        return first.work.want == job.work.want

    def _send(self, series: Series, jobs: Sequence[PopJob]) -> Request:
        most = min(sum(job.events for job in jobs), MAX_EVENTS)
        return self._steps.send_pop(series, most, jobs[0].work.want, b"", self._answered)

    def _settle(self, jobs: Sequence[PopJob], answer: Any) -> list[tuple[PopJob, Found]]:
        if not isinstance(answer, Popped):
            nothing = Found()
            nothing.wait = answer
            return [(job, nothing) for job in jobs]
        self._dead += logs.dead_letters("EventQueue", self._steps.name, answer.dead)
        events = answer.events
        settled: list[tuple[PopJob, Found]] = []
        again: list[PopJob] = []
        at = 0
        for job in jobs:
            if job.done():
                continue
            mine = events[at : at + job.events]
            at += len(mine)
            if mine:
                settled.append((job, Found(mine)))
            else:
                again.append(job)  # the step may have ended early, at large events: there may be more
        if unseen := events[at:]:
            self._steps.give_back_soon(unseen)
        self._jobs.extendleft(reversed(again))
        return settled


class Settling(NamedTuple):
    """Acknowledgements, or events to give back.

    Attributes:
        ids: The events.
        how: As `EventSteps.settle` takes it.
        errors: Why each attempt has failed, or nothing; for `"fail"`.
    """

    ids: Sequence[bytes]
    how: str
    errors: Sequence[bytes] = ()


SettleJob = Job[Settling, bytes]


class SettleLane(Lane[Settling, bytes]):
    """Acknowledgements of a queue, and events that are given back."""

    def settle(self, ids: Sequence[bytes], how: str, errors: Sequence[bytes] = ()) -> Outcome[bytes]:
        """Settle events, no matter which client claimed them.

        Returns:
            A letter for each: `1` if it was settled. Cancelled, they are settled or not.
        """
        return self._submit(Settling(ids, how, errors), len(ids))

    def _fits(self, first: SettleJob, job: SettleJob) -> bool:
        return first.work.how == job.work.how == "ack"  # of what is given back, the last one is the first again

    def _send(self, series: Series, jobs: Sequence[SettleJob]) -> Request:
        claims: list[Sequence[bytes]] = [(one, b"") for job in jobs for one in job.work.ids]
        how = jobs[0].work.how
        if how == "fail":  # each such command has a step of its own
            claims = [(one, b"", why) for one, why in zip(jobs[0].work.ids, jobs[0].work.errors, strict=True)]
        return self._steps.send_settle(series, how, claims, how == "ack", self._answered)

    def _settle(self, jobs: Sequence[SettleJob], answer: bytes) -> list[tuple[SettleJob, bytes]]:
        at = 0
        settled = []
        for job in jobs:
            settled.append((job, answer[at : at + job.events]))
            at += job.events
        return settled
