"""The steps under a lease, one of each kind at a time: what settles messages, and what brings them.

A step settles what has gathered since the one before, and renews the lease; one that brings messages takes
acknowledgements along.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apressure import logs
from apressure.concurrency.settle import set_result_once
from apressure.connection.waiting.waiter import Behind, Waiter
from apressure.connection.wire.script import Request
from apressure.core.leases.renewal import Renewal
from apressure.core.waiting import EMPTY, Parked, Wait
from apressure.exceptions import DurabilityError, LeaseLostError, QueueDoesNotExistError
from apressure.pressure.engine.steps import Access, Range, Settlement, Want
from apressure.pressure.engine.waits import Notice
from apressure.pressure.leases.hand import LeaseState, Step, count_of, merged


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
        self._place = steps.waits.place if state.shared else None
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

    def release(self, number: int) -> None:
        """Give a message back as if it had not been delivered."""
        self._state.unsettled.note_release(number)
        self.give_back(number)

    def return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt. Called on the event loop."""
        while self._state.buffer and self._state.error is None:
            number, _, _ = self._state.buffer.pop()
            self.give_back(number, unseen=True)

    def count(self, acks: Sequence[Range]) -> None:
        """A step has carried out these acknowledgements."""
        if acks:
            self._steps.counts.deleted_count += count_of(acks)

    def take_acknowledgements(self) -> list[Range]:
        """Return the acknowledgements for a step that receives.

        Errors are forgotten by the step that settles, and replies are sent by it, so acknowledgements of redelivered
        messages and of requests leave with that one.
        """
        unsettled = self._state.unsettled
        acks = unsettled.acks
        if unsettled.failed_before(acks) or unsettled.replies_to(acks):
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
        nacks = [*nacks, *state.unsettled.replies_to(step.acks)]
        settlement = Settlement(milliseconds, leave, step.unseen, step.acks, nacks, dead, self._place)
        self._steps.settle(self._series, state.token, settlement, on_answer)

    def _answered(self, step: Step, confirm: Callable[[], None], reply: Any) -> None:
        self.answer = None
        unsure = reply if isinstance(reply, DurabilityError) else None
        if unsure is None and isinstance(reply, Exception):
            self._state.broken(reply, step.acks)
        else:
            confirm()
            self.count(step.acks)
            self._state.unsettled.forget_replies(step.acks)
        if unsure is not None and step.acks and not step.awaited:
            self._state.unsure = unsure  # no caller waits for this step
        if isinstance(reply if unsure is None else unsure.answer, list):
            self.return_buffer()  # the queue is paused
        self.send()
        set_result_once(step, unsure)


