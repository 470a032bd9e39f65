"""A task in hand, as a program sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from apressure.core.delivery import BatchedDelivery, Hand
from apressure.core.due import Due
from apressure.core.leases.clock import since_boot
from apressure.core.waiting import moment
from apressure.protocols import LONGEST_LEASE
from apressure.tasks.engine.answers import Reserved
from apressure.tasks.engine.keys import task_key
from apressure.tasks.engine.steps import Change
from apressure.tasks.engine.waits import channels_of
from apressure.tasks.processor import NO_RESULT, Processor, encode_result, why

if TYPE_CHECKING:
    from apressure.tasks.core import Core

T = TypeVar("T")

_NOTHING: Final[Mapping[str, Any]] = {}


class TaskDelivery(Processor, BatchedDelivery[T]):
    """A task in hand: no other node gets it until its lease ends.

    Attributes:
        settled: Whether `ack`, `nack`, `complete` or `fail` has been called.
        cancel_requested: Whether somebody has asked to cancel it; renewals and `extend` find out.
        certain_until: Until when its lease certainly lasts, by `since_boot`.
        handed_out: Whether the program has got it from its consumer.

    Args:
        core: The queue.
        decode: Decodes its parameters.
        reserved: The task, as a step has reserved it.
        until: Until when its lease certainly lasts.
        in_hand: The consumer's deliveries; None for `receive`.
    """

    _acked = "completed"
    _keeps_errors = True

    _note_of_error: Mapping[str, str] = _NOTHING
    _callbacks: Mapping[str, Callable[..., object]] = _NOTHING

    def __init__(
        self,
        core: Core[Any],
        decode: Callable[[bytes], T],
        reserved: Reserved,
        until: float,
        in_hand: Hand | None = None,
    ) -> None:
        self.claim = reserved.claim
        self.settled = self.handed_out = False
        self.cancel_requested = "cancel_requested" in reserved.fields
        self.certain_until = until
        self.failure = b""
        self._core, self._settler = core, core.settler
        self._fields = reserved.fields
        self.decode = decode
        self._in_hand = in_hand

    def __repr__(self) -> str:
        return f"<TaskDelivery {self.id} of {self._core.name!r}, attempt {self.attempts}>"

    @property
    def raw(self) -> bytes:
        """The task's parameters, encoded."""
        return self._fields.get("parameters", "").encode(errors="surrogateescape")

    @property
    def attempts(self) -> int:
        """How often nodes of apressure have reserved it, this time included."""
        return self.task.attempts

    @property
    def cost(self) -> int:
        cost = self._fields.get("cost", "")[:10]  # another program may have written it
        return int(cost) if cost.isdecimal() else 1

    @property
    def lease_left(self) -> float:
        """Seconds for which no other node certainly gets it; below 0 where another one may have it."""
        return self.certain_until - since_boot()

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, on the event loop, when the task is found to be lost to others."""
        self._on("lost", callback)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, on the event loop, when somebody asks to cancel the task."""
        self._on("cancel", callback)

    def _on(self, event: str, callback: Callable[..., object]) -> None:
        self._callbacks = {**self._callbacks, event: callback}

    def on_renewed(self, callback: Callable[[float], object]) -> None:
        """Have `callback(certain_until)` called whenever the lease was renewed: in any thread, so it must not block."""
        self._on("renewed", callback)

    def renewed(self, until: float) -> None:
        """Note that the lease lasts until then at least, by `since_boot`. Called in any thread."""
        if until > self.certain_until:
            super().renewed(until)
            if (callback := self._callbacks.get("renewed")) is not None:
                asyncio.get_running_loop().call_soon(callback, until)  # it may raise

    async def wait_cancel_requested(self) -> None:
        """Wait until somebody asks to cancel the task: at once, where a renewal finds out only when it is due.

        Raises:
            PressureError: The server cannot be asked, or the client was closed.

        Cancelled, nothing has changed.
        """
        client, key = self._core.client, task_key(self.claim.id)
        channels = channels_of(client)
        while not self.cancel_requested:
            since = moment()
            if await client.connection.ask(b"HEXISTS", key, b"cancel_requested", reads=True):
                self.tell("cancel")
                return
            await channels.wait(key, since, LONGEST_LEASE)

    def tell(self, event: str) -> None:
        """Tell the program what a renewal has found: `"lost"` or `"cancel"`."""
        if event == "cancel":
            self.cancel_requested = True
        if (callback := self._callbacks.get(event)) is not None:
            self._callbacks = {other: self._callbacks[other] for other in self._callbacks if other != event}
            asyncio.get_running_loop().call_soon(callback)  # it may raise

    @property
    def _released(self) -> Change:
        return Change("unseen", self.claim)

    def note_error(self, error: BaseException | str) -> None:
        self.failure, self._note_of_error = why(error, self.attempts)

    @property
    def nacked(self) -> Change:
        """The change that gives it back."""
        return Change("nack", self.claim, self.failure, self._note_of_error)

    def _change(self, back: bool, due: Due | None = None) -> Change:
        if due is not None:
            return Change("later", self.claim, self.failure, self._note_of_error, due.milliseconds)
        return self.nacked if back else Change("complete", self.claim, NO_RESULT)

    @property
    def asked(self) -> bool:
        return True  # its result may be looked at at any time

    def encode_reply(self, value: Any) -> bytes:
        return encode_result(value)

    def _replied(self, reply: bytes) -> Change:
        return Change("complete", self.claim, reply)

    async def _extend(self, seconds: float) -> bool:
        sent = since_boot()
        letter = (await self._core.steps.extend([self.claim], seconds)).letters
        if letter == "c":
            self.tell("cancel")
        if letter in "1c":
            self.renewed(sent + seconds)
        return letter in "1c"
