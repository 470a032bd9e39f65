"""Retries that wait in their queue outlive the server and the services: none is lost, early, or has other attempts.

All times are by the clock of this machine, which the server, the services and the test share.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from apressure.embedded import EmbeddedServer
from tests.chaos.retry_workers import LAST, open_queue
from tests.chaos.support import PATIENCE, Account, Recorder, Row, no_complaints, often
from tests.chaos.test_kill import Nursery, kill_in_turn, nursery
from tests.servers import SERVERS

RETRIES = often(100, 10)
KILLS = often(2, 10)
RESTARTS = often(1, 10)
"""1,000 retries of each kind of queue, 20 services killed and 10 restarts in the long form."""

SERVICES = 2
EARLY: Final = 0.05
"""Seconds."""

Trouble = tuple[float, float]
"""When something happened to a service or to the server: from, to."""

pytestmark = pytest.mark.timeout(often(120, 5))


class Retried:
    """A queue whose messages each fail until their last attempt, and its services, which are killed.

    Args:
        kind, where: What queue, and on which server or in which directory.
        folder: For the notes of the services.
        troubles: Those of the server.
        restarting: Restarts the server.
    """

    def __init__(
        self, kind: str, where: str, folder: Path, troubles: list[Trouble], restarting: asyncio.Task[None] | None
    ) -> None:
        self.account = Account()
        self.kind, self.where, self.name = kind, where, f"retries-{kind}"
        self._folder = folder / f"notes-{kind}"
        self._troubles = troubles
        self._own: list[Trouble] = []
        self._restarting = restarting

    async def survives(self, rng: random.Random) -> Row:
        """Kill services while messages are put and fail, and see what becomes of these."""
        fed = asyncio.Event()
        async with (
            asyncio.timeout(often(2, 3) * PATIENCE),
            open_queue(self.kind, self.where, self.name) as queue,
            nursery(self.where, "tests.chaos.retry_workers") as crew,
        ):
            await queue.create()
            feeding = asyncio.create_task(self._feed(queue, fed))
            async with asyncio.TaskGroup() as group:
                lives = [group.create_task(self._die(crew, number, rng.random())) for number in range(SERVICES)]
            if self._restarting is not None:
                await self._restarting
            await crew.start(self.kind, self.name, "last", self._folder / "last")
            while len(self._notes("kept")) < RETRIES:
                await asyncio.sleep(0.1)
            fed.set()
            await feeding
            while (seen := await queue.statistics()).length or seen.in_flight or seen.delayed:
                await asyncio.sleep(0.1)
            await crew.kill("last")
            await queue.delete()
        return self._row(sum(life.result() for life in lives))

    async def _feed(self, queue: Any, fed: asyncio.Event) -> None:
        while not fed.is_set():
            messages = self.account.fresh("feeder", 2)
            await queue.put_many(messages)
            self.account.acknowledge(messages)
            await asyncio.sleep(0.1)

    async def _die(self, crew: Nursery, number: int, seed: float) -> int:
        async def died() -> None:
            self._own.append((time.time(), time.time()))

        folder = self._folder / str(number)
        folder.mkdir(parents=True)
        _, stuck = await kill_in_turn(
            crew, self.kind, KILLS // SERVICES, random.Random(seed), folder, died, self.name, prefix=f"s{number}"
        )
        return stuck

    def _notes(self, word: str) -> list[tuple[bytes, int, float]]:
        """The message, the attempts and the time of each note of all services, by time."""
        lines = [
            line.split()
            for log in self._folder.rglob("*")
            if log.is_file()
            for line in log.read_text().rpartition("\n")[0].splitlines()
        ]
        found = [(line[1].encode(), int(line[2]), float(line[3])) for line in lines if line[0] == word]
        return sorted(found, key=lambda note: note[2])

    def _row(self, stuck: int) -> Row:
        got: dict[bytes, list[tuple[int, float]]] = defaultdict(list)
        for message, attempts, moment in self._notes("got"):
            got[message].append((attempts, moment))
        kept = self._notes("kept")
        self.account.arrived = [message for message, seen in got.items() if seen[-1][0] >= LAST]
        row = Row(
            tried=KILLS + RESTARTS * (self._restarting is not None),
            acknowledged=sum(map(self.account.sure, got)),
            lost=len(self.account.missing()),
            doubled=sum(not self._exact(seen) for seen in got.values()),
            stuck=stuck,
        )
        row.notes["retries"] = len(kept)
        for message, attempts, due in kept:
            early = due - min((moment for number, moment in got[message] if number > attempts), default=due)
            row.notes["early"] += early > EARLY
        return row

    def _exact(self, seen: list[tuple[int, float]]) -> bool:
        """Whether the attempts of a message are 1, 2, 3 up to the last one, but for what a trouble explains."""
        numbers = [number for number, _ in seen]
        if sorted(set(numbers)) != numbers:
            return False
        before, since = 0, 0.0
        for number, moment in seen:
            next_one = before < LAST and number == before + 1
            if not next_one and not any(
                first <= moment and last >= since for first, last in [*self._troubles, *self._own]
            ):
                return False
            before, since = number, moment
        return True


async def restart(server: EmbeddedServer, troubles: list[Trouble], rng: random.Random) -> None:
    """Kill or stop the server, and start it again."""
    for _ in range(RESTARTS):
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        begun = time.time()
        if rng.random() < 0.5:
            os.kill(server.pid, signal.SIGKILL)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        troubles.append((begun, time.time()))


async def survive_restarts(
    server: EmbeddedServer,
    rng: random.Random,
    survives: Callable[..., Coroutine[Any, Any, Row]],
    kinds: Sequence[str] = ("queue", "events", "tasks"),
) -> dict[str, Row]:
    """Restart a server while queues of these kinds on it survive trouble of their own.

    `survives` gets the kind, random numbers, the troubles of the server so far, and the task that restarts it.
    """
    troubles: list[Trouble] = []
    async with no_complaints(), asyncio.TaskGroup() as group:
        restarting = group.create_task(restart(server, troubles, rng))
        tasks = {of: group.create_task(survives(of, random.Random(rng.random()), troubles, restarting)) for of in kinds}
    return {of: task.result() for of, task in tasks.items()}


def check(rows: dict[str, Row], recorder: Recorder, software: str) -> None:
    for kind, row in rows.items():
        recorder.add(f"killed consumer: retries, {kind}", software, row)
    assert all(row.clean() and not row.notes["early"] for row in rows.values()), rows


@pytest.mark.parametrize("kind", SERVERS)
async def test_retries_outlive_services_and_their_server(
    make_server: Callable[..., EmbeddedServer], kind: str, tmp_path: Path, rng: random.Random, recorder: Recorder
) -> None:
    """The server writes everything to its append-only file before it answers."""
    server = make_server(kind, directory=tmp_path / "server", config={"appendfsync": "always"})

    async def survives(of: str, own: random.Random, troubles: list[Trouble], restarting: asyncio.Task[None]) -> Row:
        return await Retried(of, server.url, tmp_path, troubles, restarting).survives(own)

    check(await survive_restarts(server, rng, survives), recorder, server.software)


async def test_retries_of_a_directory_outlive_services(tmp_path: Path, rng: random.Random, recorder: Recorder) -> None:
    async with no_complaints():
        row = await Retried("files", os.fspath(tmp_path), tmp_path, [], None).survives(rng)
    check({"files": row}, recorder, "(none)")
