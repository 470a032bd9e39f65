"""An object that is closed in the middle: everybody gets a clear error, nothing is lost, and the program ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from apressure import ClientClosedError, FileQueue
from tests.integration.files.conftest import Make, files
from tests.integration.files.test_waiting import PATIENCE, parked

pytestmark = pytest.mark.timeout(60)  # what this is about is a program that does not end


async def ends_closed(task: asyncio.Task[Any]) -> ClientClosedError:
    """Wait for the end of a task, which is a ClientClosedError."""
    await asyncio.wait((task,), timeout=PATIENCE)
    assert task.done()
    with pytest.raises(ClientClosedError) as caught:
        task.result()
    return caught.value


@pytest.mark.parametrize("turns", range(1, 6))
async def test_closed_while_the_first_operation_opens_it(make: Make, turns: int) -> None:
    queue = make()
    receiving = asyncio.create_task(queue.receive(timeout=PATIENCE))
    for _ in range(turns):
        await asyncio.sleep(0)
    await queue.aclose()
    await ends_closed(receiving)


async def test_closed_after_a_task_was_woken(make: Make) -> None:
    queue = make()
    receiving = await parked(queue, queue.receive())
    await queue.put(b"a")
    if not receiving.done():  # it is woken, and has not run yet
        await queue.aclose()
        await ends_closed(receiving)
        assert len(files(queue)) == 1


async def test_closed_in_the_middle_of_put_many(make: Make) -> None:
    queue = make()
    await queue.create()
    await queue.statistics()
    publishing = asyncio.create_task(queue.put_many(b"%d" % number for number in range(100_000)))
    while len(files(queue)) < 100:
        await asyncio.sleep(0)
    await queue.aclose()
    error = await ends_closed(publishing)
    assert 100 <= len(files(queue)) == error.accepted
    assert all(name.isdigit() for name in files(queue))


async def test_closed_while_a_message_is_taken_in_the_thread_gives_it_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: FileQueue[bytes] = make(threads=True)
    message_id = await queue.put(b"a")
    take = queue._store.directory.take
    taking, closed = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        taking.set()
        closed.wait(PATIENCE)
        return take(*arguments)

    monkeypatch.setattr(queue._store.directory, "take", slow)
    receiving = asyncio.create_task(queue.receive())
    await asyncio.to_thread(taking.wait, PATIENCE)
    await queue.aclose()
    closed.set()
    await ends_closed(receiving)
    assert files(queue) == [message_id]
    assert (await make().receive(timeout=0)).attempts == 1
