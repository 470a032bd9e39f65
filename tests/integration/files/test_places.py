"""Where a queue is, and who may use an object: paths, names, options, directories that go, event loops, processes."""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from apressure import ClientClosedError, FileQueue, QueueDoesNotExistError, QueueEmptyError, StorageError
from tests.integration.files.conftest import Clock, Make, files, listing
from tests.processes import forked


def gone(before: int) -> None:
    """Until no more descriptors are open than before; a thread closes them."""
    for _ in range(200):
        if len(listing(Path("/proc/self/fd"))) <= before:
            return
        time.sleep(0.01)
    pytest.fail("descriptors were left open")


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
async def test_a_directory_that_goes(make: Make, how: str) -> None:
    queue = make()
    await queue.put(b"a")
    if how == "deleted":
        shutil.rmtree(queue.path)
    else:
        queue.path.rename(queue.path.with_name("elsewhere"))
    if how == "replaced":
        queue.path.mkdir()
    with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
        for _ in range(2):
            await queue.receive(timeout=0)
    with pytest.raises(QueueDoesNotExistError):
        await queue.put(b"b")
    if how != "deleted":
        assert len(listing(queue.path.with_name("elsewhere"))) == 1
    await queue.aclose()
    async with make() as fresh:
        await fresh.put(b"c")


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "moved above"])
async def test_settling_a_message_of_a_directory_that_goes(make: Make, how: str) -> None:
    queue = make("spool/orders")
    await queue.put(b"a")
    message = await queue.receive()
    (taken,) = files(queue)
    if how == "deleted":
        shutil.rmtree(queue.path)
    elif how == "moved above":
        queue.path.parent.rename(queue.path.parent.with_name("elsewhere"))
    else:
        queue.path.rename(queue.path.with_name("elsewhere"))
    if how == "replaced":
        queue.path.mkdir()
    for settle in (message.ack, message.nack, message.extend, message.ack):  # it is not settled by any of them
        with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
            await settle()
    if how != "deleted":
        (elsewhere,) = queue.path.parent.parent.rglob("elsewhere")
        assert [path.name for path in elsewhere.rglob(taken)] == [taken]


async def test_what_is_above_the_directory_is_replaced(make: Make, clock: Clock) -> None:
    queue = make("spool/orders", clock=clock)
    await queue.put(b"a")
    queue.path.parent.rename(queue.path.parent.with_name("elsewhere"))
    queue.path.mkdir(parents=True)
    clock.now += 2
    with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
        await queue.put(b"b")
    assert files(queue) == []


async def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("home", "other"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    async with FileQueue("spool/orders", max_attempts=1, **mode) as queue:
        await queue.put(b"a")
        monkeypatch.chdir(tmp_path / "other")
        await (await queue.receive()).nack()
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        assert listing(tmp_path / "other") == []
        assert listing(tmp_path / "home" / "spool") == ["orders", "orders.dead"]


async def test_a_queue_that_is_not_there_and_is_not_to_be_made(make: Make) -> None:
    with pytest.raises(QueueDoesNotExistError, match="no directory"):
        await make(auto_create=False).receive()
    assert await make().create()
    await make(auto_create=False).put(b"")


async def test_a_queue_is_no_link_and_no_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "orders").symlink_to(tmp_path / "real")
    with pytest.raises(StorageError, match="this is a symbolic link"):
        await make().put(b"")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="this is no directory"):
        await make("file").put(b"")
    with pytest.raises(StorageError, match="file is no directory"):
        await make("file/orders").put(b"")
    assert listing(tmp_path / "real") == []


async def test_an_object_belongs_to_its_event_loop(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "q", fsync=False) as queue:
        await queue.put(b"a")
        for use in (queue.receive, queue.aclose, queue.__aenter__):
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(lambda use=use: asyncio.run(use()))
        assert (await queue.receive()).raw == b"a"


