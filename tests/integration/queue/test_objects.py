"""Queues of objects, and messages that are none."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from apressure import AsyncQueue, DecodeError
from tests.integration.conftest import Opener, fails, in_time


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str]


@pytest.mark.parametrize(
    ("codec", "items"),
    [
        (None, [b"", b"\xff"]),
        ("text", ["", "ü\n"]),
        ("json", [None, 1, "ü", [1.5], {"a": {}}]),
        ("msgpack", [None, 1, "ü", [1.5], {"a": {}}]),
        (Order, [Order(1, []), Order(2, ["ü"])]),
    ],
)
async def test_objects_pass_in_every_way(open_queue: Opener, codec: Any, items: list[Any]) -> None:
    queue = await open_queue(codec=codec)
    for item in items:
        await queue.put(item)
    assert (await queue.peek(), await queue.peek_newest()) == (items[0], items[-1])
    assert [await queue.get() for _ in items] == items
    await queue.put_many(items)
    assert await queue.get_many(10) == items
    await queue.put_many(items)
    delivery = await queue.receive()
    assert delivery.item == items[0]
    await delivery.nack()
    await queue.close()
    async with queue.consumer() as consumer:
        assert [item async for item in consumer] == items


@pytest.mark.parametrize(
    ("codec", "bad"), [("text", 5), ("json", {1, 2}), ("json", float("nan")), (Order, {"number": 1})]
)
async def test_what_cannot_be_encoded_is_refused_and_nothing_is_put(
    open_queue: Opener, scripting: bool, codec: Any, bad: Any
) -> None:
    queue = await open_queue(codec=codec, scripting=scripting)
    for put in (queue.put(bad), queue.put_nowait(bad), queue.put_many([bad])):
        with pytest.raises((TypeError, ValueError)):
            await put
    assert await queue.qsize() == 0


async def _with_garbage(open_queue: Opener, scripting: bool = True) -> tuple[AsyncQueue[Any], AsyncQueue[bytes]]:
    raw = await open_queue()
    await raw.put_many([b"1", b"{garbage", b"3"])
    return await open_queue(codec="json", create=False, scripting=scripting), raw


async def test_a_message_that_cannot_be_decoded_comes_with_the_error(open_queue: Opener, scripting: bool) -> None:
    queue, _ = await _with_garbage(open_queue, scripting)
    assert await queue.get() == 1
    with pytest.raises(DecodeError, match="'jobs'") as raised:
        await queue.peek()
    assert raised.value.raw == b"{garbage"
    with pytest.raises(DecodeError) as raised:
        await queue.get()
    assert (raised.value.raw, raised.value.name) == (b"{garbage", "jobs")
    assert isinstance(raised.value, ValueError)
    assert await queue.get() == 3


async def test_of_many_only_the_first_may_leave_with_its_error(open_queue: Opener, scripting: bool) -> None:
    queue, _ = await _with_garbage(open_queue, scripting)
    assert await queue.get_many(10) == [1]
    with pytest.raises(DecodeError) as raised:
        await queue.get_many(10)
    assert raised.value.raw == b"{garbage"
    assert await queue.get_many(10) == [3]
    assert (await queue.statistics()).consumed_messages == 3


class Cancelling:
    """Numbers. A message that is no number cancels the task that decodes it, in the next turn of the event loop."""

    def encode(self, item: int) -> bytes:
        return b"%d" % item

    def decode(self, message: bytes) -> int:
        try:
            return int(message)
        except ValueError:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            raise


@pytest.mark.parametrize("messages", [[b"1", b"2", b"{garbage", b"4"], [b"{garbage", b"2"]])
async def test_cancelled_over_what_cannot_be_decoded_nothing_is_lost(
    open_queue: Opener, scripting: bool, messages: list[bytes]
) -> None:
    raw = await open_queue()
    await raw.put_many(messages)
    queue = await open_queue(codec=Cancelling(), create=False, scripting=scripting)
    getter = asyncio.create_task(queue.get_many(10))
    await fails(asyncio.CancelledError, getter)
    assert (await raw.statistics()).consumed_messages == 0
    assert await raw.get_many(10) == messages


async def test_the_consumer_role_does_not_lose_what_it_cannot_decode(open_queue: Opener) -> None:
    queue, raw = await _with_garbage(open_queue)
    seen = []
    with pytest.raises(DecodeError) as raised:
        async with queue.consumer() as consumer:
            async for item in consumer:
                seen.append(item)
    assert (seen, raised.value.raw) == ([1], b"{garbage")
    assert await in_time(raw.get_many(5)) == [b"{garbage", b"3"]


async def test_a_loop_may_go_on_past_what_it_cannot_decode(open_queue: Opener) -> None:
    queue, raw = await _with_garbage(open_queue)
    async with queue.consumer() as consumer:
        assert await anext(consumer) == 1
        with pytest.raises(DecodeError):
            await anext(consumer)
        assert await anext(consumer) == 3
    statistics = await raw.statistics()
    assert (statistics.consumed_messages, statistics.length) == (3, 0)


async def test_a_delivery_that_cannot_be_decoded_is_in_flight_still(open_queue: Opener) -> None:
    queue, raw = await _with_garbage(open_queue)
    assert await queue.get() == 1
    delivery = await queue.receive()
    for _ in range(2):
        with pytest.raises(DecodeError):
            _ = delivery.item
    assert delivery.raw == b"{garbage"
    await delivery.nack()
    assert await raw.get() == b"{garbage"


async def test_a_codec_of_ones_own(open_queue: Opener) -> None:
    class Hex:
        def encode(self, item: int, /) -> bytes:
            return b"%x" % item

        def decode(self, data: bytes, /) -> int:
            return int(data, 16)

    queue = await open_queue(codec=Hex())
    await queue.put(255)
    assert await queue.peek() == 255
    raw = await open_queue(create=False)
    await raw.put(b"nonsense")
    assert await queue.get() == 255
    with pytest.raises(DecodeError):
        await queue.get()
