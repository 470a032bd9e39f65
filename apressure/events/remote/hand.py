"""What a consumer of an okq server has in hand. Servers of ours can renew leases (QEXTEND)."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from apressure.concurrency import background
from apressure.core.driver import Connection, OnAnswer
from apressure.core.leases.in_hand import ClaimHand, Options
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import RemoteEventDelivery
from apressure.exceptions import PressureError

Deliveries = Sequence[RemoteEventDelivery[Any]]


class RemoteHand(ClaimHand[RemoteEventDelivery[Any]]):
    """The events that a consumer has in hand. okq knows claims by the events' ids.

    Args:
        client: The client.
        name, options: As for `ClaimHand`.

    Attributes:
        extends: The server renews leases: it is one of ours.
    """

    kind = "RemoteEventQueue"
    _noun = "events"

    def __init__(self, client: OkqClient, name: str, options: Options) -> None:
        super().__init__(client.renewer, (), name, options)
        self.extends = False
        self._client = client

    def took(self, deliveries: Deliveries) -> None:
        if self.extends:
            super().took(deliveries)
        else:
            self.buffer.extend(deliveries)
            self.claims.update(zip(deliveries, deliveries, strict=True))

    def surrender(self) -> tuple[list[RemoteEventDelivery[Any]], list[RemoteEventDelivery[Any]]]:
        unseen, seen = super().surrender()
        for one in (*unseen, *seen):
            one.settled = True  # an event could be acknowledged by its id until it is back
        for one in unseen:
            one.forget()
        return unseen, seen

    def send_back(self, unseen: Deliveries, seen: Deliveries) -> list[asyncio.Future[Any]]:
        return [self._client.soon(self._put_back(unseen, seen))] if unseen or seen else []

    async def _put_back(self, unseen: Deliveries, seen: Deliveries) -> None:
        for some in (unseen, seen):
            # What has gone back by itself may be in the hands of others.
            for name, deliveries in _by_queue(one for one in some if one.certain):
                errors = [one.failure for one in deliveries] if some is seen else None
                await self._client.commands.put_back(name, [one.event for one in deliveries], errors)

    def give_back_paused(self, name: str) -> None:
        """Give back what came from a queue that is paused now, and was not handed out."""
        others = [one for one in self.buffer if one.queue != name]
        unseen = [one for one in self.buffer if one.queue == name]
        self.buffer.clear()
        self.buffer.extend(others)
        for one in unseen:
            self.claims.pop(one, None)
        self.send_back(unseen, ())

    async def assure(self) -> None:
        for name, deliveries in _by_queue(self.claims):
            until = self.clock() + self.term.seconds
            extending = self._client.commands.extend(name, [one.event for one in deliveries], self.term.seconds)
            self._renewed(deliveries, await self._client.step(extending), until)

    def _renew(self, milliseconds: int, on_answer: OnAnswer, connection: Connection | None) -> None:
        background.start(self._extend(milliseconds / 1000, on_answer, connection), "renewing leases of events")

    async def _extend(self, seconds: float, on_answer: OnAnswer, connection: Connection | None) -> None:
        until, commands = self.clock() + seconds, self._client.commands
        try:
            for name, deliveries in _by_queue(list(self.claims)):
                outcomes, paused = await asyncio.gather(
                    commands.extend(name, [one.event for one in deliveries], seconds, connection),
                    commands.is_paused(name, connection or commands.connection),
                )
                self._renewer.call_home(functools.partial(self._renewed, deliveries, outcomes, until))
                if paused:
                    self._renewer.call_home(functools.partial(self.give_back_paused, name))
        except PressureError as error:
            on_answer(error)
        else:
            on_answer(1)


def _by_queue(deliveries: Iterable[RemoteEventDelivery[Any]]) -> list[tuple[str, list[RemoteEventDelivery[Any]]]]:
    ordered = sorted(deliveries, key=lambda one: one.queue)
    return [(name, list(some)) for name, some in itertools.groupby(ordered, key=lambda one: one.queue)]
