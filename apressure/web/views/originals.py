"""Messages that operators put again: the message that a request means, as a form can have it."""

from __future__ import annotations

from typing import NamedTuple

from apressure.core.browsing import PLACES
from apressure.core.searching import MOST, DeadLetterSearch
from apressure.monitor.bulk import handle_of
from apressure.monitor.monitor import Seen
from apressure.web.bodies import READ
from apressure.web.rendering import is_plain
from apressure.web.views.asking import Asked, NoSuchPageError

_GONE = "This message is not there any more. Go back, and load the page again."


class Original(NamedTuple):
    """A message as a form has it.

    Attributes:
        format: `text`, or `hex` where a form would change the text.
        text: The message.
    """

    format: str
    text: str


async def original(asked: Asked, seen: Seen) -> Original:
    """Return the message that a request means: a dead letter by its `id`, or what is at a `cursor` of a `place`.

    Raises:
        NoSuchPageError: It is hidden, too large, or not there any more.
    """
    if not asked.bodies.whole:
        raise NoSuchPageError("Messages are hidden, so they cannot be edited.")
    raw, size = await (_waiting(asked, seen) if asked.text("place") else _letter(asked, seen))
    if size > READ:
        raise NoSuchPageError(f"This message has {size:,} bytes. Those of more than {READ:,} cannot be edited here.")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\r"
    return Original("text", text) if is_plain(text) else Original("hex", raw.hex(" "))


async def _letter(asked: Asked, seen: Seen) -> tuple[bytes, int]:
    """Find a dead letter, by its handle if there is one: behind the cursor of the page that has shown it."""
    search = DeadLetterSearch(ids=[asked.text("id")])
    try:
        page = await seen.queue.find_dead_letters(
            search, cursor=asked.text("cursor") or None, look=MOST, **asked.options()
        )
    except ValueError as error:
        raise NoSuchPageError(str(error)) from None
    handle = asked.text("letter")
    for letter in page.letters:
        if not handle or handle_of(letter) == handle:
            return letter.raw, len(letter.raw)
    raise NoSuchPageError(_GONE)


async def _waiting(asked: Asked, seen: Seen) -> tuple[bytes, int]:
    place = asked.text("place")
    if place not in PLACES:
        raise NoSuchPageError(f"There is no place {place!r} in a queue.")
    try:
        page = await seen.queue.browse(
            place, newest=asked.text("newest") == "1", cursor=asked.text("cursor") or None, limit=1, most_bytes=READ,
            **asked.options(),
        )  # fmt: skip
    except ValueError as error:
        raise NoSuchPageError(str(error)) from None
    if not page.messages or page.messages[0].id != (asked.text("id") or None):
        raise NoSuchPageError(_GONE)
    return page.messages[0].raw, page.messages[0].size
