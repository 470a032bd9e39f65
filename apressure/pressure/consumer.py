"""The consumer of a queue, as a block of code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from apressure.concurrency.lifetime import IteratingTask
from apressure.core.leases.clock import Clock, Term, since_boot
from apressure.core.registration import Doing, Registration, block_registration
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError
from apressure.pressure.delivery import Delivery
from apressure.pressure.leases.hand import Received
from apressure.pressure.leases.lease import Lease
from apressure.pressure.leases.steps import Receiving
from apressure.protocols import DEFAULT_LEASE, DEFAULT_MAX_HOLD

if TYPE_CHECKING:
    from apressure.pressure.engine.engine import Scripted
    from apressure.pressure.engine.plain.engine import Plain

T = TypeVar("T")

MAX_PREFETCH = 1000
PREFETCH_SECONDS = 0.05
"""An adaptive prefetch takes about as many messages as the body of the loop handles in this time."""

READ_AHEAD = 16
"""From so many on, half of what is prefetched is asked for while the body works on the other half."""

TURN_SECONDS = 0.05
"""How long a body that waits for nothing keeps the event loop from turning, apart from its latest item."""


class Options(NamedTuple):
    """What a consumer is to do: the arguments of `AsyncQueue.consumer`, checked, and its clock."""

    manual: bool = False
    delete: bool = False
    prefetch: int | None = None
    lease: float = DEFAULT_LEASE
    timeout: float | None = None
    max_hold: float = DEFAULT_MAX_HOLD
    shared: bool = False
    clock: Clock = since_boot


class Turns(IteratingTask):
    """The task that iterates, which has the event loop turn where its body waits for nothing.

    Or nobody would renew the lease, send acknowledgements or cancel before the buffer is empty.

    Attributes:
        due: When it has to turn, by the consumer's clock.
    """

    due = 0.0
    _turned = True

    async def take(self, lease: Lease, clock: Clock) -> None:
        """Have it turn now, unless it has turned since the last time."""
        if not self._turned:
            self._turned = True  # also if this is cancelled: then the next iteration does not wait
            await asyncio.sleep(0)
            lease.state.check()
        self._turned = False
        asyncio.get_running_loop().call_soon(self._note)
        self.due = clock() + TURN_SECONDS

    def _note(self) -> None:
        self._turned = True


class Prefetch:
    """How many messages a consumer has in hand: as many as its body handles in a moment, never more than the bound.

    Args:
        receiving: What asks for them.
        fixed: This many, however quick the body is; None to adapt to it.
        bound: The queue's bound; 0 for none.

    Attributes:
        half: Where this many are left in the buffer, the other half is due; 0 where all are asked for at once.
    """

    def __init__(self, receiving: Receiving, fixed: int | None, bound: int) -> None:
        self._receiving = receiving
        self._fixed = fixed
        self._most = min(MAX_PREFETCH, bound) if bound > 0 else MAX_PREFETCH
        self._chunk = 1
        self._handled = 0  # how many had been handled when the body began with the chunk,
        self._since = 0.0  # and when that was
        self.half = 0

    def plan(self, handled: int) -> int:
        """Decide how many to ask for, given how many the body has handled so far; returns that."""
        if self._fixed is not None:
            self._chunk = min(self._fixed, self._most)
        elif done := handled - self._handled:
            elapsed = asyncio.get_running_loop().time() - self._since
            quick = int(done * PREFETCH_SECONDS / elapsed) if elapsed > 0 else self._most
            more = self._chunk * 2 if self._receiving.full else self._chunk
            self._chunk = max(1, min(self._most, more, quick))
        self.half = self._chunk // 2 if self._chunk >= READ_AHEAD else 0
        return self.half or self._chunk

    def begin(self) -> None:
        """The body begins with a chunk: see how quick it is, and ask for the next half in good time."""
        self._handled, self._since = self._receiving.handed_out - 1, asyncio.get_running_loop().time()
        if self.half and self._receiving.full:  # otherwise the queue was empty behind them
            self._receiving.ahead(self.half)


class Consumer(Generic[T]):
    """The end of a queue that gets, at-least-once; made by `AsyncQueue.consumer`.

    The block holds the consumer role under a lease that a thread renews, also while the body blocks the event loop.
    Iterating hands out one item after the other until the queue is closed and drained. An item is acknowledged when the
    loop asks for the next one, or when the block ends well. When the body raises, is cancelled or dies, the item comes
    again, first in line, marked as redelivered; and so does everything that was prefetched.

    An iteration belongs to the task that began it. A task that the body starts and does not wait for is not covered
    by the acknowledgement. `T` is what the iteration hands out: an item, or with `ack="manual"` its `Delivery`.

    `put_many` refuses a consumer: it reads ahead, so an item would be acknowledged before it is in the other queue. Put
    each item in the body of the loop.
    """

    registers = True
    """A block that lives for a while registers at the queue. False where what has the block does that."""

    acknowledges_the_one_before: Final = True
    """Code that reads ahead must not iterate over this; see `validation.batch`."""

    def __init__(self, engine: Scripted | Plain, decode: Callable[[bytes], Any], options: Options) -> None:
        self._engine = engine
        self._decode = decode
        self._options = options
        self._clock = options.clock
        self._manual = options.manual
        self._lease: Lease | None = None
        self._worker: Registration | None = None
        self._prefetch: Prefetch
        self._loop: asyncio.AbstractEventLoop | None = None  # to ask for it each time is slow before Python 3.12
        self._current: Received | None = None
        self._task: asyncio.Task[Any] | None = None
        self._look_at = 0.0
        self._turns = Turns()

    async def __aenter__(self) -> Self:
        scripted, options = self._engine.scripted("the consumer role"), self._options
        self._loop = asyncio.get_running_loop()
        self._engine.begin_block("consumer")
        try:
            term = Term(options.lease, options.clock)
            lease = Lease(scripted.steps, scripted.dead, term, True, options.max_hold, options.shared)
            bound = await lease.acquire(options.timeout)
            try:
                self._engine.check()  # a client that was closed meanwhile does not know of this lease
            except BaseException:
                await self._leave_quietly(lease)
                raise
        except BaseException:
            self._engine.held.pop("consumer", None)
            raise
        self._engine.held["consumer"] = self._lease = lease
        self._prefetch = Prefetch(lease.receiving, options.prefetch, bound)
        self._worker = block_registration(scripted.registry, partial(self._doing, lease)) if self.registers else None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if self._worker is not None:
            self._worker.end()
        self._engine.held["consumer"] = None
        try:
            if kind is None and self._current is not None and lease.state.error is None:
                lease.state.unsettled.ack(self._current[0])
            if kind is None:
                finished = lease.state.drained and not lease.state.unsettled
                # One of several that share the role and delete the queue at its end comes first.
                late = self._options.shared and self._options.delete and lease.state.drained
                with contextlib.suppress(QueueDoesNotExistError) if late else contextlib.nullcontext():
                    await lease.leave()
                    # The queue is closed: what is in it now is what was given back, and nobody has done that work.
                    if self._options.delete and finished and await self._is_empty():
                        self._engine.held.pop("consumer", None)
                        await self._engine.delete(None)
            else:
                if self._current is not None and isinstance(error, Exception):  # no cancellation: it is no failure
                    lease.state.unsettled.note_error(self._current[0], error)
                await self._leave_quietly(lease)
        finally:
            self._current = None
            self._engine.held.pop("consumer", None)

    def _doing(self, lease: Lease) -> Doing:
        """Return what this block does, for those who look at the queue."""
        handled = lease.receiving.handed_out - (self._current is not None)
        return Doing(0 if self._manual else 1, lease.state.unsettled.outstanding, handled)

    async def _is_empty(self) -> bool:
        """Whether nothing waits, and nothing is delayed."""
        inspected = await self._engine.inspect()
        return not (inspected[1] or inspected[9])

    async def _leave_quietly(self, lease: Lease) -> None:
        """The body's own exception is what the caller has to see; a lease that is lost gave everything back already."""
        with contextlib.suppress(PressureError):
            await lease.leave(hurry=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next `Delivery`.

        Cancelled while it waits, nothing is lost: what was received is given back when the block ends.

        Raises:
            StopAsyncIteration: The queue is closed, and everything was handed out.
            DecodeError: The message cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease ran out, since the process stood still or the server was out of reach for longer
                than it lasted, and another client gave back what was in flight. Nothing that was received before is
                handed out then. (Where no other client needed the role meanwhile, the lease is renewed, and the loop
                goes on.) Or it was given up after `max_hold`.
            RuntimeError: Another task iterates already, or the block has ended.
        """
        lease = self._lease
        if lease is None or self._task is None or asyncio.current_task(self._loop) is not self._task:
            lease = self._checked()
        state, prefetch = lease.state, self._prefetch
        if state.error is not None or state.unsure is not None:
            state.check()
        if self._current is not None:
            state.unsettled.ack(self._current[0])
            self._current = None
        buffer = state.buffer
        if buffer and self._clock() >= self._look_at:
            await self._look(lease)
        if buffer:
            received = buffer.popleft()
            if len(buffer) + 1 == prefetch.half:  # the half that was asked for has come already
                prefetch.plan(lease.receiving.handed_out - 1)
                prefetch.begin()
        else:
            try:
                received = (await lease.receive(prefetch.plan(lease.receiving.handed_out), None)).popleft()
            except QueueClosedError:
                await lease.flush()
                state.drained = True
                raise StopAsyncIteration from None
            except QueueDoesNotExistError:
                if not (self._options.shared and self._options.delete):
                    raise
                state.drained = True  # another one that shares the role has drained and deleted it
                raise StopAsyncIteration from None
            prefetch.begin()
        if self._manual:
            return Delivery(lease, received, self._decode)  # type: ignore[return-value]
        self._current = received
        return self._decode(received[1])  # type: ignore[no-any-return]

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`.

        Call it right after the iteration has returned one, in the same turn of the event loop: the lease stands as it
        did for that one.
        """
        lease = self._lease
        if lease is None or not self._manual:
            return []
        buffer, prefetch = lease.state.buffer, self._prefetch
        before, taken = len(buffer), min(most, len(buffer))
        ready = [Delivery(lease, buffer.popleft(), self._decode) for _ in range(taken)]
        if before >= prefetch.half > before - taken:  # as in the iteration
            prefetch.plan(lease.receiving.handed_out - 1)
            prefetch.begin()
        return ready  # type: ignore[return-value]

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called when the lease is lost: at once, not only when the loop goes on.

        For `ack="manual"`: what is in the handlers' hands comes again, so they may as well stop.
        """
        self._checked().on_lost = callback

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 where there is none."""
        return self._current[2] if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """The current item was delivered before, and not acknowledged."""
        return self.attempts > 1

    async def _look(self, lease: Lease) -> None:
        """Before an item of the buffer is handed out: the event loop has to turn, and the lease has to stand."""
        if self._clock() >= self._turns.due:
            await self._turns.take(lease, self._clock)
        self._look_at = min(self._turns.due, await lease.assured())

    def _checked(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        self._engine.client.check()
        self._turns.check()
        self._task = asyncio.current_task()
        return self._lease
