"""The metrics for OpenTelemetry: observable instruments, which read what the latest looks saw."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from apressure.exceptions import MissingExtraError
from apressure.telemetry.families import DURATION, FAMILIES, Family, Kind

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as error:
    raise MissingExtraError(
        "metrics for OpenTelemetry need the package opentelemetry-api: pip install 'apressure[opentelemetry]'",
        extra="opentelemetry",
    ) from error

if TYPE_CHECKING:
    from apressure.telemetry.families import Reading
    from apressure.telemetry.metrics import Metrics, OnDuration

_SAME: Final = 0.5
"""Seconds: callbacks within this time belong to the same collection."""


def instrument(metrics: Metrics, meter: Meter | None, limits: Sequence[float]) -> OnDuration:
    """Create an instrument for each metric.

    Args:
        metrics: The metrics.
        meter: The meter; None for the one named apressure of the global provider.
        limits: The upper limits of the buckets of durations, in seconds.

    Returns:
        What records the duration of a call of a handler.
    """
    meter = get_meter("apressure") if meter is None else meter
    view = _View(metrics)
    for family in FAMILIES:
        if family.kind is Kind.COUNTER:
            meter.create_observable_counter(family.dotted, [view.of(family)], family.unit, family.help)
        elif family.kind is Kind.GAUGE:
            meter.create_observable_gauge(family.dotted, [view.of(family)], family.unit, family.help)
    histogram = meter.create_histogram(
        DURATION.dotted, DURATION.unit, DURATION.help, explicit_bucket_boundaries_advisory=list(limits)
    )
    return lambda labels, seconds: histogram.record(seconds, dict(zip(DURATION.labels, labels, strict=True)))


class _View:
    """The values of all metrics at one time, for the callbacks of a collection: each one is called for itself.

    Args:
        metrics: The metrics.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._readings: dict[str, list[Reading]] = {}
        self._read_at = -_SAME

    def of(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the callback of a metric. It may be called in any thread."""

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for reading in self._current().get(family.name, ()):
                yield Observation(reading.value, dict(zip(family.labels, reading.labels, strict=True)))

        return observe

    def _current(self) -> dict[str, list[Reading]]:
        if time.monotonic() - self._read_at > _SAME:
            found: dict[str, list[Reading]] = defaultdict(list)
            for reading in self._metrics.readings():
                found[reading.family.name].append(reading)
            self._readings, self._read_at = found, time.monotonic()
        return self._readings
