"""`apressure pipeline`: real flights, a real Spark, and files that no kill changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from apressure import AsyncQueue, QueueInUseError, nycflights
from apressure.cli.pipeline_folder import Folder, FolderInUseError, Run
from apressure.embedded import EmbeddedServer
from apressure.spark import pipeline
from apressure.spark.options import Options
from apressure.spark.steps import Steps, server_of
from tests.chaos.support import LONG
from tests.integration.commands import COMMAND, environment, marked, new_mark, wait_until
from tests.servers import admin, keys_left_behind, refresh

ROOT = Path(__file__).parents[2]
ROWS = 4000
_SEED = os.environ.get("APRESSURE_SEED") or secrets.token_hex(4)
SPARK_PATIENCE = 240.0

pytestmark = pytest.mark.timeout(3600 if LONG else 400)

_WORDS = {
    "feeder": "pipeline_worker feeder",
    "driver": "pipeline_worker spark",
    "java": "deploy.SparkSubmit",
    "source": "python_streaming_source_runner",
    "worker": "pyspark.daemon",
    "server": "valkey-server",
}


class Pipeline:
    """Runs the command, marked, with a folder of its own."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.into = temporary / "into"
        self.mark = new_mark()
        self.environment = environment(TMPDIR=os.fspath(temporary), **self.mark)

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, "pipeline", "--into", os.fspath(self.into), *arguments]

    def run(self, *arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=SPARK_PATIENCE,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stderr, self.log())
        assert "Traceback" not in done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def processes(self, what: str = "") -> list[psutil.Process]:
        """Those of a kind; all without one."""
        found = []
        for process in marked(self.mark, self.temporary):
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if _WORDS.get(what, "") in line and not (what and "/bin/sh" in line):
                    found.append(process)
        return found

    def batches(self) -> int:
        """How many batches Spark has done with."""
        with contextlib.suppress(FileNotFoundError):
            return sum(path.name.isdigit() for path in (self.into / "checkpoint" / "commits").iterdir())
        return 0

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.into / "spark.log").read_text(errors="replace")[-3000:]
        return ""


@pytest.fixture
def place() -> Iterator[Pipeline]:
    temporary = Path(tempfile.mkdtemp(prefix="ap-"))  # short, because a unix socket goes into it
    made = Pipeline(temporary)
    yield made
    for process in made.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(temporary, ignore_errors=True)


def counted(rows: int) -> Any:
    """The delays of the first flights by carrier and hour, by means of pandas alone."""
    import pandas as pd

    with zipfile.ZipFile(nycflights.data_directory() / "flights.csv.zip") as archive:
        data = pd.read_csv(archive.open("flights.csv"))
    data["start"] = pd.to_datetime(data[["year", "month", "day", "hour"]])
    data = data.sort_values(["start", "minute"], kind="stable").head(rows)
    delays = data.groupby(["start", "carrier"])["dep_delay"]
    found = delays.agg(flights="size", departed="count", mean_delay="mean", longest_delay="max").reset_index()
    return found.sort_values(["start", "carrier"], ignore_index=True)


def assert_exact(folder: Path, rows: int) -> None:
    """All files in the folder, whoever has left them, say together what pandas says."""
    import pandas as pd

    found = pipeline.table(folder)
    found["start"] = found["start"].dt.tz_localize(None)
    pd.testing.assert_frame_equal(found, counted(rows), check_dtype=False, check_exact=True)


