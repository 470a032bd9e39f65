"""Actions on dead letters: on one, on those that were chosen, or on those that a search finds."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from apressure.core.searching import DeadLetterSearch
from apressure.monitor import bulk
from apressure.monitor.monitor import Seen
from apressure.web.actions.action import DEADLINE, TIMEOUT, Action, Asking, Field, said
from apressure.web.forms import Form, WrongFormError
from apressure.web.jobs import JobRequest, NoJobError, told

_COUNTED: Final = 5000
"""Dead letters at which a question looks, to say how many an action would touch."""

_ALIKE: Final = " Dead letters with the same content and without a reason share an id: all of them are meant."


def _on_letters(work: bulk.Work, label: str, would: str, one: str, did: str) -> Action:
    """Return an action on one dead letter, on those that were chosen, or on those that a search finds.

    Args:
        work: What is done with them.
        label: What its button says.
        would: The question, with the number of dead letters and the queue.
        one: The question for one, with its id.
        did: What was done with one.
    """
    gone = "There is no such dead letter any more."
    if work == "move":
        gone = "Nothing was moved: there is no such dead letter any more, or the other queue has an event with its id."

    async def question(asking: Asking) -> str:
        if asking.id:
            alike = "" if asking.handles or asking.seen.address.kind != "queue" else _ALIKE
            return one.format(id=asking.id, queue=asking.address) + alike
        if chosen := asking.handles or tuple(asking.search.ids or ()):
            return would.format(count=f"the {len(chosen):,} chosen", queue=asking.address)
        counted = await bulk.count(asking.seen.queue, asking.search, _COUNTED)
        which = f" ({told(asking.search)})" if not asking.search.everything else ""
        text = would.format(count=f"{counted.found:,}", queue=asking.address + which)
        if not counted.complete:
            text += f" That is their number among the {counted.looked:,} oldest of {counted.total:,}; the job goes on."
        return text

    async def do(asking: Asking, typed: Form) -> str:
        target = asking.watched(typed.get("queue", "")) if work == "move" else None
        if target is not None and target.queue is asking.seen.queue:
            raise WrongFormError("This is the queue that they come from. Requeue them instead.")
        if asking.id:
            done = await _one(asking, work, target)
            return f"{int(done):,} {did}." if done else gone
        if (bool(asking.search.ids), bool(asking.handles), typed.get("all") == "1").count(True) != 1:
            raise WrongFormError(
                "Nothing was done. Say which dead letters: id=… in the URL, fields letter=… or chosen=… in the "
                "form, or the field all=1 for all that the URL searches for."
            )
        rate = typed.number("rate") if typed.get("rate") else None
        if rate is not None and not 0 < rate < math.inf:
            raise WrongFormError("The rate must be more than 0.")
        request = JobRequest(asking.seen, work, asking.search, asking.handles, rate, asking.who, target)
        try:
            job = asking.jobs.begin(request)
        except NoJobError as error:
            raise WrongFormError(str(error)) from None
        return f"The job {job.id} has begun. It goes on when you leave the page."

    where = (Field("queue", "Address of the other queue", "text"),) if work == "move" else ()
    rate = Field("rate", "At most so many a second", optional=True, of_many=True)
    return Action(label, question, do, (*where, rate), view="letters")


async def _one(asking: Asking, work: bulk.Work, target: Seen | None) -> int:
    """Move or delete the dead letter with an id, and with a handle if there is one; return how many."""
    if not asking.handles:
        act = bulk.act_of(asking.seen.queue, work, target and target.queue)
        return int(await act(ids=[asking.id], timeout=TIMEOUT, deadline=DEADLINE))
    search = DeadLetterSearch(ids=[asking.id])
    exactly = bulk.Bulk(
        asking.seen.queue, work, search, handles=asking.handles, timeout=TIMEOUT, target=target and target.queue
    )
    async with asyncio.timeout(DEADLINE):
        await exactly.run()
    return exactly.done


async def _stop(asking: Asking, _: Form) -> str:
    job = asking.jobs.find(asking.id)
    if job is None or job.request.seen.queue is not asking.seen.queue or job.state != "running":
        return "There is no such job any more."
    await job.stop()
    return f"It is stopped. What it has done, {job.data['done']:,}, is done; the others are dead letters as before."


LETTERS: Final[dict[str, Action]] = {
    "requeue": _on_letters(
        "requeue", "Requeue dead letters",
        "Move {count} dead letters of {queue} back to the end of the queue? Their attempts start anew.",
        "Move the dead letter {id} of {queue} back to the end of the queue?", "moved back",
    ),
    "move": _on_letters(
        "move", "Move dead letters",
        "Move {count} dead letters of {queue} to the end of another queue? Their attempts start anew. If the page is "
        "killed meanwhile, one may be in both.",
        "Move the dead letter {id} of {queue} to the end of another queue?", "moved",
    ),
    "discard": _on_letters(
        "discard", "Delete dead letters",
        "Delete {count} dead letters of {queue}? They are lost.",
        "Delete the dead letter {id} of {queue}? It is lost.", "deleted",
    ),
    "stop": Action(
        "Stop a job", said("Stop the job {id} of {queue}? What it has not done yet stays."), _stop, listed=False,
        view="letters",
    ),
}  # fmt: skip
