"""Executors in processes of their own, one of which is killed: nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from tests.integration.commands import ended, environment, running, wait_until
from tests.servers import admin, refresh

ROWS = 20_000
"""As many as make two tasks."""
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def spark_home(folder: Path) -> str:
    """A copy of Spark's folder, by links: a cluster on this machine keeps its logs there."""
    import pyspark

    folder.mkdir()
    for path in Path(pyspark.__path__[0]).iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return str(folder)


def executors(driver: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if EXECUTOR in process.cmdline():
                found.append(process)
    return found


@pytest.mark.timeout(600)  # it starts three Javas
async def test_an_executor_is_killed_while_its_task_writes(valkey: EmbeddedServer, tmp_path: Path) -> None:
    refresh(valkey)
    rows = [b"%200d" % number for number in range(ROWS)]  # large enough to pass the buffers of the pipes
    given = environment(SPARK_HOME=spark_home(tmp_path / "spark"), SPARK_LOCAL_IP="127.0.0.1")
    command = [sys.executable, "-m", "tests.spark.cluster", valkey.url, str(tmp_path)]
    async with AsyncQueue("in", url=valkey.url) as source, AsyncQueue("out", url=valkey.url) as copies:
        await source.create()
        await copies.create()
        await source.put_many(rows)
        await source.close()
        with running(command, env=given) as driver, admin(valkey) as plain:

            def written() -> list[bytes]:
                assert driver.poll() is None, ended(driver)
                return [key for key in plain.scan_iter("*:out:spark:*:part-*", 1000) if plain.llen(key)]

            wait_until(lambda: len(written()) == 2)
            victim, _ = executors(driver.pid)
            victim.kill()
            victim.wait(60)
            (tmp_path / "go").touch()
            code, output, errors = ended(driver)
            assert (code, output) == (0, b"done\n"), errors[-3000:].decode()
            assert Counter(plain.lrange("__pressure__:out", 0, -1)) == Counter(rows)
        assert await source.qsize() == 0
    assert list(tmp_path.glob("spark/work/app-*/2")), "no executor took its place"
