"""The metrics for OpenTelemetry: observable instruments, which read what the latest looks saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

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
    from apressure.telemetry.metrics import Metrics, OnDuration


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
    for family in FAMILIES:
        if family.kind is Kind.COUNTER:
            meter.create_observable_counter(family.dotted, [_observing(metrics, family)], family.unit, family.help)
        elif family.kind is Kind.GAUGE:
            meter.create_observable_gauge(family.dotted, [_observing(metrics, family)], family.unit, family.help)
    histogram = meter.create_histogram(
        DURATION.dotted, DURATION.unit, DURATION.help, explicit_bucket_boundaries_advisory=list(limits)
    )
    return lambda labels, seconds: histogram.record(seconds, dict(zip(DURATION.labels, labels, strict=True)))


def _observing(metrics: Metrics, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for reading in metrics.readings():
            if reading.family is family:
                yield Observation(reading.value, dict(zip(family.labels, reading.labels, strict=True)))

    return observe
