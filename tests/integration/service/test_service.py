"""`serve`: concurrent handlers, retries, signals, and where messages are after each kind of end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import redis

from apressure import (
    AsyncQueue,
    Backoff,
    ClientClosedError,
    Delivery,
    Durability,
    QueueDoesNotExistError,
    Served,
    ServerError,
    ServerUnavailableError,
    serve,
)
from apressure.embedded import EmbeddedServer
from tests import processes
from tests.chaos.support import no_complaints
from tests.integration.commands import environment
from tests.integration.conftest import PATIENCE, Opener, cancelled, eventually, everything, fails, in_time, open_two
from tests.servers import SERVERS

Handler = Callable[[Any], Any]


class Work:
    """A handler that records its items, and waits for items that a test holds back."""

    def __init__(self, *held: bytes) -> None:
        self.held = set(held)
        self.fails: dict[bytes, list[BaseException]] = {}
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.most = 0
        self._go = asyncio.Condition()

    async def __call__(self, item: bytes) -> None:
        self.begun.append(item)
        self.most = max(self.most, len(self.begun) - len(self.ended) - len(self.cancelled))
        try:
            async with self._go:
                await self._go.wait_for(lambda: item not in self.held)
        except asyncio.CancelledError:
            for _ in range(20):  # a clean-up of several steps, in which nothing disturbs it
                await asyncio.sleep(0)
            self.cancelled.append(item)
            raise
        self.ended.append(item)
        if self.fails.get(item):
            raise self.fails[item].pop(0)

    async def let_go(self, *items: bytes) -> None:
        async with self._go:
            self.held.difference_update(items)
            self._go.notify_all()


class Manual:
    """A handler of deliveries that records them and calls a function of the test."""

    def __init__(self, what: Callable[[Delivery[bytes]], Awaitable[None]]) -> None:
        self.what = what
        self.got: list[tuple[bytes, int]] = []

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        self.got.append((delivery.item, delivery.attempts))
        await self.what(delivery)


@pytest.fixture(autouse=True)
async def _no_complaints() -> AsyncIterator[None]:
    async with no_complaints():
        yield


@contextmanager
def serving(handler: Handler, queue: AsyncQueue[Any], **options: Any) -> Iterator[asyncio.Task[Served]]:
    task = asyncio.ensure_future(serve(handler, queue, **{"signals": (), **options}))
    try:
        yield task
    finally:
        task.cancel()


async def cancel(task: asyncio.Task[Any]) -> None:
    await cancelled(task)


async def attempts(queue: AsyncQueue[bytes]) -> list[tuple[bytes, int]]:
    """Everything in the queue, and how often it has been delivered."""
    found = []
    async with queue.consumer(prefetch=1) as consumer:
        for _ in range(await queue.qsize()):
            item = await in_time(anext(consumer))
            found.append((item, consumer.attempts))
    return found


async def nothing_is_held(queue: AsyncQueue[bytes]) -> None:
    seen = await queue.statistics()
    assert (seen.in_flight, seen.producer.state, seen.consumer.state) == (0, "free", "free")


async def test_it_ends_when_the_queue_is_closed_and_everything_was_handled(open_queue: Opener) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(20)]
    work = Work()
    with serving(work, queue, concurrency=3) as task:
        await queue.put_many(items[:10])
        await eventually(lambda: len(work.ended) == 10)
        assert not task.done()
        await queue.put_many(items[10:])
        await queue.close()
        assert await in_time(task) == Served(handled=20, failed=0)
    assert sorted(work.ended) == sorted(items)
    assert (await queue.statistics()).consumed_messages == 20
    await nothing_is_held(queue)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_handlers_run_than_concurrency_allows(open_queue: Opener, concurrency: int) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(10)]
    work = Work(*items)
    await queue.put_many(items)
    with serving(work, queue, concurrency=concurrency, prefetch=1) as task:
        await eventually(lambda: len(work.begun) == concurrency)
        await queue.exists()  # time for one more
        assert (await queue.statistics()).in_flight == concurrency  # nothing more than the handled items
        await queue.close()
        await work.let_go(*items)
        await in_time(task)
    assert work.most == concurrency


async def test_no_more_messages_are_prefetched_than_asked_for(open_queue: Opener) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(10)]
    work = Work(*items)
    await queue.put_many(items)
    with serving(work, queue, concurrency=2, prefetch=2) as task:
        await eventually(lambda: len(work.begun) == 2)
        await work.let_go(b"0")
        await eventually(lambda: len(work.begun) == 3)
        assert (await queue.statistics()).in_flight in {3, 4}  # the first one's ack is on its way, or there
        await cancel(task)
    assert [item for item, _ in await attempts(queue)] == items[1:]


async def test_acknowledgements_of_several_handlers_arrive_before_it_ends(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % n for n in range(100)])
    await queue.close()
    assert (await in_time(serve(Work(), queue, concurrency=10, signals=()))).handled == 100
    assert db.get("__pressure__:jobs:stats:consumed_messages") == b"100"


async def test_acknowledging_soon_needs_no_waiting_and_happens_once(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1"])
    await queue.close()
    async with queue.consumer("manual") as consumer:
        async for delivery in consumer:
            delivery.ack_soon()
            assert delivery.settled
            with pytest.raises(RuntimeError, match="before"):
                delivery.ack_soon()
    assert (await queue.statistics()).consumed_messages == 2
    await nothing_is_held(queue)


async def test_handlers_that_return_at_once_settle_everything_in_order(open_queue: Opener) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(3000)]
    seen: list[bytes] = []

    async def handle(item: bytes) -> None:
        seen.append(item)

    await queue.put_many(items)
    await queue.close()
    assert await in_time(serve(handle, queue, concurrency=8, signals=())) == Served(handled=3000, failed=0)
    assert seen == items
    assert (await queue.statistics()).consumed_messages == 3000
    await nothing_is_held(queue)


@pytest.mark.parametrize("options", [{}, {"batch": 10}], ids=["items", "batches"])
async def test_services_share_a_queue_and_what_fails_comes_again(open_queue: Opener, options: dict[str, Any]) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(300)]
    failed: set[bytes] = set()
    done: list[bytes] = []

    async def handle(given: bytes | list[bytes]) -> None:
        some = given if isinstance(given, list) else [given]
        await asyncio.sleep(0)
        if bad := {item for item in some if item.endswith(b"7")} - failed:
            failed.update(bad)
            raise ValueError
        done.extend(some)

    await queue.put_many(items)
    await queue.close()
    objects = [await open_queue(create=False) for _ in range(3)]
    services = (
        serve(handle, each, concurrency=4, shared=True, retry=Backoff(0.01), signals=(), **options) for each in objects
    )
    served = await in_time(asyncio.gather(*services))
    assert sum(each.handled for each in served) == 300
    assert sum(each.failed for each in served) >= 30
    assert sorted(done) == sorted(items)
    await nothing_is_held(queue)


async def test_a_failed_item_is_tried_again_while_the_others_go_on(
    open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    work = Work()
    work.fails[b"secret"] = [ValueError("first"), ValueError("second")]
    await queue.put_many([b"secret", b"1", b"2"])
    await queue.close()
    with caplog.at_level(logging.ERROR, "apressure"):
        assert await in_time(serve(work, queue, retry=Backoff(0.2), signals=())) == Served(handled=3, failed=2)
    assert work.ended == [b"secret", b"1", b"2", b"secret", b"secret"]
    first, second = caplog.records
    assert (first.name, first.levelname) == ("apressure", "ERROR")
    assert "attempt 1" in first.message
    assert "attempt 2" in second.message
    assert first.exc_info is not None
    assert str(first.exc_info[1]) == "first"
    assert "secret" not in first.message + second.message
    await nothing_is_held(queue)


async def test_a_failure_names_the_delivery_and_its_attempts(
    open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue(max_attempts=2)
    seen: list[str] = []

    async def handle(delivery: Delivery[bytes]) -> None:
        seen.append(delivery.id)
        raise ValueError

    await queue.put(b"bad")
    await queue.close()
    with caplog.at_level(logging.ERROR, "apressure"):
        done = await in_time(serve(handle, queue, deliveries=True, retry=Backoff(0.02), signals=()))
    assert done == Served(handled=0, failed=2)
    assert len(set(seen)) == 2
    for number, (record, delivery) in enumerate(zip(caplog.records, seen, strict=True), 1):
        assert f"delivery {delivery} of the queue 'jobs' failed at attempt {number} of 2" in record.message
        extra = vars(record)
        assert (extra["queue"], extra["delivery"]) == ("jobs", delivery)
        assert (extra["attempts"], extra["max_attempts"]) == (number, 2)
    assert "it goes back in" in caplog.records[0].message
    assert caplog.records[1].message.endswith("it goes to the dead letters")
    await AsyncQueue("jobs:dead", client=queue.client).delete()


@pytest.mark.leaves_keys("*jobs:dead*")
@pytest.mark.parametrize(("most", "where"), [(1, "it goes to the dead letters"), (2, "it goes back in")])
async def test_a_failure_at_the_end_of_the_service_says_where_the_message_goes(
    open_queue: Opener, caplog: pytest.LogCaptureFixture, most: int, where: str
) -> None:
    queue = await open_queue(max_attempts=most)
    work = Work(b"0")
    work.fails[b"0"] = [ValueError()]
    await queue.put(b"0")
    with caplog.at_level(logging.ERROR, "apressure"), serving(work, queue, signals=(signal.SIGTERM,)) as task:
        await eventually(lambda: work.begun)
        signal.raise_signal(signal.SIGTERM)
        await work.let_go(b"0")
        await in_time(task)
    assert f": {where}" in caplog.records[0].message


async def test_a_handler_that_overruns_is_cancelled_and_its_item_comes_again(open_queue: Opener) -> None:
    queue = await open_queue()
    work = Work(b"0")
    await queue.put_many([b"0", b"1"])
    await queue.close()
    with serving(work, queue, concurrency=2, timeout=0.2, retry=Backoff(0.01)) as task:
        await eventually(lambda: work.cancelled == [b"0"])
        await work.let_go(b"0")
        served = await in_time(task)
    assert served.handled == 2
    assert served.failed == len(work.cancelled)
    assert sorted(work.ended) == [b"0", b"1"]
    await nothing_is_held(queue)


async def test_the_first_start_creates_the_queue(open_queue: Opener, url: str) -> None:
    queue = await open_queue(create=False)
    work = Work()
    for bound, _ in enumerate(range(2), 5):
        with serving(work, AsyncQueue("jobs", url=url), create=True, bound=bound):
            async with asyncio.timeout(PATIENCE):
                while not await queue.exists():
                    await asyncio.sleep(0.005)
            await queue.put(b"%d" % bound)
            await eventually(lambda: len(work.ended) == bound - 4)  # noqa: B023
    assert await queue.bound() == 5


async def test_a_batch_waits_for_more_items(open_queue: Opener) -> None:
    queue = await open_queue()
    batches: list[list[bytes]] = []

    async def handle(items: list[bytes]) -> None:
        batches.append(items)

    with serving(handle, queue, batch=3, linger=60) as task:
        for item in (b"0", b"1", b"2", b"3"):
            await queue.put(item)
        await eventually(lambda: batches)
        await queue.close()
        assert await in_time(task) == Served(handled=4, failed=0)
    assert batches == [[b"0", b"1", b"2"], [b"3"]]
    await nothing_is_held(queue)


async def test_a_signal_has_a_batch_that_is_being_gathered_handled(open_queue: Opener) -> None:
    queue = await open_queue()
    batches: list[list[bytes]] = []

    async def handle(items: list[bytes]) -> None:
        batches.append(items)

    await queue.put_many([b"0", b"1"])
    with serving(handle, queue, batch=3, linger=60, prefetch=2, signals=(signal.SIGTERM,)) as task:
        async with asyncio.timeout(PATIENCE):
            while (await queue.statistics()).in_flight < 2:
                await asyncio.sleep(0.005)
        for _ in range(3):
            await queue.exists()  # time for the answer that brings them to be read
        signal.raise_signal(signal.SIGTERM)
        assert await in_time(task) == Served(handled=2, failed=0, signal=signal.SIGTERM)
    assert batches == [[b"0", b"1"]]
    await nothing_is_held(queue)


async def test_a_cancelled_batch_goes_back_in_order_without_what_it_has_settled(open_queue: Opener) -> None:
    queue = await open_queue()
    begun = asyncio.Event()

    async def handle(deliveries: list[Delivery[bytes]]) -> None:
        await deliveries[1].ack()
        begun.set()
        await asyncio.Event().wait()

    await queue.put_many([b"0", b"1", b"2"])
    with serving(handle, queue, batch=3, linger=60, deliveries=True) as task:
        await in_time(begun.wait())
        await cancel(task)
    assert await attempts(queue) == [(b"0", 2), (b"2", 2)]


async def test_a_failed_batch_comes_again_in_order(open_queue: Opener) -> None:
    queue = await open_queue()
    items = [b"%d" % n for n in range(5)]
    batches: list[list[bytes]] = []

    async def handle(got: list[bytes]) -> None:
        batches.append(got)
        if len(got) > 1:
            raise ValueError

    await queue.put_many(items)
    await queue.close()
    served = await in_time(serve(handle, queue, batch=5, linger=60, retry=Backoff(0.01), signals=()))
    assert served == Served(handled=5, failed=5)
    assert batches == [items, *([item] for item in items)]


@pytest.mark.parametrize("shutdown_timeout", [0, 60])
async def test_a_signal_waits_for_a_thread_and_gives_its_item_back_when_it_takes_too_long(
    open_queue: Opener, shutdown_timeout: float
) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1"])
    begun, go = threading.Event(), threading.Event()

    def handle(item: bytes) -> None:
        begun.set()
        go.wait(PATIENCE)

    with ThreadPoolExecutor(1) as executor:
        options = {"signals": (signal.SIGTERM,), "shutdown_timeout": shutdown_timeout}
        with serving(handle, queue, executor=executor, **options) as task:
            await eventually(begun.is_set)
            signal.raise_signal(signal.SIGTERM)
            if shutdown_timeout:
                for _ in range(3):
                    await queue.exists()
                assert not task.done()
                go.set()
            served = await in_time(task)
            go.set()
    assert served == Served(handled=int(bool(shutdown_timeout)), failed=0, signal=signal.SIGTERM)
    assert await attempts(queue) == ([(b"1", 1)] if shutdown_timeout else [(b"0", 2), (b"1", 1)])


@pytest.mark.parametrize("signum", [signal.SIGTERM, None])
async def test_a_signal_or_a_stop_event_ends_a_service_that_waits_for_its_rate(
    open_queue: Opener, signum: signal.Signals | None
) -> None:
    queue, stop = await open_queue(), asyncio.Event()
    work = Work()
    await queue.put_many([b"0", b"1", b"2"])
    with serving(work, queue, rate=0.001, prefetch=3, signals=(signal.SIGTERM,), stop=stop) as task:
        await eventually(lambda: work.ended)
        if signum is None:
            stop.set()
        else:
            signal.raise_signal(signum)
        assert await in_time(task) == Served(handled=1, failed=0, signal=signum)
    assert await attempts(queue) == [(b"1", 1), (b"2", 1)]


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.leaves_keys("*jobs:dead*")
async def test_a_failed_item_holds_up_its_key_only(open_queue: Opener, most: int | None) -> None:
    queue = await open_queue(max_attempts=most)
    items = [b"%s%d" % (key, n) for n in range(4) for key in (b"a", b"b", b"c")]
    work = Work()
    work.fails = {b"a1": [ValueError()] * 2, b"b0": [ValueError()] * (1 if most is None else 3)}
    await queue.put_many(items)
    await queue.close()
    served = await in_time(
        serve(work, queue, key=lambda item: item[:1], concurrency=2, retry=Backoff(0.02), signals=())
    )
    lost = int(most is not None)  # a dead letter: its key goes on
    assert served == Served(handled=12 - lost, failed=3 + 2 * lost)
    by_key = {key: [item for item in work.ended if item[:1] == key] for key in (b"a", b"b", b"c")}
    assert by_key[b"a"] == [b"a0", b"a1", b"a1", b"a1", b"a2", b"a3"]
    assert by_key[b"b"] == [b"b0"] * (2 + lost) + [b"b1", b"b2", b"b3"]
    assert by_key[b"c"] == [b"c0", b"c1", b"c2", b"c3"]


@pytest.mark.parametrize("how", ["cancelled", "signal"])
async def test_items_that_wait_for_their_key_go_back_in_order(open_queue: Opener, how: str) -> None:
    queue = await open_queue()
    items = [b"a0", b"a1", b"b0", b"a2"]
    work = Work(b"a0")
    await queue.put_many(items)
    options = {"key": lambda item: item[:1], "concurrency": 2, "shutdown_timeout": 0}
    with serving(work, queue, signals=(signal.SIGTERM,), **options) as task:
        await eventually(lambda: work.ended == [b"b0"])
        if how == "signal":
            signal.raise_signal(signal.SIGTERM)
            await in_time(task)
        else:
            await cancel(task)
    assert [item for item, _ in await attempts(queue)] == [b"a0", b"a1", b"a2"]
    assert work.begun == [b"a0", b"b0"]


async def test_on_error_may_acknowledge_what_cannot_be_handled(open_queue: Opener) -> None:
    queue = await open_queue(codec="json")
    raw = AsyncQueue("jobs", client=queue.client)
    await raw.put_many([b"{", b"1"])
    await queue.close()
    told: list[bytes] = []

    async def drop(delivery: Delivery[Any], error: BaseException) -> None:
        told.append(delivery.raw)
        await delivery.ack()

    served = await in_time(serve(Work(), queue, on_error=drop, retry=Backoff(60), signals=()))
    assert served == Served(handled=1, failed=1)
    assert told == [b"{"]
    await raw.aclose()
    await nothing_is_held(queue)


async def test_in_order_no_item_overtakes_another(open_queue: Opener) -> None:
    queue = await open_queue()
    work = Work()
    work.fails[b"0"] = [ValueError("once"), ValueError("twice")]
    await queue.put_many([b"0", b"1", b"2"])
    await queue.close()
    await in_time(serve(work, queue, retry=Backoff(0.05), ordered=True, signals=()))
    assert work.ended == [b"0", b"0", b"0", b"1", b"2"]


@pytest.mark.parametrize("how", ["cancelled", "signal"])
async def test_items_that_wait_for_a_retry_are_kept_and_the_others_go_back_in_order(
    open_queue: Opener, how: str
) -> None:
    queue = await open_queue()
    items = [b"0", b"1", b"2", b"3"]
    work = Work(b"2")
    work.fails = {b"0": [ValueError("no")], b"1": [ValueError("no")]}
    await queue.put_many(items)
    with serving(work, queue, retry=Backoff(60), shutdown_timeout=0, signals=(signal.SIGTERM,)) as task:
        await eventually(lambda: work.begun == items[:3])
        statistics = await queue.statistics()
        assert (statistics.in_flight, statistics.delayed) == (1, 2)
        if how == "signal":
            signal.raise_signal(signal.SIGTERM)
            await in_time(task)
        else:
            await cancel(task)
    assert work.cancelled == [b"2"]
    assert await attempts(queue) == [(b"2", 2), (b"3", 1)]
    assert (await queue.statistics()).delayed == 2


async def test_a_handler_that_settles_its_delivery_itself_is_respected(open_queue: Opener) -> None:
    queue = await open_queue()

    async def settle(delivery: Delivery[bytes]) -> None:
        if delivery.item == b"ack and fail":
            await delivery.ack()
            raise ValueError("too late to matter")
        if delivery.item == b"nack" and not delivery.redelivered:
            await delivery.nack()

    work = Manual(settle)
    await queue.put_many([b"ack and fail", b"nack", b"left to serve"])
    await queue.close()
    served = await in_time(serve(work, queue, deliveries=True, signals=()))
    assert sorted(work.got) == [(b"ack and fail", 1), (b"left to serve", 1), (b"nack", 1), (b"nack", 2)]
    assert served == Served(handled=3, failed=1)
    assert (await queue.statistics()).consumed_messages == 3


async def test_a_closed_queue_is_not_drained_while_an_item_may_come_back(open_queue: Opener) -> None:
    queue = await open_queue()
    work = Work(b"late")
    work.fails[b"late"] = [ValueError("at the very end")]
    await queue.put_many([b"early", b"late"])
    await queue.close()
    with serving(work, queue, concurrency=2, retry=Backoff(0)) as task:
        await eventually(lambda: len(work.begun) == 2)
        await work.let_go(b"late")
        assert await in_time(task) == Served(handled=2, failed=1)
    assert work.ended == [b"early", b"late", b"late"]
    assert await queue.qsize() == 0


async def test_an_item_that_cannot_be_decoded_fails_and_the_others_go_on(open_queue: Opener) -> None:
    queue = await open_queue(codec="json")
    raw = AsyncQueue("jobs", client=queue.client)
    await raw.put_many([b"{", b"1"])
    seen: list[Any] = []

    async def handle(item: Any) -> None:
        seen.append(item)

    with serving(handle, queue, retry=Backoff(60)) as task:
        await eventually(lambda: seen == [1])
        await cancel(task)
    assert (await raw.statistics()).delayed == 1
    await raw.aclose()


async def test_a_handler_that_cancels_itself_has_failed(open_queue: Opener) -> None:
    queue = await open_queue()
    work = Work()
    work.fails[b"0"] = [asyncio.CancelledError()]
    await queue.put(b"0")
    await queue.close()
    assert await in_time(serve(work, queue, retry=Backoff(0), signals=())) == Served(handled=1, failed=1)


async def test_an_unused_queue_is_opened_and_closed(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    await queue.close()
    fresh = AsyncQueue("jobs", url=url)
    assert (await in_time(serve(Work(), fresh, signals=()))).handled == 1
    with pytest.raises(ClientClosedError):
        await fresh.exists()
    assert (await in_time(serve(Work(), queue, signals=()))).handled == 0
    assert await queue.exists()


@pytest.mark.parametrize("create", [False, True])  # at the first start only
async def test_a_queue_that_is_missing_or_is_deleted_is_an_error(open_queue: Opener, create: bool) -> None:
    queue = await open_queue(create=False)
    await fails(QueueDoesNotExistError, serve(Work(), queue, signals=()))
    await queue.create()
    await queue.put(b"0")
    work = Work(b"0")
    with serving(work, queue, lease=0.3, create=create) as task:
        await eventually(lambda: work.begun)
        other = AsyncQueue("jobs", client=queue.client)
        deleting = asyncio.ensure_future(other.delete())
        await fails(QueueDoesNotExistError, task)
        await in_time(deleting)
    assert work.cancelled == [b"0"]
    await other.aclose()


async def test_errors_that_are_not_temporary_are_raised(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    work = Work()
    with serving(work, queue) as task:
        await eventually(lambda: work.ended)
        await eventually(lambda: db.get("__pressure__:jobs:stats:consumed_messages") == b"1")
        db.set("__pressure__:jobs:stats:consumed_bytes", "many")
        await queue.put(b"1")
        await fails(ServerError, task, "consumed_bytes")
    db.set("__pressure__:jobs:stats:consumed_bytes", 1)
    await fails(ServerUnavailableError, serve(work, AsyncQueue("jobs", url="redis://127.0.0.1:1"), signals=()))


async def test_cancelling_it_cancels_the_handlers_once_and_gives_everything_back(open_queue: Opener) -> None:
    queue, looker = await open_two(open_queue)
    items = [b"%d" % n for n in range(6)]
    begun: list[bytes] = []
    cleaning: list[bytes] = []
    cleaned = asyncio.Event()

    async def handle(item: bytes) -> None:
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.append(item)
            await cleaned.wait()

    await queue.put_many(items)
    with serving(handle, queue, concurrency=2) as task:
        await eventually(lambda: len(begun) == 2)
        task.cancel()
        await eventually(lambda: len(cleaning) == 2)
        task.cancel()  # once more: handlers are not disturbed by it
        seen = await looker.statistics()
        assert seen.in_flight >= 2  # nobody else gets what a handler still has in its hands
        assert not task.done()
        cleaned.set()
        await fails(asyncio.CancelledError, task)
    assert await attempts(queue) == [(item, 1 + (item in cleaning)) for item in items]


async def test_a_handler_whose_task_group_has_failed_is_cancelled_like_others(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    begun = asyncio.Event()

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    async def handle(item: bytes) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except* ValueError:
            pass
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(serve(handle, queue, signals=()))
    await in_time(begun.wait())
    await cancelled(task)
    assert await queue.qsize() == 1


async def test_the_shutdown_timeout_does_not_cancel_a_handler_twice(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    said: list[str] = []

    async def handle(_: bytes) -> None:
        said.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cleaning")
            await asyncio.sleep(0.3)  # longer than shutdown_timeout
            said.append("cleaned")

    with serving(handle, queue, shutdown_timeout=0.2, signals=(signal.SIGTERM,)) as task:
        await eventually(lambda: said == ["begun"])
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await in_time(task)
    assert said == ["begun", "cleaning", "cleaned"]
    assert await attempts(queue) == [(b"0", 2)]


async def test_a_cancel_scope_ends_it_like_a_cancellation(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1"])
    work = Work(b"0")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: serve(work, queue, signals=()))
            await eventually(lambda: work.begun)
            scope.cancel()
    assert work.cancelled == [b"0"]
    assert await attempts(queue) == [(b"0", 2), (b"1", 1)]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_an_error_that_is_not_an_exception_is_raised_after_everything_is_given_back(
    open_queue: Opener, error: BaseException
) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1", b"2"])
    work = Work(b"1")
    work.fails[b"0"] = [error]
    with pytest.raises(type(error)):
        await serve(work, queue, concurrency=2, prefetch=2, signals=())
    assert await attempts(queue) == [(b"0", 2), (b"1", 2), (b"2", 1)]


def print_it(item: bytes) -> None:
    print(item)


async def test_a_synchronous_handler_is_refused_before_anything_is_taken(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    before = everything(db)
    for handler in (print_it, functools.partial(print_it), lambda item: None):
        with pytest.raises(TypeError, match=r"synchronous.*async def.*asyncio\.to_thread"):
            await in_time(serve(handler, queue, signals=()))  # type: ignore[call-overload]
    assert everything(db) == before
    with pytest.raises(TypeError, match="async function"):
        await serve(None, queue)  # type: ignore[call-overload]


async def test_a_call_that_returns_no_awaitable_gives_the_item_back(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1", b"2"])
    seen: list[bytes] = []
    with pytest.raises(TypeError, match=r"append must be an async function: .* NoneType.*async def"):
        await in_time(serve(seen.append, queue, concurrency=3, signals=()))  # type: ignore[call-overload]
    assert seen == [b"0"]
    assert [item for item, _ in await attempts(queue)] == [b"0", b"1", b"2"]
    assert (await queue.statistics()).consumed_messages == 3  # only `attempts` has acknowledged anything


async def test_anything_that_returns_an_awaitable_is_a_handler(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1"])
    await queue.close()
    work = Work()
    handler = functools.partial(lambda prefix, item: work(prefix + item), b"item ")
    assert (await in_time(serve(handler, queue, signals=()))).handled == 2
    assert work.ended == [b"item 0", b"item 1"]


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0}, {"concurrency": 1.5}, {"concurrency": True}, {"prefetch": 0}, {"retry": 1.0},
        {"shutdown_timeout": -1}, {"lease": 0}, {"ordered": True, "concurrency": 2}, {"ordered": True, "batch": 2},
        {"batch": 0}, {"linger": -1, "batch": 1}, {"timeout": 0}, {"timeout": "1"}, {"bound": -1, "create": True},
    ],
)  # fmt: skip
async def test_invalid_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        await serve(Work(), AsyncQueue("jobs", url="redis://127.0.0.1:1"), **options)


async def test_a_lease_that_is_lost_cancels_the_handlers_and_the_role_is_taken_again(
    open_queue: Opener, db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1", b"2"])
    work = Work(b"0", b"1")
    with serving(work, queue, concurrency=2, lease=0.3) as task:
        await eventually(lambda: len(work.begun) == 2)
        (lease,) = db.keys("apressure:*consumer_lease*")
        with caplog.at_level(logging.WARNING, "apressure"):
            db.hset(lease, "token", "somebody else's")
            db.hset(lease, "deadline", 0)
            await eventually(lambda: len(work.cancelled) == 2)
            await work.let_go(b"0", b"1")
            await queue.close()
            assert (await in_time(task)).handled == 3
    assert sorted(work.ended) == [b"0", b"1", b"2"]
    assert "lost the consumer role" in caplog.text
    assert (await queue.statistics()).consumed_messages == 3


@pytest.mark.parametrize("program", SERVERS)
async def test_a_signal_ends_it_while_the_server_stands_still(
    make_server: Callable[..., EmbeddedServer], program: str
) -> None:
    server = make_server(program)
    settings = {"settle_timeout": 0.2, "response_timeout": 100.0}
    async with AsyncQueue("jobs", url=server.url) as queue:
        await queue.create()
        await queue.put_many([b"0", b"1"])
        work = Work(b"0")
        with serving(
            work, AsyncQueue("jobs", url=server.url, **settings), shutdown_timeout=0, signals=(signal.SIGTERM,)
        ) as task:
            await eventually(lambda: work.begun)
            os.kill(server.pid, signal.SIGSTOP)
            signal.raise_signal(signal.SIGTERM)
            assert (await in_time(task)).signal == signal.SIGTERM
            os.kill(server.pid, signal.SIGCONT)
        assert await in_time(attempts(queue)) == [(b"0", 2), (b"1", 1)]


@pytest.mark.parametrize("program", SERVERS)
async def test_a_server_that_was_away_finds_the_service_again(
    make_server: Callable[..., EmbeddedServer], program: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(program)
    timeouts = {"response_timeout": 0.2, "connect_timeout": 0.2, "retry_timeout": 0.2, "settle_timeout": 0.2}
    async with AsyncQueue("jobs", url=server.url) as queue, AsyncQueue("jobs", url=server.url, **timeouts) as served:
        await queue.create()
        await queue.put_many([b"0", b"1"])
        work = Work(b"0")
        with serving(work, served, lease=0.5) as task, caplog.at_level(logging.WARNING, "apressure"):
            await eventually(lambda: work.begun)
            os.kill(server.pid, signal.SIGSTOP)
            await eventually(lambda: work.cancelled)
            await eventually(lambda: len(caplog.records) >= 2)  # it has tried again in vain
            os.kill(server.pid, signal.SIGCONT)
            await work.let_go(b"0")
            await queue.close()
            assert (await in_time(task)).handled == 2
    assert work.ended == [b"0", b"1"]


async def test_replicas_that_do_not_confirm_are_a_warning(
    open_queue: Opener, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    await queue.put_many([b"0", b"1"])
    await queue.close()
    work = Work()
    alone = AsyncQueue("jobs", url=url, durability=Durability(1, timeout=0.05))  # the server has no replica
    with caplog.at_level(logging.WARNING, "apressure"):
        assert await in_time(serve(work, alone, signals=())) == Served(handled=2, failed=0)
    assert work.ended == [b"0", b"1"]
    assert "replicas" in caplog.text
    assert (await queue.statistics()).consumed_messages == 2


@pytest.mark.parametrize("options", [{"shared": False}, {"key": bytes}], ids=["not shared", "keys"])
async def test_a_second_service_waits_and_takes_over(
    open_queue: Opener, db: redis.Redis, options: dict[str, Any]
) -> None:
    active, standby = await open_two(open_queue)
    first, second = Work(b"0"), Work()
    await active.put_many([b"0", b"1"])
    with serving(first, active, **options) as one:
        await eventually(lambda: first.begun)
        other = asyncio.create_task(serve(second, standby, signals=(), **options))
        await eventually(lambda: db.info("clients")["blocked_clients"] >= 1)
        await cancel(one)
        await standby.close()
        assert (await in_time(other)).handled == 2
    assert second.ended == [b"0", b"1"]


async def test_two_services_share_a_queue(open_queue: Opener) -> None:
    queues = await open_two(open_queue)
    works = Work(b"0", b"1"), Work(b"0", b"1")
    with serving(works[0], queues[0]) as one, serving(works[1], queues[1]) as other:
        await queues[0].put_many([b"0", b"1"])
        await eventually(lambda: works[0].begun and works[1].begun)  # each has one of the two, which nobody ends
        for work in works:
            await work.let_go(b"0", b"1")
        await queues[0].close()
        assert [(await in_time(service)).handled for service in (one, other)] == [1, 1]


async def test_signals_belong_to_the_main_thread(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    await queue.close()
    results: list[Any] = []

    def other_thread() -> None:
        for options in ({}, {"signals": ()}):
            try:
                results.append(asyncio.run(serve(Work(), AsyncQueue("jobs", url=url), **options)))  # type: ignore[arg-type]
            except RuntimeError as error:
                results.append(error)

    thread = threading.Thread(target=other_thread)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert "signals=()" in str(results[0])
    assert results[1] == Served(handled=1, failed=0)


async def test_one_signal_ends_all_services_and_the_earlier_handlers_come_back(open_queue: Opener) -> None:
    before: list[int] = []

    def earlier(signum: int, _: Any) -> None:
        before.append(signum)

    first, second, rival = (
        await open_queue("first"),
        await open_queue("second"),
        await open_queue("second", create=False),
    )
    work, deaf = Work(), Work()
    was = signal.signal(signal.SIGTERM, earlier)
    try:
        with serving(deaf, rival) as other:
            await second.put(b"0")
            await eventually(lambda: deaf.ended)
            with (
                serving(work, first, signals=(signal.SIGTERM,)) as one,
                serving(work, second, signals=(signal.SIGTERM,)) as two,  # waits for the role
            ):
                await first.put(b"0")
                await eventually(lambda: work.ended)
                signal.raise_signal(signal.SIGTERM)
                assert await in_time(one) == Served(1, 0, signal.SIGTERM)
                assert await in_time(two) == Served(0, 0, signal.SIGTERM)
            assert not before
            assert not other.done()
            assert signal.getsignal(signal.SIGTERM) is earlier
            await cancel(other)
    finally:
        signal.signal(signal.SIGTERM, was)


async def test_a_signal_before_anything_began_ends_it(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"0")
    work = Work()
    with serving(work, queue, signals=(signal.SIGTERM,)) as task:
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        assert await in_time(task) == Served(0, 0, signal.SIGTERM)
    assert not work.begun
    await nothing_is_held(queue)


WORKER = """
import asyncio, os, sys
from apressure import AsyncQueue, serve
from apressure.service.service import Service

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

