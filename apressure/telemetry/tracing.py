"""`Tracing`: spans of OpenTelemetry for what is put, for the time that it waits in a queue, and for its handler."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Token
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from apressure.envelopes import Envelope
from apressure.exceptions import MissingExtraError
from apressure.protocols import Observer, ObservesCalls, Work

try:
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingExtraError(
        "spans need the package opentelemetry-api: pip install 'apressure[opentelemetry]'", extra="opentelemetry"
    ) from error

T = TypeVar("T")

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_MOST_LINKS: Final = 128
"""A span of a batch names so many of its messages: SDKs drop further links."""


class Tracing:
    """Makes spans, and carries their context in the headers of envelopes.

    It is an `Observer`, for `serve`, `pipe` and `Runner`.

    The context travels in the headers `traceparent` and `tracestate` (CloudEvents, distributed tracing extension), so
    the queue needs a codec of envelopes, such as `"cloudevents"`. Other items get spans, too; those of a handler then
    begin a trace of their own. A `Runner` finds the context in tasks that such a queue has put: its handlers see the
    envelope as a dictionary.

    Args:
        provider: Makes the tracer; None for the global provider.
        observer: Another observer that looks on, such as a `Metrics`.

    Example:
        >>> tracing = Tracing()
        >>> await tracing.put(orders, Envelope(b"first"))
        >>> await serve(handle, orders, observer=tracing)
    """

    def __init__(self, provider: trace.TracerProvider | None = None, observer: Observer | None = None) -> None:
        if observer is not None and not hasattr(observer, "observing"):
            raise TypeError(f"observer must have a method observing(), which {type(observer).__name__} has not")
        self._tracer = trace.get_tracer("apressure", tracer_provider=provider)
        self._observer = observer

    async def put(self, queue: Any, item: Any, *args: Any, **options: Any) -> Any:
        """Put an item, in a span: `await queue.put(item, ...)`. The span also has the wait for room.

        Args:
            queue: A queue of any kind, or a producer.
            item: The item. An `Envelope` takes the context of the span along.
            *args: What `put` of this queue takes besides the item.
            **options: The same.

        Returns:
            What `put` returns.

        Raises:
            Exception: As `put` does. The span says so, too.

        Cancelled, it leaves behind what `put` does, and the span ends.
        """
        with self._sending(queue, item, SpanKind.PRODUCER, "put", options):
            return await queue.put(self.carry(item), *args, **options)

    async def ask(self, queue: Any, item: Any, timeout: float, **options: Any) -> Any:
        """Ask, in a span: `await queue.ask(item, timeout, ...)`. The span has the wait for the reply, too.

        Args:
            queue: A queue that takes requests.
            item: The item, as for `put`.
            timeout: As for `ask` of the queue.
            **options: The other arguments of `ask`.

        Returns:
            The reply.

        Raises:
            Exception: As `ask` does. The span says so, too.

        Cancelled, it leaves behind what `ask` does, and the span ends.
        """
        with self._sending(queue, item, SpanKind.CLIENT, "ask", {"expires": timeout}):
            return await queue.ask(self.carry(item), timeout, **options)

    @contextlib.contextmanager
    def _sending(self, queue: Any, item: Any, kind: SpanKind, method: str, terms: Mapping[str, Any]) -> Iterator[None]:
        """A span around a method that puts an item."""
        with self._tracer.start_as_current_span(f"send {queue.name}", kind=kind) as span:
            if span.is_recording():
                span.set_attributes(_attributes(queue, "send", method))
                span.set_attributes({**_about(item), **_times(terms)})
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", _name(error))
                raise

    def carry(self, item: T) -> T:
        """Return an envelope with the context of the current span in its headers: for `put_many` and `pipe`.

        Anything but an `Envelope`, and an envelope which has a context, is returned as it is.
        """
        if not isinstance(item, Envelope) or "traceparent" in item.headers:
            return item
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers)
        if not headers.get("tracestate", "x"):
            del headers["tracestate"]
        carrying: T = dataclasses.replace(item, headers={**item.headers, **headers}) if headers else item
        return carrying

    @contextlib.contextmanager
    def observing(self, work: Work) -> Iterator[Callable[[float], object]]:
        """Make spans for the calls of a service's handler while the block is open: `Observer`'s method."""
        if self._observer is None:
            yield _Calls(self._tracer, work.queue, None)
        else:
            with self._observer.observing(work) as observe:
                yield _Calls(self._tracer, work.queue, observe)


class _Calls(ObservesCalls):
    """What a service tells of each call of its handler."""

    def __init__(self, tracer: trace.Tracer, queue: Any, observe: Callable[[float], object] | None) -> None:
        self._tracer = tracer
        self._name = queue.name
        self._attributes = _attributes(queue, "process", "handle")
        self._waiting = _attributes(queue, "receive", "wait")
        self._observe = observe

    def __call__(self, seconds: float) -> None:
        if self._observe is not None:
            self._observe(seconds)

    def call(self, argument: Any) -> _Call:
        """Return a call that begins: a child of the span that put the message, or linked to those of a batch."""
        attributes, links, parent = self._attributes, [], None
        if isinstance(argument, (list, tuple)):
            attributes = {**attributes, "messaging.batch.message_count": len(argument)}
            links = _links(argument[:_MOST_LINKS])
        else:
            item = _item(argument)
            attributes = {**attributes, **_about(item), **_attempts(argument)}
            if (headers := _headers(item)) is not None:
                parent = _PROPAGATOR.extract(headers, context=Context())
            if parent is not None and isinstance(item, Envelope):
                self._waited(item, parent)
        span = self._tracer.start_span(
            f"process {self._name}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        return _Call(span)

    def _waited(self, item: Envelope[Any], parent: Context) -> None:
        """Make the span of the time between the put of a message and its handler, by the clocks of both machines."""
        if item.time is None:
            return
        now = time.time_ns()
        since = min(int(item.time.timestamp() * 1e6) * 1000, now)
        attributes = {**self._waiting, **_about(item)}
        span = self._tracer.start_span(
            f"wait {self._name}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, start_time=since
        )
        span.end(now)


class _Call:
    """One call of a handler. Inside its block, its span is the current one; `end` ends the span."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        context.detach(self._token)

    def environment(self) -> dict[str, str]:
        """Return the context as variables for a process: `TRACEPARENT` and `TRACESTATE` (OpenTelemetry)."""
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, trace.set_span_in_context(self._span))
        return {name.upper(): value for name, value in headers.items() if value}

    def end(self, error: BaseException | None) -> None:
        """The handler has returned, or raised."""
        if error is not None:
            self._span.set_attribute("error.type", _name(error))
            self._span.set_status(Status(StatusCode.ERROR, _name(error)))
        self._span.end()


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _attributes(queue: Any, operation: str, name: str) -> dict[str, Any]:
    return {
        "messaging.system": "apressure",
        "messaging.destination.name": str(queue.name),
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
    }


