"""Steps of a queue of events that the library sends in lanes only, as coroutines for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from apressure.events.engine.steps import EventSteps, Want


async def push(
    steps: EventSteps,
    events: Sequence[tuple[bytes, bytes]],
    front: bool = False,
    expected: bool = False,
) -> bytes:
    """Push events; see `EventSteps.send_push`."""
    pushed: bytes = await _answer(
        lambda on_answer: steps.send_push(steps.series(), events, expected, on_answer, front=front)
    )
    return pushed


async def delay(steps: EventSteps, events: Sequence[tuple[bytes, bytes, bytes]], expected: bool = False) -> bytes:
    """Put events for later; see `EventSteps.send_delay`."""
    pushed: bytes = await _answer(lambda on_answer: steps.send_delay(steps.series(), events, expected, on_answer))
    return pushed


async def pop(steps: EventSteps, most: int = 1, lease: float = 30.0, place: bytes = b"", **want: Any) -> Any:
    """Pop events for so many seconds; see `EventSteps.send_pop`."""
    wanted = Want(int(lease * 1000), **want)
    return await _answer(lambda on_answer: steps.send_pop(steps.series(), most, wanted, place, on_answer))


async def settle(
    steps: EventSteps, claims: Sequence[Sequence[bytes]], how: str = "ack", anywhere: bool = False
) -> list[bool]:
    """Settle claims; see `EventSteps.send_settle`. Returns which of them were settled."""
    letters: bytes = await _answer(
        lambda on_answer: steps.send_settle(steps.series(), how, claims, anywhere, on_answer)
    )
    return [letter == ord("1") for letter in letters]


async def _answer(send: Callable[[Callable[[Any], None]], object]) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    send(answer.set_result)
    if isinstance(outcome := await answer, Exception):
        raise outcome
    return outcome
