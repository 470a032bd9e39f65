"""`apressure files`: queues in directories, with no server."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json as jsons
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apressure.cli.exits import UsageError
from apressure.cli.framing import DEFAULT_LIMIT, Framing, decoder, encode
from apressure.cli.meter import Meter
from apressure.cli.move import LengthPrefixed, MaxAttempts, Null, Progress, framing_of, is_shown
from apressure.cli.options import Common, Interval, Json, Remains, Timeout, complain, execute
from apressure.cli.show import plain, printable
from apressure.cli.streams import Input, Output
from apressure.exceptions import LeaseLostError, QueueEmptyError
from apressure.files import FileMessage, FileQueue, FileQueueStatistics

_PORTION = 64
_READ = 64 * 1024

Name = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
Place = Annotated[Path, typer.Option("-d", "--dir", metavar="DIR", help="The directory that the queue is in.")]
Poll = Annotated[
    bool,
    typer.Option("--poll", help="Look again and again: where other machines change the directory, too."),
]
Visibility = Annotated[
    float,
    typer.Option("--visibility", metavar="SECONDS", min=0.001, help="Nobody else gets an item for so long."),
]


def pump(
    context: typer.Context,
    name: Name,
    items: Annotated[
        list[str] | None, typer.Argument(metavar="ITEM", help="The items; without any, standard input.")
    ] = None,
    directory: Place = Path(),
    capacity: Annotated[
        int | None,
        typer.Option("-c", "--capacity", metavar="N", min=1, help="Wait while there are N items.", show_default="any"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=0, help="Publish the numbers 1 to N; 0 for numbers without end."),
    ] = None,
    microseconds: Annotated[
        bool, typer.Option("--microseconds", help="Name items as vsqs 0.3 does, which shares the directory.")
    ] = False,
    fsync: Annotated[
        bool, typer.Option("--fsync/--no-fsync", help="Nothing counts as published before the disk has it.")
    ] = True,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    max_size: Annotated[
        int, typer.Option("--max-size", metavar="BYTES", min=1, help="The largest item that standard input may have.")
    ] = DEFAULT_LIMIT,
    timeout: Timeout = None,
    poll: Poll = False,
    progress: Progress = None,
    json: Json = False,
) -> None:
    """Publish items: those named, numbers, or one for each line of standard input.

    It waits while the queue has as many as --capacity says, and reads no more meanwhile.
    """
    common = Common.of(context, None, None, json)
    given = [os.fsencode(item) for item in items or []]
    meter = Meter(f"pump {name}", shown=not given and is_shown(progress, busy=0), total=count or None)
    pumping = _Pump(meter, timeout)

    async def command() -> None:
        if count is not None and given:
            raise UsageError("give either items or --count")
        framing = framing_of(null, length_prefixed)
        unit: Literal["ms", "us"] = "us" if microseconds else "ms"
        with meter:
            async with FileQueue(
                name, directory=directory, capacity=capacity, unit=unit, fsync=fsync, notify=False if poll else None,
                max_message_size=max(max_size, *map(len, given), 1) if given else max_size,
            ) as queue:  # fmt: skip
                if given:
                    await pumping.put(queue, given)
                elif count is not None:
                    numbers = itertools.count(1) if count == 0 else iter(range(1, count + 1))
                    for portion in _portions(numbers):
                        await pumping.put(queue, [b"%d" % number for number in portion])
                else:
                    source, lines = Input(), decoder(framing, limit=max_size)
                    while data := await source.read(_READ if capacity is None else 512):
                        await pumping.put(queue, lines.feed(data))
                    await pumping.put(queue, lines.finish())
        if common.json:
            _print_json({"name": name, "published": meter.messages, "bytes": meter.bytes})

    def remains() -> Remains | None:
        left = pumping.left
        if not left or (len(given) == 1 and not meter.messages):
            return None
        text = f"{meter.messages} items were published, {left} {'' if given else 'that had been read '}were not"
        return Remains(text, {"published": meter.messages, "not_published": left})

    execute(common, command(), remains=remains)


class _Pump:
    """Publishes, and knows at any moment how much of what it was given is in."""

    def __init__(self, meter: Meter, timeout: float | None) -> None:
        self._meter = meter
        self._timeout = timeout
        self.left = 0

    async def put(self, queue: FileQueue[bytes], items: list[bytes]) -> None:
        """Publish in order; each waits for room for as long as the timeout says."""
        self.left = len(items)
        for portion in map(list, _portions(iter(items))):
            while portion:
                before = queue.published
                try:
                    await queue.publish_many(portion if self._timeout is None else portion[:1], self._timeout)
                finally:
                    done = queue.published - before
                    self.left -= done
                    self._meter.add(done, sum(map(len, portion[:done])))
                del portion[:done]


def sink(
    context: typer.Context,
    name: Name,
    directory: Place = Path(),
    number: Annotated[
        int | None, typer.Option("-n", "--number", metavar="N", min=1, help="Get N items and end.", show_default="all")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end when nothing waits.")
    ] = True,
    discard: Annotated[
        bool, typer.Option("--discard", help="Write nothing: delete, and say what is out of order.")
    ] = False,
    visibility: Visibility = 30.0,
    max_attempts: MaxAttempts = None,
    dead_letters: Annotated[
        str | None,
        typer.Option("--dead-letters", metavar="NAME", help="That queue's name.", show_default="NAME.dead"),
    ] = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    timeout: Timeout = None,
    poll: Poll = False,
    progress: Progress = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Receive items, and write each as a line to standard output.

    An item is deleted when it has been written. One that was received and not written goes back into the queue, in its
    place, whatever ends the command.
    """
    common = Common.of(context, None, None, json)

    async def command() -> None:
        framing = framing_of(null, length_prefixed)
        newest = datetime.fromtimestamp(0, UTC)
        with Meter(f"sink {name}", shown=is_shown(progress, busy=1), total=number) as meter:
            async with FileQueue(
                name, directory=directory, visibility_timeout=visibility, max_attempts=max_attempts,
                dead_letters=dead_letters, notify=False if poll else None, max_message_size=sys.maxsize,
            ) as queue:  # fmt: skip
                output = Output()
                with output.noticing_the_reader():
                    while number is None or meter.messages < number:
                        try:
                            message = await queue.receive(timeout if follow else 0)
                        except QueueEmptyError:
                            if follow:
                                raise
                            break
                        if discard:
                            await message.ack()
                            if message.published < newest and not message.redelivered:
                                complain(f"apressure: {message.id} came after one of {newest}")
                            newest = max(newest, message.published)
                        else:
                            await _write(message, output, framing, visibility)
                        meter.add(1, len(message.raw))
        if discard and common.json:
            _print_json({"name": name, "deleted": meter.messages, "bytes": meter.bytes})

    execute(common, command())


