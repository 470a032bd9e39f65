"""One Spark session for all tests, and a server. Without pyspark or Java the tests are skipped and listed."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, MissingExtraError
from apressure import spark as pressure
from apressure.embedded import EmbeddedServer
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import server_of
from apressure.spark.options import Options
from tests.servers import admin, refresh
from tests.spark.pipelines import Pipeline, placed
from tests.spark.quick import QUICK, unzipped_home

PATIENCE = 240.0
"""Seconds to wait for something that should happen."""
SLOW_START = "Python worker failed to connect back"
"""Spark gives each Python process that reads a source ten seconds to start, and no setting gives it more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.flaky(reruns=3, only_rerun=[SLOW_START]))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))  # a machine with much else to do takes ten times as long
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # pandas, py4j and pyspark warn of each other


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "tests/spark/" in item.nodeid:
        why_not()


def why_not() -> None:
    """Skip where Spark cannot run."""
    try:
        pressure.check()
    except MissingExtraError as missing:
        pytest.skip(f"Spark ({missing})")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with pytest.MonkeyPatch.context() as patches:
        # For this Java only. What starts Spark in processes of its own has the home of an installation.
        patches.setenv("SPARK_HOME", os.fspath(unzipped_home(tmp_path_factory.mktemp("home") / "spark")))
        made = pressure.session(
            "tests",
            "local[2]",
            {**QUICK, "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"},
        )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@dataclasses.dataclass
class Ground:
    """A session, an empty server, and a folder for checkpoints and files."""

    spark: Any
    url: str
    plain: redis.Redis
    folder: Path

    def steps(self, name: str = "jobs") -> SourceSteps:
        return SourceSteps(server_of(Options.of({"url": self.url, "queue": name})), name, "g")

    def create(self, name: str = "jobs", bound: int = 0) -> SourceSteps:
        steps = self.steps(name)
        steps.create(bound)
        return steps

    async def put(self, messages: list[bytes], name: str = "jobs", close: bool = False) -> None:
        async with AsyncQueue(name, url=self.url) as queue:
            await queue.put_many(messages, timeout=PATIENCE)
            if close:
                await queue.close()

    def waiting(self, name: str = "jobs") -> list[bytes]:
        return self.plain.lrange(self.steps(name).keys.queue.messages, 0, -1)[::-1]

    def stream(self, name: str | None = "jobs", group: str = "g", **options: Any) -> Any:
        given = {"url": self.url, "group": group, **({} if name is None else {"queue": name}), **options}
        return self.spark.readStream.format("pressure").options(**given)

    def to_files(self, frame: Any, name: str = "out", now: bool = True, trigger: dict[str, Any] | None = None) -> Any:
        """Start a query that writes to files, and wait for it with `now`."""
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / name))
        writer = writer.trigger(**trigger) if trigger else writer
        return self._start(writer, name, now)

    def to_queue(self, frame: Any, queue: str, now: bool = True, **options: Any) -> Any:
        """Start a query that writes to a queue."""
        return self._start(
            frame.writeStream.format("pressure").options(url=self.url, queue=queue, **options), queue, now
        )

    def _start(self, writer: Any, name: str, now: bool) -> Any:
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        query = (writer.trigger(availableNow=True) if now else writer).start()
        if now:
            assert query.awaitTermination(PATIENCE)
        return query

    def bodies(self, name: str = "out") -> list[bytes]:
        """The messages in the files that a query has committed, by their sequence."""
        rows = self.spark.read.parquet(str(self.folder / name)).orderBy("queue", "sequence").collect()
        return [bytes(row.body) for row in rows]


@pytest.fixture
def bare_ground(valkey: EmbeddedServer, tmp_path: Path) -> Iterator[Ground]:
    """A ground without a session, for tests that start Spark in processes of their own."""
    refresh(valkey)
    with admin(valkey) as plain:
        yield Ground(None, valkey.url, plain, tmp_path)


@pytest.fixture
def ground(spark: Any, bare_ground: Ground) -> Iterator[Ground]:
    yield dataclasses.replace(bare_ground, spark=spark)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def place() -> Iterator[Pipeline]:
    """The command `apressure pipeline` and a folder for it."""
    with placed() as made:
        yield made


@pytest.fixture
def background() -> Iterator[Callable[..., threading.Thread]]:
    """Run functions in threads, and check at the end that none failed."""
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(function: Callable[..., object], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                failures.append(error)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures, failures
