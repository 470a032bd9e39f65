"""`serve`: a consumer as a service, with concurrent handlers, retries and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.signals import listening, when_set
from apressure.protocols import Delivery, DeliverySource, Observer, Source
from apressure.service import handlers
from apressure.service.dispatcher import Arguments
from apressure.service.options import Options
from apressure.service.pace import Pace
from apressure.service.pool import Member, Pool, all_of
from apressure.service.retry import RETRY, checked_retry
from apressure.service.service import Served, Service

if TYPE_CHECKING:
    from apressure.telemetry import Metrics

T = TypeVar("T")
D = TypeVar("D")

_MOST: Final = 1_000_000
_MOST_AHEAD: Final = 1000
"""The most messages that a service with `batch=` asks for ahead by itself."""


class HandlerOptions(TypedDict, total=False):
    """How `serve` handles the messages of one queue, with each kind of handler. `serve` explains the options."""

    concurrency: int
    prefetch: int | None
    retry: Backoff
    ordered: bool
    shutdown_timeout: float
    lease: float | None
    max_hold: float | None
    shared: bool | None
    timeout: float | None
    create: bool
    bound: int | None
    linger: float
    rate: float | None
    reply: bool


class ServeOptions(HandlerOptions, total=False):
    """What `serve` takes besides the handler and the queue, with each kind of handler. `serve` explains the options."""

    signals: Sequence[int]
    stop: asyncio.Event | None
    observer: Observer | None
    metrics_port: int | None
    metrics_host: str


@overload
async def serve(
    handler: Callable[[T], Awaitable[object]], queue: Source[T], *, deliveries: Literal[False] = ..., batch: None = ...,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ...,
    key: Callable[[T], Hashable] | None = ..., executor: None = ..., **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[D], Awaitable[object]], queue: DeliverySource[D], *, deliveries: Literal[True],
    batch: None = ..., on_error: Callable[[D, BaseException], object] | None = ...,
    key: Callable[[Any], Hashable] | None = ..., executor: None = ..., **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[list[T]], Awaitable[object]], queue: Source[T], *, deliveries: Literal[False] = ...,
    batch: int, on_error: Callable[[Delivery[T], BaseException], object] | None = ..., key: None = ...,
    executor: None = ..., **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[list[D]], Awaitable[object]], queue: DeliverySource[D], *, deliveries: Literal[True],
    batch: int, on_error: Callable[[D, BaseException], object] | None = ..., key: None = ..., executor: None = ...,
    **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[T], object], queue: Source[T], *, deliveries: Literal[False] = ..., batch: None = ...,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ...,
    key: Callable[[T], Hashable] | None = ..., executor: Executor, **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[list[T]], object], queue: Source[T], *, deliveries: Literal[False] = ..., batch: int,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ..., key: None = ..., executor: Executor,
    **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Callable[[T], Awaitable[object]], queue: Sequence[Source[T]], *, weights: Sequence[float] | None = ...,
    ageing: float | None = ..., deliveries: Literal[False] = ...,
    on_error: Callable[[Delivery[T], BaseException], object] | None = ..., executor: None = ...,
    **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@overload
async def serve(
    handler: Mapping[Any, Callable[[Any], object]], queue: None = ..., *, weights: Sequence[float] | None = ...,
    ageing: float | None = ..., deliveries: bool = ...,
    on_error: Callable[[Any, BaseException], object] | None = ..., executor: Executor | None = ...,
    **options: Unpack[ServeOptions],
) -> Served: ...  # fmt: skip
@validation.elsewhere(max_attempts=validation.MAX_ATTEMPTS_ELSEWHERE)
async def serve(
    handler: Callable[[Any], object] | Mapping[Any, Callable[[Any], object]],
    queue: DeliverySource[Any] | Sequence[DeliverySource[Any]] | None = None,
    *,
    weights: Sequence[float] | None = None,
    ageing: float | None = 60.0,
    concurrency: int = 1,
    deliveries: bool = False,
    prefetch: int | None = None,
    retry: Backoff = RETRY,
    ordered: bool = False,
    shutdown_timeout: float = 30.0,
    lease: float | None = None,
    max_hold: float | None = None,
    shared: bool | None = None,
    timeout: float | None = None,
    on_error: Callable[[Any, BaseException], object] | None = None,
    create: bool = False,
    bound: int | None = None,
    batch: int | None = None,
    linger: float = 0.0,
    key: Callable[[Any], Hashable] | None = None,
    rate: float | None = None,
    reply: bool = False,
    executor: Executor | None = None,
    signals: Sequence[int] = (SIGTERM, SIGINT),
    stop: asyncio.Event | None = None,
    observer: Observer | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> Served:
    """Handle the messages of a queue, at-least-once, until the queue is closed and drained, or a signal comes.

    An item is acknowledged when its handler has returned. If the handler raises, the error is logged, and the item is
    tried again after a pause that grows with its attempts. Its queue keeps it until then, with its attempts and the
    error: no process holds it, so a kill or a restart neither loses it nor shortens the pause. `raise Retry(after=…)`
    says how long. (A released okq cannot keep it, and with `key` or `ordered` nothing may overtake it: then it stays in
    flight meanwhile, and up to 100 of them wait without taking the place of a handler.)

    Any number of services, in any number of processes, work on the same queue: each message goes to one of them, and
    they begin messages in order. For the strict order of an `AsyncQueue`, use `ordered=True`: one service
    works, and a second one waits and takes over when the first one ends or dies.

    Several queues share the handlers: `serve(handle, [urgent, normal, bulk])`, or with a handler for each
    `serve({urgent: f, normal: g})`. When a handler is free, the first of them that has a message gets it, so an urgent
    message waits for one handler at most. It returns when all are closed and drained. If one fails for good, the others
    end as after a signal.

    Args:
        handler: `async def handle(item)`, or anything else whose call returns an awaitable. Or a mapping of queues to
            their handlers, without `queue`.
        queue: The queue, of any kind, or a sequence of queues, the most urgent first. Each that has not been used
            before is opened, and closed at the end.
        weights: A number for each of several queues: while all have messages, they get handlers in these proportions,
            instead of in order.
        ageing: Of several queues in order, a message that has waited for a handler for so many seconds goes first.
            None for never: then a queue that always has messages starves those behind it.
        concurrency: How many handlers run at a time, for all queues together.
        deliveries: Give the handler the delivery instead of its item. It may `ack` or `nack` the delivery itself.
        prefetch: How many messages to receive at a time; None lets the queue decide. An `AsyncQueue` then receives as
            many as the handlers finish in 50 ms, up to 1,000. Of several queues, all but the first then receive no more
            than `concurrency`.
        retry: How long to pause before a retry, by the number of attempts. The default begins with a second and doubles
            each pause, up to a minute, with jitter.
        ordered: No item overtakes another, also when one fails: the others wait while it waits for its retry, in hand
            and under its lease. Only with `concurrency=1`, and not with `batch` or `key`. An `AsyncQueue` is then not
            shared by default. Without it, the others pass.
        shutdown_timeout: Seconds that handlers may take to finish after a signal; 0 cancels them at once. When no
            handler runs any more, what is in hand goes back: that takes up to `settle_timeout` seconds of the queue (5)
            while its server is away. What could not go back comes again when its lease ends.
        lease: Seconds after which another service gets the items when this process dies; None for the queue's default.
        max_hold: Seconds after which a service whose handlers are all stuck loses its items: no item was received or
            settled meanwhile. The log has the stacks, the handlers are cancelled, and the service begins anew. None for
            the queue's default, which is one hour.
        shared: Work on the queue together with other services, each message in one of them. False for the strict order
            of one service, with the others as standbys; all other kinds than an `AsyncQueue` are always shared. By
            default, a service with `key` or `ordered` does not share, and any other one does.
        timeout: Seconds for one handler; None for no limit. A handler that takes longer is cancelled, and has failed
            with a TimeoutError: its item is tried again as after any failure. A handler that returns in spite of the
            cancellation has handled its item.
        on_error: `on_error(delivery, error)`, asynchronous or not, is called for each handler that failed, before its
            failure is logged. It may `ack` or `nack` the delivery. If it does not, the item is tried again as usual. An
            exception of its own is logged. `timeout` does not limit it; it is cancelled with the handlers.
        create: Create the queue first, unless it exists. A queue that is deleted later is not created again.
        bound: The most messages in a queue that `create=True` creates; None or 0 for no bound. A queue that exists
            keeps its own.
        batch: Give the handler a list of up to so many items (or deliveries) instead of a single one. If it raises,
            each of them that it has not settled has failed. An item that comes again is in a list of its own, so that
            one bad item does not use up the attempts of others. `concurrency` then counts lists.
        linger: Seconds to wait for more items after the first one of a list. Without it, a list has what has been
            received.
        key: A function of the item. Items of the same key are handled one after the other and in order, different keys
            side by side, in this process. While a failed item waits and comes again, the others of its key wait, too.
            Up to ten items for each handler wait here for their keys; they count as delivered. Not with `batch` or
            `shared=True`.
        rate: How many handlers may begin a second, in this call of `serve`. After a quiet second as many may begin at
            once. None for no limit.
        reply: What the handler returns is the reply to a program that has asked (`ask` of the queue), sent by the step
            that acknowledges the message: bytes, or anything that JSON knows. With `batch`, the handler returns a list
            with a reply for each message. A value that cannot be sent is a failure of the handler.
        executor: Run the handler there: it is a synchronous function then, which may block. Processes must be started
            by `spawn`. A function that runs cannot be cancelled. At the end of the service it has `shutdown_timeout`
            seconds; after that its item goes back, while the function runs on. The same holds when the messages are
            lost. `timeout` and `deliveries=True` are refused.
        signals: The signals that end the service. The first one lets handlers finish, the second one cancels them, and
            further ones have the effect that they had before. () for none.
        stop: An event that ends the service when you set it, as the first signal does: handlers finish. Where others
            have the signals, such as uvicorn. To cancel the handlers after that, cancel `serve`.
        observer: Looks on: an `apressure.telemetry.Metrics`, which shows several services at one port, or an object of
            your own with the methods of `apressure.protocols.Observer`.
        metrics_port: Serve metrics for Prometheus at this port while the service runs, at `/metrics`, and whether the
            event loop runs at `/healthz`; 0 for a free port, which the log names at INFO. None for no metrics. Needs
            the extra `metrics`.
        metrics_host: The address to listen at. The default can be reached from this machine only.

    Returns:
        How many items were handled, as `Served`.

    Raises:
        QueueDoesNotExistError: The queue does not exist, or was deleted.
        ServerUnavailableError: The server could not be reached at the start. Later on, the service tries again for
            ever.
        PressureError: Another error that a retry does not solve (`temporary` is False): password, permission, a damaged
            queue.
        MissingExtraError: `metrics_port` is given, and prometheus_client is not installed.
        OSError: The metrics cannot be served at this address or port. Nothing was received.
        RuntimeError: Signals were asked for outside the main thread.
        BrokenExecutor, RuntimeError: The executor is broken, or was shut down.
        TypeError: The handler is synchronous, or an argument has the wrong type. A handler that can never return an
            awaitable is refused before any item is received. If only its first call shows that, the item goes back.
        ValueError: An argument is invalid.
        UnsupportedError: With `reply=True`: the messages of this kind of queue get no replies.
        BaseException: A handler raised something that is not an `Exception`, such as SystemExit.

    Cancelled, it cancels the handlers, waits for them, and gives back every item that was not acknowledged, first in
    line.
    """
    pairs = _pairs(handler, queue)
    for each, _ in pairs:
        if executor is None:
            handlers.check(each)
        else:
            handlers.check_blocking(each)
    validation.whole(concurrency, "concurrency", 1, _MOST)
    checked_retry(retry)
    if ordered and (concurrency > 1 or batch is not None or key is not None):
        raise ValueError("ordered=True means one item after the other: leave out concurrency=, batch= and key=")
    validation.seconds(shutdown_timeout, "shutdown_timeout")
    if not isinstance(stop, asyncio.Event | None):
        raise TypeError(f"stop must be an asyncio.Event or None, not {type(stop).__name__}")
    options = Options(
        timeout=timeout,
        on_error=on_error,
        create=create,
        bound=bound,
        batch=batch,
        linger=linger,
        key=key,
        rate=rate,
        reply=reply,
        executor=executor,
        observer=observer if metrics_port is None else _metrics(metrics_port, metrics_host, observer),
    )
    for _, source in pairs:
        options.check(source, deliveries, shared)
    members = _members(len(pairs), concurrency, weights, ageing, options)
    together = key is None and not ordered if shared is None else shared
    pace = None if rate is None else Pace(rate)
    if batch is not None and prefetch is None:
        prefetch = min(2 * batch * concurrency, _MOST_AHEAD)  # half of it is asked for at a time
    services = []
    for number, (handle, source) in enumerate(pairs):
        ahead = min(concurrency, _MOST_AHEAD) if number and prefetch is None else prefetch
        arguments = Arguments(
            handle, source, concurrency, deliveries, ahead, retry, ordered, shutdown_timeout, lease, max_hold,
            together, f"the service of the queue {source.name!r}", options=options, pace=pace,
            member=members[number],
        )  # fmt: skip
        arguments.consumer()  # the queue checks `prefetch`, `lease` and `max_hold`, before anything begins
        services.append(Service(arguments))

    def drain_all() -> None:
        for one in services:
            one.drain()

    async with contextlib.AsyncExitStack() as stack:
        if metrics_port is not None:
            await stack.enter_async_context(options.observer)  # type: ignore[arg-type]
        for service in services:
            service.on_drain = drain_all
            service.stop_listening = stack.enter_context(listening(signals, service.signalled))
            if stop is not None:
                await stack.enter_async_context(when_set(stop, service.stop))
        if len(services) == 1:
            return await services[0].run()

        def stop_all() -> None:
            for service in services:
                service.stop()

        done = await all_of([service.run() for service in services], stop_all)
        signal = next((one.signal for one in done if one.signal is not None), None)
        drained = any(one.drained for one in done)
        return Served(sum(one.handled for one in done), sum(one.failed for one in done), signal, drained)


def _pairs(handler: Any, queue: Any) -> list[tuple[Callable[[Any], Any], DeliverySource[Any]]]:
    """Return each handler with its queue."""
    if isinstance(handler, Mapping):
        if queue is not None:
            raise TypeError("a mapping of queues to their handlers says which queues there are: leave out queue")
        pairs = [(each, source) for source, each in handler.items()]
    elif isinstance(queue, (list, tuple)):
        pairs = [(handler, source) for source in queue]
    elif queue is None:
        raise TypeError("which queue? Write serve(handler, queue), or serve({queue: handler, ...})")
    else:
        pairs = [(handler, queue)]
    if not pairs:
        raise ValueError("there is no queue to serve: give at least one")
    for number, (_, source) in enumerate(pairs):
        if any(source is other for _, other in pairs[:number]):
            raise ValueError(f"the queue {source.name!r} is given twice")
    return pairs


def _members(
    count: int, concurrency: int, weights: Sequence[float] | None, ageing: float | None, options: Options
) -> Sequence[Member | None]:
    """Return how each of several services shares the handlers; None for a single one."""
    if weights is not None:
        if count == 1:
            raise ValueError("weights= is for several queues, and there is one: leave out weights=")
        if len(weights) != count:
            raise ValueError(f"weights must be one number for each of the {count} queues, not {len(weights)}")
        for weight in weights:
            number: Any = weight
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
                raise ValueError(f"a weight must be a number above 0, not {weight!r}")
    validation.optional(validation.seconds, ageing, "ageing", none=True)
    if count == 1:
        return [None]
    if options.batch is not None or options.key is not None:
        raise ValueError("batch= and key= are for one queue: call serve for each of these queues, side by side")
    return Pool(concurrency, count, weights, ageing).members


def _metrics(port: int, host: str, observer: Observer | None) -> Metrics:
    """Return metrics that are served at a port. There is no I/O before they are entered."""
    if observer is not None:
        raise ValueError("metrics_port= cannot be combined with observer=: use observer=Metrics(port=...)")
    from apressure.telemetry import Metrics  # here, since most services have none

    return Metrics(port=port, host=host)
