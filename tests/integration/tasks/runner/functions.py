"""Functions that tasks call, in processes of their own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from opentelemetry import trace

from apressure.tasks.runner.reports import report_progress

PLACE = "no function"


def double(parameters: dict[str, int]) -> dict[str, int]:
    report_progress(0.5, "half\nway, é")
    print(os.getpid())
    return {"double": 2 * parameters["number"], "pid": os.getpid()}


async def later(parameters: str) -> list[str]:
    await asyncio.sleep(0.01)
    return [parameters]


def fails(_: Any) -> None:
    raise ValueError("no such file")


def returns_a_set(_: Any) -> set[int]:
    return {1}


def returns_nan(_: Any) -> float:
    return float("nan")


def span(_: Any) -> list[str]:
    current = trace.get_current_span().get_span_context()
    return [f"{current.trace_id:032x}", f"{current.span_id:016x}"]


async def span_later(parameters: Any) -> list[str]:
    return span(parameters)
