"""`apressure put`, `get` and `requeue`: items into a queue, out of it, and back into it."""

from __future__ import annotations

import json as jsons
import os
import stat
import sys
from typing import Annotated

import typer

from apressure import AsyncQueue, Durability
from apressure.cli.drain import Drain
from apressure.cli.exits import UsageError
from apressure.cli.feed import Feeder
from apressure.cli.framing import DEFAULT_LIMIT, Framing, FramingError, decoder
from apressure.cli.meter import Meter
from apressure.cli.options import Common, Fsync, Json, Name, Prefix, Remains, Replicas, Timeout, Url, complain, execute
from apressure.cli.show import printable
from apressure.cli.streams import Input, Output
from apressure.exceptions import PressureError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from apressure.queue.dead import SUFFIX

_PORTION = 1000
"""How many dead letters are moved between two looks at how far it is."""

Null = Annotated[bool, typer.Option("-0", "--null", help="A NUL byte ends each item, not a newline.")]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        min=1,
        help="What was received N times and never written goes to the dead-letter queue.",
        show_default="no limit",
    ),
]
LengthPrefixed = Annotated[
    bool, typer.Option("--length-prefixed", help="Each item comes after its length: 4 bytes, big-endian.")
]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show how far it is, on standard error.",
        show_default=False,
    ),
]


