"""Keeps the leases of a consumer's events renewed, by the client's `Renewer`: also while the event loop is blocked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from apressure.connection.client import Client
from apressure.connection.leases.clock import Clock, Term
from apressure.connection.leases.renewal import Renewal
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.events.delivery import EventDelivery, Hand
from apressure.events.engine.steps import Claim, EventSteps
from apressure.exceptions import LeaseLostError

OnLost = Callable[[LeaseLostError, list[EventDelivery[Any]]], None]


class Renewing:
    """Renews the leases of all events that a consumer has in hand, those that were prefetched included.

    Args:
        client: The client.
        steps: The queue's steps.
        hand: What the consumer has in hand.
        seconds: How long the leases last.
        max_hold: Seconds without progress after which they are given up.
        on_lost: Called with an error and the deliveries that were lost, on the event loop.
        on_paused: Called on the event loop when a renewal finds the queue paused.
        clock: Returns seconds, also those for which the machine was suspended.

    Attributes:
        token: Not used: each event has a token of its own.
        term: How long the leases last.
        clock: As given.
        progress: Counts events that were handed out.
    """

    token = b""

    def __init__(
        self,
        client: Client,
        steps: EventSteps,
        hand: Hand,
        seconds: float,
        max_hold: float,
        on_lost: OnLost,
        on_paused: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.term = Term(seconds, clock)
        self.clock = clock
        self.progress = 0
        self._client = client
        self._steps = steps
        self._hand = hand
        self._on_lost = on_lost
        self._on_paused = on_paused
        self._renewal = Renewal(self, client.renewer, steps.script_keys, self._renew, "events", steps.name, max_hold)
        hand.standstill = self._renewal.standstill  # fmt: skip

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew."""
        return bool(self._hand)

    @property
    def in_hand(self) -> bool:
        """Whether the program may be busy with something."""
        return bool(self._hand)

    def note_task(self) -> None:
        """Note the current task, which iterates, for the log."""
        self._renewal.note_task()

    def arrived(self, delivery: EventDelivery[Any], sent: float) -> None:
        """An event was claimed by a step that was sent then, by the clock."""
        delivery.certain_until = sent + self.term.seconds
        if len(self._hand) == 1 or self._renewal not in self._client.renewer:
            self._renewal.begin()

    def certain(self, delivery: EventDelivery[Any]) -> bool:
        """Whether its lease has certainly not ended."""
        return self.clock() < delivery.certain_until

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        claims = list(self._hand)
        sent = self.clock()
        outcomes = await self._steps.extend(claims, self.term.seconds)
        self._renewed(zip(claims, outcomes, strict=True), sent + self.term.seconds)

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
            failures = [one.failure for one in lost]
            self._steps.send_settle(self._steps.series(), "fail", failures, False, lambda _: None)
            self._on_lost(error, lost)

    def _renew(
        self,
        _: bytes,
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: ReconnectingConnection | None,
    ) -> None:
        """Renew the leases. Called in any thread."""
        claims = list(self._hand)
        sent = self.clock()

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                until, renewed = sent + milliseconds / 1000, [letter == ord("1") for letter in answer.letters]
                self._client.renewer.call_home(lambda: self._renewed(zip(claims, renewed, strict=False), until))
                if answer.paused:
                    self._client.renewer.call_home(self._on_paused)
            on_answer(answer)

        self._steps.send_extend(claims, milliseconds, answered, connection)

    def _renewed(self, outcomes: Iterable[tuple[Claim, bool]], until: float) -> None:
        """Note what a renewal has done. Called on the event loop."""
        lost = []
        for claim, renewed in outcomes:
            delivery = self._hand.get(claim)
            if delivery is None:
                continue  # it was settled meanwhile
            if renewed:
                delivery.certain_until = max(until, delivery.certain_until)
            else:
                del self._hand[claim]
                lost.append(delivery)
        if lost:
            name = self._steps.name
            self._on_lost(
                LeaseLostError(
                    f"the lease of {len(lost)} events of the queue {name!r} ended, and other clients get them",
                    name=name,
                    role="consumer",
                ),
                lost,
            )