async def _write(message: FileMessage[bytes], output: Output, framing: Framing, visibility: float) -> None:
    """Write an item and acknowledge it, or give it back; it stays ours for as long as the reader takes."""
    writing: asyncio.Task[None] | None = None
    try:
        writing = asyncio.ensure_future(output.write(encode(message.raw, framing)))
        while not writing.done():
            await asyncio.wait((writing,), timeout=visibility / 3)
            if not writing.done():
                await message.extend()
        await writing
    except BaseException:
        if writing is not None:
            writing.cancel()
        try:
            await message.nack()
        except LeaseLostError:
            complain(f"apressure: the item {message.id} was being written for too long: somebody else gets it, too")
        raise
    await message.ack()


def stat(
    context: typer.Context,
    name: Name,
    directory: Place = Path(),
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    poll: Poll = False,
    json: Json = False,
) -> None:
    """Show what a queue holds: a line for each value, or with --watch for each look."""
    common = Common.of(context, None, None, json)

    async def command() -> None:
        async with FileQueue(name, directory=directory, create=False, notify=False if poll else None) as queue:
            while True:
                shown = as_dict(await queue.statistics())
                if common.json:
                    _print_json(shown)
                elif watch:
                    parts = (f"{key} {plain(shown[key])}" for key in ("length", "in_flight", "unfinished", "oldest"))
                    sys.stdout.write("  ".join(parts) + "\n")
                else:
                    sys.stdout.write("".join(f"{key}\t{plain(value)}\n" for key, value in shown.items()))
                sys.stdout.flush()
                if not watch:
                    return
                await asyncio.sleep(interval)

    execute(common, command())


def requeue(
    context: typer.Context,
    name: Name,
    directory: Place = Path(),
    in_flight: Annotated[
        bool,
        typer.Option("--in-flight", help="Give back what is in flight, whoever has it, and no dead letters."),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DEAD", help="The dead-letter queue's name.", show_default="NAME.dead"),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Move at most so many.", show_default="all")
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option("-c", "--capacity", metavar="N", min=1, help="Wait while there are N items.", show_default="any"),
    ] = None,
    timeout: Timeout = None,
    poll: Poll = False,
    json: Json = False,
) -> None:
    """Move dead letters back to the end of the queue that they came from, the oldest first.

    However it ends, each is in one of the two queues.
    """
    common = Common.of(context, None, None, json)

    async def command() -> None:
        if in_flight and (source is not None or most is not None):
            raise UsageError("--in-flight gives back everything, and goes without --from and --max")
        async with FileQueue(
            name, directory=directory, create=False, capacity=capacity, notify=False if poll else None
        ) as queue:
            done = await (queue.release() if in_flight else queue.requeue(most, timeout, source))
        _answer(common, {"name": name, "requeued": done}, f"requeued {done} in {name}")

    execute(common, command())


def purge(
    context: typer.Context,
    name: Name,
    directory: Place = Path(),
    in_flight: Annotated[
        bool, typer.Option("--in-flight", help="Also items that somebody has received and not deleted.")
    ] = False,
    poll: Poll = False,
    json: Json = False,
) -> None:
    """Delete every item that waits. The queue stays."""
    common = Common.of(context, None, None, json)

    async def command() -> None:
        async with FileQueue(name, directory=directory, create=False, notify=False if poll else None) as queue:
            done = await queue.purge(in_flight)
        _answer(common, {"name": name, "purged": done}, f"purged {done} from {name}")

    execute(common, command())


def as_dict(statistics: FileQueueStatistics) -> dict[str, Any]:
    """Return what `stat` prints. Times are ISO 8601, in UTC."""
    found = dataclasses.asdict(statistics)
    shown = ("name", "path", "length", "in_flight", "unfinished", "oldest", "next_expiry", "notified")
    return {
        key: value.isoformat(timespec="milliseconds") if isinstance(value := found[key], datetime) else value
        for key in shown
    }


def _portions(items: Iterator[Any]) -> Iterable[tuple[Any, ...]]:
    while portion := tuple(itertools.islice(items, _PORTION)):
        yield portion


def _answer(common: Common, data: dict[str, Any], text: str) -> None:
    if common.json:
        _print_json(data)
    else:
        sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def _print_json(data: object) -> None:
    sys.stdout.write(jsons.dumps(data) + "\n")
