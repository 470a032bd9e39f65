"""Keeps the leases of a consumer's events renewed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apressure.connection.client import Client
from apressure.core.leases.clock import Clock
from apressure.core.leases.in_hand import ExtendedInHand
from apressure.events.delivery import EventDelivery, Hand
from apressure.events.engine.answers import Extended
from apressure.events.engine.steps import Claim, EventSteps
from apressure.exceptions import LeaseLostError


class Renewing(ExtendedInHand[Claim, EventDelivery[Any]]):
    """Renews the leases of all events that a consumer has in hand.

    Args:
        client: The client.
        steps: The queue's steps.
        hand: What the consumer has in hand.
        seconds, max_hold, on_lost, on_paused, clock: As for `ExtendedInHand`.
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
        keys, name = steps.script_keys, steps.name
        super().__init__(
            hand, client.renewer, keys, "events", name, seconds, max_hold, on_lost, clock, steps, on_paused
        )
        self._steps = steps

    def _give_back(self, lost: list[EventDelivery[Any]]) -> None:
        failures = [one.failure for one in lost]
        self._steps.send_settle(self._steps.series(), "fail", failures, False, lambda _: None)

    def _outcomes(self, claims: Sequence[Claim], answer: Extended) -> Iterable[tuple[Claim, bool]]:
        return zip(claims, answer.outcomes, strict=False)
