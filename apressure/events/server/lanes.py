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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from apressure import logs
from apressure.connection.waiting.waiter import Waiter, park
from apressure.connection.wire.script import Request, Series
from apressure.core.waiting import Wait, moment
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.server.mending import Expiry
from apressure.events.server.outcomes import Outcome
from apressure.exceptions import DurabilityError

R = TypeVar("R")
S = TypeVar("S", bytes, list[Event])

LARGEST: Final = 1 << 20
"""Bytes of contents in one step, unless a single command has more."""
LOOK: Final = 5.0
"""Seconds after which pushes that wait for room look again: an okq beside us makes room without telling."""


class Job(Outcome[R]):
    """A command of a client, or the rest of it. Cancelled, its client does not want the outcome any more.

    Attributes:
        work: The events that it is about, as its step takes them.
        how: How it wants it. Commands that want the same can share a step.
        events: How many events it is about.
        size: How many bytes it has.
        patient: It waits for room.
        letters: What is known of the events before those in `work`, for a push that waits for room.
    """

    letters = b""

    def __init__(self, work: Sequence[Any], how: Any, events: int, size: int = 0, patient: bool = False) -> None:
        super().__init__()
        self.work = work
        self.how = how
        self.events = events
        self.size = size
        self.patient = patient


class Lane(ABC, Generic[R]):
    """Commands of one kind for one queue.

    Args:
        steps: The queue's steps.
    """

    _parked = False
    """Whether its commands wait for something else than the answer to a step."""

    def __init__(self, steps: EventSteps) -> None:
        self._steps = steps
        self._series: Series | None = None
        self._jobs: deque[Job[R]] = deque()
        self._sent: list[Job[R]] = []
        self._turn: asyncio.Handle | None = None
        self._shared = False  # whether the latest step was for several commands

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._jobs and not self._sent

    def _submit(self, job: Job[R]) -> Job[R]:
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

    def _fits(self, first: Job[R], job: Job[R]) -> bool:
        """Whether two commands can share a step."""
        return bool(first.how == job.how)

    @abstractmethod
    def _send(self, series: Series, jobs: Sequence[Job[R]]) -> Request:
        """Send one step for these commands; `_answered` receives its answer."""

    @abstractmethod
    def _settle(self, jobs: Sequence[Job[R]], answer: Any) -> Iterable[tuple[Job[R], R]]:
        """Return these commands, or some of them, with their results by the answer."""

    def _answered(self, answer: Any) -> None:
        jobs, self._sent = self._sent, []
        settled: Iterable[tuple[Job[R], R | Exception]]
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


class PushLane(Lane[bytes]):
    """Pushes at one end of a queue.

    Args:
        steps: The queue's steps.
        front: The end.
    """

    def __init__(self, steps: EventSteps, front: bool) -> None:
        super().__init__(steps)
        self._front = front
        self._room = Waiter(steps.connection.node, steps.keys.room, None, on_unwanted=steps.pass_room)

    def push(self, events: Sequence[tuple[bytes, ...]], *, patient: bool = False, expected: bool = False) -> Job[bytes]:
        """Push events.

        Args:
            events: At most `MAX_EVENTS`: ids and contents; and for `DelayLane`, when each is due.
            patient: Wait while the queue is full, or until it is deleted. Those that wait are served in order, before
                all others.
            expected: The queue must have been created.

        Returns:
            A letter for each event: `k` pushed, `d` duplicate. Fewer letters: the queue is full. With `patient` there
            is a letter for each. Cancelled, the events are pushed or not; while it waits: no further
            ones are.
        """
        size = sum(map(len, chain.from_iterable(events)))
        # Only a queue that was created can be full.
        job: Job[bytes] = Job(events, expected or patient, len(events), size, patient)
        if self._parked and not patient:
            job.finish(b"")
            return job
        return self._submit(job)

    def _send(self, series: Series, jobs: Sequence[Job[bytes]]) -> Request:
        return self._steps.send_push(series, _work_of(jobs), jobs[0].how, self._answered, front=self._front)

    def _settle(self, jobs: Sequence[Job[bytes]], answer: bytes) -> list[tuple[Job[bytes], bytes]]:
        full = False
        settled: list[tuple[Job[bytes], bytes]] = []
        patient: list[Job[bytes]] = []
        for job, letters in zip(jobs, parts(answer, [job.events for job in jobs]), strict=True):
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
            if self._is_awaited():
                self._parked = True
                self._room.take_claim()
                park((self._room,), moment(), LOOK).add_done_callback(self._unpark)
        elif not self._jobs and self._room.connected:
            self.leave()
        return settled

    def _is_awaited(self) -> bool:
        """Whether somebody still waits for room. Otherwise, this waits for it no more."""
        self._jobs = deque(job for job in self._jobs if not job.done())
        if not self._jobs:
            self.leave()
        return bool(self._jobs)

    def _unpark(self, parked: asyncio.Future[None]) -> None:
        if not parked.cancelled() and parked.exception() is not None:
            # The server refuses to let us wait, for lack of rights: look now and then.
            asyncio.get_running_loop().call_later(1.0, self._look)
        else:
            self._look()

    def _look(self) -> None:
        self._parked = False
        if self._is_awaited():
            self._room.take_claim()
            self._soon()

    def leave(self) -> None:
        """Nobody waits for room any more: close the connection that waits."""
        if self._room.close():
            self._steps.pass_room()


