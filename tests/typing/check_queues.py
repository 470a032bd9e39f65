"""What users' type checkers see. mypy checks this file; nothing runs it."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypedDict, assert_type

import fakeredis
import pydantic
import redis.asyncio

from apressure import (
    AsyncQueue,
    Client,
    Consumer,
    DeadLetter,
    Delivery,
    EventDelivery,
    EventQueue,
    Failure,
    FileDelivery,
    FileQueue,
    FileQueueStatistics,
    Many,
    MessagePage,
    Piped,
    Producer,
    PydanticCodec,
    QueueClosedError,
    QueueFullError,
    QueueInUseError,
    QueueStatistics,
    RemoteEventQueue,
    Requeued,
    RoleStatistics,
    Served,
    TaskClient,
    TaskQueue,
    TypedCodec,
    open_queue,
    pipe,
    protocols,
    recovery,
    serve,
    sync,
)
from apressure.exceptions import Role
from apressure.protocols import Destination, Source
from apressure.tasks import Processor, Task, TaskDelivery
from apressure.telemetry import Metrics
from apressure.testing import MemoryQueue, MemoryServer


@dataclasses.dataclass
class Order:
    number: int


class Address(TypedDict):
    city: str


class Invoice(pydantic.BaseModel):
    number: int


class Hexadecimal:
    """A codec as users write it."""

    def encode(self, item: int, /) -> bytes:
        return b"%x" % item

    def decode(self, data: bytes, /) -> int:
        return int(data, 16)


def the_codec_decides_what_items_are(client: Client) -> None:
    assert_type(AsyncQueue("q"), AsyncQueue[bytes])
    assert_type(AsyncQueue("q", codec=None), AsyncQueue[bytes])
    assert_type(AsyncQueue("q", codec="raw", url="redis://h"), AsyncQueue[bytes])
    assert_type(AsyncQueue("q", codec="text", client=client), AsyncQueue[str])
    assert_type(AsyncQueue("q", codec="json"), AsyncQueue[Any])
    assert_type(AsyncQueue("q", codec="msgpack"), AsyncQueue[Any])
    assert_type(AsyncQueue("q", codec=Order), AsyncQueue[Order])
    assert_type(AsyncQueue("q", codec=Address), AsyncQueue[Address])
    assert_type(AsyncQueue("q", codec=TypedCodec(Order, "msgpack")), AsyncQueue[Order])
    assert_type(AsyncQueue("q", codec=Invoice), AsyncQueue[Invoice])
    assert_type(AsyncQueue("q", codec=PydanticCodec(Invoice)), AsyncQueue[Invoice])
    assert_type(AsyncQueue("q", codec=PydanticCodec(list[Invoice])), AsyncQueue[list[Invoice]])
    assert_type(AsyncQueue("q", codec=Hexadecimal()), AsyncQueue[int])
    assert_type(AsyncQueue("q", codec=Order, max_attempts=3, dead_letters="failed"), AsyncQueue[Order])


async def an_address_leaves_the_kind_open(address: str, client: Client) -> None:
    async def handle(item: str) -> str:
        return item

    assert_type(open_queue(address), AsyncQueue[bytes] | EventQueue[bytes] | FileQueue[bytes] | TaskQueue[Any])
    assert_type(
        open_queue(address, codec="raw", client=client),
        AsyncQueue[bytes] | EventQueue[bytes] | FileQueue[bytes] | TaskQueue[bytes],
    )
    assert_type(
        open_queue(address, codec="json", bound=3), AsyncQueue[Any] | EventQueue[Any] | FileQueue[Any] | TaskQueue[Any]
    )
    open_queue(address, maxattempts=3)  # type: ignore[call-overload]
    async with open_queue(address, codec="text", url="redis://h", max_attempts=3) as queue:
        assert_type(queue, AsyncQueue[str] | EventQueue[str] | FileQueue[str] | TaskQueue[str])
        destination: Destination[str] = queue
        source: Source[str] = queue
        await serve(handle, queue)
        await pipe(source, handle, destination)
        await queue.create(bound=5)
        await queue.put("text")
        await queue.put(b"bytes")  # type: ignore[arg-type]
        if isinstance(queue, AsyncQueue):
            await queue.put("text", force=True)
        if isinstance(queue, EventQueue):
            assert_type(await queue.put("text", id="1"), str)
    async with open_queue(address, codec=Order) as typed:
        await typed.put(Order(1))


async def bytes_go_in_and_come_out() -> None:
    async with AsyncQueue("q", url="redis://h", max_connections=3) as queue:
        assert_type(queue, AsyncQueue[bytes])
        assert_type(await queue.create(bound=5, exist_ok=True), bool)
        assert_type(await queue.put_many([b"a"]), int)
        assert_type(await queue.put_many([b"a"], deadline=1), int)
        assert_type(await queue.get(deadline=0.5), bytes)
        assert_type(await queue.get(timeout=1), bytes)
        assert_type(await queue.get_nowait(), bytes)
        assert_type(await queue.get_many(5), list[bytes])
        assert_type(await queue.peek(), bytes)
        assert_type(await queue.peek_newest(), bytes)
        assert_type(await queue.browse("in_flight", limit=5), MessagePage[bytes])
        assert_type((await queue.browse()).messages[0].item, bytes | None)
        await queue.browse("nowhere")  # type: ignore[arg-type]
        await queue.put("text")  # type: ignore[arg-type]
        await queue.put_many(["text"])  # type: ignore[list-item]
        async for item in queue:
            assert_type(item, bytes)


async def text_goes_in_and_comes_out() -> None:
    async with AsyncQueue("q", codec="text") as queue:
        await queue.put("text")
        await queue.put_nowait(b"bytes")  # type: ignore[arg-type]
        assert_type(await queue.get(), str)
        async for item in queue:
            assert_type(item, str)


async def orders_go_in_and_come_out(queue: AsyncQueue[Order]) -> None:
    async def generate() -> AsyncIterator[Order]:
        yield Order(1)

    async with queue.producer(close=False, exclusive=True) as producer:
        assert_type(producer, Producer[Order])
        await producer.put(Order(1))
        await producer.put(5)  # type: ignore[arg-type]
        assert_type(await producer.put_many(generate()), int)
    delivery = await queue.receive(lease=5)
    assert_type(delivery, Delivery[Order])
    assert_type(delivery.item, Order)
    assert_type(delivery.raw, bytes)
    assert_type(delivery.id, str)
    assert_type(delivery.attempts, int)
    assert_type(delivery.redelivered, bool)
    await delivery.extend(10)
    await delivery.ack()
    assert_type(await queue.receive_many(5, timeout=1, lease=None), list[Delivery[Order]])
    assert_type(await queue.receive_many(5, deadline=1), list[Delivery[Order]])
    await queue.receive_many()  # type: ignore[call-arg]
    source: Source[Order] = queue
    destination: Destination[Order] = queue
    assert_type(source.consumer("manual", lease=None), protocols.Consumer[protocols.Delivery[Order]])
    assert_type(await destination.put_many([Order(1)]), int)


async def the_consumer_iterates_items(queue: AsyncQueue[Order]) -> None:
    async with queue.consumer(delete=True) as consumer:
        async for item in consumer:
            assert_type(item, Order)
        assert_type(consumer.attempts, int)
        assert_type(consumer.redelivered, bool)


async def the_manual_consumer_iterates_deliveries(queue: AsyncQueue[Order]) -> None:
    async with queue.consumer(ack="manual") as consumer:
        async for delivery in consumer:
            assert_type(delivery, Delivery[Order])
    queue.consumer(ack="never")  # type: ignore[call-overload]


async def questions_have_typed_answers(queue: AsyncQueue[bytes], client: Client) -> None:
    assert_type(await queue.exists(), bool)
    assert_type(await queue.purge(), int)
    assert_type(queue.opened, bool)
    assert_type(await queue.qsize(), int)
    assert_type(await queue.bound(), int)
    assert_type(await queue.closed(), bool)
    assert_type(await queue.unblock(), int)
    assert_type(queue.max_attempts, int | None)
    assert_type(queue.dead_letter_queue, str | None)
    assert_type(await queue.requeue(max_items=5, timeout=1, source="failed"), Requeued)
    assert_type(await queue.requeue(ids=["a"]), Requeued)
    assert_type((await queue.requeue(ids=["a"])).not_found, tuple[str, ...])
    (letter,) = await queue.dead_letters()
    assert_type(letter, DeadLetter[bytes])
    assert_type(letter.item, bytes)
    assert_type(letter.error, Failure | None)
    statistics = await queue.statistics()
    assert_type(statistics, QueueStatistics)
    assert_type(statistics.producer, RoleStatistics)
    assert_type(statistics.producer.holder, str | None)
    assert_type(queue.name, str)
    assert_type(queue.prefix, str)
    assert_type(queue.client, Client)
    assert_type(client.id, str)
    assert_type(await client.queues(), list[str])


async def options_are_checked() -> None:
    AsyncQueue("q", hots="h")  # type: ignore[call-overload]
    AsyncQueue("q", port="6379")  # type: ignore[call-overload]
    Client(hots="h")  # type: ignore[call-arg]
    Client("redis://h", db=1, prefix="p", client_id="me", scripting=False)
    Client(redis=redis.asyncio.Redis())
    AsyncQueue("q", redis=fakeredis.FakeAsyncRedis())


async def errors_have_typed_attributes(queue: AsyncQueue[bytes]) -> None:
    try:
        await queue.put(b"x", timeout=1)
    except QueueFullError as full:
        assert_type(full.accepted, int)
        twin: asyncio.QueueFull = full
        late: TimeoutError = full
        print(twin, late)
    except QueueInUseError as used:
        assert_type(used.role, Role)
        assert_type(used.holder, str | None)
    except QueueClosedError as closed:
        assert_type(closed.name, str)
        assert_type(closed.accepted, int)


async def services_have_typed_handlers(queue: AsyncQueue[Order]) -> None:
    async def handle(item: Order) -> None: ...

    async def handle_delivery(delivery: Delivery[Order]) -> int:
        return delivery.item.number

    assert_type(await serve(handle, queue, concurrency=8, signals=()), Served)
    assert_type(await serve(handle_delivery, queue, deliveries=True, shutdown_timeout=0), Served)
    await serve(
        handle, queue, on_error=lambda delivery, error: print(delivery.item.number, error), create=True, bound=5
    )
    await serve(handle_delivery, queue)  # type: ignore[arg-type]
    await serve(handle, queue, deliveries=True)  # type: ignore[call-overload]

    async def handle_batch(items: list[Order]) -> None: ...

    async def handle_deliveries(deliveries: list[Delivery[Order]]) -> None: ...

    def handle_blocking(item: Order) -> None: ...

    await serve(handle_blocking, queue, executor=ThreadPoolExecutor(), rate=5)
    await serve(handle_blocking, queue)  # type: ignore[arg-type]
    await serve(handle, queue, key=lambda order: order.number)
    await serve(handle_batch, queue, batch=10, linger=0.1)
    await serve(handle_deliveries, queue, batch=10, deliveries=True)
    await serve(handle_batch, queue)  # type: ignore[arg-type]
    await serve(handle, queue, batch=10)  # type: ignore[arg-type]
    await serve(handle, queue, observer=Metrics(queue, port=0, interval=1))
    await serve(handle, queue, metrics_port=9100, metrics_host="::1")
    await serve(handle, queue, observer=print)  # type: ignore[call-overload]
    served = await serve(handle, queue)
    assert_type(served.handled, int)
    assert_type(served.signal, signal.Signals | None)


async def recovery_is_typed(queue: AsyncQueue[Order], client: Client) -> None:
    report = await recovery.examine(queue, patience=0.5)
    assert_type(report, recovery.Report)
    assert_type(report.faults, tuple[recovery.Finding, ...])
    for finding in report.findings:
        assert_type(finding.role, Role | None)
        if finding.kind == "nothing":  # type: ignore[comparison-overlap]
            return
    repaired = await recovery.repair(queue, holder="web-1:5")
    assert_type(repaired.done, tuple[recovery.Action, ...])
    assert_type(await recovery.find(client), list[str])
    healing: Coroutine[object, object, NoReturn] = recovery.watch(client, interval=5, on_repair=print)
    healing.close()


async def stages_are_typed(orders: AsyncQueue[Order], texts: FileQueue[str], files: FileQueue[Order]) -> None:
    async def one(order: Order) -> str | None:
        return str(order)

    async def several(order: Order) -> Many[str]:
        return Many([str(order)])

    async def each(order: Order) -> AsyncIterator[str]:
        yield str(order)

    async def batch(some: list[Order]) -> list[str]:
        return [str(order) for order in some]

    done = await pipe(orders, one, texts, concurrency=8, close=True)
    assert_type(done, Piped)
    assert_type(done.put, int)
    await pipe(files, several, texts)
    await pipe(files, each, texts)
    await pipe(orders, batch, texts, batch=100)
    await pipe(orders, one, texts, shared=True, observer=Metrics())
    await pipe(orders, batch, texts)  # type: ignore[arg-type]
    await pipe(orders, one, files)  # type: ignore[arg-type]


def consumers_have_names(consumer: Consumer[Order]) -> None:
    assert_type(consumer.attempts, int)


async def queues_in_directories() -> None:
    assert_type(FileQueue("q", codec="text"), FileQueue[str])
    assert_type(FileQueue("q", codec="json"), FileQueue[Any])
    assert_type(FileQueue("q", codec=Order, bound=5), FileQueue[Order])
    assert_type(FileQueue("q", codec=Invoice), FileQueue[Invoice])
    FileQueue("q", buond=5)  # type: ignore[call-overload]
    assert_type(EventQueue("q", codec="text"), EventQueue[str])
    assert_type(EventQueue("q", codec=Order, max_attempts=5, url="redis://"), EventQueue[Order])
    EventQueue("q", dead_letters="x")  # type: ignore[call-overload]
    assert_type(MemoryQueue("q", codec="text"), MemoryQueue[str])
    assert_type(MemoryQueue("q", codec=Order, max_attempts=5, server=MemoryServer()), MemoryQueue[Order])
    assert_type(await MemoryQueue("q").get(), bytes)
    MemoryQueue("q", bound=5)  # type: ignore[call-overload]
    async with EventQueue("q") as events:
        assert_type(events, EventQueue[bytes])
        assert_type(await events.put(b"1", id="a", front=True), str)
        assert_type(await events.receive(), EventDelivery[bytes])
        assert_type(await events.get_many(3), list[bytes])
        async with events.consumer() as items, events.consumer("manual") as deliveries:
            assert_type(await anext(items), bytes)
            assert_type((await anext(deliveries)).item, bytes)
    assert_type(TaskQueue("q"), TaskQueue[Any])
    assert_type(TaskQueue("q", codec="raw"), TaskQueue[bytes])
    assert_type(TaskQueue("q", codec=Order, max_attempts=5, url="redis://"), TaskQueue[Order])
    TaskQueue("q", on_orphan="ignore")  # type: ignore[call-overload]
    async with TaskClient("redis://") as client, TaskQueue("q", client=client, codec=Order) as tasks:
        assert_type(await tasks.enqueue(Order(1)), str)
        assert_type(await tasks.receive(), TaskDelivery[Order])
        assert_type(await client.task("id"), Task)
        async for task in client.listener("q"):
            assert_type(task, Task)
            assert_type(client.processor(task), Processor)
    work: Source[bytes] = TaskQueue("q", codec="raw")
    results: Destination[bytes] = TaskQueue("q", codec="raw")
    assert work.name == results.name
    source: Source[bytes] = MemoryQueue("q")
    destination: Destination[bytes] = MemoryQueue("q")
    source = EventQueue("q")
    destination = EventQueue("q")
    assert source.name == destination.name
    async with FileQueue("q", directory="spool", unit="us", fsync=False) as queue:
        assert_type(queue, FileQueue[bytes])
        assert_type(await queue.create(bound=5, exist_ok=True), bool)
        assert_type(await queue.put(b"a", timeout=1), str)
        assert_type(await queue.put_nowait(b"a"), str)
        assert_type(await queue.put_many([b"a"]), int)
        await queue.put("text")  # type: ignore[arg-type]
        message = await queue.receive(timeout=5, lease=1)
        assert_type(message, FileDelivery[bytes])
        assert_type(message.item, bytes)
        assert_type(message.attempts, int)
        assert_type(await queue.receive_many(5), list[FileDelivery[bytes]])
        assert_type(await queue.ack(message.id), bool)
        assert_type(await queue.statistics(), FileQueueStatistics)
        assert_type(await queue.peek(), bytes)
        assert_type(queue.dead_letter_queue, str | None)
        async with queue.consumer() as consumer:
            async for item in consumer:
                assert_type(item, bytes)
        async with queue.consumer("manual") as manual:
            async for each in manual:
                assert_type(each, FileDelivery[bytes])
        async with queue.producer() as producer:
            assert_type(await producer.put_many([b"a"]), int)


def a_queue_in_a_directory_is_a_source_and_a_destination(files: FileQueue[Order]) -> None:
    source: Source[Order] = files
    destination: Destination[Order] = files
    print(source, destination)


async def okq_servers() -> None:
    raw = EventQueue("orders", url="okq://host")
    assert_type(await raw.get(), bytes)
    typed = RemoteEventQueue("orders", url="okq://host", codec=Order)
    assert_type(await typed.receive(), EventDelivery[Order])
    async with typed.consumer() as consumer:
        async for item in consumer:
            assert_type(item, Order)
    source: Source[Order] = typed
    assert_type(await source.exists(), bool)
    await raw.close(timeout=1.0, deadline=5.0)
    assert_type(await EventQueue("orders", url="okq://host").get(), bytes)


def without_asyncio(
    orders: AsyncQueue[bytes], texts: FileQueue[str], events: EventQueue[str], tasks: TaskQueue[str]
) -> None:
    with sync.Queue(orders) as queue:
        assert_type(queue, sync.BlockingQueue[bytes])
        assert_type(queue.receive(deadline=5.0).item, bytes)
        assert_type(queue.get(), bytes)
        assert_type(queue.get_many(5, timeout=1.0), list[bytes])
        assert_type(list(queue), list[bytes])
        assert_type(queue.statistics(), QueueStatistics)
        queue.put("text")  # type: ignore[arg-type]
        queue.put(b"bytes", timout=1.0)  # type: ignore[call-arg]
        with queue.producer(exclusive=True) as producer:
            producer.put("text")  # type: ignore[arg-type]
    with sync.Queue(events) as clicks:
        assert_type(clicks.put("text", id="1"), str)
        with clicks.consumer("manual") as deliveries:
            for delivery in deliveries:
                assert_type(delivery, sync.Delivery[str])
    with sync.Queue(texts) as files:
        assert_type(files.get(), str)
        assert_type(files.receive(), sync.BlockingFileDelivery[str])
    with sync.Queue(tasks) as work:
        assert_type(work.receive(), sync.BlockingTaskDelivery[str])
        assert_type(next(work.tasks("pending")).status, str | None)
    for each in (sync.Queue(texts), sync.Queue(events), sync.Queue(tasks)):
        with each as other, other.consumer(shared=True) as items:
            for item in items:
                assert_type(item, str)


def a_service_without_asyncio(orders: AsyncQueue[bytes], texts: FileQueue[str], events: EventQueue[str]) -> None:
    def handle(item: str) -> None: ...

    def handle_list(items: list[str]) -> None: ...

    assert_type(sync.serve(handle, texts, concurrency=4, lease=5.0), Served)
    assert_type(sync.serve(handle, [events, events]), Served)
    assert_type(sync.serve(handle_list, events, batch=10, linger=0.5), Served)
    sync.serve(handle, orders)  # type: ignore[arg-type]
    sync.serve(handle, texts, batch=10)  # type: ignore[arg-type]
    sync.serve(handle, texts, concurency=4)  # type: ignore[call-overload]
    sync.serve(handle, sync.Queue(texts))  # type: ignore[call-overload]
