"""`apressure put`: puts the arguments, or the items on standard input, into a queue."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from apressure.cli.asking import told
from apressure.cli.exits import UsageError
from apressure.cli.options import (
    Address,
    Close,
    Common,
    Fsync,
    Items,
    Progress,
    Replicas,
    Stream,
    Timeout,
    durability_of,
    moment_of,
    option,
    seconds_of,
)
from apressure.cli.running import Remains, execute
from apressure.cli.show import print_json
from apressure.cli.streams.feed import Feeder
from apressure.cli.streams.framing import FramingError, decoder
from apressure.cli.streams.meter import Meter, is_shown
from apressure.cli.streams.pipes import Input, input_size
from apressure.cli.streams.texts import message_of
from apressure.queue_addresses import QueueAddress


def put(
    common: Common,
    queue: Address,
    items: Items = None,
    create: Annotated[bool, option("create", "Create the queue if it does not exist.")] = False,
    bound: Annotated[
        int | None,
        option("bound", "How many items the queue may hold, with --create; 0 for no limit.", "N", shown=False, min=0),
    ] = None,
    close: Close = False,
    stream: Stream = Stream(),
    timeout: Timeout = None,
    force: Annotated[bool, option("force", "Put items even if the queue is full. Only into an AsyncQueue.")] = False,
    delay: Annotated[Any, option("delay", "Consumers get the items after it.", "SECONDS", parser=seconds_of)] = None,
    at: Annotated[
        Any,
        option(
            "at",
            "Consumers get the items then: ISO 8601, in local time unless it names a zone, or seconds since 1970.",
            "TIME",
            parser=moment_of,
        ),
    ] = None,
    expires: Annotated[
        Any, option("expires", "After it the items become dead letters.", "SECONDS", parser=seconds_of)
    ] = None,
    key: Annotated[
        str | None, option("key", "Consumers handle the items of a key one after the other, in order.", "KEY")
    ] = None,
    cost: Annotated[
        int | None,
        option("cost", "For how many messages each item counts against the rate of the queue.", "N", shown="1", min=1),
    ] = None,
    dedup_id: Annotated[
        str | None,
        option("dedup-id", "Refuse the item if one was put with the same ID. For a single ITEM.", "ID"),
    ] = None,
    dedup_window: Annotated[
        Any,
        option("dedup-window", "Refuse repeats for so long; otherwise until it is done.", "SECONDS", parser=seconds_of),
    ] = None,
    replace: Annotated[
        bool, option("replace", "Put it in the place of the item with the same --dedup-id, while that waits.")
    ] = False,
    parse: Annotated[bool, option("parse", "Read the items as JSON: tasks take them for strings otherwise.")] = False,
    ids: Annotated[bool, option("ids", "Print the id of each item. The items of an AsyncQueue have none.")] = False,
    replicas: Replicas = 0,
    fsync: Fsync = False,
    progress: Progress = None,
) -> None:  # fmt: skip
    """Put items into a queue: the arguments, or each line of standard input.

    While the queue is full, the command waits and reads no more input, so the writer of the pipe waits, too.
    With --close it closes the queue after the last item, but not after an error or a signal.
    """
    address = common.read(queue)
    given = [os.fsencode(item) for item in items or []]
    shown = not given and is_shown(progress, busy=0)
    meter = Meter(f"put {address}", shown=shown, total_bytes=None if given else input_size())
    feeder: Feeder | None = None
    cut_short = False
    put_ids: list[str] = []

    def on_id(item_id: str) -> None:
        put_ids.append(item_id)
        if not common.json:
            sys.stdout.write(item_id + "\n")
            sys.stdout.flush()

    async def command() -> None:
        nonlocal feeder, cut_short
        framing = stream.framing()
        if bound is not None and not create:
            raise UsageError("--bound needs --create: give both options")
        _check(address, force, ids)
        options = _options(
            len(given) == 1, force=force or None, delay=delay, at=at, expires=expires, key=key,
            cost=cost, dedup_id=dedup_id, dedup_window=dedup_window, replace=replace or None,
        )  # fmt: skip
        convert = message_of(address, parse)
        sizes = {"max_message_size": max(stream.max_size, *map(len, given), 1)} if address.kind == "files" else {}
        with meter:
            async with common.open(address, durability=durability_of(address, replicas, fsync), **sizes) as opened:
                if create:
                    await opened.create(bound or 0, exist_ok=True)
                feeder = Feeder(
                    opened, meter, convert, timeout=timeout, on_id=on_id if ids else None, **options
                )  # fmt: skip
                if given:
                    await feeder.put(given)
                else:
                    try:
                        await feeder.put_stream(Input(), decoder(framing, limit=stream.max_size))
                    except FramingError:
                        cut_short = True
                        raise
                if close:
                    await opened.close(timeout)
        if common.json:
            result = told(address, put=meter.messages, bytes=meter.bytes, closed=close)
            print_json({**result, "ids": put_ids} if ids else result)

    def remains() -> Remains | None:
        # Items that were read and not put are lost when the command ends. For a single item the error says enough.
        if feeder is None or (len(given) == 1 and not feeder.unconfirmed):
            return None
        if feeder.unconfirmed:
            text = f"{meter.messages} items are in the queue, {feeder.unconfirmed} of them not confirmed"
            text += f"; {feeder.unput} items were read and not put" if feeder.unput else ""
            return Remains(text, {"put": meter.messages, "unconfirmed": feeder.unconfirmed, "not_put": feeder.unput})
        if not (feeder.unput or cut_short):
            return None
        if not feeder.unput:
            text = f"{meter.messages} items were put; this item and all after it were not"
            return Remains(text, {"put": meter.messages})
        text = f"{meter.messages} items were put; {feeder.unput} items were {'' if given else 'read and '}not put"
        return Remains(text, {"put": meter.messages, "not_put": feeder.unput})

    execute(common, command(), remains=remains)


def _check(address: QueueAddress, force: bool, ids: bool) -> None:
    """Refuse what the format of a queue cannot do."""
    if force and address.kind != "queue":
        raise UsageError(f"--force is for an AsyncQueue: {address} always keeps its bound. Leave it out")
    if ids and address.kind == "queue":
        raise UsageError("--ids is not for an AsyncQueue, whose items have no ids. Leave it out")


def _options(single: bool, **options: Any) -> dict[str, Any]:
    """Return the further arguments of `put` and `put_many`. `single`: there is one item, an argument."""
    if options["delay"] is not None and options["at"] is not None:
        raise UsageError("--delay and --at both say when: give one of them")
    if options["dedup_id"] is not None and not single:
        raise UsageError("--dedup-id is for a single item: give one ITEM")
    if options["dedup_id"] is None and options["dedup_window"] is not None:
        raise UsageError("--dedup-window needs --dedup-id: give both options")
    if options["dedup_id"] is None and options["replace"] is not None:
        raise UsageError("--replace needs --dedup-id: give both options")
    return {name: value for name, value in options.items() if value is not None}
