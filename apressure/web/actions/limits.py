"""Actions on the limits of a queue."""

from __future__ import annotations

from typing import Final

from apressure.core.limits import KeyLimit, Rate
from apressure.web.actions.action import DEADLINE, ON_SERVERS, Action, Asking, Field, said
from apressure.web.forms import Form, WrongFormError


async def _rate(asking: Asking, typed: Form) -> str:
    count = typed.whole("count")
    if count is None:
        await asking.seen.queue.set_rate(None, deadline=DEADLINE)
        return "It has no rate any more."
    per, burst = typed.number("per", "1"), typed.whole("burst")
    await asking.seen.queue.set_rate(count, per, burst, deadline=DEADLINE)
    return f"It hands out {Rate(count, per, burst)}."


async def _concurrency(asking: Asking, typed: Form) -> str:
    most = typed.whole("most")
    await asking.seen.queue.set_concurrency(most, deadline=DEADLINE)
    return "Any number may be in flight." if most is None else f"At most {most:,} may be in flight."


async def _key(asking: Asking, typed: Form) -> str:
    queue, order = asking.seen.queue, typed.get("order", "")
    if order == "off":
        await queue.set_key(None, None, fair=False, deadline=DEADLINE)
        return "Keys do not matter any more."
    if order not in ("turns", "first"):
        raise WrongFormError("Choose whether keys take turns.")
    limit = KeyLimit(typed.whole("most"), typed.get("pointer", "").strip() or None, order == "turns")
    await queue.set_key(limit.pointer, limit.at_most, fair=limit.fair, deadline=DEADLINE)
    return f"It hands out {limit}."


async def _bound(asking: Asking, typed: Form) -> str:
    most = typed.whole("most") or 0
    await asking.seen.queue.set_bound(most, deadline=DEADLINE)
    return f"At most {most:,} may wait." if most else "Any number may wait."


LIMITS: Final[dict[str, Action]] = {
    "rate": Action(
        "Set the rate",
        said("How many messages may {queue} hand out? Now: {limits}. {waiting} wait. Empty for no rate."), _rate,
        (
            Field("count", "Messages", optional=True), Field("per", "In so many seconds", optional=True),
            Field("burst", "At once, after a quiet time", optional=True),
        ),
        kinds=ON_SERVERS,
    ),
    "concurrency": Action(
        "Set the concurrency",
        said("How many messages of {queue} may be in flight? {in_flight} are. Empty for any number."), _concurrency,
        (Field("most", "Messages in flight", optional=True),), kinds=ON_SERVERS,
    ),
    "key": Action(
        "Limit each key",
        said(
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
        said(
            "How many messages may wait in {queue}? {waiting} wait, and {delayed} are delayed; the bound is {bound}. "
            "If it grows, puts that wait go on. If it shrinks, nothing is deleted, and puts wait. Empty for no bound."
        ),
        _bound, (Field("most", "Messages that wait", optional=True),),
    ),
}  # fmt: skip
