"""Why messages in a directory are dead letters: the files that say it, and what happens without them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import Backoff, FileQueue, LeaseLostError, QueueEmptyError, StorageError, pipe
from apressure.dead_letters import UNKNOWN, Failure
from apressure.files.storage import store
from apressure.files.storage.messages.reasons import Reason, put, read
from apressure.protocols import NotesErrors
from tests.integration.files.conftest import Clock, Make, drain, files

REASON = ".queue-v1-reason-"


def reasons(queue: FileQueue[Any]) -> list[str]:
    """The ids for which there is a reason in a queue's directory."""
    return [name.removeprefix(REASON) for name in files(queue) if name.startswith(REASON)]


async def die(queue: FileQueue[Any], *errors: BaseException | str | None) -> None:
    """Have the message that waits first fail with these errors, and move to the dead letters."""
    for error in errors:
        await (await queue.receive(timeout=0)).nack(error)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


async def test_a_reason_goes_with_its_message(make: Make, clock: Clock) -> None:
    queue = make(max_attempts=2, clock=clock)
    message_id = await queue.put(b"a")
    await (await queue.receive()).nack(ValueError("x" * 10_000))
    assert reasons(queue) == [message_id]
    assert (queue.path / f"{REASON}{message_id}").stat().st_size < 1000
    clock.now += 5
    await die(queue, LookupError("gone"))
    assert files(queue) == []
    (letter,) = await queue.dead_letters()
    assert (letter.id, letter.raw, letter.attempts, letter.when) == (message_id, b"a", 2, clock.now)
    assert letter.error == Failure("LookupError", "gone", 2)
    dead = make("orders.dead")
    assert reasons(dead) == [message_id]
    assert await queue.requeue() == 1
    assert files(dead) == []
    assert [name for name in files(queue) if not name.isdigit()] == []


@pytest.mark.parametrize("end", ["ack", "ack by id", "purge", "acked by another"])
async def test_a_reason_ends_with_its_message(make: Make, end: str) -> None:
    queue, other = make(max_attempts=3), make(max_attempts=3)
    message_id = await queue.put(b"a")
    await (await queue.receive()).nack("broken")
    assert reasons(queue) == [message_id]
    if end == "ack":
        await (await queue.receive()).ack()
    elif end == "ack by id":
        assert await other.ack(message_id)
    elif end == "purge":
        assert await queue.purge() == 1
    else:
        await (await other.receive()).ack()
    assert files(queue) == []


async def test_a_reason_that_was_just_written_ends_with_its_message(make: Make) -> None:
    queue = make(max_attempts=3)
    await queue.put(b"a")
    delivery = await queue.receive()
    delivery.note_error("slow")
    await delivery.extend(30)
    assert reasons(queue) == [delivery.id]  # it would survive a kill
    await delivery.ack()
    assert files(queue) == []


async def test_deleting_a_queue_deletes_reasons(make: Make) -> None:
    queue = make(max_attempts=3)
    await queue.put(b"a")
    await (await queue.receive()).nack("broken")
    await queue.delete()
    assert not queue.path.exists()


async def test_messages_that_do_not_fail_have_no_files(make: Make) -> None:
    queue = make(max_attempts=3)
    await queue.put_many([b"a", b"b"])
    await (await queue.receive()).nack()
    assert reasons(queue) == []
    async with queue.consumer(prefetch=2) as consumer:
        await anext(consumer)
        assert reasons(queue) == []
    await queue.purge()
    assert files(queue) == []


@pytest.mark.parametrize("options", [{}, {"max_attempts": 2, "keep_errors": False}])
async def test_errors_are_not_kept_where_the_program_says_so(make: Make, options: dict[str, Any]) -> None:
    queue = make(**options)
    await queue.put(b"secret")
    await (await queue.receive()).nack("secret")
    assert reasons(queue) == []
    if options:
        await die(queue, "secret")
        (letter,) = await queue.dead_letters()
        assert (letter.attempts, letter.error, letter.reason) == (2, None, UNKNOWN)


