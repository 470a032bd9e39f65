"""`serve` with several queues: one pool of handlers, which queue first, and how everything ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Backoff, Client, EventQueue, FileQueue, QueueDoesNotExistError, TaskQueue, serve
from apressure.testing.contract.steps import Counting
from tests.integration.conftest import eventually, in_time

pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]


@pytest.fixture
async def queues(client: Client) -> AsyncIterator[list[AsyncQueue[bytes]]]:
    """Three queues, which are called urgent, normal and bulk."""
    async with AsyncExitStack() as stack:
        made = []
        for name in ("urgent", "normal", "bulk"):
            made.append(queue := AsyncQueue(name, client=client))
            await stack.enter_async_context(queue)
            await queue.create()
        yield made


async def closed(*queues: Any) -> None:
    for queue in queues:
        await queue.close()


async def test_an_urgent_message_waits_for_one_handler_at_most(queues: list[AsyncQueue[bytes]]) -> None:
    urgent, _, bulk = queues
    await bulk.put_many([b"bulk"] * 200)
    order: list[bytes] = []

    async def handle(item: bytes) -> None:
        order.append(item)
        if len(order) == 20:
            await urgent.put(b"urgent")
            await eventually_received(urgent)
            await closed(*queues)

    served = await in_time(serve(handle, queues, signals=()))
    assert served.handled == 201
    # The handler that ran when it came, and no other.
    assert order.index(b"urgent") == 20


KINDS = [AsyncQueue, EventQueue, TaskQueue, FileQueue]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_all_that_is_urgent_comes_before_all_that_is_not(
    url: str, tmp_path: Path, kind: Any, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler takes its time, and the next urgent message is not here yet when a place is free."""
    monkeypatch.setattr("apressure.service.pool.LOOK", 60.0)
    order: list[str] = []

    async def handle(item: Any) -> None:
        order.append(item if isinstance(item, str) else item.decode())
        await asyncio.sleep(0.005)

    async with AsyncExitStack() as stack:
        made = []
        for name in ("urgent", "bulk"):
            queue = FileQueue(tmp_path / name) if kind is FileQueue else kind(name, url=url)
            made.append(await stack.enter_async_context(queue))
            await queue.create()
            await queue.put_many([name if kind is TaskQueue else name.encode()] * 12)
            await queue.close()
        await in_time(serve(handle, made, concurrency=concurrency, signals=()))
    assert order == ["urgent"] * 12 + ["bulk"] * 12


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_weights_are_the_proportions(
    queues: list[AsyncQueue[bytes]], concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apressure.service.pool.LOOK", 60.0)
    order: list[bytes] = []
    for queue in queues[:2]:
        await queue.put_many([queue.name.encode()] * 60)
    await closed(*queues)

    async def handle(item: bytes) -> None:
        order.append(item)
        await asyncio.sleep(0.002)

    await in_time(serve(handle, queues[:2], weights=(5, 1), concurrency=concurrency, signals=()))
    for begin in range(2, 56, 6):
        assert 4 <= order[begin : begin + 6].count(b"urgent") <= 6, order


async def eventually_received(queue: AsyncQueue[bytes]) -> None:
    """Wait until the service has the only message of a queue, and has asked for a place for it."""
    while await queue.qsize():
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_handlers_are_shared(queues: list[AsyncQueue[bytes]]) -> None:
    for queue in queues:
        await queue.put_many([queue.name.encode()] * 50)
    await closed(*queues)
    counting = Counting(0.001)
    served = await in_time(serve(counting.handle, queues, concurrency=4, weights=(6, 3, 1), signals=()))
    assert (served.handled, served.failed, served.signal, counting.most) == (150, 0, None, 4)


async def test_each_kind_of_queue_has_a_handler_of_its_own(url: str, tmp_path: Path) -> None:
    made: list[Any] = [
        AsyncQueue("orders", url=url), EventQueue("orders", url=url), TaskQueue("orders", url=url),
        FileQueue(tmp_path / "orders"),
    ]  # fmt: skip
    done: dict[str, list[Any]] = {}

    def handler(kind: str) -> Any:
        async def handle(item: Any) -> None:
            done.setdefault(kind, []).append(item)

        return handle

    async with AsyncExitStack() as stack:
        for queue in made:
            await stack.enter_async_context(queue)
            await queue.create()
            await queue.put_many(["task"] * 3 if isinstance(queue, TaskQueue) else [b"item"] * 3)
            await queue.close()
        served = await in_time(serve({queue: handler(type(queue).__name__) for queue in made}, signals=()))
    assert served.handled == 12
    assert {kind: len(items) for kind, items in done.items()} == {type(queue).__name__: 3 for queue in made}


async def test_a_retry_holds_no_place(queues: list[AsyncQueue[bytes]]) -> None:
    urgent, _, bulk = queues
    await urgent.put(b"fails")
    await bulk.put_many([b"bulk"] * 10)
    handled: list[bytes] = []

    async def handle(item: bytes) -> None:
        if item == b"fails" and len(handled) < 10:
            raise RuntimeError("not yet")
        handled.append(item)
        if len(handled) == 11:
            await closed(*queues)

    served = await in_time(serve(handle, queues, retry=Backoff(0.001), signals=()))
    assert handled == [b"bulk"] * 10 + [b"fails"]
    assert served.failed >= 1


async def test_a_signal_drains_all_of_them(queues: list[AsyncQueue[bytes]]) -> None:
    for queue in queues:
        await queue.put_many([queue.name.encode()] * 3)
    began, go_on = asyncio.Event(), asyncio.Event()
    handled = []

    async def handle(item: bytes) -> None:
        began.set()
        await go_on.wait()
        handled.append(item)

    running = asyncio.ensure_future(serve(handle, queues, concurrency=2))
    await began.wait()
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.01)
    go_on.set()
    served = await in_time(running)
    assert served.signal == signal.SIGTERM
    assert served.handled == len(handled) <= 2
    assert sum([await queue.qsize() for queue in queues]) == 9 - len(handled)


