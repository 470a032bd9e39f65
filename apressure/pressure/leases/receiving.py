"""How messages come under a lease: one step at a time brings some, and takes acknowledgements along."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from apressure import logs
from apressure.connection.wire.script import Request
from apressure.core.leases.renewal import Renewal
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, LeaseLostError, QueueDoesNotExistError
from apressure.pressure.engine.access import Access
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.notices import Notice
from apressure.pressure.engine.shared_steps import Want
from apressure.pressure.leases.settling import Settling
from apressure.pressure.leases.state import LeaseState, Received, Step


class Receiving:
    """The steps that receive messages under a lease.

    Args:
        state: The lease, and what is in flight under it.
        settling: What settles that.
        renewal: What renews the lease: from the first message on.
        steps: The queue's steps.
        dead: Where messages go that were delivered too often; None to deliver them for ever.

    Attributes:
        full: The latest step brought as many as it asked for: there may be more.
        answer: The step on its way, if there is one.
        notice: Says in the log that the role is waited for.
    """

    def __init__(
        self, state: LeaseState, settling: Settling, renewal: Renewal, steps: Access, dead: DeadLetters | None
    ) -> None:
        self._state = state
        self._settling = settling
        self._renewal = renewal
        self._steps = steps
        self._dead = dead
        self._series = steps.series()
        self.notice = Notice(steps.name)
        self._next = 1  # the number of the next message, or a lower one where the role is shared
        self._received = 0
        self.answer: Step | None = None
        self.full = False

    @property
    def handed_out(self) -> int:
        """How many messages have been received and handed out."""
        return self._received - len(self._state.buffer)

    @property
    def unseen(self) -> int:
        """The number of the first message that has not been handed out."""
        return self._state.buffer[0][0] if self._state.buffer else self._next

    def ahead(self, max_items: int) -> None:
        """Ask for messages before they are needed, unless a step that brings some is on its way."""
        if self.answer is None and self._state.error is None:
            self._ask(max_items, ahead=True)

    async def step(self, max_items: int) -> bool | Wait:
        """Bring up to max_items into the buffer, or say why that has to wait.

        Cancelled, what comes all the same is in the buffer, in flight under the lease.
        """
        self._state.check()
        if self.answer is not None:
            # One at a time, since the step names the number to go on with. What it brings is in the buffer.
            await self._steps.wait_for(self.answer)
            return True
        step, request = self._ask(max_items)
        try:
            reply = await self._steps.wait_for(step, request)
        except asyncio.CancelledError:
            step.add_done_callback(self._unwanted)  # it may come after `settle_timeout`
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Wait) else True

    def _unwanted(self, step: Step) -> None:
        """The caller was cancelled before this answer came."""
        if isinstance(wait := step.result(), Wait):
            self._steps.waits.drop(wait)
        if not self._state.kept:
            self._settling.return_buffer()

    def _ask(self, max_items: int, ahead: bool = False) -> tuple[Step, Request]:
        """Send a step, which takes acknowledgements along.

        It does not hold its request, which holds it: what came would stay until the garbage collector runs.
        """
        state, steps, waits = self._state, self._steps, self._steps.waits
        step = self.answer = Step(self._settling.take_acknowledgements())
        fresh = not state.kept and not state.unsettled
        if fresh:
            state.term.begin()
        milliseconds = state.term.milliseconds
        on_answer = functools.partial(self._answered, step, max_items, ahead, state.term.sent(milliseconds))
        want = Want(max_items, milliseconds, self._next, self._dead, step.acks)
        if state.shared:
            want = want._replace(in_hand=self._settling.unconfirmed())
            place = b"" if ahead else waits.line.take_turn()
            return step, steps.receive_shared(self._series, state.token, place, want, on_answer)
        claimed = waits.take_claim("consumer") if fresh else b"0"
        return step, steps.receive(self._series, state.token, fresh, claimed, want, on_answer)

    def _answered(self, step: Step, max_items: int, ahead: bool, confirm: Callable[[], None], reply: Any) -> None:
        state, before = self._state, self._received
        self.answer = None
        unsure = reply if isinstance(reply, DurabilityError) else None
        done = reply if unsure is None else unsure.answer
        if unsure is None and isinstance(reply, (LeaseLostError, QueueDoesNotExistError)):
            state.broken(reply)
        elif unsure is None and isinstance(reply, Exception):
            state.unsettled.take_back(step.acks)  # acknowledging twice does no harm, forgetting it would
        else:
            self._settling.count(step.acks)
        if isinstance(done, list):
            confirm()
            self._arrived(*done)
        elif isinstance(done, Wait) and done.reason == "paused":
            self._settling.return_buffer()
        if unsure is not None:
            if ahead:
                state.unsure = unsure  # no caller waits for this step
            if not state.kept:
                self._settling.return_buffer()  # the caller gets the error instead
        self.full = self._received - before >= max_items
        step.set_result(reply)

    def _arrived(
        self, chunks: Iterable[list[bytes]], tried: list[int], dead_letters: logs.Told, first: int | None = None
    ) -> None:
        """Messages have come, in chunks, with the number of the attempt of each unless it is the first of them all."""
        self.notice.ended()
        state, counts, name = self._state, self._steps.counts, self._steps.name
        messages = [message for chunk in chunks for message in chunk]
        if state.error is not None:
            messages, tried = [], []  # the lease was ended meanwhile, and has given them back as never handed out
        begin = self._next if first is None else first  # other members get numbers in between
        numbers = range(begin, begin + len(messages))
        state.buffer.extend(zip(numbers, messages, tried or itertools.repeat(1), strict=False))
        state.unsettled.receive(numbers, map(len, messages), tried)
        if tried:
            self._tell_of_redeliveries(zip(numbers, messages, tried, strict=False))
        self._next = numbers.stop
        self._received += len(messages)
        counts.received_count += len(messages)
        if dead_letters and self._dead is not None:  # (A reply that was lost is not told again.)
            counts.dead_lettered_count += logs.dead_letters("AsyncQueue", name, dead_letters, self._dead.name)
        if messages:
            self._renewal.begin()

    def _tell_of_redeliveries(self, received: Iterable[Received]) -> None:
        token = self._state.token.decode()
        for number, message, attempts in received:
            if attempts > 1:
                logs.redelivered("AsyncQueue", self._steps.name, f"{token}:{number}", attempts, message)
