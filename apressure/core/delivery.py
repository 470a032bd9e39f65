"""A message in flight under a lease of its own, as a program sees it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from apressure.core.leases.in_hand import InHand

T = TypeVar("T")


class LeasedDelivery(ABC, Generic[T]):
    """A message in flight: no other consumer gets it until its lease ends.

    A kind of queue sets the attributes: one more call would cost each item.

    Attributes:
        raw: The message, in bytes.
        attempts: How often it has been delivered, this time included.
        settled: Whether `ack` or `nack` has been called.
        certain_until: Until when its lease has certainly not ended, by the clock of its consumer.
    """

    __slots__ = ("_decode", "_in_hand", "attempts", "certain_until", "raw", "settled")

    _noun: ClassVar[str]
    """What it is, for errors."""

    _decode: Callable[[bytes], T]
    _in_hand: InHand[Any, Any] | None
    raw: bytes
    attempts: int
    settled: bool
    certain_until: float

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self.raw)} bytes, attempt {self.attempts}>"

    @property
    @abstractmethod
    def id(self) -> str:
        """The message's id."""

    @property
    def item(self) -> T:
        """The message, decoded.

        Raises:
            DecodeError: It cannot be decoded. It is still in flight: acknowledge it or give it back.
        """
        return self._decode(self.raw)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before: that client died, failed, was slow or gave it back.

        A released okq does not tell: there, whether this queue object received it before.
        """
        return self.attempts > 1

    def excused(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which its consumer is not taken for stuck: it waits for another queue."""
        return contextlib.nullcontext() if self._in_hand is None else self._in_hand.excused()

    def _check(self, what: str) -> None:
        if self.settled:
            raise RuntimeError(f"the {self._noun} {self.id} cannot be {what}: it was acknowledged or given back before")
