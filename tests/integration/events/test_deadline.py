"""`deadline=`: an operation on a queue of events ends in time at a frozen server, and its error tells the outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure import DeadlineError, DeadlineOutcomeUnknownError, EventQueue, QueueDoesNotExistError, TaskQueue
from apressure.embedded import EmbeddedServer
from tests.chaos.support import no_complaints
from tests.integration import deadlines
from tests.integration.conftest import PATIENCE, fails, in_time
from tests.integration.deadlines import ENDLESS, SOON, Operation
from tests.servers import frozen

CHANGES: dict[str, Operation] = {
    **deadlines.CHANGES,
    "receive_many": lambda queue, deadline: queue.receive_many(5, deadline=deadline),
    "pause": lambda queue, deadline: queue.pause(deadline=deadline),
    "resume": lambda queue, deadline: queue.resume(deadline=deadline),
}
LOOKS: dict[str, Operation] = {
    **deadlines.LOOKS,
    "dead_letters": lambda queue, deadline: queue.dead_letters(deadline=deadline),
}
BEGIN_WITH_A_LOOK: dict[str, Operation] = {
    "purge": lambda queue, deadline: queue.purge(deadline=deadline),
    "requeue": lambda queue, deadline: queue.requeue(deadline=deadline),
}


@pytest.fixture
async def queue(own: EmbeddedServer) -> AsyncIterator[EventQueue[bytes]]:
    """A queue with one event, by a client that gives up nothing by itself in the time of a test."""
    async with no_complaints(), EventQueue("jobs", url=own.url, **ENDLESS) as queue:
        await queue.create(5)
        await queue.put(b"1")
        yield queue


@pytest.mark.parametrize("name", CHANGES)
async def test_a_frozen_server_leaves_the_outcome_unknown_and_loses_nothing(
    own: EmbeddedServer, queue: EventQueue[bytes], name: str
) -> None:
    with frozen(own):
        raised = await fails(
            DeadlineOutcomeUnknownError, CHANGES[name](queue, SOON), r"'jobs' .* deadline of 0.2 s: .*may carry it out"
        )
        assert raised.name == "jobs"
    if name == "delete":
        async with asyncio.timeout(PATIENCE):
            while await queue.exists():
                await asyncio.sleep(0.01)
        return
    # What came too late was given back, or was put once; and the queue works as before.
    await queue.client.aclose()
    expected = [b"1", b"2"] if name.startswith("put") else [b"1"]
    async with EventQueue("jobs", url=own.url) as other:
        if name == "pause":
            assert await in_time(other.resume())
        assert await in_time(other.get_many(10)) == expected


@pytest.mark.parametrize("name", [*LOOKS, *BEGIN_WITH_A_LOOK])
async def test_what_has_changed_nothing_ends_in_time(own: EmbeddedServer, queue: EventQueue[bytes], name: str) -> None:
    with frozen(own):
        raised = await fails(DeadlineError, {**LOOKS, **BEGIN_WITH_A_LOOK}[name](queue, SOON))
    assert name in BEGIN_WITH_A_LOOK or type(raised) is DeadlineError
    assert await in_time(queue.qsize()) == 1


@pytest.mark.parametrize("name", [*CHANGES, *LOOKS, *BEGIN_WITH_A_LOOK])
async def test_a_deadline_of_0_does_nothing(queue: EventQueue[bytes], name: str) -> None:
    operation = {**CHANGES, **LOOKS, **BEGIN_WITH_A_LOOK}[name]
    assert type(await fails(DeadlineError, operation(queue, 0))) is DeadlineError
    await fails(ValueError, operation(queue, -1))
    assert await queue.qsize() == 1


async def test_it_covers_waiting(queue: EventQueue[bytes]) -> None:
    assert await in_time(queue.get(deadline=PATIENCE)) == b"1"
    assert type(await fails(DeadlineError, queue.receive(deadline=SOON))) is DeadlineError
    await queue.put_many([b"%d" % number for number in range(4)])
    raised = await fails(DeadlineError, queue.put_many([b"a", b"b"], deadline=SOON))
    assert raised.accepted == 1
    await queue.delete()
    await fails(QueueDoesNotExistError, queue.pause(deadline=PATIENCE))


@pytest.mark.parametrize("kind", [EventQueue, TaskQueue])
async def test_a_block_that_is_cancelled_at_its_beginning_ends_in_time(own: EmbeddedServer, kind: Any) -> None:
    async with (
        no_complaints(),
        kind("jobs", url=own.url, codec="json", settle_timeout=3, response_timeout=100) as queue,
    ):
        await queue.qsize()
        with frozen(own):
            entering = asyncio.create_task(queue.consumer().__aenter__())
            await asyncio.sleep(0.1)
            began = time.monotonic()
            entering.cancel()
            await fails(asyncio.CancelledError, entering)
            assert time.monotonic() - began > 2.5  # and `fails` waits for less than the response timeout
        await queue.put("1")
        assert await in_time(queue.get()) == "1"
