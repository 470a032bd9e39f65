"""The table that ends a run of chaos tests. Each test sends its rows with its report, from any process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.chaos.support import LONG, SEED, Recorder

PROPERTY = "chaos"
"""The name of a test's property that has its rows."""

_total = Recorder()


def pytest_report_header() -> str:
    return f"chaos: {'long' if LONG else 'short'} form, APRESSURE_SEED={SEED}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        for name, rows in report.user_properties:
            if name == PROPERTY:
                _total.merge(rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := _total.lines():
        terminalreporter.section("chaos")
        for line in lines:
            terminalreporter.line(line)
        terminalreporter.line(f"APRESSURE_SEED={SEED}")
    if path := os.environ.get("APRESSURE_CHAOS_JSON"):
        document = {"form": "long" if LONG else "short", "seed": SEED, "rows": _total.rows()}
        Path(path).write_text(json.dumps(document, indent=1))
