"""An event in flight, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.core.delivery import LeasedDelivery
from apressure.core.leases.arguments import lease_of
from apressure.core.leases.in_hand import InHand
from apressure.events.engine.answers import Event
from apressure.events.engine.batching import Change, EventSettler
from apressure.events.engine.steps import Claim, EventSteps
from apressure.exceptions import LeaseLostError

T = TypeVar("T")


class EventDelivery(LeasedDelivery[T]):
    """An event in flight: no other consumer gets it until its lease ends.

    Attributes:
        raw: The event's contents.
        attempts: How often it has been delivered, this time included. An okq that works on the queue, too, does not
            count its own deliveries.
        settled: Whether `ack` or `nack` has been called.

    Args:
        steps: The queue's steps.
        settler: Settles it.
        decode: Decodes its contents.
        event: The event.
        in_hand: The consumer's deliveries; None for `receive`.
    """

    __slots__ = ("_error", "_settler", "_steps", "claim")

    _noun = "event"

    def __init__(
        self,
        steps: EventSteps,
        settler: EventSettler,
        decode: Callable[[bytes], T],
        event: Event,
        in_hand: Hand | None = None,
    ) -> None:
        self._steps = steps
        self._settler = settler
        self._decode = decode
        self._in_hand = in_hand
        self.claim: Claim = (event.id, event.token)
        self.raw = event.contents
        self.attempts = event.attempts
        self.settled = False
        self._error = b""
        self.certain_until = 0.0  # by the clock of its consumer

    @property
    def id(self) -> str:
        """The event's id."""
        return self.claim[0].decode(errors="surrogateescape")

    async def ack(self) -> None:
        """Acknowledge the event: it never comes again (specification: QACK).

        Raises:
            LeaseLostError: Its lease ended before, and it has gone back, or was acknowledged by its id.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            RuntimeError: It was settled before.

        Cancelled, it waits for the outcome, then raises: the event is acknowledged or in flight.
        """
        await self._settle("ack", "acknowledged")

    @property
    def failure(self) -> tuple[bytes, bytes, bytes]:
        """The claim, and why the attempt failed, as the step takes them that gives the event back."""
        return (*self.claim, self._error)

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the event goes back: a dead letter shows its latest error.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        text = dead_letters.encode(error)
        if self._settler.keep_errors:
            self._error = text

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the event back, first in line (specification: QACK with REDO).

        Args:
            error: Why; see `EventQueue.dead_letters`. None keeps no error of this attempt.

        Raises:
            LeaseLostError, OutcomeUnknownError, RuntimeError: As for `ack`.
            TypeError: The error is neither an exception nor a text.

        Cancelled, it waits for the outcome, then raises: the event is given back or in flight.
        """
        if error is not None:
            self.note_error(error)
        await self._settle("fail" if self._error else "nack", "given back")

    def ack_soon(self) -> None:
        """Acknowledge the event with the next step that leaves. If that fails, the consumer says so.

        Raises:
            LeaseLostError: It is known already that the lease has ended.
            RuntimeError: It was settled before.
        """
        hand = self._in_hand
        if self.settled or (hand is not None and hand.pop(self.claim, None) is None):
            self._begin("acknowledged")  # says why not
        self.settled = True
        self._settler.soon(Change("ack", self.claim), self._acked)

    @property
    def in_hand(self) -> bool:
        """Whether it is neither settled nor known to be lost."""
        return not self.settled and (self._in_hand is None or self.claim in self._in_hand)

    def moved(self) -> None:
        """Note that the step that put its results has acknowledged it."""
        self.settled = True
        if self._in_hand is not None:
            self._in_hand.pop(self.claim, None)

    async def extend(self, seconds: float) -> None:
        """Keep the event in flight for at least `seconds` from now. The lease never gets shorter.

        Raises:
            LeaseLostError: The lease ended before.
            RuntimeError: It was settled before.
            TypeError, ValueError: `seconds` is invalid.

        Cancelled, it is extended or not, and can be settled.
        """
        seconds = lease_of(seconds, "seconds")
        self._check("extended")
        (extended,) = (await self._steps.extend([self.claim], seconds)).outcomes
        if not extended and not self.settled:
            raise self._lost("extended")
        if self._in_hand is not None:
            self._in_hand.extended(seconds)

    async def _settle(self, how: str, what: str) -> None:
        self._begin(what)
        try:
            done = await self._settler.settle(Change(how, self.failure if how == "fail" else self.claim))
        except Exception:
            self.settled = False  # another try may succeed
            if self._in_hand is not None:
                self._in_hand[self.claim] = self
            raise
        if not done:
            raise self._lost(what)

    def _begin(self, what: str) -> None:
        self._check(what)
        self.settled = True
        if self._in_hand is not None and self._in_hand.pop(self.claim, None) is None:
            raise self._lost(what)

    def _acked(self, outcome: bool | Exception) -> None:
        error = outcome if isinstance(outcome, Exception) else None if outcome else self._lost("acknowledged")
        if error is not None and self._in_hand is not None:
            self._in_hand.on_failure(error)

    def _lost(self, what: str) -> LeaseLostError:
        name = self._steps.name
        return LeaseLostError(
            f"the event {self.id} of {name!r} was not {what}: its lease has ended and another client gets it again, or "
            "it was acknowledged by its id",
            name=name,
            role="consumer",
        )


class Hand(InHand[Claim, EventDelivery[Any]]):
    """A consumer's deliveries."""
