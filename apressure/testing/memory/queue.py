"""MemoryQueue: a queue in memory, for unit tests. It needs no server, and does what queues on a server do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

from apressure import dead_letters, validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked, Found
from apressure.core.consumer import ConsumerOptions, give_back_unseen
from apressure.core.delivery import Hand
from apressure.core.due import Due
from apressure.core.leases.arguments import lease_of
from apressure.core.leases.renewal import Timer
from apressure.core.objects import Block, QueueObject, SharedClient
from apressure.core.putting import Putting
from apressure.core.queue import Queue
from apressure.core.requests import Pressing
from apressure.core.reviving import Chosen
from apressure.core.searching import Read
from apressure.core.statistics import BoundedStatistics, figures
from apressure.core.taking import Take, got
from apressure.core.taking import Taken as TakenOfLane
from apressure.core.waiting import FULL, Wait
from apressure.core.workers import Beside, told
from apressure.dead_letters import DeadLetter
from apressure.exceptions import PressureError
from apressure.items import Items, Progress
from apressure.testing.memory.consumer import MemoryConsumer
from apressure.testing.memory.delivery import MemoryDelivery
from apressure.testing.memory.driver import MemoryDriver, MemorySettler, PutLane
from apressure.testing.memory.messages import MAX_MESSAGE_SIZE, Message, New, Status, Taken, Want
from apressure.testing.memory.registry import MemoryRegistry
from apressure.testing.memory.server import MemoryServer
from apressure.testing.memory.stored import MOST

T = TypeVar("T")
A = TypeVar("A")


class Revived:
    """Dead letters on their way back to the end of their queue, or to be deleted; see `core.reviving.Revival`."""

    def __init__(
        self, driver: MemoryDriver, act: Callable[..., list[bool]], chosen: Iterable[str], dead: list[str]
    ) -> None:
        self.moved = 0
        self.not_found = [name for name in chosen if name not in dead]
        self._driver = driver
        self._act = act
        self._left = [name for name in dead if name in chosen]

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return bool(self._left)

    async def step(self) -> Wait | None:
        """Move or delete the next ones, as far as there is room."""
        outcomes = await self._driver.ask(self._act, self._left)
        self.moved += sum(outcomes)
        self.not_found += [name for name, moved in zip(self._left, outcomes, strict=False) if not moved]
        del self._left[: len(outcomes)]
        return None if outcomes else FULL


class MemorySchedules:
    """The steps of a queue that are about its schedules."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    async def read(self) -> tuple[int, dict[str, bytes]]:
        found = self._driver.queue.records()
        if not found[1]:
            return found  # no step: a service that looks for schedules must not meet a failure that a test plans
        return await self._driver.ask(self._driver.queue.records)  # type: ignore[no-any-return]

    async def beside(self) -> Beside:
        queue = self._driver.queue
        now, records = queue.records()
        return Beside(len(records), queue.dedup_ids, *told(now, queue.workers.items()))

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        return await self._driver.ask(self._driver.queue.write_record, name, was, becomes)  # type: ignore[no-any-return]

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        item: New = (str(uuid.uuid4()), message, None)
        return await self._driver.ask(self._driver.queue.put_occasion, name, was, becomes, item)  # type: ignore[no-any-return]


