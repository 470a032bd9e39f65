"""An event in flight that came from an okq server."""

from __future__ import annotations

from typing import Any, TypeVar

from apressure.core.due import Due
from apressure.core.leases.clock import since_boot
from apressure.events.delivery import EventDelivery
from apressure.events.engine.batching import Change
from apressure.events.remote.commands import Commands
from apressure.events.remote.connection import lacks
from apressure.exceptions import UnsupportedError

T = TypeVar("T")


class RemoteEventDelivery(EventDelivery[T]):
    """An event in flight: no other consumer gets it until its lease ends.

    okq knows a claim by the event's id alone. So `ack` after the end of the lease acknowledges the event even if
    another consumer has it then: the work has been done. `nack` and `extend` leave it alone then.

    Attributes:
        raw: The event's contents.
        attempts: How often it has been delivered, this time included. A released okq does not count: there, it is how
            often this queue object has received it.
        settled: Whether `ack` or `nack` has been called.
    """

    __slots__ = ()

    _settler: Any  # it has what a delivery needs of `EventSettler`

    _gone = "its lease has ended, and another client got it, or gets it again"

    @property
    def _steps(self) -> Commands:
        return self._settler.steps  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._queue_name

    @property
    def certain(self) -> bool:
        """Whether its lease has certainly not ended."""
        return since_boot() < self.certain_until

    def _begin(self, what: str) -> None:
        self._check(what)
        self.settled = True
        if self._in_hand is not None:
            self._in_hand.claims.pop(self, None)  # what has gone back may be acknowledged all the same

    @property
    def can_delay(self) -> bool:
        return self._steps.can_delay

    def encode_reply(self, value: Any) -> bytes:  # noqa: ARG002
        raise UnsupportedError(
            f"okq's commands have no replies: consume {self.queue!r} with the address of its Redis or Valkey server",
            name=self.queue,
        )

    def _change(self, back: bool, due: Due | None = None) -> Change:
        if due is not None and not self.can_delay:
            raise lacks("delay", self.queue)
        return super()._change(back, due)

    async def _make(self, change: Change) -> bool:
        return (change[0] == "ack" or self.certain) and await super()._make(change)

    async def _extend(self, seconds: float) -> Any:
        if not await self._steps.extends():
            raise lacks("extend", self.queue)
        if not self.certain:
            return False
        sent = since_boot()
        if extended := await super()._extend(seconds):
            self.renewed(sent + seconds)
        return extended
