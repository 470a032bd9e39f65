"""What operators may change: what each action would do, what it asks for, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from apressure.logs import escaped
from apressure.monitor.monitor import Seen

_TIMEOUT: Final = 5.0
"""Seconds to wait for room, or for a role that another client holds."""

DEADLINE: Final = 60.0
"""Seconds for an action."""


class WrongFormError(Exception):
    """What was typed in cannot be used; the text says why."""


class Field(NamedTuple):
    """Something to type in.

    Attributes:
        name: Its name in the form.
        label: What it is called on the page.
        kind: `number`, `text` or `long`.
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
        id: Which dead letter or worker; "" for no certain one.
    """

    seen: Seen
    statistics: Any
    id: str

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
    """

    label: str
    question: Callable[[Asking], Awaitable[str]]
    do: Callable[[Asking, Typed], Awaitable[str]]
    fields: tuple[Field, ...] = ()
    listed: bool = True


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


async def _letters_question(asking: Asking) -> str:
    if asking.id:
        return f"Move the dead letter {asking.id} of {asking.address} back to the end of the queue?"
    letters = await asking.seen.queue.dead_letters(1000, deadline=DEADLINE)
    more = " or more" if len(letters) == 1000 else ""
    return (
        f"Move all dead letters of {asking.address}, {len(letters):,}{more}, back to the end of the queue? "
        "Their attempts start anew."
    )


async def _requeue(asking: Asking, _: Typed) -> str:
    ids = [asking.id] if asking.id else None
    moved = await asking.seen.queue.requeue(timeout=_TIMEOUT, ids=ids, deadline=DEADLINE)
    return f"{int(moved):,} moved back." if moved or not ids else "There is no such dead letter any more."


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


async def _drain(asking: Asking, _: Typed) -> str:
    told = await asking.seen.queue.drain(asking.id, deadline=DEADLINE)
    return "It drains." if told else "Nothing with this id can be drained."


async def _stack(asking: Asking, _: Typed) -> str:
    told = await asking.seen.queue.show_stack(asking.id, deadline=DEADLINE)
    return "It tells its stack within five seconds." if told else "Nothing with this id can tell its stack."


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
    "requeue": Action("Requeue dead letters", _letters_question, _requeue),
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
    "stack": Action(
        "Stack", _said("Ask the worker {id} of {queue} where the longest of its handlers is?"), _stack, listed=False
    ),
    "drain": Action(
        "Drain", _said("Drain the worker {id} of {queue}? It receives no more, and ends when it has finished."), _drain,
        listed=False,
    ),
}  # fmt: skip
"""The actions, by their names in URLs."""
