"""Pressure queues in Spark: `.format("pressure")` for batches and for Structured Streaming, in both directions.

`session()` makes a session that has it; `register(spark)` adds it to one. Importing this needs no pyspark.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure.exceptions import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from apressure.spark.steps import Steps

__all__ = ["await_end", "check", "close_queue", "register", "session"]

OLDEST_SPARK: Final = (4, 2)
OLDEST_JAVA: Final = 17
_CONFIGURATION: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
_WRITTEN_BY_SPARK: Final = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)
"""What Spark tells Python processes by their environment. It writes its own values over those that are there."""


def check() -> None:
    """See that Spark can run here, before it prints anything; and have its workers use this very Python.

    Raises:
        MissingExtraError: pyspark, what it needs, or Java is missing or too old; it says what to install.
    """
    how = "pip install 'apressure[spark]'"
    problems = []
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        problems.append(f"Spark needs the package {', '.join(missing)}: {how}")
    else:
        import pyspark

        if _version(pyspark.__version__) < OLDEST_SPARK:
            oldest = ".".join(map(str, OLDEST_SPARK))
            problems.append(f"pyspark is {pyspark.__version__}; {oldest} or later is needed: {how}")
    if os.environ.get("SPARK_REMOTE") is None and (java := _java_problem()):
        problems.append(java)
    if problems:
        raise MissingExtraError(". And ".join(problems), extra="spark")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(
    name: str = "apressure", master: str = "local[*]", configuration: Mapping[str, Any] | None = None
) -> SparkSession:
    """Make a Spark session, or get the one that there is, and register the source and sink `pressure`.

    Args:
        name: The application's name.
        master: Where it runs.
        configuration: Spark's settings, over those that suit queues.

    Raises:
        MissingExtraError: pyspark or Java is missing or too old.
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
    """Make `.format("pressure")` known to a session, safe for queries that begin at the same time.

    Spark finds it by itself where the wheel is installed. This is better: when a query begins, Spark 4.3 writes four
    variables into a map that all queries of the source share. Two that do so at once can break it for good, and then
    each fails ("Task not serializable") until the session ends. Where the map has them already, nothing breaks.

    Raises:
        MissingExtraError: pyspark is too old.
    """
    if spark.version and _version(spark.version) < OLDEST_SPARK:
        raise MissingExtraError(f"this session is of Spark {spark.version}, and 4.2 or later is needed", extra="spark")
    from apressure.spark.datasource import PressureSource

    with contextlib.suppress(AttributeError):  # (Spark Connect's are elsewhere)
        for name in _WRITTEN_BY_SPARK:
            spark.sparkContext.environment.setdefault(name, "")
    spark.dataSource.register(PressureSource)


def close_queue(queue: str, **options: Any) -> None:
    """Close a queue, so that its consumers end: what a stream's sink cannot do itself. One that is closed stays so.

    Args:
        queue: Its name.
        **options: `url`, `prefix`, … as in `Options`.

    Raises:
        QueueDoesNotExistError: There is no such queue.
        QueueInUseError: Another client held the producer role for `roleTimeout` seconds.
    """
    from apressure.spark.steps import Busy

    with _queues({"queue": queue, **options}) as ((steps,), timeout):
        answer = steps.patiently(steps.close, timeout)
        if isinstance(answer, Busy):
            raise steps.in_use(answer)


def await_end(query: StreamingQuery, **options: Any) -> None:
    """Wait until the queues that a query reads are closed and empty and all of it has been processed; then stop it.

    Args:
        query: The streaming query.
        **options: `url`, `queue` or `queues` (names, no pattern), `prefix`, … as in `Options`.

    Raises:
        StreamingQueryException: The query failed.
        QueueDoesNotExistError: There is no such queue.
        ValueError: The queues are a pattern: nobody knows which queues there will be.
    """
    with _queues(options) as (queues, _):
        while not query.awaitTermination(1):  # (it takes whole seconds)
            if all(closed and not length for _, length, closed in (steps.measure() for steps in queues)):
                query.processAllAvailable()
                query.stop()
                return


@contextlib.contextmanager
def _queues(options: Mapping[str, Any]) -> Iterator[tuple[list[Steps], float]]:
    """The steps of the queues that options name, over a connection of their own, and how long to wait for a role."""
    from apressure.connection.blocking import Blocking
    from apressure.spark.options import Options
    from apressure.spark.steps import Steps

    checked = Options.of({key: str(value) for key, value in options.items() if value is not None})
    if not checked.names:
        raise ValueError("name the queues, with commas between them: of a pattern nobody knows when it ends")
    server = Blocking(checked.settings())
    try:
        yield [Steps(server, server.settings.prefix, name) for name in checked.names], checked.role_timeout
    finally:
        server.close()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def _java_problem() -> str | None:
    """What is wrong with Java here. It has to be a whole runtime: Spark needs a module that trimmed ones lack."""
    need = (
        f"Spark needs Java {OLDEST_JAVA} or later, a whole runtime: apt-get install openjdk-17-jre-headless, "
        "brew install openjdk@17, or https://adoptium.net; then set JAVA_HOME if it is not on the PATH"
    )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"there is none in JAVA_HOME ({home})" if home else "there is no `java` on the PATH"
        return f"{need}; {where}"
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
        modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{need}; {java} does not run: {error}"
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    if found is None:  # macOS has a program of that name that only says where to get Java
        return f"{need}; {java} is none"
    if int(found[1]) < OLDEST_JAVA:
        return f"{need}; {java} is Java {found[1]}"
    if modules.returncode == 0 and "jdk.incubator.vector" not in modules.stdout:
        return f"{need}; {java} lacks the module jdk.incubator.vector"
    return None
