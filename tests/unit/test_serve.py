"""`serve` over a queue that only the test has: it needs only what the protocols promise."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import re
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Self, get_type_hints

import pytest

from apressure import (
    DecodeError,
    LeaseLostError,
    OutOfMemoryError,
    PressureError,
    QueueDoesNotExistError,
    Served,
    ServerError,
    ServerUnavailableError,
    serve,
)
from apressure.concurrency.backoff import Backoff
from apressure.protocols import Consumer, Delivery, Source
from apressure.service import dispatcher, keyed, service
from apressure.service.pace import Pace
from apressure.service.serve import ServeOptions
from tests import processes


class MemoryDelivery:
    def __init__(self, queue: MemoryQueue, number: int, attempts: int) -> None:
        self._queue = queue
        self._number = number
        self.attempts = attempts
        self.settled = False

    @property
    def id(self) -> str:
        return f"{self._number}/{self.attempts}"

    @property
    def item(self) -> int:
        if self._number < 0:
            raise DecodeError("negative", name=self._queue.name, raw=self.raw)
        return self._number

    @property
    def raw(self) -> bytes:
        return b"%d" % self._number

    @property
    def redelivered(self) -> bool:
        return self.attempts > 1

    async def ack(self) -> None:
        self.settled = True
        if self._queue.errors_of_ack:
            self.give_back()
            raise self._queue.errors_of_ack.popleft()
        self._queue.in_flight.remove(self)
        self._queue.acknowledged.append(self._number)

    async def nack(self) -> None:
        self.settled = True
        self.give_back()

    async def extend(self, seconds: float) -> None: ...

    def give_back(self) -> None:
        self._queue.in_flight.remove(self)
        self._queue.waiting.appendleft((self._number, self.attempts + 1))


class MemoryConsumer:
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def __aenter__(self) -> Self:
        self._queue.consumers += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for delivery in reversed(self._queue.in_flight.copy()):
            delivery.give_back()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemoryDelivery:
        queue = self._queue
        if queue.errors_of_receive:
            raise queue.errors_of_receive.popleft()
        while queue.patient and queue.in_flight and not queue.waiting:
            await asyncio.sleep(0)
        if not queue.waiting:
            raise StopAsyncIteration
        queue.in_flight.append(delivery := MemoryDelivery(queue, *queue.waiting.popleft()))
        return delivery

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        self._queue.lose = callback


class MemoryQueue:
    """A closed queue with some numbers in it. If it is `patient`, it ends when nothing can come back any more."""

    def __init__(self, *numbers: int, exists: bool = True, patient: bool = False) -> None:
        self.name = "numbers"
        self.patient = patient
        self.max_attempts = None
        self.opened = False
        self.closed = False
        self.consumers = 0
        self.waiting = deque((number, 1) for number in numbers)
        self.in_flight: list[MemoryDelivery] = []
        self.acknowledged: list[int] = []
        self.errors_of_ack: deque[PressureError] = deque()
        self.errors_of_receive: deque[PressureError] = deque()
        self.lose: Callable[[Exception], None] = lambda _: None
        self._exists = exists

    async def __aenter__(self) -> Self:
        self.opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closed = True

    async def exists(self) -> bool:
        return self._exists

    def consumer(
        self, ack: Literal["manual"], *, prefetch: int | None = None, lease: float | None = None, shared: bool = True
    ) -> MemoryConsumer:
        assert ack == "manual"
        if prefetch == 99:
            raise ValueError("prefetch must be less than 99")
        return MemoryConsumer(self)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_RETURN", Backoff(0.0, 0.0))


def lost() -> LeaseLostError:
    return LeaseLostError("the lease was lost", name="numbers", role="consumer")


async def nothing(item: object) -> None: ...


def test_the_queue_of_this_test_is_a_source() -> None:
    source: Source[int] = MemoryQueue()
    consumer: Consumer[Delivery[int]] = source.consumer("manual")
    assert source.name
    assert consumer is not None


async def test_every_item_is_handled_once_and_failures_are_tried_again() -> None:
    queue = MemoryQueue(0, 1, 2, 3)
    failures = [2, 2]
    handled: list[int] = []

    async def handle(item: int) -> None:
        await asyncio.sleep(0)
        if item in failures:
            failures.remove(item)
            raise LookupError(item)
        handled.append(item)

    assert await serve(handle, queue, concurrency=2, retry=Backoff(0), signals=()) == Served(handled=4, failed=2)
    assert sorted(handled) == sorted(queue.acknowledged) == [0, 1, 2, 3]
    assert (queue.opened, queue.closed) == (True, True)


async def test_a_queue_that_is_in_use_stays_open() -> None:
    async with MemoryQueue(1) as queue:
        await serve(nothing, queue, signals=())
        assert not queue.closed


async def test_handlers_may_take_the_deliveries_of_the_queue() -> None:
    queue = MemoryQueue(7)

    async def handle(delivery: MemoryDelivery) -> None:
        assert delivery.id == "7/1"
        await delivery.ack()

    assert await serve(handle, queue, deliveries=True, signals=()) == Served(handled=1, failed=0)
    assert queue.acknowledged == [7]


async def test_a_service_that_has_lost_its_messages_leaves_all_places_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "_RETURN", Backoff(60.0, 60.0))
    losing, other = MemoryQueue(0, 1, 2, 3), MemoryQueue(4, 5, 6, 7)
    running = 0
    stop = asyncio.Event()

    async def lose(item: int) -> None:  # while the others are received, and have no handler yet
        losing.lose(lost())

    async def handle(item: int) -> None:
        nonlocal running
        running += 1
        if running == 4:
            stop.set()
        await stop.wait()

    async with asyncio.timeout(10):
        await serve({losing: lose, other: handle}, concurrency=4, stop=stop, signals=())
    assert sorted(other.acknowledged) == [4, 5, 6, 7]


async def test_an_item_that_cannot_be_decoded_fails() -> None:
    queue = MemoryQueue(-1)

    async def handle(delivery: MemoryDelivery) -> None:
        if not delivery.redelivered:
            print(delivery.item)

    assert await serve(handle, queue, deliveries=True, retry=Backoff(0), signals=()) == Served(handled=1, failed=1)


async def test_a_queue_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(QueueDoesNotExistError, match="'numbers' does not exist"):
        await serve(nothing, MemoryQueue(exists=False), signals=())


async def test_the_queue_checks_its_own_arguments_before_it_is_opened() -> None:
    queue = MemoryQueue(1)
    with pytest.raises(ValueError, match="prefetch"):
        await serve(nothing, queue, prefetch=99, signals=())
    assert not queue.opened


@pytest.mark.parametrize(
    "error",
    [lost(), ServerUnavailableError("away"), OutOfMemoryError("full", code="OOM"), ServerError("x", code="BUSY")],
)
async def test_after_a_temporary_error_the_consumer_is_taken_again(
    error: PressureError, caplog: pytest.LogCaptureFixture
) -> None:
    queue = MemoryQueue(0, 1)
    queue.errors_of_receive.extend((error, error))
    with caplog.at_level(logging.WARNING, "apressure"):
        assert await serve(nothing, queue, signals=()) == Served(handled=2, failed=0)
    assert queue.consumers == 3
    assert [record.message for record in caplog.records] == [
        f"the service of the queue 'numbers' lost the consumer role, and takes it again in 0.0 s: {error}"
    ] * 2


async def test_an_error_that_is_not_temporary_is_raised() -> None:
    queue = MemoryQueue(0)
    queue.errors_of_receive.append(ServerError("damaged", code="WRONGTYPE"))
    with pytest.raises(ServerError, match="damaged"):
        await serve(nothing, queue, signals=())
    assert list(queue.waiting) == [(0, 1)]


async def test_losing_the_messages_cancels_their_handlers() -> None:
    queue = MemoryQueue(0)
    seen: list[str] = []

    async def handle(delivery: Any) -> None:
        seen.append(delivery.id)
        if not delivery.redelivered:
            queue.lose(lost())
            await asyncio.Event().wait()

    assert await serve(handle, queue, deliveries=True, signals=()) == Served(handled=1, failed=0)
    assert seen == ["0/1", "0/2"]


async def test_messages_that_are_lost_while_the_service_drains_are_not_said_to_be_taken_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, stop = MemoryQueue(0), asyncio.Event()

    async def handle(_: int) -> None:
        stop.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        queue.lose(lost())
        await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING, "apressure"):
        assert await serve(handle, queue, signals=(), stop=stop) == Served(handled=0, failed=0)
    assert list(queue.waiting) == [(0, 2)]
    (told,) = caplog.records
    again = "lost the consumer role while it drains, and what it had in hand comes again"
    assert told.message == f"the service of the queue 'numbers' {again}: {lost()}"
    assert told.seconds is None  # type: ignore[attr-defined]


async def test_a_service_that_ends_does_not_wait_for_long_until_failed_messages_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "_SETTLING", 0.05)
    queue, stop = MemoryQueue(0, 1), asyncio.Event()

    async def hang(_: MemoryDelivery) -> None:
        if not queue.waiting:  # both have failed
            stop.set()
        await asyncio.Event().wait()

    async def fail(_: int) -> None:
        raise ValueError

    monkeypatch.setattr(MemoryDelivery, "nack", hang)
    served = serve(fail, queue, concurrency=2, retry=Backoff(0), shutdown_timeout=3600.0, signals=(), stop=stop)
    assert await served == Served(handled=0, failed=2)
    assert sorted(queue.waiting) == [(0, 2), (1, 2)]


async def test_a_single_message_that_was_lost_ends_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue(0, 1)
    queue.errors_of_ack.append(lost())
    with caplog.at_level(logging.WARNING, "apressure"):
        assert await serve(nothing, queue, signals=()) == Served(handled=2, failed=0)
    assert sorted(queue.acknowledged) == [0, 1]
    assert queue.consumers == 1
    assert [record.message for record in caplog.records] == [
        "the service of the queue 'numbers' continues after an error: the lease was lost"
    ]


async def test_a_handler_that_takes_longer_than_its_timeout_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue(0, 1)
    cancelled: list[str] = []

    async def handle(delivery: MemoryDelivery) -> None:
        if delivery.id == "0/1":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                cancelled.append(delivery.id)
                raise

    with caplog.at_level(logging.ERROR, "apressure"):
        served = await serve(handle, queue, deliveries=True, timeout=0.01, retry=Backoff(0), signals=())
    assert served == Served(handled=2, failed=1)
    assert cancelled == ["0/1"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == ("TimeoutError('the handler was cancelled: it took longer than timeout=0.01 s')")


def logged_frames(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The functions in the traceback of the only failure in the log."""
    (failure,) = (one for one in caplog.records if getattr(one, "event", None) == "handler_failed")
    assert failure.exc_info is not None
    return [frame.name for frame in traceback.extract_tb(failure.exc_info[2])]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_a_logged_traceback_begins_with_the_handler_unless_the_log_shows_all(
    caplog: pytest.LogCaptureFixture, blocking: bool, level: int
) -> None:
    caplog.set_level(level, "apressure")

    def find() -> None:
        raise KeyError("no such order")

    def fails(item: int) -> None:
        find()

    async def fails_too(item: int) -> None:
        find()

    queue, stop = MemoryQueue(1), asyncio.Event()
    options: Any = {"on_error": lambda *_: stop.set(), "stop": stop, "signals": ()}
    if blocking:
        with ThreadPoolExecutor(1) as executor:
            await serve(fails, queue, executor=executor, **options)
    else:
        await serve(fails_too, queue, **options)
    begin = ["fails" if blocking else "fails_too", "find"]
    frames = logged_frames(caplog)
    assert frames[-2:] == begin
    assert (frames == begin) is (level == logging.INFO)


