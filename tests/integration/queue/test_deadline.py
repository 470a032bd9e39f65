"""`deadline=`: an operation on a frozen or dead server ends in time, and its error tells the outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    DeadlineError,
    DeadlineOutcomeUnknownError,
    OutcomeUnknownError,
    QueueEmptyError,
    QueueFullError,
)
from apressure.dead_letters import DeadLetter
from apressure.embedded import EmbeddedServer
from apressure.pressure.engine.plain.engine import Plain
from tests.chaos.support import no_complaints
from tests.integration import deadlines
from tests.integration.conftest import PATIENCE, Opener, cancelled, eventually, fails, in_time
from tests.integration.deadlines import ENDLESS, LOOKS, SOON, Operation
from tests.servers import frozen

CHANGES: dict[str, Operation] = {
    **deadlines.CHANGES,
    "requeue": lambda queue, deadline: queue.requeue(deadline=deadline),
}
PLAIN = CHANGES.keys() - {"receive", "requeue", "create"}


@pytest.fixture
async def queue(own: EmbeddedServer, scripting: bool) -> AsyncIterator[AsyncQueue[bytes]]:
    """A queue with one message, by a client that gives up nothing by itself in the time of a test."""
    async with no_complaints(), AsyncQueue("jobs", url=own.url, scripting=scripting, **ENDLESS) as queue:
        await queue.create(5)
        await queue.put(b"1")
        yield queue


async def noticed(queue: AsyncQueue[bytes]) -> None:
    """Wait until the client knows that its connection has ended: what is sent before that may have arrived."""
    engine = queue._engine
    idle = engine._connections._idle if isinstance(engine, Plain) else []
    channels = [queue.client.connection._channel, *idle]
    await eventually(lambda: not any(channel is not None and channel.up for channel in channels))


async def contents(server: EmbeddedServer) -> list[bytes]:
    async with AsyncQueue("jobs", url=server.url) as queue:
        try:
            return await in_time(queue.get_many(10, timeout=0))  # type: ignore[no-any-return]
        except QueueEmptyError:
            return []


@pytest.mark.parametrize("name", CHANGES)
async def test_a_frozen_server_leaves_the_outcome_unknown_and_loses_nothing(
    own: EmbeddedServer, queue: AsyncQueue[bytes], scripting: bool, name: str
) -> None:
    if not (scripting or name in PLAIN):
        return  # (`create` begins with looks that change nothing)
    with frozen(own):
        raised = await fails(
            DeadlineOutcomeUnknownError, CHANGES[name](queue, SOON), r"'jobs' .* deadline of 0.2 s: .*may carry it out"
        )
        assert isinstance(raised, TimeoutError)
        assert isinstance(raised, OutcomeUnknownError)
        assert raised.name == "jobs"
    if name == "delete":
        async with asyncio.timeout(PATIENCE):
            while await queue.exists():
                await asyncio.sleep(0.01)
        return
    # What came too late was given back, or was put once; and the queue works as before.
    await queue.client.aclose()
    expected = [b"1", b"2"] if name.startswith("put") else [b"1"]
    assert await contents(own) == expected


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_at_a_frozen_server_ends_in_time(own: EmbeddedServer, queue: AsyncQueue[bytes], name: str) -> None:
    with frozen(own), pytest.raises(DeadlineError) as raised:
        await in_time(LOOKS[name](queue, SOON))
    assert type(raised.value) is DeadlineError
    assert await in_time(queue.qsize()) == 1


@pytest.mark.parametrize("name", [*CHANGES, *LOOKS])
async def test_what_was_never_sent_is_certainly_not_done(own: EmbeddedServer, name: str) -> None:
    async with AsyncQueue("jobs", url=own.url) as queue:
        await queue.create(5)
        await queue.put(b"1")
    operation = {**CHANGES, **LOOKS}[name]
    async with no_complaints():
        late = AsyncQueue("jobs", url=own.url, **ENDLESS)
        with frozen(own):
            raised = await fails(DeadlineError, operation(late, SOON))
            assert type(raised) is DeadlineError
        assert await in_time(late.statistics()) is not None  # by now it is connected
        assert not await late.closed()
        assert await in_time(late.get_many(5)) == [b"1"]
        await late.aclose()


async def test_a_put_on_a_server_that_is_down_is_taken_back(
    own: EmbeddedServer, queue: AsyncQueue[bytes], scripting: bool
) -> None:
    own.stop()
    await noticed(queue)
    puts = [asyncio.ensure_future(queue.put(b"late %d" % index, deadline=SOON)) for index in range(50)]
    staying = asyncio.ensure_future(queue.put(b"2"))
    ended = await in_time(asyncio.gather(*puts, return_exceptions=True))
    assert {type(error) for error in ended} == {DeadlineError}
    await fails(DeadlineError, queue.put(b"3", deadline=SOON), r"nothing was done")
    own.start()
    await in_time(staying) if scripting else staying.cancel()
    if scripting:
        assert await in_time(queue.get_many(99)) == [b"1", b"2"]


async def test_a_put_that_is_cancelled_on_a_server_that_is_down_is_taken_back(own: EmbeddedServer) -> None:
    async with no_complaints(), AsyncQueue("jobs", url=own.url, **ENDLESS) as queue:
        await queue.create()
        own.stop()
        await noticed(queue)
        cancelled = [asyncio.ensure_future(work) for work in (queue.put(b"1"), queue.receive(), queue.close())]
        await asyncio.sleep(SOON)
        for task in cancelled:
            task.cancel()
        await in_time(asyncio.wait(cancelled))
        assert all(task.cancelled() for task in cancelled)
        own.start()
        await in_time(queue.put(b"2"))
        assert await in_time(queue.get_many(5)) == [b"2"]


async def test_a_deadline_that_passes_while_the_queue_is_full_put_nothing(open_queue: Opener) -> None:
    queue = await open_queue(bound=2)
    raised = await fails(
        DeadlineError, queue.put_many([b"1", b"2", b"3"], deadline=SOON), "2 items were put, and no more"
    )
    assert (type(raised), raised.accepted) == (DeadlineError, 2)
    raised = await fails(DeadlineError, queue.put(b"4", deadline=SOON), "nothing was done")
    assert (type(raised), raised.accepted) == (DeadlineError, 0)
    async with queue.producer(close=False, exclusive=True) as producer:
        for putting in (
            producer.put(b"5", deadline=SOON), producer.put_many([b"5"], deadline=SOON),
            producer.put_nowait(b"5", deadline=0),
        ):  # fmt: skip
            await fails(DeadlineError, putting, "nothing was done")
    assert await queue.get_many(9) == [b"1", b"2"]
    await fails(DeadlineError, queue.get(deadline=SOON), "nothing was done")
    assert (await queue.statistics()).waiting_receivers == 0


async def test_a_deadline_tells_how_many_dead_letters_were_moved(open_queue: Opener, url: str) -> None:
    queue = await open_queue(bound=2)
    letters = [DeadLetter(f"{number}", b"%d" % number, 1, None, None, bytes) for number in range(3)]
    await queue.add_dead_letters(letters)
    raised = await fails(DeadlineError, queue.requeue(deadline=SOON), "2 items were moved, and no more")
    assert raised.accepted == 2
    assert await queue.get_many(9) == [b"0", b"1"]
    assert await queue.requeue() == 1
    async with AsyncQueue("jobs:dead", url=url) as dead:
        await dead.delete()


async def test_put_many_of_a_generator_ends_in_time(open_queue: Opener) -> None:
    queue = await open_queue()

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await asyncio.sleep(60)

    await fails(DeadlineError, queue.put_many(generate(), deadline=SOON), "2 items were put")
    assert await queue.qsize() == 2


async def test_what_ends_earlier_ends_as_without_a_deadline(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    assert await queue.put_many([b"1"], deadline=60) == 1
    await fails(QueueFullError, queue.put(b"2", timeout=0.01, deadline=60))
    assert await queue.get(deadline=math.inf) == b"1"
    waiting = asyncio.ensure_future(queue.get(deadline=60))
    await asyncio.sleep(0)
    await cancelled(waiting)
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.01):
            await queue.get(deadline=60)
    assert not isinstance(raised.value, DeadlineError)


@pytest.mark.parametrize(
    ("deadline", "error"), [(math.nan, ValueError), (-1, ValueError), ("1", TypeError), (True, TypeError)]
)
async def test_a_deadline_is_a_number_of_seconds(open_queue: Opener, deadline: Any, error: type[Exception]) -> None:
    queue = await open_queue()
    async with queue.producer(close=False) as producer:
        for operation in [
            *CHANGES.values(), *LOOKS.values(), lambda _, deadline: producer.put(b"1", deadline=deadline),
            lambda _, deadline: producer.put_many([b"1"], deadline=deadline),
            lambda _, deadline: producer.put_nowait(b"1", deadline=deadline),
        ]:  # fmt: skip
            with pytest.raises(error, match="deadline must be"):
                await operation(queue, deadline)
    assert await queue.qsize() == 0
