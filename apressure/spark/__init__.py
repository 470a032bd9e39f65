"""Read and write pressure queues in Spark: `.format("pressure")`, for batches and for Structured Streaming.

`session()` returns a session with the format; `register(spark)` adds it to a session. Importing this needs no pyspark.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure.exceptions import MissingExtraError
from apressure.lazy import on_first_use
from apressure.spark.checkpoint import mend_checkpoint
from apressure.spark.running import await_end, close_queue, forget_group, start

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from apressure.spark.lag import QueueLag
    from apressure.spark.listener import LagListener
    from apressure.spark.pipeline import feed, sweep

__all__ = [
    "LagListener",
    "QueueLag",
    "await_end",
    "check",
    "close_queue",
    "feed",
    "forget_group",
    "mend_checkpoint",
    "register",
    "session",
    "start",
    "sweep",
]

OLDEST_SPARK: Final = (4, 2)
OLDEST_JAVA: Final = 17
_CONFIGURATION: Final = {
    "spark.python.authenticate.socketTimeout": "120s",  # 15 s are too few on a machine that is very busy
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
_WRITTEN_BY_SPARK: Final = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)
"""Environment variables that Spark sets for its Python processes. It overwrites values that are there."""


_LATER: Final = {
    "LagListener": "apressure.spark.listener", "QueueLag": "apressure.spark.lag", "feed": "apressure.spark.pipeline",
    "sweep": "apressure.spark.pipeline",
}  # fmt: skip
"""Names that are imported when they are first used: the listener needs pyspark, and Spark's workers need no `feed`."""

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _LATER)


def check() -> None:
    """Check that Spark can run here, before it prints anything, and have its workers use this Python.

    Raises:
        MissingExtraError: pyspark, a package that it needs, or Java is missing or too old. The error says what to
            install.
        ValueError: SPARK_REMOTE is set.
    """
    if "SPARK_REMOTE" in os.environ:  # not shown: it may contain a token
        raise ValueError(
            "SPARK_REMOTE is set, and this starts a Spark of its own. Unset SPARK_REMOTE; or use Spark Connect with "
            "SparkSession.builder.remote(…) and apressure.spark.register(…)"
        )
    how = "pip install 'apressure[spark]'"
    problems = []
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        packages = "package" if len(missing) == 1 else "packages"
        problems.append(f"Spark needs the {packages} {', '.join(missing)}: {how}")
    else:
        import pyspark

        if _version(pyspark.__version__) < OLDEST_SPARK:
            oldest = ".".join(map(str, OLDEST_SPARK))
            problems.append(f"pyspark is {pyspark.__version__}; {oldest} or later is needed: {how}")
    if java := _java_problem():
        problems.append(java)
    if problems:
        raise MissingExtraError(". And ".join(problems), extra="spark")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(
    name: str = "apressure", master: str = "local[*]", configuration: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return the Spark session, or a new one, with the source and sink `pressure`.

    Args:
        name: The application's name.
        master: Spark's master URL.
        configuration: Spark's settings. They override the ones that this sets.

    Raises:
        MissingExtraError: pyspark or Java is missing or too old.
        ValueError: SPARK_REMOTE is set.
    """
    check()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_CONFIGURATION, **(configuration or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Add `.format("pressure")` to a session, also for queries that start at the same time.

    A batch is read by as many tasks as the cluster runs at once, as far as its settings and its executors say so now
    (see `task_slots`): Spark's Python processes cannot ask for that later.

    Spark finds the format by itself if the wheel is installed. Registering is safer: when a query starts, Spark 4.3
    writes four variables into a map that all queries of the source share. Two queries that start at once can break the
    map, and then every query fails ("Task not serializable") until the session ends. This sets the variables first.

    From now on each query of the session that reads queues is looked at when it starts: its checkpoint is repaired if
    its last run died at a bad moment (see `mend_checkpoint`), and the row that ends its streams is checked. With Spark
    Connect this is not possible.

    Raises:
        MissingExtraError: pyspark is too old.
    """
    if spark.version and _version(spark.version) < OLDEST_SPARK:
        raise MissingExtraError(f"this session has Spark {spark.version}: 4.2 or later is needed", extra="spark")
    from apressure.spark.datasource import PressureSource
    from apressure.spark.options import SLOTS

    with contextlib.suppress(AttributeError):  # Spark Connect keeps them elsewhere
        for name in _WRITTEN_BY_SPARK:
            spark.sparkContext.environment.setdefault(name, "")
        spark.sparkContext.environment[SLOTS] = str(task_slots(spark.sparkContext))
        from apressure.spark.starts import listen

        listen(spark)
    spark.dataSource.register(PressureSource)


def task_slots(context: SparkContext) -> int:
    """Return how many tasks a cluster runs at once.

    Executors may not have started yet, so this is the larger of Spark's default parallelism and of what the settings
    ask for: `spark.executor.instances` (with dynamic allocation `spark.dynamicAllocation.maxExecutors`) times
    `spark.executor.cores` through `spark.task.cpus`. If `spark.default.parallelism` is set, it decides.
    """
    settings = context.getConf()
    slots: int = context.defaultParallelism  # annotated: where PySpark is not installed, mypy knows no types of it
    if settings.get("spark.default.parallelism"):
        return slots
    is_dynamic = settings.get("spark.dynamicAllocation.enabled", "false") == "true"
    name = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    executors, cores, each = (
        settings.get(key, default)
        for key, default in ((name, "0"), ("spark.executor.cores", "1"), ("spark.task.cpus", "1"))
    )
    with contextlib.suppress(TypeError, ValueError):  # Spark has checked them; the most executors may be `infinity`
        slots = max(slots, int(executors or 0) * (int(cores or 1) // int(each or 1)))
    return slots


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def _java_problem() -> str | None:
    """What is wrong with Java here; None if nothing. Trimmed runtimes lack a module that Spark needs."""
    need = (
        f"Spark needs Java {OLDEST_JAVA} or later, a full runtime: apt-get install openjdk-17-jre-headless, "
        "brew install openjdk@17, or https://adoptium.net; then set JAVA_HOME unless it is on the PATH"
    )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME ({home}) has no Java" if home else "there is no `java` on the PATH"
        return f"{need}; {where}"
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
        modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{need}; {java} cannot run: {error}"
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    if found is None:  # macOS has a `java` that only says where to get Java
        return f"{need}; {java} is not Java"
    if int(found[1]) < OLDEST_JAVA:
        return f"{need}; {java} is Java {found[1]}"
    if modules.returncode == 0 and "jdk.incubator.vector" not in modules.stdout:
        return f"{need}; {java} lacks the module jdk.incubator.vector"
    return None
