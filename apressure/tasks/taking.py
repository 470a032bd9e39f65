"""The part of `TaskQueue` that takes tasks, or looks at those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.getting import Getting
from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import wait_for_answer, wait_shielded
from apressure.core.leases.arguments import lease_of
from apressure.core.leases.clock import since_boot
from apressure.core.taking import Take
from apressure.exceptions import QueueEmptyError
from apressure.tasks.contents import Contents
from apressure.tasks.delivery import Hand, TaskDelivery
from apressure.tasks.engine.answers import Reserved, raw, text
from apressure.tasks.engine.steps import MAX_TASKS
from apressure.tasks.processor import NO_RESULT
from apressure.tasks.task import Task

T = TypeVar("T")


class Taking(Contents[T], Getting[T], Generic[T]):
    """The part of `TaskQueue` that takes tasks.

    Attributes:
        lease: How long leases last, in seconds.
    """

    lease: float

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> TaskDelivery[T]:
        """Reserve the task that is next, waiting while there is none (specification: Node Task Pop).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other node gets it; None for the queue's. Only `TaskDelivery.extend` renews it:
                `consumer` and `TaskClient.listener` renew by themselves.
            deadline: Seconds for the whole operation, with connecting and repeating; None for no limit.

        Raises:
            QueueEmptyError: There was none until the timeout.
            DeadlineError: The deadline passed. What is reserved later goes back by itself.
            QueueClosedError: The queue is closed, and no task waits or is scheduled. One in hand may still come back:
                then the next `receive` gets it.
            QueueDoesNotExistError: It was created and deleted.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Tasks that were reserved come
                again when their lease ends.
            TypeError, ValueError: An argument is invalid.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self.receive_many(1, timeout, lease, deadline=deadline))[0]

    @with_deadline()
    async def receive_many(
        self,
        max_items: int,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        deadline: float | None = None,
    ) -> list[TaskDelivery[T]]:
        """Reserve one to max_items tasks, as many as there are, waiting while there is none.

        Very many or large tasks come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        seconds = self.lease if lease is None else lease_of(lease)
        tasks, sent = await self._reserve(max_items, timeout, seconds)
        deliveries = [self.delivery(one) for one in tasks]
        for delivery in deliveries:
            delivery.certain_until = sent + seconds
        return deliveries

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get the parameters of one to max_items tasks, as many as there are, waiting while there is none.

        At-most-once: the tasks are complete, without a result, before their parameters are returned.

        Args:
            max_items: How many at most.
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            DecodeError: The first parameters cannot be decoded. The tasks behind it have been given back.
            OutcomeUnknownError: The connection broke after the step was sent: the tasks may be complete. They keep
                their parameters, see `tasks`. `receive` and `consumer` lose none.
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while the steps are on their way, it waits for the
        answer, gives the tasks back, first in line, then raises. Consumers of a closed queue may have ended by then.
        """
        while True:
            tasks, _ = await self._reserve(max_items, timeout, self.lease)
            items, broken = self._items.decode_first([raw(task.fields.get("parameters", "")) for task in tasks])
            taken = tasks[: max(1, len(items))]  # parameters that cannot be decoded are in the error
            letters = await self._complete(taken, tasks[len(taken) :])
            done = [task.claim for task, letter in zip(taken, letters, strict=True) if letter == "1"]
            if done:
                note_taken(lambda done=done: asyncio.wait((self.steps.reopen_soon(done),)))  # type: ignore[misc]
            if done and broken is not None:
                raise broken
            if done:  # otherwise their leases have ended already, and others get them
                return [item for item, letter in zip(items, letters, strict=True) if letter == "1"]

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the parameters of the task that is next, without taking it.

        Raises:
            QueueEmptyError: None waits.
            DecodeError: The codec cannot decode them.
            PressureError: As for `statistics`.
        """
        return await self._peek(False)

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the parameters of the task that was enqueued last, without taking it.

        Raises:
            QueueEmptyError, DecodeError, PressureError: As for `peek`.
        """
        return await self._peek(True)

    def delivery(self, reserved: Reserved, hand: Hand | None = None) -> TaskDelivery[T]:
        """Return the delivery of a task that a step has reserved."""
        return TaskDelivery(self, self._items, Task(self.client, text(reserved.id), reserved.fields), hand)

    async def _peek(self, newest: bool) -> T:
        self.check()
        task = await self.steps.peek(newest)
        if task is None:
            raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
        return self._items.decode(task.fields["parameters"].encode(errors="surrogateescape"))

    async def _reserve(self, most: int, timeout: float | None, lease: float) -> tuple[list[Reserved], float]:
        """Reserve tasks, waiting while there is none. Returns when the step was sent, too, by `since_boot`."""
        validation.whole(most, "max_items")
        validation.timeout(timeout)
        self.check()
        listener = await self.listener()
        sent = since_boot()
        take = Take(min(most, MAX_TASKS), self.want(lease, listener, self._expected))
        return await self._reservations.run(take, timeout, False), sent

    async def _complete(self, taken: Sequence[Reserved], behind: Sequence[Reserved]) -> str:
        """Complete tasks, and give back those behind them. Cancelled, all of them go back."""
        patience = self.steps.settle_timeout
        try:
            if behind:
                await wait_for_answer(self._reservations.give_back(behind), None, patience)
            return await self.steps.take([task.claim for task in taken], NO_RESULT, self.result_ttl)
        except asyncio.CancelledError:
            await wait_shielded(self._reservations.give_back(taken), patience)  # those that are not complete
            raise
