"""Messages of a key are handled one at a time and in order, while services are killed and stand still, and their server
restarts.

What counts:

* The server's word, without any excuse: whenever it is looked at, in one step and every few milliseconds, no key has
  more messages in flight than it may have. And with a rate, no window has more that left the line than the rate allows.
* What the services note, by the monotonic clock of this host: with one at a time, no two handlers of a key overlap, and
  none begins a message after one that was put behind it has begun. A handler whose service was killed has ended then.
  The excuse is a service that stood still for as long as a lease may last without it (half a lease, to be safe): until
  it learns that its leases have ended, which is less than a lease after it goes on, it may believe that it has what
  others have by right. So does one whose server was away for that long. Nobody else has an excuse.
* A message that a handler has finished comes again only where its service or the server was in trouble, before it was
  acknowledged. Each that was put was finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from apressure import EventQueue
from apressure.embedded import EmbeddedServer
from apressure.events.engine.keys import EventKeys
from tests.chaos.key_workers import LEASE
from tests.chaos.retry_workers import open_queue
from tests.chaos.support import PATIENCE, Recorder, Row, no_complaints, often
from tests.chaos.test_kill import Nursery, nursery
from tests.chaos.test_retries import Trouble
from tests.servers import SERVERS

MESSAGES = {"one": often(400, 125), "three": often(400, 125), "rate": often(120, 40)}
"""50,000 in the long form, and 4,800 with a rate."""
TROUBLES = often(2, 30)
"""So often a service is killed or stands still: 60 times in the long form."""
RESTARTS = often(1, 5)
WORKERS = 6
KEYS = 40
BOUND = 300
COUNT, PER = 50, 0.5
"""The rate."""

LOOK = """
local time, ids = redis.call('TIME'), redis.call('LRANGE', KEYS[2], 0, -1)
local flying = #ids > 0 and redis.call('HMGET', KEYS[3], unpack(ids)) or {}
return {time[1] * 1000000 + time[2], redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[4]), flying}
"""

pytestmark = pytest.mark.timeout(often(120, 10))


class Note(NamedTuple):
    """What a service has noted; see `key_workers`."""

    moment: float
    word: str
    number: int
    worker: str


class Handling(NamedTuple):
    """That a handler had a message: from when, until when, which one, and of which service."""

    begun: float
    ended: float
    word: str
    number: int
    worker: str


class Storm:
    """A queue whose messages have keys, those who put them, and its services, which are killed.

    Args:
        server: The server, which restarts.
        how: One of `MESSAGES`.
        folder: For the notes of the services.
        rng: Randomness.
    """

    def __init__(self, server: EmbeddedServer, how: str, folder: Path, rng: random.Random) -> None:
        self._server = server
        self._how = how
        self._name = f"keys-{how}"
        self._at_most = 3 if how == "three" else 1
        self._folder = folder
        self._rng = rng
        self._put: set[tuple[str, int]] = set()
        self._restarts: list[Trouble] = []
        self._stops: dict[str, list[Trouble]] = defaultdict(list)
        self._deaths: dict[str, float] = {}
        self._ended = False
        self._looks = 0
        self._crowded = 0
        self._left: list[tuple[int, int]] = []
        """When, in microseconds, and how many waited."""

    async def survives(self) -> Row:
        """Kill services while they work, and see what becomes of the messages and of their order."""
        async with (
            asyncio.timeout(often(2, 12) * PATIENCE),
            open_queue("events", self._server.url, self._name) as queue,
            nursery(self._server.url, "tests.chaos.key_workers") as crew,
        ):
            await queue.create(0 if self._how == "rate" else BOUND)
            await queue.set_key("/key", at_most=self._at_most, fair=self._rng.random() < 0.7)
            feeding = asyncio.create_task(self._feed(queue))
            if self._how == "rate":  # what is put while others leave the line would hide them
                await queue.set_rate(COUNT, PER)
                await feeding
            looking = asyncio.create_task(self._look())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._die(crew))
                group.create_task(self._restart())
            await feeding
            while (seen := await queue.statistics()).length or seen.in_flight or seen.delayed:
                await asyncio.sleep(0.1)
            self._ended = True
            await looking
            await queue.delete()
        return self._row()

    async def _feed(self, queue: EventQueue[bytes]) -> None:
        """Put messages, those of a key in order; half of them say their key only in their contents."""

        async def feed(key: str, rng: random.Random) -> None:
            for number in range(MESSAGES[self._how] // KEYS):
                contents = json.dumps({"number": number, "key": key}).encode()
                await (queue.put(contents, key=key) if rng.random() < 0.5 else queue.put(contents))
                self._put.add((key, number))

        async with asyncio.TaskGroup() as group:
            for place in range(KEYS):
                group.create_task(feed(f"customer-{place}", random.Random(self._rng.random())))

    async def _restart(self) -> None:
        """Kill or stop the server, and start it again."""
        for _ in range(RESTARTS):
            await asyncio.sleep(self._rng.uniform(0.5, often(1, 10)))
            begun = time.monotonic()
            if self._rng.random() < 0.5:
                os.kill(self._server.pid, signal.SIGKILL)
            await asyncio.to_thread(self._server.stop)
            await asyncio.to_thread(self._server.start)
            self._restarts.append((begun, time.monotonic()))

    async def _die(self, crew: Nursery) -> None:
        """Services are killed, and others take their place; some stand still, shorter and longer than their lease."""
        started = 0

        async def start() -> str:
            nonlocal started
            started += 1
            return await crew.start("events", self._name, f"w{started}", self._folder / f"w{started}")

        workers = [await start() for _ in range(WORKERS)]
        for _ in range(TROUBLES):
            await asyncio.sleep(self._rng.uniform(0.2, 0.8))
            place = self._rng.randrange(WORKERS)
            worker = workers[place]
            if self._rng.random() < 0.5:
                await crew.kill(worker)
                self._deaths[worker] = time.monotonic()
                workers[place] = await start()
            else:
                begun = time.monotonic()
                await crew.stand_still(worker, self._rng.choice((0.2, 1.5 * LEASE)))
                self._stops[worker].append((begun, time.monotonic()))

    async def _look(self) -> None:
        """Look at the queue until the end, while the server comes and goes.

        (Not until cancelled: once, a cancellation got lost on the way, and the test did not end.)
        """
        keys = EventKeys(self._name)
        lines = b"apressure:%s:lines" % keys.unclaimed
        while not self._ended:
            with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                async with redis.asyncio.Redis.from_url(self._server.url, socket_timeout=5) as client:
                    script = client.register_script(LOOK)
                    while not self._ended:
                        moment, waiting, flying = await script(keys=[keys.unclaimed, keys.claimed, keys.items, lines])
                        count = Counter(json.loads(contents)["key"] for contents in flying if contents)
                        self._looks += 1
                        self._crowded += any(number > self._at_most for number in count.values())
                        self._left.append((moment, waiting))
                        await asyncio.sleep(0.003)
            await asyncio.sleep(0.02)

    def _over_rate(self) -> int:
        """In how many windows more has left the line than the rate allows. (What came back meanwhile hides some.)"""
        found, begin, gone = 0, 0, [0]
        for before, after in zip(self._left, self._left[1:], strict=False):
            gone.append(gone[-1] + max(0, before[1] - after[1]))
        for end, (moment, _) in enumerate(self._left):
            while moment - self._left[begin][0] >= PER * 1_000_000:
                begin += 1
            found += gone[end] - gone[begin] > COUNT
        return found

    def _handlings(self) -> dict[str, list[Handling]]:
        """What handlers had of each key, by when they began."""
        found = defaultdict(list)
        for log in self._folder.glob("w*"):
            begun: dict[tuple[str, int], float] = {}
            for line in log.read_text().rpartition("\n")[0].splitlines():
                word, key, number, moment = line.split()
                if word == "got":
                    begun[key, int(number)] = float(moment)
                else:
                    since = begun.pop((key, int(number)))
                    found[key].append(Handling(since, float(moment), word, int(number), log.name))
            for (key, number), since in begun.items():  # it was killed
                found[key].append(
                    Handling(since, self._deaths.get(log.name, time.monotonic()), "killed", number, log.name)
                )
        return {key: sorted(handlings) for key, handlings in found.items()}

    def _long(self, worker: str) -> Iterator[Trouble]:
        """When a service stood still, or its server was away, for so long that leases may have ended."""
        for begun, ended in [*self._stops[worker], *self._restarts]:
            if ended - begun > LEASE / 2:
                yield begun, ended

    def _stale(self, one: Handling, moment: float) -> bool:
        """Whether a handler may have believed at a moment that it had what others may have had by right."""
        return any(
            one.begun <= ended + LEASE and one.ended >= begun and moment >= begun + LEASE / 2
            for begun, ended in self._long(one.worker)
        )

    def _together(self, handlings: list[Handling]) -> int:
        """How many handlers began while another one of the key was at work. (One at a time.)"""
        found = 0
        for place, later in enumerate(handlings):
            found += any(
                earlier.ended > later.begun
                and not self._stale(earlier, later.begun)
                and not self._stale(later, later.begun)
                for earlier in handlings[:place]
            )
        return found

    def _out_of_order(self, handlings: list[Handling]) -> int:
        """How many handlers began a message after one that was put behind it had begun. (One at a time.)"""
        latest, found = -1, 0
        for one in handlings:
            found += one.number < latest and not self._stale(one, one.begun)
            latest = max(latest, one.number)
        return found

    def _again(self, handlings: list[Handling]) -> int:
        """How many handlers began what had been finished, though nobody was in trouble."""
        finished: dict[int, Handling] = {}
        found = 0
        for one in handlings:
            before = finished.get(one.number)
            if before is not None and not self._stale(one, one.begun):
                own = [*self._stops[before.worker], *self._restarts]
                died = self._deaths.get(before.worker)
                if died is not None:
                    own.append((died, died))
                found += not any(begun <= one.begun and ended >= before.begun - LEASE for begun, ended in own)
            if one.word == "done":
                finished[one.number] = one
        return found

    def _row(self) -> Row:
        handlings = self._handlings()
        done = {(key, one.number) for key, some in handlings.items() for one in some if one.word == "done"}
        row = Row(tried=TROUBLES + len(self._restarts), acknowledged=len(self._put), lost=len(self._put - done))
        words = Counter(one.word for some in handlings.values() for one in some)
        row.doubled = sum(map(self._again, handlings.values()))
        if self._at_most == 1:
            row.doubled += sum(map(self._together, handlings.values()))
            row.out_of_order = sum(map(self._out_of_order, handlings.values()))
        row.notes.update(retries=words["failed"], killed=words["killed"], looks=self._looks)
        row.notes["too many of a key"] = self._crowded
        row.notes["over the rate"] = self._over_rate() if self._how == "rate" else 0
        return row


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("how", MESSAGES)
async def test_keys_keep_their_order_while_services_die_and_their_server_restarts(
    make_server: Callable[..., EmbeddedServer],
    kind: str,
    how: str,
    tmp_path: Path,
    rng: random.Random,
    recorder: Recorder,
) -> None:
    """The server writes everything to its append-only file before it answers."""
    server = make_server(kind, directory=tmp_path / "server", config={"appendfsync": "always"})
    async with no_complaints():
        row = await Storm(server, how, tmp_path, rng).survives()
    recorder.add(f"killed consumer: keys, {how}", server.software, row)
    over: Any = [row.notes[name] for name in ("too many of a key", "over the rate")]
    assert row.clean(), row
    assert not any(over), row
