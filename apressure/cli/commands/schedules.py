"""`apressure schedules`: what queues put at certain times."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from apressure import Schedule
from apressure.cli import exits
from apressure.cli.asking import must_exist, told
from apressure.cli.options import Address, Addresses, Common, Pattern, complain, option
from apressure.cli.running import execute
from apressure.cli.show import answer, plain, print_json, print_rows, printable
from apressure.cli.streams.texts import message_of, text_of
from apressure.concurrency.signals import listening
from apressure.core.schedules import UNAVAILABLE
from apressure.exceptions import ScheduleDoesNotExistError
from apressure.queue_addresses import QueueAddress
from apressure.service.scheduling import drive

Schedules = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


async def ls(common: Common, queues: Addresses = None, pattern: Pattern = False) -> None:
    """List the schedules of queues.

    The columns are the queue, the name, when it puts its item, the next time, the last time, how many it has put, and
    the item.
    """
    listed: list[tuple[QueueAddress, Schedule, bytes]] = []
    named = queues or []
    async with common.finder() as finder:
        for address in () if pattern else map(common.read, named):
            async with finder.open(address) as opened:
                listed += (found := await _schedules_of(address, opened))
                if not found:
                    await must_exist(opened)
        for asked in named if pattern else () if named else ["*"]:
            for address in await finder.find(asked):
                try:
                    async with finder.open(address) as opened:
                        listed += await _schedules_of(address, opened)
                except UNAVAILABLE as error:
                    if not finder.may_be_hidden(error, address, asked):
                        complain(f"apressure: {printable(str(address))}: {exits.message_of(error)}")
    columns = ("queue", "name", "when", "next", "last", "count", "item")
    if common.json:
        print_json([{"queue": str(address), **_as_dict(schedule, item)} for address, schedule, item in listed])
    else:
        print_rows(columns, [_cells(*one) for one in listed], whole=("next", "last"))


async def _schedules_of(address: QueueAddress, queue: Any) -> list[tuple[QueueAddress, Schedule, bytes]]:
    """Return the schedules of a queue, each with its item as text."""
    text = text_of(address)
    return [(address, schedule, text(schedule.raw)) for schedule in await queue.schedules()]


async def every(
    common: Common,
    queue: Address,
    name: Schedules,
    when: Annotated[
        str,
        typer.Argument(
            metavar="WHEN",
            help="An expression of cron, such as '0 9 * * mon-fri', or the seconds from one time to the next.",
            show_default=False,
        ),
    ],
    item: Annotated[str, typer.Argument(metavar="ITEM", help="What it puts.", show_default=False)],
    timezone: Annotated[str, option("timezone", "Whose times of day they are, such as Europe/Berlin.", "ZONE")] = "UTC",
    missed: Annotated[
        str, option("missed", "What comes of times at which nothing drove it: none, one or all are put.", "WHICH")
    ] = "one",
    parse: Annotated[bool, option("parse", "Read the item as JSON: tasks take it for a string otherwise.")] = False,
    create: Annotated[bool, option("create", "Create the queue if it does not exist.")] = False,
) -> None:  # fmt: skip
    """Have a queue put an item at certain times. A schedule of the same name becomes this one."""
    address = common.read(queue)
    data = message_of(address, parse)(os.fsencode(item))
    async with common.open(address) as opened:
        if create:
            await opened.create(exist_ok=True)
        schedule = await opened.every(name, _number_or_text(when), data, timezone=timezone, missed=missed)
    text = f"{name} of {address}: next at {_time(schedule.next, schedule.timezone)}"
    answer(told(address, **_as_dict(schedule, text_of(address)(schedule.raw))), text, as_json=common.json)


@contextlib.asynccontextmanager
async def _opened(common: Common, address: QueueAddress) -> AsyncIterator[Any]:
    """Open a queue. Where a schedule is missing since the queue is, say that."""
    async with common.open(address) as queue:
        try:
            yield queue
        except ScheduleDoesNotExistError:
            await must_exist(queue)
            raise


async def pause(common: Common, queue: Address, name: Schedules) -> None:
    """Pause a schedule. What it would have put meanwhile is not put later."""
    address = common.read(queue)
    async with _opened(common, address) as opened:
        changed = await opened.pause_schedule(name)
    _tell(common, address, name, "paused" if changed else "is paused already", paused=True, changed=changed)


async def resume(common: Common, queue: Address, name: Schedules) -> None:
    """Go on with a schedule, from its next time on."""
    address = common.read(queue)
    async with _opened(common, address) as opened:
        changed = await opened.resume_schedule(name)
    _tell(common, address, name, "resumed" if changed else "is not paused", paused=False, changed=changed)


async def run(common: Common, queue: Address, name: Schedules) -> None:
    """Put a schedule's item now, beside its times."""
    address = common.read(queue)
    async with _opened(common, address) as opened:
        await opened.run_schedule(name)
    _tell(common, address, name, "has put its item")


async def delete(common: Common, queue: Address, name: Schedules) -> None:
    """Delete a schedule. What it has put stays in the queue."""
    address = common.read(queue)
    async with _opened(common, address) as opened:
        await opened.delete_schedule(name)
    _tell(common, address, name, "deleted")


def run_forever(
    common: Common,
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE…", help="The queues.", show_default=False)],
) -> None:
    """Drive the schedules of queues until a signal comes. Every service of a queue does so anyway."""
    execute(common, _drive(common, queues), signals=())


async def _drive(common: Common, queues: list[str]) -> None:
    task = asyncio.current_task()
    received: list[int] = []
    assert task is not None

    def stop(signum: int) -> None:
        received.append(signum)
        task.cancel()

    try:
        with listening((SIGINT, SIGTERM, SIGHUP), stop):
            async with contextlib.AsyncExitStack() as stack:
                opened = [await stack.enter_async_context(common.open(common.read(queue))) for queue in queues]
                for queue in opened:
                    await must_exist(queue)
                await asyncio.gather(*(drive(queue, for_ever=True) for queue in opened))
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()


def _tell(common: Common, address: QueueAddress, name: str, what: str, **more: Any) -> None:
    text = f"{printable(name)} of {address}: {what}"
    answer(told(address, schedule=name, **more), text, as_json=common.json)


def _number_or_text(when: str) -> str | float:
    try:
        return float(when)
    except ValueError:
        return when


def _cells(address: QueueAddress, schedule: Schedule, item: bytes) -> tuple[str, ...]:
    when = plain(schedule.when) if isinstance(schedule.when, str) else f"{schedule.when:g} s"
    when += "" if schedule.timezone == "UTC" else f" {schedule.timezone}"
    due = "paused" if schedule.paused else _time(schedule.next, schedule.timezone)
    last = _time(schedule.last, schedule.timezone)
    text = printable(item[:40].decode(errors="replace"))
    return printable(str(address)), printable(schedule.name), when, due, last, str(schedule.count), text


def _time(moment: float | None, timezone: str) -> str:
    if moment is None:
        return "-"
    return datetime.fromtimestamp(moment, ZoneInfo(timezone)).isoformat(timespec="seconds")


def _as_dict(schedule: Schedule, item: bytes) -> dict[str, Any]:
    moments = {
        key: None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()
        for key, moment in (("next", schedule.next), ("last", schedule.last))
    }
    return {
        "schedule": schedule.name, "when": schedule.when, "timezone": schedule.timezone, "missed": schedule.missed,
        **moments, "count": schedule.count, "paused": schedule.paused, "item": item.decode(errors="backslashreplace"),
    }  # fmt: skip
