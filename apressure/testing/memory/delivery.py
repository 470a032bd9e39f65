"""A message in flight, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure.core import requests
from apressure.core.delivery import BatchedDelivery, Hand
from apressure.core.due import Due
from apressure.testing.memory.driver import MemoryDriver
from apressure.testing.memory.messages import MAX_MESSAGE_SIZE, Change, Taken

T = TypeVar("T")


class MemoryDelivery(BatchedDelivery[T]):
    """A message in flight: no other consumer gets it until its lease ends.

    Attributes:
        taken: What the step has taken.
        claim: The number of its claim.
    """

    __slots__ = ("_driver", "_settler", "attempts", "claim", "raw", "taken")

    raw: bytes
    attempts: int

    _noun = "message"
    _gone = "its lease has ended and another client gets it again"

    def __init__(
        self,
        driver: MemoryDriver,
        decode: Callable[[bytes], T],
        taken: Taken,
        until: float = 0.0,
        in_hand: Hand | None = None,
    ) -> None:
        self._driver = driver
        self.decode = decode
        self._in_hand = in_hand
        self.taken = taken
        self.raw, self.attempts, self.claim = taken.message.data, taken.attempts, taken.claim
        self.settled = self.handed_out = False
        self.failure = b""
        self._settler = driver.settler
        self.certain_until = until

    @property
    def id(self) -> str:
        """The message's id."""
        return self.taken.message.id

    @property
    def cost(self) -> int:
        return self.taken.message.cost

    @property
    def _queue_name(self) -> str:
        return self._driver.name

    @property
    def _keeps_errors(self) -> bool:
        return True

    def _is_last(self) -> bool:
        return self._driver.max_attempts is not None and self.attempts >= self._driver.max_attempts

    def _change(self, back: bool, due: Due | None = None) -> Change:
        return Change(self.claim, not back, self.failure, due)

    @property
    def asked(self) -> bool:
        return requests.is_request(self.id)

    def encode_reply(self, value: Any) -> bytes:
        return requests.encode_reply(value, MAX_MESSAGE_SIZE)

    def _replied(self, reply: bytes) -> Change:
        return Change(self.claim, True, reply=reply)

    @property
    def _released(self) -> Change:
        return Change(self.claim, False, released=True)

    async def _make(self, change: Change) -> bool:
        return await self._driver.settler.settle(change)

    async def _extend(self, seconds: float) -> bool:
        return (await self._driver.extend([self.claim], seconds)).outcomes[0]
