"""EventQueue: a queue of events in the format of okq, as a program sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline, within
from apressure.connection.client import Client, client_of
from apressure.connection.history import ServerHistory
from apressure.connection.moves import other_kind
from apressure.connection.sender import Sender
from apressure.connection.settings import ClientOptions
from apressure.core.administration import AdministrationSteps
from apressure.core.browsing import Asked, Found
from apressure.core.consumer import ConsumerOptions, give_back_unseen
from apressure.core.due import Due, PutTerms
from apressure.core.history import HistoryStore
from apressure.core.objects import Fronting
from apressure.core.queue import Queue
from apressure.core.registration import Registry
from apressure.core.requests import Pressing
from apressure.core.schedules import ScheduleStore
from apressure.core.statistics import figures, seconds_of
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter
from apressure.events.consumer import AnyEventConsumer, EventConsumer, EventConsumers
from apressure.events.delivery import EventDelivery
from apressure.events.driver import RedisDriver
from apressure.events.engine.answers import Status
from apressure.events.engine.letters import EventLetters
from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.producer import EventProducer
from apressure.events.remote.address import is_okq
from apressure.events.statistics import EventQueueStatistics
from apressure.exceptions import DuplicateEventError
from apressure.items import Items, Progress, new_id, new_ids
from apressure.protocols import Mover

if TYPE_CHECKING:
    from apressure.events.remote.driver import OkqDriver

T = TypeVar("T")
A = TypeVar("A")

MAX_ID: Final = 1024  # bytes


class EventQueue(Fronting, EventLetters[T], Queue[T, EventDelivery[T]]):
    """A queue of events for any number of competing consumers, on a Redis or Valkey server, in the format of okq.

    Each event has a unique id. Events are delivered at-least-once, and *start* in the order in which they were put. The
    queue needs no `create`: the first put makes it. `create` gives it a bound. Any number of clients of apressure and
    of okq servers work on the same queue. Constructing it does no I/O.

    With the URL of an okq server, apressure's or the released one (`url="okq://[user:password@]host[:port]"`, or
    `okqs://` with TLS), it uses okq's commands, and needs no Redis of its own. A released okq knows no bounds, no end,
    no pauses and no dead letters: there, methods about them raise ServerTooOldError, which says what to use.

    Args:
        name: The queue's name: any text without `}`.
        client: A `Client` to share with other queues. Without one, the queue makes its own.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        max_attempts: How often an event is delivered at most. After that it becomes a dead letter; see `requeue`. None
            for no limit.
        keep_errors: Keep the last error of an event, its type and the first 200 bytes of its text, for `dead_letters`.
            With False, errors never leave this process.
        **options: The server and the client's options, see `ClientOptions`; not together with `client`. The prefix does
            not matter: okq's keys have none.

    Attributes:
        name: The queue's name.
        client: The client that it uses.
        max_attempts: How often an event is delivered at most; None for no limit.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid; the message says why.

    Example:
        >>> async with EventQueue("orders", url="redis://127.0.0.1:6379/0") as queue:
        ...     await queue.put(b"first", id="order-1")
        ...     delivery = await queue.receive(timeout=5.0)
        ...     await delivery.ack()
    """

    _a_kind: ClassVar[str] = "an EventQueue"
    _put_most: ClassVar[int] = MAX_EVENTS

    @overload
    def __init__(
        self: EventQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"] | None = ...,
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: EventQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: EventQueue[Any], name: str, *, client: Client | None = ..., codec: UntypedCodec,
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: EventQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self, name: str, *, client: Client | None = None, codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None, keep_errors: bool = True, **options: Unpack[ClientOptions],
    ) -> None:  # fmt: skip
        self.client: Client = _client_of(client, options)
        validation.optional(validation.whole, max_attempts, "max_attempts")
        self.name = name
        self.max_attempts = max_attempts
        self._items: Items[T] = Items(name, codec_for(codec), self.client.settings.max_message_size)
        self._driver: RedisDriver[T] | OkqDriver[T]
        arguments: Any = self.client, client is None, name, self._items, max_attempts, keep_errors
        if isinstance(self.client, Client):
            self._behind = self._driver = RedisDriver(*arguments)
        else:
            from apressure.events.remote.driver import OkqDriver  # here, since few programs have an okq server

            self._behind = self._driver = OkqDriver(*arguments)
            self._keyless = "okq's commands have no keys"
            self._replyless = "okq's commands have no replies"
            self._unable_to_browse = "okq's commands show only the two ends of a queue"

    def __repr__(self) -> str:
        return f"<EventQueue {self.name!r} at {self.client.server.address}>"

    async def put(
        self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None, **terms: Unpack[PutTerms],
    ) -> str:  # fmt: skip
        """Put an item, waiting while the queue is full (specification: QLPUSH, QRPUSH).

        The other arguments, what it raises and what a cancellation leaves behind: see `TaskQueue.put`.

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            id: The event's id, which must not be in the queue; None for a random one (a UUID).
            front: Put it first in line; not together with `delay`, `at`, `expires`, `key`, `cost` or `dedup_id`.
            deadline: Seconds for the whole operation; None for no limit.

        Returns:
            The event's id; with `replace`, of the one that it has replaced.

        Raises:
            DuplicateEventError: An event with this id waits, is delayed or in flight. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time. On an okq server also: it
                broke, and now there is an event with the id that was given, from this put or from one before.

        On this kind:
            A dead letter forgets its `cost`. An okq does not see a delayed event.
            With an `okq://` address, waiting for room means to try again after up to 0.25 s. On a released okq,
            `delay`, `at` and `expires` raise ServerTooOldError. If the reply is lost, the item is put again. It may
            then be in the queue twice, one after the other: if it was put, received and acknowledged before the second
            try. Any item that is delivered at-least-once may come twice.
        """
        if deadline is not None:
            put = self.put(item, timeout, id=id, front=front, **terms)
            return await within(deadline, self.name, put)
        due = self._due_of(terms) if terms else None
        if front and due is not None:
            raise ValueError(
                "such an event joins the end of the line: give front=True, or delay=, at=, expires=, key=, cost= or "
                "dedup_id="
            )
        event_id = new_id() if id is None else validation.encoded(id, "id", MAX_ID)
        event = event_id, self._items.encode(item)
        if timeout is not None:
            validation.timeout(timeout)
        self._driver.check()
        replaced = await self._driver.put(event, timeout, due, front, id is not None)
        return (replaced or event_id).decode(errors="surrogateescape")

    async def put_nowait(
        self, item: T, *, id: str | None = None, front: bool = False, deadline: float | None = None,
        **terms: Unpack[PutTerms],
    ) -> str:  # fmt: skip
        """Put an item without waiting for room; the arguments are those of `put`.

        Returns:
            The event's id; with `replace`, of the one that it has replaced.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in the queue, or not.
        """
        return await self.put(item, 0, id=id, front=front, deadline=deadline, **terms)

    def producer(self, close: bool = True) -> EventProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return EventProducer(self, close)

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> EventQueueStatistics:
        """Return a snapshot of the queue (specification: QSTATUS).

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerError: A key of the queue has a value that is not a queue's.
        """
        status, beside = await self._with_beside(self._existing(self._driver.count))
        driver = self._driver
        return EventQueueStatistics(
            **figures(self.name, status, driver.waiting, driver.waits.blocked, driver.counts.fields()),
            in_flight=status.claimed,
            consumers=status.consumers,
            dead_letters=status.dead,
            next_expiry=seconds_of(status.due),
            late_renewals=self.client.renewer.late[self.name],
            **beside,
        )

    async def mover(self, destination: Any) -> Mover:
        """Return what moves events from here to another `EventQueue` of the same server; for `pipe`.

        Raises:
            ExactlyOnceError: One step cannot do that with this destination; the message says why.
            ValueError: The destination is this queue.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        from apressure.events.mover import mover_between  # here, since few programs have stages

        if not isinstance(destination, EventQueue):
            raise other_kind(self, destination)
        return await mover_between(self._driver, destination._driver)  # noqa: SLF001 (of this class)

    @classmethod
    def consume(
        cls, *names: str, codec: Any = None, max_attempts: int | None = None, keep_errors: bool = True,
        lease: float | None = None, client: Client | None = None, **options: Unpack[ClientOptions],
    ) -> EventConsumers:  # fmt: skip
        """Return a consumer of several queues at once, for `async with` and `async for`: at-least-once.

        It hands out `EventDelivery`s; `name` of the consumer says which queue the latest one is from. A queue that has
        many events does not keep the others from being looked at. The loop ends when all queues are closed and drained.

        Args:
            *names: The names of the queues.
            codec: As for `EventQueue`.
            max_attempts: As for `EventQueue`.
            keep_errors: As for `EventQueue`.
            lease: As for `consumer`.
            client: As for `EventQueue`.
            **options: As for `EventQueue`.
        """
        if not names:
            raise TypeError("consume needs the name of at least one queue")
        first, *others = dict.fromkeys(names)
        same: Any = {"codec": codec, "max_attempts": max_attempts, "keep_errors": keep_errors}
        queue: EventQueue[Any] = EventQueue(first, client=client, **same, **options)
        queues = [queue, *(EventQueue(name, client=queue.client, **same) for name in others)]
        drivers: list[Any] = [queue._driver for queue in queues]  # noqa: SLF001 (of this class)
        if not isinstance(queue.client, Client):
            drivers[0].wait_together(drivers)
        blocks: list[Any] = [queue.consumer("manual", prefetch=1, lease=lease) for queue in queues]
        return EventConsumers(queues, blocks)

    # What is behind the operations on the queue as a whole.

    @property
    def _expected(self) -> bool:
        return self._driver.expected

    @_expected.setter
    def _expected(self, created: bool) -> None:
        self._driver.expected = created

    @property
    def _administration(self) -> AdministrationSteps:
        return self._driver.steps

    @property
    def _schedules(self) -> ScheduleStore:
        return self._driver.steps.schedules()

    @property
    def _history(self) -> HistoryStore:
        steps = self._driver.steps
        return ServerHistory(steps) if isinstance(steps, Sender) else super()._history

    @property
    def registry(self) -> Registry | None:
        return self._driver.registry

    async def _look(self) -> Status:
        return await self._driver.steps.status()

    async def _exists(self) -> bool:
        return (await self._driver.count()).exists

    async def _purge(self) -> int:
        status: Status = await self._existing(self._driver.count)
        return await self._purge_by_steps(status.waiting + status.delayed, self._driver.purge)

    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        chosen = [one.encode(errors="surrogateescape") for one in ids or ()]
        return await self._driver.steps.promote(most, chosen, self._expected)

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        return await self._driver.waits.until(step, timeout, self.name)

    def _give_back_unseen(self) -> None:
        give_back_unseen(self._driver.blocks)

    # What is behind the operations on events.

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        self.check()
        await self._driver.put_many(list(zip(new_ids(len(chunk)), chunk, strict=True)), timeout, progress, due)

    async def put_letter(self, letter: DeadLetter[Any], timeout: float | None) -> bool:
        if letter.attempts is None:  # those with the same content may share an id
            return await super().put_letter(letter, timeout)
        self.check()
        try:
            await self._driver.put((letter.id.encode(errors="surrogateescape"), letter.raw), timeout, None, False, True)
        except DuplicateEventError:
            return False
        return True

    async def _ask(self, item: T, timeout: float, terms: Pressing) -> Any:
        assert isinstance(self._driver, RedisDriver)  # `check_replies`
        return await self._driver.ask(self._items.encode(item), timeout, terms)

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[EventDelivery[T]]:
        validation.timeout(timeout)
        self.check()
        return await self._driver.receive(most, timeout, lease)

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        validation.timeout(timeout)
        self.check()
        return await self._driver.get(most, timeout)

    async def _peek(self, newest: bool) -> bytes | None:
        event = await self._driver.steps.peek(newest)
        return None if event is None else event.contents

    async def _browse(self, asked: Asked) -> Found:
        assert isinstance(self._driver, RedisDriver)  # `_unable_to_browse`
        return await self._driver.steps.browse(asked)  # type: ignore[no-any-return]

    def _lease_of(self, lease: float | None) -> float:
        return self._driver.lease_of(lease)

    def _consumer(self, options: ConsumerOptions) -> AnyEventConsumer[Any, Any]:
        driver = self._driver
        if isinstance(driver, RedisDriver):
            return EventConsumer(driver, options)
        from apressure.events.remote.consumer import RemoteEventConsumer

        return RemoteEventConsumer(driver, options)


RemoteEventQueue = EventQueue
"""Another name of `EventQueue`, for one with the address of an okq server."""


def _client_of(client: Client | None, options: ClientOptions) -> Any:
    """Return the client of a queue: the one that was given, or one of its own."""
    if client is None and is_okq(options.get("url")):
        from apressure.events.remote.connection import OkqClient

        return OkqClient(options)
    chosen = client_of(EventQueue, client, options)
    if not chosen.settings.scripting:
        raise ValueError("an EventQueue needs scripts on the server: leave out scripting=False")
    return chosen
