"""What a transform returns, what happens when it fails, and how a pipe ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure import (
    Backoff,
    Many,
    Piped,
)
from tests.integration.conftest import Opener, cancelled, eventually, in_time
from tests.integration.pipe.conftest import Held, Pair, Pipe, begun, drained, items, same, tidy


@pytest.mark.parametrize("number", [0, 1, 5000])
async def test_everything_is_moved_in_order(pipe: Pipe, two: Pair, number: int) -> None:
    source, destination = await two(number)
    assert await in_time(pipe(source, same, destination)) == Piped(number, number, 0, exactly_once=True)
    assert not await destination.closed()
    here, there = await source.statistics(), await destination.statistics()
    assert (here.consumed_messages, here.consumed_bytes) == (there.produced_messages, there.produced_bytes)
    assert here.consumed_messages == number
    await tidy(source, destination)
    assert await drained(destination) == items(number)


async def test_none_is_no_result_and_many_are_several(pipe: Pipe, open_queue: Opener) -> None:
    source, destination = await open_queue("in", codec="json"), await open_queue("out", codec="json")
    await source.put_many([0, 1, 2, 3])
    await source.close()

    async def transform(item: int) -> Any:
        return [None, "one", ["a", "list"], Many([1, None, []])][item]

    done = await in_time(pipe(source, transform, destination, exactly_once=True))
    assert (done.handled, done.put) == (4, 5)
    assert await drained(destination) == ["one", ["a", "list"], 1, None, []]


async def test_a_transform_may_yield(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(4)
    closed = []

    async def transform(item: bytes) -> AsyncIterator[bytes]:
        try:
            for number in range(int(item)):
                await asyncio.sleep(0)
                yield b"%d of %b" % (number, item)
        finally:
            closed.append(item)

    await in_time(pipe(source, transform, destination))
    assert await drained(destination) == [b"0 of 1", b"0 of 2", b"1 of 2", b"0 of 3", b"1 of 3", b"2 of 3"]
    assert closed == items(4)


async def test_batches(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(25)
    sizes = []

    async def transform(batch: list[bytes]) -> list[bytes] | None:
        sizes.append(len(batch))
        return [b"+".join(batch)] if batch[0] != b"0" else None

    done = await in_time(pipe(source, transform, destination, batch=10))
    assert (done.handled, done.put) == (25, len(sizes) - 1)
    assert max(sizes) <= 10
    assert sum(sizes) == 25
    joined = b"+".join(await drained(destination))
    assert joined == b"+".join(items(25)[sizes[0] :])


async def test_a_batch_that_yields(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(25)

    async def transform(batch: list[bytes]) -> AsyncIterator[bytes]:
        for item in batch:
            yield item

    await in_time(pipe(source, transform, destination, batch=7))
    assert await drained(destination) == items(25)


async def test_a_batch_returns_no_single_value(
    pipe: Pipe, two: Pair, open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = await two(1, max_attempts=1)

    async def transform(batch: list[bytes]) -> Any:
        return batch[0]

    done = await in_time(pipe(source, transform, destination, batch=7, retry=Backoff(0)))
    assert (done.handled, done.failed) == (0, 1)
    assert "return a list of results" in caplog.text
    assert await drained(await open_queue("in:dead", create=False)) == [b"0"]


@pytest.mark.parametrize("batch", [None, 1])
async def test_transforms_run_in_parallel(pipe: Pipe, two: Pair, batch: int | None) -> None:
    source, destination = await two(7)
    held = Held()
    task = await begun(pipe(source, held, destination, concurrency=3, batch=batch))
    await eventually(lambda: len(held.begun) == 3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(held.begun) == 3
    if batch:
        await cancelled(task)
        assert await drained(source) == items(7)
        return
    held.go.set()
    await in_time(task)
    assert sorted(await drained(destination)) == items(7)


async def test_a_result_does_not_wait_for_a_slow_transform_beside_it(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(5)
    go = asyncio.Event()

    async def transform(item: bytes) -> bytes:
        if item == b"0":
            await go.wait()
        return item

    task = await begun(pipe(source, transform, destination, concurrency=2))
    assert [await in_time(destination.get()) for _ in range(4)] == items(5)[1:]
    go.set()
    await in_time(task)
    assert await drained(destination) == [b"0"]


def sync(item: bytes) -> bytes:
    return item + b"!"


def sync_generator(item: bytes) -> Any:
    yield item


@pytest.mark.parametrize("transform", [lambda _: None, sync_generator, 5])
async def test_a_transform_that_is_certainly_synchronous_is_refused(pipe: Pipe, two: Pair, transform: Any) -> None:
    source, destination = await two(1)
    with pytest.raises(TypeError, match=r"transform.*must be an async function"):
        await pipe(source, transform, destination)
    assert await drained(source) == [b"0"]


async def test_a_transform_that_turns_out_to_be_synchronous(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(2)
    with pytest.raises(TypeError, match="the transform sync must be an async function: its call returned bytes"):
        await in_time(pipe(source, sync, destination))  # type: ignore[call-overload]
    assert await drained(source) == items(2)


async def test_a_lambda_around_an_async_function_will_do(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(2)
    await in_time(pipe(source, lambda item: same(item + b"!"), destination))
    assert await drained(destination) == [b"0!", b"1!"]


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("batch", 0, ValueError), ("batch", "1", TypeError), ("concurrency", 0, ValueError),
        ("retry", 1.0, TypeError), ("lease", 0, ValueError), ("lease", "1", TypeError),
    ],
)  # fmt: skip
async def test_arguments_are_checked_before_anything_begins(
    pipe: Pipe, two: Pair, argument: str, value: Any, error: type[Exception]
) -> None:
    source, destination = await two()
    with pytest.raises(error, match=argument):
        await pipe(source, same, destination, **{argument: value})


async def test_max_attempts_is_a_setting_of_the_queue(pipe: Pipe, two: Pair) -> None:
    source, destination = await two()
    with pytest.raises(TypeError, match=r"pipe\(\) has no max_attempts=.*Give it to the queue"):
        await pipe(source, same, destination, max_attempts=2)


async def test_a_transform_that_raises_tries_again_and_others_pass(
    pipe: Pipe, two: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = await two(5)
    failures = [OSError("first"), ValueError("second")]

    async def transform(item: bytes) -> bytes:
        if item == b"1" and failures:
            raise failures.pop(0)
        return item

    done = await in_time(pipe(source, transform, destination, retry=Backoff(0)))
    assert (done.handled, done.failed) == (5, 2)
    assert sorted(await drained(destination)) == items(5)
    assert "the transform of the delivery" in caplog.text
    assert "failed at attempt 2: it goes back" in caplog.text


async def test_dead_letters(pipe: Pipe, two: Pair, open_queue: Opener) -> None:
    source, destination = await two(5, max_attempts=3)
    tried = []

    async def transform(item: bytes) -> bytes:
        if item in (b"1", b"4"):
            tried.append(item)
            raise ValueError(item)
        return item

    done = await in_time(pipe(source, transform, destination, retry=Backoff(0), concurrency=2))
    assert (done.handled, done.failed) == (3, 6)
    assert sorted(tried) == [b"1"] * 3 + [b"4"] * 3
    assert sorted(await drained(destination)) == [b"0", b"2", b"3"]
    assert sorted(await drained(await open_queue("in:dead", create=False))) == [b"1", b"4"]


async def test_a_bad_item_of_a_batch_does_not_take_others_along(pipe: Pipe, two: Pair, open_queue: Opener) -> None:
    source, destination = await two(20, max_attempts=2)

    async def transform(batch: list[bytes]) -> list[bytes]:
        if b"7" in batch:
            raise ValueError
        return batch

    await in_time(pipe(source, transform, destination, batch=20, retry=Backoff(0)))
    assert sorted(await drained(destination)) == sorted(set(items(20)) - {b"7"})
    assert await drained(await open_queue("in:dead", create=False)) == [b"7"]


@pytest.mark.parametrize("batch", [None, 5])
async def test_what_cannot_be_decoded_or_encoded(pipe: Pipe, open_queue: Opener, batch: int | None) -> None:
    raw = await open_queue("in", max_attempts=1)
    await raw.put_many([b"1", b"{", b"2", b"3"])
    await raw.close()
    source = await open_queue("in", create=False, codec="json", max_attempts=1)
    destination = await open_queue("out", codec="json")

    async def transform(item: Any) -> Any:
        one = item[0] if batch else item
        found = object() if one == 2 else one
        return [found] if batch else found

    done = await in_time(pipe(source, transform, destination, batch=batch, retry=Backoff(0)))  # type: ignore[call-overload]
    assert done.failed == 2
    assert await drained(destination) == [1, 3]
    assert sorted(await drained(await open_queue("in:dead", create=False))) == [b"2", b"{"]


async def test_a_transform_that_cancels_itself(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(3)
    cancelled = []

    async def transform(item: bytes) -> bytes:
        if item == b"1" and not cancelled:
            cancelled.append(item)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return item

    await in_time(pipe(source, transform, destination, retry=Backoff(0)))
    assert sorted(await drained(destination)) == items(3)


async def test_a_transform_that_exits(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(5)

    async def transform(item: bytes) -> bytes:
        if item == b"2":
            raise SystemExit(3)
        return item

    with pytest.raises(SystemExit):
        await in_time(pipe(source, transform, destination))
    await tidy(source, destination)
    assert await drained(destination) + await drained(source) == items(5)


async def test_who_drains_the_source_closes_the_destination(pipe: Pipe, two: Pair, open_queue: Opener) -> None:
    source, destination = await two(5)
    await in_time(pipe(source, same, destination, close=True))
    assert await destination.closed()
    assert await in_time(pipe(source, same, destination, close=True)) == Piped(0, 0, 0, exactly_once=True)
    assert await drained(destination) == items(5)


async def test_large_messages(pipe: Pipe, open_queue: Opener) -> None:
    source, destination = await open_queue("in"), await open_queue("out", bound=9)
    large = [bytes([number]) * 700_000 for number in range(30)]
    await source.put_many(large)
    await source.close()
    task = await begun(pipe(source, same, destination, exactly_once=True))
    assert [await in_time(destination.get()) for _ in range(30)] == large
    await in_time(task)
    await tidy(source, destination)


async def test_a_chain_of_stages(pipe: Pipe, open_queue: Opener) -> None:
    queues = [await open_queue(f"q{number}", bound=4) for number in range(4)]

    async def more(item: bytes) -> bytes:
        return b"%d" % (int(item) + 1)

    stages = [
        await begun(pipe(source, more, destination, close=True, exactly_once=True))
        for source, destination in itertools.pairwise(queues)
    ]
    async with queues[0].producer() as producer:
        feeding = await begun(producer.put_many(items(200)))
        got = [int(await in_time(queues[-1].get())) for _ in range(200)]
        await feeding
    await in_time(asyncio.gather(*stages))
    assert got == list(range(3, 203))
    assert await queues[-1].closed()
    await tidy(*queues)
