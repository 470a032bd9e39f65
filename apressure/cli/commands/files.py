"""`apressure files`: the commands of vsqs, and what only directories have."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apressure.cli.exits import UsageError
from apressure.cli.options import (
    Close,
    Common,
    Follow,
    Items,
    Lease,
    MaxAttempts,
    Name,
    Number,
    Progress,
    Stream,
    Timeout,
    complain,
    option,
)
from apressure.cli.running import Remains, execute
from apressure.cli.show import answer, print_json
from apressure.cli.streams.framing import Framing, decoder
from apressure.cli.streams.meter import Meter, is_shown
from apressure.cli.streams.pipes import Input, Output
from apressure.exceptions import LeaseLostError, QueueClosedError, QueueEmptyError
from apressure.files import FileDelivery, FileQueue
from apressure.protocols import DEFAULT_LEASE

_CHUNK = 64
_READ = 64 * 1024

Node = Annotated[Path, typer.Option("-d", "--dir", metavar="DIR", help="The directory that the queue is in.")]
Poll = Annotated[
    bool, option("poll", "Look for changes every moment. Needed if other machines change the directory, too.")
]
Bound = Annotated[
    int | None, option("bound", "Wait while the queue has N items; 0 for no bound.", "N", "the queue's", min=0)
]


def pump(
    common: Common,
    name: Name,
    items: Items = None,
    directory: Node = Path(),
    bound: Bound = None,
    close: Close = False,
    count: Annotated[int | None, option("count", "Put the numbers from 1 to N; 0 for no end.", "N", min=0)] = None,
    microseconds: Annotated[
        bool, option("microseconds", "Name items like vsqs 0.3, for a directory shared with it.")
    ] = False,
    fsync: Annotated[bool, option("fsync/--no-fsync", "Wait until each item is on the disk.")] = True,
    stream: Stream = Stream(),
    timeout: Timeout = None,
    poll: Poll = False,
    progress: Progress = None,
) -> None:
    """Put items into a queue: the arguments, numbers, or each line of standard input.

    While the queue is full, the command waits and reads no more input. --bound counts for this command instead of the
    bound that the queue was created with.
    """
    given = [os.fsencode(item) for item in items or []]
    meter = Meter(f"pump {name}", shown=not given and is_shown(progress, busy=0), total=count or None)
    pumping = _Pump(meter, timeout)

    async def command() -> None:
        if count is not None and given:
            raise UsageError("give either items or --count, not both")
        framing = stream.framing()
        unit: Literal["ms", "us"] = "us" if microseconds else "ms"
        with meter:
            async with FileQueue(
                name, directory=directory, bound=bound, unit=unit, fsync=fsync, notify=False if poll else None,
                max_message_size=max(stream.max_size, *map(len, given), 1) if given else stream.max_size,
            ) as queue, queue.producer(close):  # fmt: skip
                if given:
                    await pumping.put(queue, given)
                elif count is not None:
                    numbers = itertools.count(1) if count == 0 else iter(range(1, count + 1))
                    for chunk in _chunks(numbers):
                        await pumping.put(queue, [b"%d" % number for number in chunk])
                else:
                    source, lines = Input(), decoder(framing, limit=stream.max_size)
                    while data := await source.read(512 if await queue.bound() else _READ):
                        await pumping.put(queue, lines.feed(data))
                    await pumping.put(queue, lines.finish())
        if common.json:
            print_json({"name": name, "put": meter.messages, "bytes": meter.bytes})

    def remains() -> Remains | None:
        left = pumping.left
        if not left or (len(given) == 1 and not meter.messages):
            return None
        text = f"{meter.messages} items were put, {left} {'' if given else 'that had been read '}were not"
        return Remains(text, {"put": meter.messages, "not_put": left})

    execute(common, command(), remains=remains)


class _Pump:
    """Puts items, and knows at any moment how many of them are in the queue."""

    def __init__(self, meter: Meter, timeout: float | None) -> None:
        self._meter = meter
        self._timeout = timeout
        self.left = 0

    async def put(self, queue: FileQueue[bytes], items: list[bytes]) -> None:
        """Put in order; each item waits for room for as long as the timeout says."""
        self.left = len(items)
        for chunk in map(list, _chunks(iter(items))):
            while chunk:
                before = queue.put_count
                try:
                    await queue.put_many(chunk if self._timeout is None else chunk[:1], self._timeout)
                finally:
                    done = queue.put_count - before
                    self.left -= done
                    self._meter.add(done, sum(map(len, chunk[:done])))
                del chunk[:done]


async def sink(
    common: Common,
    name: Name,
    directory: Node = Path(),
    number: Number = None,
    follow: Follow = True,
    discard: Annotated[
        bool, option("discard", "Delete items without writing them, and report any that are out of order.")
    ] = False,
    lease: Lease = DEFAULT_LEASE,
    max_attempts: MaxAttempts = None,
    dead_letters: Annotated[
        str | None, option("dead-letters", "The name of the dead-letter queue.", "NAME", "NAME.dead")
    ] = None,
    stream: Stream = Stream(),
    timeout: Timeout = None,
    poll: Poll = False,
    progress: Progress = None,
) -> None:
    """Get items from a queue and write each as a line to standard output, until the queue is closed.

    An item is deleted after it has been written. However the command ends, an item that was received and not written
    goes back to its place in the queue.
    """
    framing = stream.framing(common.json)
    newest = datetime.fromtimestamp(0, UTC)
    with Meter(f"sink {name}", shown=is_shown(progress, busy=1), total=number) as meter:
        async with FileQueue(
            name, directory=directory, lease=lease, max_attempts=max_attempts,
            dead_letters=dead_letters, notify=False if poll else None, max_message_size=stream.max_size,
        ) as queue:  # fmt: skip
            output = Output()
            with output.noticing_the_reader():
                while number is None or meter.messages < number:
                    try:
                        delivery = await queue.receive(timeout if follow else 0)
                    except QueueEmptyError:
                        if follow:
                            raise
                        break
                    except QueueClosedError:
                        if number is not None and follow:
                            raise
                        break
                    if discard:
                        await delivery.ack()
                        if delivery.put_at < newest and not delivery.redelivered:
                            complain(f"apressure: {delivery.id} came after one of {newest}")
                        newest = max(newest, delivery.put_at)
                    else:
                        await _write(delivery, output, framing, lease)
                    meter.add(1, len(delivery.raw))
    if discard and common.json:
        print_json({"name": name, "deleted": meter.messages, "bytes": meter.bytes})


async def _write(delivery: FileDelivery[bytes], output: Output, framing: Framing, lease: float) -> None:
    """Write an item and acknowledge it, or give it back; its lease is renewed for as long as the reader takes."""
    writing: asyncio.Task[None] | None = None
    try:
        writing = asyncio.ensure_future(output.write_item(delivery.raw, framing))
        while not writing.done():
            await asyncio.wait((writing,), timeout=lease / 3)
            if not writing.done():
                await delivery.extend()
        await writing
    except BaseException:
        if writing is not None:
            writing.cancel()
        try:
            await delivery.nack()
        except LeaseLostError:
            complain(f"apressure: the item {delivery.id} took longer to write than its lease: others get it, too")
        raise
    await delivery.ack()


async def give_back(common: Common, name: Name, directory: Node = Path(), poll: Poll = False) -> None:
    """Give back all items in flight, those of consumers that work included, instead of waiting for their leases."""
    async with FileQueue(name, directory=directory, notify=False if poll else None) as queue:
        done = await queue.give_back_in_flight()
    answer({"name": name, "given_back": done}, f"gave back {done} in {name}", as_json=common.json)


def _chunks(items: Iterator[Any]) -> Iterable[tuple[Any, ...]]:
    while chunk := tuple(itertools.islice(items, _CHUNK)):
        yield chunk
