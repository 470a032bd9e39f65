"""The part of the contract that is about `browse`: what is in a queue, page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from apressure.testing.contract.steps import ITEMS, Opener, Words, drained, in_time

PLACES = ("waiting", "in_flight", "delayed", "parked")


class BrowseContract(Words):
    """`browse` shows what is where, in two orders and page by page, and takes nothing."""

    async def test_an_empty_queue_has_empty_pages(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for place in PLACES:
            page = await queue.browse(place)
            assert (page.messages, page.cursor, page.total) == ((), None, 0), place

    async def test_browsing_shows_what_waits_from_both_ends(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        for newest, expected in ((False, ITEMS), (True, ITEMS[::-1])):
            assert await items_of(other, "waiting", newest=newest) == expected
            for limit in (1, 3, 10):
                assert await items_of(other, "waiting", newest=newest, limit=limit) == expected
        page = await other.browse(limit=4)
        assert [message.item for message in page.messages] == ITEMS[:4]
        assert page.total == 10
        assert page.cursor is not None
        for message in page.messages:
            assert (message.raw, message.size, message.error) == (message.item, 1, "")
            assert message.attempts in (0, None)
            assert (message.holder, message.due, message.key) == (None, None, None)
        assert (await queue.statistics()).in_flight == 0
        assert await drained(queue) == ITEMS

    async def test_browsing_shows_what_is_in_flight(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        before = datetime.now(UTC)
        deliveries = await in_time(queue.receive_many(5))
        await deliveries[2].ack()
        await deliveries.pop(4).nack()
        left = [ITEMS[0], ITEMS[1], ITEMS[3]]
        assert await items_of(other, "in_flight") == left
        assert await items_of(other, "in_flight", newest=True, limit=2) == left[::-1]
        assert await items_of(other, "in_flight", limit=1) == left
        page = await other.browse("in_flight")
        assert (page.total, page.cursor) == (3, None)
        for message in page.messages:
            assert message.attempts == 1
            assert message.due is None or message.due > before
        assert (await other.browse(limit=1)).messages[0].item == ITEMS[4]
        for delivery in (*deliveries[:2], deliveries[3]):
            await delivery.ack()
        assert (await other.browse("in_flight")).total == 0

    async def test_a_message_that_comes_again_says_so_in_flight(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        await (await in_time(queue.receive())).nack()
        again, other = await in_time(queue.receive()), await in_time(queue.receive())
        page = await queue.browse("in_flight")
        assert {message.item: message.attempts for message in page.messages} == {b"0": 2, b"1": 1}
        await again.ack()
        await other.ack()

    async def test_browsing_shows_what_a_consumer_has(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        async with queue.consumer("manual", shared=True, prefetch=4) as consumer:
            delivery = await in_time(anext(consumer))
            found = await items_of(other, "in_flight", limit=3)
            assert found == ITEMS[: len(found)]
            assert len(found) + len(await items_of(other, "waiting", limit=3)) == 10
            await delivery.ack()
            assert await items_of(other, "in_flight") == ITEMS[1 : len(found)]

    async def test_browsing_shows_what_is_delayed(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        before = datetime.now(UTC)
        for number in (3, 1, 2):
            await queue.put(b"%d" % number, delay=60.0 * number)
        assert await items_of(other, "delayed") == ITEMS[1:4]
        assert await items_of(other, "delayed", newest=True, limit=2) == ITEMS[3:0:-1]
        for number, message in enumerate((await other.browse("delayed")).messages, 1):
            late = message.due - before - timedelta(minutes=number)
            assert timedelta(seconds=-1) < late < timedelta(seconds=30)
        assert (await other.browse()).total == 0

    async def test_browsing_reads_no_more_of_a_message_than_it_may(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many([b"x" * 10_000, b"short"])
        large, short = (await queue.browse(most_bytes=100)).messages
        assert (large.item, large.raw, large.size) == (None, b"x" * 100, 10_000)
        assert "10000 bytes" in large.error
        assert (short.item, short.error) == (b"short", "")

    async def test_pages_of_large_messages_may_be_shorter(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many([b"%d" % number * 300_000 for number in range(10)])
        found = await items_of(queue, "waiting", most_bytes=1 << 20)
        assert [item[:1] for item in found] == ITEMS

    async def test_browsing_says_what_cannot_be_decoded(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(codec="json"), await open_queue()
        await owner.create()
        await owner.put_many([b"1", b"{", b"3"])
        messages = (await queue.browse()).messages
        assert [message.item for message in messages] == [1, None, 3]
        assert [bool(message.error) for message in messages] == [False, True, False]
        assert messages[1].raw == b"{"

    async def test_pages_may_shift_and_never_fail(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        cursor = (await other.browse(limit=4)).cursor
        await drained(queue)
        page = await other.browse(cursor=cursor)
        assert (page.messages, page.cursor, page.total) == ((), None, 0)
        page = await other.browse(cursor=f"waiting-oldest-{10**15 - 1}")
        assert (page.messages, page.cursor) == ((), None)


async def items_of(queue: Any, place: str, **how: Any) -> list[Any]:
    """Return the items of all pages of a place."""
    items: list[Any] = []
    cursor = None
    while True:
        page = await in_time(queue.browse(place, cursor=cursor, **how))
        items += [message.item for message in page.messages]
        if (cursor := page.cursor) is None:
            assert len(items) == page.total
            return items
        assert len(page.messages) <= how.get("limit", 100)
