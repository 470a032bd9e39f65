"""Finds tasks whose listener has died on this host (specification: Listeners), and has them run again.

A listener of the released blueque gives no sign of life, so only its own host can tell that it has died: there is no
process of its number, or that process began after the listener had reserved the task.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from apressure.exceptions import ServerError
from apressure.tasks.core import Core
from apressure.tasks.engine.answers import text
from apressure.tasks.engine.steps import MAX_TASKS
from apressure.tasks.nodes import processes
from apressure.tasks.task import Task, load_many

logger = logging.getLogger("apressure")

ADOPTED: Final = 15.0
"""Seconds for which a task stays with a process that runs on after its listener has died, at each look."""


class Orphans:
    """What a node knows of the listeners of its host.

    A node of the released blueque that takes over a dead listener removes it from the set of listeners, claims one of
    its tasks, and leaves the others in that one's list. So a listener that was in the set is looked at until its list
    is empty, and `find` looks for such lists.

    Args:
        core: The queue.
    """

    def __init__(self, core: Core[Any]) -> None:
        self._core = core
        self._known: set[bytes] = set()
        self._damaged: set[bytes] = set()

    async def find(self) -> None:
        """Find the lists of listeners of this host that are not in the set. It looks at all keys, 1,000 at a time.

        Cancelled, it may have found some.
        """
        listener, keys, ask = await self._core.listener(), self._core.steps.keys, self._core.steps.connection.ask
        prefix = keys.reserved(listener.rpartition(b"_")[0] + b"_")
        pattern, cursor = re.sub(rb"([\\*?\[\]^-])", rb"\\\1", prefix) + b"*", b"0"
        while True:
            cursor, found = await ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", MAX_TASKS, reads=True)
            for key in found:
                if (pid := key.removeprefix(prefix)).isdigit():
                    self._known.add(listener.rpartition(b"_")[0] + b"_" + pid)
            if cursor == b"0":
                return

    async def claim(self) -> int:
        """Take over the tasks of all listeners of the queue that have died on this host.

        A task whose process still runs stays, until that ends. The others go back, first in line and in order, or fail,
        as the queue's `on_orphan` says. A listener whose list is no list is left out.

        Returns:
            How many tasks went back or failed.
        """
        core = self._core
        steps, ask = core.steps, core.steps.connection.ask
        here, moved = text(await core.listener()).rpartition("_")[0], 0
        registered = await ask(b"SMEMBERS", steps.keys.listeners, reads=True)
        self._known.update(registered)
        for listener in sorted(self._known):
            parsed = processes.parse(text(listener))
            if parsed is None or parsed[0] != here:
                self._known.discard(listener)
                continue
            while True:
                ids, taken = await self._reserved(listener), 0
                if not ids and listener not in registered:
                    self._known.discard(listener)
                    break
                found = {task.claim.id: task for task in await load_many(core.client, ids)}
                tasks = [found.get(task_id) or Task(core.client, text(task_id), {}) for task_id in ids]
                looked_at = await asyncio.to_thread(_look, parsed[1], tasks)
                if looked_at is not None:
                    taken, _ = await steps.adopt(listener, core.on_orphan, ADOPTED, *looked_at)
                moved += taken
                if not taken or len(ids) < MAX_TASKS:  # otherwise older ones are left, and come before these
                    break
        return moved

    async def _reserved(self, listener: bytes) -> list[bytes]:
        """Return the ids of a listener's tasks, the newest first.

        There are none, with a warning, if another program has damaged its list.
        """
        key = self._core.steps.keys.reserved(listener)
        try:
            ids: list[bytes] = await self._core.steps.connection.ask(b"LRANGE", key, 0, MAX_TASKS - 1, reads=True)
        except ServerError as error:
            if error.code != "WRONGTYPE":
                raise
            if listener not in self._damaged:
                logger.warning("the tasks of the listener %s are left out: the key %s is not a list. Delete it with "
                               "redis-cli", text(listener), text(key))  # fmt: skip
            self._damaged.add(listener)
            return []
        self._damaged.discard(listener)
        return ids


def _look(pid: int, tasks: Sequence[Task]) -> tuple[bool, list[tuple[bytes, bool, bytes]]] | None:
    """Return whether no process has a listener's number, and its orphans; None if the listener lives.

    An orphan is the id of a task, whether its process runs, and its token. A task without fields is missing.

    The released blueque writes `updated` by this host's clock. Our nodes write the server's time, which cannot be
    compared with the start of a process here. Their tasks have leases, which tell when another process has the number:
    this one perhaps, where each process of a container has the same.

    Reading about processes may start one (`ps`), so this is called in a thread.
    """
    alive = processes.running(pid)
    if alive and not any(task.fields for task in tasks):
        return None
    orphans = []
    for task in tasks:
        if alive and task.claim.token:
            continue
        if alive and processes.is_same(pid, None, task.updated):
            return None
        runs = task.status == "started" and processes.is_same(task.pid or 0, task.process_started, task.updated)
        orphans.append((task.claim.id, runs, task.claim.token))
    return None if alive and not orphans else (not alive, orphans)
