"""What operators may change: what each action would do, what it asks for, and what it does."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from apressure import queue_addresses
from apressure.core.searching import DeadLetterSearch
from apressure.exceptions import TaskError
from apressure.logs import escaped
from apressure.monitor import bulk
from apressure.monitor.monitor import Monitor, Seen
from apressure.queue_addresses import Kind
from apressure.web.jobs import Jobs, TooManyJobsError, told

_TIMEOUT: Final = 5.0
"""Seconds to wait for room, or for a role that another client holds."""

DEADLINE: Final = 60.0
"""Seconds for an action."""

_COUNTED: Final = 5000
"""Dead letters at which a question looks, to say how many an action would touch."""


class WrongFormError(Exception):
    """What was typed in cannot be used; the text says why."""


class Field(NamedTuple):
    """Something to type in.

    Attributes:
        name: Its name in the form.
        label: What it is called on the page.
        kind: `number`, `text` or `long`; or what can be chosen, with commas between.
        optional: It may be left empty.
    """

    name: str
    label: str
    kind: str = "number"
    optional: bool = False


class Asking(NamedTuple):
    """What an action is asked about.

    Attributes:
        seen: The queue.
        statistics: Its statistics, as of now.
        id: Which dead letter, worker or job; "" for no certain one.
        search: Which dead letters.
        jobs: The jobs of the page.
        who: Who asks.
        monitor: Knows the other queues.
    """

    seen: Seen
    statistics: Any
    id: str
    search: DeadLetterSearch
    jobs: Jobs
    who: str
    monitor: Monitor

    @property
    def address(self) -> str:
        """The queue's address."""
        return str(self.seen.address)


Typed = Mapping[str, str]


class Action(NamedTuple):
    """An action.

    Attributes:
        label: What its button says.
        question: What it would do, with how many messages it would touch.
        do: Does it, and returns what it did.
        fields: What it asks for.
        listed: It is about the queue as a whole, so the page of the queue lists it.
        view: The view of the queue where it is done.
        copies: It begins with the contents of a message.
        kinds: Only queues of these kinds have it; none for all.
    """

    label: str
    question: Callable[[Asking], Awaitable[str]]
    do: Callable[[Asking, Typed], Awaitable[str]]
    fields: tuple[Field, ...] = ()
    listed: bool = True
    view: str = ""
    copies: bool = False
    kinds: tuple[Kind, ...] = ()


def _said(text: str) -> Callable[[Asking], Awaitable[str]]:
    """Return a question that names the queue, and how many messages it has."""

    async def question(asking: Asking) -> str:
        statistics = asking.statistics
        return text.format(
            queue=asking.address, waiting=f"{statistics.length:,}", delayed=f"{statistics.delayed:,}",
            in_flight=f"{statistics.in_flight:,}", id=asking.id,
        )  # fmt: skip

    return question


async def _pause(asking: Asking, _: Typed) -> str:
    new = await asking.seen.queue.pause(deadline=DEADLINE)
    return "It is paused." if new else "It was paused already."


async def _resume(asking: Asking, _: Typed) -> str:
    was = await asking.seen.queue.resume(deadline=DEADLINE)
    return "It is resumed." if was else "It was not paused."


async def _hold(asking: Asking, typed: Typed) -> str:
    seconds = _number(typed, "seconds")
    await asking.seen.queue.hold(seconds, deadline=DEADLINE)
    return f"It hands out nothing for {seconds:g} s."


async def _rate(asking: Asking, typed: Typed) -> str:
    if not typed.get("count"):
        await asking.seen.queue.set_rate(None, deadline=DEADLINE)
        return "It has no rate any more."
    count, per = _whole(typed, "count"), _number(typed, "per") if typed.get("per") else 1.0
    await asking.seen.queue.set_rate(count, per, deadline=DEADLINE)
    return f"It hands out {count:,} in {per:g} s."


async def _concurrency(asking: Asking, typed: Typed) -> str:
    most = _whole(typed, "most") if typed.get("most") else None
    await asking.seen.queue.set_concurrency(most, deadline=DEADLINE)
    return "Any number may be in flight." if most is None else f"At most {most:,} may be in flight."


