"""At-least-once: leases on the consumer role, and what is in flight under them.

The server keeps a lease with a deadline, and the client's `Renewer` renews it. When the client dies, the next consumer
finds the lease expired, puts what was in flight back first in line, and goes on. A delivery is identified by the
lease's token and a number that is never used twice, so a late acknowledgement cannot settle another client's delivery.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once, wait_for_answer, wait_shielded
from apressure.connection.wire.request import Request
from apressure.core.leases.clock import Clock, Term, since_boot
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, LeaseLostError, PressureError, ServerError
from apressure.pressure.leases.acknowledgements import AcknowledgementTracker, Range, firsts
from apressure.pressure.leases.failures import Failures
from apressure.pressure.leases.receiving import Received, Receiving
from apressure.pressure.leases.settling import Settling

if TYPE_CHECKING:
    from apressure.pressure.engine.scripted import Scripted


SHARED = b"shared:1"
"""The token on the server of a role that has members; each one has a token of its own."""


class Lease:
    """The consumer role, held by this client.

    Args:
        queue: The operations of the queue.
        seconds: How long the role stays taken when this client dies.
        kept: The role is taken by `acquire` and kept until `leave`, whatever is in flight. Otherwise it is taken by the
            first message that is received, and goes back with the last one that is settled.
        max_hold: Seconds without progress after which the lease ends.
        shared: Other clients of ours may have the role at the same time: this is a member's share of it. It is kept.
        clock: Returns seconds, also those for which the machine was suspended.
    """

    def __init__(
        self,
        queue: Scripted,
        seconds: float,
        kept: bool,
        max_hold: float,
        shared: bool = False,
        clock: Clock = since_boot,
    ) -> None:
        self.client = queue.client
        self._queue = queue
        self.kept = kept
        self.shared = shared
        self.token = os.urandom(8).hex().encode()
        """The lease's name on the server."""
        self.term = Term(seconds, clock)
        self.receiving = Receiving(self, queue)
        self._settling = Settling(self, queue)
        self.unsettled = AcknowledgementTracker(on_first=self._settling.send_soon)
        """The messages in flight, by their numbers."""
        self.failures = Failures(queue.dead)
        """Why messages are given back."""
        self.renewal = queue.steps.renewal(self, "consumer", queue.client.renewer, max_hold, shared, self.paused)
        self.unsure: DurabilityError | None = None
        """Too few replicas confirmed a step that no caller waited for: the next caller gets this."""
        self.error: Exception | None = None
        """Why the lease is invalid; None while it is valid."""
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once, with the error, when the lease is lost."""

    async def acquire(self, timeout: float | None) -> int:
        """Take the role, waiting while somebody else has it; returns the queue's bound."""
        steps, waits = self._queue.steps, self._queue.waits

        def step() -> Awaitable[int | Wait]:
            claimed, milliseconds = waits.take_claim("consumer"), self.term.milliseconds
            if self.shared:
                return steps.join(claimed, self.token, milliseconds, waits.take_turn())
            return steps.acquire("consumer", claimed, self.token, milliseconds)

        bound = await waits.until(step, timeout, self._queue.name)
        self.renewal.note_task()
        self.renewal.begin()
        logs.role("role_taken", self._queue.name, "consumer", self.token, self.shared)
        return bound

    async def receive(self, max_items: int, timeout: float | None) -> deque[Received]:
        """Wait until there are messages in the buffer, and return it; ask for up to max_items where it is empty.

        A cancelled receive loses nothing: the messages are in the buffer, in flight under the lease.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self.renewal.note_task()
        receiving, queue = self.receiving, self._queue
        step = functools.partial(receiving.step, max_items)
        while True:
            while not receiving.buffer:
                remaining = None if deadline is None else max(0.0, deadline - loop.time())
                await queue.waits.until(step, remaining, queue.name, receiving.notice, self._token_there)
            if self.term.certain:
                return receiving.buffer
            await self.assured()

    async def assured(self) -> float:
        """Return until when the role is certainly ours; where that is over, the server is asked, and renews the lease.

        A process can stand still between any two lines, for longer than its lease. What it received before may be
        somebody else's then, so nothing is handed out from the buffer without this.

        Raises:
            LeaseLostError: The lease was healed meanwhile: what was in flight, and in the buffer, has been given back.
        """
        while not self.term.certain:
            self._settling.renew = True
            await self.flush()
        return self.term.certain_until

    def nack(self, number: int, error: BaseException | str | None = None) -> None:
        """Give a message back, first in line, with the next step that leaves; and say why."""
        if error is not None:
            self.failures.note(number, error)
        self._settling.give_back(number)

    def return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt."""
        while self.receiving.buffer:
            number, _, _ = self.receiving.buffer.pop()
            self._settling.give_back(number, unseen=True)

    def settled(self, acks: Iterable[Range]) -> None:
        """A step has carried out these acknowledgements."""
        if acks:
            self._queue.counts.deleted_count += sum(last - first + 1 for first, last, _ in acks)

    def paused(self) -> None:
        """The queue is paused: what was not handed out goes back. Called on the event loop."""
        if self.error is None:
            self.return_buffer()

    def last(self, seconds: float) -> None:
        """Let the lease last for that long from its next renewal; messages in flight keep a longer one."""
        self.term.seconds = max(seconds, self.term.seconds) if self.unsettled else seconds

    def extend(self, seconds: float) -> None:
        """Make the lease last for at least that long from now, even when the event loop is blocked."""
        self.term.extend(seconds)
        self._settling.renew = True
        self._settling.send()

    def unconfirmed(self) -> list[tuple[int, int]]:
        """Everything that may be in flight under this lease on the server, as ranges: first, last.

        Steps can overtake each other while the server learns their scripts. So it is ours until it is answered.
        """
        ranges: list[tuple[int, int]] = []
        acks = [(first, last) for first, last, _ in self.unsettled.acks]
        for first, last in sorted([*self.unsettled.ranges(), *acks, *self._settling.unconfirmed]):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return ranges

    def take_acknowledgements(self) -> list[Range]:
        """Return the acknowledgements for a step that receives.

        Errors are forgotten by the step that settles, so acknowledgements of redelivered messages leave with that one.
        """
        if self.failures.known(self.unsettled.acks):
            self._settling.send()
            if self.unsettled.acked:
                return []  # a step is on its way: they leave with the next one
        return self.unsettled.take()

    def _token_there(self) -> bytes:
        """The token of the consumer role's lease on the server; empty where it has none."""
        return SHARED if self.shared else self.token if self.kept or self.unsettled else b""

    async def flush(self) -> None:
        """Wait until everything that was acknowledged, given back or extended so far is settled on the server.

        Cancelled, it is settled all the same.

        Raises:
            LeaseLostError: The lease had run out: what was in flight has been given back.
            DurabilityError: Too few confirmed it.
        """
        self._settling.send()
        waiting = firsts(self.unsettled.acks)
        unsure = await self._settling.settled()
        receiving = self.receiving
        while receiving.answer is not None and not waiting.isdisjoint(firsts(receiving.carried)):
            # A receive took them along. Where it fails, a step of their own has to settle them.
            reply = await self.wait_for(receiving.answer)
            unsure = reply if isinstance(reply, DurabilityError) else unsure
            if waiting.isdisjoint(firsts(self.unsettled.acks)):
                break
            unsure = await self._settling.settled() or unsure
        self.check()
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
        loop = asyncio.get_running_loop()
        settle_timeout = self.client.settings.settle_timeout
        deadline = loop.time() + settle_timeout if hurry else None

        async def wait(future: asyncio.Future[Any]) -> bool:
            nonlocal deadline
            patience = None if deadline is None else max(0.0, deadline - loop.time())
            try:
                return await wait_for_answer(future, patience, settle_timeout)
            except asyncio.CancelledError:
                if deadline is None:
                    deadline = loop.time() + (settle_timeout if future.done() else 0.0)
                raise

        try:
            for step in (self.receiving.answer, self._settling.answer):
                if step is not None:
                    await wait(step)
            while self._settling.answer is not None and await wait(self._settling.answer):
                pass
        finally:
            # Resend acknowledgements that got no reply: a server that has to learn their script first may carry out
            # this step before them.
            acks = [*self._settling.carried, *self.receiving.carried, *self.unsettled.take()]
            nacks, unseen = self._settling.take()
            given_back, dead = self.failures.take(acks, nacks, leave=True)
            unseen = unseen or self.receiving.unseen
            self.unsettled.clear()
            self.failures.clear()
            self.receiving.buffer.clear()
            earlier = self.error
            if self.kept and earlier is None:
                logs.role("role_released", self._queue.name, "consumer", self.token, self.shared)
            if earlier is None or isinstance(earlier, ServerError):  # the server refused a step: the role is ours still
                answer: asyncio.Future[Any] = loop.create_future()
                on_answer = functools.partial(set_result_once, answer)
                self._settling.settle(
                    self._settling.series, self.token, 0, True, unseen, acks, given_back, on_answer, dead
                )
                self.error = earlier or closing
                if await wait(answer):
                    if isinstance(answer.result(), Exception):
                        self.error = earlier or closing or answer.result()
                    else:
                        self.settled(acks)
        if closing is None:
            self.check()

    @property
    def active(self) -> bool:
        """Whether the role is ours: something is in flight, or the server refused to settle it."""
        return bool(self.unsettled) or isinstance(self.error, ServerError)

    async def end(self, error: PressureError) -> None:
        """The client is being closed: give everything back; later operations raise the error."""
        await self.leave(error)

    def check(self) -> None:
        """Raise the reason where the lease is invalid."""
        if self.error is not None:
            self.receiving.buffer.clear()
            raise copy.copy(self.error)
        if self.unsure is not None:
            unsure, self.unsure = self.unsure, None
            raise unsure

    def stop(self) -> None:
        """Renew the lease no more, and send nothing by itself."""
        self.renewal.end()
        self._settling.stop()

    @property
    def pending(self) -> bool:
        """Whether there is something for the next step that settles."""
        return self._settling.pending

    def broken(self, error: Exception) -> None:
        """A step has failed: the lease is invalid from now on."""
        first = self.error is None
        if first:
            self.error = error
            if isinstance(error, LeaseLostError):
                lost, name = self.unsettled.ranges(), ""
                if lost:
                    begin, end = lost[0][0], lost[-1][1]
                    name = f"{self.token.decode()}:{begin}" + (f"-{end}" if end > begin else "")
                count = self.unsettled.outstanding
                logs.lease_lost("AsyncQueue", self._queue.name, count, error, self.token, delivery=name)
        self.stop()
        self.unsettled.clear()
        self.failures.clear()
        if first:
            self._tell(error)

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew. Changes nothing: another thread asks."""
        return self.error is None and (self.kept or self.unsettled.outstanding > 0)

    @property
    def in_hand(self) -> bool:
        """Whether the program has messages that it has not settled; those of the buffer are not handed out yet."""
        return self.unsettled.outstanding > len(self.receiving.buffer)

    @property
    def progress(self) -> Hashable:
        """Another value after each message that was handed out or settled."""
        return self.receiving.handed_out, self.unsettled.progress

    def renew(self) -> None:
        """Renew the lease with the next step that settles. Called on the event loop."""
        if self.error is None and (self.kept or self.unsettled):
            self._settling.renew = True
            self._settling.send()

    def give_up(self, error: LeaseLostError) -> None:
        """End the lease, and give back everything in flight; later operations raise the error."""
        self.client.finish_before_close(background.start(self._give_up(error), "giving up a lease"))

    async def _give_up(self, error: LeaseLostError) -> None:
        await self.leave(error, hurry=True)
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        if self.on_lost is not None:
            asyncio.get_running_loop().call_soon(self.on_lost, error)  # it may raise

    async def wait_for(self, future: asyncio.Future[Any], request: Request | None = None) -> Any:
        """Wait for an answer; a cancellation takes the request back, or waits for the answer as settling may take."""
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            if self._queue.steps.connection.take_back(request):
                raise
            await wait_shielded(future, self.client.settings.settle_timeout)
            raise
        return future.result()
