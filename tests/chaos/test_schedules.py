"""Schedules outlive those that drive them, and their server: each occasion is put exactly once."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure.embedded import EmbeddedServer
from apressure.testing.contract import drained
from tests.chaos.retry_workers import open_queue
from tests.chaos.support import PATIENCE, Recorder, Row, no_complaints, often
from tests.chaos.test_kill import kill_in_turn, nursery
from tests.chaos.test_retries import RESTARTS, Trouble, survive_restarts
from tests.servers import SERVERS

NAMES = [f"every second {number}" for number in range(20)]
DRIVERS = 5
KILLS = often(10, 15)
"""So many drivers are killed: 150 in the long form, which lasts two minutes and more."""

pytestmark = pytest.mark.timeout(often(120, 5))


async def survives(
    kind: str, where: str, folder: Path, rng: random.Random, restarting: asyncio.Task[None] | None
) -> Row:
    """Kill those that drive the schedules of a queue, and see what was put."""
    name = f"schedules-{kind}"
    async with (
        asyncio.timeout(often(2, 3) * PATIENCE),
        open_queue(kind, where, name) as queue,
        nursery(where, "tests.chaos.schedule_workers") as crew,
    ):
        await queue.create()
        before = {each: (await queue.every(each, 1, each.encode(), missed="all")).next for each in NAMES}

        async def die(number: int) -> int:
            notes = folder / f"{kind}-{number}"
            notes.mkdir()
            own = random.Random(rng.random())

            async def rest() -> None:
                await asyncio.sleep(own.uniform(0, often(1, 6)))

            _, stuck = await kill_in_turn(crew, kind, KILLS // DRIVERS, own, notes, rest, name, prefix=f"d{number}")
            return stuck

        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(die(number)) for number in range(DRIVERS)]
        if restarting is not None:
            await restarting
        for _ in range(2):  # on a busy machine, all may have died before the second occasion
            while (pause := await queue.drive_schedules()) == 0:
                pass
            await asyncio.sleep(pause)
        while await queue.drive_schedules() == 0:
            pass
        for each in NAMES:
            await queue.pause_schedule(each)
        after = await queue.schedules()
        put = Counter(item.decode() for item in await drained(queue))
        await queue.delete()
    row = Row(tried=KILLS + RESTARTS * (restarting is not None), stuck=sum(life.result() for life in lives))
    for schedule in after:
        due = round(schedule.next - before[schedule.name])
        row.acknowledged += due
        row.lost += max(0, due - put[schedule.name])
        row.doubled += max(0, put[schedule.name] - due) + (schedule.count != put[schedule.name])
    return row


def check(rows: dict[str, Row], recorder: Recorder, software: str) -> None:
    for kind, row in rows.items():
        recorder.add(f"killed producer: schedules, {kind}", software, row)
    assert all(row.clean() and row.acknowledged > len(NAMES) for row in rows.values()), rows


@pytest.mark.parametrize("kind", SERVERS)
async def test_schedules_outlive_drivers_and_their_server(
    make_server: Callable[..., EmbeddedServer], kind: str, tmp_path: Path, rng: random.Random, recorder: Recorder
) -> None:
    """The server writes everything to its append-only file before it answers."""
    server = make_server(kind, directory=tmp_path / "server", config={"appendfsync": "always"})

    async def survive(of: str, own: random.Random, _: list[Trouble], restarting: asyncio.Task[None]) -> Row:
        return await survives(of, server.url, tmp_path, own, restarting)

    check(await survive_restarts(server, rng, survive), recorder, server.software)


async def test_schedules_of_a_directory_outlive_drivers(tmp_path: Path, rng: random.Random, recorder: Recorder) -> None:
    async with no_complaints():
        row = await survives("files", os.fspath(tmp_path), tmp_path, rng, None)
    check({"files": row}, recorder, "(none)")
