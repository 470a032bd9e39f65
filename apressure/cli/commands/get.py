"""`apressure get`: writes the items of a queue to standard output."""

from __future__ import annotations

from typing import Annotated, Final

from apressure.cli.asking import delayed_counted
from apressure.cli.exits import UsageError
from apressure.cli.options import (
    Address,
    Common,
    DeadLetters,
    Follow,
    Framed,
    Fsync,
    MaxAttempts,
    Number,
    Progress,
    Replicas,
    Timeout,
    durability_of,
    option,
)
from apressure.cli.streams.drain import Drain
from apressure.cli.streams.meter import Meter, is_shown
from apressure.cli.streams.pipes import Output
from apressure.cli.streams.texts import text_of

_AT_MOST_ONCE: Final = "Remove each item before it is written, or acknowledge it after it has been written."
_SHARED: Final = "Share an AsyncQueue with all consumers that say so, as consumers of the other kinds always do."


async def get(
    common: Common,
    queue: Address,
    number: Number = None,
    follow: Follow = True,
    at_most_once: Annotated[bool, option("at-most-once/--at-least-once", _AT_MOST_ONCE)] = False,
    timeout: Timeout = None,
    delete: Annotated[
        bool, option("delete", "Delete the queue when it is closed and its last item has been written.")
    ] = False,
    shared: Annotated[bool, option("shared", _SHARED)] = False,
    max_attempts: MaxAttempts = None,
    dead_letters: DeadLetters = None,
    replicas: Replicas = 0,
    fsync: Fsync = False,
    framed: Framed = Framed(),
    progress: Progress = None,
) -> None:
    """Get items from a queue and write each as a line to standard output, until the queue is closed.

    An item is acknowledged after it has been written. However the command ends, items that were received and not
    written go back into the queue, first in line.
    """
    address, framing = common.read(queue), framed.framing(common.json)
    shown = is_shown(progress, busy=1)
    if dead_letters is not None and max_attempts is None:
        raise UsageError("--dead-letters needs --max-attempts: give both options")
    if max_attempts is not None and at_most_once:
        raise UsageError("--max-attempts excludes --at-most-once, where an item is delivered only once")
    if shared and at_most_once:
        raise UsageError("--shared excludes --at-most-once: without it, several commands can get from a queue anyway")
    settings = {
        "max_attempts": max_attempts,
        "dead_letters": dead_letters,
        "durability": durability_of(address, replicas, fsync),
    }
    with Meter(f"get {address}", shown=shown, total=number) as meter:
        async with common.open(address, **settings) as opened, delayed_counted(opened):
            drain = Drain(
                opened, Output(), meter, framing, text_of(address), address=address,
                number=number, follow=follow, timeout=timeout, delete=delete, shared=shared,
            )  # fmt: skip
            await (drain.at_most_once() if at_most_once else drain.at_least_once())