def put(
    context: typer.Context,
    name: Name,
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="ITEM", help="The items; without any, standard input."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the queue if it does not exist.")] = False,
    bound: Annotated[
        int | None,
        typer.Option(
            "--bound",
            metavar="N",
            min=0,
            help="With --create: how many items the queue takes; 0 for any number.",
            show_default=False,
        ),
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Close the queue after the last item.")] = False,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    max_size: Annotated[
        int, typer.Option("--max-size", metavar="BYTES", min=1, help="The largest item that standard input may have.")
    ] = DEFAULT_LIMIT,
    timeout: Timeout = None,
    force: Annotated[bool, typer.Option("--force", help="Put even if the queue is full.")] = False,
    replicas: Replicas = 0,
    fsync: Fsync = False,
    progress: Progress = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Put items into a queue: those named, or one for each line of standard input.

    It waits while the queue is full and reads no more meanwhile, so whoever writes to the pipe waits too.
    With --close the queue is closed at the end of input, unless something went wrong before.
    """
    common = Common.of(context, url, prefix, json)

    given = [os.fsencode(item) for item in items or []]
    shown = not given and is_shown(progress, busy=0)
    meter = Meter(f"put {name}", shown=shown, total_bytes=None if given else _input_size())
    feeder: Feeder | None = None
    cut_short = False

    async def command() -> None:
        nonlocal feeder, cut_short
        framing = framing_of(null, length_prefixed)
        if bound is not None and not create:
            raise UsageError("--bound goes with --create")
        with meter:
            async with common.queue(name, durability=Durability(replicas, fsync)) as queue:
                if create:
                    await _create(queue, bound)
                feeder = Feeder(queue, meter, timeout=timeout, force=force)
                if given:
                    await feeder.put(given)
                else:
                    try:
                        await feeder.put_stream(Input(), decoder(framing, limit=max_size))
                    except FramingError:
                        cut_short = True
                        raise
                if close:
                    await queue.close(timeout)
        if common.json:
            done = {"name": name, "put": meter.messages, "bytes": meter.bytes, "closed": close}
            sys.stdout.write(jsons.dumps(done) + "\n")
            sys.stdout.flush()

    def remains() -> Remains | None:
        # What was read and is not in the queue is in nobody's hands any more. For a single item the error says it all.
        if feeder is None or (len(given) == 1 and not feeder.unconfirmed):
            return None
        if feeder.unconfirmed:
            text = f"{meter.messages} items are in the queue, {feeder.unconfirmed} of them not confirmed"
            text += f"; {feeder.unput} that had been read are not" if feeder.unput else ""
            return Remains(text, {"put": meter.messages, "unconfirmed": feeder.unconfirmed, "not_put": feeder.unput})
        if not (feeder.unput or cut_short):
            return None
        if not feeder.unput:
            text = f"{meter.messages} items were put, this one and what comes behind it were not"
            return Remains(text, {"put": meter.messages})
        which = "" if given else " that had been read"
        text = f"{meter.messages} items were put, {feeder.unput}{which} were not"
        return Remains(text, {"put": meter.messages, "not_put": feeder.unput})

    execute(common, command(), remains=remains)


def get(
    context: typer.Context,
    name: Name,
    number: Annotated[
        int | None,
        typer.Option("-n", "--number", metavar="N", min=1, help="Get N items and end.", show_default="all"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Wait for more until the queue is closed, or end when it is empty."),
    ] = True,
    at_most_once: Annotated[
        bool,
        typer.Option(
            "--at-most-once/--at-least-once",
            help="Take an item before it is written, or acknowledge it after it has been.",
        ),
    ] = False,
    timeout: Timeout = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the queue once it is closed and its last item has been written.")
    ] = False,
    max_attempts: MaxAttempts = None,
    dead_letters: Annotated[
        str | None,
        typer.Option("--dead-letters", metavar="NAME", help="That queue's name.", show_default="NAME:dead"),
    ] = None,
    replicas: Replicas = 0,
    fsync: Fsync = False,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    progress: Progress = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Get items from a queue, and write each as a line to standard output, until the queue is closed.

    An item is acknowledged when it has been written. Those that were received and not written go back into the
    queue, first in line, whatever ends the command.
    """
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        framing = framing_of(null, length_prefixed)
        shown = is_shown(progress, busy=1)
        if dead_letters is not None and max_attempts is None:
            raise UsageError("--dead-letters goes with --max-attempts")
        if max_attempts is not None and at_most_once:
            raise UsageError("--max-attempts goes with --at-least-once: what is taken at once is never given back")
        with Meter(f"get {name}", shown=shown, total=number) as meter:
            async with common.queue(name, max_attempts, dead_letters, Durability(replicas, fsync)) as queue:
                drain = Drain(
                    queue, Output(), meter, framing, number=number, follow=follow, timeout=timeout, delete=delete
                )
                await (drain.at_most_once() if at_most_once else drain.at_least_once())

    execute(common, command())


def requeue(
    context: typer.Context,
    name: Name,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DEAD", help="The dead-letter queue's name.", show_default="NAME:dead"),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Move at most so many.", show_default="all")
    ] = None,
    timeout: Timeout = None,
    progress: Progress = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Move dead letters back to the end of the queue that they came from, the oldest first.

    Those that are there when it begins are moved; it waits while the queue is full. However it ends, each is in one
    of the two queues.
    """
    common = Common.of(context, url, prefix, json)
    dead_letters = name + SUFFIX if source is None else source
    meter = Meter(f"requeue {name}", shown=os.isatty(2) if progress is None else progress)

    async def command() -> None:
        with meter:
            async with common.queue(name) as queue:
                left = await _dead_letters(queue, dead_letters, wanted=source is not None)
                left = left if most is None else min(most, left)
                meter.expect(left)
                await _requeue(queue, dead_letters, left, timeout, meter)
        if common.json:
            done = {"name": name, "from": dead_letters, "requeued": meter.messages}
            sys.stdout.write(jsons.dumps(done) + "\n")
        else:
            text = f"requeued {meter.messages} from {dead_letters} to {name}"
            sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()

    def remains() -> Remains | None:
        if not meter.messages:
            return None
        return Remains(f"{meter.messages} were requeued before", {"requeued": meter.messages})

    execute(common, command(), remains=remains)


async def _dead_letters(queue: AsyncQueue[bytes], dead_letters: str, *, wanted: bool) -> int:
    """How many there are. A queue for them that somebody names has to exist; otherwise nothing may have died yet."""
    try:
        return await AsyncQueue(dead_letters, client=queue.client).qsize()
    except QueueDoesNotExistError:
        if wanted:
            raise
        return 0


async def _requeue(queue: AsyncQueue[bytes], dead_letters: str, left: int, timeout: float | None, meter: Meter) -> None:
    """Move so many dead letters: what can be moved at once, and then one, as soon as it can be."""
    while True:
        try:
            try:
                moved = await queue.requeue(max(1, min(left, _PORTION)), 0, dead_letters)
            except (QueueFullError, QueueInUseError) as blocked:
                moved = blocked.accepted or await queue.requeue(1, timeout, dead_letters)
        except PressureError as error:
            meter.add(error.accepted, 0)
            raise
        meter.add(moved, 0)
        left -= moved
        if left <= 0 or not moved:
            return


def framing_of(null: bool, length_prefixed: bool) -> Framing:
    """Return the framing that the options say."""
    if null and length_prefixed:
        raise UsageError("-0 and --length-prefixed exclude each other")
    if length_prefixed:
        return Framing.LENGTH_PREFIXED
    return Framing.NUL if null else Framing.LINES


async def _create(queue: AsyncQueue[bytes], bound: int | None) -> None:
    created = await queue.create(bound or 0, exist_ok=True)
    if not created and bound is not None and (actual := await queue.bound()) != bound:
        complain(f"apressure: {queue.name} exists already and its bound is {actual}, not {bound}")


def is_shown(progress: bool | None, *, busy: int) -> bool:
    """Whether to show progress; `busy` is the descriptor that carries the items."""
    return (os.isatty(2) and not os.isatty(busy)) if progress is None else progress


def _input_size() -> int | None:
    """How many bytes are left in standard input, where that can be known."""
    try:
        status = os.fstat(0)
        return max(0, status.st_size - os.lseek(0, 0, os.SEEK_CUR)) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
