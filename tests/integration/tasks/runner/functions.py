"""Functions that tasks call, in processes of their own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

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
