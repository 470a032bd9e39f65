"""`serve` for programs without asyncio: a plain function handles the items of a queue, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, Unpack, overload

from apressure import validation
from apressure.protocols import Delivery, Observer, Source
from apressure.service import handlers
from apressure.service.serve import HandlerOptions
from apressure.service.serve import serve as serve_with_asyncio
from apressure.service.service import Served
from apressure.service.threads import asynchronous, in_threads
from apressure.sync.blocks import Consumer
from apressure.sync.queue import Opening

T = TypeVar("T")


class ServeOptions(HandlerOptions, total=False):
    """What `apressure.sync.serve` takes besides the handler and the queue. `apressure.serve` explains the options."""

    signals: Sequence[int]
    observer: Observer | None
    metrics_port: int | None
    metrics_host: str


@overload
def serve(
    handler: Callable[[T], object], queue: Source[T] | Sequence[Source[T]], *, batch: None = ...,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ...,
    key: Callable[[T], Hashable] | None = ..., **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
def serve(
    handler: Callable[[list[T]], object], queue: Source[T], *, batch: int,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ..., key: None = ...,
    **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
def serve(handler: Callable[[Any], object], queue: Any, *, concurrency: int = 1, **options: Any) -> Served:
    """Handle the items of a queue with a plain function, at-least-once, until it is drained, or a signal comes.

    The function runs in threads, `concurrency` of them, and may block. An event loop in this thread does the rest, as
    `apressure.serve` does: retries with growing pauses, dead letters, leases, a graceful end. Any number of processes
    may serve one queue. Call it in the main thread, such as that of a management command.

    Args:
        handler: `def handle(item)`. An item is acknowledged when it has returned. With `batch`, it gets a list.
        queue: The queue, of any kind, or a sequence of queues, the most urgent first. Each is one that has not been
            used before, such as `AsyncQueue("orders")`, not the `Queue` around it.
        concurrency: How many threads call the handler.
        options: As of `apressure.serve`. `timeout` is refused: a function in a thread cannot be ended.

    Returns:
        How many items were handled, as `Served`.

    Raises:
        TypeError: The handler is an `async def`, or the queue is a `Queue` of this module. Nothing was received.
        RuntimeError: An event loop runs in this thread, as in a notebook; or it is not the main thread, and `signals`
            is not `()`. Nothing was received.
        PressureError, OSError, ValueError, UnsupportedError: As for `apressure.serve`.

    At the first SIGTERM or Ctrl-C, functions that run have `shutdown_timeout` seconds to finish. After that, or at the
    second signal, their items go back, first in line, while the functions run on: the program ends when they have
    returned. If the process is killed, its items come again when their lease ends.
    """
    if asynchronous(handler):
        raise TypeError("apressure.sync.serve calls a plain function: write `def`, or await apressure.serve")
    handlers.check_blocking(handler)
    if isinstance(queue, Iterator) and not isinstance(queue, (Opening, Consumer)):  # these would take items
        queue = [*queue]
    for one in queue if isinstance(queue, (list, tuple)) else [queue]:
        if isinstance(one, Opening):
            raise TypeError(
                f"serve opens the queue itself: give it the queue {one.name!r} without Queue(...) around it"
            )
    validation.whole(concurrency, "concurrency", 1, 1_000_000)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("an event loop runs in this thread, as in a notebook: await apressure.serve there")
    with in_threads(handler, concurrency) as executor:
        return asyncio.run(serve_with_asyncio(handler, queue, concurrency=concurrency, executor=executor, **options))
