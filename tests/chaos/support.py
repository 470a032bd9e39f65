"""Shared by the chaos tests: the account of messages, ways to cancel, and checks of what a server still holds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import anyio

from apressure import AsyncQueue, PressureError
from apressure.embedded import EmbeddedServer
from tests.servers import admin

T = TypeVar("T")

LONG: Final = os.environ.get("APRESSURE_CHAOS") == "long"
SEED: Final = os.environ.setdefault("APRESSURE_SEED", secrets.token_hex(4))
"""Where all randomness comes from. The workers of a run inherit it."""
NAME: Final = "chaos"
PATIENCE: Final = 45.0
"""Seconds after which something that should have ended is stuck."""


def often(short: int, factor: int) -> int:
    """How often to try something: `short` at every push, `factor` times that in the long form."""
    return short * factor if LONG else short


@dataclasses.dataclass
class Row:
    """What was tried in one cell of the table, and what came of it."""

    tried: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    stuck: int = 0
    notes: Counter[str] = dataclasses.field(default_factory=Counter)
    """Further counts, by their name in the table."""

    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order or self.stuck)


NUMBERS: Final = ("tried", "acknowledged", "lost", "doubled", "out_of_order", "stuck")

ORDER: Final = (
    "cancelled", "killed producer", "killed consumer", "killed stage", "killed runner", "proxy", "CLIENT KILL",
    "server frozen", "server restarted", "server killed", "failover", "Sentinel", "cluster", "memory full",
    "loop exits",
)  # fmt: skip
"""How the names of cells begin, in the order of the table."""


class Recorder:
    """Collects the rows of the table that ends a run."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    def add(self, cell: str, software: str, row: Row) -> None:
        """Add to the row of a cell on Valkey, or on Redis. Its name begins as one of `ORDER`."""
        assert cell.startswith(ORDER), cell
        total = self._rows.setdefault((cell, software), Row())
        for name in NUMBERS:
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.notes.update(row.notes)

    def merge(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of another table, as `rows` returned them."""
        for row in rows:
            numbers = {name: row[name] for name in NUMBERS}
            self.add(row["cell"], row["server"], Row(**numbers, notes=Counter(row["notes"])))

    def rows(self) -> list[dict[str, Any]]:
        """The table, as data."""
        place = {name: number for number, name in enumerate(ORDER)}

        def order(key: tuple[str, str]) -> tuple[int, str, str]:
            return next(place[name] for name in ORDER if key[0].startswith(name)), *key

        return [
            {
                "cell": key[0],
                "server": key[1],
                **{name: getattr(self._rows[key], name) for name in NUMBERS},
                "notes": {text: count for text, count in self._rows[key].notes.items() if count},
            }
            for key in sorted(self._rows, key=order)
        ]

    def lines(self) -> list[str]:
        """The table, as text."""
        found = self.rows()
        if not found:
            return []
        table = [("cell", "server", *(name.replace("_", " ") for name in NUMBERS), "")]
        for row in found:
            notes = ", ".join(f"{count:,} {text}" for text, count in row["notes"].items())
            table.append((row["cell"], row["server"], *(f"{row[name]:,}" for name in NUMBERS), notes))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        last = len(widths) - 1
        return [
            "  ".join(
                text.ljust(widths[i]) if i in {0, 1, last} else text.rjust(widths[i]) for i, text in enumerate(line)
            ).rstrip()
            for line in table
        ]


class Account:
    """Every message of a cell: who put it, whether that was acknowledged, and when it arrived.

    A message is `producer:number`. Numbers of one producer grow; one that is given up leaves a gap.
    """

    def __init__(self) -> None:
        self._next: Counter[str] = Counter()
        self._acknowledged: set[bytes] = set()
        self._possible: set[bytes] = set()
        self._batches: list[list[bytes]] = []
        self.arrived: list[bytes] = []
        self.again: Counter[bytes] = Counter()
        """How often a message arrived and was given back all the same: it comes again, and may be given back again."""
        self._unmarked = 0
        self.cancelled = 0
        """Operations that a cancellation ended."""

    def fresh(self, producer: str, count: int = 1, size: int = 0) -> list[bytes]:
        """Messages that nobody has put yet; `size` pads them."""
        begin = self._next[producer]
        self._next[producer] += count
        return [f"{producer}:{number}:".encode().ljust(size, b".") for number in range(begin, begin + count)]

    def acknowledge(self, messages: Iterable[bytes]) -> None:
        """A put of them returned normally: they are in the queue."""
        self._acknowledged.update(messages)

    def handed_out(self, message: bytes, attempts: int) -> None:
        """The consumer role had it; where that was not the first time, it has to say so."""
        self._unmarked += message in self.again and attempts == 1
        self.arrived.append(message)

    def sure(self, message: bytes) -> bool:
        """A put of it returned normally."""
        return message in self._acknowledged

    def perhaps(self, messages: list[bytes]) -> None:
        """A put of them was cancelled or broke: the first of them are in the queue, or all, or none."""
        self._possible.update(messages)
        self._batches.append(messages)

    def missing(self) -> list[bytes]:
        """Messages that were acknowledged, and have not arrived."""
        return sorted(self._acknowledged - set(self.arrived))

    def row(self, ordered: bool = True, may_lose: int = 0) -> Row:
        """Settle the account, once everything was drained.

        Args:
            ordered: Arrivals were recorded in the order in which they left the queue.
            may_lose: How many messages may be missing, since the end of a get that took them is not known.
        """
        seen = Counter(self.arrived)
        lost = self._acknowledged - set(seen)
        doubled = sum(max(0, count - 1 - self.again[message]) for message, count in seen.items())
        doubled += self._unmarked
        out_of_order = 0
        last: dict[bytes, int] = {}
        for message in self.arrived if ordered else ():
            producer, number, _ = message.split(b":")
            if int(number) < last.get(producer, -1):
                out_of_order += 1
            last[producer] = max(last.get(producer, -1), int(number))
        strangers = set(seen) - self._acknowledged - self._possible
        assert not strangers, f"messages that were never in the queue, or were refused: {sorted(strangers)[:10]}"
        for batch in self._batches if not may_lose else ():
            there = [message in seen for message in batch]
            assert there == sorted(there, reverse=True), f"not the first of a batch: {batch} {there}"
        return Row(
            tried=self.cancelled,
            acknowledged=len(self._acknowledged),
            lost=max(0, len(lost) - may_lose),
            doubled=doubled,
            out_of_order=out_of_order,
            notes=Counter({"lost in flight": min(len(lost), may_lose)}),
        )


@dataclasses.dataclass
class Outcome(Generic[T]):
    """How an operation that was to be cancelled ended.

    Attributes:
        ended: `"done"`, `"cancelled"`, `"error"`, or `"unstarted"` where the cancellation came first.
    """

    ended: str = "unstarted"
    value: T | None = None
    error: PressureError | None = None


class _Sibling(Exception):
    """The failure of another task in a group."""


Moment = int | float
"""Turns of the event loop, or seconds."""


def some_moment(rng: random.Random) -> Moment:
    """When to cancel: often within the turns in which a reply arrives, sometimes later."""
    return rng.randrange(14) if rng.random() < 0.5 else rng.uniform(0, 0.005)


def _at(moment: Moment, act: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(moment, float):
        loop.call_later(moment, act)
    elif moment == 0:
        loop.call_soon(act)
    else:
        loop.call_soon(_at, moment - 1, act)


async def _until(moment: Moment) -> None:
    if isinstance(moment, float):
        await asyncio.sleep(moment)
    else:
        for _ in range(moment):
            await asyncio.sleep(0)


WAYS: Final = (
    "cancel", "cancel twice", "cancel twice, a turn apart", "cancel twice, a moment apart",
    "wait_for", "asyncio.timeout", "TaskGroup",
    "move_on_after", "fail_after", "CancelScope", "anyio task group",
)  # fmt: skip


async def cancelled(way: str, moment: Moment, operation: Callable[[], Awaitable[T]]) -> Outcome[T]:
    """Run an operation, cancel it at a moment in one of `WAYS`, and see that it ends as that way promises."""
    outcome: Outcome[T] = Outcome()

    async def run() -> None:
        outcome.ended = "begun"
        try:
            outcome.value = await operation()
            outcome.ended = "done"
        except asyncio.CancelledError:
            outcome.ended = "cancelled"
            raise
        except PressureError as error:
            outcome.error = error
            outcome.ended = "error"

    seconds = moment if isinstance(moment, float) else moment * 0.0001
    hit = False
    if way.startswith("cancel"):
        hit = await _cancel_task(way, moment, run)
    elif way == "wait_for":
        try:
            await asyncio.wait_for(run(), seconds)
        except TimeoutError:
            hit = True
    elif way == "asyncio.timeout":
        try:
            async with asyncio.timeout(seconds):
                await run()
        except TimeoutError:
            hit = True
    elif way == "TaskGroup":
        with contextlib.suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(run())
                await _until(moment)
                raise _Sibling
        hit = task.cancelled()
    elif way == "anyio task group":
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(run)
            _at(moment, nursery.cancel_scope.cancel)
        hit = nursery.cancel_scope.cancelled_caught or outcome.ended == "cancelled"
    elif way == "fail_after":
        try:
            with anyio.fail_after(seconds):
                await run()
        except TimeoutError:
            hit = True
    else:
        with anyio.move_on_after(seconds) if way == "move_on_after" else anyio.CancelScope() as scope:
            if way == "CancelScope":
                _at(moment, scope.cancel)
            await run()
        hit = scope.cancelled_caught
    assert outcome.ended != "begun"
    # The cancellation that came out of the operation is the one that its way waits for, and nothing is left of it.
    assert hit or outcome.ended in {"done", "error"}, f"{way} was not seen: {outcome}"
    caller = asyncio.current_task()
    assert caller is not None
    assert not caller.cancelling(), way
    return outcome


async def _cancel_task(way: str, moment: Moment, run: Callable[[], Any]) -> bool:
    task = asyncio.create_task(run())
    loop = asyncio.get_running_loop()

    def act() -> None:
        task.cancel()
        if way == "cancel twice":
            task.cancel()
        elif way == "cancel twice, a turn apart":
            loop.call_soon(task.cancel)
        elif way == "cancel twice, a moment apart":
            loop.call_later(0.0004, task.cancel)

    _at(moment, act)
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def drain(queue: AsyncQueue[bytes], account: Account) -> None:
    """Get everything until the queue is closed and empty."""
    async for message in queue:
        account.arrived.append(message)


async def check_tidy(queue: AsyncQueue[bytes], account: Account, exact: bool = True) -> None:
    """The queue is empty, both roles are free, nothing is in flight, and the statistics are exact.

    A claim of a dying connection has no owner for some seconds; until it ends, the queue is looked at again.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = await queue.statistics()
        free = seen.producer.state == seen.consumer.state == "free"
        if free or time.monotonic() > deadline:
            break
        with contextlib.suppress(PressureError):
            await queue.get_nowait()  # it is drained: a step that heals what it finds, and nothing more
        await asyncio.sleep(0.02)
    assert free, f"roles leaked: {seen}"
    assert seen.in_flight == 0
    assert (seen.waiting_putters, seen.waiting_receivers) == (0, 0)
    assert seen.length == 0
    assert seen.produced_messages == seen.consumed_messages, seen
    assert seen.produced_bytes == seen.consumed_bytes, seen
    if exact:
        # What came again was counted once, when it was acknowledged.
        counted = [*(message for message in account.arrived if message not in account.again)]
        counted += account.again.keys() & set(account.arrived)
        assert seen.consumed_messages == len(counted), seen
        assert seen.consumed_bytes == sum(map(len, counted)), seen


async def check_server(server: EmbeddedServer) -> None:
    """No connection is left, and no key of ours that stays."""
    with admin(server) as client:
        deadline = time.monotonic() + PATIENCE
        while True:
            others = [one for one in client.client_list() if one["id"] != str(client.client_id())]
            if not others or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        assert not others, f"connections leaked: {others}"
        lasting = [key for key in client.scan_iter(match="apressure:*", count=1000) if client.ttl(key) == -1]
        assert not lasting, f"keys leaked: {lasting}"


@contextlib.asynccontextmanager
async def no_complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """The event loop's exception handler hears nothing: no task was lost, no exception overlooked."""
    heard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    try:
        yield heard
    finally:
        loop.set_exception_handler(before)
    assert not heard, heard
