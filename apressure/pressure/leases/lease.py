"""At-least-once: leases on the consumer role, and what is in flight under them.

The server keeps a lease with a deadline, and the client's `Renewer` renews it. When the client dies, the next consumer
finds the lease expired, puts what was in flight back first in line, and goes on. A delivery is identified by the
lease's token and a number that is never used twice, so a late acknowledgement cannot settle another client's delivery.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.settle import Patience
from apressure.core.leases.clock import Term
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, LeaseLostError, PressureError, QueueDoesNotExistError, ServerError
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.steps import Access
from apressure.pressure.leases.hand import LeaseState, Received, count_of, firsts
from apressure.pressure.leases.steps import Receiving, Settling

SHARED = b"shared:1"
"""The token on the server of a role that has members; each one has a token of its own."""


class Lease:
    """The consumer role, held by this client.

    Args:
        steps: The queue's steps.
        dead: Where messages go that were delivered too often; None to deliver them for ever.
        term: How long the role stays taken when this client dies.
        kept: The role is taken by `acquire` and kept until `leave`, whatever is in flight. Otherwise it is taken by the
            first message that is received, and goes back with the last one that is settled.
        max_hold: Seconds without progress after which the lease ends.
        shared: Other clients of ours may have the role at the same time: this is a member's share of it. It is kept.

    Attributes:
        client: The client that holds it.
        state: What is known of it, and of the messages in flight under it.
        token: Its name on the server.
        term: As given.
        settling: What settles messages, and gives them back.
        receiving: What brings messages.
        still_asked: Looks whether a program waits for a reply.
        renewal: What renews it.
        on_lost: Called once, with the error, when the lease is lost.
    """

    on_lost: Callable[[Exception], None] | None = None

    def __init__(
        self, steps: Access, dead: DeadLetters | None, term: Term, kept: bool, max_hold: float, shared: bool = False
    ) -> None:
        self.client = steps.client
        self._steps = steps
        self.term = term
        self.state = LeaseState(term, kept, shared, dead, self._broken)
        self.token = self.state.token
        self.settling = Settling(self.state, steps)
        renewer, on_paused = self.client.renewer, self.settling.return_buffer
        self.still_asked = steps.still_asked
        self.renewal = steps.renewal(self, "consumer", renewer, max_hold, shared, on_paused)
        self.receiving = Receiving(self.state, self.settling, self.renewal, steps)

    async def acquire(self, timeout: float | None) -> int:
        """Take the role, waiting while somebody else has it; returns the queue's bound."""
        steps, waits, shared = self._steps, self._steps.waits, self.state.shared

        def step() -> Awaitable[int | Wait]:
            place = waits.take_turn() if shared else None
            return steps.acquire("consumer", self.token, self.term.milliseconds, place)

        bound = await waits.until(step, timeout, steps.name)
        self.renewal.note_task()
        self.renewal.begin()
        logs.role("role_taken", steps.name, "consumer", self.token, shared)
        return bound

    async def receive(self, max_items: int, timeout: float | None) -> deque[Received]:
        """Wait until there are messages in the buffer, and return it; ask for up to max_items where it is empty.

        A cancelled receive loses nothing: the messages are in the buffer, in flight under the lease.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self.renewal.note_task()
        buffer, notice = self.state.buffer, self.receiving.notice
        step = functools.partial(self.receiving.step, max_items)
        hasten = functools.partial(self.receiving.hasten, max_items)
        while True:
            while not buffer:
                remaining = None if deadline is None else max(0.0, deadline - loop.time())
                try:
                    await self._steps.waits.until(step, remaining, self._steps.name, hasten, notice, self._token_there)
                except BaseException:
                    await self.receiving.withdraw()
                    raise
            if self.term.certain:
                return buffer
            await self.assured()

    async def assured(self) -> float:
        """Return until when the role is certainly ours; where that is over, the server is asked, and renews the lease.

        A process can stand still between any two lines, for longer than its lease. What it received before may be
        somebody else's then, so nothing is handed out from the buffer without this.

        Raises:
            LeaseLostError: The lease was healed meanwhile: what was in flight, and in the buffer, has been given back.
        """
        while not self.term.certain:
            self.settling.renew = True
            await self.flush()
        return self.term.certain_until

    def last(self, seconds: float) -> None:
        """Let the lease last for that long from its next renewal; messages in flight keep a longer one."""
        self.term.seconds = max(seconds, self.term.seconds) if self.state.unsettled else seconds

    def extend(self, seconds: float) -> None:
        """Make the lease last for at least that long from now, even when the event loop is blocked."""
        self.term.extend(seconds)
        self.settling.renew = True
        self.settling.send()

    def _token_there(self) -> bytes:
        """The token of the consumer role's lease on the server; empty where it has none."""
        state = self.state
        return SHARED if state.shared else state.token if state.kept or state.unsettled else b""

    async def flush(self) -> None:
        """Wait until everything that was acknowledged, given back or extended so far is settled on the server.

        Cancelled, it is settled all the same.

        Raises:
            LeaseLostError: The lease had run out: what was in flight has been given back.
            DurabilityError: Too few confirmed it.
        """
        settling, receiving, unsettled = self.settling, self.receiving, self.state.unsettled
        settling.send()
        waiting = firsts(unsettled.acks)
        unsure = await settling.settled()
        while (step := receiving.answer) is not None and not waiting.isdisjoint(firsts(step.acks)):
            # A receive took them along. Where it fails, a step of their own has to settle them.
            reply = await self._steps.wait_for(step)
            unsure = reply if isinstance(reply, DurabilityError) else unsure
            if waiting.isdisjoint(firsts(unsettled.acks)):
                break
            unsure = await settling.settled() or unsure
        self.state.check()
        if unsure is not None:
            raise copy.copy(unsure)

    async def leave(self, closing: PressureError | None = None, hurry: bool = False) -> None:
        """Settle what was acknowledged, give back all the rest, and the role.

        Cancelled, or in a hurry, it is done all the same, and waits for the answer for up to `settle_timeout`: a frozen
        server may carry it out later. Otherwise it waits for as long as retries go on.

        Args:
            closing: The client is being closed: later operations raise this.
            hurry: The caller does not need the outcome.
        """
        self.stop()
        patience = Patience(self._steps.settle_timeout, hurry)
        try:
            if self.receiving.answer is not None:
                await patience.wait(self.receiving.answer)
            while self.settling.answer is not None and await patience.wait(self.settling.answer):
                pass  # what gathered meanwhile is on its way now
        finally:  # also where this is cancelled
            await self._give_back_all(patience, closing)
        if closing is None:
            self.state.check()

    async def _give_back_all(self, patience: Patience, closing: PressureError | None) -> None:
        """Settle what was acknowledged, give back the rest and the role, and wait for the answer."""
        state, receive = self.state, self.receiving.answer
        error = state.error
        if state.kept and error is None:
            logs.role("role_released", self._steps.name, "consumer", self.token, state.shared)
        last = None
        if error is None or isinstance(error, ServerError):  # the server refused a step: the role is ours still
            last = self.settling.leave(() if receive is None else receive.acks, self.receiving.unseen)
            state.error = error or closing
        state.unanswered.update(state.unsettled.acks if last is None else last.acks)
        state.unsettled.clear()
        state.buffer.clear()
        try:
            if last is not None and await patience.wait(last):
                if isinstance(last.result(), Exception):
                    state.error = state.error or last.result()
                else:
                    self.settling.count(last.acks)
                    state.unanswered.difference_update(last.acks)
        finally:  # also where this is cancelled
            if not isinstance(state.error, QueueDoesNotExistError):  # otherwise no message comes again
                logs.unacknowledged("AsyncQueue", self._steps.name, count_of(state.unanswered))
            state.unanswered.clear()  # the queue object was closed in the block: its end does not tell that again

    @property
    def active(self) -> bool:
        """Whether the role is ours: something is in flight, or the server refused to settle it."""
        return bool(self.state.unsettled) or isinstance(self.state.error, ServerError)

    def stop(self) -> None:
        """Renew the lease no more, and send nothing by itself."""
        self.renewal.end()
        self.settling.stop()

    def _broken(self, error: Exception) -> None:
        """A step has found that the lease is invalid."""
        if isinstance(error, LeaseLostError):
            lost, name = self.state.unsettled.ranges(), ""
            if lost:
                begin, end = lost[0][0], lost[-1][1]
                name = f"{self.token.decode()}:{begin}" + (f"-{end}" if end > begin else "")
            count = self.state.unsettled.outstanding
            logs.lease_lost("AsyncQueue", self._steps.name, count, error, self.token, delivery=name)
        self.stop()
        self._tell(error)

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew. Changes nothing: another thread asks."""
        return self.state.error is None and (self.state.kept or self.state.unsettled.outstanding > 0)

    @property
    def in_hand(self) -> bool:
        """Whether the program has messages that it has not settled; those of the buffer are not handed out yet."""
        return self.state.unsettled.outstanding > len(self.state.buffer)

    @property
    def progress(self) -> Hashable:
        """Another value after each message that was handed out or settled."""
        return self.receiving.handed_out, self.state.unsettled.progress

    def renew(self) -> None:
        """Renew the lease with the next step that settles. Called on the event loop."""
        if self.renewable:
            self.settling.renew = True
            self.settling.send()

    def give_up(self, error: LeaseLostError) -> None:
        """End the lease, and give back everything in flight; later operations raise the error."""
        self.client.finish_before_close(background.start(self._give_up(error), "giving up a lease"))

    async def _give_up(self, error: LeaseLostError) -> None:
        await self.leave(error, hurry=True)
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        if self.on_lost is not None:
            asyncio.get_running_loop().call_soon(self.on_lost, error)  # it may raise
