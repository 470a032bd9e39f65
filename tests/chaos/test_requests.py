"""Each request gets its reply, while the services that reply are killed and their server restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import Envelope, NoReplyError, OutcomeUnknownError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.chaos.retry_workers import open_queue
from tests.chaos.support import PATIENCE, Recorder, Row, often
from tests.chaos.test_kill import kill_in_turn, nursery
from tests.chaos.test_retries import RESTARTS, Trouble, survive_restarts
from tests.servers import SERVERS

SERVICES = 2
KILLS = often(8, 15)
"""So many services are killed, of each kind of queue: 120 in the long form."""
ASKERS = 8

pytestmark = pytest.mark.timeout(often(120, 5))


async def survives(kind: str, where: str, folder: Path, rng: random.Random, restarting: asyncio.Task[None]) -> Row:
    """Kill those that reply, and see that those who ask get their replies."""
    name, row = f"requests-{kind}", Row(tried=KILLS + RESTARTS)
    async with (
        asyncio.timeout(often(2, 3) * PATIENCE),
        open_queue(kind, where, name) as queue,
        open_queue(kind, where, name) as other,
        nursery(where, "tests.chaos.request_workers") as crew,
    ):
        await queue.create(bound=100)
        ended = False

        async def ask(number: int) -> None:
            count = 0
            while not ended:
                item = f"{number}.{count}"
                try:
                    request: Any = Envelope(item.encode()) if kind == "envelopes" else item.encode()
                    reply = await (queue, other)[number % 2].ask(request, PATIENCE)
                except NoReplyError:
                    row.lost += 1
                except (OutcomeUnknownError, ServerUnavailableError):
                    row.notes["refused"] += 1  # while the server restarts
                else:
                    row.acknowledged += 1
                    row.doubled += reply != f"re: {item}"
                count += 1

        async def die(number: int) -> int:
            notes = folder / f"{kind}-{number}"
            notes.mkdir()
            own = random.Random(rng.random())
            prefix = f"r{number}"
            _, stuck = await kill_in_turn(crew, kind, KILLS // SERVICES, own, notes, None, name, prefix, still=1.5)
            return stuck

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(number)) for number in range(ASKERS)]
            lives = [group.create_task(die(number)) for number in range(SERVICES)]
            row.stuck = sum(await asyncio.gather(*lives))
            await restarting
            await crew.start(kind, name, "last", folder / f"{kind}-last")
            ended = True
            await asyncio.gather(*asking)
        while (seen := await queue.statistics()).length or seen.in_flight:  # those that were refused
            await asyncio.sleep(0.1)
        await queue.delete()
    return row


@pytest.mark.parametrize("kind", SERVERS)
async def test_requests_get_their_replies_while_services_die_and_their_server_restarts(
    make_server: Callable[..., EmbeddedServer], kind: str, tmp_path: Path, rng: random.Random, recorder: Recorder
) -> None:
    """The server writes everything to its append-only file before it answers."""
    server = make_server(kind, directory=tmp_path / "server", config={"appendfsync": "always"})

    async def survive(of: str, own: random.Random, _: list[Trouble], restarting: asyncio.Task[None]) -> Row:
        return await survives(of, server.url, tmp_path, own, restarting)

    rows = await survive_restarts(server, rng, survive, ("events", "tasks", "envelopes"))
    for of, row in rows.items():
        recorder.add(f"killed consumer: requests, {of}", server.software, row)
    assert all(row.clean() and row.acknowledged for row in rows.values()), rows