class DelayLane(PushLane):
    """Pushes of events for later. None of them waits for room.

    Args:
        steps: The queue's steps.
        expiry: Looks for what is due.
    """

    def __init__(self, steps: EventSteps, expiry: Expiry) -> None:
        super().__init__(steps, False)
        self._expiry = expiry

    def _send(self, series: Series, jobs: Sequence[Job[bytes]]) -> Request:
        return self._steps.send_delay(series, _work_of(jobs), jobs[0].how, self._answered)

    def _settle(self, jobs: Sequence[Job[bytes]], answer: bytes) -> list[tuple[Job[bytes], bytes]]:
        for due in {event[2] for job in jobs for event in job.work}:
            self._expiry.look_when(due)
        return super()._settle(jobs, answer)


Found = list[Event] | Wait
"""Events that were popped, or why there are none."""


class PopLane(Lane[Found]):
    """Pops from a queue.

    Args:
        steps: The queue's steps.
        on_limited: Called with the seconds after which the limits of the queue let one more event through, when they
            have kept all.

    Attributes:
        limited: The latest step that found nothing was kept from events by the limits.
    """

    _dead = 0

    def __init__(self, steps: EventSteps, on_limited: Callable[[float], None]) -> None:
        super().__init__(steps)
        self.limited = False
        self._on_limited = on_limited

    def take_dead(self) -> int:
        """Return how many events its steps have made dead letters, and that no client was told of before."""
        dead, self._dead = self._dead, 0
        return dead

    def pop(self, most: int, want: Want) -> Job[Found]:
        """Pop events.

        Args:
            most: How many at most.
            want: What the step is told beside that.

        Returns:
            The events, or why there are none. Cancelled, they go back, without counting as an attempt.
        """
        return self._submit(Job((), want, most))

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, DurabilityError) and isinstance(answer.answer, Popped) and answer.answer.events:
            self._steps.give_back_soon(answer.answer.events)  # the clients get the error instead
        super()._answered(answer)

    def _send(self, series: Series, jobs: Sequence[Job[Found]]) -> Request:
        most = min(sum(job.events for job in jobs), MAX_EVENTS)
        return self._steps.send_pop(series, most, jobs[0].how, b"", self._answered)

    def _settle(self, jobs: Sequence[Job[Found]], answer: Popped | Wait) -> list[tuple[Job[Found], Found]]:
        if isinstance(answer, Wait):
            self.limited = answer.reason == "limited"
            if answer.due is not None:
                self._on_limited(answer.due / 1000 + 0.001)
            return [(job, answer) for job in jobs]
        self._dead += logs.dead_letters("EventQueue", self._steps.name, answer.dead)
        unseen, wanting = answer.events, deque(job for job in jobs if not job.done())
        settled: list[tuple[Job[Found], Found]] = []
        while unseen and wanting:
            job = wanting.popleft()
            settled.append((job, unseen[: job.events]))
            unseen = unseen[job.events :]
        if unseen:
            self._steps.give_back_soon(unseen)
        self._jobs.extendleft(reversed(wanting))  # the step may have ended early, at large events: there may be more
        return settled


class SettleLane(Lane[bytes]):
    """Acknowledgements of a queue, and events that are given back."""

    def settle(self, claims: Sequence[Sequence[bytes]], how: str) -> Job[bytes]:
        """Settle events, no matter which client claimed them.

        Args:
            claims: As `EventSteps.send_settle` takes them.
            how: As the same does.

        Returns:
            A letter for each: `1` if it was settled. Cancelled, they are settled or not.
        """
        return self._submit(Job(claims, how, len(claims)))

    def _fits(self, first: Job[bytes], job: Job[bytes]) -> bool:
        return bool(first.how == job.how == "ack")  # of what is given back, the last one is the first again

    def _send(self, series: Series, jobs: Sequence[Job[bytes]]) -> Request:
        return self._steps.send_settle(series, jobs[0].how, _work_of(jobs), jobs[0].how == "ack", self._answered)

    def _settle(self, jobs: Sequence[Job[bytes]], answer: bytes) -> list[tuple[Job[bytes], bytes]]:
        return list(zip(jobs, parts(answer, [job.events for job in jobs]), strict=True))


def parts(whole: S, lengths: Iterable[int]) -> Iterator[S]:
    """Cut an answer into parts of these lengths, one for each command. It may be too short for the last ones."""
    at = 0
    for length in lengths:
        yield whole[at : at + length]
        at += length


def _work_of(jobs: Sequence[Job[bytes]]) -> Sequence[Any]:
    return jobs[0].work if len(jobs) == 1 else [part for job in jobs for part in job.work]
