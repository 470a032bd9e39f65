"""What `serve`, integrations and programs rely on, whatever the kind of queue.

`AsyncQueue`, `EventQueue` and `FileQueue` are each a `Source` and a `Destination`; a queue of your own is one when it
has these methods. No class here has behaviour. `apressure.testing.contract` tests a queue against these promises.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

DEFAULT_LEASE: Final = 15.0
"""Seconds for which a message or a role stays with a client that died, in every kind of queue."""

LONGEST_LEASE: Final = 86400.0
"""Seconds; in a queue on a server."""

DEFAULT_MAX_HOLD: Final = 3600.0
"""Seconds without progress after which the lease of a handler that is stuck ends."""

T_co = TypeVar("T_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Delivery(Protocol[T_co]):
    """A message in flight: to be acknowledged, or given back."""

    @property
    def id(self) -> str:
        """The name of the delivery, for logs."""

    @property
    def item(self) -> T_co:
        """The message, decoded. Raises DecodeError where it cannot be decoded; the message stays in flight."""

    @property
    def raw(self) -> bytes:
        """The encoded message."""

    @property
    def attempts(self) -> int:
        """How often the message has been delivered, this time included."""

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, and not acknowledged."""

    @property
    def settled(self) -> bool:
        """Whether `ack` or `nack` has been called."""

    async def ack(self) -> None:
        """Acknowledge the message: it never comes again. Raises LeaseLostError where it has gone back meanwhile."""

    async def nack(self) -> None:
        """Give the message back, first in line. Raises LeaseLostError where it has gone back meanwhile."""

    async def extend(self, seconds: float) -> None:
        """Keep the message in flight for at least `seconds` from now."""


@runtime_checkable
class AcknowledgesSoon(Protocol):
    """A delivery that needs no waiting to be acknowledged: optional, it makes `serve` faster."""

    def ack_soon(self) -> None:
        """Acknowledge the message with the next step that leaves.

        If that fails, the consumer says so: by `on_lost`, or by an error of its next `__anext__`. Raises LeaseLostError
        where it is known already that the message has gone back.
        """


@runtime_checkable
class Replying(Protocol):
    """A queue that programs may ask.

    Its deliveries have `asked`, `still_asked` and `encode_reply`, and their `ack_soon` takes a reply.
    """

    def check_replies(self) -> None:
        """Raise UnsupportedError if its messages get no replies."""


@runtime_checkable
class Scheduled(Protocol):
    """A queue that puts items at certain times: `serve` drives its schedules."""

    async def drive_schedules(self) -> float:
        """Put the items that are due. Returns the seconds until it is to be called again."""


@runtime_checkable
class NotesErrors(Protocol):
    """A delivery that keeps why it failed: optional, so that dead letters show what `serve` and `pipe` know."""

    def note_error(self, error: BaseException | str) -> None:
        """Keep the error of this attempt, however the message goes back. It matters only if the message goes back."""

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the message back, first in line, and keep why. See `Delivery.nack`."""


@runtime_checkable
class Delays(Protocol):
    """A delivery that its queue can keep for a while: optional, so that the pause before a retry survives the process.

    Without it, `serve` waits with the delivery in hand.
    """

    async def nack(self, error: BaseException | str | None = None, *, delay: float | None = None) -> None:
        """Give the message back, to be delivered again after `delay` seconds. See `Delivery.nack`."""

    @property
    def can_delay(self) -> bool:
        """Whether its queue can do that: a released okq cannot."""


@runtime_checkable
class Holdable(Protocol):
    """A `Source` that can be told to hand out nothing for a while; see `apressure.Hold`."""

    async def hold(self, seconds: float) -> None:
        """Hand out nothing for so many seconds, to no process. What was handed out goes on."""


@runtime_checkable
class Releasable(Protocol):
    """A delivery that can go back as if it had not been delivered."""

    async def release(self) -> None:
        """Give it back, first in line: that was no attempt."""


@runtime_checkable
class Excusable(Protocol):
    """A delivery whose lease ends when its handler is stuck: optional, for programs that wait with it in hand."""

    def excused(self) -> AbstractContextManager[None]:
        """Return a block in which the program waits for another queue, such as for room there: it is not stuck.

        However long it takes, that does not count for `max_hold`, as long as the event loop turns.
        """


class Consumer(Protocol[T_co]):
    """A block that receives until the queue is closed and drained: `async with`, then `async for`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> T_co: ...

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called when what is in flight was lost to others."""


@runtime_checkable
class BufferedConsumer(Protocol[T_co]):
    """A consumer that can hand out several deliveries at once: optional, for speed."""

    def take_ready(self, most: int) -> Sequence[T_co]:
        """Return up to `most` deliveries that have come already, without waiting.

        Call it right after `anext` has returned one, in the same turn of the event loop.
        """


class DeliverySource(Protocol[D_co]):
    """A `Source` whose kind of delivery is known: for handlers that take the queue's own class of deliveries."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def max_attempts(self) -> int | None:
        """How often a message is delivered at most; None for no limit."""

    @property
    def opened(self) -> bool:
        """Whether the object has been used. `serve` opens one that has not, and closes it at the end."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def exists(self) -> bool:
        """Whether the queue exists."""

    def consumer(
        self, ack: Literal["manual"], *, prefetch: int | None = None, lease: float | None = None, shared: bool = ...
    ) -> Consumer[D_co]:
        """Return a block that hands out deliveries.

        Leaving the block gives back every delivery that has not been settled, first in line and in order.

        Args:
            ack: Deliveries are acknowledged one by one.
            prefetch: How many messages to receive at a time; None lets the queue decide.
            lease: Seconds that messages stay in flight when the process dies; None for the queue's default.
            shared: Other consumers may get messages at the same time. The default is up to the kind of queue.

        Raises:
            TypeError, ValueError: An argument is invalid.
        """


@runtime_checkable
class Creatable(Protocol):
    """A queue that a program can create: optional, for `serve(create=True)`."""

    async def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue. With `exist_ok`, one that exists is left as it is. Returns whether the queue is new."""