async def test_the_end_of_a_block_keeps_errors(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.put_many([b"a", b"b", b"c"])

    async def fail() -> None:
        async with queue.consumer("manual", prefetch=3) as consumer:
            (await anext(consumer)).note_error("noted")
            await anext(consumer)
            raise LookupError("of the block, which does not know which delivery failed")

    with pytest.raises(LookupError):
        await fail()
    assert await drain(queue) == [b"c"]
    assert [(letter.raw, letter.error) for letter in await queue.dead_letters()] == [
        (b"a", Failure("", "noted", 1)), (b"b", None),
    ]  # fmt: skip


async def test_a_cancelled_block_is_no_error(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.put(b"a")
    entered = asyncio.Event()

    async def stand_still() -> None:
        async with queue.consumer() as consumer:
            await anext(consumer)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stand_still())
    await entered.wait()
    task.cancel()
    await asyncio.wait((task,))
    await die(queue)
    assert [letter.reason for letter in await queue.dead_letters()] == [UNKNOWN]


async def test_a_message_that_cannot_be_decoded_says_so(make: Make) -> None:
    await make().put(b"no json")
    queue = make(max_attempts=1, codec="json")
    with pytest.raises(Exception, match="decode"):
        async with queue.consumer() as consumer:
            await anext(consumer)
    await die(queue)
    (letter,) = await queue.dead_letters()
    assert letter.error is not None
    assert letter.error.type == "apressure.exceptions.DecodeError"
    with pytest.raises(Exception, match="decode"):
        _ = letter.item


async def test_errors_of_a_transform_are_kept(make: Make) -> None:
    queue, out = make(max_attempts=1), make("out")
    await out.create()
    await queue.put_many([b"a", b"b"])
    await queue.close()

    async def transform(item: bytes) -> bytes:
        if item == b"a":
            raise ValueError("no a")
        return item

    async with asyncio.timeout(60):
        await pipe(queue, transform, out, retry=Backoff(0.01))
    assert [letter.error for letter in await queue.dead_letters()] == [Failure("ValueError", "no a", 1)]
    assert await drain(out) == [b"b"]


async def test_a_message_that_is_too_large_says_so_and_hides_no_other(make: Make) -> None:
    await make().put_many([b"x" * 1000, b"y"])
    queue = make(max_attempts=1, max_message_size=100)
    with pytest.raises(StorageError):
        await queue.receive(timeout=0)
    await die(queue, "small")
    large, small = await queue.dead_letters()
    assert "it has 1000 bytes" in large.reason
    assert (large.raw, large.attempts) == (b"", 1)
    with pytest.raises(StorageError, match="1000 bytes"):
        _ = large.item
    assert (small.raw, small.error) == (b"y", Failure("", "small", 1))
    (large, _) = await make().dead_letters()
    assert large.item == b"x" * 1000


def damage(path: Path) -> None:
    path.write_bytes(b"\xff" * 5000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_another_file(path: Path) -> None:
    inode, rest = path.read_bytes().split(b" ", 1)
    path.write_bytes(b"%d %b" % (int(inode) + 1, rest))


HARMS = [Path.unlink, damage, empty, replace_by_directory, replace_by_pipe, replace_by_link, of_another_file]


@pytest.mark.parametrize("harm", HARMS)
async def test_a_reason_that_is_missing_or_foreign_breaks_nothing(make: Make, harm: Callable[[Path], None]) -> None:
    queue = make(max_attempts=2)
    message_id = await queue.put(b"a")
    await (await queue.receive()).nack("first")
    harm(queue.path / f"{REASON}{message_id}")
    await die(queue, None)
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error) == (b"a", 2, None)
    harm(make("orders.dead").path / f"{REASON}{message_id}")
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error, letter.when) == (b"a", None, None, None)
    assert await queue.requeue(ids=[message_id]) == 1
    assert await drain(queue) == [b"a"]


