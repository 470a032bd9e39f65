"""What is put with a dedup id is put once, while those that put it are killed and their server restarts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure.embedded import EmbeddedServer
from apressure.testing.contract import drained
from tests.chaos.retry_workers import open_queue
from tests.chaos.support import PATIENCE, Recorder, Row, often
from tests.chaos.test_kill import kill_in_turn, nursery
from tests.chaos.test_retries import RESTARTS, Trouble, survive_restarts
from tests.servers import SERVERS

PRODUCERS = 4
KILLS = often(12, 15)
"""So many producers are killed, of each kind of queue: 180 in the long form."""

pytestmark = pytest.mark.timeout(often(120, 5))


async def survives(kind: str, where: str, folder: Path, rng: random.Random, restarting: asyncio.Task[None]) -> Row:
    """Kill those that put the same orders, and see what was put."""
    name = f"once-{kind}"
    async with (
        asyncio.timeout(often(2, 3) * PATIENCE),
        open_queue(kind, where, name) as queue,
        nursery(where, "tests.chaos.dedup_workers") as crew,
    ):
        await queue.create()

        async def die(number: int) -> tuple[list[Path], int]:
            notes = folder / f"{kind}-{number}"
            notes.mkdir()
            own = random.Random(rng.random())

            async def rest() -> None:
                await asyncio.sleep(own.uniform(0, often(0.5, 6)))

            return await kill_in_turn(
                crew, kind, KILLS // PRODUCERS, own, notes, rest, name, prefix=f"p{number}", still=1.0
            )

        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(die(number)) for number in range(PRODUCERS)]
        await restarting
        found = Counter(item.decode() for item in await drained(queue))
        await queue.delete()
    row = Row(tried=KILLS + RESTARTS, stuck=sum(life.result()[1] for life in lives))
    notes = [line.split() for life in lives for log in life.result()[0] for line in log.read_text().splitlines()]
    told = {words[1] for words in notes if len(words) == 2 and words[1].isdecimal()}
    row.acknowledged = len(found)
    row.lost = len(told - found.keys())
    row.doubled = sum(count - 1 for count in found.values())
    row.notes["repeats refused"] = sum(words[0] == "known" for words in notes)
    return row


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_is_put_once_is_put_once_while_producers_die_and_their_server_restarts(
    make_server: Callable[..., EmbeddedServer], kind: str, tmp_path: Path, rng: random.Random, recorder: Recorder
) -> None:
    """The server writes everything to its append-only file before it answers."""
    server = make_server(kind, directory=tmp_path / "server", config={"appendfsync": "always"})

    async def survive(of: str, own: random.Random, _: list[Trouble], restarting: asyncio.Task[None]) -> Row:
        return await survives(of, server.url, tmp_path, own, restarting)

    rows = await survive_restarts(server, rng, survive)
    for of, row in rows.items():
        recorder.add(f"killed producer: once, {of}", server.software, row)
    assert all(row.clean() and row.notes["repeats refused"] for row in rows.values()), rows
