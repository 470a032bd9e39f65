"""RemoteEventQueue: a queue of events on an okq server, as a program sees it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, codec_for
from apressure.connection.settings import ClientOptions
from apressure.deadline import within
from apressure.events.ids import checked, new_id
from apressure.events.remote.address import NO_DEAD_LETTERS, is_okq, settings_of
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Pair
from apressure.events.remote.consumer import RemoteEventConsumer
from apressure.events.remote.core import RemoteCore
from apressure.events.remote.delivery import DEFAULT_LEASE, Hand, RemoteEventDelivery, lease_of
from apressure.events.remote.notices import Notices
from apressure.exceptions import DecodeError, PressureError, QueueClosedError
from apressure.items import Items, Progress
from apressure.protocols import DEFAULT_MAX_HOLD

T = TypeVar("T")

_CHUNK = 2000
"""The most events of one push."""


class RemoteEventQueue(RemoteCore, Generic[T]):
    """A queue of events on an okq server: the released one, or apressure's (`apressure events serve`).

    `EventQueue("orders", url="okq://host:4777")` returns one. It uses okq's commands, and needs no Redis of its own. It
    has the words of `EventQueue`, except for those that okq cannot do: `create`, `delete`, `bound`, `close`,
    `wait_closed`, `producer` and `requeue`. Those are for `EventQueue` on the server's Redis. Constructing it does no
    I/O.

    Args:
        name: The queue's name.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        max_attempts: Must be None: okq has no dead letters.
        **options: `url="okq://[user:password@]host[:port]"`, or `okqs://` with TLS; `username`, `password`, and the
            timeouts and limits of `ClientOptions`.

    Attributes:
        name: The queue's name.
        max_attempts: Always None.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid, or only for Redis; the message says why.

    Example:
        >>> async with RemoteEventQueue("orders", url="okq://127.0.0.1:4777") as queue:
        ...     await queue.put(b"first", id="order-1")
        ...     delivery = await queue.receive(timeout=5.0)
        ...     await delivery.ack()
    """

    @overload
    def __init__(
        self: RemoteEventQueue[bytes], name: str, *, codec: Literal["raw"] | None = ...,
        max_attempts: None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[str], name: str, *, codec: Literal["text"],
        max_attempts: None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[Any], name: str, *, codec: Literal["json", "msgpack"],
        max_attempts: None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[T], name: str, *, codec: Codec[T] | type[T],
        max_attempts: None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if max_attempts is not None:
            raise ValueError(NO_DEAD_LETTERS)
        self._set_up(_client_of(options), True, name, codec)

    def _set_up(self, client: OkqClient, owns_client: bool, name: str, codec: Any) -> None:
        super().__init__(client, owns_client, name)
        self._items: Items[T] = Items(name, codec_for(codec), client.settings.max_message_size)

    if not TYPE_CHECKING:  # with a __getattr__, a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _REDIS_ONLY:
                text += (
                    ": an okq server cannot do that. Use EventQueue with the URL of the server's Redis (redis://…), "
                    "which works on the same queue"
                )
            raise AttributeError(text, name=name, obj=self)

    async def __aenter__(self) -> Self:
        self._check()
        if self._owns_client:
            await self._client.__aenter__()
        return self

    async def put(
        self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """Put an item, waiting while the queue is full (specification: QLPUSH, QRPUSH).

        Only a server of ours has queues with a bound. Waiting for room means to try again after up to 0.25 s.

        If the reply is lost, the item is put again. It may then be in the queue twice, one after the other: if it was
        put, received and acknowledged before the second try. So an item that `put` has put may come twice, as any item
        may that is delivered at-least-once.

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            id: The event's id, which must not be in the queue; None for a random one (a UUID).
            front: Put it first in line.
            deadline: Seconds for the whole operation, with connecting, repeating and settling; None for no limit.

        Returns:
            The event's id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            DuplicateEventError: An event with this id waits or is in flight. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time. Or it broke, and now there is
                an event with the id that was given: from this put, or from one before.
            ServerUnavailableError: The server cannot be reached. Nothing was put.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item was sent, and may still be put.
            TypeError, ValueError: The item cannot be encoded, or is too large, or the id is invalid. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is in the queue, or not.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.put(item, timeout, id=id, front=front))
        event = new_id() if id is None else checked(id)
        await self._push([(event, self._items.encode(item))], timeout, front, id is not None)
        return event.decode(errors="surrogateescape")

    async def put_nowait(
        self, item: T, *, id: str | None = None, front: bool = False, deadline: float | None = None
    ) -> str:
        """Put an item without waiting for room.

        Returns:
            The event's id.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in the queue, or not.
        """
        return await self.put(item, 0, id=id, front=front, deadline=deadline)

    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Put any number of items in order, with random ids.

        Args:
            items: An iterable or an asynchronous one. It is read ahead by up to a chunk (2,000 items or 1 MiB), and
                items that were read and not put are lost when this fails. A consumer is refused.
            timeout: Seconds to wait for room at most, for each chunk.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were put.

        Raises:
            QueueFullError: The timeout passed.
            QueueClosedError, OutcomeUnknownError, ServerUnavailableError, TypeError, ValueError: As for `put`. A note
                on any error says how many were put before, and so does `accepted` of a PressureError. On a released
                okq, up to 99 items behind those may be in the queue, too: it takes one in each command.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.put_many(items, timeout))
        validation.timeout(timeout)

        async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
            pairs = [(new_id(), message) for message in chunk]
            await self._push(pairs, timeout, progress=progress)

        return await self._items.put_chunks(items, put_chunk, _CHUNK, ahead=True)

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> RemoteEventDelivery[T]:
        """Receive the event that is next, waiting while there is none (specification: QREGISTER, QNOTIFY, QRPOP).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for 30. The released okq rounds them up to whole
                seconds, and cannot extend them. `consumer` extends them where the server can.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueClosedError: A server of ours says that the queue is closed, and none waits. An event in flight may
                still come back: then the next `receive` gets it.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Events that were claimed come
                again when their lease ends.
            TypeError, ValueError: An argument is invalid.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self.receive_many(1, timeout, lease, deadline=deadline))[0]

    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[RemoteEventDelivery[T]]:
        """Receive one to max_items events, as many as there are, waiting while there is none.

        Very many come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.receive_many(max_items, timeout, lease))
        validation.whole(max_items, "max_items")
        events, until = await self._take(max_items, timeout, lease_of(lease))
        return [self._delivery(event, until) for event in events]

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once.

        The event is received and acknowledged before its item is returned.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueClosedError: A server of ours says that it is closed, and none waits.
            OutcomeUnknownError: The connection broke during the acknowledgement: an item may be lost. `receive` and
                `consumer` lose none.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while the steps are on their way, it waits for the
        answer, puts the item back, first in line, then raises. A closed queue takes nothing back: then it is lost.
        """
        return (await self.get_many(1, timeout, deadline=deadline))[0]

    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting.

        Raises:
            QueueEmptyError: The queue is empty.
            PressureError: As for `get`.

        Cancelled, an item is lost only as with `get`.
        """
        return await self.get(0, deadline=deadline)

    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Raises:
            DecodeError: The first item cannot be decoded. The items behind it have been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, items are lost only as with `get`.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.get_many(max_items, timeout))
        validation.whole(max_items, "max_items")
        while True:
            events, _ = await self._take(max_items, timeout, DEFAULT_LEASE)
            items: list[T] = []
            broken: DecodeError | None = None
            try:
                self._items.decode_into(items, [contents for _, contents in events])
            except DecodeError as error:
                broken = error
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self._client.step(self._confirm(events, taken), self._return)
            if ours and not items and broken is not None:
                raise broken
            if ours:  # otherwise the leases have ended already, and others get the events
                return [item for item, event in zip(items, events, strict=False) if event in ours]

    async def _confirm(self, events: list[Pair], taken: int) -> list[Pair]:
        """Acknowledge the first events, and give back the others. Return those that were acknowledged."""
        if events[taken:]:
            await self._put_back(events[taken:])
        confirmed = await self._client.commands.confirm(self.name, [event for event, _ in events[:taken]])
        return [event for event, done in zip(events, confirmed, strict=False) if done]

    async def _return(self, events: list[Pair]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        with contextlib.suppress(PressureError):
            await self._client.commands.push(self.name, events[::-1], front=True, given=False)

    def __aiter__(self) -> AsyncIterator[T]:
        """Get items until the queue is closed and drained, on a server of ours: at-most-once."""
        return self

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> RemoteEventConsumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> RemoteEventConsumer[RemoteEventDelivery[T]]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None, shared: bool = True,
    ) -> RemoteEventConsumer[Any]:  # fmt: skip
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once, and one of several.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one, and at the end of the block
                unless it raises. `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            prefetch: How many events to receive at a time. None adapts to how quickly the body works; on a released
                okq it is one event at a time, since the leases of others would run out meanwhile.
            lease: Seconds after which other consumers get the events if this process dies; None for 30. With a server
                of ours, a thread renews it. On a released okq the body must be quicker.
            timeout: As for `AsyncQueue.consumer`, which waits for the role. Here nothing waits.
            max_hold: Seconds after which the leases of a handler that is stuck are given up: nothing was handed out
                meanwhile. None for an hour.
            shared: Always True: any number of consumers compete. False is refused.
        """
        if not shared:
            raise ValueError("consumers of an EventQueue always share it: leave out shared=False")
        if ack not in ("auto", "manual"):
            raise ValueError(f"ack must be 'auto' or 'manual', not {ack!r}")
        if prefetch is not None:
            validation.whole(prefetch, "prefetch")
        validation.timeout(timeout)
        hold = DEFAULT_MAX_HOLD
        if max_hold is not None:
            hold = validation.seconds(max_hold, "max_hold", above=True, none=True)
        return RemoteEventConsumer([self], self._notices, None, ack == "manual", prefetch, lease_of(lease), hold)

    @classmethod
    def consume(
        cls, *names: str, codec: Any = None, lease: float | None = None, **options: Unpack[ClientOptions]
    ) -> RemoteEventConsumer[RemoteEventDelivery[Any]]:
        """Return a consumer of several queues at once, for `async with` and `async for`: at-least-once.

        It hands out `RemoteEventDelivery`s; `name` of the consumer says which queue the latest one is from.

        Args:
            *names: The names of the queues.
            codec: As for `RemoteEventQueue`.
            lease: As for `consumer`.
            **options: As for `RemoteEventQueue`.
        """
        if not names:
            raise TypeError("consume needs the name of at least one queue")
        seconds = lease_of(lease)
        client = _client_of(options)
        queues: list[RemoteEventQueue[Any]] = []
        for name in dict.fromkeys(names):
            queue: RemoteEventQueue[Any] = cls.__new__(cls)
            queue._set_up(client, False, name, codec)
            queues.append(queue)
        notices = Notices(client.node, [queue.name for queue in queues])
        return RemoteEventConsumer(queues, notices, client, True, 1, seconds, DEFAULT_MAX_HOLD)

    async def peek(self) -> T:
        """Return the item that is next, without taking it (specification: QRPEEK).

        Raises:
            QueueEmptyError: None waits.
            DecodeError: The codec cannot decode it.
            PressureError: As for `statistics`.
        """
        return self._items.decode((await self._peek(newest=False))[1])

    async def peek_newest(self) -> T:
        """Return the item that was put last, without taking it (specification: QLPEEK).

        Raises:
            QueueEmptyError, DecodeError, PressureError: As for `peek`.
        """
        return self._items.decode((await self._peek(newest=True))[1])

    async def _peek(self, newest: bool) -> Pair:
        self._check()
        event = await self._client.commands.peek(self.name, newest)
        if event is None:
            raise self._empty()
        return event

    def _delivery(self, event: Pair, until: float, hand: Hand | None = None) -> RemoteEventDelivery[T]:
        return RemoteEventDelivery(self._client, self.name, event, self._items.decode, self._seen, until, hand)


_REDIS_ONLY: Final = frozenset(
    {
        "bound",
        "client",
        "close",
        "create",
        "dead_letters",
        "delete",
        "pause",
        "paused",
        "producer",
        "requeue",
        "resume",
        "wait_closed",
    }
)


def _client_of(options: ClientOptions) -> OkqClient:
    if not is_okq(options.get("url")):
        raise ValueError("a RemoteEventQueue needs url='okq://host:4777'. For a Redis server, use EventQueue")
    return OkqClient(settings_of(options))
