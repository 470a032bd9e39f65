"""SIGKILLs of driver, source process and Python workers at random times: every row comes out exactly once.

The pipeline of `app.py` runs from bounded queues over another to files while something of it dies again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
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
from urllib.parse import urlsplit

import psutil
import pytest

from apressure import AsyncQueue
from apressure.demo import flights
from apressure.embedded import EmbeddedServer
from apressure.spark.engine.keys import SparkKeys
from apressure.spark.engine.steps import QueueSteps
from tests import processes
from tests.chaos.support import LONG
from tests.integration.commands import wait_until
from tests.servers import admin
from tests.spark.app import INPUTS
from tests.spark.conftest import Ground
from tests.spark.pipelines import SPARK_PATIENCE, Pipeline, assert_exact

KILLS = 20 if LONG else 1
PATIENCE = 400.0
_SEED = os.environ.get("APRESSURE_SEED") or secrets.token_hex(4)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200 if LONG else 1200)]


class App:
    """The driver. It is started again when it dies.

    Attributes:
        lines: Its output.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.app", url, str(folder), "local[2]"]
        self.lines: list[str] = []
        self._seen: dict[int, psutil.Process] = {}
        self.start()

    def start(self) -> None:
        self._process = processes.Popen(
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
        """Its processes, the driver first, including workers whose daemon was killed and that have no parent."""
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
        """The live processes of a kind."""
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
            self.end()  # its other processes would end soon, but must not meet those of the next driver
            self.start()

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.tree()
        for process in self._seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # (psutil notices if the pid belongs to another process now)
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


def committed(folder: Path) -> Iterator[bytes]:
    """The bodies in the files that the log of Spark's file sink names, read without a Spark."""
    import pandas as pd

    lines = [line for log in (folder / "_spark_metadata").glob("[0-9]*") for line in log.read_text().splitlines()[1:]]
    for path in {urlsplit(json.loads(line)["path"]).path for line in lines}:
        yield from pd.read_parquet(path)["body"]


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param("driver", "valkey", marks=pytest.mark.combination),
        ("source", "redis"),
        pytest.param("workers", "valkey", marks=pytest.mark.combination),
    ],
)
def test_rows_out_are_rows_in(
    what: str,
    kind: str,
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
        async with contextlib.AsyncExitStack() as stack:
            queues = [await stack.enter_async_context(AsyncQueue(name, url=server.url)) for name in INPUTS]
            mid = await stack.enter_async_context(AsyncQueue("mid", url=server.url))
            for queue in queues:
                await queue.create(bound=700)
            await mid.create(bound=3000)
            ready.set()
            for queue in itertools.cycle(queues):
                more = [b"%d" % number for number in range(len(put), len(put) + 250)]
                await queue.put_many(more)
                put.extend(more)
                if enough.is_set():
                    break
            for queue in queues:
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
            app.until(lambda before=before: batches() > before)  # rows have come through since the last kill
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

    rows = Counter(committed(tmp_path / "out"))
    lost = set(put) - set(rows)
    doubled = [body for body, times in rows.items() if times > 1]
    print(f"{what}: {killed} kills, {len(put)} rows, {len(lost)} lost, {len(doubled)} doubled")
    print("".join(app.lines))
    assert not lost
    assert not doubled
    assert set(rows) == set(put)


def test_the_pipeline_goes_on_whatever_dies(place: Pipeline) -> None:
    """Any process dies at random times, and the same command goes on."""
    print(f"APRESSURE_SEED={_SEED}")
    rng = random.Random(_SEED)
    others = ["feeder", "driver", "java", "source", "worker", "command", "interrupt"]
    plan = ["everything", "server", *others * 3] if LONG else ["everything", rng.choice(["server", *others])]
    rng.shuffle(plan)
    rows = 40_000 if LONG else 4000
    arguments = ["--rows", str(rows), "--bound", "500", "--json"]
    process, killed, runs = place.start(*arguments), [], 1
    for what in plan:
        before = place.batches()
        deadline = time.monotonic() + (SPARK_PATIENCE if not killed or rng.random() < 0.7 else rng.uniform(0, 8))
        while place.batches() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.0))
        if process.poll() is not None:
            break
        if what == "everything":
            victims = place.processes()
        elif what in ("command", "interrupt"):
            victims = [psutil.Process(process.pid)]
        else:
            victims = rng.sample(found := place.processes(what), min(1, len(found)))
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGINT if what == "interrupt" else signal.SIGKILL)
        if not victims:
            continue
        killed.append(what)
        if what == "worker":
            print(what, [victim.pid for victim in victims], place.batches())
            continue  # its task is tried again, and nothing else happens
        output, errors = process.communicate(timeout=SPARK_PATIENCE)
        print(what, process.returncode, place.batches(), errors.splitlines()[-1:])
        if what in ("everything", "command"):
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == {"interrupt": 130, "server": 7}.get(what, 1), (output, errors)
            assert json.loads(errors.splitlines()[-1])["exit_code"] == process.returncode
        process, runs = place.start(*arguments), runs + 1
    output, errors = process.communicate(timeout=SPARK_PATIENCE)
    assert process.returncode == 0, (killed, errors, place.log())
    result = json.loads(output)
    assert killed
    assert (result["rows_in"], result["rows_out"], result["doubled"]) == (rows, rows, 0)
    assert_exact(place.into / "delays", rows)
    wait_until(lambda: not place.processes())


