"""The part of the contract that is about keys: `put(key=)` and `set_key`."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import Any

import pytest

from apressure import Backoff, serve
from apressure.core import KeyLimit
from apressure.exceptions import QueueClosedError, QueueDoesNotExistError, QueueEmptyError, QueueFullError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time

HOUR = 3600.0


class KeyContract:
    """The messages of a key are handled as many at a time as allowed, and in order."""

    async def test_one_of_a_key_at_a_time(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        for item in ITEMS[:4]:
            await queue.put(item, key="a")
        await queue.put(b"b", key="b")
        await queue.put(b"none")
        held = await in_time(other.receive_many(10))
        assert sorted(one.raw for one in held) == [b"0", b"b", b"none"]
        await fails(QueueEmptyError, queue.receive(timeout=0))
        for one in held[1:]:
            await one.ack()
        await fails(QueueEmptyError, queue.receive(timeout=0.05))
        statistics = await queue.statistics()
        assert (statistics.length, statistics.parked, statistics.in_flight) == (3, 3, 1)
        assert statistics.limits.key == KeyLimit()
        assert await queue.qsize() == 3
        waiting = await begun(queue.receive())
        await next(one for one in held if one.raw == b"0").ack()
        second = await in_time(waiting)
        assert second.raw == b"1"
        await second.ack()
        assert await drained(queue) == [b"2", b"3"]

    async def test_as_many_of_a_key_as_allowed(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_key(at_most=2)
        for item in ITEMS[:5]:
            await queue.put(item, key="a")
        held = await _all_of(queue)
        assert [one.raw for one in held] == ITEMS[:2]
        await fails(QueueEmptyError, queue.receive(timeout=0))
        await held[1].ack()
        third = await in_time(queue.receive())
        assert third.raw == b"2"
        await fails(QueueEmptyError, queue.receive(timeout=0))
        await queue.set_key(at_most=3)
        fourth = await in_time(queue.receive())
        assert fourth.raw == b"3"
        await queue.set_key(at_most=None, fair=False)
        assert (await queue.limits()).key is None
        fifth = await in_time(queue.receive())
        for one in (held[0], third, fourth, fifth):
            await one.ack()
        assert fifth.raw == b"4"

    @pytest.mark.parametrize("way", ["nack", "delay", "lease", "release"])
    async def test_what_comes_again_is_the_first_of_its_key(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        for item in ITEMS[:3]:
            await queue.put(item, key="a")
        first = await in_time(other.receive(lease=0.5 if way == "lease" else 30))
        assert first.raw == b"0"
        waiting = await begun(queue.receive())
        if way == "nack":
            await first.nack()
        elif way == "delay":
            await first.nack(delay=0.3)
        elif way == "release":
            await first.release()
        again = await in_time(waiting)
        assert again.raw == b"0"
        await fails(QueueEmptyError, other.receive(timeout=0))
        await again.ack()
        assert await drained(queue) == [b"1", b"2"]

    async def test_the_key_of_messages_of_json(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_key("/customer/0/id")
        assert (await queue.limits()).key == KeyLimit(1, "/customer/0/id", fair=True)
        items = [
            b'{"customer": [{"id": "x"}], "n": 1}', b'{"customer": [{"id": "x"}], "n": 2}',
            b'{"customer": [{"id": 7}], "n": 1}', b'{"customer": [{"id": 7}], "n": 2}',
            b'{"customer": [{"id": true}]}', b'{"customer": [{"id": true}], "n": 2}',
            b'{"customer": {"0": {"id": "7"}}}',
        ]  # fmt: skip
        without = [b"no JSON", b"[]", b'{"customer": [{"id": null}]}', b'{"customer": []}', b'"x"', b"{"]
        await queue.put_many([*items, *without])
        held = await _all_of(queue)
        assert sorted(one.raw for one in held) == sorted([*items[::2][:3], *without])
        for one in held:
            await one.ack()
        assert sorted(await drained(queue)) == sorted([items[1], items[3], items[5], items[6]])

    async def test_a_key_that_is_given_goes_before_the_one_in_the_message(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_key("/k")
        await queue.put(b'{"k": "a", "n": 1}', key="b")
        await queue.put(b'{"k": "a", "n": 2}')
        await queue.put(b'{"k": "b", "n": 3}')
        held = await _all_of(queue)
        assert sorted(one.raw for one in held) == [b'{"k": "a", "n": 1}', b'{"k": "a", "n": 2}']
        for one in held:
            await one.ack()
        assert await drained(queue) == [b'{"k": "b", "n": 3}']

    async def test_keys_take_turns(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_key(at_most=None)
        await queue.put_many([b"a"] * 300, key="a")
        await queue.put_many([b"b"] * 3, key="b")
        got = []
        for _ in range(8):
            delivery = await in_time(queue.receive())
            got.append(delivery.raw)
            await delivery.ack()
        assert got.count(b"b") == 3
        assert len(await drained(queue)) == 295

    async def test_or_go_by_who_came_first(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_key(at_most=1, fair=False)
        for number in range(9):
            await queue.put(b"%d" % number, key="ab"[number % 4 == 3])
        got = []
        for _ in range(9):
            delivery = await in_time(queue.receive())
            got.append(delivery.raw)
            await delivery.ack()
        assert got == ITEMS[:9]

    @pytest.mark.parametrize("way", ["automatic", "manual", "serve"])
    async def test_services_handle_them_in_order(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=50)
        busy: collections.Counter[bytes] = collections.Counter()
        done: dict[bytes, list[int]] = collections.defaultdict(list)
        failed: set[bytes] = set()

        async def handle(item: bytes) -> None:
            key, number = item.split(b" ")
            busy[key] += 1
            assert busy[key] == 1
            await asyncio.sleep(0.001)
            busy[key] -= 1
            if int(number) % 7 == 3 and item not in failed:
                failed.add(item)
                raise ValueError("the first time")
            done[key].append(int(number))

        async def consume(queue: Any) -> None:
            if way == "serve":
                await serve(handle, queue, concurrency=4, retry=Backoff(0.01, jitter=False), signals=())
            async with queue.consumer("manual" if way == "manual" else "auto") as consumer:
                async for one in consumer:
                    item = one.raw if way == "manual" else one
                    with contextlib.suppress(ValueError):
                        await handle(item)
                        if way == "manual":
                            await one.ack()
                        continue
                    if way == "manual":
                        await one.nack(delay=0.01)
                    else:
                        await handle(item)

        consumers = [await begun(consume(one)) for one in (queue, other)]
        for number in range(20):
            for key in ("a", "b", "c"):
                await in_time(queue.put(f"{key} {number}".encode(), key=key))
        await queue.close()
        await in_time(asyncio.gather(*consumers))
        assert done == {key: list(range(20)) for key in (b"a", b"b", b"c")}

    async def test_get_waits_for_those_in_flight(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        for item in ITEMS[:4]:
            await queue.put(item, key="a")
        held = await in_time(queue.receive())
        await fails(QueueEmptyError, other.get(timeout=0))
        getting = await begun(other.get())
        await held.ack()
        assert await in_time(getting) == b"1"
        assert await in_time(other.get()) == b"2"
        assert await in_time(queue.get_many(5)) == [b"3"]

    async def test_what_is_parked_counts_and_can_be_purged(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=3)
        for item in ITEMS[:3]:
            await queue.put(item, key="a")
        held = await in_time(queue.receive())
        await fails(QueueEmptyError, queue.receive(timeout=0))  # from now on, the others are parked
        assert await queue.peek() == b"1"
        await queue.put(b"3", key="a")
        await fails(QueueFullError, queue.put_nowait(b"4", key="b"))
        putting = await begun(queue.put(b"4", key="b"))
        assert await in_time(queue.purge()) in {3, 4}
        await in_time(putting)
        await held.ack()
        rest = await drained(queue)
        assert rest in ([], [b"4"])
        assert (await queue.statistics()).parked == 0

    async def test_browsing_shows_what_is_parked_in_the_line_of_its_key(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        for item in ITEMS[:4]:
            await queue.put(item, key="ä" if item in ITEMS[:3] else "b")
        held = [await in_time(queue.receive()) for _ in range(2)]
        await fails(QueueEmptyError, queue.receive(timeout=0))  # from now on, the others are parked
        page = await other.browse("parked", limit=1)
        assert (page.messages[0].item, page.messages[0].key, page.total) == (b"1", "ä", 2)
        (last,) = (await other.browse("parked", limit=1, cursor=page.cursor)).messages
        assert (last.item, last.key) == (b"2", "ä")
        (newest,) = (await other.browse("parked", limit=1, newest=True)).messages
        assert newest.item == b"2"
        assert {message.item: message.key for message in (await other.browse("in_flight")).messages} == {
            b"0": "ä", b"3": "b",
        }  # fmt: skip
        assert (await other.browse()).total == 0
        for delivery in held:
            await delivery.ack()

    async def test_a_closed_queue_drains(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        for item in ITEMS[:5]:
            await queue.put(item, key="a")
        await queue.close()
        got: list[bytes] = []

        async def consume(queue: Any) -> None:
            async with queue.consumer() as consumer:
                async for item in consumer:
                    got.append(item)
                    await asyncio.sleep(0.01)

        await in_time(asyncio.gather(consume(queue), consume(other)))
        assert got == ITEMS[:5]
        await fails(QueueClosedError, queue.get())

    async def test_a_dead_letter_lets_the_next_one_pass_and_keeps_its_key(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        for item in ITEMS[:3]:
            await queue.put(item, key="a")
        failed = await in_time(queue.receive())
        await failed.nack()
        second = await in_time(queue.receive())
        assert second.raw == b"1"
        assert await queue.requeue() == 1
        await fails(QueueEmptyError, queue.receive(timeout=0))  # it waits for the second one
        await second.ack()
        assert await drained(queue) == [b"2", b"0"]

    async def test_delays_and_many_of_one_key(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"late", delay=0.2, key="a")
        assert await queue.put_many(ITEMS[:3], key="a") == 3
        async with queue.producer(close=False) as producer:
            await producer.put(b"3", key="a")
            await producer.put_many([b"4"], key="a")
        first = await in_time(queue.receive())
        await asyncio.sleep(0.3)
        await fails(QueueEmptyError, queue.receive(timeout=0))
        await first.ack()
        assert await drained(queue) == [b"1", b"2", b"3", b"4", b"late"]

    async def test_the_end_of_a_queue(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS, key="a")
        held = await in_time(queue.receive())
        await queue.delete()
        await held.release()
        await fails(QueueDoesNotExistError, queue.set_key("/a"))
        await queue.create()
        await queue.put(b"1", key="a")
        assert await drained(queue) == [b"1"]

    async def test_bad_arguments_change_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for key in ("", "x" * 513, "\ud83d"):
            await fails(ValueError, queue.put(b"1", key=key))
        for wrong in (7, b"a"):
            await fails(TypeError, queue.put(b"1", key=wrong))
        for pointer in ("", "a", "/~2", "/" + "x" * 512):
            await fails(ValueError, queue.set_key(pointer))
        await fails(TypeError, queue.set_key(7))
        await fails(ValueError, queue.set_key("/a", 0))
        await fails(TypeError, queue.set_key("/a", 1.5))
        await fails(TypeError, queue.set_key("/a", fair="yes"))
        await fails(TypeError, queue.put(b"1", keys="a"))
        assert (await queue.qsize(), (await queue.limits()).key) == (0, None)

    async def test_cancelled_operations_lose_nothing(self, open_queue: Opener) -> None:
        async def put(queue: Any) -> None:
            await queue.put(b"9", key="a")

        async def put_and_get(queue: Any) -> Any:
            await queue.put(b"9", key="a")
            return await queue.get_many(2)

        async def check(queue: Any, got: Any) -> None:
            found = sorted([*(got or []), *await drained(queue)])
            assert found in (ITEMS[:3], [*ITEMS[:3], b"9"])
            assert (await queue.statistics()).parked == 0

        for operation in (put, put_and_get):
            await everywhere(open_queue, operation, check)


async def _all_of(queue: Any) -> list[Any]:
    held: list[Any] = []
    while True:
        try:
            held += await in_time(queue.receive_many(20, timeout=0))
        except QueueEmptyError:
            return held
