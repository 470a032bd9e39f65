"""Telemetry: what queues and handlers do, as metrics and spans.

It reads `statistics()` snapshots, and what services tell an `Observer`; it knows no kind of queue. The packages
prometheus_client and opentelemetry-api are imported where they are used.
"""

from typing import TYPE_CHECKING, Any

from apressure.core.history import Minute
from apressure.telemetry.metrics import Metrics
from apressure.telemetry.scaling import Scaling

if TYPE_CHECKING:
    from apressure.telemetry.tracing import Tracing

__all__ = ["Metrics", "Minute", "Scaling", "Tracing"]


def __getattr__(name: str) -> Any:
    if name == "Tracing":  # it imports opentelemetry
        from apressure.telemetry.tracing import Tracing

        return Tracing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
