"""AsyncQueue: what a program sees of a queue."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from apressure.codecs import Codec, resolve
from apressure.connection.client import Client
from apressure.connection.settings import ClientOptions
from apressure.exceptions import QueueClosedError
from apressure.queue.administration import Administration
from apressure.queue.batching import Put
from apressure.queue.core import Core, check_positive, check_timeout
from apressure.queue.delivery import Delivery
from apressure.queue.roles import Consumer, Producer

T = TypeVar("T")

DEFAULT_LEASE = 30.0


class AsyncQueue(Administration[T]):
    """A bounded FIFO queue between processes, on a Redis or Valkey server, in the protocol pressure 0.15.

    It behaves like `asyncio.Queue`: `put` waits while the queue is full, `get` while it is empty, `async for` ends
    when it has been closed and everything was got. Constructing it does no I/O.

    Args:
        name: The queue's name: any text (specification, "Queues").
        client: A `Client` to share with other queues. Without one, the queue makes its own.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class, or a codec.
        max_attempts: How often a message is delivered at most by `consumer` and `receive`. Whoever would be the next
            to deliver it moves it to the dead-letter queue instead. None for no limit.
        dead_letters: The dead-letter queue's name; None for the queue's own with `:dead` behind it.
        **options: The server and the client's options, see `ClientOptions`; not together with `client`.

    Attributes:
        name: The queue's name.
        client: The client that it uses.
        max_attempts: How often a message is delivered at most; None for no limit.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of no use; the message says why.
        ScriptingRefusedError: max_attempts needs scripts, and the client has `scripting=False`.

    Example:
        >>> async with AsyncQueue("orders", url="redis://127.0.0.1:6379/0") as queue:
        ...     await queue.create(bound=100)
        ...     await queue.put(b"first")
    """

    @overload
    def __init__(
        self: AsyncQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"] | None = ...,
        max_attempts: int | None = ..., dead_letters: str | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., dead_letters: str | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[Any], name: str, *, client: Client | None = ..., codec: Literal["json", "msgpack"],
        max_attempts: int | None = ..., dead_letters: str | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., dead_letters: str | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        dead_letters: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if client is not None and options:
            raise TypeError(f"give either client= or {', '.join(options)}: the client has its own settings")
        if max_attempts is not None:
            check_positive(max_attempts, "max_attempts")
        self.name = name
        self.client = Client(**options) if client is None else client
        self.max_attempts = max_attempts
        self._core: Core[T] = Core(name, self.client, client is None, resolve(codec), max_attempts, dead_letters)

    async def __aenter__(self) -> Self:
        await self._core.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Tasks that still wait get ClientClosedError. What was received by hand and not settled is given back. A client
        that was given to the queue stays open. When cancelled, connections are released all the same.
        """
        await self._core.aclose()

    async def put(self, item: T, timeout: float | None = None, force: bool = False) -> None:
        """Put an item, waiting while the queue is full or another producer works on it (specification: Put).

        Concurrent puts of a client travel together; each task's puts keep their order. Producers that wait for room
        are not served first come, first served.

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for the queue at most; None to wait for ever, 0 for a single try. (A connection
                that is lost has a time of its own, `retry_timeout`.)
            force: Put it even when the queue is full ("extraordinary situations", says the specification).

        Raises:
            QueueFullError, QueueInUseError: The queue stayed full, or in use, until the timeout. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: It was never created, or was deleted meanwhile. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be mended in time.
            TypeError, ValueError: The item cannot be encoded, or is too large. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is wholly in, or wholly out. `timeout=` gives a certain answer.
        """
        await self._core.put(Put([self._core.encode(item)]), timeout, force)

    async def put_nowait(self, item: T) -> None:
        """Put an item without waiting (specification: Put, Non-Blocking).

        Raises:
            QueueFullError, QueueInUseError: The queue is full, or in use. Nothing was put.
            QueueClosedError, QueueDoesNotExistError: As for `put`.

        Cancelled, the item is wholly in, or wholly out.
        """
        await self._core.put(Put([self._core.encode(item)]), None, now=True)

    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, force: bool = False
    ) -> int:
        """Put any number of items in order, as many in a step as there is room for.

        Args:
            items: An iterable or an asynchronous one; it is read as far as the queue takes its items, and no further
                than a portion ahead.
            timeout: Seconds for all of them.
            force: Put them even when the queue is full.

        Returns:
            How many were put.

        Raises:
            QueueFullError, QueueInUseError: The timeout passed.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, TypeError, ValueError: As for `put`.
                A note on any error says how many were put before, and so does `accepted` of a PressureError.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        return await self._core.put_many(items, timeout, force)

    async def get(self, timeout: float | None = None) -> T:
        """Get an item, waiting while the queue is empty (specification: Get): at-most-once.

        When a large item comes while getters wait, it crosses the wire once more for each client that waits.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.

        Raises:
            QueueEmptyError, QueueInUseError: The queue stayed empty, or in use, until the timeout.
            QueueClosedError: It is closed, and nothing is left in it.
            QueueDoesNotExistError: It was never created, or was deleted meanwhile.
            OutcomeUnknownError: The connection broke after the step was sent: an item may be lost. The consumer role
                and `receive` lose none.
            DecodeError: The codec cannot decode the item, which is in the error.

        Cancelled while it waits, nothing was taken. Cancelled while the step is on its way, it waits for the answer,
        gives back what came, first in line, then raises.
        """
        return (await self._core.get(1, timeout))[0]

    async def get_nowait(self) -> T:
        """Get an item without waiting (specification: Get, Non-Blocking).

        Raises:
            QueueEmptyError, QueueInUseError: The queue is empty, or in use.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, DecodeError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        return (await self._core.get(1, None, now=True))[0]

    async def get_many(self, max_items: int, timeout: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Very many or large ones come in portions: the list may be shorter than what the queue holds.

        Raises:
            DecodeError: The first item cannot be decoded. What came behind it has been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        check_positive(max_items, "max_items")
        return await self._core.get(max_items, timeout)

    async def receive(self, timeout: float | None = None, lease: float = DEFAULT_LEASE) -> Delivery[T]:
        """Receive an item to be acknowledged: at-least-once by hand.

        The consumer role stays with this client until everything that it received is settled. When the client dies,
        or its event loop stands still for longer than the lease, the items come again, first in line.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds that the role stays taken when the client dies; a timer renews it while it lives.

        Raises:
            QueueEmptyError, QueueInUseError, QueueClosedError, QueueDoesNotExistError: As for `get`.
            LeaseLostError: Earlier deliveries' lease had run out; they have been given back. Receive again.

        Cancelled, nothing was taken, or it has been given back.
        """
        _seconds(lease)
        return await self._core.receive(timeout, lease)

    def producer(
        self,
        close: bool = True,
        exclusive: bool = False,
        lease: float = DEFAULT_LEASE,
        timeout: float | None = None,
    ) -> Producer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue when the block ends well. Feeders that share a queue pass False.
            exclusive: Hold the producer role under a lease: nobody else puts or closes meanwhile.
            lease: Seconds that the role stays taken when an exclusive producer dies.
            timeout: Seconds to wait for the role at most; None to wait for ever.
        """
        _seconds(lease)
        check_timeout(timeout)
        return Producer(self._core, close, exclusive, lease, timeout)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float = ...,
        timeout: float | None = ...,
    ) -> Consumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float = ...,
        timeout: float | None = ...,
    ) -> Consumer[Delivery[T]]: ...  # fmt: skip
    def consumer(
        self,
        ack: Literal["auto", "manual"] = "auto",
        delete: bool = False,
        prefetch: int | None = None,
        lease: float = DEFAULT_LEASE,
        timeout: float | None = None,
    ) -> Consumer[Any]:
        """Return the consuming end of the queue, for `async with` and `async for`: at-least-once.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one or the block ends well.
                `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue when it was closed, everything in it was acknowledged and the block ends well.
            prefetch: How many messages to receive at a time; None adapts to how quickly the body works.
            lease: Seconds that the role stays taken when this client dies; a timer renews it while it lives.
            timeout: Seconds to wait for the role at most; None to wait for ever.
        """
        if ack not in ("auto", "manual"):
            raise ValueError(f"ack must be 'auto' or 'manual', not {ack!r}")
        if prefetch is not None:
            check_positive(prefetch, "prefetch")
        _seconds(lease)
        check_timeout(timeout)
        return Consumer(self._core, ack, delete, prefetch, lease, timeout)

    def __aiter__(self) -> AsyncIterator[T]:
        """Get items until the queue is closed and drained: at-most-once; see `consumer` for more."""
        return self

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None


def _seconds(lease: float) -> None:
    if isinstance(lease, bool) or not isinstance(lease, (int, float)):
        raise TypeError(f"lease must be a number of seconds, not {type(lease).__name__}")
    if not 0.1 <= lease <= 86400:
        raise ValueError(f"lease must be between 0.1 and 86400 seconds, not {lease}")
