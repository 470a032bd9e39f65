"""Telemetry: what queues and handlers do, as metrics for Prometheus and OpenTelemetry.

It reads `statistics()` snapshots, and what services tell an `Observer`; it knows no kind of queue. The packages
prometheus_client and opentelemetry-api are imported where they are used.
"""

from apressure.telemetry.metrics import Metrics

__all__ = ["Metrics"]