class TestWhole:
    def test_run(self, place: Pipeline) -> None:
        result = json.loads((first := place.run("--rows", str(ROWS), "--bound", "500", "--json")).stdout)
        assert_exact(place.into / "delays", ROWS)
        assert (result["rows_in"], result["rows_out"], result["exact"]) == (ROWS, ROWS, True)
        assert (result["doubled"], result["runs"], result["bound"]) == (0, 1, 500)
        assert result["windows"] == len(counted(ROWS))
        assert result["peak_depth"] == 500
        assert result["queue_full_seconds"] > 0
        assert result["batches"] > 5
        assert "feeder waits: the queue is full" in first.stderr
        assert f"{ROWS:,} of {ROWS:,} rows (100%)" in first.stderr
        carriers = counted(ROWS).groupby("carrier")["flights"].sum()
        assert {row["carrier"]: row["flights"] for row in result["carriers"]} == carriers.to_dict()
        assert Path(result["chart"]).read_bytes().startswith(b"\x89PNG")
        wait_until(lambda: not place.processes())
        assert sorted(path.name for path in place.temporary.iterdir()) == ["into"]

        # Done is done: no Spark is needed to say so.
        nowhere = {"PYTHONPATH": place.environment["PYTHONPATH"]}
        again = place.run("--json", **nowhere)
        assert json.loads(again.stdout) == result
        assert again.stderr == ""
        people = place.run().stdout
        assert "JetBlue Airways" in people
        assert f"✔  {ROWS:,} rows in, {ROWS:,} rows out" in people

    def test_the_example(self, place: Pipeline) -> None:
        (place.into / "delays").mkdir(parents=True)
        (place.into / "delays" / "part-00000-of-a-task-that-was-killed.parquet").write_bytes(b"PAR1")
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "pipeline.py"), str(place.into), "1500"],
            env=place.environment,
            capture_output=True,
            text=True,
            timeout=SPARK_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        windows = len(counted(1500))
        assert done.stdout == f"1,500 flights in {windows:,} windows: {place.into / 'delays.png'}\n"
        assert_exact(place.into / "delays", 1500)


@pytest.mark.chaos
def test_kills(place: Pipeline) -> None:
    """Anything dies at random times, and the same command goes on."""
    print(f"APRESSURE_SEED={_SEED}")
    rng = random.Random(_SEED)
    others = ["feeder", "driver", "java", "source", "worker", "command", "interrupt"]
    plan = ["everything", "server", *(others * 3 if LONG else rng.sample(others, 2))]
    rng.shuffle(plan)
    rows = 40_000 if LONG else 6000
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
            continue  # its task is tried again, and nothing else is to be seen
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
    assert len(killed) >= 2, killed
    assert (result["rows_in"], result["rows_out"], result["doubled"]) == (rows, rows, 0)
    assert_exact(place.into / "delays", rows)
    wait_until(lambda: not place.processes())


