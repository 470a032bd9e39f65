"""`serve`: a consumer as a service, with several handlers at a time, retries, and an orderly end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from signal import SIGINT, SIGTERM
from typing import Any, Final, Literal, TypeVar, overload

from apressure.queue.delivery import Delivery
from apressure.queue.queue import DEFAULT_LEASE, AsyncQueue
from apressure.queue.serving import Served, Service
from apressure.queue.signals import listening

T = TypeVar("T")

_MOST: Final = 1_000_000


@overload
async def serve(
    handler: Callable[[T], Awaitable[object]], queue: AsyncQueue[T], *, concurrency: int = ...,
    deliveries: Literal[False] = ..., prefetch: int | None = ..., retry_delay: float = ..., retrying: int = ...,
    grace: float = ..., lease: float = ..., signals: Sequence[int] = ...,
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[Delivery[T]], Awaitable[object]], queue: AsyncQueue[T], *, concurrency: int = ...,
    deliveries: Literal[True], prefetch: int | None = ..., retry_delay: float = ..., retrying: int = ...,
    grace: float = ..., lease: float = ..., signals: Sequence[int] = ...,
) -> Served: ...  # fmt: skip
async def serve(
    handler: Callable[[Any], Awaitable[object]],
    queue: AsyncQueue[Any],
    *,
    concurrency: int = 1,
    deliveries: bool = False,
    prefetch: int | None = None,
    retry_delay: float = 1.0,
    retrying: int = 100,
    grace: float = 30.0,
    lease: float = DEFAULT_LEASE,
    signals: Sequence[int] = (SIGTERM, SIGINT),
) -> Served:
    """Handle the queue's items, at-least-once, until the queue is closed and drained, or a signal comes.

    It holds the consumer role under a lease; a second service of the queue waits, and takes over when the first one
    ends or dies. An item whose handler returns is acknowledged. One whose handler raises stays in flight for a pause
    that grows with its attempts, then goes back, first in line, and is tried again; the error is logged.

    Args:
        handler: `async def handle(item)`.
        queue: Where the items come from; opened, and closed again, if nothing has used it yet.
        concurrency: How many handlers run at a time.
        deliveries: Give the handler the `Delivery` instead of its item. It may `ack` or `nack` that itself.
        prefetch: How many messages to receive at a time; as many as handlers by default.
        retry_delay: Seconds of the first pause before a retry. Each further one is twice as long, up to 60 s, and
            chance shortens all of them by up to a half.
        retrying: How many failed items may wait for their retry without keeping a handler's place. With 0, and
            `concurrency=1`, no item overtakes another.
        grace: Seconds for which handlers may go on after a signal; 0 cancels them at once.
        lease: Seconds after which another service gets the items when this process dies.
        signals: What ends it: the first one lets handlers finish, the second one cancels them, and from then on signals
            have the effect that they had before. () for none.

    Returns:
        What was done, as `Served`.

    Raises:
        QueueDoesNotExistError: There is no such queue, or it was deleted.
        ServerUnavailableError: The server could not be reached when it began. Later on, it is tried again for ever.
        ServerError: The server refuses what no retry mends: password, permission, a damaged queue.
        RuntimeError: Signals were asked for outside the main thread.
        TypeError, ValueError: An argument is of no use, or the handler is no asynchronous function.
        BaseException: What a handler raised that is no `Exception`: SystemExit, KeyboardInterrupt.

    Cancelled, it cancels the handlers, waits for them, and gives back what was not acknowledged, first in line.
    """
    if not callable(handler):
        raise TypeError(f"the handler must be an async function, not {type(handler).__name__}")
    _check("concurrency", concurrency, int, 1)
    _check("retrying", retrying, int, 0)
    _check("retry_delay", retry_delay, float, 0)
    _check("grace", grace, float, 0)
    service = Service(
        handler, queue, deliveries, concurrency, concurrency if prefetch is None else prefetch, retry_delay, retrying,
        grace, lease,
    )  # fmt: skip
    service.consumer()  # checks the rest of the arguments before anything begins
    with listening(signals, service.stop) as service.stop_listening:
        return await service.run()


def _check(name: str, value: float, kind: type[int | float], least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise TypeError(f"{name} must be {'a whole number' if kind is int else 'a number'}, not {type(value).__name__}")
    if not least <= value <= _MOST:
        raise ValueError(f"{name} must be between {least} and {_MOST:g}, not {value}")
