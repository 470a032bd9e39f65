"""TaskQueue: a queue of tasks in the format of Blueque, as a program sees it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline, within
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.leases.arguments import lease_of
from apressure.core.waiting import Wait
from apressure.items import Items, Progress
from apressure.tasks.codec import TaskCodec, UTF8Codec
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.engine.lanes import Put
from apressure.tasks.engine.steps import MAX_TASKS, New
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.options import DEFAULT_RESULT_TTL, refuse_unfit, time_of, ttl_of
from apressure.tasks.producer import TaskProducer
from apressure.tasks.taking import Taking

T = TypeVar("T")
A = TypeVar("A")

POLICIES: Final = ("retry", "fail")


class TaskQueue(Taking[T]):
    """A queue of tasks for any number of nodes, on a Redis or Valkey server, in the format of Blueque.

    A task has parameters, runs for as long as it takes, and ends with a result or an error, which stay on the server.
    Tasks start in the order in which they were enqueued. The queue needs no `create`: the first task makes it. `create`
    gives it a bound. Nodes of the released blueque 1.0.1 work on the same queue. Constructing it does no I/O.

    Args:
        name: The queue's name.
        client: A `Client` or `TaskClient` to share with other queues. Without one, the queue makes its own.
        codec: What parameters are. None for strings as they are, and JSON for everything else; otherwise as for
            `AsyncQueue`. Blueque reads UTF-8: other bytes are refused.
        max_attempts: How often a task is tried at most. After that it has failed; see `requeue`. None for no limit.
        lease: Seconds after which a task of a node that gives no sign of life goes to another node; None for 15.
        on_orphan: What happens to a task whose node died: `"retry"` tries it again, if `max_attempts` allows that;
            `"fail"` marks it as failed.
        result_ttl: Seconds for which results and errors are kept, also those of nodes of the release; None keeps them.
        **options: The server and the client's options, see `ClientOptions`; not together with `client`. The prefix does
            not matter: Blueque's keys have none.

    Attributes:
        name: The queue's name.
        client: The client that it uses.
        max_attempts: How often a task is tried at most; None for no limit.
        lease: How long leases last, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid, or the server is a cluster: Blueque's keys share no slot.

    Example:
        >>> async with TaskQueue("video.encode", url="redis://127.0.0.1:6379/0") as queue:
        ...     task_id = await queue.enqueue({"file": "a.mov"})
        ...     delivery = await queue.receive(timeout=5.0)
        ...     await delivery.complete("done")
    """

    @overload
    def __init__(
        self: TaskQueue[Any], name: str, *, client: Client | None = ..., codec: UntypedCodec | None = ...,
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        on_orphan: Literal["retry", "fail"] = "retry",
        result_ttl: float | None = DEFAULT_RESULT_TTL,
        **options: Unpack[ClientOptions],
    ) -> None:
        chosen = client_of(TaskQueue, client, options)
        if max_attempts is not None:
            validation.whole(max_attempts, "max_attempts")
        if on_orphan not in POLICIES:
            raise ValueError(f"on_orphan must be one of {', '.join(map(repr, POLICIES))}, not {on_orphan!r}")
        self.lease = lease_of(lease)
        refuse_unfit(chosen)
        super().__init__(chosen, client is None, name, max_attempts, on_orphan, ttl_of(result_ttl))
        used: Codec[Any] = TaskCodec() if codec is None else codec_for(codec)
        self._items = Items(name, UTF8Codec(used), chosen.settings.max_message_size)

    async def enqueue(self, item: T, timeout: float | None = None, *, deadline: float | None = None) -> str:
        """Enqueue a task, waiting while the queue is full (specification: Submission).

        Args:
            item: The parameters, what the task is to do: a string, or anything that JSON knows, or what the codec
                takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting, repeating and settling; None for no limit. Use
                it where a caller must be answered in time.

        Returns:
            The task's id, a UUID.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was enqueued.
            QueueClosedError: It is closed. Nothing was enqueued.
            QueueDoesNotExistError: It was created and deleted. Nothing was enqueued.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            DeadlineError: The deadline passed. Nothing was enqueued, unless it is a DeadlineOutcomeUnknownError: then
                the task may be in the queue, or may be later.
            TypeError, ValueError: The parameters cannot be encoded, or are too large. Nothing was enqueued.

        Cancelled while it waits, nothing was enqueued. Cancelled while the step is on its way, it waits for the answer,
        then raises: the task is in the queue, or not. `timeout=` gives a certain answer.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.enqueue(item, timeout))
        task_id = new_id()
        await self._put(Put([(task_id, self._items.encode(item), b"")], self._expected), timeout)
        return task_id.decode()

    put = enqueue
    """`enqueue`, by the name that it has in every kind of queue."""

    async def put_nowait(self, item: T, *, deadline: float | None = None) -> str:
        """Enqueue a task without waiting for room; `deadline` is as for `enqueue`.

        Returns:
            The task's id.

        Raises:
            QueueFullError: The queue is full. Nothing was enqueued.
            PressureError, TypeError, ValueError: As for `enqueue`.

        Cancelled, the task is in the queue, or not.
        """
        return await self.enqueue(item, 0, deadline=deadline)

    @with_deadline()
    async def schedule(self, parameters: T, eta: datetime | float, *, deadline: float | None = None) -> str:
        """Have a task enqueued at a time (specification: Schedule Task). A `Scheduler` must run then.

        Args:
            parameters: As for `enqueue`.
            eta: When: a datetime with a time zone, or seconds since 1970. A time that has passed, by the server's
                clock, enqueues it at once.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            The task's id.

        Raises:
            PressureError: As for `enqueue`; a scheduled task does not wait for room. If its time has passed, it does.
            TypeError, ValueError: An argument is invalid. Nothing was scheduled.

        Cancelled, the task is scheduled, or not.
        """
        task_id, time = new_id(), repr(time_of(eta)).encode()
        self.check()
        await self._schedules.run(Put([(task_id, self._items.encode(parameters), time)], self._expected), None, False)
        return task_id.decode()

    @with_deadline()
    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Enqueue any number of tasks in order, as many in a step as there is room for.

        Args:
            items: Parameters: an iterable or an asynchronous one. It is read ahead by up to a chunk (1,000 tasks or
                1 MiB), and what was read and not enqueued is lost when this fails. A consumer is refused.
            timeout: Seconds for all of them.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            How many were enqueued.

        Raises:
            QueueFullError: The timeout passed.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, TypeError, ValueError: As for `enqueue`.
                A note on any error says how many were enqueued before, and so does `accepted` of a PressureError.

        Cancelled, the first of the tasks are in the queue, in order, and the others are not.
        """
        validation.timeout(timeout)
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout

        async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
            remaining = None if until is None else max(0.0, until - loop.time())
            tasks: list[New] = [(new_id(), parameters, b"") for parameters in chunk]
            put = Put(tasks, self._expected)
            try:
                await self._put(put, remaining)
            finally:
                progress.accepted += put.done

        return await self._items.put_chunks(items, put_chunk, MAX_TASKS, ahead=True)

    def producer(self, close: bool = True) -> TaskProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return TaskProducer(self, close)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> TaskConsumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> TaskConsumer[TaskDelivery[T]]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", delete: bool = False, prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None, shared: bool = True,
    ) -> TaskConsumer[Any]:  # fmt: skip
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once, and one of several.

        Args:
            ack: `"auto"`: a task is completed when the loop asks for the next one, and at the end of the block unless
                it raises. `"manual"`: the loop gets deliveries, to be settled by hand.
            delete: Delete the queue at the end of the block, unless it raises, if the queue was closed and everything
                was settled.
            prefetch: How many tasks to reserve at a time. None reserves one, and more while they are handled within
                milliseconds; what was reserved ahead goes back when a task takes longer.
            lease: Seconds after which other nodes get the tasks if this process dies; a thread renews it. None for the
                queue's.
            timeout: As for `AsyncQueue.consumer`, which waits for the role. Here nothing waits.
            max_hold: Seconds after which the leases of a handler that is stuck are given up: nothing was handed out
                meanwhile. None lets tasks take as long as they like, while the event loop turns: when it has stood
                still for an hour, the leases end.
            shared: Always True: any number of consumers compete. False is refused.
        """
        validation.shared(shared, "a TaskQueue")
        validation.consumer(ack, prefetch, timeout, MAX_TASKS)
        if max_hold is not None:
            validation.seconds(max_hold, "max_hold", above=True, none=True)
        seconds = self.lease if lease is None else lease_of(lease)
        return TaskConsumer(self, ack == "manual", delete, prefetch, seconds, max_hold)

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""
        return self._expected

    async def until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        """Try a step, wait while it says so, try again."""
        return await self._waits.until(step, timeout, self.name)

    async def _put(self, put: Put, timeout: float | None) -> None:
        validation.timeout(timeout)
        self.check()
        await self._puts.run(put, timeout, False)


def new_id() -> bytes:
    """Return a random id, a UUID of version 4."""
    raw = os.urandom(16).hex()
    variant = "89ab"[int(raw[16], 16) & 3]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}".encode()
