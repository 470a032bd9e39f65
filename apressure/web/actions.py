"""What operators may change: what each action would do, what it asks for, and what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from apressure.core.limits import KeyLimit, Rate
from apressure.logs import escaped
from apressure.monitor.monitor import Seen
from apressure.pressure.doctor import recovery
from apressure.spark import sealed_batches

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
        kind: `number`, `text`, `long` or `choice`.
        optional: It may be left empty.
        choices: Of a choice, what can be chosen: what is sent, and what it is called.
    """

    name: str
    label: str
    kind: str = "number"
    optional: bool = False
    choices: tuple[tuple[str, str], ...] = ()


class Asking(NamedTuple):
    """What an action is asked about.

    Attributes:
        seen: The queue.
        id: Which dead letter, worker or client; "" for no certain one.
    """

    seen: Seen
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
        kinds: The kinds of queue that have it, as in addresses.
    """

    label: str
    question: Callable[[Asking], Awaitable[str]]
    do: Callable[[Asking, Typed], Awaitable[str]]
    fields: tuple[Field, ...] = ()
    listed: bool = True
    kinds: tuple[str, ...] = ("queue", "events", "tasks", "files")


def _said(text: str) -> Callable[[Asking], Awaitable[str]]:
    """Return a question that names the queue, and how many messages it has."""

    async def question(asking: Asking) -> str:
        statistics = await asking.seen.queue.statistics(deadline=DEADLINE)
        return text.format(
            queue=asking.address, waiting=f"{statistics.length:,}", delayed=f"{statistics.delayed:,}",
            in_flight=f"{statistics.in_flight:,}", id=asking.id, limits=statistics.limits,
            bound=f"{statistics.bound:,}" if statistics.bound else "none",
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
    burst = _whole(typed, "burst") if typed.get("burst") else None
    await asking.seen.queue.set_rate(count, per, burst, deadline=DEADLINE)
    return f"It hands out {Rate(count, per, burst)}."


async def _concurrency(asking: Asking, typed: Typed) -> str:
    most = _whole(typed, "most") if typed.get("most") else None
    await asking.seen.queue.set_concurrency(most, deadline=DEADLINE)
    return "Any number may be in flight." if most is None else f"At most {most:,} may be in flight."


async def _key(asking: Asking, typed: Typed) -> str:
    queue, order = asking.seen.queue, typed.get("order", "")
    if order == "off":
        await queue.set_key(None, None, fair=False, deadline=DEADLINE)
        return "Keys do not matter any more."
    if order not in ("turns", "first"):
        raise WrongFormError("Choose whether keys take turns.")
    limit = KeyLimit(
        _whole(typed, "most") if typed.get("most") else None, typed.get("pointer", "").strip() or None, order == "turns"
    )
    await queue.set_key(limit.pointer, limit.at_most, fair=limit.fair, deadline=DEADLINE)
    return f"It hands out {limit}."


async def _bound(asking: Asking, typed: Typed) -> str:
    most = _whole(typed, "most") if typed.get("most") else 0
    await asking.seen.queue.set_bound(most, deadline=DEADLINE)
    return f"At most {most:,} may wait." if most else "Any number may wait."


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


async def _repair_question(asking: Asking) -> str:
    report = await recovery.examine(asking.seen.queue)
    ours = [one.text for one in report.findings if one.repair == "automatic"]
    if not ours:
        return f"There is nothing at {asking.address} that this can repair now."
    return "\n".join((f"Repair {asking.address}? This is repaired:", *ours))


async def _give_back_question(asking: Asking) -> str:
    report = await recovery.examine(asking.seen.queue)
    ours = [one.text for one in report.findings if one.repair == "holder" and one.holder == asking.id]
    if not ours:
        return f"{escaped(asking.id)} has no role of {asking.address} any more."
    return "\n".join((
        f"Give back what the client {escaped(asking.id)} has of {asking.address}?",
        *ours,
        "Only if you know that it is dead: if it is alive, it loses its lease, or two clients hold a role.",
    ))  # fmt: skip


async def _repair(asking: Asking, _: Typed) -> str:
    repair = await recovery.repair(asking.seen.queue, asking.id or None)
    return "\n".join(f"Repaired: {one.text}." for one in repair.done) or "There was nothing to repair."


async def _give_back(asking: Asking, typed: Typed) -> str:
    if not asking.id or typed.get("name", "") != escaped(asking.id):
        raise WrongFormError("This is not the name of the client. Nothing was given back.")
    return await _repair(asking, typed)


async def _batches_question(asking: Asking) -> str:
    client = asking.seen.queue.client
    found = await asyncio.to_thread(sealed_batches.uncommitted, client.settings, asking.seen.address.name)
    ours = [one for one in found if one.group == asking.id]
    if not ours:
        return f"The Spark group {asking.id} has nothing of {asking.address} in flight any more."
    return (
        f"Put {ours[0].messages:,} messages of {asking.address}, which the Spark query of the group {asking.id} has "
        "taken, back into the queue, first in line? Only if the query will not come back: if it runs, it ends with an "
        "error. Its checkpoint becomes invalid, and what it has written of them already comes again."
    )


async def _give_back_batches(asking: Asking, typed: Typed) -> str:
    if typed.get("name", "") != escaped(asking.id):
        raise WrongFormError("This is not the name of the group. Nothing was given back.")
    client = asking.seen.queue.client
    moved = await asyncio.to_thread(sealed_batches.give_back, client.settings, asking.seen.address.name, asking.id)
    return f"{moved:,} messages were put back."


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


ON_SERVERS: Final = ("queue", "events", "tasks")
"""The kinds of queue whose server counts for all processes."""

ACTIONS: Final[dict[str, Action]] = {
    "pause": Action(
        "Pause",
        _said("Pause {queue}? Its consumers get nothing until it is resumed. {waiting} wait, {in_flight} are out."),
        _pause,
    ),
    "resume": Action("Resume", _said("Resume {queue}? Its consumers get what waits: {waiting}."), _resume),
    "hold": Action(
        "Hold", _said("Hand out nothing of {queue} for a while? {waiting} wait. 0 ends a hold."), _hold,
        (Field("seconds", "Seconds"),), kinds=ON_SERVERS,
    ),
    "rate": Action(
        "Set the rate",
        _said("How many messages may {queue} hand out? Now: {limits}. {waiting} wait. Empty for no rate."), _rate,
        (
            Field("count", "Messages", optional=True), Field("per", "In so many seconds", optional=True),
            Field("burst", "At once, after a quiet time", optional=True),
        ),
        kinds=ON_SERVERS,
    ),
    "concurrency": Action(
        "Set the concurrency",
        _said("How many messages of {queue} may be in flight? {in_flight} are. Empty for any number."), _concurrency,
        (Field("most", "Messages in flight", optional=True),), kinds=ON_SERVERS,
    ),
    "key": Action(
        "Limit each key",
        _said(
            "How many messages of the same key may {queue} hand out at a time? Now: {limits}. {waiting} wait, and "
            "{in_flight} are in flight. Empty for any number. The pointer says where the key is in messages of JSON "
            "that were put without one, such as /customer/id."
        ),
        _key,
        (
            Field("most", "Messages of a key", optional=True), Field("pointer", "JSON pointer", "text", optional=True),
            Field(
                "order", "Order", "choice",
                choices=(("turns", "keys take turns"), ("first", "what came first"), ("off", "keys do not matter")),
            ),
        ),
        kinds=("events", "tasks"),
    ),
    "bound": Action(
        "Change the bound",
        _said(
            "How many messages may wait in {queue}? {waiting} wait, and {delayed} are delayed; the bound is {bound}. "
            "If it grows, puts that wait go on. If it shrinks, nothing is deleted, and puts wait. Empty for no bound."
        ),
        _bound, (Field("most", "Messages that wait", optional=True),),
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
    "repair": Action("Repair", _repair_question, _repair, listed=False, kinds=("queue",)),
    "give_back": Action(
        "Give back roles", _give_back_question, _give_back,
        (Field("name", "The name of the client, to be sure", "text"),), listed=False, kinds=("queue",),
    ),
    "give_back_batches": Action(
        "Give back batches", _batches_question, _give_back_batches,
        (Field("name", "The name of the group, to be sure", "text"),), listed=False, kinds=("queue",),
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
