"""`apressure peek`: shows the next item of a queue, or what is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from apressure.cli.asking import delayed_counted, must_exist
from apressure.cli.exits import UsageError
from apressure.cli.options import Address, Common, Framed, option
from apressure.cli.show import SHOWN, plain, print_json, print_rows, start_of
from apressure.cli.streams.framing import as_dict
from apressure.cli.streams.pipes import Output
from apressure.cli.streams.texts import Convert, text_of

_COLUMNS: Final = ("id", "key", "attempts", "holder", "since", "due", "size", "item")
_USUALLY: Final = 100
_MOST_AT_A_TIME: Final = 1000
_MOST_BYTES: Final = 65536
"""Bytes of each item that `--json` prints."""


async def peek(
    common: Common,
    queue: Address,
    newest: Annotated[bool, option("newest", "The item that was put last, instead of the next one.")]
    = False,
    place: Annotated[
        Literal["waiting", "in_flight", "delayed", "parked"] | None,
        option("place", "Show what is there: waiting, in flight, delayed, or parked in the line of its key.",
               shown=False),
    ] = None,
    limit: Annotated[
        int | None, option("limit", "Show N items, each with what is known of it.", "N", shown="1, or 100 with --place",
                           min=1),
    ] = None,
    framed: Framed = Framed(),
) -> None:  # fmt: skip
    """Write the next item to standard output, and leave it in the queue.

    The exit code is 6 if no item waits. With `--limit` or `--place`, it shows what is in the queue: a table on a
    terminal, lines with tabs between the columns into a pipe, or JSON, an object on a line. Nothing is taken.
    """
    framing = framed.framing(common.json)
    address = common.read(queue)
    if place is None and limit is None:
        async with common.open(address) as opened, delayed_counted(opened):
            item = await (opened.peek_newest() if newest else opened.peek())
        await Output().write_item(text_of(address)(item), framing)
        return
    if framed.null or framed.length_prefixed:
        raise UsageError("--limit and --place exclude -0 and --length-prefixed: they write a line for each item")
    shown = text_of(address)
    async with common.open(address) as opened:
        how = {"place": place or "waiting", "newest": newest, "most_bytes": _MOST_BYTES if common.json else SHOWN}
        messages = _messages(opened, limit or _USUALLY, how)
        if common.json:
            count = 0
            async for message in messages:
                print_json(_as_dict(message, shown))
                count += 1
        else:
            rows = [_cells(message, shown) async for message in messages]
            print_rows(_COLUMNS, rows)
            count = len(rows)
        if not count:
            await must_exist(opened)


async def _messages(queue: Any, limit: int, how: dict[str, Any]) -> AsyncIterator[Any]:
    """Read pages, until there are so many messages."""
    cursor, left = None, limit
    while left > 0:
        page = await queue.browse(**how, cursor=cursor, limit=min(left, _MOST_AT_A_TIME))
        for message in page.messages:
            yield message
        left -= len(page.messages)
        if (cursor := page.cursor) is None:
            return


def _as_dict(message: Any, shown: Convert) -> dict[str, Any]:
    return {
        "id": message.id,
        "key": message.key,
        "attempts": message.attempts,
        "holder": message.holder,
        "since": _time(message.since),
        "due": _time(message.due),
        "size": message.size,
        **({"error": message.error} if message.error else {}),
        **as_dict(message.raw if message.error else shown(message.raw)),
    }


def _cells(message: Any, shown: Convert) -> tuple[str, ...]:
    start = start_of(message.raw if message.error else shown(message.raw), message.size > len(message.raw))
    return (
        *map(plain, (message.id, message.key, message.attempts, message.holder)),
        *map(plain, (_time(message.since), _time(message.due), message.size)),
        start if message.raw or not message.error else plain(f"({message.error})"),
    )


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="milliseconds")
