"""The pipeline of acknowledgements under a lease: one step at a time settles what has gathered, and renews it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from apressure.concurrency.settle import set_result_once
from apressure.exceptions import DurabilityError
from apressure.pressure.engine.access import Access
from apressure.pressure.engine.shared_steps import Range, Settlement
from apressure.pressure.leases.hand import merged
from apressure.pressure.leases.state import LeaseState, Step


class Settling:
    """Sends a lease's acknowledgements, what goes back, and renewals. What gathers meanwhile leaves with the next step.

    Args:
        state: The lease, and what is in flight under it.
        steps: The queue's steps.

    Attributes:
        renew: The next step is due, even if it only renews the lease.
        answer: The step on its way; its result says whether too few replicas confirmed it.
    """

    def __init__(self, state: LeaseState, steps: Access) -> None:
        self._state = state
        self._steps = steps
        self._place = steps.waits.line.place if state.shared else None
        self._series = steps.series()
        self.renew = False
        self.answer: Step | None = None
        self._nacks: list[int] = []
        self._unseen = 0  # from this number on, what goes back was never handed out; 0 for none
        self._soon: asyncio.Handle | None = None
        self._sent = 0
        state.unsettled.on_first = self.send_soon

    @property
    def pending(self) -> bool:
        """Whether there is something for the next step."""
        return bool(self._state.unsettled.acked or self._nacks or self.renew) and self._state.error is None

    def give_back(self, number: int, unseen: bool = False) -> None:
        """Give a message back; `unseen`: it was never handed out."""
        if unseen:
            self._unseen = min(self._unseen or number, number)
        self._state.unsettled.give_back(number)
        self._nacks.append(number)
        self.send_soon()

    def return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt. Called on the event loop."""
        while self._state.buffer and self._state.error is None:
            number, _, _ = self._state.buffer.pop()
            self.give_back(number, unseen=True)

    def count(self, acks: Sequence[Range]) -> None:
        """A step has carried out these acknowledgements."""
        if acks:
            self._steps.counts.deleted_count += sum(last - first + 1 for first, last, _ in acks)

    def take_acknowledgements(self) -> list[Range]:
        """Return the acknowledgements for a step that receives.

        Errors are forgotten by the step that settles, so acknowledgements of redelivered messages leave with that one.
        """
        unsettled = self._state.unsettled
        if unsettled.failed_before(unsettled.acks):
            self.send()
            if unsettled.acked:
                return []  # a step is on its way: they leave with the next one
        return unsettled.take()

    def unconfirmed(self) -> list[tuple[int, int]]:
        """Return everything that may be in flight under this lease on the server, as ranges: first, last.

        Steps can overtake each other while the server learns their scripts. So it is ours until it is answered.
        """
        acks, nacks = [*self._state.unsettled.acks], [*self._nacks]
        if self.answer is not None:
            acks += self.answer.acks
            nacks += self.answer.nacks
        ended = [ack[:2] for ack in acks]
        return merged([*self._state.unsettled.ranges(), *ended, *zip(nacks, nacks, strict=True)])

    def send_soon(self) -> None:
        """Send what gathers in this turn of the event loop."""
        if self._soon is None and self.answer is None:
            self._soon = asyncio.get_running_loop().call_soon(self.send)

    def stop(self) -> None:
        """Send nothing by itself any more."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    async def settled(self) -> DurabilityError | None:
        """Send what has gathered, and wait until it is settled; returns the error where too few confirmed it."""
        self.send()
        last = self._sent + (1 if self.pending else 0)
        unsure: DurabilityError | None = None
        while (step := self.answer) is not None and self._sent <= last:
            step.awaited += 1
            try:
                unsure = await self._steps.wait_for(step) or unsure
            finally:
                step.awaited -= 1
        return unsure

    def send(self) -> None:
        """Send what has gathered, unless a step is on its way: then it leaves when that is answered."""
        state = self._state
        self.stop()
        if not state.kept and not state.unsettled:
            self.renew = False  # the role goes back with the last message: there is no lease to renew
        if self.answer is not None or not self.pending:
            return
        self._sent += 1
        self.renew = False
        step = self.answer = self._gather()
        milliseconds = state.term.milliseconds
        self._send(step, milliseconds, functools.partial(self._answered, step, state.term.sent(milliseconds)))

    def leave(self, unanswered: Sequence[Range], unseen: int) -> Step:
        """Send the last step: it settles what was acknowledged, and gives back all the rest and the role.

        Args:
            unanswered: Acknowledgements that a receive has taken along, and that got no answer.
            unseen: The number of the first message that was not handed out.

        Returns:
            The step; its result is the answer.
        """
        # Resend acknowledgements that got no reply: a server that has to learn their script first may carry out this
        # step before them.
        step = self._gather([*(() if self.answer is None else self.answer.acks), *unanswered], unseen)
        self._send(step, 0, functools.partial(set_result_once, step), leave=True)
        return step

    def _gather(self, acks: Sequence[Range] = (), unseen: int = 0) -> Step:
        """Return a step with all that has gathered, behind these acknowledgements."""
        step = Step([*acks, *self._state.unsettled.take()], sorted(self._nacks), self._unseen or unseen)
        self._nacks, self._unseen = [], 0
        return step

    def _send(self, step: Step, milliseconds: int, on_answer: Callable[[Any], None], leave: bool = False) -> None:
        state = self._state
        nacks, dead = state.unsettled.take_errors(step.acks, step.nacks, leave)
        settlement = Settlement(milliseconds, leave, step.unseen, step.acks, nacks, dead, self._place)
        self._steps.settle(self._series, state.token, settlement, on_answer)

    def _answered(self, step: Step, confirm: Callable[[], None], reply: Any) -> None:
        self.answer = None
        unsure = reply if isinstance(reply, DurabilityError) else None
        if unsure is None and isinstance(reply, Exception):
            self._state.broken(reply)
        else:
            confirm()
            self.count(step.acks)
        if unsure is not None and step.acks and not step.awaited:
            self._state.unsure = unsure  # no caller waits for this step
        if isinstance(reply if unsure is None else unsure.answer, list):
            self.return_buffer()  # the queue is paused
        self.send()
        set_result_once(step, unsure)
