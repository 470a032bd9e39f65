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
from tests.spark.test_sessions import DOCS

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
spark.conf.set("spark.sql.shuffle.partitions", "1")  # of 200, each batch would start 200 tasks
from pyspark.sql import functions as f
where = dict(url=URL, queue="sold")
days = spark.range(1, 4).selectExpr("to_json(struct(concat('2013-01-0', id, 'T05:00:00Z') AS t, 1 AS n)) AS body")
days.write.format("pressure").mode("append").options(**where, create=True, closeOnEnd=True).save()
source = spark.readStream.format("pressure").schema("t TIMESTAMP, n INT")
sold = source.options(**where, group="windows", format="json", endTimeColumn="t").load()


def start(frame):
    counts = frame.withWatermark("t", "1 hour").groupBy(f.window("t", "1 hour")).count().select("window.start", "count")
    sink = counts.writeStream.format("parquet").option("path", sys.argv[2] + "/windows")
    return pressure.start(sink.option("checkpointLocation", sys.argv[2] + "/checkpoint"), **where)


try:
    pressure.await_end(start(sold.where("n = 1")), **where)
except ValueError as error:
    print(str(error)[:59])
start(sold.where("n = 1 OR n IS NULL")).awaitTermination()
print(spark.read.parquet(sys.argv[2] + "/windows").count())
query = start(sold)
try:
    pressure.await_end(query)
except ValueError as error:
    print(error)
pressure.await_end(query, **where)
"""


def test_the_code_in_the_docs_runs_over_spark_connect(valkey: EmbeddedServer, tmp_path: Path) -> None:
    refresh(valkey)
    server = server_of(Options.of({"url": valkey.url, "queue": "orders"}))
    QueueSteps(server, "jobs").create(0)
    section = (DOCS / "do" / "spark-more.md").read_text().split("## Use Spark Connect\n")[1].split("\n## ")[0]
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
        [sys.executable, "-c", UNREGISTERED + code + AFTERWARDS, valkey.url, str(tmp_path)],
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
        "the row that ends the stream does not reach the aggregation",
        "3",
        "with Spark Connect, name the queues: await_end(query, url=…, queue=…)",
    ], done.stderr[-5000:]
    assert QueueSteps(server, "orders").measure() == (2, 0, True)
