"""AsyncQueue: what a program sees of a queue."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline, within
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.due import ManyTerms, PutTerms
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.items import Items
from apressure.pressure.core import Core
from apressure.pressure.engine.batching import Put, put_chunk
from apressure.pressure.engine.dead_letters import limited
from apressure.pressure.engine.engine import Scripted
from apressure.pressure.engine.keys import Keys
from apressure.protocols import Mover

if TYPE_CHECKING:
    from apressure.pressure.consumer import Consumer
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.producer import Producer

T = TypeVar("T")


class AsyncQueue(Core[T]):
    """A bounded FIFO queue between processes, on a Redis or Valkey server, in the protocol pressure 0.15.

    It behaves like `asyncio.Queue`: `put` waits while the queue is full, `get` while it is empty, and `async for` ends
    when the queue is closed and drained. Constructing it does no I/O.

    Args:
        name: The queue's name: any text (specification, "Queues").
        client: A `Client` to share with other queues. Without one, the queue makes its own.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        max_attempts: How often `consumer` and `receive` deliver a message at most. After that, the next consumer moves
            it to the dead-letter queue. None for no limit.
        dead_letters: The dead-letter queue's name; None for the queue's own with `:dead` behind it.
        keep_errors: Keep the last error of a message, its type and the first 200 bytes of its text, for
            `dead_letters`. With False, errors never leave this process.
        **options: The server and the client's options, see `ClientOptions`; not together with `client`.

    Attributes:
        name: The queue's name.
        client: The client that it uses.
        max_attempts: How often a message is delivered at most; None for no limit.
        dead_letter_queue: The dead-letter queue's name; None without a limit. The first dead letter creates that queue,
            and `AsyncQueue(queue.dead_letter_queue, client=queue.client)` opens it.

    Raises:
        TypeError: An argument is of the wrong type, or messages cannot be decoded to the class that is the codec.
        ValueError: An argument is invalid.
        ScriptingRefusedError: max_attempts needs scripts, and the client has `scripting=False`.

    Example:
        >>> async with AsyncQueue("orders", url="redis://127.0.0.1:6379/0") as queue:
        ...     await queue.create(bound=100)
        ...     await queue.put(b"first")
    """

    @overload
    def __init__(
        self: AsyncQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"] | None = ...,
        max_attempts: int | None = ..., dead_letters: str | None = ..., keep_errors: bool = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., dead_letters: str | None = ..., keep_errors: bool = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[Any], name: str, *, client: Client | None = ..., codec: UntypedCodec,
        max_attempts: int | None = ..., dead_letters: str | None = ..., keep_errors: bool = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AsyncQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., dead_letters: str | None = ..., keep_errors: bool = ...,
        **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self, name: str, *, client: Client | None = None, codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None, dead_letters: str | None = None, keep_errors: bool = True,
        **options: Unpack[ClientOptions],
    ) -> None:  # fmt: skip
        self.client = client_of(AsyncQueue, client, options)
        validation.optional(validation.whole, max_attempts, "max_attempts")
        self.name = name
        self.max_attempts = max_attempts
        settings = self.client.settings
        self._items: Items[T] = Items(name, codec_for(codec), settings.max_message_size)
        keys = Keys(self.client.prefix, name)
        dead = limited(self.client, keys, name, max_attempts, dead_letters, keep_errors)
        self.dead_letter_queue = None if dead is None else dead.name
        if settings.scripting:
            self._behind = self._engine = Scripted(self.client, keys, name, client is None, dead)
        else:
            from apressure.pressure.engine.plain.engine import Plain  # here, since few servers refuse scripts

            self._behind = self._engine = Plain(self.client, keys, name, client is None)

    async def put(
        self,
        item: T,
        timeout: float | None = None,
        force: bool = False,
        *,
        deadline: float | None = None,
        **terms: Unpack[PutTerms],
    ) -> None:
        """Put an item, waiting while the queue is full or another client has the producer role (specification: Put).

        With `delay=` or `at=`, it is delayed: consumers get it when it is due, by the server's clock, behind what waits
        then. Until then it counts towards the bound, not as produced, and a closed queue waits for it. Clients of other
        libraries do not see it, and their puts do not leave room for it.

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for the queue at most; None to wait for ever, 0 for a single try. It does not limit
                waits for the server: `retry_timeout` and `response_timeout` do.
            force: Put it even when the queue is full ("extraordinary situations", says the specification), also with
                `delay` or `at`.
            delay: Seconds after which it is due, from when the queue has accepted it; at most ten years.
            at: When it is due, with a time zone. A time that has passed is now.
            expires: Must be None: it keeps no time beside a message. EventQueue and TaskQueue can.
            key: Must be None: it keeps nothing beside a message. EventQueue and TaskQueue can.
            cost: Must be 1, for the same reason; `spend` says what a message has cost.
            dedup_id: A name for what the item is about: a message that is put with the same one within the window is a
                repeat, and is refused. See `TaskQueue.put`.
            dedup_window: Seconds for which repeats are refused. Needed with `dedup_id`.
            replace: Must be False: its messages have no ids. EventQueue and TaskQueue can.
            deadline: Seconds for the whole operation. It also holds when the server is down or frozen.

        Raises:
            QueueFullError, QueueInUseError: The queue stayed full, or in use, until the timeout. Nothing was put.
            DuplicateMessageError: It is a repeat. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: It was never created, or was deleted meanwhile. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            ScriptingRefusedError: It is delayed or has a `dedup_id`, and the queue has `scripting=False`.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item was sent, and may still be put.
            TypeError, ValueError: The item cannot be encoded, or is too large; `delay` or `at` is invalid. Nothing was
                put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is in the queue, or not. `timeout=` gives a certain answer.
        """
        if deadline is not None:
            put = self.put(item, timeout, force, **terms)
            return await within(deadline, self.name, put)
        due = self._due_of(terms) if terms else None
        return await self._engine.put(Put([self._items.encode(item)]), timeout, force, due)

    @with_deadline()
    async def put_many(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None = None,
        force: bool = False,
        *,
        deadline: float | None = None,
        **terms: Unpack[ManyTerms],
    ) -> int:
        """Put any number of items in order, as many in a step as there is room for.

        Args:
            items: An iterable or an asynchronous one. It is read ahead by up to a chunk (2,000 items or 1 MiB), and
                items that were read and not put are lost when this fails. A consumer is refused.
            timeout: Seconds for all of them.
            force: Put them even when the queue is full.
            delay: Seconds after which each is due; see `put`.
            at: When all of them are due.
            expires: Must be None; see `put`.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were put.

        Raises:
            QueueFullError, QueueInUseError: The timeout passed.
            PressureError, TypeError, ValueError: As for `put`. A note on any error says how many were put before, and
                so does `accepted` of a PressureError.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        put = partial(self._engine.put, force=force, due=self._due_of(terms))
        return await self.put_chunks(items, timeout, partial(put_chunk, put))

    def producer(
        self, close: bool = True, exclusive: bool = False, lease: float | None = None, timeout: float | None = None,
        max_hold: float | None = None,
    ) -> Producer[T]:  # fmt: skip
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
            exclusive: Hold the producer role under a lease: no other client puts or closes meanwhile.
            lease: Seconds that the role stays taken when an exclusive producer dies. None for 15.
            timeout: Seconds to wait for the role at most; None to wait for ever.
            max_hold: Seconds after which an exclusive producer loses the role when the event loop is blocked all that
                time. None for an hour.
        """
        from apressure.pressure.producer import Exclusive, Producer

        validation.timeout(timeout)
        role = Exclusive(self._engine, lease_of(lease), max_hold_of(max_hold), timeout)
        return Producer(self, close, self._items, self._engine, role if exclusive else None)

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, max_hold: float | None = None,
        *, deadline: float | None = None,
    ) -> Delivery[T]:  # fmt: skip
        """Receive an item to be acknowledged: at-least-once by hand.

        The consumer role stays with this client until everything that it received is settled. When the client dies,
        or stands still for longer than the lease, the items come again, first in line. A blocked event loop does not
        matter.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds that the role stays taken when the client dies; a thread renews it while the client lives.
                None for 15.
            max_hold: Seconds after which the lease ends when nothing was received or settled meanwhile; see `consumer`.
                None for an hour.
            deadline: Seconds for the whole operation.

        Raises:
            QueueEmptyError, QueueInUseError: The queue stayed empty, or in use, until the timeout.
            LeaseLostError: The lease of earlier deliveries expired; they have been given back. Receive again.
            ScriptingRefusedError: The queue has `scripting=False`.
            PressureError: As for `get`.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self.receive_many(1, timeout, lease, max_hold, deadline=deadline))[0]

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, max_hold: float | None = None,
        *, deadline: float | None = None,
    ) -> list[Delivery[T]]:  # fmt: skip
        """Receive one to max_items items to be acknowledged, as many as there are, waiting while there is none.

        Very many or large items come in chunks: the list may be shorter than the queue. Each delivery is settled by
        itself. All deliveries that this object has in flight share one lease.

        Args:
            max_items: How many to receive at most.
            timeout: As for `receive`.
            lease: As for `receive`.
            max_hold: As for `receive`.
            deadline: Seconds for the whole operation.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or all of it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        return await self._receive(max_items, timeout, lease, max_hold)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> Consumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> Consumer[Delivery[T]]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", delete: bool = False, prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None, shared: bool = False,
    ) -> Consumer[Any]:  # fmt: skip
        """Return the consuming end of the queue, for `async with` and `async for`: at-least-once.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one or the block ends well.
                `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue when it was closed, everything in it was acknowledged and the block ends well.
            prefetch: How many messages to receive at a time; None adapts to how quickly the body works.
            lease: Seconds that the role stays taken when this client dies; a thread renews it while the client lives.
                None for 15.
            timeout: Seconds to wait for the role at most; None to wait for ever.
            max_hold: Seconds after which the lease of a handler that is stuck ends: nothing was handed out or settled
                meanwhile, and an item is in the program's hands, or the event loop is blocked. The log has the stacks,
                everything in flight goes back, and later operations raise LeaseLostError. The time of
                `Delivery.extend` does not count. None for an hour.
            shared: Share the role with all other clients that ask for that: each message goes to one of them, and they
                *start* in order. When a member dies, its messages go to the others as soon as its lease has ended. A
                member's loop ends when the queue is closed and empty, and no other member has a message in hand. Two
                exclusive consumers take turns instead.
        """
        from apressure.pressure.consumer import Consumer, Options

        validation.consumer(ack, prefetch, timeout)
        seconds, hold = lease_of(lease), max_hold_of(max_hold)
        options = Options(ack == "manual", delete, prefetch, seconds, timeout, hold, shared)
        return Consumer(self._engine, self._items.decode, options)

    async def mover(self, destination: Any) -> Mover:
        """Return what moves messages from here to another queue of the same server; for `pipe`.

        Raises:
            ExactlyOnceError: One step cannot do that with this destination; the message says why.
            ValueError: The destination is this queue.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        from apressure.pressure.mover import mover_between  # here, since few programs have stages

        return await mover_between(self, destination)
