"""What is in a queue: messages, dead letters, tasks. Nothing is taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from apressure.core.cursors import cursor_of, passed_by
from apressure.monitor.bulk import handle_of
from apressure.web.bodies import READ
from apressure.web.rendering import Page
from apressure.web.views.asking import Asked, NoSuchPageError
from apressure.web.views.queues import jobs_of, queue_of

PLACES: Final = {"waiting": "waiting", "in_flight": "in flight", "delayed": "delayed", "parked": "parked"}
"""Where messages are, in words."""

STATUSES: Final = ("scheduled", "pending", "reserved", "started", "complete", "failed")

_MESSAGES: Final = 50
"""Messages of a page."""

_TASKS: Final = 50
_LETTERS: Final = 100
_SEARCHED: Final = 500
_MOST_LETTERS: Final = 1000


async def messages(asked: Asked) -> Page:
    """The messages of a queue, by where they are."""
    seen = asked.seen()
    place = asked.text("place") if asked.text("place") in PLACES else "waiting"
    newest = asked.text("newest") == "1"
    try:
        found = await seen.queue.browse(
            place, newest=newest, cursor=asked.text("cursor") or None, limit=_MESSAGES, most_bytes=READ,
            **asked.options(),
        )  # fmt: skip
    except ValueError as error:
        raise NoSuchPageError(f"There is no such page of messages: {error}") from None
    passed = passed_by(asked.text("cursor") or None, place, newest)
    data = {
        **queue_of(asked, seen), "place": place, "newest": newest, "total": found.total, "cursor": found.cursor,
        "messages": [
            {
                "id": one.id, "cursor": cursor_of(place, passed + number, newest), "attempts": one.attempts,
                "holder": one.holder, "since": _seconds(one.since),
                "due": _seconds(one.due), "key": one.key if asked.bodies.whole else None, "error": one.error,
                "body": asked.bodies.of(one.raw, one.size)._asdict(),
            }
            for number, one in enumerate(found.messages)
        ],
    }  # fmt: skip
    more = {"places": PLACES, "editable": asked.bodies.whole}
    return Page("messages.html", f"Messages of {seen.address}", data, more, [seen.sampler])


async def letters(asked: Asked) -> Page:
    """The dead letters of a queue, or those that are searched for, the oldest first, by their errors."""
    seen, search = asked.seen(), asked.search()
    limit = asked.number("limit", _LETTERS if search.everything else _SEARCHED, most=_MOST_LETTERS)
    try:
        found = await seen.queue.find_dead_letters(
            search, cursor=asked.text("cursor") or None, look=limit, **asked.options()
        )
    except ValueError as error:
        raise NoSuchPageError(f"There is no such page of dead letters: {error}") from None
    groups: dict[str, list[dict[str, Any]]] = {}
    for letter in found.letters:
        shown = {
            "id": letter.id, "handle": handle_of(letter), "attempts": letter.attempts, "when": letter.when,
            "reason": letter.reason, "body": asked.bodies.of(letter.raw)._asdict(),
        }  # fmt: skip
        groups.setdefault(letter.reason if letter.error is None else str(letter.error), []).append(shown)
    data = {
        **queue_of(asked, seen), "limit": limit, "found": len(found.letters), "more": found.cursor is not None,
        "looked": found.looked, "passed": found.passed, "total": found.total, "cursor": found.cursor,
        "search": asked.searched, "jobs": jobs_of(asked, seen),
        "groups": [
            {"error": error, "count": len(letters), "letters": letters}
            for error, letters in sorted(groups.items(), key=lambda group: -len(group[1]))
        ],
    }  # fmt: skip
    more = {"most": _MOST_LETTERS, "searches_text": asked.bodies.whole, "here": asked.text("cursor")}
    return Page("letters.html", f"Dead letters of {seen.address}", data, more, [seen.sampler])


async def tasks(asked: Asked) -> Page:
    """The tasks of a TaskQueue: their progress, and what came of them."""
    seen = asked.seen()
    if seen.address.kind != "tasks":
        raise NoSuchPageError(f"{seen.address} has messages, and no tasks.")
    status = asked.text("status") if asked.text("status") in STATUSES else None
    found: list[Any] = []
    async for task in seen.queue.tasks(status):
        found.append(task)
        if len(found) == _TASKS:
            break
    data = {
        **queue_of(asked, seen), "status": status, "more": len(found) == _TASKS,
        "tasks": [_task_of(asked, task) for task in found],
    }  # fmt: skip
    more = {"statuses": {status: status or "all" for status in (None, *STATUSES)}}
    return Page("tasks.html", f"Tasks of {seen.address}", data, more, [seen.sampler])


_TOLD: Final = (
    "id", "status", "attempts", "node", "pid", "created", "updated", "eta", "progress", "progress_message", "error",
)  # fmt: skip


def _task_of(asked: Asked, task: Any) -> dict[str, Any]:
    contents = {
        "parameters": task.parameters, "result": task.result, "output": task.fields.get("output"),
    }  # fmt: skip
    bodies = {name: asked.bodies.of_value(value) for name, value in contents.items()}
    return {
        **{name: getattr(task, name) for name in _TOLD},
        **{name: None if body is None else body._asdict() for name, body in bodies.items()},
    }


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
