"""RemoteEventQueue: a queue of events on an okq server, as a program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec
from apressure.concurrency.deadline import with_deadline, within
from apressure.connection.settings import ClientOptions
from apressure.core.leases.arguments import max_hold_of
from apressure.events.ids import checked, new_id
from apressure.events.producer import EventProducer
from apressure.events.remote.address import is_okq, settings_of
from apressure.events.remote.client import OkqClient
from apressure.events.remote.consumer import RemoteEventConsumer
from apressure.events.remote.delivery import RemoteEventDelivery, lease_of
from apressure.events.remote.notices import Notices
from apressure.events.remote.taking import RemoteTaking
from apressure.items import Progress

T = TypeVar("T")

_CHUNK = 2000
"""The most events of one push."""


class RemoteEventQueue(RemoteTaking[T]):
    """A queue of events on an okq server: the released one, or apressure's (`apressure events serve`).

    `EventQueue("orders", url="okq://host:4777")` returns one. It uses okq's commands, and needs no Redis of its own. It
    has the words of `EventQueue`. A released okq knows no bounds, no end, no pauses and no dead letters: there, methods
    about them raise ServerTooOldError, which says what to use. Constructing it does no I/O.

    Args:
        name: The queue's name.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        max_attempts: How often an event is delivered at most; then it becomes a dead letter. None for no limit. A
            released okq knows no limit: there, the first `receive`, `get` or `consumer` raises ServerTooOldError.
        keep_errors: With `max_attempts`, keep the errors of events that go back, for `dead_letters`.
        **options: `url="okq://[user:password@]host[:port]"`, or `okqs://` with TLS; `username`, `password`, and the
            timeouts and limits of `ClientOptions`.

    Attributes:
        name: The queue's name.
        max_attempts: As given.

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
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[str], name: str, *, codec: Literal["text"],
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[Any], name: str, *, codec: UntypedCodec,
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: RemoteEventQueue[T], name: str, *, codec: Codec[T] | type[T],
        max_attempts: int | None = ..., keep_errors: bool = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        keep_errors: bool = True,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._set_up(_client_of(options), True, name, codec)
        self._limit(max_attempts, keep_errors)

    def _limit(self, max_attempts: int | None, keep_errors: bool) -> None:
        if max_attempts is not None:
            validation.whole(max_attempts, "max_attempts")
            self.max_attempts, self._seen.keep_errors = max_attempts, keep_errors

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

    @with_deadline()
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
        validation.timeout(timeout)

        async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
            pairs = [(new_id(), message) for message in chunk]
            await self._push(pairs, timeout, progress=progress)

        return await self._items.put_chunks(items, put_chunk, _CHUNK, ahead=True)

    def producer(self, close: bool = True) -> EventProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
                A released okq cannot close it: there, the end of the block raises ServerTooOldError.
        """
        return EventProducer(self, close)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> RemoteEventConsumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> RemoteEventConsumer[RemoteEventDelivery[T]]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", delete: bool = False, prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None, shared: bool = True,
    ) -> RemoteEventConsumer[Any]:  # fmt: skip
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once, and one of several.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one, and at the end of the block
                unless it raises. `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue at the end of the block, unless it raises, if the queue was closed and everything
                was acknowledged. On a released okq, the beginning of the block raises ServerTooOldError.
            prefetch: How many events to receive at a time. None adapts to how quickly the body works; on a released
                okq it is one event at a time, since the leases of others would run out meanwhile.
            lease: Seconds after which other consumers get the events if this process dies; None for 30. With a server
                of ours, a thread renews it. On a released okq the body must be quicker.
            timeout: As for `AsyncQueue.consumer`, which waits for the role. Here nothing waits.
            max_hold: Seconds after which the leases of a handler that is stuck are given up: nothing was handed out
                meanwhile. None for an hour.
            shared: Always True: any number of consumers compete. False is refused.
        """
        validation.shared(shared, "an EventQueue")
        validation.consumer(ack, prefetch, timeout)
        return RemoteEventConsumer(
            [self], self._notices, None, ack == "manual", delete, prefetch, lease_of(lease), max_hold_of(max_hold)
        )

    @classmethod
    def consume(
        cls, *names: str, codec: Any = None, max_attempts: int | None = None, keep_errors: bool = True,
        lease: float | None = None, **options: Unpack[ClientOptions],
    ) -> RemoteEventConsumer[RemoteEventDelivery[Any]]:  # fmt: skip
        """Return a consumer of several queues at once, for `async with` and `async for`: at-least-once.

        It hands out `RemoteEventDelivery`s; `name` of the consumer says which queue the latest one is from.

        Args:
            *names: The names of the queues.
            codec: As for `RemoteEventQueue`.
            max_attempts: As for `RemoteEventQueue`.
            keep_errors: As for `RemoteEventQueue`.
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
            queue._limit(max_attempts, keep_errors)
            queues.append(queue)
        notices = Notices(client.node, [queue.name for queue in queues])
        return RemoteEventConsumer(queues, notices, client, True, False, 1, seconds, max_hold_of(None))


def _client_of(options: ClientOptions) -> OkqClient:
    if not is_okq(options.get("url")):
        raise ValueError("a RemoteEventQueue needs url='okq://host:4777'. For a Redis server, use EventQueue")
    return OkqClient(settings_of(options))
