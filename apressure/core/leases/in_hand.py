"""What a consumer has in hand, each delivery under a lease of its own, and how the leases are kept renewed.

The client's `Renewer` does that in its thread: also while the event loop is blocked.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from apressure import logs
from apressure.core.delivery import LeasedDelivery
from apressure.core.driver import Connection, OnAnswer
from apressure.core.failures import Failures
from apressure.core.leases.arguments import max_hold_of
from apressure.core.leases.clock import Clock, Term, since_boot
from apressure.core.leases.renewal import Renewal, Timer
from apressure.exceptions import LeaseLostError

D = TypeVar("D", bound=LeasedDelivery[Any])


class Options(Protocol):
    """What a program says of leases.

    Attributes:
        lease: How long they last, in seconds.
        max_hold: Seconds without progress after which they are given up; None for the default.
    """

    @property
    def lease(self) -> float: ...
    @property
    def max_hold(self) -> float | None: ...


class ClaimHand(ABC, Generic[D]):
    """What a consumer has in hand. The leases are renewed, those of what was prefetched included.

    Args:
        renewer: The client's.
        keys: The KEYS of the script that renews.
        name: The queue's name, or several, for the log and for errors.
        options: How long the leases last, and after how much time without progress they are given up.

    Attributes:
        kind: The kind of the queue, for the log.
        claims: The deliveries that are neither settled nor lost, in order; each one is its own key.
        buffer: What has come and was not handed out, in order. What is not among the claims is lost.
        current: The delivery whose item the program has; None if it settles deliveries itself.
        failures: What the program does not know yet.
        unacknowledged: How many acknowledgements that nobody waited for have failed.
        name: As given.
        term: How long the leases last.
        renewal: What keeps them renewed.
        clock: Returns seconds, also those for which the machine was suspended; see `LeasedDelivery.certain_until`.
        progress: Counts deliveries that were handed out.
        handed_at: When the latest one was, by the clock.
    """

    kind: ClassVar[str]

    _noun: ClassVar[str]
    """What the deliveries are, for the log and for errors."""

    def __init__(
        self,
        renewer: Timer,
        keys: tuple[bytes, ...],
        name: str,
        options: Options,
    ) -> None:
        self.claims: dict[D, D] = {}
        self.buffer: deque[D] = deque()
        self.current: D | None = None
        self.failures = Failures()
        self.unacknowledged = 0
        self.name = name
        self.term = Term(options.lease, since_boot)
        self.clock: Clock = since_boot
        self.progress = 0
        self.handed_at = 0.0
        self._renewer = renewer
        self.renewal = Renewal(self, renewer, keys, self._renew, self._noun, name, max_hold_of(options.max_hold))

    # What a kind of queue does in its own way.

    @abstractmethod
    def send_back(self, unseen: Sequence[D], seen: Sequence[D]) -> Sequence[asyncio.Future[Any]]:
        """Send steps that give back what the program has not seen, which was no attempt, and what it has.

        What goes back later comes before it, so what the program has seen is first in line.

        Returns:
            Futures of their answers, which may be errors.
        """

    @abstractmethod
    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""

    @abstractmethod
    def _renew(self, milliseconds: int, on_answer: OnAnswer, connection: Connection | None) -> None:
        """Send a step that renews the leases. Called in any thread, on the event loop of the connection."""

    # What comes and goes.

    def took(self, deliveries: Sequence[D]) -> None:
        """Take deliveries in hand that know until when their leases last."""
        begin = not self.claims
        self.buffer.extend(deliveries)
        self.claims.update(zip(deliveries, deliveries, strict=True))
        if self.claims and (begin or self.renewal not in self._renewer):
            self.renewal.begin()

    def give_back_unseen(self) -> Sequence[asyncio.Future[Any]]:
        """Give back what was received and not handed out; returns futures of the answers."""
        unseen = [delivery for delivery in self.buffer if self.claims.pop(delivery, None) is not None]
        self.buffer.clear()
        return self.send_back(unseen, ()) if unseen else ()

    def surrender(self) -> tuple[list[D], list[D]]:
        """Return what the program has not seen, and what it has: from now on, nothing is in hand."""
        unseen, seen = _unseen_and_seen(self.claims)
        self.claims.clear()
        self.buffer.clear()
        self.current = None
        return unseen, seen

    def certain(self, delivery: D) -> bool:
        """Whether its lease has certainly not ended."""
        return self.clock() < delivery.certain_until

    def failed(self, error: Exception) -> None:
        """An acknowledgement that nobody waits for has failed: the next iteration says so."""
        self.unacknowledged += 1
        self.failures.note(error)
        self.failures.tell(error)

    # How the leases are renewed.

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew."""
        return bool(self.claims)

    in_hand = renewable
    """Whether the program may be busy with something."""

    def renew(self) -> None:
        """Renew the leases over the client's own connection. Called on the event loop."""
        if self.claims:
            self._renew(self.term.milliseconds, lambda _: None, None)

    def give_up(self, error: LeaseLostError) -> None:
        """Give back everything in hand; the consumer raises the error. Called on the event loop."""
        lost = list(self.claims)
        self.claims.clear()
        if lost:
            self.send_back(*_unseen_and_seen(lost))
            self._tell(error, lost)

    def _renewed(self, deliveries: Iterable[D], outcomes: Iterable[bool], until: float) -> None:
        """Note which leases last until then, and which have ended. Called on the event loop."""
        lost = []
        for delivery, renewed in zip(deliveries, outcomes, strict=False):
            if delivery not in self.claims:
                continue  # it was settled meanwhile
            if renewed:
                delivery.renewed(until)
            else:
                del self.claims[delivery]
                lost.append(delivery)
        if lost:
            text = f"the lease of {len(lost)} {self._noun} of the queue {self.name!r} ended, and other clients get them"
            error = LeaseLostError(text, name=self.name, role="consumer")
            self.log_lost(error, lost)
            self._tell(error, lost)

    def log_lost(self, error: LeaseLostError, lost: Iterable[D]) -> None:
        """Log each delivery that others get."""
        for one in lost:
            logs.lease_lost(self.kind, self.name, 1, error, delivery=one.id, attempts=one.attempts, message=one.raw)

    def _tell(self, error: LeaseLostError, lost: Sequence[D]) -> None:
        """Deliveries were lost to others, or given up: the program may have some of them in hand."""
        if self.current in lost:
            self.failures.note(error)
            self.current = None
        if any(one.handed_out for one in lost):
            self.failures.tell(error)


