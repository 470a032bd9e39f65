"""Asks whether to change a queue, changes it, and notes who did."""

from __future__ import annotations

import logging
from urllib.parse import unquote

from apressure.core.searching import DeadLetterSearch
from apressure.exceptions import QueueClosedError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from apressure.logs import escaped
from apressure.web.access import Identity
from apressure.web.actions import ACTIONS, Asking
from apressure.web.forms import Form, WrongFormError
from apressure.web.jobs import told
from apressure.web.rendering import Page
from apressure.web.views.asking import Asked, NoSuchPageError
from apressure.web.views.originals import original
from apressure.web.views.queues import jobs_of, queue_of

logger = logging.getLogger("apressure")


async def change(asked: Asked, identity: Identity, typed: Form | None) -> Page:
    """The page of an action: what it would do, or, with what was typed in, what it did.

    Args:
        asked: The request.
        identity: Who asks.
        typed: The form; None if it was not sent yet. One with `step` only says which dead letters were chosen.
    """
    seen, what = asked.seen(), asked.text("what")
    action = ACTIONS.get(what)
    if action is None or seen.address.kind not in action.kinds:
        raise NoSuchPageError("There is no such action for this queue.")
    chosen = () if typed is None else typed.chosen
    handles = (() if typed is None else typed.handles) or tuple(filter(None, (asked.text("letter"),)))
    search = asked.search()
    if chosen or handles:
        search = DeadLetterSearch(ids=map(_unquoted, chosen) if chosen else None)
    asking = Asking(seen, asked.text("id"), search, handles, asked.jobs, identity.who, asked.monitor)
    values = dict(typed or {})
    if action.copies and typed is None:
        message = await original(asked, seen)
        values = {"item": message.text, "format": message.format}
    did, wrong, question, status = "", "", "", 200
    if typed is not None and typed.get("step"):
        if not (chosen or handles):
            wrong, status = "Nothing is chosen. Go back, and mark some dead letters.", 409
    elif typed is not None:
        _note(asking, what, identity)
        try:
            did = await action.do(asking, typed)
        except (
            WrongFormError, TypeError, ValueError, QueueClosedError, QueueDoesNotExistError, QueueFullError,
            QueueInUseError,
        ) as error:  # fmt: skip
            wrong, status = str(error), 409
    if not did and (chosen or handles or not (typed and typed.get("step"))):
        question = await action.question(asking)
    data = {
        **queue_of(asked, seen), "what": what, "id": asking.id, "label": action.label, "did": did, "wrong": wrong,
        "question": question, "chosen": len(chosen) + len(handles),
    }  # fmt: skip
    where = {} if chosen or handles else {name: text for name, text in asked.searched.items() if name != "id"}
    view = ("messages" if asked.place.get("place") else "letters") if action.copies else action.view
    more = {
        "fields": [field for field in action.fields if not (field.of_many and asking.id)], "chosen": chosen,
        "handles": handles,
        "typed": values, "all": action.view == "letters" and not (asking.id or chosen or handles), "view": view,
        "where": {**where, **asked.place},
    }  # fmt: skip
    return Page("act.html", f"{action.label}: {seen.address}", data, more, status=status, live=False)


def _unquoted(text: str) -> str:
    """Return the id of a dead letter as a form has it: an id may have any bytes."""
    return unquote(text, errors="surrogateescape")


async def jobs(asked: Asked) -> Page:
    """The jobs of the page: those that run, and the latest that have ended."""
    return Page("jobs.html", "Jobs", {"jobs": jobs_of(asked)})


def _note(asking: Asking, what: str, identity: Identity) -> None:
    """Log who changes what, before it is done."""
    who, address = escaped(identity.who), escaped(asking.address)
    everything = asking.search.everything and not asking.handles
    which = asking.id or ("" if everything else told(asking.search, asking.handles))
    about = f" ({escaped(which)})" if which else ""
    extra = {"event": "changed_by_hand", "queue": asking.seen.address.name, "operation": what, "who": who}
    logger.info("%s has the page do: %s %s%s", who, what, address, about, extra=extra)
