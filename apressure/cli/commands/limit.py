"""`apressure limit`: says how many items a queue hands out, and how many may wait."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

from apressure.cli.asking import told
from apressure.cli.exits import UsageError
from apressure.cli.options import Address, Common, option
from apressure.cli.show import answer
from apressure.cli.wording import worded
from apressure.core.limits import Limits
from apressure.queue_addresses import QueueAddress


def _limit(name: str, help: str, metavar: str = "N|off", more: str = "") -> Any:
    return option(name, f"{help}; off ends that.{more}", metavar, shown="as it is")


async def limit(
    common: Common,
    queue: Address,
    rate: Annotated[str | None, _limit("rate", "At most N items in so many seconds", "N/SECONDS|off")] = None,
    burst: Annotated[
        int | None,
        option("burst", "With --rate: so many may come at once after a quiet time.", "N", shown="a fiftieth", min=1),
    ] = None,
    concurrency: Annotated[str | None, _limit("concurrency", "Have at most N items in flight")] = None,
    bound: Annotated[str | None, _limit("bound", "Have at most N items wait", more=" None is deleted.")] = None,
    key: Annotated[
        str | None,
        _limit(
            "key",
            "Handle the items of a key one after the other: that of `put --key`, or where this JSON pointer leads",
            "/POINTER|given|off",
        ),
    ] = None,
    key_at_most: Annotated[
        int | None,
        option("key-at-most", "With --key: so many of a key at a time; 0 for any number.", "N", shown="1", min=0),
    ] = None,
    key_fifo: Annotated[
        bool, option("key-fifo", "With --key: those go first that came first; otherwise keys take turns.")
    ] = False,
) -> None:
    """Limit how many items a queue hands out, to all consumers together, or how many may wait.

    Without an option, show its limits.

    Programs that do not use apressure do not know of limits, and take what they want.
    """
    if burst is not None and rate in (None, "off"):
        raise UsageError("--burst needs --rate N/SECONDS")
    if key is None and (key_at_most is not None or key_fifo):
        raise UsageError("--key-at-most and --key-fifo need --key /POINTER, or --key given")
    pace, most, room = _rate(rate), _number(concurrency, "--concurrency"), _number(bound, "--bound")
    address = common.read(queue)
    async with common.open(address) as opened:
        if bound is not None:
            await opened.set_bound(room or 0)
        if rate is not None:
            with worded(count="N of --rate", per="SECONDS of --rate"):
                await opened.set_rate(*pace, burst)
        if concurrency is not None:
            with worded(at_most="--concurrency"):
                await opened.set_concurrency(most)
        if key == "off":
            await opened.set_key(None, None, fair=False)
        elif key is not None:
            pointer = None if key == "given" else key
            with worded(at_most="--key-at-most"):
                await opened.set_key(pointer, 1 if key_at_most is None else key_at_most or None, fair=not key_fifo)
        limits = await opened.limits()
    tell_limits(common, address, limits, None if bound is None else room or 0)


def tell_limits(common: Common, address: QueueAddress, limits: Limits, bound: int | None = None) -> None:
    """Print the limits of a queue, and its bound, if that was changed."""
    told_limits = told(address, limits=dataclasses.asdict(limits), **({} if bound is None else {"bound": bound}))
    also = "" if bound is None else f". At most {bound:,} wait" if bound else ". Any number may wait"
    answer(told_limits, f"{address} hands out {limits}{also}", as_json=common.json)


def _rate(text: str | None) -> tuple[int | None, float]:
    """Read `--rate`: how many, and in how many seconds."""
    if text in (None, "off"):
        return None, 1.0
    found = re.fullmatch(r"([0-9]{1,10})/([0-9]{1,10}(?:\.[0-9]{1,10})?)", text)
    if found is None:
        raise UsageError(f"--rate {text!r} is neither N/SECONDS, such as 100/60, nor off")
    return int(found[1]), float(found[2])


def _number(text: str | None, option: str) -> int | None:
    """Read `--concurrency` or `--bound`."""
    if text in (None, "off"):
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise UsageError(f"{option} {text!r} is neither a number nor off")
    return int(text)
