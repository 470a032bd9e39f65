"""Every verb of `matrix.VERBS` does the same on every kind of queue; what is missing is in `matrix.GAPS`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from apressure import (
    AsyncQueue,
    ClientClosedError,
    DeadlineError,
    DecodeError,
    EventQueue,
    FileQueue,
    LeaseLostError,
    OperationUnblockedError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueOpenError,
    TaskQueue,
)
from apressure.embedded import EmbeddedServer
from apressure.testing.contract import ITEMS, PATIENCE, begun, drained, fails, in_time
from tests.contract.matrix import GAPS, KINDS, VERBS, expect_gap
from tests.integration.conftest import eventually
from tests.integration.events.remote.conftest import serving


class Both(NamedTuple):
    """Two objects of one queue.

    Attributes:
        queue: Of the kind that is tested.
        owner: Another one. It creates, closes and deletes the queue also where the kind cannot.
        open: Opens more like `queue`, with options.
        begin: Starts an operation that will wait; it is cancelled at the end of the test.
    """

    queue: Any
    owner: Any
    open: Callable[..., Awaitable[Any]]
    begin: Callable[[Awaitable[Any]], Awaitable[asyncio.Task[Any]]]


@pytest.fixture
def server(valkey: EmbeddedServer) -> EmbeddedServer:
    """One server: the matrix is about kinds of queue, and other tests are about servers."""
    return valkey


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of queue that is tested. The test may be expected to fail for it."""
    name: str = request.param
    expect_gap(request, name, request.function.__name__)
    return name


