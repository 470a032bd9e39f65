"""What is behind the verbs of `TaskQueue`: its client, its lanes, its steps, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from apressure import validation
from apressure.codecs import Codec
from apressure.concurrency import background
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import wait_for_answer, wait_shielded
from apressure.connection.client import Client
from apressure.connection.history import ServerHistory
from apressure.connection.schedules import ServerSchedules
from apressure.connection.settings import RETRY_BACKOFF
from apressure.connection.wire.command import Argument
from apressure.connection.workers import ServerRegistry
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked, Found
from apressure.core.consumer import QueueConsumer, give_back_unseen
from apressure.core.dedup import Dedup
from apressure.core.delivery import Hand
from apressure.core.due import Due
from apressure.core.leases.arguments import lease_of
from apressure.core.leases.clock import since_boot
from apressure.core.objects import QueueObject
from apressure.core.queue import Queue
from apressure.core.requests import Asker, Pressing, deleted, failure
from apressure.core.reviving import Chosen
from apressure.core.searching import Read
from apressure.core.statistics import BoundedStatistics, figures, seconds_of
from apressure.core.taking import Take
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter
from apressure.exceptions import PressureError, ServerUnavailableError, TaskDoesNotExistError
from apressure.items import Items, Progress, new_id, new_ids
from apressure.tasks.codec import TaskCodec, UTF8Codec
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.engine.answers import Claim, Reserved, Status, raw
from apressure.tasks.engine.lanes import AskLane, OnceLane, Put, PutLane, ReserveLane, TaskSettler
from apressure.tasks.engine.steps import MAX_TASKS, New, TaskSteps, Want, eta_of
from apressure.tasks.engine.waits import TaskWaits
from apressure.tasks.letters import Revived, by_their_ends, read, read_page, told
from apressure.tasks.nodes import processes
from apressure.tasks.options import OnOrphan
from apressure.tasks.processor import NO_RESULT
from apressure.tasks.task import FINISHED, Task

T = TypeVar("T")
A = TypeVar("A")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics(BoundedStatistics):
    """A snapshot of a `TaskQueue`: what `BoundedStatistics` says, and more. In flight is what nodes have.

    Attributes:
        scheduled: Tasks that wait for their time; `delayed` is the same figure.
        started: Tasks that run. Entries that another program has left behind do not count (1,000 are looked at).
        complete: Tasks that have completed, and whose results are kept.
        dead_letters: Tasks that have failed.
        consumers: Listeners that are registered, those of the released blueque included.
        next_expiry: Seconds until the next lease may end; None if no node of apressure has a task.
        late_renewals: As in `EventQueueStatistics`.
    """

    scheduled: int
    started: int
    complete: int
    dead_letters: int
    consumers: int
    next_expiry: float | None
    late_renewals: int = 0


class Core(QueueObject[Client, QueueConsumer[Any, TaskDelivery[Any]]], Queue[T, TaskDelivery[T]], Generic[T]):
    """The part of `TaskQueue` that no program calls.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        codec: What parameters are.

    Attributes:
        client: As given.
        max_attempts: How often a task is tried at most; None for no limit.
        lease: How long leases last, in seconds.
        on_orphan: What happens to a task whose node dies.
        result_ttl: Seconds for which results are kept; 0 keeps them.
        steps: The queue's steps.
        settler: Notes what happens to tasks.
    """

    _a_kind: ClassVar[str] = "a TaskQueue"
    _most_prefetched: ClassVar[int | None] = MAX_TASKS
    _put_most: ClassVar[int] = MAX_TASKS

    max_attempts: int | None
    lease: float
    on_orphan: OnOrphan
    result_ttl: float

    def __init__(self, client: Client, owns_client: bool, name: str, codec: Codec[Any]) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        encoding = codec if type(codec) is TaskCodec else UTF8Codec(codec)
        self._items = Items(name, encoding, client.settings.max_message_size)
        self.steps = TaskSteps(client, name)
        self.settler = TaskSettler(self.steps, self.result_ttl)
        self._waits = TaskWaits(client, self.steps)
        self._puts = PutLane(self.steps, self._waits)
        self._once = OnceLane(self.steps, self._waits)
        self._asks = AskLane(self.steps, self._waits)
        self._asker = Asker(name)
        self._reservations = ReserveLane(self.steps, self._waits)
        self._registry = self._waits.backpressure.registry = ServerRegistry(self.steps)

    def __repr__(self) -> str:
        return f"<TaskQueue {self.name!r} at {self.client.server.address}>"

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> TaskStatistics:
        """Return a snapshot of the queue.

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerError: A key of the queue has a value that is not a queue's.
        """
        status, beside = await self._with_beside(self._existing())
        putting = sum(lane.waiting for lane in (self._puts, self._once, self._asks))
        waiting = putting, self._reservations.waiting
        return TaskStatistics(
            **figures(self.name, status, waiting, self._waits.blocked, self.steps.counts.fields()),
            scheduled=status.scheduled,
            in_flight=max(status.leased, status.reserved),
            started=status.started,
            complete=status.complete,
            dead_letters=status.failed,
            consumers=status.listeners,
            next_expiry=seconds_of(status.due),
            late_renewals=self.client.renewer.late[self.name],
            **beside,
        )

    # What nodes need.

    listener = staticmethod(processes.listener_id)
    """The listener that this process is."""

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""
        return self._expected

    def want(self, lease: float, listener: bytes, expected: bool, in_hand: int | None = None) -> Want:
        """Return what a reservation for so many seconds asks for."""
        return Want(int(lease * 1000), self.max_attempts or 0, self.on_orphan, listener, expected, in_hand)

    def deliveries(self, reserved: Iterable[Reserved], until: float, hand: Hand | None = None) -> list[TaskDelivery[T]]:
        """Return the deliveries of tasks that a step has reserved, with leases that last until then."""
        decode = self._items.decode
        return [TaskDelivery(self, decode, task, until, hand) for task in reserved]

    def forget(self, claim: Claim) -> None:
        """A task that a consumer of this object has in hand was settled by a processor."""
        for block in self.blocks:
            for delivery in [one for one in block.hand.claims if one.claim == claim]:
                block.hand.claims.pop(delivery, None)

    async def until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        """Try a step, wait while it says so, try again."""
        return await self._waits.until(step, timeout, self.name)

    # How its operations end.

    def _end(self, error: PressureError) -> int:
        ends = (self._puts, self._once, self._asks, self._reservations, self._waits, self._asker)
        return sum(each.end(error) for each in ends)

    def _release(self, error: PressureError) -> None:
        self._waits.close(error)

    # What is behind the operations on the queue as a whole.

    @property
    def _administration(self) -> TaskSteps:
        return self.steps

    _until = until

    @property
    def registry(self) -> ServerRegistry:
        return self._registry

    async def _look(self) -> Status:
        return await self.steps.status()  # type: ignore[no-any-return]

    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        return await self.steps.promote(most, [raw(one) for one in ids or ()], self._expected)

    def _give_back_unseen(self) -> None:
        give_back_unseen(self.blocks)

    @contextlib.asynccontextmanager
    async def _revival(self, chosen: Chosen) -> AsyncIterator[Revived]:
        failed = (await self._existing()).failed
        if chosen.ids is None:
            yield Revived(self.steps, self._expected, failed, chosen.most)
        else:
            ends = await by_their_ends(self.client, chosen)
            yield Revived(self.steps, self._expected, chosen=ends, discard=chosen.discard)

    async def _bury(self, letters: Sequence[Added]) -> None:
        await self.steps.bury(map(told, letters), self._expected)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        await self._existing()
        return await read(self.client, self.steps, limit, self._items.decode)

    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        status = await self._existing()
        letters, looked = await read_page(self.client, self.steps, passed, most, self._items.decode)
        return Read(letters, looked, status.failed)

    # What is behind puts.

    def _put_one(self, message: bytes, timeout: float | None, due: Due | None) -> Coroutine[Any, Any, str]:
        if due is None:
            return self._put_task(message, timeout, b"")
        return self._put_task(message, timeout, eta_of(due), due.dedup)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        etas = itertools.repeat(eta_of(due)) if due is None or not due.absolute else _in_order(due, progress.accepted)
        tasks: list[New] = list(zip(new_ids(len(chunk)), chunk, etas, strict=False))
        put = Put(tasks, self._expected)
        try:
            await self._put(put, timeout)
        finally:
            progress.accepted += put.done

    def check_letter(self, letter: DeadLetter[Any]) -> None:
        try:
            letter.raw.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"the dead letter {letter.id!r} cannot be a task, which is UTF-8: {error}. Nothing was moved"
            ) from None

    async def _put_task(self, parameters: bytes, timeout: float | None, eta: bytes, dedup: Dedup | None = None) -> str:
        """Put a task that is due then, waiting for room; returns its id."""
        new = (new_id(), parameters, eta)
        items, lane = ([new], self._puts) if dedup is None else ([(*new, dedup)], self._once)
        replaced = await self._put(Put(items, self._expected), timeout, lane)
        return (replaced or new[0]).decode()

    async def _ask(self, item: T, timeout: float, terms: Pressing) -> Any:
        message, task_id, watching = self._items.encode(item), new_id(), None

        async def put() -> None:
            nonlocal watching
            await self._put(Put([(task_id, message, terms)], self._expected), timeout, self._asks)
            watching = background.start(self._watch(task_id.decode()), "waiting for the result of a task")

        try:
            return await self._asker.ask(task_id.decode(), put, timeout)
        finally:
            if watching is not None:
                watching.cancel()

    async def _watch(self, task_id: str) -> None:
        """Tell the asker when a task has ended."""
        asker, failures = self._asker, 0
        while True:
            try:
                task = await Task(self.client, task_id, {}).wait_for_change(until=FINISHED)
            except TaskDoesNotExistError:
                asker.failed(task_id, deleted(self.name, task_id))
            except ServerUnavailableError:
                await asyncio.sleep(RETRY_BACKOFF.pause(failures))
                failures += 1
                continue
            except PressureError as error:
                asker.failed(task_id, error)
            else:
                if task.status == "failed":
                    asker.failed(task_id, failure(self.name, task_id, task.error or ""))
                else:
                    asker.replied(task_id, task.result)
            return

    def _put(self, put: Put, timeout: float | None, lane: PutLane | None = None) -> Awaitable[bytes | None]:
        """Put tasks, waiting for room; returns the id of the one that was replaced."""
        if timeout is not None:
            validation.timeout(timeout)
        self.check()
        return (lane or self._puts).run(put, timeout, False)

    @property
    def _history(self) -> ServerHistory:
        return ServerHistory(self.steps)

    @property
    def _schedules(self) -> ServerSchedules:
        def arguments(number: bytes, message: bytes) -> list[Argument]:
            return [number, b"0", b"0", new_id(), message, b""]

        return ServerSchedules(self.steps, "enqueue", "answer[1] == 'put' and answer[2] ~= '0'", arguments)

    # What is behind receiving and getting.

    def _lease_of(self, lease: float | None) -> float:
        return lease_of(lease, default=self.lease)

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[TaskDelivery[T]]:
        seconds = self._lease_of(lease)
        tasks, sent = await self._reserve(most, timeout, seconds)
        return self.deliveries(tasks, sent + seconds)

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            tasks, _ = await self._reserve(most, timeout, self.lease)
            items, broken = self._items.decode_first([raw(task.fields.get("parameters", "")) for task in tasks])
            taken = tasks[: max(1, len(items))]  # parameters that cannot be decoded are in the error
            letters = await self._complete(taken, tasks[len(taken) :])
            done = [task.claim for task, letter in zip(taken, letters, strict=True) if letter == "1"]
            if done:
                note_taken(functools.partial(self._reopen, done))
            if done and broken is not None:
                raise broken
            if done:  # otherwise their leases have ended already, and others get them
                return [item for item, letter in zip(items, letters, strict=True) if letter == "1"]

    async def _reopen(self, done: Sequence[Claim]) -> None:
        self.steps.counts.deleted_count -= len(done)
        await asyncio.wait((self.steps.reopen_soon(done),))

    async def _peek(self, newest: bool) -> bytes | None:
        return await self.steps.peek(newest)  # type: ignore[no-any-return]

    async def _browse(self, asked: Asked) -> Found:
        return await self.steps.browse(asked)  # type: ignore[no-any-return]

    async def _reserve(self, most: int, timeout: float | None, lease: float) -> tuple[list[Reserved], float]:
        """Reserve tasks, waiting while there is none. Returns when the step was sent, too, by `since_boot`."""
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


_MOST_IN_ORDER: Final = 40_000


def _in_order(due: Due, first: int) -> Iterator[bytes]:
    """Yield when tasks are due that are put in several steps for the same time: fractions keep their order."""
    for number in itertools.count(first):
        yield repr(due.milliseconds / 1000 + 0.0000005 * min(number, _MOST_IN_ORDER)).encode() + due.end
