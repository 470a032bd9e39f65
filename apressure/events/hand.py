"""What a consumer of events has in hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from apressure.concurrency.settle import set_result_once
from apressure.core.leases.in_hand import ExtendedHand
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Extended


class EventHand(ExtendedHand[EventDelivery[Any]]):
    """The events that a consumer has in hand. Its arguments are those of `ExtendedHand`."""

    kind = "EventQueue"
    _noun = "events"

    def send_back(
        self, unseen: Sequence[EventDelivery[Any]], seen: Sequence[EventDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        answers = []
        kinds = ("unseen", [one.claim for one in unseen]), ("fail", [(*one.claim, one.failure) for one in seen])
        for how, claims in kinds:
            if claims:
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                on_answer = functools.partial(set_result_once, answer)
                self._steps.send_settle(self._steps.series(), how, claims, False, on_answer)
                answers.append(answer)
        return answers

    def _outcomes(self, answer: Extended) -> list[bool]:
        return answer.outcomes