def test_an_object_whose_event_loop_has_ended_can_be_closed(tmp_path: Path) -> None:
    async def put_and_close() -> None:
        async with FileQueue(tmp_path / "q") as first:
            await first.put(b"a")

    asyncio.run(put_and_close())  # the process keeps the inotify instance of its first event loop
    queue = FileQueue(tmp_path / "q")
    before = len(listing(Path("/proc/self/fd")))
    asyncio.run(queue.put(b"a"))
    asyncio.run(queue.aclose())
    gone(before)
    with pytest.raises(ClientClosedError):
        asyncio.run(queue.receive())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_an_object_belongs_to_its_process(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "q") as queue:
        await queue.put(b"a")

        async def use() -> None:
            before = len(listing(Path("/proc/self/fd")))
            with pytest.raises(RuntimeError, match="before a fork"):
                await queue.receive(timeout=0)
            await queue.aclose()
            assert len(listing(Path("/proc/self/fd"))) < before

        assert forked(lambda: asyncio.run(use())) == 0
        assert (await queue.receive(timeout=0)).raw == b"a"


async def test_an_object_without_references_is_freed(make: Make, tmp_path: Path, mode: dict[str, Any]) -> None:
    await make("warm-up").put(b"")
    before = len(listing(Path("/proc/self/fd")))
    queue: FileQueue[bytes] = FileQueue(tmp_path / "q", **mode)
    await queue.put(b"")
    await asyncio.sleep(0.1)
    del queue
    gc.collect()
    gone(before)


async def test_descriptors_and_threads_end_with_the_object(make: Make) -> None:
    await make("warm-up").put(b"")
    before = len(listing(Path("/proc/self/fd")))
    for number in range(5):
        async with make(f"queue{number}") as queue:
            await queue.put(b"")
            with pytest.raises(QueueEmptyError):
                await asyncio.gather(queue.receive(timeout=0.01), queue.receive(timeout=0.01))
    gone(before)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a/../b", ValueError), ("../a", ValueError), ("..", ValueError), (".", ValueError), ("", ValueError),
        ("/", ValueError), (".hidden", ValueError), ("a\0b", ValueError), ("x" * 256, ValueError),
        ("1415776871123", ValueError), ("12.new", ValueError), ("5.6", ValueError), (5, TypeError), (b"a", TypeError),
    ],
)  # fmt: skip
def test_names_of_queues(name: Any, wrong: type[Exception]) -> None:
    with pytest.raises(wrong):
        FileQueue(name)


@pytest.mark.parametrize("name", ["/etc", "a/b", "..", "../a", "", ".", "a\\b", "\0", "a/"])
def test_names_that_may_not_leave_their_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        FileQueue(name, directory=tmp_path)
    with pytest.raises(ValueError, match="name"):
        FileQueue("a", directory=tmp_path, max_attempts=1, dead_letters=name)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"bound": -1}, ValueError), ({"bound": True}, TypeError), ({"lease": 0}, ValueError),
        ({"lease": "1"}, TypeError), ({"unit": "s"}, ValueError), ({"max_attempts": 0}, ValueError),
        ({"dead_letters": "b"}, ValueError), ({"max_attempts": 1, "dead_letters": "a"}, ValueError),
        ({"nothing": 1}, TypeError), ({"codec": "yaml"}, ValueError), ({"poll_interval": 0}, ValueError),
        ({"max_message_size": 0}, ValueError),
    ],
)  # fmt: skip
def test_invalid_options(options: Any, wrong: type[Exception]) -> None:
    with pytest.raises(wrong):
        FileQueue("a", **options)


@pytest.mark.parametrize("timeout", [float("nan"), -1, -0.001])
async def test_a_timeout_that_is_no_time(make: Make, timeout: float) -> None:
    queue = make()
    for operation in (
        queue.receive(timeout=timeout), queue.put(b"1", timeout=timeout), queue.put_many([b"1"], timeout),
        queue.requeue(timeout=timeout), queue.receive(lease=timeout),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"(timeout|lease) must be .* seconds, not {timeout}"):
            await operation


def test_a_queue_object_shows_its_path_and_no_more() -> None:
    assert repr(FileQueue("spool/orders", codec="json")) == "<FileQueue 'spool/orders'>"
