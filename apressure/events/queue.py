"""EventQueue: a queue of events in the format of okq, as a program sees it."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.events.consumer import EventConsumer
from apressure.events.core import Core
from apressure.events.remote.address import is_okq
from apressure.events.several import EventConsumers
from apressure.protocols import Mover

T = TypeVar("T")


class EventQueue(Core[T]):
    """A queue of events for any number of competing consumers, on a Redis or Valkey server, in the format of okq.

    With the URL of an okq server, ours or the released one (`url="okq://host:4777"`), this makes a `RemoteEventQueue`,
    which has the methods of this class.

    Each event has a unique id. Events are delivered at-least-once, and *start* in the order in which they were put. The
    queue needs no `create`: the first put makes it. `create` gives it a bound. Any number of clients of apressure and
    of okq servers work on the same queue. Constructing it does no I/O.

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

    def __new__(cls, name: str, **arguments: Any) -> Self:
        if is_okq(arguments.get("url")):
            from apressure.events.remote.queue import RemoteEventQueue

            return RemoteEventQueue(name, **arguments)  # type: ignore[return-value]
        return super().__new__(cls)

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
        self,
        name: str,
        *,
        client: Client | None = None,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        keep_errors: bool = True,
        **options: Unpack[ClientOptions],
    ) -> None:
        chosen = client_of(EventQueue, client, options)
        if max_attempts is not None:
            validation.whole(max_attempts, "max_attempts")
        if not chosen.settings.scripting:
            raise ValueError("an EventQueue needs scripts on the server: leave out scripting=False")
        super().__init__(chosen, client is None, name, max_attempts, keep_errors, codec)

    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> EventConsumer[Any]:
        return EventConsumer(self, ConsumerOptions(manual, delete, prefetch, lease_of(lease), max_hold_of(max_hold)))

    async def mover(self, destination: Any) -> Mover:
        """Return what moves events from here to another `EventQueue` of the same server; for `pipe`.

        Raises:
            ExactlyOnceError: One step cannot do that with this destination; the message says why.
            ValueError: The destination is this queue.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        from apressure.events.mover import mover_between  # here, since few programs have stages

        return await mover_between(self, destination)

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
        if client is None and is_okq(options.get("url")):
            from apressure.events.remote.queue import RemoteEventQueue

            return RemoteEventQueue.consume(  # type: ignore[return-value]
                *names, codec=codec, max_attempts=max_attempts, keep_errors=keep_errors, lease=lease, **options
            )
        shared = client_of(EventQueue, client, options)
        queues = [
            EventQueue(name, client=shared, codec=codec, max_attempts=max_attempts, keep_errors=keep_errors)
            for name in dict.fromkeys(names)
        ]
        wanted = ConsumerOptions(True, False, 1, lease_of(lease), max_hold_of(None))
        consumers: dict[Core[Any], EventConsumer[Any]] = {queue: EventConsumer(queue, wanted) for queue in queues}
        return EventConsumers(consumers, shared if client is None else None)