JAVA_KILLS = 200 if LONG else 1
MOMENTS = {"start": 1.5, "begin": 0.5, "log": 0.005, "batch": 0.2, "commit": 0.01, "done": 0.1, "end": 0.3}
"""What has just happened when Java is killed, and the longest delay after it, as a share of the time of a start."""


class Run:
    """A run of `windows.py` whose Java can be killed.

    Attributes:
        process: The Python process, which runs until it notices.
        start: Seconds until the checkpoint appeared; None before that.
    """

    def __init__(self, url: str, folder: Path, steps: QueueSteps, how: str) -> None:
        self.process = processes.Popen(
            [sys.executable, "-m", "tests.spark.windows", url, str(folder), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        self._checkpoint = folder / "checkpoint"
        self._steps = steps
        self._next = self._highest("commits") + 1
        self._began = time.monotonic()
        self._java: psutil.Process | None = None
        self.start: float | None = None

    def _names(self, log: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [path.name for path in (self._checkpoint / log).iterdir()]
        return []

    def _highest(self, log: str) -> int:
        return max((int(name) for name in self._names(log) if name.isdigit()), default=-1)

    def _there(self) -> bool:
        return (self._checkpoint / "offsets").exists()

    def _writes(self, log: str, number: int) -> bool:
        """Whether the file of that number exists or is being written."""
        return any(name == str(number) or name.startswith(f".{number}.") for name in self._names(log))

    def _come(self, what: str, number: int) -> bool:
        match what:
            case "start":
                return True
            case "begin":
                return self._there()
            case "log":
                return self._writes("offsets", number)
            case "batch":
                return self._highest("offsets") >= number
            case "commit":
                return self._writes("commits", number)
            case "done":
                return self._highest("commits") >= number
        return not self._steps.length()

    def _until(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition, and return whether it became true while the run went on."""
        deadline = time.monotonic() + SPARK_PATIENCE
        while not condition() and self.process.poll() is None:
            if self.start is None and self._there():
                self.start = time.monotonic() - self._began
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return self.process.poll() is None

    def _begun(self) -> bool:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if "org.apache.spark.deploy.SparkSubmit" in child.cmdline():
                    self._java = child
        return self._java is not None

    def kill(self, what: str, number: int, share: float, quick: float) -> bool:
        """Kill Java at a moment; False if the run has ended before. `quick`: how long a start takes in seconds."""
        if not self._until(self._begun) or not self._until(lambda: self._come(what, self._next + number)):
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(share * quick)
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.process.poll() is None and self._java is not None:
                self._java.kill()
                return True
        return False

    def end(self) -> bool:
        """Wait for the end, and return whether the run is complete."""
        return "done\n" in self.process.communicate(timeout=SPARK_PATIENCE)[0]

    def close(self) -> None:
        """Kill all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it has a session of its own
        self.process.wait()

    def left(self) -> str:
        return ", ".join(f"{log} {sorted(self._names(log))}" for log in ("offsets", "commits"))


def test_java_dies_at_any_moment(bare_ground: Ground) -> None:
    """Only Java is killed, while it starts, logs a batch, works, commits, or ends; each folder is completed."""
    print(f"APRESSURE_SEED={_SEED}")
    ground, rng = bare_ground, random.Random(f"{_SEED} java")
    rows, killed, folders, quick = 1200, Counter[str](), 0, 4.0
    messages = [json.dumps(flight).encode() for flight in flights.flights(rows)]
    while killed.total() < JAVA_KILLS:
        folder = ground.folder / f"{folders}"
        steps = ground.create("flights")
        asyncio.run(ground.put(messages, "flights", close=True))
        complete = False
        # Runs that are killed at one moment each, and then one without a kill.
        for what in (*rng.choices(list(MOMENTS), k=min(rng.randint(1, 3), JAVA_KILLS - killed.total())), ""):
            began = time.monotonic()
            run = Run(ground.url, folder, steps, how := rng.choice(["start", "plain"]))
            new = not folder.exists()
            try:
                dead = bool(what) and run.kill(what, rng.randint(0, 2), rng.uniform(0, MOMENTS[what]), quick)
                complete = run.end()
            finally:
                run.close()
            if dead:
                killed[what] += 1
            quick = run.start if new and run.start else quick
            seconds = time.monotonic() - began
            print(f"{folders}: {how} {what or 'whole'}: {complete=} {dead=} {seconds:.1f} s; {run.left()}")
            assert complete or dead, "a run that nobody killed failed"
            if complete:
                break
        assert_exact(folder / "delays", rows)
        for key in ground.plain.scan_iter("*flights*"):
            ground.plain.delete(key)
        folders += 1
    print(f"{killed.total()} kills of Java in {folders} folders: {dict(killed)}")
