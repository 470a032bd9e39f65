"""Keeps the leases of a consumer's events renewed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apressure.connection.client import Client
from apressure.core.driver import Connection
from apressure.core.leases.clock import Clock
from apressure.core.leases.in_hand import LeasesInHand
from apressure.events.delivery import EventDelivery, Hand
from apressure.events.engine.steps import Claim, EventSteps
from apressure.exceptions import LeaseLostError


class Renewing(LeasesInHand[Claim, EventDelivery[Any]]):
    """Renews the leases of all events that a consumer has in hand.

    Args:
        client: The client.
        steps: The queue's steps.
        hand: What the consumer has in hand.
        seconds: As for `LeasesInHand`.
        max_hold: As for `LeasesInHand`.
        on_lost: As for `LeasesInHand`.
        on_paused: Called on the event loop when a renewal finds the queue paused.
        clock: As for `LeasesInHand`.
    """

    kind = "EventQueue"

    def __init__(
        self,
        client: Client,
        steps: EventSteps,
        hand: Hand,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[EventDelivery[Any]]], None],
        on_paused: Callable[[], None],
        clock: Clock,
    ) -> None:
        super().__init__(
            hand, client.renewer, steps.script_keys, "events", steps.name, seconds, max_hold, on_lost, clock
        )
        self._steps = steps
        self._on_paused = on_paused

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        claims = list(self._hand)
        sent = self.clock()
        outcomes = await self._steps.extend(claims, self.term.seconds)
        self._renewed(zip(claims, outcomes, strict=True), sent + self.term.seconds)

    def _give_back(self, lost: list[EventDelivery[Any]]) -> None:
        failures = [one.failure for one in lost]
        self._steps.send_settle(self._steps.series(), "fail", failures, False, lambda _: None)

    def _renew(
        self,
        token: bytes,  # noqa: ARG002
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: Connection | None,
    ) -> None:
        claims = list(self._hand)
        sent = self.clock()

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                until, renewed = sent + milliseconds / 1000, [letter == ord("1") for letter in answer.letters]
                self._renewer.call_home(lambda: self._renewed(zip(claims, renewed, strict=False), until))
                if answer.paused:
                    self._renewer.call_home(self._on_paused)
            on_answer(answer)

        self._steps.send_extend(claims, milliseconds, answered, connection)
