"""`get` of a message: its file is deleted before the item is returned, and what a cancellation leaves waits again."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from apressure import QueueEmptyError, StorageError
from apressure.files.storage.directory import Directory
from tests.integration.conftest import in_time
from tests.integration.files.conftest import MODES, Clock, Make, drain, files


async def test_what_was_got_is_gone(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.put_many([b"0", b"1", b"2"])
    assert await in_time(queue.get()) == b"0"
    assert await in_time(queue.get_many(5)) == [b"1", b"2"]
    assert files(queue) == []
    assert (await queue.statistics()).deleted_count == 3


@pytest.mark.parametrize("mode", [MODES["threads"]], ids=["threads"])
async def test_what_a_cancelled_get_has_deleted_waits_again_where_it_was(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, delete = make(), Directory.delete
    ids = [await queue.put(b"%d" % number) for number in range(4)]
    await (await queue.receive()).nack()
    reached, goes_on, seen = threading.Event(), threading.Event(), 0

    def slow(directory: Directory, filename: str) -> bool:
        nonlocal seen
        seen += 1
        if seen == 2:
            reached.set()
            goes_on.wait()
        return delete(directory, filename)

    monkeypatch.setattr(Directory, "delete", slow)
    getting = asyncio.ensure_future(queue.get_many(3))
    async with asyncio.timeout(60):
        while not reached.is_set():
            await asyncio.sleep(0.001)
    getting.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await in_time(getting)
    back = await in_time(queue.receive_many(4))
    assert [(one.id, one.raw, one.attempts) for one in back] == [
        (ids[0], b"0", 2), (ids[1], b"1", 1), (ids[2], b"2", 1), (ids[3], b"3", 1),
    ]  # fmt: skip


async def test_a_message_whose_lease_ended_is_not_got(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other, delete = make(clock=clock), make(clock=clock), Directory.delete
    await queue.put(b"0")
    monkeypatch.setattr(Directory, "delete", lambda directory, filename: delete(directory, filename) and False)
    with pytest.raises(QueueEmptyError):
        await in_time(queue.get(timeout=0))
    assert await other.qsize() == 0


async def test_a_file_that_cannot_be_deleted_is_not_got(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, delete, allowed = make(), Directory.delete, 1

    def refuse(directory: Directory, filename: str) -> bool:
        nonlocal allowed
        if not allowed:
            raise StorageError("refused", name="orders", errno=errno.EIO)
        allowed -= 1
        return delete(directory, filename)

    monkeypatch.setattr(Directory, "delete", refuse)
    await queue.put_many([b"0", b"1", b"2"])
    assert await queue.get_many(3) == [b"0"]
    with pytest.raises(StorageError, match="refused"):
        await queue.get_many(3)
    monkeypatch.setattr(Directory, "delete", delete)
    assert await drain(queue) == [b"1", b"2"]


@pytest.mark.parametrize("mode", [MODES["notified"]], ids=["notified"])
async def test_what_cannot_be_put_back_is_logged(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    message_id = await queue.put(b"0")
    got: Any = await queue.take(1, 0, 15)
    await queue.delete()
    queue._store.directory.restore(got[0].key, b"0", 0)
    assert f"the message {message_id}, taken by a cancelled get, could not be put back" in caplog.text


@pytest.mark.parametrize("mode", [MODES["threads"]], ids=["threads"])
async def test_a_get_that_is_cancelled_while_it_forgets_why_a_message_failed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, forget = make(max_attempts=5), Directory.forget
    await queue.put(b"0")
    await (await queue.receive()).nack("why")
    reached, goes_on = threading.Event(), threading.Event()

    def slow(directory: Directory, key: int) -> None:
        reached.set()
        goes_on.wait()
        forget(directory, key)

    monkeypatch.setattr(Directory, "forget", slow)
    getting = asyncio.ensure_future(queue.get())
    async with asyncio.timeout(60):
        while not reached.is_set():
            await asyncio.sleep(0.001)
    getting.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await in_time(getting)
    assert await drain(queue) == [b"0"]
