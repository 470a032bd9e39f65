"""browse of a FileQueue: files that are no messages, or go meanwhile. The contract has the rest."""

from __future__ import annotations

import os
from pathlib import Path

from apressure import FileQueue
from apressure.files.storage.messages.contents import look
from apressure.files.storage.place import opened
from apressure.testing.contract.browsing import items_of


async def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "jobs") as queue:
        await queue.put(b"1")
    (tmp_path / "jobs" / "1").mkdir()
    (tmp_path / "jobs" / "2").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "jobs" / "3")
    (tmp_path / "jobs" / ".queue-later-5-4").write_bytes(b"due")
    (tmp_path / "jobs" / ".queue-later-99999999999999-5").write_bytes(b"late")
    before = {path.name for path in (tmp_path / "jobs").iterdir()}
    async with FileQueue(tmp_path / "jobs") as queue:
        (message,) = (await queue.browse()).messages
        assert (message.item, message.error) == (b"1", "")
        assert message.since is not None
        due, late = (await queue.browse("delayed")).messages
        assert (due.item, due.id, late.item) == (b"due", "4", b"late")
        assert late.due is not None
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == before


def test_a_look_says_what_is_no_file(tmp_path: Path) -> None:
    """The index may be older than the directory."""
    for name in ("1", "2", "4"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "3").mkdir()
    (tmp_path / "5").symlink_to("4")
    with opened(tmp_path) as directory:
        looked, seen = look(directory, ["1", "2", "3", "5", "6", "odd"], 100)
    assert looked == 6
    assert [one.start for one in seen] == [b"1", b"2", None, None]
    assert seen[2].error == "it is not a file"
    assert seen[3].error.startswith("it cannot be read: ")


async def test_messages_that_go_meanwhile_are_left_out(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "jobs", notify=False, poll_interval=60.0) as queue:
        for number in range(5):
            await queue.put(b"%d" % number)
        assert await items_of(queue, "waiting") == [b"0", b"1", b"2", b"3", b"4"]
        sorted((tmp_path / "jobs").glob("[0-9]*"))[1].unlink()
        page = await queue.browse(limit=3)
        assert [message.item for message in page.messages if message.item != b"3"] == [b"0", b"2"]


async def test_pages_of_large_messages_are_shorter(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "jobs") as queue:
        await queue.put_many([b"%d" % number * 600_000 for number in range(5)])
        page = await queue.browse(most_bytes=1 << 20)
        assert (len(page.messages), page.total) == (2, 5)
        assert len((await queue.browse(most_bytes=10)).messages) == 5