stop = Service.signalled

def stop_and_say(service, signum):
    stop(service, signum)
    say("signal", signum)

Service.signalled = stop_and_say

async def handle(delivery):
    say("begun", delivery.item.decode(), delivery.attempts)
    try:
        while not os.path.exists(sys.argv[2]):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        say("cancelled", delivery.item.decode())
        raise
    say("ended", delivery.item.decode())

async def main():
    queue = AsyncQueue("jobs", url=sys.argv[1])
    say("ready")
    served = await serve(
        handle, queue, deliveries=True, concurrency=2, prefetch=3, lease=0.5, shutdown_timeout=float(sys.argv[3]),
        shared=sys.argv[4] == "shared",
    )
    say(served.handled, served.failed, served.signal.name if served.signal else "")

asyncio.run(main())
"""


class Service:
    """A service in a process of its own, whose handlers end when a file exists."""

    def __init__(self, url: str, go: str, shutdown_timeout: float, shared: bool) -> None:
        self.process = processes.Popen(
            [sys.executable, "-c", WORKER, url, go, str(shutdown_timeout), "shared" if shared else ""],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    async def said(self, *lines: str) -> None:
        async with asyncio.timeout(3 * PATIENCE):
            while not set(lines) <= set(self.lines):
                assert self.process.poll() is None, self.process.communicate()
                await asyncio.sleep(0.01)

    async def end(self) -> tuple[int, list[str]]:
        """Wait for its end; what it said, and its exit code."""
        async with asyncio.timeout(3 * PATIENCE):
            while self.process.poll() is None:
                await asyncio.sleep(0.01)
        self._reader.join()
        assert self.process.stderr is not None
        assert "Traceback" not in self.process.stderr.read()
        return self.process.returncode, self.lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


# Signals belong to the process: the tests above show on both servers what a server sees of them.
one_server = pytest.mark.parametrize("server", ["valkey"], indirect=True)


class TestProcesses:
    @pytest.fixture
    def go(self, tmp_path: Any) -> Any:
        return tmp_path / "go"

    @pytest.fixture
    def start(self, url: str, go: Any) -> Iterator[Callable[..., Service]]:
        services: list[Service] = []

        def start(shutdown_timeout: float = 60, shared: bool = True) -> Service:
            services.append(Service(url, os.fspath(go), shutdown_timeout, shared))
            return services[-1]

        yield start
        for service in services:
            service.close()

    @one_server
    async def test_a_signal_lets_handlers_finish_and_gives_the_rest_back(
        self, open_queue: Opener, start: Callable[..., Service], go: Any, db: redis.Redis
    ) -> None:
        queue = await open_queue()
        await queue.put_many([b"%d" % n for n in range(6)])
        service = start()
        await service.said("begun 0 1", "begun 1 1")
        service.process.send_signal(signal.SIGTERM)
        await service.said("signal 15")  # one that did not wait would cancel the handlers now
        go.touch()
        code, lines = await service.end()
        assert code == 0
        assert sorted(lines) == [
            "2 0 SIGTERM", "begun 0 1", "begun 1 1", "ended 0", "ended 1", "ready", "signal 15",
        ]  # fmt: skip
        await nothing_is_held(queue)
        assert await attempts(queue) == [(b"2", 1), (b"3", 1), (b"4", 1), (b"5", 1)]

    @one_server
    @pytest.mark.parametrize("how", ["a second signal", "no time", "a short time"])
    async def test_handlers_that_may_not_finish_are_cancelled_and_their_items_come_again(
        self, open_queue: Opener, start: Callable[..., Service], how: str
    ) -> None:
        queue = await open_queue()
        await queue.put_many([b"%d" % n for n in range(4)])
        service = start({"a second signal": 60, "no time": 0, "a short time": 0.05}[how])
        await service.said("begun 0 1", "begun 1 1")
        service.process.send_signal(signal.SIGINT)
        if how == "a second signal":
            await service.said("signal 2")
            service.process.send_signal(signal.SIGTERM)
        code, lines = await service.end()
        assert code == 0
        assert lines[-1] == "0 0 SIGINT"
        assert {"cancelled 0", "cancelled 1"} < set(lines)
        assert await attempts(queue) == [(b"0", 2), (b"1", 2), (b"2", 1), (b"3", 1)]

    async def test_when_one_is_killed_the_standby_takes_over_and_marks_what_comes_again(
        self, open_queue: Opener, start: Callable[..., Service], go: Any, db: redis.Redis
    ) -> None:
        queue = await open_queue()
        await queue.put_many([b"%d" % n for n in range(6)])
        active = start(shared=False)
        await active.said("begun 0 1", "begun 1 1")
        standby = start(shared=False)
        await standby.said("ready")
        await eventually(lambda: db.info("clients")["blocked_clients"] >= 1)  # it waits for the role
        active.process.kill()
        go.touch()
        await standby.said("begun 0 2", "begun 1 2", "begun 2 2", "begun 5 1")
        await queue.close()
        code, lines = await standby.end()
        assert (code, lines[-1]) == (0, "6 0")
        # Messages that the dead service prefetched are marked, too: nobody knows that they were never handed out.
        begun = sorted(line for line in lines if line.startswith("begun"))
        assert begun == ["begun 0 2", "begun 1 2", "begun 2 2", "begun 3 1", "begun 4 1", "begun 5 1"]
        assert (await queue.statistics()).consumed_messages == 6