def _on_letters(work: bulk.Work, would: str, one: str, did: str) -> Action:
    """Return an action on one dead letter, on those that were chosen, or on those that a search finds.

    Args:
        work: What is done with them.
        would: The question, with the number of dead letters and the queue.
        one: The question for one, with its id.
        did: What was done with one.
    """

    async def question(asking: Asking) -> str:
        if asking.id:
            return one.format(id=asking.id, queue=asking.address)
        if asking.search.ids:
            return would.format(count=f"the {len(list(asking.search.ids)):,} chosen", queue=asking.address)
        counted = await bulk.count(asking.seen.queue, asking.search, _COUNTED)
        which = f" ({told(asking.search)})" if not asking.search.everything else ""
        text = would.format(count=f"{counted.found:,}", queue=asking.address + which)
        if not counted.complete:
            text += f" That is their number among the {counted.looked:,} oldest of {counted.total:,}; the job goes on."
        return text

    async def do(asking: Asking, typed: Typed) -> str:
        if asking.id:
            done = await getattr(asking.seen.queue, work)(ids=[asking.id], timeout=_TIMEOUT, deadline=DEADLINE)
            return f"{int(done):,} {did}." if done else "There is no such dead letter any more."
        rate = _number(typed, "rate") if typed.get("rate") else None
        if rate is not None and not 0 < rate < math.inf:
            raise WrongFormError("The rate must be more than 0.")
        try:
            job = asking.jobs.begin(asking.seen, work, asking.search, rate, asking.who)
        except TooManyJobsError as error:
            raise WrongFormError(str(error)) from None
        return f"The job {job.id} has begun. It goes on when you leave the page."

    label = "Requeue dead letters" if work == "requeue" else "Delete dead letters"
    rate = Field("rate", "At most so many a second", optional=True)
    return Action(label, question, do, (rate,), view="letters")


async def _stop(asking: Asking, _: Typed) -> str:
    job = asking.jobs.find(asking.id)
    if job is None or job.state != "running":
        return "There is no such job any more."
    await job.stop()
    return f"It is stopped. What it has done, {job.data['done']:,}, is done; the others are dead letters as before."


async def _promotion(asking: Asking) -> str:
    which = f"the delayed message {asking.id}" if asking.id else f"all {asking.statistics.delayed:,} delayed messages"
    return f"Make {which} of {asking.address} due now? They go to the end of the queue."


async def _promote(asking: Asking, _: Typed) -> str:
    ids = [asking.id] if asking.id else None
    return f"{await asking.seen.queue.promote(ids=ids, deadline=DEADLINE):,} are due now that were not before."


async def _purge(asking: Asking, _: Typed) -> str:
    return f"{await asking.seen.queue.purge(deadline=DEADLINE):,} deleted."


async def _close(asking: Asking, _: Typed) -> str:
    await asking.seen.queue.close(timeout=_TIMEOUT, deadline=DEADLINE)
    return "It is closed."


async def _delete(asking: Asking, typed: Typed) -> str:
    if typed.get("name", "") != escaped(asking.address):
        raise WrongFormError("This is not the name of the queue. Nothing was deleted.")
    await asking.seen.queue.delete(timeout=_TIMEOUT, deadline=DEADLINE)
    return "It is deleted."


async def _put(asking: Asking, typed: Typed) -> str:
    item = typed.get("item", "").replace("\r\n", "\n").encode()
    await asking.seen.queue.put(item, timeout=_TIMEOUT, deadline=DEADLINE)
    return f"An item of {len(item):,} bytes was put."


async def _copy(asking: Asking, typed: Typed) -> str:
    text = typed.get("item", "").replace("\r\n", "\n")
    try:
        item = bytes.fromhex(text) if typed.get("format") == "hex" else text.encode()
    except ValueError:
        raise WrongFormError("This is not hex: write pairs of the digits 0-9 and a-f.") from None
    target = _watched(asking, typed["queue"]) if typed.get("queue") else asking.seen
    await target.queue.put(item, timeout=_TIMEOUT, deadline=DEADLINE)
    return f"A message of {len(item):,} bytes was put into {target.address}. The original stays."


def _watched(asking: Asking, text: str) -> Seen:
    """Return the queue that somebody has typed in."""
    try:
        found = asking.monitor.find(queue_addresses.read(text.strip()), asking.seen.server)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise WrongFormError(
            "The page does not watch this queue. Nothing was put. Write the address as the list of queues has it."
        )
    return found


