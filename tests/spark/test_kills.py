"""SIGKILLs of driver, source process and Python workers at random times: rows out are rows in, once each.

The pipeline of `app.py` runs from a bounded queue over another to files while something of it dies again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from apressure.spark.keys import SparkKeys
from tests.chaos.support import LONG
from tests.servers import admin

KILLS = 20 if LONG else 3
PATIENCE = 400.0 if LONG else 120.0
_SEED = os.environ.get("APRESSURE_SEED") or secrets.token_hex(4)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600 if LONG else 400)]


class App:
    """The driver, started again when it dies.

    Attributes:
        lines: What it has said.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.app", url, str(folder), "local[2]"]
        self.lines: list[str] = []
        self._seen: dict[int, psutil.Process] = {}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        starts = self.lines.count("started\n") + 1
        self.until(lambda: self.lines.count("started\n") == starts)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):
            self.lines += iter(process.stdout.readline, "")

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "".join(self.lines[-30:])
            assert self._process.poll() is None or condition(), "".join(self.lines[-30:])
            time.sleep(0.02)

    def tree(self) -> list[psutil.Process]:
        """Its processes, the driver first: workers whose daemon was killed, too, which are nobody's children."""
        found = [psutil.Process(self._process.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            found += found[0].children(recursive=True)
        known = {process.pid for process in found}
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError):
                if process.pid not in known and os.getsid(process.pid) == self._process.pid:
                    found.append(process)
        self._seen.update((process.pid, process) for process in found)
        return found

    def victims(self, what: str) -> list[psutil.Process]:
        """Those of a kind that live."""
        tree = self.tree()
        if what == "driver":
            return tree[:2]  # Python, and the Java that it started
        word = "python_streaming_source_runner" if what == "source" else "pyspark.daemon"
        victims = []
        for process in tree[2:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word in part for part in process.cmdline()):
                    victims.append(process)
        return victims

    def kill(self, victims: list[psutil.Process]) -> None:
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)
        if victims[0].pid == self._process.pid:
            self._process.wait(PATIENCE)
            self.end()  # what it leaves would not live long, and must not meet the next one
            self.start()

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.tree()
        for process in self._seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # (psutil knows when the number belongs to another process by now)
        self._process.wait(PATIENCE)
        self._seen.clear()


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., App]]:
    apps: list[App] = []

    def start(url: str) -> App:
        apps.append(App(url, tmp_path))
        return apps[-1]

    yield start
    for app in apps:
        app.end()


@pytest.mark.parametrize(("what", "kind"), [("driver", "valkey"), ("source", "redis"), ("workers", "valkey")])
def test_rows_out_are_rows_in(
    what: str,
    kind: str,
    spark: Any,
    make_server: Callable[..., EmbeddedServer],
    run: Callable[..., App],
    tmp_path: Path,
) -> None:
    print(f"APRESSURE_SEED={_SEED}")
    rng = random.Random(f"{_SEED} {what}")
    server = make_server(kind)
    enough = threading.Event()
    put: list[bytes] = []

    async def feed() -> None:
        async with AsyncQueue("in", url=server.url) as queue, AsyncQueue("mid", url=server.url) as mid:
            await queue.create(bound=2000)
            await mid.create(bound=3000)
            ready.set()
            while not enough.is_set():
                more = [b"%d" % number for number in range(len(put), len(put) + 250)]
                await queue.put_many(more)
                put.extend(more)
            await queue.close()

    ready = threading.Event()
    feeder = threading.Thread(target=lambda: asyncio.run(feed()), daemon=True)
    feeder.start()
    assert ready.wait(10)
    app = run(server.url)
    killed = before = 0
    with admin(server) as plain:

        def batches() -> int:
            return int(plain.hget(SparkKeys("__pressure__", "mid").state("second"), "sealed") or 0)

        while killed < KILLS:
            app.until(lambda before=before: batches() > before)  # rows have come through since the last time
            time.sleep(rng.uniform(0.0, 3.0))
            victims = app.victims(what)
            if victims:
                before = batches()
                app.kill(victims if what == "driver" else [rng.choice(victims)])
                killed += 1
    enough.set()
    app.until(lambda: "done\n" in app.lines)
    feeder.join(10)
    assert not feeder.is_alive()

    rows = Counter(bytes(row.body) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    lost = set(put) - set(rows)
    doubled = [body for body, times in rows.items() if times > 1]
    print(f"{what}: {killed} kills, {len(put)} rows, {len(lost)} lost, {len(doubled)} doubled")
    print("".join(app.lines))
    assert not lost
    assert not doubled
    assert set(rows) == set(put)