async def test_names_of_strangers_break_nothing(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.create(bound=2)
    for name in ("", "x", "1.5", "5" * 30, "7"):
        (queue.path / f"{REASON}{name}").write_bytes(b"?")
    await queue.put_many([b"a", b"b"])
    assert (await queue.statistics()).length == 2
    assert await drain(queue) == [b"a", b"b"]
    await queue.delete()


async def test_reasons_of_messages_that_are_gone_are_deleted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FORGET", 0.0)
    monkeypatch.setattr(store, "_ROUND", 0.0)
    queue = make(max_attempts=5)
    ids = [await queue.put(data) for data in (b"a", b"b")]
    for delivery in await queue.receive_many(2):
        await delivery.nack("broken")
    (queue.path / ids[0]).unlink()  # by another program
    for _ in range(4):
        assert (await queue.statistics()).length == 1
    assert reasons(queue) == ids[1:]


async def test_looking_at_dead_letters_deletes_reasons_of_those_that_are_gone(make: Make) -> None:
    queue, dead = make(max_attempts=1), make("orders.dead")
    await queue.put_many([b"a", b"b", b"c"])
    for delivery in await queue.receive_many(3):
        await delivery.nack("broken")
    await die(queue)
    first, second, _ = await queue.dead_letters()
    taken = await dead.receive()
    assert taken.id == first.id
    (dead.path / second.id).unlink()
    assert len(await queue.dead_letters()) == 1
    assert second.id not in reasons(dead)
    await taken.nack()
    assert (await queue.dead_letters())[0] == first
    await dead.purge()
    assert files(dead) == []


async def test_a_kill_before_the_reason_is_written_breaks_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(max_attempts=1)
    await queue.put(b"a")
    await (await queue.receive()).nack("broken")
    moved = []

    class KilledError(BaseException):
        pass

    def kill(*arguments: Any) -> Any:
        moved.append(arguments)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("apressure.files.storage.messages.reasons.put", kill)
        with pytest.raises(KilledError):
            await queue.receive(timeout=0)
    assert moved
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.reason) == (b"a", None, "unknown")
    assert await make().requeue() == 1


async def test_a_full_disk_keeps_no_reason_and_loses_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(max_attempts=2)
    await queue.put(b"a")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if b"broken" in data:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    await die(queue, "broken", "broken")
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error) == (b"a", 2, None)


async def test_a_lost_lease_keeps_no_error(make: Make, clock: Clock) -> None:
    queue, other = make(max_attempts=5, clock=clock), make(max_attempts=5, clock=clock)
    await queue.put(b"a")
    late = await queue.receive(lease=5)
    clock.now += 10
    again = await other.receive()
    with pytest.raises(LeaseLostError):
        await late.nack("late")
    await again.ack()
    assert files(queue) == []


async def test_a_reason_stays_with_a_dead_letter_that_is_looked_at(make: Make) -> None:
    queue, dead = make(max_attempts=1), make("orders.dead", max_attempts=9)
    await queue.put(b"a")
    await die(queue, "broken")
    (before,) = await queue.dead_letters()
    await (await dead.receive()).nack()
    assert await queue.dead_letters() == [before]
    await (await dead.receive()).nack("again")
    (after,) = await queue.dead_letters()
    assert (after.attempts, after.when, after.error) == (1, before.when, Failure("", "again", 2))


async def test_a_copied_queue_has_its_dead_letters_without_reasons(make: Make) -> None:
    queue = make(max_attempts=1)
    await queue.put(b"a")
    await die(queue, "broken")
    dead = make("orders.dead").path
    shutil.copytree(dead, dead.with_name("copy.dead"))
    assert [(letter.raw, letter.reason) for letter in await make("copy").dead_letters()] == [(b"a", "unknown")]


async def test_dead_letters_of_another_queue_and_none(make: Make) -> None:
    queue = make(max_attempts=1, dead_letters="failed")
    assert await queue.dead_letters() == []
    await queue.put(b"a")
    await die(queue, "broken")
    assert [letter.raw for letter in await make().dead_letters(source="failed")] == [b"a"]
    with pytest.raises(ValueError, match="begin with a dot"):
        await queue.dead_letters(source="../x")


async def test_a_delivery_notes_errors(make: Make) -> None:
    queue = make()
    await queue.put(b"a")
    assert isinstance(await queue.receive(), NotesErrors)


def test_numbers_that_are_too_long_are_no_reason(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        put(fd, "5", 7, Reason(b"e", 1, 2, 3))
        assert read(fd, "5", 7) == Reason(b"e", 1, 2, 3)
        assert read(fd, "5", 8) == Reason()
        (tmp_path / f"{REASON}5").write_bytes(b"7 " + b"9" * 400 + b" 1 1 e")
        assert read(fd, "5", 7) == Reason()
    finally:
        os.close(fd)
