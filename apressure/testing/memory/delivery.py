"""A message in flight, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.core.delivery import LeasedDelivery
from apressure.core.leases.arguments import lease_of
from apressure.core.leases.in_hand import InHand
from apressure.exceptions import LeaseLostError
from apressure.testing.memory.driver import MemoryDriver
from apressure.testing.memory.stored import Change, Taken

T = TypeVar("T")


class MemoryDelivery(LeasedDelivery[T]):
    """A message in flight: no other consumer gets it until its lease ends.

    Attributes:
        raw, attempts, settled, certain_until: As for every kind of queue.
        taken: What the step has taken.
        claim: The number of its claim.
        error: Why this attempt failed, as `dead_letters.encode` returns it.
    """

    __slots__ = ("_driver", "claim", "error", "taken")

    _noun = "message"

    def __init__(
        self, driver: MemoryDriver, decode: Callable[[bytes], T], taken: Taken, in_hand: Hand | None = None
    ) -> None:
        self._driver = driver
        self._decode = decode
        self._in_hand = in_hand
        self.taken = taken
        self.claim = taken.claim
        self.raw = taken.message.data
        self.attempts = taken.attempts
        self.settled = False
        self.error = b""
        self.certain_until = 0.0

    @property
    def id(self) -> str:
        """The message's id."""
        return self.taken.message.id

    async def ack(self) -> None:
        """Acknowledge the message: it never comes again.

        Raises:
            LeaseLostError: Its lease ended before, and it has gone back.
            RuntimeError: It was settled before.

        Cancelled, it waits for the outcome, then raises: the message is acknowledged or in flight.
        """
        await self._settle(Change(self.claim, ack=True), "acknowledged")

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the message goes back: a dead letter shows its latest error.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        self.error = dead_letters.encode(error)

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the message back, first in line.

        Args:
            error: Why; see `MemoryQueue.dead_letters`. None keeps no error of this attempt.

        Raises:
            LeaseLostError, RuntimeError: As for `ack`.
            TypeError: The error is neither an exception nor a text.

        Cancelled, it waits for the outcome, then raises: the message is given back or in flight.
        """
        if error is not None:
            self.note_error(error)
        await self._settle(self.failure, "given back")

    @property
    def failure(self) -> Change:
        """What gives the message back, with the error of this attempt."""
        return Change(self.claim, ack=False, error=self.error)

    def ack_soon(self) -> None:
        """Acknowledge the message with the next step that leaves. If that fails, the consumer says so.

        Raises:
            LeaseLostError: It is known already that the lease has ended.
            RuntimeError: It was settled before.
        """
        self._begin("acknowledged")
        self._driver.settler.soon(Change(self.claim, ack=True), self._acked)

    async def extend(self, seconds: float) -> None:
        """Keep the message in flight for at least `seconds` from now. The lease never gets shorter.

        Raises:
            LeaseLostError: The lease ended before.
            RuntimeError: It was settled before.
            TypeError, ValueError: `seconds` is invalid.

        Cancelled, it is extended or not, and can be settled.
        """
        seconds = lease_of(seconds, "seconds")
        self._check("extended")
        (extended,) = (await self._driver.extend([self.claim], seconds)).outcomes
        if not extended and not self.settled:
            raise self._lost("extended")
        if self._in_hand is not None:
            self._in_hand.extended(seconds)

    async def _settle(self, change: Change, what: str) -> None:
        self._begin(what)
        try:
            done = await self._driver.settler.settle(change)
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
        name = self._driver.name
        text = f"the message {self.id} of {name!r} was not {what}: its lease has ended and another client gets it again"
        return LeaseLostError(text, name=name, role="consumer")


class Hand(InHand[int, MemoryDelivery[Any]]):
    """A consumer's deliveries."""
