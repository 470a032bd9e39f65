"""`Worker`: which function handles the messages of which queue, and what happens before and after."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from signal import SIGINT, SIGTERM
from typing import Any, Final, NamedTuple, TypeVar, Unpack

from apressure import validation
from apressure.concurrency.signals import listening, when_set
from apressure.core.occasions import Missed, checked, checked_name
from apressure.opening import make
from apressure.protocols import Observer
from apressure.queue_addresses import read
from apressure.service import handlers
from apressure.service.pool import all_of
from apressure.service.serve import HandlerOptions, serve
from apressure.service.service import Served
from apressure.service.threads import asynchronous, in_threads

H = TypeVar("H", bound=Callable[[Any], object])
S = TypeVar("S", bound=Callable[[], object])


class WorkerOptions(HandlerOptions, total=False):
    """What `Worker.handle` takes besides the queue: the options of the queue, and those of `serve`.

    Attributes:
        codec: What items are, for a queue that an address names.
        max_attempts: How often a message is delivered at most, for a queue that an address names.
        deliveries: See `serve`.
        batch: See `serve`.
        on_error: See `serve`.
        weights: See `serve`.
        ageing: See `serve`.
        key: See `serve`.
        executor: See `serve`. Without one, a plain function runs in threads of its own, `concurrency` of them.
    """

    codec: Any
    max_attempts: int | None
    deliveries: bool
    batch: int | None
    on_error: Callable[[Any, BaseException], object] | None
    weights: Sequence[float] | None
    ageing: float | None
    key: Callable[[Any], Hashable] | None
    executor: Executor | None


HOOK_FAILED: Final = "raised by a function for startup or shutdown:"
"""How the note begins that an error of such a function has."""

_OF_THE_QUEUE: Final = ("codec", "max_attempts", "prefix")


@dataclasses.dataclass(frozen=True)
class Registered:
    """A handler, and its queues.

    Attributes:
        handler: The function.
        queues: Queue objects, or their addresses.
        options: The options of `Worker.handle`.
    """

    handler: Callable[[Any], object]
    queues: Sequence[Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The queues, for people: their addresses without the server, or the names of the objects."""
        return ", ".join(str(read(one)) if isinstance(one, str) else str(one.name) for one in self.queues)

    def make_queues(self, url: str | None, prefix: str | None) -> list[Any]:
        """Return the queue objects, on this server where an address names none."""
        return [self._make(one, url, prefix) if isinstance(one, str) else one for one in self.queues]

    async def plan(self, planned: Planned, url: str | None, prefix: str | None) -> None:
        """Have one of the queues put an item at certain times. It is created first if its handler creates it."""
        async with self._make(planned.queue, url, prefix) as queue:
            if self.options.get("create"):
                await queue.create(bound=self.options.get("bound") or 0, exist_ok=True)
            await queue.every(planned.name, planned.when, planned.item, **planned.how)

    def _make(self, queue: str, url: str | None, prefix: str | None) -> Any:
        address = read(queue, url=url)
        given = {"prefix": None if address.kind == "files" else prefix, **self.options}
        chosen = {name: value for name, value in given.items() if name in _OF_THE_QUEUE and value is not None}
        return make(address, chosen)

    @property
    def serving(self) -> dict[str, Any]:
        """The options of `serve`."""
        return {name: value for name, value in self.options.items() if name not in _OF_THE_QUEUE}


class Planned(NamedTuple):
    """An item that a queue is to put at certain times: the arguments of `Worker.every`."""

    queue: str
    name: str
    when: str | float
    item: Any
    how: Mapping[str, Any]

    def registered(self, handlers: Sequence[Registered]) -> Registered:
        """Return the handler of its queue."""
        for one in handlers:
            if self.queue in one.queues:
                return one
        raise ValueError(
            f"the schedule {self.name!r} is of the queue {self.queue!r}, which has no handler here: decorate one with "
            f"@worker.handle({self.queue!r})"
        )


