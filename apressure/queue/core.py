"""What `AsyncQueue`, `Producer` and `Consumer` of one queue object share: codec, checks, roles, and its operations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from apressure.codecs import Codec
from apressure.connection import background
from apressure.connection.client import Client
from apressure.connection.settle import answered, settled
from apressure.exceptions import (
    ClientClosedError,
    DecodeError,
    PressureError,
    QueueInUseError,
    Role,
    ScriptingRefusedError,
)
from apressure.queue.batching import Put, PutLane
from apressure.queue.dead import DeadLetters, beside
from apressure.queue.delivery import Delivery
from apressure.queue.keys import Keys
from apressure.queue.lease import Lease
from apressure.queue.portions import MAX_BYTES, MAX_MESSAGES, stream
from apressure.queue.scripted import Scripted

if TYPE_CHECKING:
    from apressure.queue.plain import Plain

T = TypeVar("T")


class Held(Protocol):
    """A lease on a role."""

    def stop(self) -> None:
        """End its timer."""

    async def end(self, error: PressureError) -> None:
        """Give everything back, and refuse with the error what comes later."""


class Core(Generic[T]):
    """One queue object's inside.

    Args:
        name: The queue's name.
        client: The client that it uses.
        owns_client: The client ends with the queue object.
        codec: What items are.
        max_attempts: How often a message is delivered at most; None for no limit.
        dead_letters: The dead-letter queue's name; None for the queue's own with `:dead` behind it.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        owns_client: bool,
        codec: Codec[T],
        max_attempts: int | None = None,
        dead_letters: str | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self._owns_client = owns_client
        self._codec = codec
        self._max_size = client.settings.max_message_size
        self._keys = keys = Keys(client.prefix, name)
        self.dead = self._limit(max_attempts, dead_letters)
        self.operations: Scripted | Plain
        if client.settings.scripting:
            self.operations = Scripted(client, keys, name, self.dead)
        else:
            from apressure.queue.plain import Plain  # here, since few servers refuse scripts

            self.operations = Plain(client, keys, name)
        self._own_roles: set[Role] = set()
        self._held: set[Held] = set()
        self._by_hand: Lease | None = None
        self._closed = False
        self.used = False
        """Something has been asked of it."""

    async def open(self) -> None:
        """Connect, where the client is the queue object's own."""
        if self._owns_client:
            await self.client.__aenter__()
        self.check()

    async def aclose(self) -> None:
        """Give back what is in flight, fail what waits, and release connections."""
        try:
            if self._by_hand is not None and self._by_hand.stands and self.client.here:
                with contextlib.suppress(PressureError):  # what was in flight returns by itself
                    await self._by_hand.leave(hurry=True)
        finally:
            self._closed = True
            if self._owns_client:
                await self.client.aclose()
            self.client_closed(ClientClosedError("the queue object was closed (aclose) while the operation waited"))

    def client_closed(self, error: PressureError) -> None:
        """Called by the client: fail everything that waits, and let go of connections."""
        held: list[Held] = [*self._held]
        if self._by_hand is not None and self._by_hand.stands:
            held.append(self._by_hand)
        for lease in held:
            lease.stop()
            if self.client.here:
                # Before the connections end: otherwise the role would stay taken until the lease runs out.
                self.client.first(background.start(lease.end(error), "giving back what a closed client holds"))
        self.operations.end(error)
        self.operations.release(error)
        self.client.discard(self)

    def put(
        self,
        put: Put,
        timeout: float | None,
        force: bool = False,
        now: bool = False,
        lane: PutLane | None = None,
    ) -> Awaitable[None]:
        """Put encoded messages, in an exclusive producer's lane or in everybody's."""
        if timeout is not None:
            check_timeout(timeout)
        if lane is not None:
            self.client.check()
            return lane.put(put, timeout, now)
        self.check("producer")
        return self.operations.put(put, timeout, force, now)

    async def put_many(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None,
        force: bool = False,
        lane: PutLane | None = None,
    ) -> int:
        """Encode and put items in portions; an error says how many were put before."""
        check_timeout(timeout)
        if isinstance(items, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"put_many takes an iterable of items, not {type(items).__name__}: use put for one item")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        count = 0

        async def put(portion: list[bytes]) -> None:
            nonlocal count
            remaining = None if deadline is None else max(0.0, deadline - loop.time())
            one = Put(portion)
            try:
                await self.put(one, remaining, force, lane=lane)
            finally:
                count += one.done

        try:
            if isinstance(items, AsyncIterable):
                await stream(items, self.encode, put)
            else:
                for portion in self._portions(items):
                    await put(portion)
        except Exception as error:
            if isinstance(error, PressureError):
                error.accepted = count  # also where it is the iterable's own
            if count:
                error.add_note(f"{count} items were put before")
            raise
        return count

    async def get(self, max_items: int, timeout: float | None, now: bool = False) -> list[T]:
        """Get and decode one to max_items messages."""
        check_timeout(timeout)
        self.check("consumer")
        messages = await self.operations.get(max_items, timeout, now)
        items: list[T] = []
        decode = self._codec.decode
        try:
            items.extend(decode(message) for message in messages)  # (`map` takes a StopIteration for the end)
        except Exception as error:
            # Only the message in the error may leave the queue with it, and only if it is the first.
            await self._give_back(messages, max(1, len(items)))
            if not items:
                raise self._not_decoded(messages[0], error) from error
        return items

    async def _give_back(self, messages: Sequence[bytes], kept: int) -> None:
        """Make all but the first `kept` messages the first in line again. Cancelled, those too: nobody gets them."""
        what, patience = "giving back what was got", self.client.settings.settle_timeout
        giving = background.start(self.operations.give_back(messages, kept), what)
        try:
            await answered(giving, None, patience)
        except asyncio.CancelledError:
            await settled(background.start(self.operations.give_back(messages, 0, kept), what), patience)
            raise

    async def receive(self, timeout: float | None, lease: float) -> Delivery[T]:
        """Receive a message by hand, under a lease that lasts as long as something is in flight."""
        check_timeout(timeout)
        self.check()
        self._refuse("consumer")
        by_hand = self._by_hand
        if by_hand is not None and by_hand.error is not None and by_hand.stands:
            with contextlib.suppress(PressureError):  # the reason has been told
                await by_hand.leave(hurry=True)
        if by_hand is None or by_hand.error is not None:
            by_hand = self._by_hand = Lease(self.scripted("receive"), lease, held=False)
        by_hand.last(lease)
        try:
            received = await by_hand.receive(1, timeout)
        except asyncio.CancelledError:
            by_hand.return_buffer()
            with contextlib.suppress(PressureError):
                await by_hand.flush()
            raise
        try:
            self.check()  # a client that was closed meanwhile gave back what it knew to be in flight
        except ClientClosedError:
            by_hand.buffer.appendleft(received)
            with contextlib.suppress(PressureError):
                await by_hand.leave(hurry=True)
            raise
        return Delivery(by_hand, received, self.decode)

    async def requeue(self, max_items: int | None, timeout: float | None, source: str | None) -> int:
        """Move dead letters back to the end of the queue."""
        check_timeout(timeout)
        self.check("producer")
        if source is None and self.dead is not None:
            source = self.dead.name
        return await self.scripted("requeue").requeue(*self._beside(source), max_items, timeout)

    def _limit(self, max_attempts: int | None, dead_letters: str | None) -> DeadLetters | None:
        if max_attempts is None:
            if dead_letters is not None:
                raise ValueError("dead_letters= is where messages go after max_attempts= deliveries: give both")
            return None
        if not self.client.settings.scripting:
            raise ScriptingRefusedError(
                "max_attempts needs scripts on the server: open the queue without scripting=False"
            )
        return DeadLetters(max_attempts, *self._beside(dead_letters))

    def _beside(self, source: str | None) -> tuple[str, Keys]:
        name, keys = beside(self._keys, self.client.prefix, self.name, source)
        place_of = self.client.server.place_of  # in a cluster: all in one slot, or ValueError
        place_of(self._keys.specified)
        try:
            place_of((self._keys.bound, keys.bound))
        except ValueError as error:
            raise ValueError(
                f"the dead-letter queue {name!r} has to be beside the queue {self.name!r}: {error}"
            ) from None
        return name, keys

    def encode(self, item: T) -> bytes:
        """Encode an item, and refuse one that is too large."""
        message = self._codec.encode(item)
        if len(message) > self._max_size:
            raise self._too_large(message)
        return message

    def _portions(self, items: Iterable[T]) -> Iterator[list[bytes]]:
        """Encode items in portions of a step's size."""
        encode, largest = self._codec.encode, self._max_size
        portion: list[bytes] = []
        size = 0
        for item in items:
            message = encode(item)
            length = len(message)
            if length > largest:
                raise self._too_large(message)
            if portion and size + length > MAX_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(message)
            size += length
            if size >= MAX_BYTES or len(portion) >= MAX_MESSAGES:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    def _too_large(self, message: bytes) -> ValueError:
        return ValueError(
            f"the message has {len(message)} bytes; at most {self._max_size} are allowed (max_message_size)"
        )

    def decode(self, message: bytes) -> T:
        """Decode a message, or raise DecodeError with it."""
        try:
            return self._codec.decode(message)
        except Exception as error:
            raise self._not_decoded(message, error) from error

    def _not_decoded(self, message: bytes, error: Exception) -> DecodeError:
        return DecodeError(
            f"a message of the queue {self.name!r} ({len(message)} bytes) cannot be decoded: {error}",
            name=self.name,
            raw=message,
        )

    def check(self, role: Role | None = None) -> None:
        """Raise where the client cannot be used, or would wait for a role that it holds itself."""
        self.client.check()
        if self._closed:
            raise ClientClosedError("this queue object was closed (aclose); open a new one")
        if not self.used:
            self.client.add(self)
            self.used = True
        if role is not None and (self._own_roles or self._by_hand is not None):
            self._refuse(role)
            if role == "consumer" and self._by_hand is not None and self._by_hand.unsettled:
                raise self._in_use(role, "settle what was received first")

    def _refuse(self, role: Role) -> None:
        if role in self._own_roles:
            raise self._in_use(role, "use the block's object, or end the block first")

    def _in_use(self, role: Role, advice: str) -> QueueInUseError:
        return QueueInUseError(
            f"this object holds the {role} role of the queue {self.name!r} itself: {advice}",
            name=self.name,
            role=role,
            holder=self.client.id,
        )

    def take(self, role: Role) -> None:
        """A block of this queue object is about to hold a role."""
        self.check(role)
        self._own_roles.add(role)

    def leave(self, role: Role) -> None:
        """A block of this queue object has given its role back."""
        self._own_roles.discard(role)

    def hold(self, lease: Held) -> None:
        """A block of this queue object has a lease: it ends with the client at the latest."""
        self._held.add(lease)

    def let_go(self, lease: Held) -> None:
        """The block ends its lease itself."""
        self._held.discard(lease)

    def scripted(self, what: str) -> Scripted:
        """The operations by scripts; a clear error where the queue does without."""
        if isinstance(self.operations, Scripted):
            return self.operations
        raise ScriptingRefusedError(f"{what} needs scripts on the server: open the queue without scripting=False")


def check_timeout(timeout: float | None) -> None:
    """Raise TypeError where a timeout is no number of seconds."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")


def check_positive(value: int, name: str) -> None:
    """Raise where a value is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
