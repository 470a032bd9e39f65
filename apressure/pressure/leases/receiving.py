"""How messages come under a lease: one step at a time brings some, and takes acknowledgements along."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apressure import logs
from apressure.connection.wire.request import Request
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, LeaseLostError, QueueDoesNotExistError
from apressure.pressure.engine.notices import Notice
from apressure.pressure.leases.acknowledgements import Range

if TYPE_CHECKING:
    from apressure.pressure.engine.scripted import Scripted
    from apressure.pressure.leases.lease import Lease

Received = tuple[int, bytes, int]
"""A message in flight: its number under the lease, its bytes, and how often it has been delivered."""


class Receiving:
    """The steps that receive messages under a lease.

    Args:
        lease: The lease.
        queue: The operations of the queue.

    Attributes:
        buffer: Messages that were received and not handed out yet.
        full: The latest step brought as many as it asked for: there may be more.
        answer: The answer of the step on its way, if there is one.
        carried: The acknowledgements that travel with it.
        notice: Says in the log that the role is waited for.
    """

    def __init__(self, lease: Lease, queue: Scripted) -> None:
        self._lease = lease
        self._queue = queue
        self._series = queue.steps.series()
        self.notice = Notice(queue.name)
        self._next = 1  # the number of the next message, or a lower one where the role is shared
        self._received = 0
        self._request: Request | None = None
        self.answer: asyncio.Future[Any] | None = None
        self.carried: list[Range] = []
        self.buffer: deque[Received] = deque()
        self.full = False

    @property
    def handed_out(self) -> int:
        """How many messages have been received and handed out."""
        return self._received - len(self.buffer)

    @property
    def unseen(self) -> int:
        """The number of the first message that has not been handed out."""
        return self.buffer[0][0] if self.buffer else self._next

    def ahead(self, max_items: int) -> None:
        """Ask for messages before they are needed, unless a step that brings some is on its way."""
        if self.answer is None and self._lease.error is None:
            self._ask(max_items, ahead=True)

    async def step(self, max_items: int) -> bool | Wait:
        """Bring up to max_items into the buffer, or say why that has to wait.

        Cancelled, what comes all the same is in the buffer, in flight under the lease.
        """
        lease = self._lease
        lease.check()
        if self.answer is not None:
            # One at a time, since the step names the number to go on with. What it brings is in the buffer.
            await lease.wait_for(self.answer)
            return True
        answer = self._ask(max_items)
        try:
            reply = await lease.wait_for(answer, self._request)
        except asyncio.CancelledError:
            answer.add_done_callback(self._unwanted)  # it may come after `settle_timeout`
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Wait) else True

    def _unwanted(self, answer: asyncio.Future[Any]) -> None:
        """The caller was cancelled before this answer came."""
        if isinstance(answer.result(), Wait):
            self._queue.waits.drop(answer.result())
        if not self._lease.kept:
            self._lease.return_buffer()

    def _ask(self, max_items: int, ahead: bool = False) -> asyncio.Future[Any]:
        lease = self._lease
        acks = lease.take_acknowledgements()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answer = answer
        self.carried = acks
        fresh = not lease.kept and not lease.unsettled
        claimed = self._queue.waits.take_claim("consumer") if fresh else b"0"
        milliseconds = lease.term.milliseconds
        if fresh:
            lease.term.begin()
        confirm = lease.term.sent(milliseconds)

        def on_answer(reply: Any) -> None:
            self.answer = None
            self.carried = []
            before = self._received
            if not isinstance(reply, Exception):
                lease.settled(acks)
            if isinstance(reply, list):
                confirm()
                self._arrived(reply)
            elif isinstance(reply, (LeaseLostError, QueueDoesNotExistError)):
                lease.broken(reply)
            elif isinstance(reply, DurabilityError):
                lease.settled(acks)
                if isinstance(reply.answer, list):
                    confirm()
                    self._arrived(reply.answer)
                if ahead:
                    lease.unsure = reply  # no caller waits for this step
                if not lease.kept:
                    lease.return_buffer()  # the caller gets the error instead
            elif isinstance(reply, Exception):
                lease.unsettled.take_back(acks)  # acknowledging twice does no harm, forgetting it would
            outcome = reply.answer if isinstance(reply, DurabilityError) else reply
            if isinstance(outcome, Wait) and outcome.reason == "paused":
                lease.paused()
            self.full = self._received - before >= max_items
            answer.set_result(reply)

        steps, waits, dead = self._queue.steps, self._queue.waits, self._queue.dead
        if lease.shared:
            place = b"" if ahead else waits.take_turn()
            self._request = steps.receive_shared(
                self._series, lease.token, max_items, milliseconds, dead, place, self._next, lease.unconfirmed(),
                acks, on_answer,
            )  # fmt: skip
        else:
            self._request = steps.receive(
                self._series, lease.token, fresh, claimed, max_items, milliseconds, self._next, dead, acks, on_answer
            )
        return answer

    def _arrived(self, reply: list[Any]) -> None:
        self.notice.ended()
        chunks, tried, dead_letters, *first = reply
        messages = [message for chunk in chunks for message in chunk]
        if self._lease.error is not None:
            messages, tried = [], []  # the lease was ended meanwhile, and has given them back as never handed out
        begin = first[0] if first else self._next  # other members get numbers in between
        numbers = range(begin, begin + len(messages))
        self.buffer.extend(zip(numbers, messages, tried or itertools.repeat(1), strict=False))
        self._lease.unsettled.receive(numbers, map(len, messages))
        if tried:
            self._lease.failures.arrived(numbers, tried)
            self._tell_of_redeliveries(zip(numbers, messages, tried, strict=False))
        self._next = numbers.stop
        self._received += len(messages)
        counts = self._queue.counts
        counts.received_count += len(messages)
        if dead_letters and self._queue.dead is not None:  # (A reply that was lost is not told again.)
            dead = self._queue.dead.name
            counts.dead_lettered_count += logs.dead_letters("AsyncQueue", self._queue.name, dead_letters, dead)
        if messages:
            self._lease.renewal.begin()

    def _tell_of_redeliveries(self, received: Iterable[Received]) -> None:
        token = self._lease.token.decode()
        for number, message, attempts in received:
            if attempts > 1:
                logs.redelivered("AsyncQueue", self._queue.name, f"{token}:{number}", attempts, message)