class TestFeeder:
    async def test_it_goes_on_where_it_was(self, valkey: EmbeddedServer) -> None:
        refresh(valkey)
        async with AsyncQueue[Any]("f", url=valkey.url, codec="json") as queue:
            await queue.create(bound=10)
            with pytest.raises(TimeoutError):  # cancelled while it waits for room
                async with asyncio.timeout(0.3):
                    await pipeline.feed(queue, range(25))
            assert await queue.get_many(10) == list(range(10))

            def items() -> Iterator[int]:
                yield from range(16)
                raise RuntimeError("the source fails")

            with pytest.raises(RuntimeError, match="the source fails"):
                await pipeline.feed(queue, items())
            known = (await queue.statistics()).produced_messages
            assert 10 <= known <= 16
            last = asyncio.ensure_future(pipeline.feed(queue, range(25)))
            assert [item async for item in queue] == list(range(10, 25))
            assert await last == 25 - known
            assert await pipeline.feed(queue, range(25)) == 0
            await queue.delete()

    async def test_a_second_one_is_kept_out(self, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        refresh(valkey)
        monkeypatch.setattr(pipeline, "LEASE", 1.0)
        async with (
            AsyncQueue[Any]("f", url=valkey.url, codec="json") as queue,
            AsyncQueue[Any]("f", url=valkey.url, codec="json") as other,
        ):
            await queue.create(bound=10)
            feeders = [asyncio.ensure_future(pipeline.feed(one, range(100))) for one in (queue, other)]
            await asyncio.sleep(0.2)
            with pytest.raises(QueueInUseError):
                await queue.put(5, timeout=0)
            assert [item async for item in queue] == list(range(100))
            assert sorted(await asyncio.gather(*feeders)) == [0, 100]
            await queue.delete()

    def test_the_flights(self) -> None:
        found = list(pipeline.flights(1000))
        assert len(found) == 1001
        times = [one["scheduled"] for one in found]
        assert times == sorted(times)
        assert "carrier" not in found[-1]
        assert list(itertools.islice(pipeline.flights(), 1000)) == found[:-1]


class TestBadInput:
    def test_a_folder_of_something_else(self, place: Pipeline) -> None:
        place.into.mkdir()
        (place.into / "novel.txt").write_text("It was a dark and stormy night")
        done = place.run("--json", code=2)
        error = json.loads(done.stderr)
        assert error["error"] == "UsageError"
        assert "has something else in it than a pipeline: name another folder" in error["message"]
        assert [path.name for path in place.into.iterdir()] == ["novel.txt"]

    def test_other_numbers(self, place: Pipeline) -> None:
        with Folder.taken(place.into, 10, 5):
            pass
        assert "has a pipeline of --rows 10: go on with that" in place.run("--rows", "20", code=2).stderr
        assert "has a pipeline of --bound 5: go on with that" in place.run("--bound", "20", code=2).stderr

    def test_a_folder_in_use(self, place: Pipeline) -> None:
        with (
            Folder.taken(place.into, 10, 5),
            pytest.raises(FolderInUseError, match="another command works in"),
            Folder.taken(place.into, 10, 5),
        ):
            pass

    def test_a_folder_that_another_command_has_just_begun(self, place: Pipeline) -> None:
        """It was new when the second command looked, and was killed later."""
        with ThreadPoolExecutor() as pool:
            with Folder.taken(place.into, 10, 5) as folder:
                (place.into / "pipeline.json").unlink()

                def second() -> Run:
                    with Folder.taken(place.into, None, None) as folder:
                        return folder.run

                run = pool.submit(second)
                time.sleep(0.3)  # it waits for the lock
                folder.save()
                (place.into / "checkpoint").mkdir()
            assert run.result() == folder.run

    def test_a_damaged_folder(self, place: Pipeline) -> None:
        with Folder.taken(place.into, 10, 5):
            pass
        (place.into / "pipeline.json").write_text("{}")
        assert "is not what a pipeline writes" in place.run(code=2).stderr

    def test_a_queue_that_is_gone(self, place: Pipeline, valkey: EmbeddedServer) -> None:
        refresh(valkey)
        with Folder.taken(place.into, 10, 5) as folder:
            folder.run.created = True
            folder.save()
        done = place.run("--url", valkey.url, code=3)
        assert "is not on this server: use the server and the prefix that it began with" in done.stderr

    def test_no_java(self, place: Pipeline) -> None:
        done = place.run("--json", code=8, PATH="/nonexistent", JAVA_HOME="")
        assert "needs Java 17" in json.loads(done.stderr)["message"]
        assert not place.into.exists()

    def test_what_is_done_is_deleted_in_the_end(self, place: Pipeline, valkey: EmbeddedServer) -> None:
        """A command that had the result and died before it had deleted the queue."""
        refresh(valkey)
        with Folder.taken(place.into, 10, 5) as folder:
            folder.run.result = {"exact": True}
            folder.save()
            queue = folder.run.queue
        with admin(valkey) as plain:
            steps = Steps(server_of(Options.of({"url": valkey.url, "queue": queue})), "__pressure__", queue)
            steps.create(5)
            plain.lpush(steps.keys.queue.messages, *range(5))
            epoch, *_ = steps.adopt(pipeline.GROUP)
            assert steps.seal(pipeline.GROUP, epoch, 0, 3) == 1
            assert json.loads(place.run("--url", valkey.url, "--json").stdout) == {"exact": True}
            assert keys_left_behind(valkey, []) == []

    def test_no_server(self, place: Pipeline) -> None:
        done = place.run("--url", "redis://127.0.0.1:1/0", code=7)
        assert done.stderr.endswith("the same command goes on where this one ended\n")

    def test_too_many_rows(self, place: Pipeline) -> None:
        assert "--rows" in place.run("--rows", "400000", code=2).stderr