async def test_the_traceback_of_an_error_that_no_handler_raised_is_logged_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop = asyncio.Event()
    options: Any = {"on_error": lambda *_: stop.set(), "stop": stop, "signals": ()}
    await serve(lambda _: asyncio.sleep(3600), MemoryQueue(1), timeout=0.001, **options)
    assert len(logged_frames(caplog)) > 0


async def test_a_handler_may_raise_a_timeout_error_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = [TimeoutError("of a database")]

    async def handle(item: int) -> None:
        if errors:
            raise errors.pop()

    await serve(handle, MemoryQueue(0), timeout=60, retry=Backoff(0), signals=())
    assert "of a database" in caplog.text


async def test_messages_that_are_lost_while_a_handler_overruns_are_not_waited_for() -> None:
    queue = MemoryQueue(0)

    async def handle(delivery: MemoryDelivery) -> None:
        if not delivery.redelivered:
            try:
                await asyncio.Event().wait()
            finally:
                queue.lose(lost())

    # The pause before the retry is an hour: only the loss may end it.
    async with asyncio.timeout(60):
        await serve(handle, queue, deliveries=True, timeout=0.01, retry=Backoff(3600), signals=())


async def test_a_stop_event_lets_handlers_finish_and_gives_the_rest_back() -> None:
    queue, stop = MemoryQueue(0, 1, 2), asyncio.Event()

    async def handle(item: int) -> None:
        stop.set()
        await asyncio.sleep(0.01)

    assert await serve(handle, queue, signals=(), stop=stop) == Served(handled=1, failed=0)
    assert queue.acknowledged == [0]
    assert await serve(handle, queue, signals=(), stop=stop) == Served(handled=0, failed=0)  # it was set before
    with pytest.raises(TypeError, match=re.escape("stop must be an asyncio.Event or None, not Event")):
        await serve(handle, queue, signals=(), stop=threading.Event())  # type: ignore[call-overload]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_on_error_is_told_of_each_failure(asynchronous: bool, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []

    def note(delivery: Delivery[int], error: BaseException) -> None:
        told.append((delivery.id, repr(error)))

    async def note_later(delivery: Delivery[int], error: BaseException) -> None:
        await asyncio.sleep(0)
        note(delivery, error)

    errors = [ValueError(1), ValueError(0)]

    async def handle(item: int) -> None:
        if errors:
            raise errors.pop()

    served = await serve(
        handle, MemoryQueue(7), on_error=note_later if asynchronous else note, retry=Backoff(0), signals=()
    )
    assert served == Served(handled=1, failed=2)
    assert told == [("7/1", "ValueError(0)"), ("7/2", "ValueError(1)")]
    assert "it goes back in" in caplog.records[0].message


