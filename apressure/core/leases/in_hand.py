"""Keeps the leases of what a consumer has in hand renewed, each delivery under a lease of its own.

The client's `Renewer` does that in its thread: also while the event loop is blocked.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from apressure import logs
from apressure.core.driver import Connection, Renewer
from apressure.core.leases.clock import Clock, Term, since_boot
from apressure.core.leases.renewal import Renewal, Standstill
from apressure.exceptions import LeaseLostError


class Leased(Protocol):
    """A delivery under a lease.

    Attributes:
        certain_until: Until when its lease has certainly not ended, by the clock of its consumer.
    """

    certain_until: float

    @property
    def id(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def raw(self) -> bytes: ...


K = TypeVar("K", bound=Hashable)
D = TypeVar("D", bound=Leased)


class InHand(dict[K, D]):
    """A consumer's deliveries that are neither settled nor lost, in order, by their claims.

    Args:
        on_failure: Called when an acknowledgement that nobody waits for has failed.

    Attributes:
        on_failure: As given.
        standstill: For how long the consumer has made no progress; None before it renews anything.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        super().__init__()
        self.on_failure = on_failure
        self.standstill: Standstill | None = None

    def excused(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which the consumer is not stuck; see `protocols.Excusable`."""
        return contextlib.nullcontext() if self.standstill is None else self.standstill.excuse()

    def extended(self, seconds: float) -> None:
        """The program has extended a lease: until then, the consumer is not stuck."""
        if self.standstill is not None:
            self.standstill.extend(seconds)


class LeasesInHand(ABC, Generic[K, D]):
    """Renews the leases of everything that a consumer has in hand, what was prefetched included.

    Args:
        hand: The deliveries in hand, by their claims.
        renewer: The client's.
        keys: The KEYS of the script that renews.
        what: What the deliveries are, for the log and for errors.
        name: The queue's name, or several, for the same.
        seconds: How long the leases last.
        max_hold: Seconds without progress after which they are given up.
        on_lost: Called with an error and the deliveries that were lost, on the event loop.
        clock: Returns seconds, also those for which the machine was suspended.

    Attributes:
        kind: The kind of the queue, for the log.
        name: As given.
        token: Not used: each delivery has a lease of its own.
        term: How long the leases last.
        clock: As given.
        progress: Counts deliveries that were handed out.
    """

    token = b""
    kind: ClassVar[str]

    def __init__(
        self,
        hand: InHand[K, D],
        renewer: Renewer,
        keys: tuple[bytes, ...],
        what: str,
        name: str,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[D]], None],
        clock: Clock = since_boot,
    ) -> None:
        self.term = Term(seconds, clock)
        self.clock = clock
        self.progress = 0
        self._hand = hand
        self._renewer = renewer
        self.name = name
        self._what = what
        self._on_lost = on_lost
        self._renewal = Renewal(self, renewer, keys, self._renew, what, name, max_hold)
        hand.standstill = self._renewal.standstill

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew."""
        return bool(self._hand)

    @property
    def in_hand(self) -> bool:
        """Whether the program may be busy with something."""
        return bool(self._hand)

    def note_task(self) -> None:
        """Note the current task of the event loop, which iterates, for the log."""
        self._renewal.note_task()

    def arrived(self, deliveries: Sequence[tuple[K, D]], sent: float) -> None:
        """Take deliveries in hand, by their claims, that a step has claimed which was sent then, by the clock."""
        until = sent + self.term.seconds
        for _, delivery in deliveries:
            delivery.certain_until = until
        self.took(deliveries)

    def took(self, deliveries: Sequence[tuple[K, D]]) -> None:
        """Take deliveries in hand, by their claims, that know until when their leases last."""
        begin = not self._hand
        self._hand.update(deliveries)
        if self._hand and (begin or self._renewal not in self._renewer):
            self._renewal.begin()

    def certain(self, delivery: D) -> bool:
        """Whether its lease has certainly not ended."""
        return self.clock() < delivery.certain_until

    def end(self) -> None:
        """Renew nothing any more."""
        self._renewal.end()

    def renew(self) -> None:
        """Renew the leases over the client's own connection. Called on the event loop."""
        if self._hand:
            self._renew(b"", self.term.milliseconds, lambda _: None, None)

    def give_up(self, error: LeaseLostError) -> None:
        """Give back everything in hand; the consumer raises the error. Called on the event loop."""
        lost = list(self._hand.values())
        self._hand.clear()
        if lost:
            self._give_back(lost)
            self._tell(error, lost)

    @abstractmethod
    def _renew(
        self,
        token: bytes,
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: Connection | None,
    ) -> None:
        """Send a step that renews the leases. Called in any thread, on the event loop of the connection."""

    @abstractmethod
    def _give_back(self, lost: list[D]) -> None:
        """Send a step that gives back these deliveries."""

    def _renewed(self, outcomes: Iterable[tuple[K, bool]], until: float) -> None:
        """Note which leases last until then, and which have ended. Called on the event loop."""
        lost = []
        for claim, renewed in outcomes:
            delivery = self._hand.get(claim)
            if delivery is None:
                continue  # it was settled meanwhile
            if not renewed:
                del self._hand[claim]
                lost.append(delivery)
            elif until > delivery.certain_until:
                delivery.certain_until = until
        if lost:
            text = f"the lease of {len(lost)} {self._what} of the queue {self.name!r} ended, and other clients get them"
            error = LeaseLostError(text, name=self.name, role="consumer")
            self.log_lost(error, lost)
            self._tell(error, lost)

    def log_lost(self, error: LeaseLostError, lost: Iterable[D]) -> None:
        """Log each delivery that others get."""
        for one in lost:
            logs.lease_lost(
                self.kind, self.name, 1, error, delivery=one.id, attempts=one.attempts, message=one.raw
            )  # fmt: skip

    def _tell(self, error: LeaseLostError, lost: list[D]) -> None:
        self._on_lost(error, lost)


class Extends(Protocol):
    """The steps that renew leases."""

    def send_extend(
        self, claims: Sequence[Any], lease: int, on_answer: Callable[[Any], None], connection: Connection | None = None
    ) -> object:
        """Have claims last at least so many milliseconds."""

    async def extend(self, claims: Sequence[Any], lease: float) -> Any:
        """Have claims last for at least so many seconds; returns the answer."""


class ExtendedInHand(LeasesInHand[K, D]):
    """Renews the leases of all that a consumer has in hand by one step. Its answer says whether the queue is paused.

    Args:
        hand, renewer, keys, what, name, seconds, max_hold, on_lost, clock: As for `LeasesInHand`.
        steps: The steps that renew leases.
        on_paused: Called on the event loop when a renewal finds the queue paused.
    """

    def __init__(
        self,
        hand: InHand[K, D],
        renewer: Renewer,
        keys: tuple[bytes, ...],
        what: str,
        name: str,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[D]], None],
        clock: Clock,
        steps: Extends,
        on_paused: Callable[[], None],
    ) -> None:
        super().__init__(hand, renewer, keys, what, name, seconds, max_hold, on_lost, clock)
        self._extends = steps
        self._on_paused = on_paused

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        claims = list(self._hand)
        until = self.clock() + self.term.seconds
        answer = await self._extends.extend(claims, self.term.seconds)
        self._confirm(claims, answer, until)
        self._react(claims, answer, until)

    def _renew(
        self,
        token: bytes,  # noqa: ARG002
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: Connection | None,
    ) -> None:
        claims = self._due()
        until = self.clock() + milliseconds / 1000

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self._confirm(claims, answer, until)
                self._renewer.call_home(lambda: self._react(claims, answer, until))
            on_answer(answer)

        self._extends.send_extend(claims, milliseconds, answered, connection)

    def _due(self) -> list[K]:
        """Return the claims to renew. Called in any thread."""
        return list(self._hand)

    def _confirm(self, claims: Sequence[K], answer: Any, until: float) -> None:
        """Note until when leases last that were renewed. Called in any thread."""

    @abstractmethod
    def _outcomes(self, claims: Sequence[K], answer: Any) -> Iterable[tuple[K, bool]]:
        """Return which of the claims were renewed. Called on the event loop."""

    def _react(self, claims: Sequence[K], answer: Any, until: float) -> None:
        """Act on what a renewal has found. Called on the event loop."""
        self._renewed(self._outcomes(claims, answer), until)
        if answer.paused:
            self._on_paused()
