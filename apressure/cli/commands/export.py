"""`apressure export`: writes what is in a queue to standard output, and takes nothing."""

from __future__ import annotations

import json as jsons
import sys
from collections import Counter
from typing import Any, Final

from apressure.cli.asking import must_exist
from apressure.cli.options import Address, Common, Progress, complain
from apressure.cli.show import printable
from apressure.cli.streams import archive
from apressure.cli.streams.meter import Meter, is_shown
from apressure.cli.streams.pipes import Output
from apressure.core.statistics import BoundedStatistics
from apressure.exceptions import PressureError

ORDER: Final = ("in_flight", "waiting", "parked", "delayed")
"""The places of a queue in the order in which their messages would be delivered."""

_PAGE: Final = 1000
_LARGEST: Final = 1 << 29


class UnreadableError(PressureError):
    """Some messages could not be read, and are not in the file."""


async def export(common: Common, queue: Address, progress: Progress = None) -> None:
    """Write the messages, dead letters and settings of a queue to standard output, for `apressure import`.

    Nothing is taken: the queue stays as it is. For an exact copy, stop its producers, and pause it.
    """
    address = common.read(queue)
    output = Output()
    with Meter(f"export {address}", shown=is_shown(progress, busy=1)) as meter:
        async with common.open(address) as opened:
            await must_exist(opened)
            found = await opened.statistics()
            meter.expect(found.in_flight + found.length + found.delayed)
            writer = Writer(opened, output, meter, found)
            await output.write(archive.head(address, found))
            await writer.write_all()
    counts = writer.counts
    if common.json and sys.stderr.isatty():
        complain(jsons.dumps(counts))
    elif sys.stderr.isatty():
        complain("exported " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items()))
    if counts["in_flight"]:
        complain(
            f"apressure: {counts['in_flight']} of the messages are in flight: those who have them may still settle "
            "them, and an import puts them, too"
        )
    if writer.changed:
        complain(
            f"apressure: {printable(str(address))} changed meanwhile: for an exact copy, pause it and export again"
        )
    if writer.unreadable:
        raise UnreadableError(f"{writer.unreadable} messages could not be read, and are not in the file")


class Writer:
    """Writes the lines of a queue behind the first one.

    Args:
        queue: The queue.
        output: Where they go.
        meter: Counts the messages.
        found: What the queue had in it before.

    Attributes:
        counts: How many lines there are of each sort.
        changed: Messages came or went meanwhile, or from one place to another.
        unreadable: How many messages could not be read.
    """

    def __init__(self, queue: Any, output: Output, meter: Meter, found: BoundedStatistics) -> None:
        self.counts = Counter(dict.fromkeys((*ORDER, "dead", "schedules"), 0))
        self.changed = False
        self.unreadable = 0
        self._queue = queue
        self._output = output
        self._meter = meter
        self._found = found
        self._seen: Counter[str] = Counter()
        self._ids: set[str] = set()

    async def write_all(self) -> None:
        for planned in await self._queue.schedules():
            await self._write("schedules", archive.schedule(planned))
        for place in ORDER:
            await self._write_place(place)
        await self._write_dead()
        seen = self._seen["in_flight"], self._seen["waiting"] + self._seen["parked"], self._seen["delayed"]
        for found in (self._found, await self._queue.statistics()):
            self.changed |= seen != (found.in_flight, found.length, found.delayed)
        await self._output.write(archive.end(self.counts))

    async def _write_place(self, place: str) -> None:
        cursor, expected, seen = None, None, 0
        while True:
            page = await self._queue.browse(place, cursor=cursor, limit=_PAGE, most_bytes=_LARGEST)
            expected = page.total if expected is None else expected
            seen += len(page.messages)
            for message in page.messages:
                if message.id in self._ids:  # it was taken or given back between two pages
                    self.changed = True
                elif message.error:
                    self._leave_out(message.error)
                else:
                    await self._write(place, archive.message(place, message))
                    self._meter.add(1, message.size)
                    if message.id is not None:
                        self._ids.add(message.id)
            if (cursor := page.cursor) is None:
                self.changed |= seen != expected
                self._seen[place] = seen
                return

    async def _write_dead(self) -> None:
        cursor, expected, seen = None, None, 0
        while True:
            page = await self._queue.find_dead_letters(cursor=cursor, look=_PAGE)
            expected = page.total if expected is None else expected
            seen += page.looked
            for letter in page.letters:
                try:
                    letter.item  # noqa: B018 (raises why it cannot be read)
                except PressureError as error:
                    self._leave_out(str(error))
                else:
                    await self._write("dead", archive.letter(letter))
            if (cursor := page.cursor) is None:
                self.changed |= seen != expected
                return

    async def _write(self, what: str, line: bytes) -> None:
        await self._output.write(line)
        self.counts[what] += 1

    def _leave_out(self, why: str) -> None:
        self.unreadable += 1
        complain(f"apressure: a message was left out: {why}")