class MemoryClient(SharedClient):
    """The client of one queue object."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self.connection = self.server = server
        self.renewer = Timer()

    async def _release(self) -> None:
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=MemoryDriver.settle_timeout)


class MemoryQueue(QueueObject[MemoryClient, Block], Queue[T, MemoryDelivery[T]], Generic[T]):
    """A queue in memory, for unit tests: without a server, in one process and one event loop.

    It has the methods of every kind of queue, and keeps the same promises: bounds, leases, attempts, dead letters,
    pauses, the end. Items go through the codec, as on the way to a server. Objects that share a `MemoryServer` see the
    same queues, by their names. A timer renews the leases of a consumer, so a body that blocks the event loop must be
    quicker than its lease.

    Args:
        name: The queue's name.
        server: The server; None for one of its own.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        max_attempts: How often a message is delivered at most. After that it becomes a dead letter. None for no limit.

    Attributes:
        name: As given.
        client: What it shares the server by.
        steps: Its steps, lanes and waits.
        max_attempts: As given.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid; the message says why.

    Example:
        >>> async with MemoryQueue("orders", codec="json") as queue:
        ...     await queue.put({"number": 1})
        ...     assert await queue.get() == {"number": 1}
    """

    _a_kind: ClassVar[str] = "a MemoryQueue"
    _put_most: ClassVar[int] = MOST

    @overload
    def __init__(
        self: MemoryQueue[bytes], name: str, *, server: MemoryServer | None = ..., codec: Literal["raw"] | None = ...,
        max_attempts: int | None = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MemoryQueue[str], name: str, *, server: MemoryServer | None = ..., codec: Literal["text"],
        max_attempts: int | None = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MemoryQueue[Any], name: str, *, server: MemoryServer | None = ..., codec: UntypedCodec,
        max_attempts: int | None = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MemoryQueue[T], name: str, *, server: MemoryServer | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ...,
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        server: MemoryServer | None = None,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
    ) -> None:
        validation.optional(validation.whole, max_attempts, "max_attempts")
        self.client = MemoryClient(MemoryServer() if server is None else server)
        super().__init__(self.client, True, validation.text(name, "name"))
        self.max_attempts = max_attempts
        self._items: Items[T] = Items(name, codec_for(codec), MAX_MESSAGE_SIZE)
        self.steps = MemoryDriver(self.server, name, max_attempts)
        self._registry = self.steps.waits.backpressure.registry = MemoryRegistry(self.steps.queue)

    @property
    def server(self) -> MemoryServer:
        """The server."""
        return self.client.server

    def __repr__(self) -> str:
        return f"<MemoryQueue {self.name!r}>"

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> BoundedStatistics:
        """Return a snapshot of the queue.

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
        """
        status: Status = await self._existing()
        steps, waiting = self.steps, (self.steps.puts.waiting + self.steps.once.waiting, self.steps.takes.waiting)
        common = figures(self.name, status, waiting, steps.waits.blocked, steps.counts.fields())
        return BoundedStatistics(**common, in_flight=status.claimed, **await self._kept_beside())

    def _end(self, error: PressureError) -> int:
        steps = self.steps
        ends = (steps.puts, steps.once, steps.takes, steps.waits, steps.asker)
        return sum(each.end(error) for each in ends)

    def _release(self, error: PressureError) -> None:
        self.steps.waits.close(error)

    # What is behind the operations on the queue as a whole.

    def _give_back_unseen(self) -> None:
        give_back_unseen(self.blocks)

    @property
    def _administration(self) -> MemoryDriver:
        return self.steps

    @property
    def _schedules(self) -> MemorySchedules:
        return MemorySchedules(self.steps)

    @property
    def registry(self) -> MemoryRegistry:
        return self._registry

    async def _look(self) -> Status:
        return await self.steps.ask(self.steps.queue.look)  # type: ignore[no-any-return]

    async def _purge(self) -> int:
        status: Status = await self._existing()
        return await self._purge_by_steps(status.waiting + status.delayed, self._purge_step)

    async def _purge_step(self, most: int) -> int:
        purged: int = await self.steps.ask(self.steps.queue.purge, min(most, MOST), self._expected)
        self.steps.counts.deleted_count += purged
        return purged

    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        return await self.steps.ask(self.steps.queue.promote, most, ids, self._expected)  # type: ignore[no-any-return]

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        return await self.steps.waits.until(step, timeout, self.name)

    @contextlib.asynccontextmanager
    async def _revival(self, chosen: Chosen) -> AsyncIterator[Revived]:
        await self._existing()
        dead = [message.id for message in await self.steps.ask(self.steps.queue.dead)][: chosen.most]
        stored = self.steps.queue
        act = stored.discard if chosen.discard else functools.partial(stored.revive, expected=self._expected)
        yield Revived(self.steps, act, dead if chosen.ids is None else dict.fromkeys(chosen.names), dead)

    async def _bury(self, letters: Sequence[Added]) -> None:
        await self.steps.ask(self.steps.queue.bury, letters, self._expected)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        return [self._shown_dead(one) for one in (await self.steps.ask(self.steps.queue.dead))[:limit]]

    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        dead = await self.steps.ask(self.steps.queue.dead)
        letters = [self._shown_dead(one) for one in dead[passed : passed + most]]
        return Read(letters, len(letters), len(dead))

    def _shown_dead(self, one: Message) -> DeadLetter[T]:
        error = dead_letters.decode(one.error, one.failed) if one.error else None
        return DeadLetter(one.id, one.data, one.attempts, error, one.dead_since, self._items.decode)

    # What is behind puts.

    async def _put_one(self, message: bytes, timeout: float | None, due: Due | None) -> str:
        message_id = str(uuid.uuid4())
        new: tuple[Any, ...] = (message_id, message, due)
        if due is not None and due.dedup is not None:
            replaced = await self._put(self.steps.once, [(*new, due.dedup)], timeout, Progress())
            return message_id if replaced is None else replaced.decode()
        await self._put(self.steps.puts, [new], timeout, Progress())
        return message_id

    async def _ask(self, item: T, timeout: float, terms: Pressing) -> Any:
        self.check()
        message, request_id = self._items.encode(item), self.steps.asker.new_id()

        async def put() -> None:
            await self._put(self.steps.puts, [(request_id, message, terms)], timeout, Progress())

        return await self.steps.asker.ask(request_id, put, timeout)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        new = [(str(uuid.uuid4()), message, due) for message in chunk]
        await self._put(self.steps.puts, new, timeout, progress)

    async def _put(self, lane: PutLane, items: Sequence[Any], timeout: float | None, progress: Progress) -> Any:
        validation.timeout(timeout)
        self.check()
        putting = Putting(items, self._expected)
        try:
            return await lane.run(putting, timeout, False)
        finally:
            progress.accepted += putting.done

    # What is behind receiving and getting.

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""
        return self._expected

    @property
    def settler(self) -> MemorySettler:
        """Settles its deliveries."""
        return self.steps.settler

    def deliveries(
        self, messages: Iterable[Taken], until: float = 0.0, hand: Hand | None = None
    ) -> list[MemoryDelivery[T]]:
        """Return the deliveries of messages whose leases last until then, by the clock of the hand."""
        return [MemoryDelivery(self.steps, self._items.decode, taken, until, hand) for taken in messages]

    def _lease_of(self, lease: float | None) -> float:
        return lease_of(lease)

    def _consumer(self, options: ConsumerOptions) -> MemoryConsumer[Any]:
        return MemoryConsumer(self, self.client.renewer, self.max_attempts or 0, options)

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[MemoryDelivery[T]]:
        return self.deliveries(await self._take(most, timeout, lease_of(lease)))

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        taken = await self._take(most, timeout, 0)

        def give_back(first: int, end: int | None) -> asyncio.Future[None]:
            return self.steps.takes.give_back(taken[first:end], taken.order)

        return await got(self._items, [one.message.data for one in taken], give_back, self.steps.settle_timeout)

    async def _take(self, most: int, timeout: float | None, lease: float) -> TakenOfLane[Taken]:
        validation.timeout(timeout)
        self.check()
        want = Want(int(lease * 1000), self.max_attempts or 0, self._expected)
        return await self.steps.takes.run(Take(min(most, MOST), want), timeout, False)  # type: ignore[no-any-return]

    async def _peek(self, newest: bool) -> bytes | None:
        return await self.steps.ask(self.steps.queue.peek, newest)  # type: ignore[no-any-return]

    async def _browse(self, asked: Asked) -> Found:
        return await self.steps.ask(self.steps.queue.browse, asked)  # type: ignore[no-any-return]
