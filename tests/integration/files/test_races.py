"""Several tasks and objects at the same moment, above all with calls in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from apressure import FileQueue, QueueEmptyError, QueueFullError
from apressure.files.storage.index import Index
from tests.integration.files.conftest import Make, drain, files


async def test_messages_that_go_to_and_fro_are_never_forgotten(make: Make) -> None:
    queues = [make() for _ in range(2)]
    await queues[0].put_many([b"%d" % number for number in range(5)])

    async def work(queue: FileQueue[bytes]) -> None:
        for _ in range(100):
            with contextlib.suppress(QueueEmptyError):
                message = await queue.receive(timeout=0)
                await message.nack()

    await asyncio.gather(*(work(queue) for queue in queues for _ in range(3)))
    for queue in queues:
        seen = await queue.statistics()
        assert (seen.length, seen.in_flight) == (5, 0)
    assert await drain(queues[0]) == [b"%d" % number for number in range(5)]


async def test_a_publisher_that_is_cancelled_when_others_were_quicker_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(bound=5)
    await queue.create()
    await queue.statistics()
    create, abandon = queue._putter._create, queue._store.directory.abandon
    loop = asyncio.get_running_loop()

    def quicker(keys: Any, messages: Any) -> Any:
        for number in (1, 2):
            (queue.path / str(keys[0] // 2000 - number)).touch()
        return create(keys, messages)

    def cancelled(reserved: Any) -> None:
        loop.call_soon_threadsafe(publishing.cancel)
        abandon(reserved)

    monkeypatch.setattr(queue._putter, "_create", quicker)
    monkeypatch.setattr(queue._store.directory, "abandon", cancelled)
    publishing = asyncio.create_task(queue.put_many([b"x"] * 5, timeout=0))
    with contextlib.suppress(asyncio.CancelledError, QueueFullError):
        await publishing
    assert not [name for name in files(queue) if name.endswith(".new")]
    assert not queue._store.own


async def test_a_listing_is_read_in_the_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    of, threads = Index.of, []

    def noted(*arguments: Any) -> Index:
        threads.append(threading.current_thread())
        return of(*arguments)

    monkeypatch.setattr(Index, "of", noted)
    queue = make()
    await queue.create()
    await queue.statistics()
    assert threads
    assert threading.main_thread() not in threads


async def test_a_lease_that_ends_while_the_message_is_being_taken(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    message_id = await queue.put(b"a")
    opened = queue._store.directory._open_taken
    names: list[str] = []

    def too_late(filename: str, *more: Any) -> Any:
        if not names:
            (queue.path / filename).rename(queue.path / message_id)  # another client requeues it
        names.append(filename)
        return opened(filename, *more)

    monkeypatch.setattr(queue._store.directory, "_open_taken", too_late)
    message = await queue.receive(timeout=0)
    assert (message.raw, len(names)) == (b"a", 2)
