"""Consumers of a queue of tasks, as `async with` blocks: any number of them compete, in any number of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.core.consumer import ConsumerOptions
from apressure.core.fetching import FetchingConsumer
from apressure.core.leases.in_hand import ExtendedHand
from apressure.core.prefetch import QUICK, Chunk
from apressure.core.waiting import Wait
from apressure.exceptions import LeaseLostError, PressureError
from apressure.tasks.core import Core
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.engine.answers import Renewed, Status
from apressure.tasks.engine.steps import Change
from apressure.tasks.nodes.orphans import Orphans
from apressure.tasks.task import Task

T = TypeVar("T")

STALE: Final = 30.0
"""Seconds without a sign of life after which a listener of ours is forgotten. Its tasks go back by their leases."""


MAX_PREFETCH: Final = 100

PATIENCE: Final = QUICK
"""Seconds: what was reserved and is not asked for within this time goes back. No task waits behind a long one."""


class TaskHand(ExtendedHand[TaskDelivery[Any]]):
    """The tasks that a consumer has in hand.

    Args:
        core: The queue.
        options: As for `ClaimHand`. With a number for `prefetch`, leases of tasks that were reserved ahead are renewed
            for as long as it takes. Without `max_hold`, a turn of the event loop is progress enough.
    """

    kind = "TaskQueue"
    _noun = "tasks"

    def __init__(self, core: Core[Any], options: ConsumerOptions) -> None:
        super().__init__(core.client.renewer, core.steps, options)
        self._core = core
        self._patient = options.prefetch is not None
        self.renewal.standstill.excused += options.max_hold is None

    def send_back(
        self, unseen: Sequence[TaskDelivery[Any]], seen: Sequence[TaskDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        changes = [Change("unseen", one.claim) for one in reversed(unseen)]
        changes += [one.nacked for one in reversed(seen)]

        def on_answer(answer: Any) -> None:
            if not isinstance(answer, Exception):
                for one, change, letter in zip(seen[::-1], changes[len(unseen) :], answer[len(unseen) :], strict=True):
                    if letter == "1":
                        one.note_dead(change)
            set_result_once(done, answer)

        if changes:
            self._steps.send_settle(changes, self._core.result_ttl, on_answer)
        return [done] if changes else []

    def _due(self) -> list[TaskDelivery[Any]]:
        # While a handler blocks the event loop, others get what was reserved ahead.
        every = self._patient or self.clock() - self.handed_at < self.term.seconds
        return [delivery for delivery in list(self.claims) if every or delivery.handed_out]

    def _confirm(self, due: Sequence[TaskDelivery[Any]], answer: Renewed, until: float) -> None:
        for delivery, renewed in zip(due, self._outcomes(answer), strict=False):
            if renewed and delivery in self.claims:
                delivery.renewed(until)

    def _outcomes(self, answer: Renewed) -> list[bool]:
        return [letter in "1c" for letter in answer.letters]

    def _react(self, due: Sequence[TaskDelivery[Any]], answer: Renewed, until: float) -> None:
        for delivery, letter in zip(due, answer.letters, strict=False):
            if letter not in "01c":
                self.claims.pop(delivery, None)  # a processor elsewhere has ended the task
            elif letter == "c" and delivery in self.claims and not delivery.cancel_requested:
                delivery.tell("cancel")
        super()._react(due, answer, until)

    def _tell(self, error: LeaseLostError, lost: Sequence[TaskDelivery[Any]]) -> None:
        for delivery in lost:
            delivery.tell("lost")
        super()._tell(error, lost)


class TaskConsumer(FetchingConsumer[T, TaskDelivery[Any]]):
    """The consuming end of a `TaskQueue`: it takes over the tasks of this host's dead listeners, too.

    Args:
        queue: The queue object.
        options: What the program says.
    """

    hand: TaskHand
    _queue: Core[Any]
    _heartbeat = 5.0

    def __init__(self, queue: Core[Any], options: ConsumerOptions) -> None:
        chunk = Chunk(options.prefetch, MAX_PREFETCH, one_by_one=True)
        super().__init__(queue, TaskHand(queue, options), chunk, options)
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0
        self._orphans = Orphans(queue)
        self._block = secrets.token_hex(8).encode()
        self._listener = b""

    async def _enter(self) -> None:
        queue = self._queue
        queue.check()
        self._listener = await queue.listener()
        await self._register()
        self._open(background.start(self._stay_registered(), f"registering a listener of {queue.name!r}"))
        try:
            await self._orphans.claim()
        except BaseException:
            await self.end()
            raise

    async def _stay_registered(self) -> None:
        with contextlib.suppress(PressureError):
            await self._orphans.find()
            await self._orphans.claim()
        await super()._stay_registered()

    async def _beat(self) -> None:
        await self._register()
        await self._orphans.claim()

    async def _register(self) -> None:
        await self._queue.steps.register(self._listener, self._block, STALE)

    async def _leave(self) -> None:
        await self._queue.steps.register(self._listener, self._block, 0, gone=True)

    async def _delete_drained(self) -> None:
        status: Status = await self._queue.steps.status()
        if status.closed and not (status.waiting or status.scheduled or status.leased):
            await self._queue.delete()

    async def _receive(self) -> None:
        try:
            await self._queue.until(self._step, None)
        finally:  # cancelled, it may have reserved some, too
            if self._chunk.fixed is None and self._timer is None and len(self.hand.buffer) > 1:
                self._look_soon(self.hand.progress + 1)

    async def _step(self) -> Wait | None:
        """Reserve tasks into the buffer, without waiting for them: one step.

        Cancelled while the step is on its way, the tasks are in the buffer when this ends.
        """
        queue, most = self._queue, self._chunk.adapt()
        want = queue.want(self.hand.term.seconds, self._listener, self._expected, len(self.hand.claims))
        done = self._send(lambda on_answer: queue.steps.send_reserve(self._series, most, want, on_answer))
        answer = await self._answer_to(done)
        if isinstance(answer, Wait):
            self._chunk.waited()
            return answer
        return None

    def _look_soon(self, progress: int) -> None:
        """Look again after `PATIENCE`: has the program got more than so many by then?"""
        self._looked_at = progress
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look_for_slowness)

    def _look_for_slowness(self) -> None:
        """Give back what was reserved ahead, if the program is busy with something else for long."""
        self._timer = None
        if self.hand.progress <= self._looked_at:
            self._chunk.size = 1
            self.hand.give_back_unseen()
        elif self.hand.buffer:
            self._look_soon(self.hand.progress)


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
        if self._state == "new":
            await self.__aenter__()
        return await super().__anext__()

    def _hand_out(self, delivery: TaskDelivery[Any], now: float) -> Task:
        super()._hand_out(delivery, now)
        return delivery.task
