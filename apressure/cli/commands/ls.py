"""`apressure ls`: lists the queues."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import typer

from apressure.cli import figures
from apressure.cli.asking import look
from apressure.cli.exits import Exit, message_of
from apressure.cli.figures import Found
from apressure.cli.options import Addresses, Common, Interval, Pattern, Watch, complain, seconds_between
from apressure.cli.show import print_json, printable, show_view
from apressure.exceptions import QueueDoesNotExistError, ServerError
from apressure.queue_addresses import QueueAddress

if TYPE_CHECKING:
    from rich.console import RenderableType


async def ls(
    common: Common,
    queues: Addresses = None,
    pattern: Pattern = False,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """List the queues of every kind.

    Into a pipe: one line for each, with address, length, bound and state, separated by tabs. `--pattern 'events:*'`
    lists those of one kind, and `--pattern 'files:spool/*'` those in a directory.
    """
    seconds = seconds_between(interval, watch)
    listing = _Listing(common, queues or [], pattern=pattern)
    async with listing.finder:
        if sys.stdout.isatty() and not common.json:
            await _on_a_terminal(listing, seconds if watch else None)
        else:
            while True:
                found = await listing.look()
                if common.json:
                    print_json([figures.as_dict(one) for one in found])
                else:
                    sys.stdout.write("".join(figures.queue_line(one) + "\n" for one in found))
                    sys.stdout.flush()
                if not watch:
                    break
                await asyncio.sleep(seconds)
    if listing.damaged:
        raise typer.Exit(int(Exit.ERROR))


class _Listing:
    """Looks at the queues to list.

    Args:
        common: The options of all commands.
        queues: Addresses, or patterns; none for all queues of the server.
        pattern: They are patterns.

    Attributes:
        finder: Finds and opens them.
        damaged: The addresses of queues that cannot be looked at.
    """

    def __init__(self, common: Common, queues: list[str], *, pattern: bool) -> None:
        self.finder = common.finder()
        self.damaged: set[str] = set()
        self._patterns = queues if pattern else [] if queues else ["*"]
        self._named = [common.read(queue) for queue in queues if not pattern]

    async def look(self) -> list[Found]:
        """Return what there is now."""
        looked = [(address, await self._statistics_of(address)) for address in self._named]
        for pattern in self._patterns:
            for address in await self.finder.find(pattern):
                try:
                    looked.append((address, await self._statistics_of(address)))
                except QueueDoesNotExistError:
                    pass  # it has been deleted meanwhile
                except (ServerError, ValueError) as error:
                    if self.finder.may_be_hidden(error, address, pattern):
                        continue
                    if str(address) not in self.damaged:
                        complain(f"apressure: {printable(str(address))}: {message_of(error)}")
                    self.damaged.add(str(address))
        return looked

    async def _statistics_of(self, address: QueueAddress) -> Any:
        async with self.finder.open(address) as queue:
            return await look(queue)


async def _on_a_terminal(listing: _Listing, seconds: float | None) -> None:
    """Show the table once, or again after so many seconds."""

    async def view() -> RenderableType:
        return figures.queues_table(await listing.look())

    await show_view(view, seconds)