class Worker:
    """Handlers of any number of queues, of any kind, which one process serves together.

    `apressure worker module:worker` runs it, in as many processes as you like; `await worker.run()` runs it in a
    program of your own. Making one does no I/O.

    Args:
        url: The server of queues whose address names none. None for that of `apressure worker --url`, or for
            `REDIS_SERVER`, `REDIS_PORT` and `REDIS_DB`.
        prefix: The prefix of their keys; see `ClientOptions`.

    Attributes:
        url: As given.
        prefix: As given.
        handlers: The handlers, with their queues.

    Example:
        >>> worker = Worker(url="redis://127.0.0.1:6379/0")
        >>> @worker.handle("orders", concurrency=8)
        ... async def bill(order: bytes) -> None: ...
    """

    def __init__(self, *, url: str | None = None, prefix: str | None = None) -> None:
        if url is not None:
            validation.text(url, "url")
        self.url = url
        self.prefix = prefix
        self.handlers: list[Registered] = []
        self._schedules: list[Planned] = []
        self._startup: list[Callable[[], object]] = []
        self._shutdown: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(one.name for one in self.handlers) or 'no queue'}>"

    def handle(self, queue: Any, **options: Unpack[WorkerOptions]) -> Callable[[H], H]:
        """Return a decorator that makes a function the handler of a queue, or of several that share its concurrency.

        Args:
            queue: The address of a queue of any kind, such as `"orders"` or `"events:clicks"` (see `open_queue`), or a
                queue object that is not open yet. Or a list of them, the most urgent first; see `serve`.
            **options: `codec=` and `max_attempts=` of a queue that an address names, and the options of `serve`.

        The function is an `async def`, or a plain function, which runs in threads. It takes one argument, the item.

        Raises:
            TypeError: The function cannot handle an item, or an option does not exist.
            ValueError: The address is not one, or the queue has a handler already.
        """
        if unknown := options.keys() - WorkerOptions.__optional_keys__:
            raise TypeError(f"a handler has no option {min(unknown)!r}: see the options of serve")
        queues = list(queue) if isinstance(queue, (list, tuple)) else [queue]
        for number, each in enumerate(queues):
            if isinstance(each, str):
                read(each, url=self.url)
            elif not hasattr(each, "consumer"):
                what = "decorate with @worker.handle(QUEUE)" if callable(each) else "give its address, or its object"
                raise TypeError(f"a queue is missing, and {type(each).__name__} is none: {what}")
            elif taken := [name for name in _OF_THE_QUEUE if name in options]:
                raise TypeError(f"{taken[0]}= belongs to the queue object: pass it to its class")
            if each in queues[:number]:
                raise ValueError(f"{each} is given twice")
            if any(each in one.queues for one in self.handlers):
                raise ValueError(f"{each} has a handler already")

        def register(handler: H) -> H:
            if options.get("executor") is None and asynchronous(handler):
                handlers.check(handler)
            else:
                handlers.check_blocking(handler)
                if options.get("timeout") is not None:
                    raise TypeError("timeout= is for async handlers: nothing can end a plain function in its thread")
            self.handlers.append(Registered(handler, queues, dict(options)))
            return handler

        return register

    def every(
        self, queue: str, name: str, when: str | float, item: Any, *, timezone: str = "UTC", missed: Missed = "one"
    ) -> None:
        """Have one of the queues put an item at certain times: what `every` of a queue does, at each start.

        A schedule that is not in the code any more stays: delete it with `apressure schedules delete`.

        Args:
            queue: The address of a queue, as a handler of this worker has it.
            name: The schedule's name in this queue.
            when: An expression of cron, or the seconds from one time to the next; see `every` of a queue.
            item: What is put each time. The handler's `codec=` encodes it.
            timezone: Whose times of day they are: a name such as `"Europe/Berlin"`.
            missed: What is put for times that were missed: `"one"`, `"all"` or `"none"`.

        Raises:
            MissingExtraError: cronsim is not installed: `pip install 'apressure[schedules]'`.
            TypeError, ValueError: An argument is invalid.
        """
        checked_name(name)
        checked(when, timezone, missed)
        self._schedules.append(Planned(queue, name, when, item, {"timezone": timezone, "missed": missed}))

    def on_startup(self, function: S) -> S:
        """Call a function, asynchronous or not, before anything is received. A decorator; several run in order.

        If it raises, the worker ends with its error, and what has begun is shut down.
        """
        self._startup.append(function)
        return function

    def on_shutdown(self, function: S) -> S:
        """Call a function, asynchronous or not, when all handlers have ended. A decorator; the last one runs first."""
        self._shutdown.append(function)
        return function

    async def run(
        self,
        *,
        url: str | None = None,
        signals: Sequence[int] = (SIGTERM, SIGINT),
        stop: asyncio.Event | None = None,
        observer: Observer | None = None,
    ) -> dict[str, Served]:
        """Serve all queues until they are closed and drained, or a signal comes.

        Args:
            url: The server of queues whose address names none, instead of the worker's own, such as that of a test.
            signals: The first one lets handlers finish, the second one cancels them; see `serve`. One that comes while
                the functions for startup or shutdown run lets them finish. () for none.
            stop: An event that ends the worker as the first signal does.
            observer: Looks on, such as an `apressure.telemetry.Metrics`; it is entered here if it is a block.

        Returns:
            What was done, by the address or name of the queue.

        Raises:
            ValueError: The worker has no handler.
            BaseException: Of `serve`. The services of the other queues end first, as after a signal.

        Cancelled, it cancels the handlers, gives back what was not acknowledged, and calls what `on_shutdown` has.
        """
        if not self.handlers:
            raise ValueError("this worker has no handler: decorate a function with @worker.handle(QUEUE)")
        ended, url = asyncio.Event(), url or self.url

        def signalled(signum: int) -> None:  # noqa: ARG001
            ended.set()
            stop_listening()  # the services have the next ones

        async with contextlib.AsyncExitStack() as stack:
            stop_listening = stack.enter_context(listening(signals, signalled))
            if isinstance(observer, contextlib.AbstractAsyncContextManager):
                await stack.enter_async_context(observer)
            for function in self._shutdown:
                stack.push_async_callback(_called, function)
            if stop is not None:
                await stack.enter_async_context(when_set(stop, ended.set))
            for function in self._startup:
                await _called(function)
            for planned in self._schedules:
                await planned.registered(self.handlers).plan(planned, url, self.prefix)
            services = [self._serve(one, ended, url, signals=signals, observer=observer) for one in self.handlers]
            done = await all_of(services, ended.set)
            return {one.name: served for one, served in zip(self.handlers, done, strict=True)}

    async def _serve(self, registered: Registered, ended: asyncio.Event, url: str | None, **how: Any) -> Served:
        options = registered.serving
        handler: Any = registered.handler
        with contextlib.ExitStack() as stack:
            if options.get("executor") is None and not asynchronous(handler):
                options["executor"] = stack.enter_context(in_threads(handler, options.get("concurrency", 1)))
            queues = registered.make_queues(url, self.prefix)
            served = await serve(handler, queues, stop=ended, **options, **how)
            if served.drained:
                ended.set()
            return served


async def _called(function: Callable[[], object]) -> None:
    try:
        result = function()
        if inspect.isawaitable(result):
            await result
    except Exception as error:
        error.add_note(f"{HOOK_FAILED} {handlers.name_of(function)}")
        raise
