"""Actions that repair a queue: what the doctor finds, and what dead clients have."""

from __future__ import annotations

import asyncio
from typing import Final

from apressure.logs import escaped
from apressure.pressure.doctor import recovery
from apressure.spark import sealed_batches
from apressure.web.actions.action import Action, Asking, Field
from apressure.web.forms import Form, WrongFormError


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


async def _repair(asking: Asking, _: Form) -> str:
    repair = await recovery.repair(asking.seen.queue, asking.id or None)
    return "\n".join(f"Repaired: {one.text}." for one in repair.done) or "There was nothing to repair."


async def _give_back(asking: Asking, typed: Form) -> str:
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


async def _give_back_batches(asking: Asking, typed: Form) -> str:
    if typed.get("name", "") != escaped(asking.id):
        raise WrongFormError("This is not the name of the group. Nothing was given back.")
    client = asking.seen.queue.client
    moved = await asyncio.to_thread(sealed_batches.give_back, client.settings, asking.seen.address.name, asking.id)
    return f"{moved:,} messages were put back."


REPAIRS: Final[dict[str, Action]] = {
    "repair": Action("Repair", _repair_question, _repair, listed=False, kinds=("queue",)),
    "give_back": Action(
        "Give back roles", _give_back_question, _give_back,
        (Field("name", "The name of the client, to be sure", "text"),), listed=False, kinds=("queue",),
    ),
    "give_back_batches": Action(
        "Give back batches", _batches_question, _give_back_batches,
        (Field("name", "The name of the group, to be sure", "text"),), listed=False, kinds=("queue",),
    ),
}  # fmt: skip
