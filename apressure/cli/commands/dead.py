"""`apressure dead`: shows dead letters, and why each is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from apressure import DeadLetter
from apressure.cli.asking import must_exist
from apressure.cli.exits import UsageError
from apressure.cli.letters import Which
from apressure.cli.options import Address, Common, check_source, complain, option
from apressure.cli.show import print_json, print_rows, printable, start_of
from apressure.dead_letters import MOST_BYTES, moment_of
from apressure.exceptions import QueueDoesNotExistError
from apressure.monitor.finding import Finder, bare_name
from apressure.queue_addresses import Kind, QueueAddress

COLUMNS: Final = ("id", "when", "attempts", "error", "item")

_SUFFIXES: Final[dict[Kind, str]] = {"queue": ":dead", "files": ".dead"}
"""How the names of dead-letter queues end, where the kind has them; the others keep dead letters in the queue."""

Source = Annotated[
    str | None,
    option(
        "from",
        "The name of the dead-letter queue of an AsyncQueue or a directory.",
        "DEAD",
        shown="NAME:dead or NAME.dead",
    ),
]
_SHOWN: Final = 100

Limit = Annotated[int, option("limit", "Show the N oldest ones.", "N", min=1)]


async def dead(
    common: Common, queue: Address, source: Source = None, which: Which = Which(), limit: Limit = _SHOWN,
) -> None:  # fmt: skip
    """Show dead letters and why each is one, the oldest first. Nothing is moved.

    If there are more, standard error says so.

    The columns are the id (for `requeue --id`), the time, the attempts, the error, and the start of the item. Without a
    result, the exit code is 0, too.
    """
    address = common.read(queue)
    search = which.search()
    letters: list[DeadLetter[bytes]] = []
    cursor = None
    async with common.finder() as finder, finder.open(address) as opened:
        while len(letters) < limit:
            page = await opened.find_dead_letters(search, cursor=cursor, **from_source(address, source))
            letters += page.letters
            cursor = page.cursor
            if cursor is None:
                break
        if not letters and not page.total:
            await check_name(finder, address, source, "dead")
    show(letters[:limit], as_json=common.json)
    if (cursor is not None or len(letters) > limit) and (limit == _SHOWN or sys.stderr.isatty()):
        complain(f"apressure: these are the oldest {limit:,} of {page.total:,} dead letters: --limit shows more")


def from_source(address: QueueAddress, source: str | None) -> dict[str, str]:
    """Return the argument for `--from`, and none without it."""
    if source is None:
        return {}
    check_source(address, "--from")
    return {"source": source}


def letters_of(address: QueueAddress, source: str | None = None) -> QueueAddress | None:
    """Return where the dead letters of a queue are, if they are in a queue of their own."""
    if address.kind not in _SUFFIXES:
        return None
    if source is None:
        return address._replace(name=address.name + _SUFFIXES[address.kind])
    beside = str(Path(address.name).parent / source) if address.kind == "files" else source
    return address._replace(name=beside)


def origin_of(address: QueueAddress) -> QueueAddress:
    """Return the queue that a dead-letter queue belongs to, by its name; of any other queue itself."""
    name = address.name.removesuffix(_SUFFIXES.get(address.kind, ""))
    return address._replace(name=name) if name else address


async def count(finder: Finder, opened: Any, address: QueueAddress, source: str | None = None) -> int:
    """Return how many dead letters a queue has."""
    letters = letters_of(address, source)
    if letters is None:
        found: int = (await opened.statistics()).dead_letters
        return found
    async with finder.open(letters) as dead_letters:
        try:
            found = await dead_letters.qsize()
        except QueueDoesNotExistError:
            return 0
        return found


async def check_name(finder: Finder, address: QueueAddress, source: str | None, command: str) -> None:
    """Raise if there are no dead letters since a name is wrong.

    Raises:
        UsageError: It is the name of a dead-letter queue; the message says what to give to the command instead.
        QueueDoesNotExistError: The queue does not exist, or what `--from` names.
    """
    letters = letters_of(address, source)
    if letters is not None:
        async with finder.open(letters) as opened:
            if source is not None:
                await must_exist(opened)
            if await opened.exists():
                return
        suffix = _SUFFIXES[address.kind]
        name = str(address).removesuffix(suffix)
        if name not in (str(address), "", "files:"):
            raise UsageError(
                f"{address} is a dead-letter queue: give the name of the queue that its items come from, `apressure "
                f"{command} {name}`, or any other one, `apressure {command} NAME --from {bare_name(address)}`"
            )
    async with finder.open(address) as opened:
        await must_exist(opened)


def show(letters: Sequence[DeadLetter[bytes]], *, as_json: bool) -> None:
    """Print dead letters: as JSON, as a table for people, or as lines with tabs between the columns."""
    if as_json:
        print_json([as_dict(letter) for letter in letters])
    else:
        print_rows(COLUMNS, map(cells, letters))


def as_dict(letter: DeadLetter[bytes]) -> dict[str, Any]:
    """Return a dead letter for `--json`. Bytes that are no text are escaped."""
    error = letter.error
    return {
        "id": letter.id,
        "when": _time(letter),
        "attempts": letter.attempts,
        "error": None if error is None else {"type": error.type, "message": error.message, "attempt": error.attempt},
        "size": len(letter.raw),
        "start": letter.raw[:MOST_BYTES].decode(errors="backslashreplace"),
    }


def cells(letter: DeadLetter[bytes]) -> tuple[str, ...]:
    """Return what a table says of a dead letter, one text for each of `COLUMNS`."""
    return (
        letter.id,
        _time(letter) or "-",
        "-" if letter.attempts is None else str(letter.attempts),
        printable(letter.reason),
        start_of(letter.raw),
    )


def _time(letter: DeadLetter[bytes]) -> str | None:
    moment = moment_of(letter)
    return None if moment is None else moment.isoformat(timespec="milliseconds")
