"""The metrics for prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from apressure.exceptions import MissingExtraError
from apressure.telemetry.families import FAMILIES, Family, Kind

try:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError(
        "metrics for Prometheus need the package prometheus_client: pip install 'apressure[metrics]'", extra="metrics"
    ) from error

if TYPE_CHECKING:
    from apressure.telemetry.families import Reading
    from apressure.telemetry.metrics import Metrics


class MetricsCollector(Collector):
    """Collects what the latest looks saw. It waits for nothing, in any thread.

    Args:
        metrics: The metrics.
        limits: The upper limits of the buckets of durations.
    """

    def __init__(self, metrics: Metrics, limits: Sequence[float]) -> None:
        self._metrics = metrics
        self._limits = [*map(str, limits), "+Inf"]

    def collect(self) -> Iterator[Metric]:
        """Yield each metric that has values."""
        order = {family.name: number for number, family in enumerate(FAMILIES)}
        readings = sorted(self._metrics.readings(), key=lambda reading: order[reading.family.name])
        for _, group in groupby(readings, key=lambda reading: order[reading.family.name]):
            found = list(group)
            yield self._metric(found[0].family, found)

    def describe(self) -> Iterator[Metric]:
        """Yield each metric without values, so that a registry need not collect to know the names."""
        for family in FAMILIES:
            yield self._metric(family, [])

    def _metric(self, family: Family, readings: Sequence[Reading]) -> Metric:
        name = f"apressure_{family.name}"
        if family.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
            for reading in readings:
                buckets = list(zip(self._limits, map(float, accumulate(reading.buckets)), strict=True))
                histogram.add_metric(reading.labels, buckets, reading.sum)
            return histogram
        if family.kind is Kind.COUNTER:
            counter = CounterMetricFamily(name, family.help, labels=family.labels)
            for reading in readings:
                counter.add_metric(reading.labels, reading.value)
            return counter
        gauge = GaugeMetricFamily(name, family.help, labels=family.labels)
        for reading in readings:
            gauge.add_metric(reading.labels, reading.value)
        return gauge
