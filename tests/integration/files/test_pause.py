"""A paused queue in a directory: its consumers take nothing, in all processes, until it is resumed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from apressure import FileQueue, QueueClosedError, QueueEmptyError, pipe
from tests.integration.files.conftest import Clock, Make, drain, files

MARKER = ".queue-v1-paused"


async def eventually(holds: Any) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(90):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_a_file_says_it(make: Make) -> None:
    queue = make()
    await queue.create()
    await queue.pause()
    assert files(queue) == [MARKER]
    async with FileQueue(queue.path) as other:  # as after a restart
        assert (await other.statistics()).paused
        (queue.path / MARKER).unlink()
        assert not (await other.statistics()).paused
    await queue.pause()
    await queue.delete()
    assert not queue.path.exists()


async def test_all_who_wait_wake_when_it_is_resumed(make: Make) -> None:
    queues = [make() for _ in range(5)]
    await queues[0].create()
    await queues[0].pause()
    await queues[0].put_many([b"%d" % number for number in range(5)])
    waiting = [asyncio.create_task(queue.receive()) for queue in queues]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    assert (await queues[0].statistics()).length == 5
    await queues[3].resume()
    async with asyncio.timeout(90):
        got = [(await task).raw for task in waiting]
    assert sorted(got) == [b"%d" % number for number in range(5)]


async def test_a_pause_does_not_spin(make: Make, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    queue = make(clock=clock, poll_interval=10)
    await queue.put_many([b"a", b"b"])
    await queue.receive(lease=1)
    clock.now += 100  # its lease has ended
    await queue.pause()
    await queue.close()
    looks = []
    real = queue._receiver.take

    async def take(*arguments: Any) -> Any:
        looks.append(arguments)
        return await real(*arguments)

    monkeypatch.setattr(queue._receiver, "take", take)
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert len(looks) < 5
    waiting.cancel()
    await asyncio.wait((waiting,))


async def test_a_prefetched_buffer_goes_back_unmarked(make: Make) -> None:
    queue, other = make(), make()
    await queue.put_many([b"%d" % number for number in range(5)])
    async with queue.consumer(prefetch=4, lease=6) as consumer:
        assert await anext(consumer) == b"0"
        await other.pause()

        async def is_back() -> bool:  # by the renewal, while the body is busy
            return await other.qsize() == 4

        await eventually(is_back)
        assert (await other.statistics()).in_flight == 1
        await other.resume()
        assert [await anext(consumer) for _ in range(2)] == [b"1", b"2"]
        assert consumer.attempts == 1
    assert await drain(other) == [b"3", b"4"]


async def test_the_loop_gives_back_what_was_prefetched(make: Make, mode: dict[str, Any]) -> None:
    queue, other = make(), make()
    await queue.put_many([b"%d" % number for number in range(5)])
    got: list[bytes] = []
    polled = mode.get("notify") is False  # then only the renewal notices a pause

    async def is_back() -> bool:
        return (await other.statistics()).length == 4

    async def consume() -> None:
        async with queue.consumer(prefetch=4, lease=6 if polled else 600) as consumer:
            async for item in consumer:
                got.append(item)
                if item == b"0":
                    await other.pause()
                    await queue.statistics()  # notifications are read now and then
                    if polled:
                        await eventually(is_back)

    consuming = asyncio.create_task(consume())

    async def is_settled() -> bool:
        seen = await other.statistics()
        return (seen.length, seen.in_flight) == (4, 0)

    await eventually(is_settled)
    assert got == [b"0"]
    await other.close()
    await other.resume()
    async with asyncio.timeout(90):
        await consuming
    assert got == [b"%d" % number for number in range(5)]


async def test_pipe_waits(make: Make) -> None:
    queue, out = make(), make("out")
    await out.create()
    await queue.put_many([b"a", b"b"])
    await queue.pause()
    await queue.close()
    piping = asyncio.create_task(pipe(queue, _same, out, close=True))
    await asyncio.sleep(0.2)
    assert await out.qsize() == 0
    await queue.resume()
    async with asyncio.timeout(90):
        await piping
    assert await drain(out) == [b"a", b"b"]


async def _same(item: bytes) -> bytes:
    return item


async def test_consumers_that_wait_for_the_end_wait_for_the_end_of_a_pause_first(make: Make) -> None:
    queue, other = make(), make()
    await queue.put(b"a")
    await queue.close()
    delivery = await other.receive()

    async def consume() -> list[bytes]:
        async with queue.consumer() as consumer:
            return [item async for item in consumer]

    consuming = asyncio.create_task(consume())
    await asyncio.sleep(0.1)  # it waits for what the other has in hand
    await other.pause()
    await delivery.ack()
    await asyncio.sleep(0.2)
    assert not consuming.done()
    await other.resume()
    async with asyncio.timeout(90):
        assert await consuming == []


async def test_dead_letters_wait_too(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.put(b"a")
    await (await queue.receive()).nack("broken")
    await queue.pause()
    with pytest.raises(QueueEmptyError, match="paused"):
        await queue.receive(timeout=0)
    assert await queue.dead_letters() == []
    await queue.resume()
    with pytest.raises(QueueEmptyError, match="empty"):
        await queue.receive(timeout=0)
    assert len(await queue.dead_letters()) == 1


@pytest.mark.parametrize("turns", range(0, 12, 3))
async def test_cancelled_at_any_moment_it_is_paused_or_not(make: Make, turns: int) -> None:
    queue = make()
    await queue.create()
    for change in (queue.pause, queue.resume):
        task = asyncio.create_task(change())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert (await queue.statistics()).paused is (files(queue) == [MARKER])
        await change()
        assert (await queue.statistics()).paused is (change == queue.pause)


async def test_random_pauses_lose_and_double_nothing(make: Make) -> None:
    put = [b"%d" % number for number in range(100)]
    producer, operator = make(bound=10), make()
    await producer.create()
    got: list[bytes] = []

    async def consume(queue: FileQueue[bytes]) -> None:
        async with queue.consumer(prefetch=3) as consumer:
            async for item in consumer:
                await asyncio.sleep(0)
                got.append(item)

    async def pause() -> None:
        while True:
            await operator.pause()
            await asyncio.sleep(random.random() / 50)
            await operator.resume()
            await asyncio.sleep(random.random() / 50)

    pausing = asyncio.create_task(pause())
    consuming = [asyncio.create_task(consume(make())) for _ in range(3)]
    async with asyncio.timeout(90):
        await producer.put_many(put)
        await producer.close()
        await asyncio.wait((pausing, *consuming), return_when=asyncio.FIRST_COMPLETED)
        pausing.cancel()
        await asyncio.wait((pausing,))
        await operator.resume()
        await asyncio.gather(*consuming)
    assert sorted(got) == sorted(put)
    with pytest.raises(QueueClosedError):
        await operator.receive()
