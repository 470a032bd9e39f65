"""`apressure import`: puts what `apressure export` has written into a queue."""

from __future__ import annotations

from typing import Annotated

from apressure.cli.asking import command_for, told
from apressure.cli.options import Address, Common, Progress, Timeout, complain, option
from apressure.cli.running import Remains, execute
from apressure.cli.show import answer
from apressure.cli.streams.intake import Intake
from apressure.cli.streams.meter import Meter, is_shown
from apressure.cli.streams.pipes import Input, input_size


def import_(
    common: Common,
    queue: Address,
    skip: Annotated[
        int, option("skip", "Go on behind the first N lines, as an interrupted import says.", "N", min=0)
    ] = 0,
    bound: Annotated[
        int | None,
        option("bound", "How many items a new queue may hold; 0 for no limit.", "N", shown="as exported", min=0),
    ] = None,
    drop: Annotated[
        bool, option("drop", "Leave out what this kind of queue cannot keep, such as keys, instead of refusing.")
    ] = False,
    timeout: Timeout = None,
    progress: Progress = None,
) -> None:  # fmt: skip
    """Put what `apressure export` has written on standard input into a queue of any kind.

    It creates the queue if need be, and waits while it is full. Interrupted, it says how many lines are done.
    """
    address = common.read(queue)
    meter = Meter(f"import {address}", shown=is_shown(progress, busy=0), total_bytes=input_size())
    intake: Intake | None = None

    async def command() -> None:
        nonlocal intake
        with meter:
            async with common.open(address) as opened:
                intake = Intake(
                    queue=opened, address=address, meter=meter, skip=skip, bound=bound, drop=drop, timeout=timeout
                )
                await intake.read(Input())
        counts, dropped = intake.counts, intake.dropped
        messages = meter.messages
        text = f"imported {messages} messages, {counts['dead']} dead letters and {counts['schedules']} schedules"
        text += f" into {address}"
        if intake.before:
            text += f", which had {intake.before:,} messages before"
        if dropped:
            text += "; left out: " + ", ".join(f"{what} ({count})" for what, count in dropped.items())
        result = told(
            address, imported=messages, dead_letters=counts["dead"], schedules=counts["schedules"], dropped=dropped,
            before=intake.before, paused=intake.paused,
        )  # fmt: skip
        answer(result, text, as_json=common.json)
        if intake.paused and not common.json:
            complain(f"apressure: {address} is paused, as the exported queue was: `{command_for('resume', address)}`")

    def remains() -> Remains | None:
        if intake is None or not intake.done:
            return None
        text = f"{intake.done} lines are done: go on with --skip {intake.done}"
        return Remains(text, {"lines": intake.done})

    execute(common, command(), remains=remains)
