"""Envelopes on every kind of queue, and the spans of what they carry."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apressure import (
    AsyncQueue,
    Backoff,
    CloudEventsCodec,
    Envelope,
    EventQueue,
    FileQueue,
    NoReplyError,
    QueueFullError,
    TaskClient,
    TaskQueue,
    pipe,
    serve,
)
from apressure.tasks import Command, Runner
from apressure.telemetry import Metrics, Tracing
from tests.integration.conftest import Opener, in_time
from tests.integration.events.remote.conftest import serving

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # nothing of this depends on the server


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


def context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


@contextlib.asynccontextmanager
async def of_kind(kind: str, url: str, folder: Path, codec: Any) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:
        if kind == "okq":
            url = await stack.enter_async_context(serving(url))
        queue: Any = {
            "pressure": lambda: AsyncQueue("kind", url=url, codec=codec),
            "events": lambda: EventQueue("kind", url=url, codec=codec),
            "okq": lambda: EventQueue("kind", url=url, codec=codec),
            "tasks": lambda: TaskQueue("kind", url=url, codec=codec),
            "files": lambda: FileQueue(folder, codec=codec),
        }[kind]()
        await stack.enter_async_context(queue)
        if kind != "okq":  # the first put creates it
            await queue.create(exist_ok=True)
        yield queue


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["pressure", "events", "okq", "tasks", "files"])
async def test_every_kind_carries_envelopes_and_the_context_of_spans(kind: str, url: str, tmp_path: Path) -> None:
    spans = Spans()
    before = dt.datetime.now(dt.UTC)
    got: list[Envelope[Any]] = []
    inside: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def handle(envelope: Envelope[Any]) -> None:
        got.append(envelope)
        await asyncio.sleep(0)
        now = trace.get_current_span().get_span_context()
        inside.append((now.trace_id, now.span_id))
        done.set()

    async with of_kind(kind, url, tmp_path / "kind", CloudEventsCodec("json")) as queue:
        sent = Envelope({"number": 7}, key="k", headers={"subject": "é"}, type="sold")
        await in_time(spans.tracing.put(queue, sent))
        serving_it = asyncio.create_task(serve(handle, queue, observer=spans.tracing, signals=()))
        await in_time(done.wait())
        serving_it.cancel()
        await asyncio.wait((serving_it,))
    (envelope,) = got
    assert (envelope.data, envelope.key, envelope.id, envelope.type) == ({"number": 7}, "k", sent.id, "sold")
    assert envelope.headers["subject"] == "é"
    assert envelope.headers["datacontenttype"] == "application/json"
    assert envelope.time is not None
    assert before <= envelope.time <= dt.datetime.now(dt.UTC)
    send, wait, process = (spans.one(f"{each} kind") for each in ("send", "wait", "process"))
    assert send.kind is trace.SpanKind.PRODUCER
    assert wait.kind is process.kind is trace.SpanKind.CONSUMER
    assert parent(send) is None
    assert parent(wait) == parent(process) == context(send)
    assert inside == [context(process)]  # also after the handler has waited
    assert [dict(span.attributes or {}) for span in (send, wait, process)] == [
        {
            "messaging.system": "apressure",
            "messaging.destination.name": "kind",
            "messaging.operation.type": operation,
            "messaging.operation.name": name,
            "messaging.message.id": sent.id,
        }
        for operation, name in (("send", "put"), ("receive", "wait"), ("process", "handle"))
    ]
    assert wait.start_time == int(envelope.time.timestamp() * 1e6) * 1000
    assert wait.start_time is not None
    assert process.start_time is not None
    assert wait.start_time <= process.start_time


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["events", "tasks"])
async def test_the_span_of_a_request_lasts_until_its_reply(kind: str, url: str, tmp_path: Path) -> None:
    spans = Spans()

    async def handle(envelope: Envelope[Any]) -> Any:
        await asyncio.sleep(0.01)
        return envelope.data

    async with of_kind(kind, url, tmp_path / "kind", CloudEventsCodec("json")) as queue:
        service = asyncio.create_task(serve(handle, queue, reply=True, observer=spans.tracing, signals=()))
        assert await in_time(spans.tracing.ask(queue, Envelope({"number": 7}), 20.0)) == {"number": 7}
        service.cancel()
        await asyncio.wait((service,))
        send, process = spans.one("send kind"), spans.one("process kind")
        assert send.kind is trace.SpanKind.CLIENT
        assert parent(process) == context(send)
        assert send.end_time is not None
        assert process.end_time is not None
        assert process.end_time <= send.end_time
        attributes = dict(send.attributes or {})
        assert (attributes["messaging.operation.name"], attributes["apressure.expires"]) == ("ask", 20.0)
        with pytest.raises(NoReplyError):
            await spans.tracing.ask(queue, Envelope({"number": 8}), 0.05)
        assert [dict(span.attributes or {}).get("error.type") for span in spans.named("send kind")] == [
            None,
            "apressure.exceptions.NoReplyError",
        ]


async def test_spans_tell_of_failures_of_batches_and_of_items_without_an_envelope(open_queue: Opener) -> None:
    spans = Spans()
    raw = await open_queue("raw", bound=1)
    await spans.tracing.put(raw, b"1")
    with pytest.raises(QueueFullError):
        await spans.tracing.put(raw, b"2", timeout=0.01)
    assert [dict(span.attributes or {}).get("error.type") for span in spans.named("send raw")] == [
        None,
        "apressure.exceptions.QueueFullError",
    ]
    later = await open_queue("later")
    at = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    await spans.tracing.put(later, b"1", at=at)
    with pytest.raises(ValueError, match="cannot expire"):
        await spans.tracing.put(later, b"1", delay=5, expires=60)
    told = ("apressure.at", "apressure.delay", "apressure.expires")
    attributes = [dict(span.attributes or {}) for span in spans.named("send later")]
    times = [{key: one[key] for key in told if key in one} for one in attributes]
    assert times == [{"apressure.at": at.isoformat()}, {"apressure.delay": 5.0, "apressure.expires": 60.0}]
    await raw.close()
    failures = iter([ValueError("secret")])

    async def fail_once(delivery: Any) -> None:
        for error in failures:
            raise error

    await in_time(serve(fail_once, raw, observer=spans.tracing, retry=Backoff(0.001), deliveries=True, signals=()))
    first, second = spans.named("process raw")
    assert (first.status.status_code, first.status.description) == (trace.StatusCode.ERROR, "ValueError")
    assert "secret" not in first.to_json()
    assert second.status.status_code is trace.StatusCode.UNSET
    assert [dict(span.attributes or {})["apressure.attempts"] for span in (first, second)] == [1, 2]
    assert parent(first) is parent(second) is None

    many = await open_queue("many", codec="cloudevents")
    out = await open_queue("out", codec="cloudevents")
    tracer = spans.provider.get_tracer("test")
    with tracer.start_as_current_span("shop") as shop:
        await many.put_many([spans.tracing.carry(Envelope(b"%d" % n)) for n in range(2)])
    await many.close()

    async def transform(batch: list[Envelope[bytes]]) -> list[Envelope[bytes]]:
        await asyncio.sleep(0)
        return [spans.tracing.carry(Envelope(each.data)) for each in batch]

    metrics = Metrics()
    tracing = Tracing(spans.provider, observer=metrics)
    await in_time(pipe(many, transform, out, batch=2, close=True, observer=tracing))  # type: ignore[arg-type]
    batches = spans.named("process many")
    assert sum(int(dict(span.attributes or {})["messaging.batch.message_count"]) for span in batches) == 2  # type: ignore[arg-type]
    assert [link.context.span_id for span in batches for link in span.links] == [shop.get_span_context().span_id] * 2
    results = [await out.get() for _ in range(2)]
    assert {each.headers["traceparent"][3:52] for each in results} == {
        "{:032x}-{:016x}".format(*context(span)) for span in batches
    }
    handled = [one for one in metrics.readings() if one.family.name == "handler_handled_messages"]
    assert [one.value for one in handled] == [2]


@pytest.mark.leaves_keys
async def test_each_attempt_of_a_runner_is_a_span_of_the_trace_that_put_the_task(url: str) -> None:
    spans, metrics = Spans(), Metrics()
    seen: list[Any] = []

    async def work(parameters: Any) -> None:
        now = trace.get_current_span().get_span_context()
        seen.append((now.trace_id, now.span_id))
        if parameters == "fails":
            raise ValueError("secret")
        if parameters == "slow":
            await asyncio.Event().wait()

    async with TaskClient(url) as client:
        async with TaskQueue("kind", url=url, codec="cloudevents") as envelopes:
            sent = Envelope(b"7", type="sold")
            await in_time(spans.tracing.put(envelopes, sent))
        plain = client.queue("kind")
        for parameters in ("fails", "slow", {"specversion": "1.0", "id": 5, "traceparent": 5}):
            await plain.enqueue(parameters)
        await plain.close()
        tracing = Tracing(spans.provider, observer=metrics)
        runner = Runner(client, "kind", work, timeout=0.2, signals=(), observer=tracing)
        ran = await in_time(runner.run())
        assert (ran.complete, ran.failed) == (2, 2)
    found = spans.named("process kind")
    assert [context(span) for span in found] == seen
    assert parent(found[0]) == context(spans.one("send kind"))
    assert [parent(span) for span in found[1:]] == [None] * 3
    attributes = [dict(span.attributes or {}) for span in found]
    assert [one.get("messaging.message.id") for one in attributes] == [sent.id, None, None, None]
    assert [one["apressure.attempts"] for one in attributes] == [1] * 4
    errors = [None, "apressure.exceptions.TaskFailedError", "TimeoutError", None]
    assert [one.get("error.type") for one in attributes] == errors
    assert [span.status.status_code is trace.StatusCode.ERROR for span in found] == [bool(error) for error in errors]
    assert "secret" not in "".join(span.to_json() for span in found)
    (handled,) = [one.value for one in metrics.readings() if one.family.name == "handler_handled_messages"]
    assert handled == 2


@pytest.mark.leaves_keys
@pytest.mark.parametrize("work", ["span", "span_later", "command"])
async def test_processes_of_a_runner_continue_the_trace(url: str, work: str) -> None:
    spans = Spans()
    functions = "tests.integration.tasks.runner.functions"
    command = Command(["sh", "-c", "echo $TRACEPARENT"], parameters="stdin")
    what: Command | str = command if work == "command" else f"{functions}:{work}"
    async with TaskClient(url) as client:
        queue = client.queue("kind")
        await queue.enqueue("x")
        await queue.close()
        runner = Runner(client, "kind", what, signals=(), observer=spans.tracing)
        assert (await in_time(runner.run())).complete == 1
        (task,) = [task async for task in queue.tasks("complete")]
    made = spans.one("process kind").get_span_context()
    assert made is not None
    trace_id, span_id = f"{made.trace_id:032x}", f"{made.span_id:016x}"
    found = task.result.split("-")[1:3] if work == "command" else task.result
    assert found == [trace_id, span_id]


async def test_an_envelope_needs_an_envelope_and_damage_is_refused(open_queue: Opener) -> None:
    queue = await open_queue("jobs", codec="cloudevents")
    with pytest.raises(TypeError, match=r"must be an Envelope, not bytes: put Envelope\(item\)"):
        await queue.put(b"bare")
    with pytest.raises(TypeError, match="an envelope cannot hold an envelope"):
        CloudEventsCodec("cloudevents")
    with pytest.raises(TypeError, match="observer must have a method observing"):
        Tracing(observer=object())  # type: ignore[arg-type]
    made = CloudEventsCodec("text")
    assert b'"data":"\xc3\xa9"' in made.encode(Envelope("é"))
    assert made.decode(made.encode(Envelope("é"))).data == "é"
    assert made.decode(made.encode(Envelope(None))).data is None
    given = CloudEventsCodec("msgpack").encode(Envelope([1]))
    assert CloudEventsCodec("msgpack").decode(given).headers["datacontenttype"] == "application/msgpack"
    with pytest.raises(ValueError, match="not a JSON object"):
        made.decode(b"[]")