def _unseen_and_seen(deliveries: Iterable[D]) -> tuple[list[D], list[D]]:
    unseen: list[D] = []
    seen: list[D] = []
    for delivery in deliveries:
        (seen if delivery.handed_out else unseen).append(delivery)
    return unseen, seen


class ExtendedHand(ClaimHand[D]):
    """A hand whose leases are renewed by one step. Its answer says whether the queue is paused.

    Args:
        renewer, options: As for `ClaimHand`.
        steps: The queue's steps: `send_extend` and `extend` renew leases.
    """

    def __init__(self, renewer: Timer, steps: Any, options: Options) -> None:
        super().__init__(renewer, steps.script_keys, steps.name, options)
        self._steps = steps

    @abstractmethod
    def _outcomes(self, answer: Any) -> Iterable[bool]:
        """Return which leases were renewed."""

    async def assure(self) -> None:
        due, until = list(self.claims), self.clock() + self.term.seconds
        answer = await self._steps.extend(_claims(due), self.term.seconds)
        self._confirm(due, answer, until)
        self._react(due, answer, until)

    def _renew(self, milliseconds: int, on_answer: OnAnswer, connection: Connection | None) -> None:
        due, until = self._due(), self.clock() + milliseconds / 1000

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self._confirm(due, answer, until)
                self._renewer.call_home(lambda: self._react(due, answer, until))
            on_answer(answer)

        self._steps.send_extend(_claims(due), milliseconds, answered, connection)

    def _due(self) -> list[D]:
        """Return what to renew. Called in any thread."""
        return list(self.claims)

    def _confirm(self, due: Sequence[D], answer: Any, until: float) -> None:
        """Note until when leases last that were renewed. Called in any thread."""

    def _react(self, due: Sequence[D], answer: Any, until: float) -> None:
        """Act on what a renewal has found. Called on the event loop."""
        self._renewed(due, self._outcomes(answer), until)
        if answer.paused:
            self.give_back_unseen()


def _claims(deliveries: Iterable[Any]) -> list[Any]:
    return [delivery.claim for delivery in deliveries]
