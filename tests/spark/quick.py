"""Settings that make Spark start quickly for little work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a short run, half of the CPU time goes to the compiler and the garbage collector."""

QUICK: Final[dict[str, Any]] = {"spark.driver.extraJavaOptions": JAVA, "spark.ui.enabled": "false"}


def unzipped_home(place: Path) -> Path:
    """Make a home of Spark, of links, that lacks its zip of pyspark: Python processes import the installed pyspark.

    Python keeps nothing of what it compiles from a zip. So each process, and each stream has one, would compile pyspark
    again, which is half of the time that it takes to start.
    """
    import pyspark

    place.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.is_dir() and part.name in {"bin", "jars", "sbin"}:
            (place / part.name).symlink_to(part)
    return place
