"""The trial of two versions on one queue, with this one on both sides: `nox -s together` installs another one."""

from __future__ import annotations

import json
import sys

from tests import processes, together


def test_both_sides_share_the_work_of_each_kind() -> None:
    done = processes.run(
        [sys.executable, "-m", "tests.together", "--old", sys.executable, "--items", "400", "--kills", "3", "--json"],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["kind"] for one in outcomes] == list(together.KINDS)
    for outcome in outcomes:
        assert (outcome["put"], outcome["lost"]) == (400, 0)
        assert min(outcome["by"].values()) > 0
