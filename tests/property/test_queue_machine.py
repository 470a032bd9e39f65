"""Random lives of a queue, by scripts and by plain commands, against a model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.queue_machine import QueueMachine


@pytest.mark.parametrize("scripting", [True, False], ids=["scripts", "plain"])
def test_a_queue_behaves_as_a_deque_does(url: str, scripting: bool) -> None:
    class Machine(QueueMachine):
        pass

    Machine.url, Machine.scripting = url, scripting
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150 if scripting else 40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
