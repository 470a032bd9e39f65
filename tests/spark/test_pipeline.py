"""`apressure pipeline`: real flights, a real Spark, and files that no kill changes."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, QueueInUseError
from apressure.demo import pipeline
from apressure.demo.pipeline_folder import Folder, FolderInUseError
from apressure.embedded import EmbeddedServer
from apressure.spark import pipeline as parts
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import server_of
from apressure.spark.options import Options
from apressure.spark.pipeline import feed
from tests import processes
from tests.integration.commands import wait_until
from tests.servers import admin, keys_left_behind, refresh
from tests.spark.pipelines import SPARK_PATIENCE, Pipeline, assert_exact, counted

ROOT = Path(__file__).parents[2]
ROWS = 4000

pytestmark = pytest.mark.timeout(900)


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
        assert first.stderr.count("Spark starts") == 1
        assert ", 0 rows/s" not in first.stderr
        assert re.search(r", lag [\d,]+ \([\d,]+ in Spark\), ", first.stderr)
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
        done = processes.run(
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


class TestFeeder:
    async def test_it_goes_on_where_it_was(self, valkey: EmbeddedServer) -> None:
        refresh(valkey)
        async with AsyncQueue[Any]("f", url=valkey.url, codec="json") as queue:
            await queue.create(bound=10)
            with pytest.raises(TimeoutError):  # cancelled while it waits for room
                async with asyncio.timeout(0.3):
                    await feed(queue, range(25))
            assert await queue.get_many(10) == list(range(10))

            def items() -> Iterator[int]:
                yield from range(16)
                raise RuntimeError("the source fails")

            with pytest.raises(RuntimeError, match="the source fails"):
                await feed(queue, items())
            known = (await queue.statistics()).produced_messages
            assert 10 <= known <= 16
            last = asyncio.ensure_future(feed(queue, range(25)))
            assert [item async for item in queue] == list(range(10, 25))
            assert await last == 25 - known
            assert await feed(queue, range(25)) == 0
            await queue.delete()

    async def test_a_second_one_is_kept_out(self, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        refresh(valkey)
        monkeypatch.setattr(parts, "LEASE", 1.0)
        async with (
            AsyncQueue[Any]("f", url=valkey.url, codec="json") as queue,
            AsyncQueue[Any]("f", url=valkey.url, codec="json") as other,
        ):
            await queue.create(bound=10)
            feeders = [asyncio.ensure_future(feed(one, range(100))) for one in (queue, other)]
            await asyncio.sleep(0.2)
            with pytest.raises(QueueInUseError):
                await queue.put(5, timeout=0)
            assert [item async for item in queue] == list(range(100))
            assert sorted(await asyncio.gather(*feeders)) == [0, 100]
            await queue.delete()

    def test_the_flights(self) -> None:
        found = list(pipeline.flights(1000))
        assert len(found) == 1000
        times = [one["scheduled"] for one in found]
        assert times == sorted(times)
        assert list(itertools.islice(pipeline.flights(), 1000)) == found


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

                def second() -> Folder:
                    with Folder.taken(place.into, None, None) as folder:
                        return folder

                outcome = pool.submit(second)
                time.sleep(0.3)  # it waits for the lock
                folder.save()
                (place.into / "checkpoint").mkdir()
            assert outcome.result() == folder

    def test_a_damaged_folder(self, place: Pipeline) -> None:
        with Folder.taken(place.into, 10, 5):
            pass
        (place.into / "pipeline.json").write_text("{}")
        assert "is not what a pipeline writes" in place.run(code=2).stderr

    def test_a_queue_that_is_gone(self, place: Pipeline, valkey: EmbeddedServer) -> None:
        refresh(valkey)
        with Folder.taken(place.into, 10, 5) as folder:
            folder.runs = 1
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
            folder.result = {"exact": True}
            folder.save()
            queue = folder.queue
        with admin(valkey) as plain:
            steps = SourceSteps(server_of(Options.of({"url": valkey.url, "queue": queue})), queue, pipeline.GROUP)
            steps.create(5)
            plain.lpush(steps.keys.queue.messages, *range(5))
            epoch, *_ = steps.begin_epoch()
            assert steps.seal(epoch, 0, 3) == 1
            assert json.loads(place.run("--url", valkey.url, "--json").stdout) == {"exact": True}
            assert keys_left_behind(valkey, []) == []

    def test_no_server(self, place: Pipeline) -> None:
        done = place.run("--url", "redis://127.0.0.1:1/0", code=7)
        assert "the same command goes on" not in done.stderr

    def test_a_bad_address(self, place: Pipeline) -> None:
        done = place.run("--url", "rediss:/nowhere", code=2)
        assert "must be the number of a database" in done.stderr
        assert "the same command goes on" not in done.stderr
        assert not place.into.exists()

    def test_spark_elsewhere(self, place: Pipeline) -> None:
        done = place.run("--json", code=2, SPARK_REMOTE="sc://nowhere/;token=hunter2")
        assert "Unset SPARK_REMOTE" in json.loads(done.stderr)["message"]
        assert "hunter2" not in done.stderr
        assert not place.into.exists()

    def test_a_full_disk(self, place: Pipeline) -> None:
        with Folder.taken(place.into, 10, 5):
            pass
        # The server writes its log of operations to a device that is full.
        (place.into / "server" / "appendonlydir").mkdir(parents=True)
        (place.into / "server" / "appendonlydir" / "appendonly.aof.1.incr.aof").symlink_to("/dev/full")
        done = place.run("--json", code=7)
        message = json.loads(done.stderr.splitlines()[-1])["message"]
        assert message == f"the embedded server has died: the disk of {place.into / 'server'} is full. Make room there"

    def test_too_many_rows(self, place: Pipeline) -> None:
        assert "--rows" in place.run("--rows", "400000", code=2).stderr
