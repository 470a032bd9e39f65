"""Errors where Spark cannot run, and how Spark finds the source."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from apressure import MissingExtraError
from apressure import spark as pressure
from tests import processes
from tests.spark.conftest import Ground

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("do/spark.md", "do/spark-more.md", "rely/spark.md")

SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("pressure").options(url=sys.argv[1], queue="jobs").load().count())
from apressure.spark import register
register(spark)
register(spark)
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"needs Java 17 .* openjdk-17.*; there is no `java` on the PATH"):
        pressure.check()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingExtraError, match="has no Java"):
        pressure.check()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_292\"' >&2", "is Java 8"),
        ("echo 'The operation could not be completed' >&2; exit 1", "is not Java"),
        ("if [ $1 = -version ]; then echo 'openjdk version \"21\"'; else echo java.base; fi", "jdk.incubator.vector"),
    ],
)
def test_java_that_cannot_be_used(script: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingExtraError, match=says):
        pressure.check()


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"packages pyspark, pyarrow, pandas: pip install 'apressure\[spark\]'$"
    ):
        pressure.check()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # the error names everything that is missing
    with pytest.raises(MissingExtraError, match=r"apressure\[spark\]'\. And Spark needs Java 17 or later"):
        pressure.check()


def test_nothing_is_printed_before_the_error(tmp_path: Path) -> None:
    code = "import apressure.spark; apressure.spark.session()"
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = processes.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("apressure.exceptions.MissingExtraError: Spark needs Java 17")


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere/;token=hunter2")
    with pytest.raises(ValueError, match="Unset SPARK_REMOTE") as raised:
        pressure.session()
    assert "hunter2" not in str(raised.value)


def test_an_old_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.9")
    with pytest.raises(MissingExtraError, match=r"pyspark is 4.1.9; 4.2 or later is needed"):
        pressure.check()


def test_the_room_can_be_imported_without_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import apressure.spark.engine.steps"
    processes.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.timeout(900)  # it starts a Java of its own
def test_spark_finds_the_source_by_itself(ground: Ground, tmp_path: Path) -> None:
    ground.create()
    ground.plain.lpush(ground.steps().keys.queue.messages, *map(str, range(7)))
    place = tmp_path / "path"
    place.mkdir()
    # The wheel has the module at the top level, and only there. Of a checkout it has to be put on the path.
    if (unpacked := Path(pressure.__path__[0]) / "autoload.py").is_file():
        shutil.copy(unpacked, place / "pyspark_apressure.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(place), str(Path(pressure.__path__[0]).parents[1])]),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = processes.run(
        [sys.executable, "-c", SESSION, ground.url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["7"], done.stderr


def test_the_workers_use_this_python(spark: Any) -> None:
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert spark.sparkContext.pythonExec == sys.executable


def test_queries_that_start_together_do_not_change_the_shared_map(ground: Ground) -> None:
    """Spark writes into a map that all queries of the source share. Two writes at once break it if it has to grow."""
    from pyspark.sql.udf import _wrap_function

    before = set(_wrap_function(ground.spark.sparkContext, len).envVars())
    assert {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_LOCAL_DIRS", "SPARK_PYTHON_RUNTIME"} <= before


@pytest.mark.timeout(900)  # several queries, one after the other
async def test_the_code_in_the_docs_runs_as_it_is(ground: Ground, tmp_path: Path) -> None:
    ground.create("billed")
    ground.create("orders")
    ground.create("sales")
    await ground.put([b"a", b"b"], "orders", close=True)
    times = ("2013-01-01T05:10:00Z", "2013-01-01T05:50:00Z", "2013-01-01T06:00:00Z")
    await ground.put([b'{"t": "%s", "shop": "x", "amount": 2}' % time.encode() for time in times], "sales", close=True)
    text = "\n".join((DOCS / page).read_text() for page in PAGES).replace("/data/", f"{tmp_path}/")
    text = re.sub(r"## Use Spark Connect\n.*?\n## ", "## ", text, flags=re.DOTALL)  # see test_connect.py
    whole, *parts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"URL": ground.url, "json": json, "gauges": {}}
    exec(whole, names)
    names["rows"] = names["orders"].selectExpr("body", "2000 AS amount")
    assert len(parts) == 7
    for part in parts:
        exec(part, names)
    hours = ground.spark.read.parquet(f"{tmp_path}/hours").orderBy("window").collect()
    assert [(row.window.start.hour, row.shop, row.sum) for row in hours] == [(5, "x", 4.0), (6, "x", 2.0)]
    ground.spark.streams.removeListener(names["listener"])
    assert ground.waiting("billed") == ground.waiting("copies") == [b"A", b"B"]
    for queue in ("billed", "copies"):
        assert ground.steps(queue).measure() == (0, 2, True)