async def test_if_one_fails_the_others_end_in_order(queues: list[AsyncQueue[bytes]], url: str) -> None:
    urgent, _, bulk = queues
    await bulk.put(b"bulk")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(item: bytes) -> None:
        began.set()
        await go_on.wait()

    running = asyncio.ensure_future(serve(handle, queues, signals=()))
    await began.wait()
    async with AsyncQueue("normal", url=url) as somebody_else:
        await somebody_else.delete()
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(QueueDoesNotExistError, match="normal"):
        await in_time(running)
    assert await bulk.qsize() == 0, "its handler could finish"
    assert not (await urgent.statistics()).members


async def test_a_cancellation_gives_back_what_waits_for_a_place(queues: list[AsyncQueue[bytes]]) -> None:
    for queue in queues:
        await queue.put(queue.name.encode())

    async def handle(item: bytes) -> None:
        await asyncio.sleep(3600)

    running = asyncio.ensure_future(serve(handle, queues, signals=()))
    await eventually(lambda: not running.done())
    for queue in queues:
        await eventually_received(queue)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [await queue.get(timeout=0) for queue in queues] == [b"urgent", b"normal", b"bulk"]


async def test_invalid_arguments(queues: list[AsyncQueue[bytes]]) -> None:
    async def handle(item: bytes) -> None: ...

    for arguments, options, error, said in (
        ((handle,), {}, TypeError, "which queue?"),
        ((handle, []), {}, ValueError, "there is no queue to serve"),
        (({}, None), {}, ValueError, "there is no queue to serve"),
        (({queues[0]: handle}, queues[1]), {}, TypeError, "leave out queue"),
        (({queues[0]: len}, None), {}, TypeError, "must be an async function"),
        ((handle, [queues[0], queues[0]]), {}, ValueError, "'urgent' is given twice"),
        ((handle, queues), {"weights": (1, 2)}, ValueError, "one number for each of the 3 queues, not 2"),
        ((handle, queues), {"weights": (1, 2, 0)}, ValueError, "a weight must be a number above 0, not 0"),
        ((handle, queues), {"weights": (1, 2, "3")}, ValueError, "a weight must be a number above 0, not '3'"),
        ((handle, queues), {"ageing": -1}, ValueError, "ageing must be"),
        ((handle, queues), {"batch": 3}, ValueError, "batch= and key= are for one queue"),
        ((handle, queues), {"key": len}, ValueError, "batch= and key= are for one queue"),
    ):
        with pytest.raises(error, match=said):
            await serve(*arguments, signals=(), **options)  # type: ignore[call-overload]
