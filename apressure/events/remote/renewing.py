"""Keeps the leases of a consumer's events renewed (QEXTEND), by the client's `Renewer`. Servers of ours can do that."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from apressure import background
from apressure.connection.leases.clock import Term, since_boot
from apressure.connection.leases.renewal import Renewal
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import Hand, RemoteEventDelivery
from apressure.exceptions import LeaseLostError, PressureError

OnLost = Callable[[LeaseLostError, list[RemoteEventDelivery[Any]]], None]


class Renewing:
    """Renews the leases of all events that a consumer has in hand, those that were prefetched included.

    Args:
        client: The client.
        hand: What the consumer has in hand.
        name: The queue's name, or several, for the log.
        seconds: How long the leases last.
        max_hold: Seconds without progress after which they are given up.
        on_lost: Called with an error and the deliveries that were lost, on the event loop.

    Attributes:
        token: Not used: okq knows claims by the events' ids.
        term: How long the leases last.
        progress: Counts events that were handed out.
    """

    token = b""

    def __init__(
        self, client: OkqClient, hand: Hand, name: str, seconds: float, max_hold: float, on_lost: OnLost
    ) -> None:
        self.term = Term(seconds, since_boot)
        self.progress = 0
        self._client = client
        self._hand = hand
        self._name = name
        self._on_lost = on_lost
        self._renewal = Renewal(self, client.renewer, (), self._renew, "events", name, max_hold)

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

    def arrived(self) -> None:
        """Events have come."""
        self._renewal.begin()

    def end(self) -> None:
        """Renew nothing any more."""
        self._renewal.end()

    def renew(self) -> None:
        """Renew the leases over the client's own connection. Called on the event loop."""
        if self._hand:
            self._renew(b"", self.term.milliseconds, lambda _: None, None)

    def give_up(self, error: LeaseLostError) -> None:
        """Give back everything in hand; the consumer raises the error. Called on the event loop."""
        lost = list(self._hand)
        self._hand.clear()
        for name, deliveries in _by_queue(lost):
            self._client.soon(self._client.commands.put_back(name, [one.event for one in deliveries]))
        if lost:
            self._on_lost(error, lost)

    def _renew(
        self,
        _: bytes,
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: ReconnectingConnection | None,
    ) -> None:
        """Renew the leases. Called in any thread, on the event loop of the connection."""
        background.start(self._extend(milliseconds / 1000, on_answer, connection), "renewing leases of events")

    async def _extend(
        self, seconds: float, on_answer: Callable[[Any], None], connection: ReconnectingConnection | None
    ) -> None:
        sent = since_boot()
        try:
            for name, deliveries in _by_queue(list(self._hand)):
                events = [one.event for one in deliveries]
                outcomes = await self._client.commands.extend(name, events, seconds, connection)
                self._client.renewer.call_home(functools.partial(self._renewed, deliveries, outcomes, sent + seconds))
        except PressureError as error:
            on_answer(error)
        else:
            on_answer(1)

    def _renewed(self, deliveries: Sequence[RemoteEventDelivery[Any]], outcomes: Sequence[bool], until: float) -> None:
        """Note what a renewal has done. Called on the event loop."""
        lost = []
        for delivery, extended in zip(deliveries, outcomes, strict=True):
            if delivery not in self._hand:
                continue  # it was settled meanwhile
            if extended:
                delivery.until = max(until, delivery.until)
            else:
                del self._hand[delivery]
                lost.append(delivery)
        if lost:
            self._on_lost(
                LeaseLostError(
                    f"the lease of {len(lost)} events of the queue {self._name!r} ended, and other clients get them",
                    name=self._name,
                    role="consumer",
                ),
                lost,
            )


def _by_queue(
    deliveries: Sequence[RemoteEventDelivery[Any]],
) -> list[tuple[str, list[RemoteEventDelivery[Any]]]]:
    ordered = sorted(deliveries, key=lambda one: one.queue)
    return [(name, list(some)) for name, some in itertools.groupby(ordered, key=lambda one: one.queue)]