async def test_on_error_may_settle_the_delivery(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue(7, 8)

    async def handle(item: int) -> None:
        if item == 7:
            raise ValueError

    async def give_up(delivery: Delivery[int], error: BaseException) -> None:
        await delivery.ack()

    assert await serve(handle, queue, on_error=give_up, signals=()) == Served(handled=1, failed=1)
    assert sorted(queue.acknowledged) == [7, 8]
    assert caplog.records[0].message.endswith("on_error has settled the delivery")


@pytest.mark.parametrize("error", [LookupError("of on_error"), asyncio.CancelledError("of on_error")])
async def test_an_error_in_on_error_is_logged_and_the_item_tried_again(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ValueError("of the handler")]

    async def handle(item: int) -> None:
        if errors:
            raise errors.pop()

    def fail(delivery: Delivery[int], failure: BaseException) -> None:
        raise error

    assert await serve(handle, MemoryQueue(7), on_error=fail, retry=Backoff(0), signals=()) == Served(1, 1)
    first, second = caplog.records
    assert first.message == "on_error failed for the delivery 7/1 of the queue 'numbers'"
    assert first.exc_info is not None
    assert first.exc_info[1] is error
    assert "it goes back in" in second.message


async def test_on_error_is_cancelled_with_the_handlers(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue(7)

    async def handle(delivery: MemoryDelivery) -> None:
        if not delivery.redelivered:
            raise ValueError

    async def wait(delivery: object, error: BaseException) -> None:
        queue.lose(lost())
        await asyncio.Event().wait()

    served = await serve(handle, queue, deliveries=True, on_error=wait, signals=())
    assert served == Served(handled=1, failed=1)
    assert "failed at attempt 1" in caplog.text  # the failure itself is in the log


async def test_options_that_make_no_sense_are_refused_before_the_queue_is_opened() -> None:
    queue = MemoryQueue(1)
    for options, error, text in (
        ({"bound": 5}, ValueError, "add create=True"),
        ({"create": True}, TypeError, r"create\(\), which MemoryQueue has not"),
        ({"on_error": 5}, TypeError, "on_error must be a function, not int"),
        ({"max_attempts": 5}, TypeError, r"serve\(\) has no max_attempts=.*Give it to the queue"),
        ({"linger": 1.0}, ValueError, "add batch="),
        ({"key": 5}, TypeError, "key must be a function of an item, not int"),
        ({"key": len, "batch": 5}, ValueError, "batch= cannot be combined with key="),
        ({"key": len, "shared": True}, ValueError, "shared=True cannot be combined with key="),
        ({"rate": "5"}, TypeError, "rate must be a number"),
        ({"rate": 0}, ValueError, "rate must be more than 0"),
        ({"rate": float("nan")}, ValueError, "rate must be more than 0"),
        ({"executor": 5}, TypeError, "executor must be a concurrent.futures.Executor, not int"),
    ):
        handler = print if "executor" in options else nothing
        with pytest.raises(error, match=text):
            await serve(handler, queue, signals=(), **options)  # type: ignore[call-overload]
    assert not queue.opened


async def test_a_system_exit_in_on_error_ends_the_service() -> None:
    async def handle(item: int) -> None:
        raise ValueError

    def leave(delivery: object, error: BaseException) -> None:
        raise SystemExit(3)

    queue = MemoryQueue(7)
    with pytest.raises(SystemExit):
        await serve(handle, queue, on_error=leave, signals=())
    assert list(queue.waiting) == [(7, 2)]


async def test_each_handler_has_context_variables_of_its_own() -> None:
    bound: ContextVar[int] = ContextVar("bound", default=-1)
    found: list[tuple[int, int]] = []

    async def handle(item: int) -> None:
        found.append((item, bound.get()))
        token = bound.set(item)
        if item % 2:
            await asyncio.sleep(0)
            assert bound.get() == item
            bound.reset(token)
            bound.set(item)

    assert (await serve(handle, MemoryQueue(*range(9)), concurrency=2, signals=())).handled == 9
    assert sorted(found) == [(item, -1) for item in range(9)]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_cancels_its_own_task_disturbs_no_other(waits: bool) -> None:
    async def handle(delivery: MemoryDelivery) -> None:
        if delivery.id == "0/1":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if waits:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)

    queue = MemoryQueue(*range(5), patient=True)
    served = await serve(handle, queue, deliveries=True, retry=Backoff(0), signals=())
    assert served == Served(handled=5, failed=int(waits))
    assert sorted(queue.acknowledged) == list(range(5))


async def test_a_handler_may_be_a_future_or_an_object_that_can_be_awaited() -> None:
    class Later:
        def __init__(self, item: int) -> None:
            self._item = item

        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            seen.append(self._item)

    def future(item: int) -> asyncio.Future[None]:
        result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(result.set_result, None)
        seen.append(item)
        return result

    seen: list[int] = []
    assert (await serve(Later, MemoryQueue(0, 1), signals=())).handled == 2
    assert (await serve(future, MemoryQueue(2, 3), signals=())).handled == 2
    assert seen == [0, 1, 2, 3]


async def test_as_many_handlers_run_as_there_is_work_for() -> None:
    running = most = 0

    async def handle(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50):
            await asyncio.sleep(0)
        running -= 1

    assert (await serve(handle, MemoryQueue(*range(100)), concurrency=32, signals=())).handled == 100
    assert most == 32


async def test_a_handler_may_get_batches() -> None:
    queue = MemoryQueue(*range(10))
    batches: list[list[int]] = []

    async def handle(items: list[int]) -> None:
        batches.append(items)

    assert await serve(handle, queue, batch=4, linger=60, signals=()) == Served(handled=10, failed=0)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]  # the end of the queue does not wait for `linger`
    assert queue.acknowledged == list(range(10))


