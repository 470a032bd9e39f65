"""At-least-once: leases on the consumer role, and what is in flight under them.

A lease is this client's hold on the consumer role. It is written down on the server with a deadline, and renewed by a
timer; when the client dies, whoever comes next finds it expired, puts what was in flight back first in line, and goes
on. A delivery is identified by the lease's token and a number that is never used twice, so a late acknowledgement
cannot settle somebody else's delivery.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from apressure.connection.settle import answered, resolve, settled
from apressure.exceptions import DurabilityError, LeaseLostError, PressureError, QueueDoesNotExistError, ServerError
from apressure.queue.ledger import Ledger, Range, firsts
from apressure.queue.scripted import Scripted
from apressure.queue.waits import Wait

logger = logging.getLogger("apressure")


Received = tuple[int, bytes, int]
"""A message in flight: its number under the lease, its bytes, and how often it has been delivered."""


class Lease:
    """The consumer role, held by this client.

    Args:
        queue: The operations of the queue.
        seconds: How long the role stays taken when this client dies.
        held: The role is taken by `occupy` and kept until `leave`, whatever is in flight; otherwise it is taken by
            the first message that is received, and given back with the last one that is settled.
    """

    def __init__(self, queue: Scripted, seconds: float, held: bool) -> None:
        self.client = queue.client
        self._queue = queue
        self._seconds = seconds
        self._held = held
        self._token = secrets.token_hex(8).encode()
        self._series = queue.steps.series()
        self._receives = queue.steps.series()
        self._number = 1
        self._nacks: list[int] = []
        self._unseen = 0  # from this number on, what is given back was never handed out; 0 for none
        self._on_their_way: tuple[list[Range], list[Range]] = ([], [])  # acks, with a settle and a receive step
        self._renew = False
        self._settling: asyncio.Future[DurabilityError | None] | None = None
        self._flushing = 0
        self._sent = 0
        self._done = 0
        self._soon: asyncio.Handle | None = None
        self._receiving: asyncio.Future[Any] | None = None
        self._receivers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self.unsettled = Ledger()
        """The messages in flight, by their numbers."""
        self.buffer: deque[Received] = deque()
        """Messages that were received and not handed out yet."""
        self.full = False
        """The latest step brought as many as it asked for: there may be more."""
        self.unsure: DurabilityError | None = None
        """Too few have confirmed a step that nobody waited for."""
        self.error: Exception | None = None
        """Why the lease is of no more use."""
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once, with the error, when the lease is lost."""

    async def occupy(self, timeout: float | None) -> None:
        """Take the role, waiting while somebody else has it."""
        steps, waits = self._queue.steps, self._queue.waits
        await waits.until(
            lambda: steps.occupy("consumer", waits.take_claim("consumer"), self._token, self._milliseconds()),
            timeout,
            self._queue.name,
        )
        self._beat_later()

    async def receive(self, max_items: int, timeout: float | None) -> Received:
        """Return the next message, received with up to max_items others, waiting while the queue is empty.

        A cancelled receive loses nothing: what came is in the buffer, in flight under the lease.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self._receivers += 1
        try:
            while not self.buffer:
                remaining = None if deadline is None else max(0.0, deadline - loop.time())
                await self._queue.waits.until(lambda: self._receive_step(max_items), remaining, self._queue.name)
            return self.buffer.popleft()
        finally:
            self._receivers -= 1

    def ahead(self, max_items: int) -> None:
        """Ask for messages before they are needed, unless a step that brings some is on its way."""
        if self._receiving is None and self.error is None:
            self._ask(max_items, ahead=True)

    def ack(self, number: int) -> None:
        """Acknowledge a message with the next step that leaves, at the latest in the next turn of the event loop."""
        if self.unsettled.ack(number):
            self._settle_soon()

    def nack(self, number: int) -> None:
        """Give a message back likewise, first in line."""
        self.unsettled.give_back(number)
        self._nacks.append(number)
        self._settle_soon()

    def return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt."""
        while self.buffer:
            number, _, _ = self.buffer.pop()
            self._unseen = min(self._unseen or number, number)
            self.nack(number)

    def last(self, seconds: float) -> None:
        """Let the lease last for that long from its next renewal; what is in flight keeps a longer one."""
        self._seconds = max(seconds, self._seconds) if self.unsettled else seconds

    def extend(self, seconds: float) -> None:
        """Make the lease last for at least that long from now, even when the event loop stands still."""
        self._until = asyncio.get_running_loop().time() + seconds
        self._renew = True
        self._flush()

    async def flush(self) -> None:
        """Wait until everything that was acknowledged, given back or extended so far is settled on the server.

        Cancelled, it is settled all the same.

        Raises:
            LeaseLostError: The lease had run out: what was in flight has been given back.
            DurabilityError: Too few confirmed it.
        """
        self._flush()
        waiting = firsts(self.unsettled.acks)
        last = self._sent + (1 if self._pending else 0)
        unsure: DurabilityError | None = None
        while True:
            while self._done < last and self._settling is not None:
                self._flushing += 1
                try:
                    unsure = await self._wait_for(self._settling) or unsure
                finally:
                    self._flushing -= 1
            if self._receiving is None or waiting.isdisjoint(firsts(self._on_their_way[1])):
                break
            # A receive took them along. Where it fails, a step of their own has to settle them.
            reply = await self._wait_for(self._receiving)
            unsure = reply if isinstance(reply, DurabilityError) else unsure
            if waiting.isdisjoint(firsts(self.unsettled.acks)):
                break
            self._flush()
            last = self._sent + (1 if self._pending else 0)
        self.check()
        if unsure is not None:
            raise copy.copy(unsure)

    async def leave(self, closing: PressureError | None = None, hurry: bool = False) -> None:
        """Settle what was acknowledged, give back all the rest, and the role.

        Cancelled, or in a hurry, it is done all the same, and waits for the answer for up to `settle_timeout`: what a
        server that stands still answers later is as good. Otherwise it waits for as long as retries go on.

        Args:
            closing: The client is closed underneath: what comes later is refused with this.
            hurry: Nobody needs to know how it ends.
        """
        self.stop()
        loop = asyncio.get_running_loop()
        settle_timeout = self.client.settings.settle_timeout
        deadline = loop.time() + settle_timeout if hurry else None

        async def wait(future: asyncio.Future[Any]) -> bool:
            nonlocal deadline
            patience = None if deadline is None else max(0.0, deadline - loop.time())
            try:
                return await answered(future, patience, settle_timeout)
            except asyncio.CancelledError:
                if deadline is None:
                    deadline = loop.time() + (settle_timeout if future.done() else 0.0)
                raise

        try:
            for step in (self._receiving, self._settling):
                if step is not None:
                    await wait(step)
            while self._settling is not None and await wait(self._settling):
                pass
        finally:
            # Those without an answer once more: a server that has to learn their script first may carry out this first.
            acks = [*self._on_their_way[0], *self._on_their_way[1], *self.unsettled.take()]
            nacks, self._nacks = self._nacks, []
            unseen = self._unseen or (self.buffer[0][0] if self.buffer else self._number)
            self._unseen = 0
            self.unsettled.clear()
            self.buffer.clear()
            earlier = self.error
            if earlier is None or isinstance(earlier, ServerError):  # the server refused a step: the role is ours still
                answer: asyncio.Future[Any] = loop.create_future()
                self._queue.steps.settle(
                    self._series,
                    self._token,
                    0,
                    True,
                    unseen,
                    acks,
                    sorted(nacks),
                    lambda reply: resolve(answer, reply),
                )
                self.error = earlier or closing
                if await wait(answer) and isinstance(answer.result(), Exception):
                    self.error = earlier or closing or answer.result()
        if closing is None:
            self.check()

    @property
    def handed_out(self) -> int:
        """How many messages have been received and handed out."""
        return self._number - 1 - len(self.buffer)

    @property
    def stands(self) -> bool:
        """The role is ours: something is in flight, or the server refused to settle what was."""
        return bool(self.unsettled) or isinstance(self.error, ServerError)

    async def end(self, error: PressureError) -> None:
        """The client is closed underneath: give everything back, and refuse with the error what comes later."""
        await self.leave(error)

    def check(self) -> None:
        """Raise why the lease is of no more use, if it is."""
        if self.error is not None:
            self.buffer.clear()
            raise copy.copy(self.error)
        if self.unsure is not None:
            unsure, self.unsure = self.unsure, None
            raise unsure

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _milliseconds(self) -> int:
        remaining = self._until - asyncio.get_running_loop().time()
        return int(max(self._seconds, remaining) * 1000)

    async def _receive_step(self, max_items: int) -> bool | Wait:
        self.check()
        if self._receiving is not None:
            # One at a time, since the step names the number to go on with. What it brings is in the buffer.
            await self._wait_for(self._receiving)
            return True
        reply = await self._wait_for(self._ask(max_items))
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Wait) else True

    def _ask(self, max_items: int, ahead: bool = False) -> asyncio.Future[Any]:
        acks = self.unsettled.take()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._receiving = answer
        self._on_their_way = (self._on_their_way[0], acks)
        fresh = not self._held and not self.unsettled
        held = self._queue.waits.take_claim("consumer") if fresh else b"0"

        def on_answer(reply: Any) -> None:
            self._receiving = None
            self._on_their_way = (self._on_their_way[0], [])
            before = self._number
            if isinstance(reply, list):
                self._arrived(reply)
            elif isinstance(reply, (LeaseLostError, QueueDoesNotExistError)):
                self._broken(reply)
            elif isinstance(reply, DurabilityError):
                if isinstance(reply.answer, list):
                    self._arrived(reply.answer)
                if ahead:
                    self.unsure = reply  # nobody waits for this step: whoever comes next has to know
                if not self._held:
                    self.return_buffer()  # the caller gets the error instead
            elif isinstance(reply, Exception):
                self.unsettled.take_back(acks)  # acknowledging twice does no harm, forgetting it would
            self.full = self._number - before >= max_items
            answer.set_result(reply)
            if not (self._held or self._receivers):
                # Whoever asked was cancelled, and has stopped waiting for the outcome (settle_timeout): not theirs.
                self.return_buffer()

        self._queue.steps.receive(
            self._receives, self._token, fresh, held, max_items, self._milliseconds(), self._number, self._queue.dead,
            acks, on_answer,
        )  # fmt: skip
        return answer

    def _arrived(self, reply: list[Any]) -> None:
        portions, tried, dead_letters = reply
        messages = [message for portion in portions for message in portion]
        if self.error is not None:
            messages, tried = [], []  # the lease was ended meanwhile, and has given them back as never handed out
        numbers = range(self._number, self._number + len(messages))
        self.buffer.extend(zip(numbers, messages, tried or itertools.repeat(1), strict=False))
        self.unsettled.receive(numbers, map(len, messages))
        self._number = numbers.stop
        if dead_letters and self._queue.dead is not None:
            # Once a step, without the messages, which may be confidential. (A reply that was lost is not told again.)
            logger.warning(
                "moved %d message(s) of the queue %r to the dead-letter queue %r: delivered %d time(s) and never "
                "acknowledged", dead_letters, self._queue.name, self._queue.dead.name, self._queue.dead.max_attempts,
            )  # fmt: skip
        if messages and self._timer is None:
            self._beat_later()

    @property
    def _pending(self) -> bool:
        return bool(self.unsettled.acked or self._nacks or self._renew) and self.error is None

    def _settle_soon(self) -> None:
        if self._soon is None and self._settling is None:
            self._soon = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what has gathered, unless a step is on its way: then it leaves when that is answered."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if not self._held and not self.unsettled:
            self._renew = False  # the role goes back with the last message: there is no lease to renew
        if self._settling is not None or not self._pending:
            return
        settling: asyncio.Future[DurabilityError | None] = asyncio.get_running_loop().create_future()
        self._settling = settling
        self._sent += 1
        self._renew = False
        acks = self.unsettled.take()
        nacks, self._nacks = self._nacks, []
        unseen, self._unseen = self._unseen, 0
        self._on_their_way = (acks, self._on_their_way[1])

        def on_answer(reply: Any) -> None:
            self._settling = None
            self._on_their_way = ([], self._on_their_way[1])
            self._done += 1
            unsure = reply if isinstance(reply, DurabilityError) else None
            if unsure is not None:
                if acks and not self._flushing:
                    self.unsure = unsure  # nobody waits for this step: whoever comes next has to know
            elif isinstance(reply, Exception):
                self._broken(reply)
            self._flush()
            resolve(settling, unsure)

        self._queue.steps.settle(
            self._series, self._token, self._milliseconds(), False, unseen, acks, sorted(nacks), on_answer
        )

    def _broken(self, error: Exception) -> None:
        first = self.error is None
        if first:
            self.error = error
        self.stop()
        self.unsettled.clear()
        if first and self.on_lost is not None:
            self.on_lost(error)

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds / 3, self._beat)

    def _beat(self) -> None:
        self._timer = None
        if self.error is None and (self._held or self.unsettled):
            self._renew = True
            self._flush()
            self._beat_later()

    async def _wait_for(self, future: asyncio.Future[Any]) -> Any:
        """Wait for an answer; a cancellation waits for it too, for as long as settling may take."""
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            await settled(future, self.client.settings.settle_timeout)
            raise
        return future.result()
