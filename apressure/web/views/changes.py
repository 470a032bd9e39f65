"""Asks whether to change a queue, changes it, and notes who did."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from apressure.exceptions import QueueClosedError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from apressure.logs import escaped
from apressure.web.access import Identity
from apressure.web.actions import ACTIONS, Asking, WrongFormError
from apressure.web.rendering import Page
from apressure.web.views.asking import Asked, NoSuchPageError
from apressure.web.views.queues import queue_of

logger = logging.getLogger("apressure")


async def change(asked: Asked, identity: Identity, typed: Mapping[str, str] | None) -> Page:
    """The page of an action: what it would do, or, with what was typed in, what it did.

    Args:
        asked: The request.
        identity: Who asks.
        typed: The form; None if it was not sent yet.
    """
    seen, what = asked.seen(), asked.text("what")
    action = ACTIONS.get(what)
    if action is None or seen.address.kind not in action.kinds:
        raise NoSuchPageError("There is no such action for this queue.")
    asking = Asking(seen, asked.text("id"))
    did, wrong, status = "", "", 200
    if typed is not None:
        _note(asking, what, identity)
        try:
            did = await action.do(asking, typed)
        except (
            WrongFormError, TypeError, ValueError, QueueClosedError, QueueDoesNotExistError, QueueFullError,
            QueueInUseError,
        ) as error:  # fmt: skip
            wrong, status = str(error), 409
    data = {
        **queue_of(asked, seen), "what": what, "id": asking.id, "label": action.label, "did": did, "wrong": wrong,
        "question": "" if did else await action.question(asking),
    }  # fmt: skip
    return Page(
        "act.html", f"{action.label}: {seen.address}", data, {"fields": action.fields}, status=status, live=False
    )


def _note(asking: Asking, what: str, identity: Identity) -> None:
    """Log who changes what, before it is done."""
    who, address = escaped(identity.who), escaped(asking.address)
    about = f" ({escaped(asking.id)})" if asking.id else ""
    extra = {"event": "changed_by_hand", "queue": asking.seen.address.name, "operation": what, "who": who}
    logger.info("%s has the page do: %s %s%s", who, what, address, about, extra=extra)