def _about(item: Any) -> dict[str, Any]:
    """Return what is known of a message. Its key and data stay out: they may be confidential."""
    if isinstance(item, Envelope):
        return {"messaging.message.id": item.id}
    known = isinstance(item, dict) and "specversion" in item and isinstance(item.get("id"), str)
    return {"messaging.message.id": item["id"]} if known else {}


def _times(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return when a message is due, and when it expires, as `put` was told."""
    told: dict[str, Any] = {
        f"apressure.{name}": float(value)
        for name in ("delay", "expires")
        if isinstance(value := options.get(name), (int, float))
    }
    return told | ({"apressure.at": at.isoformat()} if isinstance(at := options.get("at"), datetime) else {})


def _headers(item: Any) -> dict[str, str] | None:
    """Return what carries the context: the headers of an envelope, or a CloudEvent that was read as JSON."""
    if isinstance(item, Envelope):
        return dict(item.headers)
    if isinstance(item, dict) and "specversion" in item:
        return {name: item[name] for name in ("traceparent", "tracestate") if isinstance(item.get(name), str)}
    return None


def _item(argument: Any) -> Any:
    """Return the item of a delivery, or the item itself. A delivery that cannot be decoded has none."""
    if hasattr(argument, "attempts") and hasattr(argument, "raw"):
        try:
            return argument.item
        except Exception:  # noqa: BLE001 (the handler will meet it)
            return None
    return argument


def _attempts(argument: Any) -> dict[str, Any]:
    attempts = getattr(argument, "attempts", None)
    return {"apressure.attempts": attempts} if isinstance(attempts, int) and hasattr(argument, "raw") else {}


def _links(arguments: Sequence[Any]) -> list[Link]:
    items = (_item(each) for each in arguments)
    contexts = (
        trace.get_current_span(_PROPAGATOR.extract(headers, context=Context())).get_span_context()
        for item in items
        if (headers := _headers(item)) is not None
    )
    return [Link(one) for one in contexts if one.is_valid]
