"""`pipe`: a stage of a pipeline, from one queue through a function to another one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, overload

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.core.dedup import MOST_WINDOW
from apressure.exceptions import (
    DuplicateMessageError,
    ExactlyOnceError,
    PressureError,
    QueueClosedError,
    QueueFullError,
    QueueInUseError,
)
from apressure.protocols import AtomicSource, Delivery, Destination, Move, Mover, Observer, Source
from apressure.service import handlers
from apressure.service.dispatcher import Arguments
from apressure.service.options import Options
from apressure.service.retry import RETRY, checked_retry
from apressure.service.service import Service
from apressure.service.stages.flow import excused
from apressure.service.stages.results import Many
from apressure.service.stages.stage import Plan, Stage

logger = logging.getLogger("apressure")

T = TypeVar("T")
R = TypeVar("R")

_MOST: Final = 1_000_000

_SHUTDOWN: Final = 30.0
"""Seconds that transforms and moves may take to finish when somebody has asked the stage to drain."""


@dataclasses.dataclass(frozen=True)
class Piped:
    """What `pipe` has done when it returns.

    Attributes:
        handled: How many inputs were transformed, and acknowledged.
        put: How many results were put.
        failed: How many attempts failed.
        exactly_once: Whether each put was one step with the acknowledgement.
        drained: Somebody has ended it by `drain` of its source, or by `apressure workers drain`.
    """

    handled: int
    put: int
    failed: int
    exactly_once: bool
    drained: bool = False


class PutThenAcknowledge:
    """Moves messages between any two queues, at-least-once: an interruption in between puts results twice."""

    def __init__(self, destination: Destination[Any]) -> None:
        self._destination = destination

    def encode(self, item: Any) -> Any:
        """The destination encodes it."""
        return item

    async def move(self, moves: Sequence[Move]) -> None:
        """Put the results of all, then acknowledge."""
        found = [result for _, some in moves for result in some]
        accepted, interruption = len(found), None
        try:
            if found:
                with excused(moves[0][0][0]):
                    await self._destination.put_many(found)
        except PressureError as error:
            accepted, interruption = error.accepted, error
        except Exception:
            if len(moves) == 1:
                raise
            return await self.move(moves[: len(moves) // 2])  # one of them cannot be put
        settled: list[Delivery[Any]] = []
        for deliveries, some in moves:
            accepted -= len(some)
            if accepted < 0 or (interruption is not None and not some):
                break
            settled += deliveries
        await _acknowledge(settled)
        if interruption is not None:
            raise interruption
        return None


class PutOnceThenAcknowledge:
    """Moves messages as `PutThenAcknowledge`, and puts no result that the destination has had, by its dedup id.

    Args:
        destination: Where results go.
        dedup_id: Returns the id of a result.
        window: Seconds for which it counts.

    Attributes:
        window: As given.
    """

    def __init__(self, destination: Any, dedup_id: Callable[[Any], str], window: float) -> None:
        self._destination = destination
        self._dedup_id = dedup_id
        self.window = window

    def encode(self, item: Any) -> Any:
        """The destination encodes it."""
        return item, self._dedup_id(item)

    async def move(self, moves: Sequence[Move]) -> None:
        """Put the results of the first one, waiting for room, and of those behind it for which there is room now."""
        with excused(moves[0][0][0]):
            puts = [
                self._put(item, dedup_id, 0 if place else None)
                for place, (_, some) in enumerate(moves)
                for item, dedup_id in some
            ]
            outcomes = iter(await asyncio.gather(*puts, return_exceptions=True))
        settled: list[Delivery[Any]] = []
        failure: BaseException | None = None
        for deliveries, some in moves:
            failures = [outcome for outcome in (next(outcomes) for _ in some) if outcome is not None]
            if failures:
                failure = failures[0]
                break
            settled += deliveries
        await _acknowledge(settled)
        if failure is not None and not (settled and isinstance(failure, (QueueFullError, QueueInUseError))):
            raise failure

    async def _put(self, item: Any, dedup_id: str, timeout: float | None) -> None:
        with contextlib.suppress(DuplicateMessageError):
            await self._destination.put(item, timeout, dedup_id=dedup_id, dedup_window=self.window)


async def _acknowledge(deliveries: Sequence[Delivery[Any]]) -> None:
    outcomes = await asyncio.gather(*(delivery.ack() for delivery in deliveries), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


@overload
async def pipe(
    source: Source[T], transform: Callable[[T], Awaitable[R | Many[R] | None] | AsyncIterator[R]],
    destination: Destination[R], *, batch: None = ..., concurrency: int = ..., close: bool = ...,
    exactly_once: bool | None = ..., dedup_id: Callable[[R], str] | None = ..., dedup_window: float | None = ...,
    lease: float | None = ..., retry: Backoff = ..., shared: bool = ..., observer: Observer | None = ...,
) -> Piped: ...  # fmt: skip
@overload
async def pipe(
    source: Source[T], transform: Callable[[list[T]], Awaitable[Iterable[R] | None] | AsyncIterator[R]],
    destination: Destination[R], *, batch: int, concurrency: int = ..., close: bool = ...,
    exactly_once: bool | None = ..., dedup_id: Callable[[R], str] | None = ..., dedup_window: float | None = ...,
    lease: float | None = ..., retry: Backoff = ..., shared: bool = ..., observer: Observer | None = ...,
) -> Piped: ...  # fmt: skip
@validation.elsewhere(max_attempts=validation.MAX_ATTEMPTS_ELSEWHERE)
async def pipe(
    source: Source[Any],
    transform: Callable[[Any], Any],
    destination: Destination[Any],
    *,
    batch: int | None = None,
    concurrency: int = 1,
    close: bool = False,
    exactly_once: bool | None = None,
    dedup_id: Callable[[Any], str] | None = None,
    dedup_window: float | None = None,
    lease: float | None = None,
    retry: Backoff = RETRY,
    shared: bool = False,
    observer: Observer | None = None,
) -> Piped:
    """Move items from one queue to another, through a function, until the source is closed and drained.

    Between two `AsyncQueue`s of one server, or two `EventQueue`s, results are put and their input is acknowledged in
    one step: a stage that is killed at any moment neither loses nor doubles anything. Between other queues, results are
    put first and inputs are acknowledged afterwards: at-least-once. The log says at INFO which of the two holds.

    While the destination is full or out of reach, transformed items wait, with their leases, however long that takes:
    that is no attempt.

    If the transform raises, the error is logged, and the item is tried again after a pause, as in `serve`: until it
    has been delivered `max_attempts` times and becomes a dead letter of the source.

    Args:
        source: The queue of the inputs. If it has not been used before, it is opened, and its object is closed at the
            end.
        transform: `async def transform(item)`. What it returns is a result, also a list; None is no result, and
            `Many(results)` several. Or `async def` with `yield`: each value is a result.
        destination: The queue of the results; opened as the source is.
        batch: Give the transform a list of up to so many items, as many as are there. It returns a list of results,
            or None, or yields them. An item that has failed before comes alone.
        concurrency: How many transforms run at a time. With 1, results are in the order of their inputs; with more,
            each is put when it is there.
        close: Close the destination when the source is drained: closed, empty, and with no item in any stage's hands. A
            destination that is closed already is no error.
        exactly_once: True to raise where it is impossible. False to put first and acknowledge afterwards in any case.
            None for exactly once where it is possible.
        dedup_id: Returns the `dedup_id` of a result, with which it is put: a result that comes again, or that another
            program has put with this id, is dropped. So also between two servers, or two kinds of queue, no result is
            there twice. Each result is put by itself.
        dedup_window: Seconds for which such an id counts, from when its result was put. Needed with `dedup_id`.
        lease: Seconds after which another process gets the items when this one dies; None for the queue's default.
        retry: How long to pause before a retry; see `serve`.
        shared: Work on the source together with all stages that say so, each item in one of them. Every stage ends when
            the source is closed and empty, and no stage has an item in hand. A `FileQueue` and an `EventQueue` are
            always shared.
        observer: Looks on, such as an `apressure.telemetry.Metrics`; see `serve`.

    Returns:
        What was done, as `Piped`.

    Raises:
        ExactlyOnceError: `exactly_once=True`, and it is impossible; the message says what to do.
        QueueClosedError: The destination was closed before the source was drained. Inputs have gone back.
        QueueDoesNotExistError: One of the queues does not exist, or was deleted.
        PressureError: As for `serve`.
        TypeError: The transform is synchronous, or an argument has the wrong type.
        ValueError: An argument is invalid, or both queues are the same; `dedup_id` comes without `dedup_window`, or
            with `exactly_once=True`, which needs none.
        BaseException: The transform raised something that is not an `Exception`, such as SystemExit.

    Cancelled, it cancels the transforms, waits for them, and gives back every input whose results were not put. The
    destination stays open then.
    """
    handlers.check(transform, "transform")
    validation.optional(validation.whole, batch, "batch", 1, _MOST)
    validation.whole(concurrency, "concurrency", 1, _MOST)
    checked_retry(retry)
    once = _once(destination, dedup_id, dedup_window, exactly_once)
    title = f"the pipe from {source.name!r} to {destination.name!r}"
    arguments = Arguments(
        transform, source, concurrency, False, None, retry, False, _SHUTDOWN, lease, None, shared, title,
        "transform", Options(observer=observer),
    )  # fmt: skip
    arguments.options.check(source, deliveries=False, shared=shared)
    arguments.consumer()  # the queue checks `lease`, before anything begins
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(arguments.ending.limiting())
        for queue in (source, destination):
            if not getattr(queue, "opened", True):
                await stack.enter_async_context(queue)  # type: ignore[arg-type]
        await destination.closed()  # raises where it does not exist
        closing = destination.close if close else None  # not every destination can be closed: that must fail here
        mover, why = await _mover(source, destination, exactly_once, once)
        holds = f"at least once, {why}" if why else "exactly once"
        extra = {"event": "pipe_started", "queue": source.name, "destination": destination.name}
        logger.info("%s works %s", title, holds, extra=extra)
        plan = Plan(mover, batch)
        handled = failed = 0
        while True:
            served = await Service(arguments, functools.partial(Stage, plan=plan)).run()
            handled, failed = handled + served.handled, failed + served.failed
            # After a failover, the end of the consumer may give back messages that were moved on the old primary only.
            if not close or not served.handled or served.drained:
                break
        if closing is not None and not served.drained:
            with contextlib.suppress(QueueClosedError):
                await closing()
    return Piped(handled, plan.put, failed, exactly_once=not why, drained=served.drained)


def _once(
    destination: Any, dedup_id: Any, window: float | None, exactly_once: bool | None
) -> PutOnceThenAcknowledge | None:
    if dedup_id is None and window is None:
        return None
    if dedup_id is None or window is None:
        raise ValueError("dedup_id= and dedup_window= belong together: give both, or none of them")
    if not callable(dedup_id):
        raise TypeError(f"dedup_id must be a function that returns the id of a result, not {type(dedup_id).__name__}")
    if exactly_once:
        raise ValueError("exactly_once=True needs no ids: leave out dedup_id=, or exactly_once=")
    window = validation.seconds(window, "dedup_window", most=MOST_WINDOW, above=True)
    return PutOnceThenAcknowledge(destination, dedup_id, window)


async def _mover(
    source: Any, destination: Any, exactly_once: bool | None, once: PutOnceThenAcknowledge | None
) -> tuple[Mover, str]:
    """Return what moves messages, and why that is not exactly once; an empty string where it is."""
    if once is not None:
        return once, f"and puts each dedup_id once in {once.window:g} s"
    if exactly_once is False:
        return PutThenAcknowledge(destination), "as asked for by exactly_once=False"
    try:
        return await _atomic(source).mover(destination), ""
    except ExactlyOnceError as error:
        if exactly_once:
            raise
        return PutThenAcknowledge(destination), f"since {error}"


def _atomic(source: Any) -> AtomicSource:
    if isinstance(source, AtomicSource):
        return source
    raise ExactlyOnceError(
        f"exactly once is impossible from the queue {source.name!r}: it is of class {type(source).__name__}, and only "
        "two AsyncQueues, or EventQueues, on one server share a step",
        name=source.name,
    )
