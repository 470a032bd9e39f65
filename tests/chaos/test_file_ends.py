"""Queues in directories are closed, created and deleted while other processes work on them, and die."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from apressure import FileQueue
from tests.chaos.support import PATIENCE, no_complaints, often
from tests.chaos.test_kill import Nursery, notes, nursery
from tests.integration.files.conftest import listing

pytestmark = pytest.mark.timeout(often(120, 20))


async def start(crew: Nursery, kinds: list[str], folder: Path) -> list[Path]:
    """Start a worker of each kind on the queue `q`. Returns their logs, whose names are theirs."""
    logs = []
    for number, kind in enumerate(kinds):
        log = folder / f"{folder.name}-{number}-{kind}"
        log.touch()
        await crew._ask(f"start {log.name} {kind} {folder.name}/q {log.name} {log} 20")
        logs.append(log)
    return logs


async def ended(logs: list[Path]) -> None:
    """Until the workers have ended by themselves."""
    async with asyncio.timeout(PATIENCE):
        while not all(log.read_text().endswith("ended\n") for log in logs):
            await asyncio.sleep(0.01)


def words(log: Path) -> list[str]:
    return log.read_text().splitlines()


@pytest.mark.parametrize("how", ["notified", "listed"])
async def test_every_put_that_returned_before_a_close_is_delivered(
    tmp_path: Path, rng: random.Random, how: str
) -> None:
    """Processes put until the queue is closed, others consume until it is drained; one of each dies."""
    kinds = ["until_closed", "drain"] if how == "notified" else ["until_closed_listed", "drain_listed"]
    async with no_complaints(), nursery(str(tmp_path), "tests.chaos.file_workers") as crew:
        for number in range(often(8, 10)):
            folder = tmp_path / str(number)
            folder.mkdir()
            async with FileQueue(folder / "q", fsync=False) as queue:
                await queue.create(bound=20)
                logs = await start(crew, kinds * 3, folder)
                await asyncio.sleep(rng.uniform(0, 0.1))
                for log in rng.sample([logs[:2], logs[1:2], logs[:1], []], 1)[0]:
                    await crew.kill(log.name)
                    logs.remove(log)
                    logs.append(log)
                alive = [log for log in logs if "-0-" not in log.name and "-1-" not in log.name]
                await queue.close()
                await ended(alive)
                noted = [note for log in logs for note in notes_of(log)]
                put = {message for word, message, _ in noted if word == "put"}
                got = [(message, attempts) for word, message, attempts in noted if word == "got"]
                assert put <= {message for message, _ in got}
                first = [message for message, attempts in got if attempts == 1]
                assert len(first) == len(set(first))
                seen = await queue.statistics()
                assert (seen.length, seen.in_flight, seen.closed) == (0, 0, True)


def notes_of(log: Path) -> list[tuple[str, bytes, int]]:
    """What a worker has noted, without the last word."""
    text = log.read_text()
    kept = log.with_suffix(".kept")
    kept.write_text(text.removesuffix("ended\n"))
    return list(notes(kept))


async def test_one_of_many_creates_and_one_of_many_deletes(tmp_path: Path) -> None:
    async with no_complaints(), nursery(str(tmp_path), "tests.chaos.file_workers") as crew:
        folder = tmp_path / "race"
        folder.mkdir()
        logs = await start(crew, ["create_and_delete"] * 4, folder)
        await ended(logs)
        told = [word for log in logs for word in words(log)]
        assert told.count("created") > 10
        async with FileQueue(folder / "q") as queue:
            assert told.count("created") - told.count("deleted") == await queue.exists()
        assert set(listing(folder)) - {log.name for log in logs} <= {"q"}


async def test_a_kill_while_a_queue_is_created_or_deleted_blocks_nothing(tmp_path: Path, rng: random.Random) -> None:
    async with no_complaints(), nursery(str(tmp_path), "tests.chaos.file_workers") as crew:
        folder = tmp_path / "kills"
        folder.mkdir()
        for _ in range(often(10, 10)):
            logs = await start(crew, ["create_and_delete_for_ever"] * 2, folder)
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            for log in logs:
                await crew.kill(log.name)
            async with FileQueue(folder / "q", fsync=False) as queue:
                if await queue.exists():
                    assert await queue.bound() == 5  # no client sees half a queue
                    await queue.delete()
                assert await queue.create(bound=1)
                await queue.put_nowait(b"a")
                assert await queue.peek() == b"a"
                await queue.delete()
            assert {name for name in listing(folder) if name.startswith(".")} == set()
