"""RemoteEventQueue: a queue of events on an okq server, as a program sees it."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, Unpack, overload

from apressure.codecs import Codec, UntypedCodec
from apressure.connection.settings import ClientOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import max_hold_of
from apressure.events.remote.address import is_okq, settings_of
from apressure.events.remote.client import OkqClient
from apressure.events.remote.consumer import RemoteEventConsumer
from apressure.events.remote.core import RemoteCore
from apressure.events.remote.delivery import RemoteEventDelivery, lease_of
from apressure.events.remote.notices import Notices

T = TypeVar("T")


class RemoteEventQueue(RemoteCore[T]):
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
        super().__init__(_client_of(options), True, name, codec, max_attempts, keep_errors)

    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> RemoteEventConsumer[Any]:
        options = ConsumerOptions(manual, delete, prefetch, lease_of(lease), max_hold_of(max_hold))
        return RemoteEventConsumer([self], self._client, self._notices, options)

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
        wanted = ConsumerOptions(True, False, 1, lease_of(lease), max_hold_of(None))
        client = _client_of(options)
        queues: list[RemoteEventQueue[Any]] = []
        for name in dict.fromkeys(names):
            queue: RemoteEventQueue[Any] = cls.__new__(cls)
            RemoteCore.__init__(queue, client, False, name, codec, max_attempts, keep_errors)
            queues.append(queue)
        notices = Notices(client.node, [queue.name for queue in queues])
        return RemoteEventConsumer(queues, client, notices, wanted, owned=True)


def _client_of(options: ClientOptions) -> OkqClient:
    if not is_okq(options.get("url")):
        raise ValueError("a RemoteEventQueue needs url='okq://host:4777'. For a Redis server, use EventQueue")
    return OkqClient(settings_of(options))
