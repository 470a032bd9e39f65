"""Actions on messages and tasks."""

from __future__ import annotations

from typing import Final

from apressure.exceptions import TaskError
from apressure.web.actions.action import DEADLINE, TIMEOUT, Action, Asking, Field, said
from apressure.web.forms import Form, WrongFormError


async def _copy(asking: Asking, typed: Form) -> str:
    text = typed.get("item", "").replace("\r\n", "\n")
    try:
        item = bytes.fromhex(text) if typed.get("format") == "hex" else text.encode()
    except ValueError:
        raise WrongFormError("This is not hex: write pairs of the digits 0-9 and a-f.") from None
    target = asking.watched(typed["queue"]) if typed.get("queue") else asking.seen
    await target.queue.put(item, timeout=TIMEOUT, deadline=DEADLINE)
    return f"A message of {len(item):,} bytes was put into {target.address}. The original stays."


async def _promotion(asking: Asking) -> str:
    if asking.id:
        return f"Make the delayed message {asking.id} of {asking.address} due now? It goes to the end of the queue."
    delayed = (await asking.seen.queue.statistics(deadline=DEADLINE)).delayed
    return f"Make all {delayed:,} delayed messages of {asking.address} due now? They go to the end of the queue."


async def _promote(asking: Asking, _: Form) -> str:
    ids = [asking.id] if asking.id else None
    return f"{await asking.seen.queue.promote(ids=ids, deadline=DEADLINE):,} are due now that were not before."


async def _cancel(asking: Asking, _: Form) -> str:
    try:
        failed = await asking.seen.queue.cancel(asking.id, deadline=DEADLINE)
    except TaskError as error:
        raise WrongFormError(str(error)) from None
    return "It has failed now, as cancelled." if failed else "Its node was asked to end it."


MESSAGES: Final[dict[str, Action]] = {
    "copy": Action(
        "Put a copy",
        said("Put this as a new message? The original stays as it is; its key and its times are not copied."),
        _copy,
        (
            Field("item", "Message", "long", optional=True),
            Field("format", "Written as", "choice", choices=(("text", "text"), ("hex", "hex"))),
            Field("queue", "Address of the queue (empty: this one)", "text", optional=True),
        ),
        listed=False, copies=True,
    ),
    "promote": Action("Promote delayed messages", _promotion, _promote),
    "cancel": Action(
        "Cancel a task", said("Cancel the task {id} of {queue}? It fails if it waits; its node is asked if it runs."),
        _cancel, listed=False, view="tasks", kinds=("tasks",),
    ),
}  # fmt: skip
