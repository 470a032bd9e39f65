"""`apressure doctor`: what is wrong with queues, in plain words, and mending it.

It tells what `apressure.recovery` finds and does, and decides nothing itself.
"""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from apressure import AsyncQueue, Client, recovery
from apressure.cli import batches
from apressure.cli.exits import Exit, UsageError, message_of
from apressure.cli.options import Common, Interval, Json, Prefix, Url, complain, execute
from apressure.cli.show import printable
from apressure.exceptions import QueueDoesNotExistError, ServerError


def doctor(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The queue's name.", show_default=False)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All queues under the prefix, and what is left of others.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended, and say what was done.")] = False,
    holder: Annotated[
        str | None,
        typer.Option(
            "--holder",
            metavar="NAME",
            help="With --repair: the holder of a stuck role, of which you know that it is dead.",
            show_default=False,
        ),
    ] = None,
    give_back: Annotated[
        str | None,
        typer.Option(
            "--give-back",
            metavar="GROUP",
            help="Put back what the Spark query of this group has taken and will not come back for.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Heal again and again, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Say what is wrong with a queue; mend it with --repair."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        _check(name, everything, repair, holder, watch)
        source = context.get_parameter_source("interval")
        if not watch and source is not None and source.name != "DEFAULT":
            raise UsageError("--interval says how often --watch looks: give both")
        if give_back is not None and (name is None or watch):
            raise UsageError("--give-back is for one queue, and not for --watch")
        async with common.client() as client:
            if watch:
                target = client if name is None else AsyncQueue(name, client=client)
                if isinstance(target, AsyncQueue) and not await target.exists():
                    raise QueueDoesNotExistError(f"the queue {name!r} does not exist", name=target.name)
                await _watch(common, target, interval)
            elif not await _see(common, client, name, repair, holder, give_back):
                raise typer.Exit(int(Exit.ERROR))

    execute(common, command())


def _check(name: str | None, everything: bool, repair: bool, holder: str | None, watch: bool) -> None:
    if (name is None) != everything:
        raise UsageError("give a queue's name, or --all" + (", not both" if everything else ""))
    if holder is not None and not repair:
        raise UsageError("--holder names whose role --repair gives back: give both")
    if repair and watch:
        raise UsageError("--watch heals by itself what needs no human: give either --repair or --watch")


async def _see(
    common: Common, client: Client, name: str | None, repair: bool, holder: str | None, give_back: str | None
) -> bool:
    """Look at queues, one after the other, and return whether nothing is wrong with them any more."""
    well = True
    names = await recovery.find(client) if name is None else [name]
    for one in names:
        queue = AsyncQueue(one, client=client)
        try:
            if repair:
                result = await recovery.repair(queue, holder)
            else:
                result = recovery.Repair(one, (), await recovery.examine(queue))
            if holder is not None and not any(action.kind == "stuck_role" for action in result.done):
                complain(f"apressure: {printable(one)}: {printable(repr(holder))} holds no stuck role here")
            result = await batches.added(result, client.settings, give_back)
        except (ServerError, ValueError) as error:
            if name is not None:
                raise
            well = False  # the others can be looked at all the same
            complain(f"apressure: {printable(one)}: {message_of(error)}")
            continue
        if name is not None and not (result.report.exists or result.report.findings or result.done):
            raise QueueDoesNotExistError(f"the queue {one!r} does not exist, and nothing is left of one", name=one)
        well = well and result.report.healthy
        _tell(common, result)
    if not names and not common.json and sys.stdout.isatty():
        _print_text(["no queues"])
    return well


async def _watch(common: Common, target: Client | AsyncQueue[bytes], interval: float) -> None:
    await recovery.watch(target, interval, lambda repair: _tell(common, repair, briefly=True))


def _tell(common: Common, repair: recovery.Repair, *, briefly: bool = False) -> None:
    if common.json:
        sys.stdout.write(jsons.dumps(_as_dict(repair)) + "\n")
    elif sys.stdout.isatty():
        _print_text(_for_people(repair, briefly))
    else:
        findings = () if briefly else repair.report.findings
        sys.stdout.writelines("\t".join(map(printable, fields)) + "\n" for fields in _lines(repair, findings))
    sys.stdout.flush()


def _lines(repair: recovery.Repair, findings: Iterable[recovery.Finding]) -> list[tuple[str, ...]]:
    """For scripts: name, what it is, kind, text, advice."""
    lines: list[tuple[str, ...]] = [(repair.name, "repaired", action.kind, action.text) for action in repair.done]
    lines += [
        (repair.name, "fault" if finding.fault else "note", finding.kind, finding.text, finding.advice)
        for finding in findings
    ]
    return lines or [(repair.name, "healthy")]


def _for_people(repair: recovery.Repair, briefly: bool) -> list[Any]:
    from rich.padding import Padding
    from rich.text import Text

    faults = len(repair.report.faults)
    state, style = ("healthy", "green") if not faults else (f"{faults} fault{'s' * (faults > 1)}", "red")
    shown: list[Any] = [Text.assemble((printable(repair.name), "bold"), "  ", (state, style))]
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


def _as_dict(repair: recovery.Repair) -> dict[str, Any]:
    report = repair.report
    return {
        "name": report.name,
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
