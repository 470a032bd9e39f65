"""Keeps the leases of a consumer's events renewed (QEXTEND). Servers of ours can do that."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from apressure.concurrency import background
from apressure.core.driver import Connection
from apressure.core.leases.in_hand import LeasesInHand
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import Hand, RemoteEventDelivery
from apressure.exceptions import LeaseLostError, PressureError


class Renewing(LeasesInHand[RemoteEventDelivery[Any], RemoteEventDelivery[Any]]):
    """Renews the leases of all events that a consumer has in hand. okq knows claims by the events' ids.

    Args:
        client: The client.
        hand: What the consumer has in hand.
        name: As for `LeasesInHand`.
        seconds: As for `LeasesInHand`.
        max_hold: As for `LeasesInHand`.
        on_lost: As for `LeasesInHand`.
        on_paused: Called with the name of a queue, on the event loop, when a renewal finds it paused.
    """

    kind = "RemoteEventQueue"

    def __init__(
        self,
        client: OkqClient,
        hand: Hand,
        name: str,
        seconds: float,
        max_hold: float,
        on_lost: Callable[[LeaseLostError, list[RemoteEventDelivery[Any]]], None],
        on_paused: Callable[[str], None],
    ) -> None:
        super().__init__(hand, client.renewer, (), "events", name, seconds, max_hold, on_lost)
        self._client = client
        self._on_paused = on_paused

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        for name, deliveries in _by_queue(list(self._hand)):
            sent = self.clock()
            extending = self._client.commands.extend(name, [one.event for one in deliveries], self.term.seconds)
            outcomes = await self._client.step(extending)
            self._renewed(zip(deliveries, outcomes, strict=True), sent + self.term.seconds)

    def _give_back(self, lost: list[RemoteEventDelivery[Any]]) -> None:
        for name, deliveries in _by_queue(lost):
            events, errors = [one.event for one in deliveries], [one.failure for one in deliveries]
            self._client.soon(self._client.commands.put_back(name, events, errors))

    def _renew(
        self,
        token: bytes,  # noqa: ARG002
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: Connection | None,
    ) -> None:
        background.start(self._extend(milliseconds / 1000, on_answer, connection), "renewing leases of events")

    async def _extend(self, seconds: float, on_answer: Callable[[Any], None], connection: Connection | None) -> None:
        until, commands = self.clock() + seconds, self._client.commands
        try:
            for name, deliveries in _by_queue(list(self._hand)):
                events = [one.event for one in deliveries]
                outcomes, paused = await asyncio.gather(
                    commands.extend(name, events, seconds, connection),
                    commands.is_paused(name, connection or commands.connection),
                )
                renewed = zip(deliveries, outcomes, strict=True)
                self._renewer.call_home(functools.partial(self._renewed, renewed, until))
                if paused:
                    self._renewer.call_home(functools.partial(self._on_paused, name))
        except PressureError as error:
            on_answer(error)
        else:
            on_answer(1)


def _by_queue(
    deliveries: Sequence[RemoteEventDelivery[Any]],
) -> list[tuple[str, list[RemoteEventDelivery[Any]]]]:
    ordered = sorted(deliveries, key=lambda one: one.queue)
    return [(name, list(some)) for name, some in itertools.groupby(ordered, key=lambda one: one.queue)]
