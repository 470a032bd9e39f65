"""How changes of deliveries become steps: none is sent twice or overtaken, and each caller gets its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from apressure.core.counts import Counts
from apressure.events.engine.batching import EventSettler
from apressure.tasks.engine.answers import Claim
from apressure.tasks.engine.lanes import MANY, MOST_STEPS, TaskSettler
from apressure.tasks.engine.steps import Change, TaskSteps


class Steps:
    """Keeps the steps; the test answers them."""

    settle_timeout = 5.0

    def __init__(self) -> None:
        self.counts = Counts()
        self.sent: list[list[bytes]] = []
        self._answers: list[Any] = []

    def send_settle(self, changes: Sequence[Change], ttl: float, on_answer: Any) -> None:
        self.sent.append([change.claim.id for change in changes])
        self._answers.append(on_answer)

    def answer(self, letters: Any) -> None:
        """Answer the oldest step: each change gets a letter."""
        number = len(self.sent) - len(self._answers)
        answer = letters if isinstance(letters, Exception) else letters * len(self.sent[number])
        self._answers.pop(0)(answer)

    @property
    def open(self) -> int:
        """How many steps have no answer."""
        return len(self._answers)


async def test_many_changes_leave_in_order_in_a_few_steps_at_a_time() -> None:
    steps = Steps()
    settler = TaskSettler(cast("TaskSteps", steps), 0)
    names = [b"%d" % number for number in range(3 * MOST_STEPS * MANY + 5)]
    settling = [
        asyncio.create_task(settler.settle(Change("complete", Claim(name, b"token", b"node")))) for name in names
    ]
    await asyncio.sleep(0)
    assert steps.open == MOST_STEPS
    assert [len(step) for step in steps.sent] == [1] + [MANY] * (MOST_STEPS - 1)
    flushed = settler.flushed()
    failed = steps.sent[1]
    for letters in ("1", OSError("broken")):
        steps.answer(letters)
    while steps.open:
        assert not flushed.done()
        assert steps.open <= MOST_STEPS
        steps.answer("0")
    assert flushed.done()
    assert [name for step in steps.sent for name in step] == names
    outcomes = await asyncio.gather(*settling, return_exceptions=True)
    assert outcomes[0] == "1"
    assert all(isinstance(outcome, OSError) == (name in failed) for name, outcome in zip(names, outcomes, strict=True))
    assert outcomes[-1] == "0"


async def test_acknowledgements_of_one_turn_of_the_event_loop_are_one_step() -> None:
    steps, outcomes = Steps(), []
    settler = TaskSettler(cast("TaskSteps", steps), 0)
    for name in (b"a", b"b", b"c"):
        settler.soon(Change("complete", Claim(name, b"token", b"node")), outcomes.append)
    assert not steps.sent
    await asyncio.sleep(0)
    assert steps.sent == [[b"a", b"b", b"c"]]
    steps.answer("1")
    assert outcomes == []  # one that is done is no news
    assert settler.flushed().done()


async def test_an_acknowledgement_that_failed_says_so() -> None:
    steps, outcomes = Steps(), []
    settler = TaskSettler(cast("TaskSteps", steps), 0)
    for answer in ("0", OSError("broken")):
        settler.soon(Change("complete", Claim(b"a", b"token", b"node")), outcomes.append)
        await asyncio.sleep(0)
        steps.answer(answer)
    assert [str(outcome) for outcome in outcomes] == ["0", "broken"]


async def test_each_caller_gets_an_error_of_its_own() -> None:
    steps: Any = Steps()
    steps.series = object
    steps.send_settle = lambda _series, _how, claims, _anywhere, on_answer: Steps.send_settle(
        steps, [Change("complete", Claim(name, token, b"node")) for name, token in claims], 0, on_answer
    )
    settler = EventSettler(steps, keep_errors=False, max_attempts=None)
    settling = [asyncio.create_task(settler.settle(("ack", (name, b"token")))) for name in (b"a", b"b", b"c")]
    await asyncio.sleep(0)
    while steps.open:  # one exception raised in many tasks would mix their tracebacks
        steps.answer(OSError("broken"))
    errors = await asyncio.gather(*settling, return_exceptions=True)
    assert [str(error) for error in errors] == ["broken"] * 3
    assert errors[1] is not errors[2]