async def test_no_more_batches_are_handled_at_a_time_than_concurrency_allows() -> None:
    running = most = 0

    async def handle(items: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        if fails and 5 in items:
            raise fails.pop()

    fails = [ValueError(), ValueError()]
    queue = MemoryQueue(*range(20))
    served = await serve(handle, queue, batch=3, concurrency=2, retry=Backoff(0), signals=())
    assert served == Served(handled=20, failed=4)  # three items in the batch, then one that comes again alone
    assert most == 2
    assert sorted(queue.acknowledged) == list(range(20))


async def test_a_failed_batch_fails_what_it_has_not_settled_and_comes_again_item_by_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = MemoryQueue(*range(4))
    seen: list[list[str]] = []
    told: list[str] = []

    async def handle(deliveries: list[MemoryDelivery]) -> None:
        seen.append([delivery.id for delivery in deliveries])
        if len(deliveries) > 1:
            await deliveries[1].ack()
            raise ValueError

    served = await serve(
        handle, queue, deliveries=True, batch=4, retry=Backoff(0), signals=(),
        on_error=lambda delivery, error: told.append(delivery.id),
    )  # fmt: skip
    assert served == Served(handled=4, failed=3)
    assert seen == [["0/1", "1/1", "2/1", "3/1"], ["0/2"], ["2/2"], ["3/2"]]
    assert told == ["0/1", "2/1", "3/1"]
    assert "of the delivery 0/1 and 2 more of the queue 'numbers' failed at attempt 1" in caplog.text


async def test_an_item_of_a_batch_that_cannot_be_decoded_fails_alone() -> None:
    queue = MemoryQueue(0, -1, 2)
    batches: list[list[int]] = []

    async def handle(items: list[int]) -> None:
        batches.append(items)

    async def drop(delivery: Delivery[int], error: BaseException) -> None:
        assert isinstance(error, DecodeError)
        await delivery.ack()

    served = await serve(handle, queue, batch=3, on_error=drop, signals=())
    assert served == Served(handled=2, failed=1)
    assert batches == [[0, 2]]


async def test_the_same_batch_may_be_changed_by_its_handler() -> None:
    queue = MemoryQueue(0, 1)

    async def handle(deliveries: list[Any]) -> None:
        deliveries.clear()

    assert (await serve(handle, queue, batch=2, deliveries=True, signals=())).handled == 2
    assert queue.acknowledged == [0, 1]


async def test_a_rate_lets_as_many_begin_at_once_as_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 100.0, []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(round(seconds, 3))
        now += seconds
        await real(0)

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = Pace(4)
    for _ in range(6):
        await pace.turn()
    assert waits == [0.25, 0.25]
    pace.count()
    await pace.turn()
    assert waits == [0.25, 0.25, 0.5]
    now += 60
    for _ in range(5):
        await pace.turn()
    assert waits == [0.25, 0.25, 0.5, 0.25]
    slow = Pace(0.1)
    await slow.turn()
    await slow.turn()
    assert waits[-1] == 10.0


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"batch": 5}])
async def test_a_rate_counts_calls_of_the_handler(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    counted = calls = 0

    async def turn(pace: Pace) -> None:
        nonlocal counted
        counted += 1

    async def handle(item: object) -> None:
        nonlocal calls
        calls += 1
        assert calls <= counted

    monkeypatch.setattr(Pace, "turn", turn)
    queue = MemoryQueue(*range(9))
    assert (await serve(handle, queue, rate=1, signals=(), **options)).handled == 9
    assert calls <= counted <= calls + 1


async def test_a_blocking_handler_runs_in_an_executor() -> None:
    threads: set[str] = set()
    errors = [LookupError("once"), StopIteration()]

    def handle(item: int) -> int:
        threads.add(threading.current_thread().name)
        if item == 1 and errors:
            raise errors.pop()
        return item

    queue = MemoryQueue(0, 1, 2)
    with ThreadPoolExecutor(2, "ours") as executor:
        served = await serve(handle, queue, executor=executor, concurrency=2, retry=Backoff(0), signals=())
    assert served == Served(handled=3, failed=2)
    assert {name.split("_")[0] for name in threads} == {"ours"}


async def test_a_handler_may_run_in_a_process_and_take_batches() -> None:
    queue = MemoryQueue(*range(6))
    with processes.executor() as executor:
        served = await serve(sum, queue, executor=executor, batch=3, signals=())
    assert served == Served(handled=6, failed=0)


async def test_an_executor_that_was_shut_down_ends_the_service() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    queue = MemoryQueue(0, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        await serve(print, queue, executor=executor, signals=())
    assert sorted(number for number, _ in queue.waiting) == [0, 1]


async def test_a_broken_executor_ends_the_service() -> None:
    queue = MemoryQueue(3)
    with processes.executor() as executor, pytest.raises(BrokenExecutor):
        await serve(os._exit, queue, executor=executor, signals=())
    assert list(queue.waiting) == [(3, 2)]


async def test_what_cannot_go_with_an_executor_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as executor:
        for options, text in (({"timeout": 1.0}, "timeout= cannot"), ({"deliveries": True}, "deliveries=True cannot")):
            with pytest.raises(ValueError, match=text):
                await serve(print, MemoryQueue(0), executor=executor, signals=(), **options)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="must be a synchronous function"):
            await serve(functools.partial(nothing), MemoryQueue(0), executor=executor, signals=())
        answers = [nothing(0)]
        served = await serve(
            lambda _: answers.pop() if answers else None,
            MemoryQueue(0),
            executor=executor,
            retry=Backoff(0),
            signals=(),
        )
        assert served == Served(handled=1, failed=1)
        assert "the handler <lambda> returned an awaitable: declare it `async def`" in caplog.text


async def test_items_of_one_key_are_handled_in_order_and_different_keys_side_by_side() -> None:
    running: set[int] = set()
    most = 0
    ended: dict[int, list[int]] = {}
    failures = [14, 14, 31]

    async def handle(item: int) -> None:
        nonlocal most
        key = item % 10
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        for _ in range(20 + item % 3):
            await asyncio.sleep(0)
        running.remove(key)
        if item in failures:
            failures.remove(item)
            raise ValueError
        ended.setdefault(key, []).append(item)

    queue = MemoryQueue(*range(100))
    served = await serve(handle, queue, key=lambda item: item % 10, concurrency=4, retry=Backoff(0.001), signals=())
    assert served == Served(handled=100, failed=3)
    assert ended == {key: list(range(key, 100, 10)) for key in range(10)}
    assert most == 4


async def test_a_key_goes_on_when_its_failed_item_does_not_come_again() -> None:
    queue = MemoryQueue(0, 1, 2)
    ended: list[int] = []

    async def handle(delivery: MemoryDelivery) -> None:
        if delivery.id == "0/1":
            raise ValueError
        ended.append(delivery.item)

    nack = MemoryDelivery.nack

    async def purged(delivery: MemoryDelivery) -> None:
        await nack(delivery)
        queue.waiting.remove((0, 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryDelivery, "nack", purged)
        served = await serve(
            handle, queue, deliveries=True, key=lambda _: 0, concurrency=2, retry=Backoff(0), signals=()
        )
    assert served == Served(handled=2, failed=1)
    assert ended == [1, 2]


async def test_a_key_that_cannot_be_found_out_is_a_failure_of_the_item() -> None:
    queue = MemoryQueue(0, 1, 2)
    told: list[tuple[str, str]] = []

    def key(item: int) -> Any:
        return 1 // item if item < 2 else []

    async def drop(delivery: Delivery[int], error: BaseException) -> None:
        told.append((delivery.id, type(error).__name__))
        await delivery.ack()

    assert await serve(nothing, queue, key=key, on_error=drop, signals=()) == Served(handled=1, failed=2)
    assert sorted(told) == [("0/1", "ZeroDivisionError"), ("2/1", "TypeError")]


async def test_a_key_goes_on_when_nothing_comes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()
    nack, following = MemoryDelivery.nack, MemoryConsumer.__anext__

    async def purged(delivery: MemoryDelivery) -> None:
        await nack(delivery)
        queue.waiting.remove((0, 2))

    async def wait_for_more(consumer: MemoryConsumer) -> MemoryDelivery:
        while not queue.waiting and not closed.is_set():
            await asyncio.sleep(0.001)
        return await following(consumer)

    async def handle(item: int) -> None:
        if item == 0:
            raise ValueError
        closed.set()

    monkeypatch.setattr(MemoryDelivery, "nack", purged)
    monkeypatch.setattr(MemoryConsumer, "__anext__", wait_for_more)
    monkeypatch.setattr(keyed, "_GONE_SECONDS", 0.02)
    queue = MemoryQueue(0, 1)
    async with asyncio.timeout(60):
        served = await serve(handle, queue, key=lambda _: 0, concurrency=2, retry=Backoff(0.01), signals=())
    assert served == Served(handled=1, failed=1)


def test_the_options_are_the_parameters_of_serve() -> None:
    parameters = inspect.signature(serve).parameters
    options = get_type_hints(ServeOptions)
    hints = get_type_hints(serve)
    assert options == {name: hints[name] for name in options}
    depending = {
        "handler",
        "queue",
        "deliveries",
        "on_error",
        "batch",
        "key",
        "executor",
        "weights",
        "ageing",
    }  # on each other
    assert set(parameters) == {*options, *depending}
