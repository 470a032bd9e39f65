"""Keeps the leases of a consumer's tasks renewed, by the client's `Renewer`: also while the event loop is blocked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apressure.connection.leases.clock import Clock, Term
from apressure.connection.leases.renewal import Renewal
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.exceptions import LeaseLostError
from apressure.tasks.core import Core
from apressure.tasks.delivery import Hand, TaskDelivery
from apressure.tasks.engine.answers import Claim, Renewed
from apressure.tasks.engine.steps import Change

OnLost = Callable[[LeaseLostError, list[TaskDelivery[Any]]], None]


class Renewing:
    """Renews the leases of all tasks that a consumer has in hand, those that were prefetched included.

    Args:
        core: The queue.
        hand: What the consumer has in hand.
        seconds: How long the leases last.
        max_hold: Seconds without progress after which they are given up.
        on_lost: Called with an error and the deliveries that were lost, on the event loop.
        on_paused: Called on the event loop when a renewal finds the queue paused.
        clock: Returns seconds, also those for which the machine was suspended.
        patient: Renew the leases of tasks that were reserved ahead for as long as it takes.

    Attributes:
        token: Not used: each task has a token of its own.
        term: How long the leases last.
        clock: As given.
        progress: Counts tasks that were handed out.
    """

    token = b""

    def __init__(
        self,
        core: Core,
        hand: Hand,
        seconds: float,
        max_hold: float,
        on_lost: OnLost,
        on_paused: Callable[[], None],
        clock: Clock,
        *,
        patient: bool,
    ) -> None:
        self.term = Term(seconds, clock)
        self.clock = clock
        self.progress = 0
        self._core = core
        self._hand = hand
        self._on_lost = on_lost
        self._on_paused = on_paused
        self._patient = patient
        self._handed_at = 0.0
        self._renewal = Renewal(
            self, core.client.renewer, core.steps.script_keys, self._renew, "tasks", core.name, max_hold
        )  # fmt: skip

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew."""
        return bool(self._hand)

    @property
    def in_hand(self) -> bool:
        """Whether the program may be busy with something."""
        return bool(self._hand)

    def note_task(self) -> None:
        """Note the current task of the event loop, which iterates, for the log."""
        self._renewal.note_task()

    def arrived(self, delivery: TaskDelivery[Any], sent: float) -> None:
        """A task was reserved by a step that was sent then, by the clock."""
        delivery.certain_until = sent + self.term.seconds
        if len(self._hand) == 1 or self._renewal not in self._core.client.renewer:
            self._renewal.begin()

    def handed_out(self, delivery: TaskDelivery[Any]) -> None:
        """The program has got a task."""
        self.progress += 1
        self._handed_at = self.clock()
        delivery.handed_out = True

    @property
    def seconds_since_handed_out(self) -> float:
        """For how many seconds the program has got nothing."""
        return self.clock() - self._handed_at

    def certain(self, delivery: TaskDelivery[Any]) -> bool:
        """Whether its lease has certainly not ended."""
        return self.clock() < delivery.certain_until

    async def assure(self) -> None:
        """Renew all leases now, since some may have ended; what others have got is in hand no more."""
        claims = list(self._hand)
        sent = self.clock()
        answer = await self._core.steps.extend(claims, self.term.seconds)
        self._confirm(claims, answer, sent + self.term.seconds)
        self._react(claims, answer)

    def excuse(self) -> None:
        """Take a turn of the event loop for progress from now on."""
        self._renewal.standstill.excused += 1

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
            changes = [Change("nack", one.claim) for one in reversed(lost)]
            self._core.steps.send_settle(changes, 0, lambda _: None)
            self._tell(error, lost)

    def _renew(
        self,
        _: bytes,
        milliseconds: int,
        on_answer: Callable[[Any], None],
        connection: ReconnectingConnection | None,
    ) -> None:
        """Renew the leases. Called in any thread."""
        # While a handler blocks the event loop, others get what was reserved ahead.
        every = self._patient or self.seconds_since_handed_out < self.term.seconds
        claims = [claim for claim, delivery in list(self._hand.items()) if every or delivery.handed_out]
        sent = self.clock()

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                self._confirm(claims, answer, sent + milliseconds / 1000)
                self._core.client.renewer.call_home(lambda: self._react(claims, answer))
            on_answer(answer)

        self._core.steps.send_extend(claims, milliseconds, answered, connection)

    def _confirm(self, claims: Sequence[Claim], answer: Renewed, until: float) -> None:
        """Note until when leases last that were renewed. Called in any thread."""
        for claim, letter in zip(claims, answer.letters, strict=False):
            if letter in "1c" and (delivery := self._hand.get(claim)) is not None:
                delivery.renewed(until)

    def _react(self, claims: Sequence[Claim], answer: Renewed) -> None:
        """Act on what else a renewal has found. Called on the event loop."""
        lost = []
        for claim, letter in zip(claims, answer.letters, strict=False):
            delivery = self._hand.get(claim)
            if delivery is None:
                continue  # it was settled meanwhile
            if letter in "1c":
                if letter == "c" and not delivery.cancel_requested:
                    delivery.tell("cancel")
                continue
            del self._hand[claim]
            if letter == "0":  # otherwise a processor elsewhere has ended the task
                lost.append(delivery)
        if lost:
            self._tell(
                LeaseLostError(
                    f"the lease of {len(lost)} tasks of the queue {self._core.name!r} ended, and other nodes get them",
                    name=self._core.name,
                    role="consumer",
                ),
                lost,
            )
        if answer.paused:
            self._on_paused()

    def _tell(self, error: LeaseLostError, lost: list[TaskDelivery[Any]]) -> None:
        for delivery in lost:
            delivery.tell("lost")
        self._on_lost(error, lost)
