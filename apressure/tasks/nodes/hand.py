"""What a consumer of tasks has in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from apressure.concurrency.settle import set_result_once
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.in_hand import ExtendedHand
from apressure.exceptions import LeaseLostError
from apressure.tasks.core import Core
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.engine.answers import Renewed
from apressure.tasks.engine.steps import Change


class TaskHand(ExtendedHand[TaskDelivery[Any]]):
    """The tasks that a consumer has in hand.

    Args:
        core: The queue.
        options: As for `ClaimHand`. With a number for `prefetch`, leases of tasks that were reserved ahead are renewed
            for as long as it takes.
        limited: Otherwise a turn of the event loop is progress enough.
    """

    kind = "TaskQueue"
    _noun = "tasks"

    def __init__(self, core: Core[Any], options: ConsumerOptions, *, limited: bool) -> None:
        super().__init__(core.client.renewer, core.steps, options)
        self._core = core
        self._patient = options.prefetch is not None
        self._renewal.standstill.excused += not limited

    def send_back(
        self, unseen: Sequence[TaskDelivery[Any]], seen: Sequence[TaskDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        changes = [Change("unseen", one.claim) for one in reversed(unseen)]
        changes += [one.nacked for one in reversed(seen)]

        def on_answer(answer: Any) -> None:
            if not isinstance(answer, Exception):
                for one, change, letter in zip(seen[::-1], changes[len(unseen) :], answer[len(unseen) :], strict=True):
                    if letter == "1":
                        one.note_dead(change)
            set_result_once(done, answer)

        if changes:
            self._steps.send_settle(changes, self._core.result_ttl, on_answer)
        return [done] if changes else []

    def _due(self) -> list[TaskDelivery[Any]]:
        # While a handler blocks the event loop, others get what was reserved ahead.
        every = self._patient or self.clock() - self.handed_at < self.term.seconds
        return [delivery for delivery in list(self.claims) if every or delivery.handed_out]

    def _confirm(self, due: Sequence[TaskDelivery[Any]], answer: Renewed, until: float) -> None:
        for delivery, renewed in zip(due, self._outcomes(answer), strict=False):
            if renewed and delivery in self.claims:
                delivery.renewed(until)

    def _outcomes(self, answer: Renewed) -> list[bool]:
        return [letter in "1c" for letter in answer.letters]

    def _react(self, due: Sequence[TaskDelivery[Any]], answer: Renewed, until: float) -> None:
        for delivery, letter in zip(due, answer.letters, strict=False):
            if letter not in "01c":
                self.claims.pop(delivery, None)  # a processor elsewhere has ended the task
            elif letter == "c" and delivery in self.claims and not delivery.cancel_requested:
                delivery.tell("cancel")
        super()._react(due, answer, until)

    def _tell(self, error: LeaseLostError, lost: Sequence[TaskDelivery[Any]]) -> None:
        for delivery in lost:
            delivery.tell("lost")
        super()._tell(error, lost)