@pytest.fixture
async def both(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> AsyncIterator[Both]:
    async with contextlib.AsyncExitStack() as stack:
        usual: dict[str, Any] = {} if kind == "FileQueue" else {"url": request.getfixturevalue("url")}
        remote = {"url": await stack.enter_async_context(serving(**usual))} if kind == "RemoteEventQueue" else usual

        async def enter(options: dict[str, Any]) -> Any:
            made: Any
            if kind == "AsyncQueue":
                made = AsyncQueue("jobs", **options)
            elif kind == "TaskQueue":
                made = TaskQueue("jobs", **{"codec": "raw", **options})
            elif kind == "FileQueue":
                made = FileQueue(tmp_path / "jobs", **options)
            else:
                made = EventQueue("jobs", **options)
            return await stack.enter_async_context(made)

        tasks: list[asyncio.Task[Any]] = []

        async def begin(operation: Awaitable[Any]) -> asyncio.Task[Any]:
            tasks.append(await begun(operation))
            return tasks[-1]

        owner = await enter(usual)
        yield Both(await enter(remote), owner, lambda **more: enter({**remote, **more}), begin)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if kind == "FileQueue":
            return
        left = [owner, await stack.enter_async_context(AsyncQueue("jobs:dead", **usual))]
        for queue in left:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()


every_kind = pytest.mark.parametrize("kind", KINDS, indirect=True)


def every_kind_that_has(verbs: list[str]) -> pytest.MarkDecorator:
    """Run a test for these verbs of every kind, without those that are missing: `test_signatures` expects them."""
    cells = [(kind, verb) for kind in KINDS for verb in verbs if (kind, verb) not in GAPS]
    return pytest.mark.parametrize(("kind", "verb"), cells, indirect=["kind"])


# Arguments

VALID: Final[dict[str, dict[str, Any]]] = {
    "put": {"item": b"1"}, "put_nowait": {"item": b"1"}, "put_many": {"items": [b"1"]}, "get_many": {"max_items": 1},
    "receive_many": {"max_items": 1},
}  # fmt: skip
"""What a verb needs."""


Refused = tuple[Any, type[Exception], str]


def _times(name: str, none: bool) -> list[Refused]:
    number = "a number of seconds or None" if none else "a number of seconds"
    return [
        (math.nan, ValueError, f"{name} must be at least 0 seconds, not nan"),
        (-1, ValueError, f"{name} must be at least 0 seconds, not -1"),
        ("1", TypeError, f"{name} must be {number}, not str"),
        (True, TypeError, f"{name} must be {number}, not bool"),
    ]


def _counts(name: str) -> list[Refused]:
    return [
        (0, ValueError, f"{name} must be (at least 1|between 1 and )"),
        ("1", TypeError, f"{name} must be a whole number, not str"),
        (True, TypeError, f"{name} must be a whole number, not bool"),
    ]


BAD: Final[dict[str, list[Refused]]] = {
    "timeout": _times("timeout", none=True),
    "deadline": _times("deadline", none=False),
    "max_items": _counts("max_items"),
    "limit": _counts("limit"),
    "prefetch": _counts("prefetch"),
    "lease": [
        (0, ValueError, "lease must be between .* seconds, not 0"),
        (math.nan, ValueError, "lease must be between .* seconds, not nan"),
        ("1", TypeError, "lease must be a number of seconds or None, not str"),
    ],
    "max_hold": [
        (0, ValueError, "max_hold must be more than 0 and at most .* seconds, not 0"),
        ("1", TypeError, "max_hold must be a number of seconds or None, not str"),
    ],
    "ack": [("never", ValueError, "ack must be 'auto' or 'manual', not 'never'")],
    "bound": [
        (-1, ValueError, "bound must be between 0 and .*, not -1"),
        (True, TypeError, "bound must be a whole number of .*, not bool"),
    ],
    "item": [(1, TypeError, "")],
    "items": [
        (b"1", TypeError, "put_many takes an iterable of items, not bytes: use put for one item"),
        ([1], TypeError, ""),
    ],
    "ids": [
        ("1", TypeError, "ids must be "),
        ([1], TypeError, "a dead letter's id must be a string, not int"),
    ],
}  # fmt: skip
"""What is refused of each argument: the value, and the error with the beginning of its message."""


async def _call(queue: Any, verb: str, **more: Any) -> Any:
    outcome = getattr(queue, verb)(**{**VALID.get(verb, {}), **more})
    return await outcome if inspect.isawaitable(outcome) else outcome


@every_kind_that_has([verb for verb in VERBS if "=" in VERBS[verb] and verb != "producer"])
async def test_bad_arguments_have_the_same_error(both: Both, verb: str) -> None:
    await both.owner.create(bound=1)
    for name in re.findall(r"\w+", VERBS[verb]):
        for value, error, text in BAD.get(name, ()):
            with pytest.raises(error, match=f"^{text}") as raised:
                await in_time(_call(both.queue, verb, **{name: value}))
            assert type(raised.value) is error
    if verb == "requeue":
        with pytest.raises(ValueError, match=r"^give either max_items= or ids=: the ids say how many$"):
            await both.queue.requeue(1, ids=["1"])
    assert (await both.owner.qsize(), await both.owner.closed()) == (0, False)


@every_kind_that_has([verb for verb in VERBS if "deadline" in VERBS[verb]])
async def test_a_deadline_of_0_does_nothing(both: Both, verb: str) -> None:
    await both.owner.create()
    await both.owner.put(b"0")
    error = await fails(DeadlineError, _call(both.queue, verb, deadline=0))
    assert type(error) is DeadlineError
    assert str(error).startswith("the operation on the queue 'jobs' did not end within its deadline of 0 s")
    assert (await both.owner.qsize(), await both.owner.closed()) == (1, False)


# Deadlines


async def _waits_until_its_deadline(queue: Any, verb: str) -> None:
    """A wait for the queue ends at its deadline, and it is certain that nothing was done."""
    deadline = 0.05
    while type(await fails(DeadlineError, _call(queue, verb, deadline=deadline))) is not DeadlineError:
        deadline *= 2  # on a busy machine, the answer to a step may have been on its way
        assert deadline < PATIENCE


@every_kind
async def test_a_wait_ends_at_its_deadline(both: Both) -> None:
    await both.owner.create(bound=1)
    queue, deadline = both.queue, 0.1
    await _waits_until_its_deadline(queue, "receive")
    await _waits_until_its_deadline(queue, "receive_many")
    await queue.put(b"0", deadline=20)
    await _waits_until_its_deadline(queue, "put")
    assert await drained(queue) == ITEMS[:1]
    while getattr(await fails(DeadlineError, queue.put_many(ITEMS, deadline=deadline)), "accepted", 0) != 1:
        await drained(queue)
        deadline *= 2
        assert deadline < PATIENCE
    assert await drained(queue) == ITEMS[:1]


@every_kind
async def test_waiting_to_get_ends_at_its_deadline(both: Both) -> None:
    await both.owner.create()
    await _waits_until_its_deadline(both.queue, "get")
    await _waits_until_its_deadline(both.queue, "get_many")
    await both.queue.put(b"0")
    assert await in_time(both.queue.get(deadline=20)) == b"0"


@every_kind
async def test_waiting_for_the_end_ends_at_its_deadline(both: Both) -> None:
    await both.owner.create()
    await _waits_until_its_deadline(both.queue, "wait_closed")


# Taking items


@every_kind
async def test_get_takes_the_oldest_item_for_good(both: Both) -> None:
    await both.owner.create(bound=10)
    await both.queue.put_many(ITEMS)
    assert await in_time(both.queue.get()) == b"0"
    assert await in_time(both.queue.get(timeout=0)) == b"1"
    assert await in_time(both.queue.get_nowait()) == b"2"
    assert await in_time(both.queue.get_many(3)) == ITEMS[3:6]
    seen = await both.owner.statistics()
    assert (seen.length, seen.in_flight) == (4, 0)
    assert await in_time(both.queue.get_many(100)) == ITEMS[6:]
    for verb, more in (("get", {"timeout": 0.05}), ("get_nowait", {}), ("get_many", {"timeout": 0})):
        assert str(await fails(QueueEmptyError, _call(both.queue, verb, **more))) == "the queue 'jobs' is empty"
    waiting = await both.begin(both.queue.get())
    await both.owner.put(b"10")
    assert await in_time(waiting) == b"10"
    await both.owner.close()
    for verb in ("get", "get_nowait", "get_many"):
        await fails(QueueClosedError, _call(both.queue, verb))


@every_kind
async def test_iterating_ends_when_the_queue_is_closed_and_drained(both: Both) -> None:
    await both.owner.create()

    async def take() -> list[bytes]:
        return [item async for item in both.queue]

    taking = await both.begin(take())
    await both.owner.put_many(ITEMS)
    await both.owner.close()
    assert await in_time(taking) == ITEMS


@every_kind
async def test_get_gives_back_what_stands_behind_an_undecodable_item(both: Both) -> None:
    await both.owner.create()
    await both.owner.put_many([b"1", b"2", b"{", b"4"])
    queue = await both.open(codec="json")
    assert await in_time(queue.get_many(10)) == [1, 2]
    error: Any = await fails(DecodeError, queue.get_many(10))
    assert error.raw == b"{"
    assert await in_time(queue.get()) == 4
    assert (await both.owner.statistics()).in_flight == 0


@every_kind
async def test_what_random_cancellations_of_get_leave_is_all_there(both: Both) -> None:
    await both.owner.create()
    taken: list[bytes] = []

    async def take(number: int) -> None:
        taken.extend([await both.queue.get()] if number % 2 else await both.queue.get_many(2))

    for number in range(60):
        await both.owner.put(b"%d" % number)
        taking = asyncio.ensure_future(take(number))
        for _ in range(number % 11):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await asyncio.sleep(0.001)
        taking.cancel()
        await asyncio.wait((taking,))
        assert taking.cancelled() or taking.exception() is None
    taken += await drained(both.owner)
    assert sorted(taken, key=int) == [b"%d" % number for number in range(60)]


# The queue as a whole


@every_kind
async def test_a_full_an_empty_and_an_open_queue_say_so(both: Both) -> None:
    await both.owner.create(bound=1)
    for verb, more in (("receive", {"timeout": 0.05}), ("peek", {}), ("peek_newest", {})):
        assert str(await fails(QueueEmptyError, _call(both.queue, verb, **more))) == "the queue 'jobs' is empty"
    await both.owner.put(b"0")
    for verb, more in (("put", {"timeout": 0.05}), ("put_nowait", {}), ("put_many", {"timeout": 0})):
        error = await fails(QueueFullError, _call(both.queue, verb, **more))
        assert str(error).startswith("the queue 'jobs' is full")
    assert await in_time(both.queue.peek()) == await in_time(both.queue.peek_newest()) == b"0"
    assert await both.queue.qsize() == 1


@every_kind
async def test_it_is_created_once(both: Both) -> None:
    assert await both.queue.create(bound=3) is True
    assert str(await fails(QueueAlreadyExistsError, both.owner.create())).startswith("the queue 'jobs' exists already")
    assert str(await fails(QueueAlreadyExistsError, both.queue.create())).startswith("the queue 'jobs' exists already")
    assert await both.queue.create(bound=5, exist_ok=True) is False
    assert await both.queue.bound() == 3
    assert await both.queue.exists() is True


@every_kind
async def test_it_is_deleted_once(both: Both) -> None:
    await both.queue.create()
    await both.queue.delete(timeout=1)
    assert await both.queue.exists() is False
    assert str(await fails(QueueDoesNotExistError, both.queue.delete())).startswith("the queue 'jobs' ")


@every_kind
async def test_a_put_does_not_make_a_deleted_queue_again(both: Both) -> None:
    await both.queue.create()
    await both.queue.delete()
    assert str(await fails(QueueDoesNotExistError, both.queue.put(b"1"))).startswith("the queue 'jobs' ")


@every_kind
async def test_it_is_closed_once(both: Both) -> None:
    await both.owner.create()
    assert await both.queue.closed() is False
    await fails(QueueOpenError, both.queue.wait_closed(timeout=0.05))
    waiting = await both.begin(both.queue.wait_closed())
    await both.queue.close(timeout=1)
    await in_time(waiting)
    assert await both.queue.closed() is True
    assert str(await fails(QueueClosedError, both.queue.close())) == "the queue 'jobs' is closed"
    assert str(await fails(QueueClosedError, both.queue.put(b"1"))).startswith("the queue 'jobs' is closed")


@every_kind
async def test_a_look_sees_the_end(both: Both) -> None:
    await both.owner.create()
    assert await both.queue.closed() is False
    await both.owner.close()
    assert await both.queue.closed() is True


@every_kind
async def test_it_is_paused_and_resumed_once(both: Both) -> None:
    await both.owner.create()
    assert [await both.queue.pause(), await both.queue.pause()] == [True, False]
    assert await both.owner.paused() is True
    assert [await both.queue.resume(), await both.queue.resume()] == [True, False]
    assert await both.owner.paused() is False


@every_kind
async def test_paused_says_whether_it_is(both: Both) -> None:
    await both.owner.create()
    assert await both.queue.paused() is False
    await both.owner.pause()
    assert await both.queue.paused() is True


@every_kind
async def test_purge_never_touches_what_is_in_flight(both: Both) -> None:
    await both.owner.create()
    await both.queue.put_many(ITEMS)
    delivery = await in_time(both.queue.receive())
    assert await in_time(both.queue.purge()) == 9
    seen = await both.owner.statistics()
    assert (seen.length, seen.in_flight) == (0, 1)
    await delivery.nack()
    assert await drained(both.queue) == ITEMS[:1]
    assert await in_time(both.queue.purge()) == 0


@every_kind
async def test_a_paused_or_closed_queue_can_be_purged(both: Both) -> None:
    await both.owner.create()
    await both.queue.put_many(ITEMS)
    await both.owner.pause()
    assert await in_time(both.queue.purge()) == 10
    await both.queue.put_many(ITEMS)
    await both.owner.close()
    assert await in_time(both.queue.purge()) == 10


@every_kind
async def test_unblock_ends_what_waits(both: Both) -> None:
    await both.owner.create(bound=1)

    async def unblock(*waiting: asyncio.Task[Any]) -> None:
        count = 0
        async with asyncio.timeout(PATIENCE):
            while count < len(waiting):
                count += await both.queue.unblock()
                await asyncio.sleep(0.01)  # on a busy machine they may not wait yet
        for task in waiting:
            error = await fails(OperationUnblockedError, task)
            assert str(error) == "the operation on the queue 'jobs' was unblocked"
        assert (count, await both.queue.unblock()) == (len(waiting), 0)

    await unblock(await both.begin(both.queue.receive()), await both.begin(both.queue.receive_many(2)))
    await both.queue.put(b"0")
    await unblock(await both.begin(both.queue.put(b"1")))
    assert await drained(both.queue) == ITEMS[:1]


@every_kind
async def test_dead_letters_say_why_and_come_back(both: Both) -> None:
    queue = await both.open(max_attempts=1)
    await both.owner.create()
    await queue.put_many(ITEMS[:3])
    for error in (LookupError("first"), "second", None):
        await (await in_time(queue.receive())).nack(error)
    await fails(QueueEmptyError, queue.receive(timeout=0))
    letters = await queue.dead_letters()
    assert [letter.item for letter in letters] == ITEMS[:3]
    assert [letter.error and letter.error.message for letter in letters][:2] == ["first", "second"]
    assert [letter.item for letter in await queue.dead_letters(limit=2)] == ITEMS[:2]
    moved = await queue.requeue(ids=[letters[1].id, letters[1].id])
    assert (moved, moved.not_found) == (1, ())
    assert await queue.requeue(1, timeout=0) == 1
    assert await queue.requeue() == 1
    assert await drained(queue) == [b"1", b"0", b"2"]


@every_kind
async def test_a_closed_object_says_so(both: Both) -> None:
    await both.owner.create()
    await both.queue.aclose()
    for verb in VERBS:
        if "deadline" in VERBS[verb] and hasattr(both.queue, verb):
            await fails(ClientClosedError, _call(both.queue, verb))


@every_kind
async def test_the_time_that_a_program_asks_for_does_not_count(both: Both) -> None:
    """Another consumer, which begins later and is more patient, has asked for none."""
    await both.owner.create()
    await both.owner.put_many([b"1", b"2"])
    options: dict[str, Any] = {"prefetch": 1, "lease": 1, "shared": True}
    async with both.queue.consumer("manual", max_hold=0.5, **options) as consumer:
        delivery = await anext(consumer)
        await delivery.extend(600)
        with contextlib.suppress(LeaseLostError):  # at the end of the block, of some kinds
            async with both.owner.consumer("manual", max_hold=1, **options) as late:
                lost: list[Exception] = []
                late.on_lost(lost.append)
                await anext(late)
                await eventually(lambda: lost)
                await delivery.ack()
    assert await both.owner.qsize() == 1
