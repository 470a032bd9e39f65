"""Settings that make Spark start quickly for little work."""

from __future__ import annotations

from typing import Any, Final

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a short run, half of the CPU time goes to the compiler and the garbage collector."""

QUICK: Final[dict[str, Any]] = {"spark.driver.extraJavaOptions": JAVA, "spark.ui.enabled": "false"}
