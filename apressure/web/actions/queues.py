"""Actions on a queue as a whole."""

from __future__ import annotations

from typing import Final

from apressure.logs import escaped
from apressure.web.actions.action import DEADLINE, ON_SERVERS, TIMEOUT, Action, Asking, Field, said
from apressure.web.forms import Form, WrongFormError


async def _pause(asking: Asking, _: Form) -> str:
    new = await asking.seen.queue.pause(deadline=DEADLINE)
    return "It is paused." if new else "It was paused already."


async def _resume(asking: Asking, _: Form) -> str:
    was = await asking.seen.queue.resume(deadline=DEADLINE)
    return "It is resumed." if was else "It was not paused."


async def _hold(asking: Asking, typed: Form) -> str:
    seconds = typed.number("seconds")
    await asking.seen.queue.hold(seconds, deadline=DEADLINE)
    return f"It hands out nothing for {seconds:g} s."


async def _put(asking: Asking, typed: Form) -> str:
    item = typed.get("item", "").replace("\r\n", "\n").encode()
    await asking.seen.queue.put(item, timeout=TIMEOUT, deadline=DEADLINE)
    return f"An item of {len(item):,} bytes was put."


async def _purge(asking: Asking, _: Form) -> str:
    return f"{await asking.seen.queue.purge(deadline=DEADLINE):,} deleted."


async def _close(asking: Asking, _: Form) -> str:
    await asking.seen.queue.close(timeout=TIMEOUT, deadline=DEADLINE)
    return "It is closed."


async def _delete(asking: Asking, typed: Form) -> str:
    if typed.get("name", "") != escaped(asking.address):
        raise WrongFormError("This is not the name of the queue. Nothing was deleted.")
    await asking.seen.queue.delete(timeout=TIMEOUT, deadline=DEADLINE)
    return "It is deleted."


QUEUES: Final[dict[str, Action]] = {
    "pause": Action(
        "Pause",
        said("Pause {queue}? Its consumers get nothing until it is resumed. {waiting} wait, {in_flight} are out."),
        _pause,
    ),
    "resume": Action("Resume", said("Resume {queue}? Its consumers get what waits: {waiting}."), _resume),
    "hold": Action(
        "Hold", said("Hand out nothing of {queue} for a while? {waiting} wait. 0 ends a hold."), _hold,
        (Field("seconds", "Seconds"),), kinds=ON_SERVERS,
    ),
    "put": Action(
        "Put an item", said("Put an item into {queue}? {waiting} wait."), _put, (Field("item", "Item", "long"),)
    ),
    "purge": Action(
        "Purge",
        said("Delete all that waits in {queue}: {waiting} messages, and {delayed} delayed ones? They are lost."),
        _purge,
    ),
    "close": Action(
        "Close", said("Close {queue}? It takes no more messages. {waiting} wait, and are still handed out."), _close
    ),
    "delete": Action(
        "Delete",
        said("Delete {queue}, with {waiting} that wait, {delayed} delayed and {in_flight} in flight? They are lost."),
        _delete, (Field("name", "The address of the queue, to be sure", "text"),),
    ),
}  # fmt: skip
