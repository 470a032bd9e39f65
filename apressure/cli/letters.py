"""Which dead letters a command is about, and how it works on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import typer

from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import complain, moment_of, option
from apressure.cli.running import Remains
from apressure.cli.show import printable
from apressure.cli.streams.meter import Meter
from apressure.core.searching import DeadLetterSearch
from apressure.exceptions import PressureError
from apressure.monitor.bulk import Bulk, Work, act_of
from apressure.queue_addresses import QueueAddress

Rate = Annotated[
    float | None,
    option("rate", "Work on at most N dead letters a second.", "N", shown="no limit", min=0.001),
]


@dataclasses.dataclass(frozen=True)
class Which:
    """The options that say which dead letters a command is about."""

    ids: Annotated[
        list[str] | None,
        option("id", "Only the dead letter that `apressure dead` shows with this id.", "ID", shown="all"),
    ] = None
    error: Annotated[
        str | None,
        option("error", "Only those whose reason contains this text, in upper or lower case.", "TEXT", shown="any"),
    ] = None
    text: Annotated[str | None, option("text", "Only those whose item contains this text.", "TEXT", shown="any")] = None
    since: Annotated[
        datetime | None,
        option("since", "Only those that became dead letters then or later.", "TIME", shown="any", parser=moment_of),
    ] = None
    until: Annotated[
        datetime | None,
        option("until", "Only those that became dead letters before.", "TIME", shown="any", parser=moment_of),
    ] = None

    def search(self) -> DeadLetterSearch:
        """Return what they look for."""
        return DeadLetterSearch(
            ids=self.ids or None, error=self.error or "", text=self.text or "", since=self.since, until=self.until
        )


class Job(NamedTuple):
    """What a command does with the dead letters that a search finds.

    Attributes:
        work: What it does.
        search: Which ones.
        source: The argument for where they are.
        rate: How many a second at most; None for no limit.
        most: How many at most; None for all.
        timeout: Seconds to wait for room or a role; None to wait for ever.
        meter: Counts them.
        target: The queue to which they move.
    """

    work: Work
    search: DeadLetterSearch
    source: Mapping[str, str]
    rate: float | None
    most: int | None
    timeout: float | None
    meter: Meter
    target: Any = None

    @property
    def ids(self) -> list[str] | None:
        """Their ids, if nothing else says which ones: then one operation of the queue does it."""
        ids = list(self.search.ids or ())
        if ids and self.most is not None:
            raise UsageError("give either --id or --max, not both")
        return ids if ids and self.rate is None and self.search == DeadLetterSearch(ids=ids) else None

    async def run(self, queue: Any) -> tuple[str, ...]:
        """Do it. Returns the ids that no dead letter has."""
        if (ids := self.ids) is not None:
            self.meter.expect(len(ids))
            try:
                done = await act_of(queue, self.work, self.target)(ids=ids, timeout=self.timeout, **self.source)
            except PressureError as error:
                self.meter.add(error.accepted, 0)
                raise
            self.meter.add(done, 0)
            return tuple(done.not_found)
        bulk = Bulk(
            queue, self.work, self.search, rate=self.rate, most=self.most, timeout=self.timeout, source=self.source,
            on_step=lambda done: self.meter.add(done, 0), target=self.target,
        )  # fmt: skip
        await bulk.run()
        return tuple(sorted(bulk.missing))


def told_before(meter: Meter, did: str, figure: str) -> Remains | None:
    """Return what a command that ends early says of those that it `did` something to before."""
    if not meter.messages:
        return None
    return Remains(f"{meter.messages} items were {did} before", {figure: meter.messages})


def complain_of(not_found: Iterable[str], address: QueueAddress) -> None:
    """Say which ids no dead letter has.

    Raises:
        typer.Exit: There are some.
    """
    for one in not_found:
        complain(f"apressure: no dead letter of {printable(str(address))} has the id {printable(one)!r}")
    if not_found:
        raise typer.Exit(int(Exit.ERROR))
