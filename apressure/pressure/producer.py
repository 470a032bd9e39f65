"""The producer of a queue, as a block of code."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from apressure import logs, validation
from apressure.concurrency import background
from apressure.concurrency.deadline import within
from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.due import Due, ManyTerms, PutTerms, due_of
from apressure.core.leases.clock import Term, since_boot
from apressure.core.leases.renewal import Renewal
from apressure.core.producer import AnyProducer
from apressure.core.waiting import Wait
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.items import Items
from apressure.pressure.engine.batching import KEYLESS, Put, put_chunk

if TYPE_CHECKING:
    from apressure.pressure.engine.engine import Scripted
    from apressure.pressure.engine.plain.engine import Plain
    from apressure.pressure.queue import AsyncQueue

T = TypeVar("T")


class Producer(AnyProducer[T, None]):
    """The end of a queue that puts; made by `AsyncQueue.producer`.

    When the block ends well, it closes the queue (unless `close=False`), and consumers end when the queue is drained.
    When the block raises or is cancelled, the queue stays open, so that another producer can go on.
    """

    def __init__(
        self, queue: AsyncQueue[T], close: bool, items: Items[T], engine: Scripted | Plain, exclusive: Exclusive | None
    ) -> None:
        super().__init__(queue, close)
        self._items = items
        self._engine = engine
        self._send: Callable[..., Awaitable[None]]
        self._send = engine.put if exclusive is None else exclusive.put
        self._exclusive = exclusive

    async def _begin(self) -> None:
        await (super()._begin() if self._exclusive is None else self._exclusive.enter())

    async def _end(self, close: bool, hurry: bool) -> None:
        if self._exclusive is not None:
            await self._exclusive.exit(close, hurry)
        elif close:
            with contextlib.suppress(QueueClosedError):  # another producer was first
                await self._engine.close(timeout=None)  # it waits for an exclusive one of this object, too

    async def put(
        self, item: T, timeout: float | None = None, *, deadline: float | None = None, **terms: Unpack[PutTerms]
    ) -> None:
        """Put an item, as `AsyncQueue.put` does.

        Raises:
            LeaseLostError: The producer is exclusive and has lost its role. Nothing was put.
        """
        queue = self._entered_queue()
        if deadline is not None:
            put = self.put(item, timeout, **terms)
            return await within(deadline, queue.name, put)
        due = due_of(terms, queue.name, "an AsyncQueue", KEYLESS)
        return await self._send(Put([self._items.encode(item)]), timeout, due=due)

    async def put_many(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None = None,
        *,
        deadline: float | None = None,
        **terms: Unpack[ManyTerms],
    ) -> int:
        """Put items in order, as `AsyncQueue.put_many` does."""
        queue = self._entered_queue()
        if deadline is not None:
            put = self.put_many(items, timeout, **terms)
            return await within(deadline, queue.name, put)
        send = partial(self._send, due=due_of(terms, queue.name, "an AsyncQueue", KEYLESS))
        return await queue.put_chunks(items, timeout, partial(put_chunk, send))


class Exclusive:
    """The producer role under a lease: no other client puts or closes while the block lasts."""

    in_hand: Final = False
    """A producer has nothing in hand: it is stuck only while the event loop is blocked."""

    progress: Final = None
    """Nothing counts as progress but the turning of the event loop."""

    def __init__(self, engine: Scripted | Plain, seconds: float, max_hold: float, timeout: float | None) -> None:
        self._engine = engine
        self._max_hold = max_hold
        self._timeout = timeout
        self.token = os.urandom(8).hex().encode()
        self.term = Term(seconds, since_boot)
        self._renewal: Renewal
        self._error: Exception | None = None
        self._entered = False

    async def enter(self) -> None:
        scripted = self._scripted = self._engine.scripted("an exclusive producer")
        steps, waits = scripted.steps, scripted.waits
        self._series = steps.series()
        self._renewal = steps.renewal(self, "producer", scripted.client.renewer, self._max_hold)

        def acquire() -> Awaitable[int | Wait]:
            return steps.acquire("producer", self.token, self.term.milliseconds)

        scripted.begin_block("producer")
        try:
            await waits.until(acquire, self._timeout, scripted.name)
        except BaseException:
            scripted.held.pop("producer", None)
            raise
        try:
            scripted.check()  # a client that was closed meanwhile does not know of this lease
        except BaseException:
            await self.exit(close=False, hurry=True)
            raise
        self._entered = True
        scripted.held["producer"] = self
        self._renewal.note_task()
        self._renewal.begin()
        logs.role("role_taken", scripted.name, "producer", self.token)

    def put(self, put: Put, timeout: float | None, due: Due | None = None) -> Awaitable[None]:
        """Put under the lease."""
        validation.timeout(timeout)
        self._scripted.client.check()
        if self._error is not None:
            raise self._error
        if not self._entered:
            raise RuntimeError("the producer's block has not begun, or has ended")
        return self._scripted.lane_of(put, due, self.token).run(put, timeout, False)

    def stop(self) -> None:
        """Stop renewing the lease."""
        self._renewal.end()

    async def leave(self, closing: PressureError) -> None:
        """The client is being closed: give the role back; later puts raise the error."""
        if self._error is None:
            self._error = closing
            await self._send(leave=True)

    async def exit(self, close: bool, hurry: bool) -> None:
        scripted = self._scripted
        scripted.held["producer"] = None
        try:
            if close:
                with contextlib.suppress(QueueClosedError):
                    await scripted.close(timeout=0, token=self.token)
        except asyncio.CancelledError:
            hurry = True
            raise
        finally:
            scripted.drop_lanes(self.token)
            self._entered = False
            self.stop()
            scripted.held.pop("producer", None)
            if self._error is None:
                logs.role("role_released", scripted.name, "producer", self.token)
                answer = self._send(leave=True)
                settle_timeout = scripted.client.settings.settle_timeout
                # In a hurry the caller does not need the answer: a frozen server may carry it out later.
                if await wait_for_answer(answer, settle_timeout if hurry else None, settle_timeout):
                    error = answer.result()
                    if close and error is not None and not isinstance(error, QueueDoesNotExistError):
                        raise error

    @property
    def renewable(self) -> bool:
        """Whether there is something to renew."""
        return self._error is None and self._entered

    def renew(self) -> None:
        """Renew the lease. Called on the event loop."""
        if self.renewable:
            self._send(leave=False)

    def give_up(self, error: LeaseLostError) -> None:
        """Give the role back; later puts raise the error."""
        self._scripted.client.finish_before_close(background.start(self.leave(error), "giving up a lease"))

    def _send(self, leave: bool) -> asyncio.Future[Exception | None]:
        """Renew the lease, or end it. The future has the error, or None."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        milliseconds = self.term.milliseconds
        confirm = self.term.sent(milliseconds)

        def on_answer(answer: Any) -> None:
            error = answer if isinstance(answer, Exception) else None
            if error is None:
                confirm()
            if isinstance(error, (LeaseLostError, QueueDoesNotExistError)):
                if self._error is None and isinstance(error, LeaseLostError):
                    logs.lease_lost("AsyncQueue", self._scripted.name, 0, error, self.token, "producer")
                self._error = error
                self.stop()
            set_result_once(done, error)

        self._scripted.steps.leave(self._series, self.token, milliseconds, leave, on_answer)
        return done
