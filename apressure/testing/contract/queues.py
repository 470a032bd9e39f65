"""The part of the contract that every kind of queue keeps."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from apressure import Backoff, serve
from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
)
from apressure.protocols import Delivery, NotesErrors
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, begun, comes_anew, drained, fails, in_time


class QueueContract:
    """The tests that every kind of queue passes."""

    # The queue as a whole

    async def test_a_queue_exists_from_create_to_delete(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=3)
        assert await queue.exists()
        assert await queue.bound() == 3
        await queue.delete()
        assert not await queue.exists()
        await fails(QueueDoesNotExistError, queue.put(b"1"))

    async def test_create_says_that_a_queue_exists(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=3)
        await fails(QueueAlreadyExistsError, queue.create(bound=5))
        await queue.create(bound=5, exist_ok=True)
        assert await queue.bound() == 3

    async def test_the_bound_is_the_same_for_every_object(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=2)
        other = await open_queue()
        assert await other.bound() == 2
        await other.put_many(ITEMS[:2])
        await fails(QueueFullError, other.put_nowait(b"3"))

    async def test_purge_deletes_what_waits_and_says_how_much(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        delivery = await in_time(queue.receive())
        assert await queue.purge() == 9
        assert await queue.qsize() == 0
        await delivery.nack()
        assert await drained(queue) == ITEMS[:1]
        assert await queue.purge() == 0

    async def test_looking_changes_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await fails(QueueEmptyError, queue.peek())
        await queue.put_many(ITEMS)
        assert (await queue.peek(), await queue.peek_newest(), await queue.qsize()) == (b"0", b"9", 10)
        assert (await queue.statistics()).length == 10
        assert await drained(queue) == ITEMS

    # Order and room

    async def test_messages_come_in_the_order_in_which_they_were_put(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for item in ITEMS[:3]:
            await queue.put(item)
        assert await queue.put_many(ITEMS[3:7]) == 4

        async def later() -> Any:
            for item in ITEMS[7:]:
                yield item

        assert await queue.put_many(later()) == 3
        assert await drained(await open_queue()) == ITEMS

    async def test_put_waits_for_room(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=2)
        await queue.put_many(ITEMS[:2])
        assert issubclass(type(await fails(QueueFullError, queue.put(b"2", timeout=0.05))), asyncio.QueueFull)
        await fails(QueueFullError, queue.put_nowait(b"2"))
        waiting = await begun(queue.put(b"2"))
        assert await queue.qsize() == 2
        await (await in_time(queue.receive())).ack()
        await in_time(waiting)
        assert await drained(queue) == ITEMS[1:3]

    async def test_put_many_says_how_many_it_put(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=4)
        error = await fails(QueueFullError, queue.put_many(ITEMS, timeout=0.05))
        assert isinstance(error, PressureError)
        assert error.accepted == 4
        assert await drained(queue) == ITEMS[:4]

    async def test_receive_waits_for_a_message(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        assert issubclass(type(await fails(QueueEmptyError, queue.receive(timeout=0.05))), asyncio.QueueEmpty)
        await fails(QueueEmptyError, queue.receive(timeout=0))
        waiting = await begun(queue.receive())
        await (await open_queue()).put(b"1")
        delivery = await in_time(waiting)
        assert delivery.raw == delivery.item == b"1"
        await delivery.ack()

    async def test_receive_many_returns_what_there_is(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        three = await in_time(queue.receive_many(3))
        rest = await in_time(queue.receive_many(100))
        assert [delivery.raw for delivery in (*three, *rest)] == ITEMS
        assert len({delivery.id for delivery in (*three, *rest)}) == 10
        for delivery in (*three, *rest):
            await delivery.ack()
        await fails(QueueEmptyError, queue.receive_many(3, timeout=0))

    # Deliveries

    async def test_a_delivery_says_what_it_is(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1")
        delivery = await in_time(queue.receive())
        assert isinstance(delivery, Delivery)
        assert (delivery.attempts, delivery.redelivered, delivery.settled) == (1, False, False)
        await delivery.extend(5.0)
        await delivery.ack()
        assert delivery.settled
        await fails(RuntimeError, delivery.ack())
        await fails(RuntimeError, delivery.nack())
        assert await drained(queue) == []

    async def test_what_is_given_back_comes_first_and_is_marked(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        await (await in_time(queue.receive())).nack()
        again = await in_time(queue.receive())
        assert (again.raw, again.attempts, again.redelivered) == (b"0", 2, True)
        await again.ack()
        assert await drained(queue) == ITEMS[1:3]

    async def test_a_delivery_that_notes_errors_takes_one_with_nack(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"0")
        for error in (LookupError("first"), "second", None):
            delivery: Any = await in_time(queue.receive())
            notes_errors = isinstance(delivery, NotesErrors)  # it is optional, and every kind of apressure does
            if notes_errors:
                await fails(TypeError, delivery.nack(1))
                assert not delivery.settled
                delivery.note_error("a text")
            await (delivery.nack(error) if notes_errors else delivery.nack())
            assert delivery.settled
        assert await drained(queue) == ITEMS[:1]

    async def test_a_message_that_fails_too_often_becomes_a_dead_letter(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=2)
        await queue.create()
        await queue.put_many(ITEMS[:2])
        for _ in range(2):
            delivery = await in_time(queue.receive())
            assert delivery.raw == b"0"
            await delivery.nack()
        assert await drained(queue) == ITEMS[1:2]
        assert await queue.requeue() == 1
        await comes_anew(queue, b"0")

    # Consumers and the end

    async def test_a_consumer_ends_when_the_queue_is_closed_and_drained(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        other = await open_queue()

        async def consume() -> list[bytes]:
            async with other.consumer() as consumer:
                return [item async for item in consumer]

        consuming = await begun(consume())
        async with queue.producer() as producer:
            await producer.put_many(ITEMS)
        assert await in_time(consuming) == ITEMS
        assert await queue.closed()
        assert await queue.qsize() == 0

    async def test_a_body_that_fails_gives_its_item_back(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])

        async def fail_at_the_second() -> None:
            async with queue.consumer() as consumer:
                async for item in consumer:
                    if item == b"1":
                        raise LookupError(item)

        await fails(LookupError, fail_at_the_second())
        again = await in_time(queue.receive())
        assert (again.raw, again.redelivered) == (b"1", True)
        await again.ack()
        assert await drained(queue) == ITEMS[2:3]

    async def test_a_closed_queue_takes_nothing_and_gives_what_it_has(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=2)
        await queue.put_many(ITEMS[:2])
        putting = await begun(queue.put(b"2"))
        closing = await begun((await open_queue()).wait_closed())
        assert not await queue.closed()
        await queue.close()
        await in_time(closing)
        await fails(QueueClosedError, putting)
        await fails(QueueClosedError, queue.put(b"3"))
        assert await drained(queue) == ITEMS[:2]
        await fails(QueueClosedError, queue.receive())
        await fails(QueueClosedError, queue.receive_many(3))

    async def test_closing_ends_a_waiting_receive(self, open_queue: Opener) -> None:
        await ends_a_receive(open_queue, "close", QueueClosedError)

    async def test_deleting_ends_what_waits(self, open_queue: Opener) -> None:
        await ends_a_receive(open_queue, "delete", QueueDoesNotExistError)

    async def test_closing_the_object_ends_what_waits(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        waiting = await begun(queue.receive())
        await queue.aclose()
        await fails(ClientClosedError, waiting)
        await fails(ClientClosedError, queue.put(b"1"))

    # Cancellation and concurrency

    async def test_a_cancelled_wait_leaves_nothing_behind(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=1)
        receiving = await begun(queue.receive())
        receiving.cancel()
        await fails(asyncio.CancelledError, receiving)
        await queue.put(b"0")
        putting = await begun(queue.put(b"1"))
        putting.cancel()
        await fails(asyncio.CancelledError, putting)
        assert await drained(queue) == ITEMS[:1]

    async def test_what_random_cancellations_leave_is_all_there(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        received: list[bytes] = []

        async def receive() -> None:
            delivery = await queue.receive()
            received.append(delivery.raw)
            await delivery.ack()

        for number in range(100):
            await queue.put(b"%d" % number)
            receiving = asyncio.ensure_future(receive())
            for _ in range(number % 7):
                await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait((receiving,))
        received += await drained(queue)
        assert sorted(received, key=int) == [b"%d" % number for number in range(100)]

    async def test_many_tasks_lose_and_double_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=5)
        received: list[bytes] = []

        async def put(first: int) -> None:
            for number in range(first, first + 20):
                await queue.put(b"%d" % number)

        async def receive() -> None:
            for _ in range(20):
                delivery = await queue.receive()
                received.append(delivery.raw)
                await delivery.ack()

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for part in range(5):
                group.create_task(put(20 * part))
                group.create_task(receive())
        assert sorted(received, key=int) == [b"%d" % number for number in range(100)]

    # Services

    async def test_serve_handles_everything_and_tries_again(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS)
        await queue.close()
        handled: list[bytes] = []
        failed: list[bytes] = []

        async def handle(item: bytes) -> None:
            if item == b"4" and not failed:
                failed.append(item)
                raise LookupError(item)
            handled.append(item)

        served = await in_time(serve(handle, await open_queue(), concurrency=3, retry=Backoff(0.01), signals=()))
        assert (served.handled, served.failed) == (10, 1)
        assert sorted(handled) == ITEMS

    # Bad input

    async def test_bad_input_is_refused_and_changes_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"0")
        for timeout in (math.nan, -1):
            await fails(ValueError, queue.put(b"1", timeout=timeout))
            await fails(ValueError, queue.receive(timeout=timeout))
        for bad in ("1", True):
            await fails(TypeError, queue.put(b"1", timeout=bad))
            await fails(TypeError, queue.receive(timeout=bad))
        await fails(TypeError, queue.put("text"))
        await fails(TypeError, queue.put_many(b"bytes"))
        await fails(ValueError, queue.receive_many(0))
        await fails(TypeError, queue.receive_many("3"))
        await fails(ValueError, queue.receive(lease=0))
        await fails(TypeError, queue.receive(lease="5"))
        assert await drained(queue) == [b"0"]


async def ends_a_receive(open_queue: Opener, verb: str, error: type[PressureError]) -> None:
    """Assert that a receive that waits ends when another object has called a verb."""
    queue = await open_queue()
    await queue.create()
    waiting = await begun(queue.receive())
    await getattr(await open_queue(), verb)()
    await fails(error, waiting)
