"""Consumers of a queue of tasks, as `async with` blocks: any number of them compete, in any number of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.consumer import QueueConsumer
from apressure.core.leases.clock import Clock, since_boot
from apressure.core.prefetch import QUICK, Chunk
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError, PressureError
from apressure.protocols import DEFAULT_MAX_HOLD
from apressure.tasks.delivery import Hand, TaskDelivery
from apressure.tasks.engine.answers import Reservation
from apressure.tasks.engine.lanes import note_reserved
from apressure.tasks.engine.steps import Change
from apressure.tasks.nodes.orphans import Orphans
from apressure.tasks.nodes.renewing import Renewing
from apressure.tasks.task import Task

if TYPE_CHECKING:
    from apressure.tasks.queue import TaskQueue

T = TypeVar("T")

SIGN_OF_LIFE: Final = 5.0
"""Seconds between two signs of life of a listener."""

STALE: Final = 30.0
"""Seconds without a sign of life after which a listener of ours is forgotten. Its tasks go back by their leases."""


MAX_PREFETCH: Final = 100

PATIENCE: Final = QUICK
"""Seconds: what was reserved and is not asked for within this time goes back. No task waits behind a long one."""


class TaskConsumer(QueueConsumer[T, TaskDelivery[Any]]):
    """The consuming end of a `TaskQueue`: it takes over the tasks of this host's dead listeners, too."""

    hand: Hand
    _renewing: Renewing

    def __init__(
        self,
        queue: TaskQueue[Any],
        manual: bool,
        delete: bool,
        prefetch: int | None,
        lease: float,
        max_hold: float | None,
        clock: Clock = since_boot,
    ) -> None:
        timeout = queue.steps.settle_timeout
        hand = Hand(self._failed)
        super().__init__(queue.check, [queue.blocks], timeout, manual=manual, delete=delete, hand=hand)
        self._queue = queue
        self._chunk = Chunk(prefetch, MAX_PREFETCH, one_by_one=True)
        self._timer: asyncio.TimerHandle | None = None
        self._series = queue.steps.series()
        self._renewing = Renewing(
            queue, hand, lease, max_hold or DEFAULT_MAX_HOLD, self._lost, self._give_back_unseen, clock,
            patient=prefetch is not None,
        )  # fmt: skip
        self._orphans = Orphans(queue)
        if max_hold is None:
            self._renewing.excuse()
        self._block = secrets.token_hex(8).encode()
        self._listener = b""
        self._expected = queue.expected

    async def _enter(self) -> None:
        queue = self._queue
        queue.check()
        self._listener = await queue.listener()
        await queue.steps.register(self._listener, self._block, STALE)
        self._open(background.start(self._stay_registered(), f"registering a listener of {queue.name!r}"))
        try:
            await self._orphans.claim()
        except BaseException:
            await self.end()
            raise

    async def _return(self, unseen: list[TaskDelivery[Any]], seen: list[TaskDelivery[Any]]) -> None:
        steps = self._queue.steps
        # What goes back later comes before it: what the program has not seen goes back first.
        changes = [Change("unseen", one.claim) for one in reversed(unseen)]
        changes += [one.nacked for one in reversed(seen)]
        try:
            if changes:
                letters = await steps.settle(changes, self._queue.result_ttl)
                for one in (*unseen, *seen):
                    one.settled = True
                for one, letter in zip(reversed(seen), letters[len(unseen) :], strict=True):
                    if letter == "1":
                        one.note_dead(one.nacked)
        finally:
            await steps.unregister(self._listener, self._block)

    async def _delete_drained(self) -> None:
        status = await self._queue.steps.status()
        if status.closed and not (status.waiting or status.scheduled or status.leased):
            await self._queue.delete()

    async def _receive(self) -> None:
        await self._queue.until(self._step, None)

    def _hand_out(self, delivery: TaskDelivery[Any]) -> T:
        self._renewing.handed_out(delivery)
        if self._buffer and self._chunk.fixed is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look_for_slowness)
        if self._manual:
            return self._shown(delivery)
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    def _shown(self, delivery: TaskDelivery[Any]) -> T:
        return delivery  # type: ignore[return-value]

    def _look_for_slowness(self) -> None:
        """Give back what was reserved ahead, if the program is busy with something else for long."""
        self._timer = None
        if self._renewing.seconds_since_handed_out >= PATIENCE:
            self._chunk.size = 1
            self._give_back_unseen()
        elif self._buffer:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look_for_slowness)

    async def _step(self) -> Wait | None:
        """Reserve tasks into the buffer, without waiting for them: one step.

        Cancelled while the step is on its way, the tasks are in the buffer when this ends.
        """
        queue, most = self._queue, self._chunk.adapt()
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent = self._renewing.clock()

        def on_answer(answer: Any) -> None:
            if isinstance(answer, Reservation):
                self._arrived(answer, sent)
            elif isinstance(answer, DurabilityError) and isinstance(answer.answer, Reservation) and answer.answer.tasks:
                queue.steps.give_back_soon(answer.answer.tasks)
            set_result_once(done, answer)

        want = queue.want(self._renewing.term.seconds, self._listener, self._expected, len(self.hand))
        queue.steps.send_reserve(self._series, most, want, on_answer)
        await wait_for_answer(done, None, queue.steps.settle_timeout)
        answer = done.result()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Wait):
            self._expected = self._expected or answer.created
            self._chunk.waited()
            return answer
        return None

    def _arrived(self, answer: Reservation, sent: float) -> None:
        queue = self._queue
        note_reserved(queue.steps, answer)
        deliveries = [queue.delivery(reserved, self.hand) for reserved in answer.tasks]
        self._buffer.extend(deliveries)
        self._renewing.arrived([(one.claim, one) for one in deliveries], sent)
        if self._left:  # the block has ended meanwhile
            self._give_back_unseen()

    def _give_back_unseen(self) -> None:
        """Give back what the program has not seen."""
        unseen = list(self._buffer)
        self._buffer.clear()
        for one in unseen:
            self.hand.pop(one.claim, None)
        if unseen:
            changes = [Change("unseen", one.claim) for one in reversed(unseen)]
            self._queue.steps.send_settle(changes, 0, lambda _: None)

    async def _flush(self) -> None:
        """Wait until completions have been sent and answered."""
        await asyncio.wait((self._queue.settler.flushed(),))

    async def _stay_registered(self) -> None:
        """Give signs of life, and take over tasks of listeners of this host that give none."""
        with contextlib.suppress(PressureError):
            await self._orphans.find()
            await self._orphans.claim()
        while True:
            await asyncio.sleep(SIGN_OF_LIFE)
            with contextlib.suppress(PressureError):  # the next one may get through
                await self._queue.steps.register(self._listener, self._block, STALE)
                await self._orphans.claim()


class Listener(TaskConsumer[Task]):
    """Reserves tasks one by one, for processors in this process or others; made by `TaskClient.listener`.

    `async for task in client.listener(name)` hands out tasks that are ready to start, until the queue is closed and
    drained. It renews their leases, by a thread, until processors have completed or failed them. Use it as an
    `async with` block to say when it ends; without one it ends with the client. At the end, tasks that are not finished
    go back, first in line: end their processes before.
    """

    async def __anext__(self) -> Task:
        """Return the next task, reserved; it raises as the iteration of `TaskConsumer` does.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was reserved.
        """
        if not (self._inside or self._left):
            await self.__aenter__()
        return await super().__anext__()

    def _shown(self, delivery: TaskDelivery[Any]) -> Task:
        return delivery.task
