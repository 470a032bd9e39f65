"""Spark Connect: batch and stream, read and write, in a program of its own, with the code of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from apressure import spark as pressure
from apressure.embedded import EmbeddedServer
from apressure.spark.engine.steps import QueueSteps, server_of
from apressure.spark.options import Options
from tests import processes
from tests.servers import refresh
from tests.spark.quick import JAVA
from tests.spark.test_sessions import DOCUMENT

pytestmark = pytest.mark.timeout(700)  # it starts a Java of its own

UNREGISTERED = """
import sys
URL = sys.argv[1]
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
print(spark.read.format("pressure").options(url=URL, queue="jobs").load().count())
from apressure.spark import LagListener
lags = []
listener = LagListener(lags.append, interval=0, url=URL)
spark.streams.addListener(listener)
"""
AFTERWARDS = """
(source,) = query.lastProgress["sources"]
print(source["numInputRows"], source["latestOffset"])
spark.streams.removeListener(listener)  # when it has had all events
print({lag.queue for lag in lags})
"""


def test_the_code_in_the_docs_runs_over_spark_connect(valkey: EmbeddedServer, tmp_path: Path) -> None:
    refresh(valkey)
    server = server_of(Options.of({"url": valkey.url, "queue": "orders"}))
    QueueSteps(server, "jobs").create(0)
    section = DOCUMENT.read_text().split("## Use Spark Connect\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section.replace("/data/", f"{tmp_path}/"), re.DOTALL)
    place = tmp_path / "path"
    place.mkdir()
    if (unpacked := Path(pressure.__path__[0]) / "autoload.py").is_file():  # the wheel has it at the top level
        shutil.copy(unpacked, place / "pyspark_apressure.py")
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": JAVA,
        "PYTHONPATH": os.pathsep.join([str(place), str(Path(pressure.__path__[0]).parents[1])]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # the server takes any free port, and the client finds it
    }
    done = processes.run(
        [sys.executable, "-c", UNREGISTERED + code + AFTERWARDS, valkey.url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines() == [
        "0",
        "['CUP', 'PLATE']",
        '2 {"orders": {"messages": 0, "bytes": 0}}',
        "{'orders'}",
    ], done.stderr[-5000:]
    assert QueueSteps(server, "orders").measure() == (2, 0, True)