class Receiving:
    """The steps that receive messages under a lease.

    Args:
        state: The lease, and what is in flight under it.
        settling: What settles that.
        renewal: What renews the lease: from the first message on.
        steps: The queue's steps.

    Attributes:
        full: The latest step brought as many as it asked for: there may be more.
        answer: The step on its way, if there is one.
        notice: Says in the log that the role is waited for.
    """

    def __init__(self, state: LeaseState, settling: Settling, renewal: Renewal, steps: Access) -> None:
        self._state = state
        self._settling = settling
        self._renewal = renewal
        self._steps = steps
        self._series = steps.series()
        self.notice = Notice(steps.name)
        self._next = 1  # the number of the next message, or a lower one where the role is shared
        self._received = 0
        self.answer: Step | None = None
        self._behind: Step | None = None  # stands behind a wait that has not ended
        self._early: tuple[Step, Request | None] | None = None  # has left before the task that waits for it runs
        self.full = False

    @property
    def handed_out(self) -> int:
        """How many messages have been received and handed out."""
        return self._received - len(self._state.buffer)

    @property
    def unseen(self) -> int:
        """The number of the first message that has not been handed out."""
        return self._state.buffer[0][0] if self._state.buffer else self._next

    @property
    def _leased(self) -> bool:
        """Whether there is a lease already."""
        return self._state.kept or bool(self._state.unsettled)

    def ahead(self, max_items: int) -> None:
        """Ask for messages before they are needed, unless a step that brings some is on its way."""
        if self.answer is None and self._state.error is None:
            self._ask(max_items, ahead=True)

    async def step(self, max_items: int) -> bool | Wait:
        """Bring up to max_items into the buffer, or say why that has to wait.

        Cancelled, what comes all the same is in the buffer, in flight under the lease.
        """
        self._state.check()
        early, self._early = self._early, None
        if early is None and self.answer is not None:
            # One at a time, since the step names the number to go on with. What it brings is in the buffer.
            await self._steps.wait_for(self.answer)
            return True
        step, request = early or self._ask(max_items)
        try:
            reply = await self._steps.wait_for(step, request)
        except asyncio.CancelledError:
            step.add_done_callback(self._unwanted)  # it may come after `settle_timeout`
            raise
        if isinstance(reply, Exception):
            raise reply
        # Where one has left early, a wake-up may have come behind it, of which the wait to come does not know.
        return reply if isinstance(reply, Wait) and early is None else True

    def _unwanted(self, step: Step) -> None:
        """The caller was cancelled before this answer came."""
        if isinstance(wait := step.result(), Wait):
            self._steps.waits.drop(wait)
        if not self._state.kept:
            self._settling.return_buffer()

    def hasten(self, max_items: int, parked: Parked, wait: Wait) -> None:
        """Have the next step leave as early as possible: now, behind the wait for messages, or else at the wake-up."""
        parked.on_wake = functools.partial(self._ask_early, max_items)
        waiter = self._steps.waits.leading(wait)
        if waiter is not None and self._leased and self._behind is None and self.answer is None:
            self._follow(max_items, waiter)

    async def withdraw(self) -> None:
        """Nobody waits any more: have a step behind the wait take nothing, and wait for one that has left early."""
        (early, self._early), (behind, self._behind) = (self._early, None), (self._behind, None)
        if behind is not None and self._state.error is None and self._leased:
            self._ask(0, ahead=True)[0].add_done_callback(self._unwanted)
        elif early is not None:
            early[0].add_done_callback(self._unwanted)
            await self._steps.learn(*early)

    def _ask_early(self, max_items: int, parked: Parked) -> None:
        if self.answer is None and self._early is None and self._state.error is None and parked.exception() is None:
            self._early = self._ask(max_items)

    def _follow(self, max_items: int, waiter: Waiter) -> None:
        """Send a step behind a wait, so that the message that ends it takes no second round trip.

        It takes messages only while the lease is valid, and if no other receive was carried out since. So it takes
        nothing where nobody needs it any more; and what it takes while another one is on its way, that one brings.
        """
        state, steps, waits = self._state, self._steps, self._steps.waits
        step = self._behind = Step([])

        def on_end() -> None:
            if self._behind is step:
                self._behind, self._early, self.answer = None, (step, None), step

        def on_answer(reply: Any) -> None:
            if self.answer is not step:
                return
            if isinstance(reply, Exception):
                reply = EMPTY  # the next step says why
            elif state.shared:
                waits.take_turn()
            self._answered(step, max_items, False, lambda: None, reply)

        behind = Behind(waiter, on_end)
        want = Want(max_items, state.term.milliseconds, self._next, state.unsettled.dead)
        if state.shared:
            want = want._replace(in_hand=self._settling.unconfirmed())
            steps.receive_shared(self._series, state.token, waits.place, want, on_answer, behind)
        else:
            steps.receive(self._series, state.token, False, want, on_answer, behind)

    def _ask(self, max_items: int, ahead: bool = False) -> tuple[Step, Request]:
        """Send a step, which takes acknowledgements along.

        It does not hold its request, which holds it: what came would stay until the garbage collector runs.
        """
        state, steps, waits = self._state, self._steps, self._steps.waits
        self._behind = None
        step = self.answer = Step(self._settling.take_acknowledgements())
        fresh = not self._leased
        if fresh:
            state.term.begin()
        milliseconds = state.term.milliseconds
        on_answer = functools.partial(self._answered, step, max_items, ahead, state.term.sent(milliseconds))
        want = Want(max_items, milliseconds, self._next, state.unsettled.dead, step.acks)
        if state.shared:
            want = want._replace(in_hand=self._settling.unconfirmed())
            place = b"" if ahead else waits.take_turn()
            return step, steps.receive_shared(self._series, state.token, place, want, on_answer)
        return step, steps.receive(self._series, state.token, fresh, want, on_answer)

    def _answered(self, step: Step, max_items: int, ahead: bool, confirm: Callable[[], None], reply: Any) -> None:
        state, before = self._state, self._received
        self.answer = None
        unsure = reply if isinstance(reply, DurabilityError) else None
        done = reply if unsure is None else unsure.answer
        if unsure is None and isinstance(reply, (LeaseLostError, QueueDoesNotExistError)):
            state.broken(reply, step.acks)
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
        self.full = self._received - before >= max_items > 0
        step.set_result(reply)

    def _arrived(
        self, chunks: Iterable[list[bytes]], tried: list[int], dead_letters: logs.Told, first: int | None = None
    ) -> None:
        """Messages have come, in chunks, with the number of the attempt of each unless it is the first of them all."""
        self.notice.ended()
        state, counts, name = self._state, self._steps.counts, self._steps.name
        messages = [*itertools.chain.from_iterable(chunks)]
        if state.error is not None:
            messages, tried = [], []  # the lease was ended meanwhile, and has given them back as never handed out
        begin = self._next if first is None else first  # other members get numbers in between
        numbers = range(begin, begin + len(messages))
        state.buffer.extend(zip(numbers, messages, tried or itertools.repeat(1), strict=False))
        state.unsettled.receive(numbers, map(len, messages), tried)
        for number, message, attempts in zip(numbers, messages, tried, strict=False):
            if attempts > 1:
                logs.redelivered("AsyncQueue", name, f"{state.token.decode()}:{number}", attempts, message)
        self._next = numbers.stop
        self._received += len(messages)
        counts.received_count += len(messages)
        if dead_letters and (dead := state.unsettled.dead) is not None:  # (A reply that was lost is not told again.)
            counts.dead_lettered_count += logs.dead_letters("AsyncQueue", name, dead_letters, dead.name)
        if messages:
            self._renewal.begin()