class Source(DeliverySource[Delivery[T_co]], Protocol[T_co]):
    """Where messages come from, at-least-once."""

    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None
    ) -> Sequence[Delivery[T_co]]:
        """Receive one to max_items messages, waiting for the first.

        Raises:
            QueueEmptyError: There was no message within `timeout` seconds.
            QueueClosedError: The queue is closed and drained.
        """


Move = tuple[Sequence[Delivery[Any]], Sequence[Any]]
"""Deliveries, and the results that came of them, encoded: what must not be torn apart."""


class Mover(Protocol):
    """Puts results, and acknowledges what they came from."""

    def encode(self, item: Any) -> Any:
        """Return a result as `move` takes it.

        Raises:
            TypeError, ValueError: It cannot be put.
        """

    async def move(self, moves: Sequence[Move]) -> None:
        """Put the results of the first of these moves, and acknowledge their deliveries; wait for room before that.

        The destination may stay full for long, since its consumers are paused, for example: deliveries are `Excusable`.
        As many are moved as there is room for, in order, and at least one. Afterwards, also after an error or a
        cancellation, those deliveries are `settled` that were moved.

        Raises:
            ValueError: The results of the first of them can never be put: there are too many.
            LeaseLostError: The deliveries have gone back.
            QueueClosedError, QueueDoesNotExistError: The destination takes nothing more.
            PressureError: Another error; it may be temporary.
        """


@runtime_checkable
class AtomicSource(Protocol):
    """A source that can acknowledge deliveries in one step with putting what came of them: optional, for `pipe`."""

    async def mover(self, destination: Any) -> Mover:
        """Return what moves messages from here to a destination: each of its moves happens as a whole, or not at all.

        Raises:
            ExactlyOnceError: That cannot be had with this destination.
            PressureError: The server cannot be asked.
        """


class Destination(Protocol[T_contra]):
    """Where messages go."""

    @property
    def name(self) -> str:
        """The queue's name."""

    async def put(self, item: T_contra, timeout: float | None = None) -> Any:
        """Put an item, waiting for room. Raises QueueClosedError when the queue is closed."""

    async def put_many(self, items: Iterable[T_contra] | AsyncIterable[T_contra], timeout: float | None = None) -> int:
        """Put items in order, waiting for room; returns how many."""

    async def close(self) -> None:
        """Accept no more items. Consumers end when they have got what is left."""

    async def closed(self) -> bool:
        """Whether the queue is closed."""


class Tally(NamedTuple):
    """What a service has done so far.

    Attributes:
        handled: How often a handler returned. A batch counts each of its items.
        failed: How often an attempt failed.
        retried: How often a message was given back to be tried again.
        dead_lettered: How many messages were given up after their last attempt.
        redelivered: How many messages were received that had been delivered before; 0 without an observer.
        in_hand: How many messages it has received, and neither settled nor given back.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    redelivered: int = 0
    in_hand: int = 0


class Work(Protocol):
    """A call of `serve` or `pipe`, or a `Runner`, as an `Observer` sees it.

    Attributes:
        queue: Where its messages come from.
        handler: What is called for them.
    """

    queue: Any
    handler: Any

    def tally(self) -> Tally:
        """Return what has been done so far. It may be called in any thread."""


class Call(Protocol):
    """One call of a handler, as an observer sees it. The handler begins inside its block, and inherits its context."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """The handler has returned, or raised this error."""


@runtime_checkable
class CarriesContext(Protocol):
    """A `Call` whose context other processes can continue: optional, for the processes of a `Runner`."""

    def environment(self) -> Mapping[str, str]:
        """Return variables for the environment of a process that does the work."""


@runtime_checkable
class ObservesCalls(Protocol):
    """What `Observer.observing` gives if it looks at each call from its beginning on: optional, for traces."""

    def __call__(self, seconds: float) -> object:
        """A call took so many seconds."""

    def call(self, argument: Any) -> Call:
        """Return a call of the handler that begins now, with this argument."""


class Observer(Protocol):
    """Looks on while services work: for metrics. Its methods must neither raise nor block."""

    def observing(self, work: Work) -> AbstractContextManager[Callable[[float], object]]:
        """Return a block around the work, entered when its queue has been opened.

        It gives what is called with the seconds of each call of the handler, also of one that raised.
        """
