"""Runners, listeners, supervisors and the processes of tasks are killed: each task is finished exactly once.

None is lost, and none runs twice at the same time: each holds a lock of its own, and notes when it could not get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import redis

from apressure.embedded import EmbeddedServer
from apressure.tasks import TaskClient
from tests.chaos.support import PATIENCE, Recorder, Row, no_complaints, often
from tests.chaos.test_kill import Nursery, nursery

KILLS = often(50, 10)
"""How many are killed on one server: 100 at every push, 1,000 in the long form, on both."""

FINISHED = often(5_000, 200)
"""How many finished tasks are purged: 1,000,000 in the long form."""

RUNNERS = 3
VICTIMS = ("runner", "listener", "supervisor", "process", "process", "runner and supervisor", "runner and process")

pytestmark = [pytest.mark.timeout(often(240, 20)), pytest.mark.leaves_keys("blueque_*", "apressure:*")]


class Crew:
    """The nodes that live, each in a process of its own; one that is killed is replaced."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self._numbers: Counter[str] = Counter()
        self.alive: dict[str, list[str]] = {"runner": [], "listener": []}

    async def start(self, kind: str) -> None:
        self._numbers[kind] += 1
        name = f"{kind}{self._numbers[kind]}"
        self.alive[kind].append(await self._nursery.start(kind, "tasks", name, self._folder / name))

    async def replace(self, kind: str, name: str) -> None:
        self.alive[kind].remove(name)
        await self.start(kind)

    async def pid(self, name: str) -> int:
        """The process of a node, once it says so."""
        async with asyncio.timeout(PATIENCE):
            while not (text := (self._folder / name).read_text() if (self._folder / name).exists() else "").endswith(
                "\n"
            ):
                await asyncio.sleep(0.005)
        return int(text.split()[1])

    async def kill_some(self, victim: str, rng: random.Random) -> bool:
        """Kill one of a kind, or two together. Returns whether there was any."""
        if victim == "listener":
            name = rng.choice(self.alive["listener"])
            await self._nursery.kill(name)
            await self.replace("listener", name)
            return True
        name = rng.choice(self.alive["runner"])
        processes = await self.supervisors(name)
        if victim.endswith("process"):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes = [process for supervisor in processes for process in supervisor.children()]
        if victim != "runner" and not processes:
            return False
        runner_first = rng.random() < 0.5
        if victim.startswith("runner") and runner_first:
            await self._nursery.kill(name)
        if victim != "runner":
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(processes).kill()
        if victim.startswith("runner"):
            if not runner_first:
                await self._nursery.kill(name)
            await self.replace("runner", name)
        return True

    async def supervisors(self, name: str) -> list[psutil.Process]:
        """The processes that a Runner has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(await self.pid(name)).children()
        return []


async def nodes_die(url: str, kills: int, rng: random.Random, folder: Path) -> Row:
    work = folder / "tasks"
    work.mkdir()
    killed: Counter[str] = Counter()
    async with TaskClient(url) as client, nursery(url, "tests.chaos.task_workers") as hatchery:
        queue, crew = client.queue("tasks"), Crew(hatchery, folder)
        ids = []
        for kind in ("runner",) * RUNNERS + ("listener",):
            await crew.start(kind)
        while sum(killed.values()) < kills:
            victim = rng.choice(VICTIMS)
            while await queue.qsize() < 2 * RUNNERS:
                stubborn = rng.random() < 0.3
                parameters = [f"{rng.uniform(0, 0.6 if stubborn else 0.3):.3f}", *["stubborn"] * stubborn]
                ids.append(await queue.enqueue(parameters))
            await asyncio.sleep(rng.uniform(0, 0.15))
            killed[victim] += await crew.kill_some(victim, rng)
        stuck = 0
        try:
            async with asyncio.timeout(2 * PATIENCE):
                for task_id in ids:
                    await (await client.task(task_id)).wait()
        except TimeoutError:
            stuck = 1
        left = await queue.steps.status()
        complete = await client.connection.ask(b"LRANGE", b"blueque_complete_tasks_tasks", 0, -1)
        await queue.delete()
    finished = Counter(task_id.decode() for task_id in complete)
    notes = Counter(line.split()[0] for log in work.glob("*.log") for line in log.read_text().splitlines())
    assert stuck or (left.waiting, left.started, left.leased, left.reserved) == (0, 0, 0, 0), left
    row = Row(tried=kills, acknowledged=len(ids), stuck=stuck)
    row.lost = len(set(ids) - set(finished))
    row.doubled = notes["overlap"] + sum(count - 1 for count in finished.values()) + len(set(finished) - set(ids))
    row.notes["ran again"] = notes["begin"] - len(ids)
    row.notes.update({f"{victim} killed": count for victim, count in killed.items()})
    return row


async def test_nodes_are_killed(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, tmp_path: Path
) -> None:
    async with no_complaints():
        row = await nodes_die(url, KILLS, rng, tmp_path)
    recorder.add("killed runner: tasks", server.software, row)
    assert row.clean(), row


FINISH = """
for id = tonumber(ARGV[1]), tonumber(ARGV[1]) + 999 do
  redis.call('HSET', 'blueque_task_' .. id, 'status', 'complete', 'queue', 'tasks', 'result', 'x', 'updated', ARGV[2])
  redis.call('LPUSH', 'blueque_complete_tasks_tasks', id)
  redis.call('LPUSH', 'blueque_tasks_tasks', id)
end
"""


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_purge_of_many_goes_in_small_steps(url: str) -> None:
    """Others use the server meanwhile: no step deletes more than a few hundred tasks."""
    steps, served = [0], 0
    with redis.Redis.from_url(url) as db:
        for begin in range(0, FINISHED, 1000):
            db.eval(FINISH, 0, begin, time.time())
    async with TaskClient(url) as client, TaskClient(url) as other:
        queue = client.queue("tasks")
        purging = asyncio.create_task(queue.purge("complete", on_progress=steps.append))
        while not purging.done():
            await other.queue("beside").enqueue("x")
            served += 1
        assert await purging == FINISHED
        assert max(after - before for before, after in itertools.pairwise(steps)) <= 250
        assert served > FINISHED // 1000
        assert await client.connection.ask(b"EXISTS", b"blueque_complete_tasks_tasks", b"blueque_tasks_tasks") == 0
        await other.queue("beside").delete()
