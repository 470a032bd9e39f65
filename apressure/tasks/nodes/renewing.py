"""Keeps the leases of a consumer's tasks renewed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apressure.core.driver import Connection
from apressure.core.leases.clock import Clock
from apressure.core.leases.in_hand import LeasesInHand
from apressure.exceptions import LeaseLostError
from apressure.tasks.core import Core
from apressure.tasks.delivery import Hand, TaskDelivery
from apressure.tasks.engine.answers import Claim, Renewed
from apressure.tasks.engine.steps import Change


class Renewing(LeasesInHand[Claim, TaskDelivery[Any]]):
    """Renews the leases of all tasks that a consumer has in hand.

    Args:
        core: The queue.
        hand: What the consumer has in hand.
        seconds: As for `LeasesInHand`.
        max_hold: As for `LeasesInHand`.
        on_lost: As for `LeasesInHand`.
        on_paused: Called on the event loop when a renewal finds the queue paused.
        clock: As for `LeasesInHand`.
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
        super().__init__(hand, renewer, steps.script_keys, "tasks", core.name, seconds, max_hold, on_lost, clock)
        self._steps = steps
        self._on_paused = on_paused
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

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        claims = list(self._hand)
        until = self.clock() + self.term.seconds
        answer = await self._steps.extend(claims, self.term.seconds)
        self._confirm(claims, answer, until)
        self._react(claims, answer, until)

    def excuse(self) -> None:
        """Take a turn of the event loop for progress from now on."""
        self._renewal.standstill.excused += 1

    def _give_back(self, lost: list[TaskDelivery[Any]]) -> None:
        self._steps.send_settle([Change("nack", one.claim) for one in reversed(lost)], 0, lambda _: None)

    def _renew(
        self,
        token: bytes,  # noqa: ARG002
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: Connection | None,
    ) -> None:
        # While a handler blocks the event loop, others get what was reserved ahead.
        every = self._patient or self.seconds_since_handed_out < self.term.seconds
        claims = [claim for claim, delivery in list(self._hand.items()) if every or delivery.handed_out]
        until = self.clock() + milliseconds / 1000

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self._confirm(claims, answer, until)
                self._renewer.call_home(lambda: self._react(claims, answer, until))
            on_answer(answer)

        self._steps.send_extend(claims, milliseconds, answered, connection)

    def _confirm(self, claims: Sequence[Claim], answer: Renewed, until: float) -> None:
        """Note until when leases last that were renewed. Called in any thread."""
        for claim, letter in zip(claims, answer.letters, strict=False):
            if letter in "1c" and (delivery := self._hand.get(claim)) is not None:
                delivery.renewed(until)

    def _react(self, claims: Sequence[Claim], answer: Renewed, until: float) -> None:
        """Act on what else a renewal has found. Called on the event loop."""
        for claim, letter in zip(claims, answer.letters, strict=False):
            if letter not in "01c":
                self._hand.pop(claim, None)  # a processor elsewhere has ended the task
            elif letter == "c" and (delivery := self._hand.get(claim)) is not None and not delivery.cancel_requested:
                delivery.tell("cancel")
        self._renewed(zip(claims, (letter in "1c" for letter in answer.letters), strict=False), until)
        if answer.paused:
            self._on_paused()

    def _tell(self, error: LeaseLostError, lost: list[TaskDelivery[Any]]) -> None:
        for delivery in lost:
            delivery.tell("lost")
        super()._tell(error, lost)
