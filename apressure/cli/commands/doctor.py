"""`apressure doctor`: prints what `apressure.recovery` finds and repairs, and which batches Spark has taken."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from apressure import AsyncQueue, Client, recovery
from apressure.cli.asking import look, told
from apressure.cli.exits import Exit, UsageError, message_of
from apressure.cli.options import Common, Interval, complain, option, seconds_between
from apressure.cli.show import print_json, printable
from apressure.connection.settings import Settings
from apressure.core.workers import KEY_SCHEMA
from apressure.exceptions import QueueDoesNotExistError, ServerError
from apressure.monitor.checkup import examine, with_notes
from apressure.queue_addresses import QueueAddress
from apressure.spark import sealed_batches

_HOLDER: Final = "With --repair: give back the roles of this client. Make sure that the client is dead."
_GIVE_BACK: Final = "Put back the messages that the Spark query of this group has taken and will not finish."


async def doctor(
    common: Common,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="The queue: orders, events:orders, …", show_default=False),
    ] = None,
    everything: Annotated[
        bool, option("all", "Examine all queues of the server, and the remains of deleted AsyncQueues.")
    ] = False,
    repair: Annotated[bool, option("repair", "Repair what can be repaired, and print each repair.")] = False,
    holder: Annotated[str | None, option("holder", _HOLDER, "NAME", shown=False)] = None,
    give_back: Annotated[str | None, option("give-back", _GIVE_BACK, "GROUP", shown=False)] = None,
    watch: Annotated[bool, option("watch", "Repair continuously, until Ctrl-C.")] = False,
    interval: Interval = None,
) -> None:
    """Find out what is wrong with a queue, and repair it with --repair.

    Only an AsyncQueue needs repairs by hand. Each client that uses a queue of another kind repairs it.
    """
    _check(queue, everything, repair, holder, watch)
    seconds = seconds_between(interval, watch)
    if give_back is not None and (queue is None or watch):
        raise UsageError("--give-back needs the name of a queue, and excludes --watch")
    address = None if queue is None else common.read(queue)
    if address is not None and address.kind != "queue":
        if holder is not None or give_back is not None or watch:
            raise UsageError(
                f"--holder, --give-back and --watch are for an AsyncQueue; clients repair {address} while they use it"
            )
        async with common.open(address) as opened:
            _print(
                common, address, recovery.Repair(address.name, (), await examine(address, opened, await look(opened)))
            )
        return
    async with common.client(None if address is None else address.url) as client:
        if watch:
            target = client if address is None else AsyncQueue(address.name, client=client)
            if isinstance(target, AsyncQueue) and not await target.exists():
                raise QueueDoesNotExistError(f"the queue {target.name!r} does not exist", name=target.name)
            await recovery.watch(target, seconds, lambda done: _print(common, _address(done.name), done, briefly=True))
            return
        names = await recovery.find(client) if address is None else [address.name]
        well = await _examine(common, client, names, address is not None, repair, holder, give_back)
    if address is None:
        others = await _examine_others(common)
        well = well and others is not False
        if not names and others is None and not common.json and sys.stdout.isatty():
            _print_text(["no queues"])
    if not well:
        raise typer.Exit(int(Exit.ERROR))


def _address(name: str) -> QueueAddress:
    return QueueAddress("queue", name)


async def _examine_others(common: Common) -> bool | None:
    """Examine the queues of events and of tasks. Returns whether all are healthy; None if there is none."""
    well: bool | None = None
    async with common.finder() as finder:
        for address in await finder.find("*"):
            if address.kind == "queue":
                continue
            try:
                async with finder.open(address) as opened:
                    report = await examine(address, opened, await look(opened))
            except QueueDoesNotExistError:
                continue  # it has been deleted meanwhile
            except (ServerError, ValueError) as error:
                if finder.may_be_hidden(error, address, "*"):
                    continue
                well = False
                complain(f"apressure: {printable(str(address))}: {message_of(error)}")
                continue
            well = well is not False
            _print(common, address, recovery.Repair(address.name, (), report))
    return well


_OF_A_HOLDER = ("expired_lease", "leased", "stuck_role")


def _check(name: str | None, everything: bool, repair: bool, holder: str | None, watch: bool) -> None:
    if (name is None) != everything:
        raise UsageError("give the name of a queue, or --all" + (", not both" if everything else ""))
    if holder is not None and not repair:
        raise UsageError("--holder needs --repair: give both options")
    if repair and watch:
        raise UsageError("--watch repairs by itself: give either --repair or --watch")


async def _examine(
    common: Common, client: Client, names: Iterable[str], alone: bool, repair: bool, holder: str | None,
    give_back: str | None,
) -> bool:  # fmt: skip
    """Examine AsyncQueues one after the other, and return whether all of them are healthy at the end.

    `alone`: the one that was named, whose errors end the command.
    """
    well, matched = True, holder is None
    for one in names:
        queue = AsyncQueue(one, client=client)
        try:
            if repair:
                result = await recovery.repair(queue, holder)
            else:
                result = recovery.Repair(one, (), await recovery.examine(queue))
            matched = matched or any(
                action.kind in _OF_A_HOLDER and (action.holder or "") == holder for action in result.done
            )
            result = await _with_batches(result, client.settings, give_back)
            if result.report.exists:
                result = dataclasses.replace(result, report=await with_notes(_address(one), queue, result.report))
        except (ServerError, ValueError) as error:
            if alone:
                raise
            well = False  # and go on with the other queues
            complain(f"apressure: {printable(one)}: {message_of(error)}")
            continue
        if alone and not (result.report.exists or result.report.findings or result.done):
            raise QueueDoesNotExistError(f"the queue {one!r} does not exist, and has left no keys", name=one)
        well = well and result.report.healthy
        _print(common, _address(one), result)
    if not matched:
        well = False
        complain(
            f"apressure: gave back no role of {printable(repr(holder))}: no role has this holder, or the holder is "
            "working. Give the exact name that the doctor shows, of a client that is dead."
        )
    return well


def _print(common: Common, address: QueueAddress, repair: recovery.Repair, *, briefly: bool = False) -> None:
    if common.json:
        print_json(_as_dict(address, repair))
    elif sys.stdout.isatty():
        _print_text(_for_people(address, repair, briefly))
    else:
        findings = () if briefly else repair.report.findings
        shown = _lines(str(address), repair, findings)
        sys.stdout.writelines("\t".join(map(printable, fields)) + "\n" for fields in shown)
    sys.stdout.flush()


def _lines(
    name: str, repair: recovery.Repair, findings: Iterable[recovery.Finding]
) -> list[tuple[str, ...]]:  # fmt: skip
    """Return lines for scripts: address, healthy or fault or note or repaired, kind, text, advice."""
    lines: list[tuple[str, ...]] = [(name, "repaired", action.kind, action.text) for action in repair.done]
    lines += [
        (name, "fault" if finding.fault else "note", finding.kind, finding.text, finding.advice) for finding in findings
    ]
    return lines or [(name, "healthy")]


def _for_people(address: QueueAddress, repair: recovery.Repair, briefly: bool) -> list[Any]:
    from rich.padding import Padding
    from rich.text import Text

    faults = len(repair.report.faults)
    state, style = ("no faults", "green") if not faults else (f"{faults} fault{'s' * (faults > 1)}", "red")
    shown: list[Any] = [Text.assemble((printable(str(address)), "bold"), "  ", (state, style))]
    if not briefly:
        shown[0].append(f"  key schema {KEY_SCHEMA}", "dim")
    shown += [
        Padding(Text.assemble(("repaired  ", "green"), printable(action.text)), (0, 0, 0, 2)) for action in repair.done
    ]
    for finding in () if briefly else repair.report.findings:
        mark = ("fault  ", "red") if finding.fault else ("note  ", "cyan")
        shown.append(Padding(Text.assemble(mark, printable(finding.text)), (0, 0, 0, 2)))
        if finding.advice:
            shown.append(Padding(Text(printable(finding.advice), style="dim"), (0, 0, 0, 4)))
    return shown


def _print_text(shown: Iterable[Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for one in shown:
        console.print(one)


def _as_dict(address: QueueAddress, repair: recovery.Repair) -> dict[str, Any]:
    report = repair.report
    return {
        **told(address),
        "address": str(address),
        "key_schema": KEY_SCHEMA,
        "exists": report.exists,
        "healthy": report.healthy,
        "repaired": [
            {"kind": action.kind, "role": action.role, "holder": action.holder, "text": action.text}
            for action in repair.done
        ],
        "findings": [
            {
                "kind": finding.kind,
                "fault": finding.fault,
                "repair": finding.repair,
                "role": finding.role,
                "holder": finding.holder,
                "text": finding.text,
                "advice": finding.advice,
            }
            for finding in report.findings
        ],
    }


async def _with_batches(result: recovery.Repair, settings: Settings, give_back: str | None) -> recovery.Repair:
    """Add what Spark has in flight to a result, after giving back the batches of a group.

    Raises:
        QueueDoesNotExistError: There is no queue to give them back to.
        ValueError: The name of the group is invalid.
    """
    done = result.done
    if give_back is not None:
        moved = await asyncio.to_thread(sealed_batches.give_back, settings, result.name, give_back)
        text = f"put {moved} messages of the group {give_back!r} back into the queue, first in line"
        done = (*done, recovery.Action("spark_batches", text))
    found = await asyncio.to_thread(sealed_batches.uncommitted, settings, result.name)
    findings = (*result.report.findings, *(_finding(result.name, one) for one in found))
    return recovery.Repair(result.name, done, dataclasses.replace(result.report, findings=findings))


def _finding(name: str, taken: sealed_batches.GroupBatches) -> recovery.Finding:
    age = "" if taken.seconds is None else f"; the oldest was taken {taken.seconds:.0f} s ago"
    command = f"apressure doctor {shlex.quote(str(_address(name)))} --give-back {shlex.quote(taken.group)}"
    return recovery.Finding(
        "spark_batches",
        False,
        "by hand",
        f"{taken.messages} messages are in flight in {taken.batches} batch{'es' * (taken.batches != 1)} of the "
        f"Spark query of the group {taken.group!r}{age}. They wait for the query without a time limit.",
        "If the query has finished, and will not be started again: apressure.spark.forget_group forgets its group, and "
        f"nothing comes back. If it was given up: {command} puts them back, first in line. What it has written already "
        "comes again, and its checkpoint becomes invalid.",
    )
