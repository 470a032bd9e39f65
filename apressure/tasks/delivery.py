"""A task in hand, as a program sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from apressure.core.leases.arguments import lease_of
from apressure.core.leases.clock import since_boot
from apressure.core.leases.in_hand import InHand
from apressure.items import Items
from apressure.protocols import LONGEST_LEASE
from apressure.tasks.engine.answers import Claim, raw
from apressure.tasks.engine.keys import task_key
from apressure.tasks.engine.steps import Change
from apressure.tasks.engine.waits import channels_of
from apressure.tasks.processor import NO_RESULT, Processor, why
from apressure.tasks.task import Task

if TYPE_CHECKING:
    from apressure.tasks.core import Core

T = TypeVar("T")

_NOTHING: Final[Mapping[str, str]] = {}


class TaskDelivery(Processor, Generic[T]):
    """A task in hand: no other node gets it until its lease ends.

    Attributes:
        task: The task, as it was when it was reserved.
        settled: Whether `ack`, `nack`, `complete` or `fail` has been called.
        cancel_requested: Whether somebody has asked to cancel it; renewals and `extend` find out.
        certain_until: Until when its lease certainly lasts, by `since_boot`.
        handed_out: Whether the program has got it from its consumer.

    Args:
        core: The queue.
        items: Decodes its parameters, and encodes its result.
        task: The task.
        in_hand: The consumer's deliveries; None for `receive`.
    """

    def __init__(self, core: Core[Any], items: Items[Any], task: Task, in_hand: Hand | None = None) -> None:
        super().__init__(core, task)
        self.cancel_requested = task.cancel_requested
        self.certain_until = 0.0
        self.handed_out = False
        self._items = items
        self._in_hand = in_hand
        self._note: Mapping[str, str] = _NOTHING
        self._error = b""
        self._callbacks: dict[str, Callable[[], object]] | None = None
        self._on_renewed: Callable[[float], object] | None = None

    def __repr__(self) -> str:
        return f"<TaskDelivery {self.id} of {self._core.name!r}, attempt {self.attempts}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def raw(self) -> bytes:
        """The task's parameters, encoded."""
        return raw(self.task.fields.get("parameters", ""))

    @property
    def item(self) -> T:
        """The task's parameters.

        Raises:
            DecodeError: They cannot be decoded. The task is still in hand: settle it.
        """
        item: T = self._items.decode(self.raw)
        return item

    @property
    def attempts(self) -> int:
        """How often nodes of apressure have reserved it, this time included."""
        return self.task.attempts

    @property
    def redelivered(self) -> bool:
        """Whether it was reserved before, and neither completed nor failed."""
        return self.attempts > 1

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

    def _on(self, event: str, callback: Callable[[], object]) -> None:
        self._callbacks = {**(self._callbacks or {}), event: callback}

    def on_renewed(self, callback: Callable[[float], object]) -> None:
        """Have `callback(certain_until)` called whenever the lease was renewed: in any thread, so it must not block."""
        self._on_renewed = callback

    def renewed(self, until: float) -> None:
        """Note that the lease lasts until then at least, by `since_boot`. Called in any thread."""
        if until > self.certain_until:
            self.certain_until = until
            if self._on_renewed is not None:
                asyncio.get_running_loop().call_soon(self._on_renewed, until)  # it may raise

    async def wait_cancel_requested(self) -> None:
        """Wait until somebody asks to cancel the task: at once, where a renewal finds out only when it is due.

        Raises:
            PressureError: The server cannot be asked, or the client was closed.

        Cancelled, nothing has changed.
        """
        client, key = self._core.client, task_key(self.claim.id)
        channels = channels_of(client)
        while not self.cancel_requested:
            noted = channels.generation(key)
            if await client.connection.ask(b"HEXISTS", key, b"cancel_requested", reads=True):
                self.tell("cancel")
                return
            parked = channels.park(key, noted, LONGEST_LEASE)
            try:
                await asyncio.wait((parked,))
            finally:
                parked.cancel()
            parked.result()

    def tell(self, event: str) -> None:
        """Tell the program what a renewal has found: `"lost"` or `"cancel"`."""
        if event == "cancel":
            self.cancel_requested = True
        if self._callbacks is not None and (callback := self._callbacks.pop(event, None)) is not None:
            asyncio.get_running_loop().call_soon(callback)  # it may raise

    async def ack(self) -> None:
        """Complete the task without a result.

        Raises:
            LeaseLostError, TaskDoesNotExistError, OutcomeUnknownError, RuntimeError: As for `complete`.

        Cancelled, it waits for the outcome, then raises: the task is complete or in hand.
        """
        await self.complete()

    def ack_soon(self) -> None:
        """Complete the task without a result, with the next step that leaves. If that fails, the consumer says so.

        Raises:
            LeaseLostError: It is known already that the lease has ended.
            RuntimeError: It was settled before.
        """
        self._begin("completed")
        self._core.settler.soon(Change("complete", self.claim, NO_RESULT), self._acked)

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the task back, first in line: it is tried again, unless it was tried `max_attempts` times.

        Args:
            error: Why it failed. It is kept, and the task fails with it if that was its last attempt.

        Raises:
            LeaseLostError, TaskDoesNotExistError, OutcomeUnknownError, RuntimeError: As for `complete`.
            TypeError: The error is neither an exception nor a text. The task stays in hand.

        Cancelled, it waits for the outcome, then raises: the task has gone back, or is in hand.
        """
        if error is not None:
            self.note_error(error)
        await self._settle(self.nacked, "given back")

    async def release(self) -> None:
        """Give the task back, first in line, as if it had not been reserved: this does not count as an attempt.

        Raises:
            LeaseLostError, TaskDoesNotExistError, OutcomeUnknownError, RuntimeError: As for `complete`.

        Cancelled, it waits for the outcome, then raises: the task has gone back, or is in hand.
        """
        await self._settle(Change("unseen", self.claim), "given back")

    def note_error(self, error: BaseException | str) -> None:
        """Keep the error of this attempt, however the task goes back."""
        self._error, self._note = why(error, self.attempts)

    @property
    def nacked(self) -> Change:
        """The change that gives it back."""
        return Change("nack", self.claim, self._error, self._note)

    def excused(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which its consumer is not taken for stuck: it waits for another queue."""
        return contextlib.nullcontext() if self._in_hand is None else self._in_hand.excused()

    async def extend(self, seconds: float) -> None:
        """Keep the task for at least `seconds` from now. The lease never gets shorter.

        Raises:
            LeaseLostError: The lease ended before.
            RuntimeError: It was settled before.
            TypeError, ValueError: `seconds` is invalid.

        Cancelled, it is extended or not, and can be settled.
        """
        seconds = lease_of(seconds, "seconds")
        if self.settled:
            raise RuntimeError(f"the task {self.id} cannot be extended: it was settled before")
        sent = since_boot()
        renewed = await self._core.steps.extend([self.claim], seconds)
        if renewed.letters == "c":
            self.tell("cancel")
        elif renewed.letters != "1" and not self.settled:
            raise self._lost("extended")
        self.renewed(sent + seconds)
        if self._in_hand is not None:
            self._in_hand.extended(seconds)

    def _begin(self, what: str) -> None:
        super()._begin(what)
        if self._in_hand is not None and self._in_hand.pop(self.claim, None) is None:
            raise self._lost(what)

    def _reopen(self) -> None:
        super()._reopen()
        if self._in_hand is not None:
            self._in_hand[self.claim] = self

    def _acked(self, outcome: str | Exception) -> None:
        error = outcome if isinstance(outcome, Exception) else self._refusal(outcome, "completed")
        if error is not None and self._in_hand is not None:
            self._in_hand.on_failure(error)


class Hand(InHand[Claim, TaskDelivery[Any]]):
    """A consumer's deliveries."""