async def _cancel(asking: Asking, _: Typed) -> str:
    try:
        failed = await asking.seen.queue.cancel(asking.id, deadline=DEADLINE)
    except TaskError as error:
        raise WrongFormError(str(error)) from None
    return "It has failed now, as cancelled." if failed else "Its node was asked to end it."


async def _drain(asking: Asking, _: Typed) -> str:
    told = await asking.seen.queue.drain(asking.id, deadline=DEADLINE)
    return "It drains." if told else "Nothing with this id can be drained."


def _whole(typed: Typed, name: str) -> int:
    text = typed.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise WrongFormError(f"{text[:40]!r} is not a whole number.")
    return int(text)


def _number(typed: Typed, name: str) -> float:
    try:
        return float(typed.get(name, ""))
    except ValueError:
        raise WrongFormError(f"{typed.get(name, '')[:40]!r} is not a number.") from None


ACTIONS: Final[dict[str, Action]] = {
    "pause": Action(
        "Pause",
        _said("Pause {queue}? Its consumers get nothing until it is resumed. {waiting} wait, {in_flight} are out."),
        _pause,
    ),
    "resume": Action("Resume", _said("Resume {queue}? Its consumers get what waits: {waiting}."), _resume),
    "hold": Action(
        "Hold", _said("Hand out nothing of {queue} for a while? {waiting} wait. 0 ends a hold."), _hold,
        (Field("seconds", "Seconds"),),
    ),
    "rate": Action(
        "Set the rate", _said("How many messages may {queue} hand out? {waiting} wait. Empty for no rate."), _rate,
        (Field("count", "Messages", optional=True), Field("per", "In so many seconds", optional=True)),
    ),
    "concurrency": Action(
        "Set the concurrency",
        _said("How many messages of {queue} may be in flight? {in_flight} are. Empty for any number."), _concurrency,
        (Field("most", "Messages in flight", optional=True),),
    ),
    "put": Action(
        "Put an item", _said("Put an item into {queue}? {waiting} wait."), _put, (Field("item", "Item", "long"),)
    ),
    "copy": Action(
        "Put a copy",
        _said("Put this as a new message? The original stays as it is; its key and its times are not copied."),
        _copy,
        (
            Field("item", "Message", "long", optional=True), Field("format", "Written as", "text,hex"),
            Field("queue", "Address of the queue (empty: this one)", "text", optional=True),
        ),
        listed=False, copies=True,
    ),
    "requeue": _on_letters(
        "requeue", "Move {count} dead letters of {queue} back to the end of the queue? Their attempts start anew.",
        "Move the dead letter {id} of {queue} back to the end of the queue?", "moved back",
    ),
    "discard": _on_letters(
        "discard", "Delete {count} dead letters of {queue}? They are lost.",
        "Delete the dead letter {id} of {queue}? It is lost.", "deleted",
    ),
    "stop": Action(
        "Stop a job", _said("Stop the job {id} of {queue}? What it has not done yet stays."), _stop, listed=False,
        view="letters",
    ),
    "promote": Action("Promote delayed messages", _promotion, _promote),
    "purge": Action(
        "Purge",
        _said("Delete all that waits in {queue}: {waiting} messages, and {delayed} delayed ones? They are lost."),
        _purge,
    ),
    "close": Action(
        "Close", _said("Close {queue}? It takes no more messages. {waiting} wait, and are still handed out."), _close
    ),
    "delete": Action(
        "Delete",
        _said("Delete {queue}, with {waiting} that wait, {delayed} delayed and {in_flight} in flight? They are lost."),
        _delete, (Field("name", "The address of the queue, to be sure", "text"),),
    ),
    "cancel": Action(
        "Cancel a task", _said("Cancel the task {id} of {queue}? It fails if it waits; its node is asked if it runs."),
        _cancel, listed=False, view="tasks", kinds=("tasks",),
    ),
    "drain": Action(
        "Drain", _said("Drain the worker {id} of {queue}? It receives no more, and ends when it has finished."), _drain,
        listed=False,
    ),
}  # fmt: skip
"""The actions, by their names in URLs."""
