"""An event in flight, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure.core import requests
from apressure.core.delivery import BatchedDelivery, Hand
from apressure.core.due import Due
from apressure.events.engine.answers import Event
from apressure.events.engine.batching import Change, EventSettler
from apressure.events.engine.steps import Claim

T = TypeVar("T")


class EventDelivery(BatchedDelivery[T]):
    """An event in flight: no other consumer gets it until its lease ends.

    Attributes:
        raw: The event's contents.
        attempts: How often it has been delivered, this time included. An okq that works on the queue, too, does not
            count its own deliveries.
        settled: Whether `ack` or `nack` has been called.
        claim: What names it on the server.

    Args:
        settler: Settles it.
        decode: Decodes its contents.
        event: The event.
        until: Until when its lease has certainly not ended.
        in_hand: The consumer's deliveries; None for `receive`.
    """

    __slots__ = ("_kept", "_settler", "attempts", "claim", "raw")

    raw: bytes
    attempts: int
    _settler: EventSettler

    _noun = "event"
    _gone = "its lease has ended and another client gets it again, or it was acknowledged by its id"

    def __init__(
        self, settler: EventSettler, decode: Callable[[bytes], T], event: Event, until: float = 0.0,
        in_hand: Hand | None = None,
    ) -> None:  # fmt: skip
        event_id, self.raw, self.attempts, token, self._kept = event
        self.claim: Claim = (event_id, token)
        self._settler = settler
        self.decode = decode
        self._in_hand = in_hand
        self.settled = self.handed_out = False
        self.failure = b""
        self.certain_until = until

    @property
    def id(self) -> str:
        """The event's id."""
        return self.claim[0].decode(errors="surrogateescape")

    @property
    def cost(self) -> int:
        return int(self._kept[1:-1] or 1)  # `$`, the cost and `;`

    @property
    def in_hand(self) -> bool:
        """Whether it is neither settled nor known to be lost."""
        return not self.settled and (self._in_hand is None or self in self._in_hand.claims)

    def moved(self) -> None:
        """Note that the step that put its results has acknowledged it."""
        self.settled = True
        if self._in_hand is not None:
            self._in_hand.claims.pop(self, None)

    @property
    def _queue_name(self) -> str:
        return self._settler.steps.name

    @property
    def _keeps_errors(self) -> bool:
        return self._settler.keep_errors

    def _is_last(self) -> bool:
        most = self._settler.max_attempts
        return most is not None and self.attempts >= most

    @property
    def asked(self) -> bool:
        return requests.is_request(self.id)

    def encode_reply(self, value: Any) -> bytes:
        return requests.encode_reply(value, self._settler.steps.connection.node.settings.max_message_size)

    def _replied(self, reply: bytes) -> Change:
        return ("reply", (*self.claim, reply))

    def _change(self, back: bool, due: Due | None = None) -> Change:
        if due is not None:
            return ("later", (*self.claim, self.failure, due.encoded))
        if self.failure and back:
            return ("fail", (*self.claim, self.failure))
        return ("nack" if back else "ack", self.claim)

    @property
    def _released(self) -> Change:
        return ("unseen", self.claim)

    async def _make(self, change: Change) -> bool:
        return await self._settler.settle(change)

    async def _extend(self, seconds: float) -> Any:
        return (await self._settler.steps.extend([self.claim], seconds)).outcomes[0]
