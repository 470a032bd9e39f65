"""`apressure pipeline`: real flights, a real Spark, and files that no kill changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, QueueInUseError
from apressure.demo import flights
from apressure.demo.pipeline_run import taken
from apressure.embedded import EmbeddedServer
from apressure.spark import feed
from apressure.spark import pipeline as parts
from tests import processes
from tests.integration.commands import wait_until
from tests.servers import refresh
from tests.spark.pipelines import SPARK_PATIENCE, Pipeline, assert_exact, counted

ROOT = Path(__file__).parents[2]
ROWS = 4000

pytestmark = pytest.mark.timeout(900)


class TestWhole:
    def test_run(self, place: Pipeline) -> None:
        result = json.loads((first := place.run("--rows", str(ROWS), "--bound", "500", "--json")).stdout)
        assert_exact(place.into / "delays", ROWS)
        assert (result["rows_in"], result["rows_out"], result["exact"]) == (ROWS, ROWS, True)
        assert (result["doubled"], result["bound"]) == (0, 500)
        assert result["windows"] == len(counted(ROWS))
        assert result["peak_depth"] == 500
        assert result["queue_full_seconds"] > 0
        assert place.batches() > 5
        assert "feeder waits: the queue is full" in first.stderr
        lines = first.stderr.splitlines()
        assert lines[-1] == f"{ROWS:,} of {ROWS:,} rows (100%), queue 0/500, feeder is done, Spark works"
        assert len(lines) == len(set(lines))
        carriers = counted(ROWS).groupby("carrier")["flights"].sum()
        assert {row["carrier"]: row["flights"] for row in result["carriers"]} == carriers.to_dict()
        assert Path(result["chart"]).read_bytes().startswith(b"\x89PNG")
        wait_until(lambda: not place.processes())
        assert sorted(path.name for path in place.temporary.iterdir()) == ["into"]

        # Done is done: no Spark is needed to read the files again.
        log = place.log()
        people = place.run()
        assert people.stderr == ""
        assert "JetBlue Airways" in people.stdout
        assert f"✔  {ROWS:,} rows in, {ROWS:,} rows out" in people.stdout
        assert place.log() == log

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
        times = [one["scheduled"] for one in flights.flights(1000)]
        assert len(times) == 1000
        assert times == sorted(times)


class TestBadInput:
    def test_a_folder_of_something_else(self, place: Pipeline) -> None:
        place.into.mkdir()
        (place.into / "novel.txt").write_text("It was a dark and stormy night")
        done = place.run("--json", code=2)
        assert "has something else in it than a pipeline. Name another folder" in json.loads(done.stderr)["message"]
        assert [path.name for path in place.into.iterdir()] == ["novel.txt"]

    def test_other_numbers(self, place: Pipeline) -> None:
        with taken(place.into, 10, 5) as (name, *_):
            pass
        with taken(place.into, None, None) as found:
            assert found == (name, 10, 5)
        for rows, bound in ((20, None), (None, 20)):
            with (
                pytest.raises(ValueError, match=r"has a pipeline of --rows 10 and --bound 5\. Go on with that"),
                taken(place.into, rows, bound),
            ):
                pass

    def test_a_folder_in_use(self, place: Pipeline) -> None:
        with taken(place.into, 10, 5):
            assert "another command works in" in place.run(code=1).stderr

    def test_a_queue_that_is_gone(self, place: Pipeline, valkey: EmbeddedServer) -> None:
        refresh(valkey)
        with taken(place.into, 10, 5):
            (place.into / "checkpoint").mkdir()
        done = place.run("--url", valkey.url, code=3)
        assert "Use the server and the prefix that it began with" in done.stderr

    def test_no_java(self, place: Pipeline) -> None:
        done = place.run("--json", code=8, PATH="/nonexistent", JAVA_HOME="")
        assert "needs Java 17" in json.loads(done.stderr)["message"]
        assert not place.into.exists()

    def test_no_server(self, place: Pipeline) -> None:
        done = place.run("--url", "redis://127.0.0.1:1/0", code=7)
        assert "the same command goes on" not in done.stderr

    def test_a_bad_address(self, place: Pipeline) -> None:
        done = place.run("--url", "rediss:/nowhere", code=2)
        assert "must be the number of a database" in done.stderr
        assert "the same command goes on" not in done.stderr

    def test_spark_elsewhere(self, place: Pipeline) -> None:
        done = place.run("--json", code=2, SPARK_REMOTE="sc://nowhere/;token=hunter2")
        assert "Unset SPARK_REMOTE" in json.loads(done.stderr)["message"]
        assert "hunter2" not in done.stderr
        assert not place.into.exists()

    def test_a_full_disk(self, place: Pipeline) -> None:
        # The server writes its log of operations to a device that is full.
        with taken(place.into, 10, 5):
            (place.into / "server" / "appendonlydir").mkdir(parents=True)
        (place.into / "server" / "appendonlydir" / "appendonly.aof.1.incr.aof").symlink_to("/dev/full")
        done = place.run("--json", code=7)
        message = json.loads(done.stderr.splitlines()[-1])["message"]
        assert message.startswith("the embedded server has died. Its log ends with: ")
        assert "No space left on device" in message

    def test_too_many_rows(self, place: Pipeline) -> None:
        assert "--rows" in place.run("--rows", "400000", code=2).stderr
