"""Actions on workers."""

from __future__ import annotations

from typing import Final

from apressure.web.actions.action import DEADLINE, Action, Asking, said
from apressure.web.forms import Form


async def _drain(asking: Asking, _: Form) -> str:
    told = await asking.seen.queue.drain(asking.id, deadline=DEADLINE)
    return "It drains." if told else "Nothing with this id can be drained."


async def _stack(asking: Asking, _: Form) -> str:
    told = await asking.seen.queue.show_stack(asking.id, deadline=DEADLINE)
    return "It tells its stack within five seconds." if told else "Nothing with this id can tell its stack."


WORKERS: Final[dict[str, Action]] = {
    "stack": Action(
        "Stack", said("Ask the worker {id} of {queue} where the longest of its handlers is?"), _stack, listed=False
    ),
    "drain": Action(
        "Drain", said("Drain the worker {id} of {queue}? It receives no more, and ends when it has finished."), _drain,
        listed=False,
    ),
}  # fmt: skip
