"""Keeps the leases of a consumer's tasks renewed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apressure.core.leases.clock import Clock
from apressure.core.leases.in_hand import ExtendedInHand
from apressure.exceptions import LeaseLostError
from apressure.tasks.core import Core
from apressure.tasks.delivery import Hand, TaskDelivery
from apressure.tasks.engine.answers import Claim, Renewed
from apressure.tasks.engine.steps import Change


class Renewing(ExtendedInHand[Claim, TaskDelivery[Any]]):
    """Renews the leases of all tasks that a consumer has in hand.

    Args:
        core: The queue.
        hand: What the consumer has in hand.
        seconds, max_hold, on_lost, on_paused, clock: As for `ExtendedInHand`.
        patient: Renew the leases of tasks that were reserved ahead for as long as it takes.
    """

    kind = "TaskQueue"

    def __init__(
        self,
        core: Core[Any],
        hand: Hand,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[TaskDelivery[Any]]], None],
        on_paused: Callable[[], None],
        clock: Clock,
        *,
        patient: bool,
    ) -> None:
        renewer, steps = core.client.renewer, core.steps
        keys, name = steps.script_keys, core.name
        super().__init__(hand, renewer, keys, "tasks", name, seconds, max_hold, on_lost, clock, steps, on_paused)
        self._steps = steps
        self._patient = patient
        self._handed_at = 0.0

    def handed_out(self, delivery: TaskDelivery[Any]) -> None:
        """The program has got a task."""
        self.progress += 1
        self._handed_at = self.clock()
        delivery.handed_out = True

    @property
    def seconds_since_handed_out(self) -> float:
        """For how many seconds the program has got nothing."""
        return self.clock() - self._handed_at

    def excuse(self) -> None:
        """Take a turn of the event loop for progress from now on."""
        self._renewal.standstill.excused += 1

    def _give_back(self, lost: list[TaskDelivery[Any]]) -> None:
        self._steps.send_settle([Change("nack", one.claim) for one in reversed(lost)], 0, lambda _: None)

    def _due(self) -> list[Claim]:
        # While a handler blocks the event loop, others get what was reserved ahead.
        every = self._patient or self.seconds_since_handed_out < self.term.seconds
        return [claim for claim, delivery in list(self._hand.items()) if every or delivery.handed_out]

    def _confirm(self, claims: Sequence[Claim], answer: Renewed, until: float) -> None:
        """Note until when leases last that were renewed. Called in any thread."""
        for claim, letter in zip(claims, answer.letters, strict=False):
            if letter in "1c" and (delivery := self._hand.get(claim)) is not None:
                delivery.renewed(until)

    def _outcomes(self, claims: Sequence[Claim], answer: Renewed) -> Iterable[tuple[Claim, bool]]:
        for claim, letter in zip(claims, answer.letters, strict=False):
            if letter not in "01c":
                self._hand.pop(claim, None)  # a processor elsewhere has ended the task
            elif letter == "c" and (delivery := self._hand.get(claim)) is not None and not delivery.cancel_requested:
                delivery.tell("cancel")
        return zip(claims, (letter in "1c" for letter in answer.letters), strict=False)

    def _tell(self, error: LeaseLostError, lost: list[TaskDelivery[Any]]) -> None:
        for delivery in lost:
            delivery.tell("lost")
        super()._tell(error, lost)
