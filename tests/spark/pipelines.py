"""The command `apressure pipeline` in a folder of its own, and what its files have to say."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from apressure.demo import flights, pipeline
from tests import processes
from tests.integration.commands import COMMAND, environment, marked, new_mark
from tests.spark.quick import JAVA

SPARK_PATIENCE = 400.0
"""Seconds that a run may take on a busy machine."""

_WORDS = {
    "feeder": "apressure.demo.feeder",
    "driver": "apressure.demo.pipeline",
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
        self.environment = environment(TMPDIR=os.fspath(temporary), JAVA_TOOL_OPTIONS=JAVA, **self.mark)

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, "pipeline", "--into", os.fspath(self.into), *arguments]

    def run(self, *arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = processes.run(
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
        return processes.Popen(
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


@contextlib.contextmanager
def placed() -> Iterator[Pipeline]:
    """A pipeline in a new folder. Nothing of it is left."""
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

    with zipfile.ZipFile(flights.data_directory() / "flights.csv.zip") as archive:
        data = pd.read_csv(archive.open("flights.csv"))
    data["start"] = pd.to_datetime(data[["year", "month", "day", "hour"]])
    data = data.sort_values(["start", "minute"], kind="stable").head(rows)
    delays = data.groupby(["start", "carrier"])["dep_delay"]
    found = delays.agg(flights="size", departed="count", mean_delay="mean", longest_delay="max").reset_index()
    return found.sort_values(["start", "carrier"], ignore_index=True)


def assert_exact(folder: Path, rows: int) -> None:
    """Check that the files in the folder, whichever run wrote them, have what pandas computes."""
    import pandas as pd

    found = pipeline.table(folder)
    found["start"] = found["start"].dt.tz_localize(None)
    pd.testing.assert_frame_equal(found, counted(rows), check_dtype=False, check_exact=True)
