"""`deadline=` holds while the disk does not answer: the call ends later, and what it did then is undone or known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apressure import DeadlineError, DeadlineOutcomeUnknownError, FileQueue, QueueEmptyError, QueueFullError
from apressure.files.storage.directory import Directory
from apressure.files.storage.messages import contents
from tests.integration.conftest import PATIENCE, fails, in_time
from tests.integration.files.conftest import MODES, Make, drain

SOON = 0.1
LATER = 3.0  # seconds in which a busy machine makes some steps


class Answers(threading.Event):
    """Set when calls that hang may go on.

    Attributes:
        awaited: Set when the first one hangs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()


Hang = Callable[[Any, str], Answers]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """`hang(owner, name)`: calls of this function hang until the event that is returned is set. None may fail then."""
    events: list[threading.Event] = []
    errors: list[BaseException] = []

    def hang(owner: Any, name: str) -> Answers:
        works, answers = getattr(owner, name), Answers()
        events.append(answers)

        def hangs(*arguments: Any, **options: Any) -> Any:
            answers.awaited.set()
            answers.wait()
            try:
                return works(*arguments, **options)
            except BaseException as error:
                errors.append(error)
                raise

        monkeypatch.setattr(owner, name, hangs)
        return answers

    yield hang
    for event in events:
        event.set()
    assert not errors


@pytest.mark.parametrize("mode", [MODES["fsync"], {"fsync": True, "threads": True}], ids=["fsync", "threads"])
async def test_a_put_on_a_disk_that_hangs_has_an_unknown_outcome(make: Make, hang: Hang) -> None:
    queue = make()
    await queue.put(b"0")
    answers = hang(contents, "sync")
    error = await fails(DeadlineOutcomeUnknownError, queue.put(b"1", deadline=SOON), "'orders' .* deadline of 0.1 s")
    assert error.name == "orders"
    assert await queue.qsize() == 1
    answers.set()
    async with asyncio.timeout(PATIENCE):
        while await queue.qsize() < 2:
            await asyncio.sleep(0.01)
    await queue.put(b"2")
    assert await drain(queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mode", [MODES["threads"]], ids=["threads"])
async def test_what_is_taken_too_late_goes_back_as_if_it_had_not_been_taken(make: Make, hang: Hang) -> None:
    queue = make()
    await queue.put_many([b"0", b"1"])
    answers = hang(Directory, "take")
    await fails(DeadlineOutcomeUnknownError, queue.receive_many(2, deadline=SOON))
    answers.set()
    await in_time(queue.peek())  # in the thread, behind the late call and what gives back: meanwhile others are next
    deliveries = await in_time(queue.receive_many(2))
    assert [(delivery.raw, delivery.attempts) for delivery in deliveries] == [(b"0", 1), (b"1", 1)]


@pytest.mark.parametrize("mode", [MODES["notified"]], ids=["notified"])
async def test_a_directory_is_not_closed_under_a_call_that_hangs(make: Make, hang: Hang) -> None:
    queue: FileQueue[bytes] = make(max_attempts=1)
    await queue.put(b"0")
    await (await queue.receive()).nack()
    await fails(QueueEmptyError, queue.receive(timeout=0))
    answers = hang(Directory, "letter")
    assert type(await fails(DeadlineError, queue.dead_letters(deadline=SOON))) is DeadlineError
    answers.set()
    assert [letter.item for letter in await in_time(queue.dead_letters())] == [b"0"]


@pytest.mark.parametrize("mode", [MODES["notified"], MODES["threads"]], ids=["notified", "threads"])
async def test_it_covers_waiting_and_says_how_much_was_done(make: Make) -> None:
    queue: FileQueue[bytes] = make(max_attempts=1)
    await queue.create(bound=3)
    await queue.put_many([b"0", b"1", b"2"])
    assert type(await fails(DeadlineError, queue.put(b"3", deadline=SOON))) is DeadlineError
    await fails(QueueFullError, queue.put(b"3", timeout=0, deadline=PATIENCE))
    for delivery in await queue.receive_many(3):
        await delivery.nack()
    await fails(QueueEmptyError, queue.receive(timeout=0))
    error = await fails(DeadlineError, queue.put_many([b"%d" % number for number in range(5)], deadline=LATER))
    assert (type(error), error.accepted) == (DeadlineError, 3)
    await (await queue.receive()).ack()
    error = await fails(DeadlineError, queue.requeue(deadline=LATER))
    assert (type(error), error.accepted) == (DeadlineError, 1)


@pytest.mark.parametrize("mode", [MODES["threads"]], ids=["threads"])
async def test_a_cancellation_still_waits_for_a_call_without_a_deadline(make: Make, hang: Hang) -> None:
    queue = make()
    await queue.create()
    answers = hang(contents, "write")
    putting = asyncio.ensure_future(queue.put(b"0"))
    assert await asyncio.to_thread(answers.awaited.wait, PATIENCE)
    putting.cancel()
    done, _ = await asyncio.wait((putting,), timeout=0.05)
    assert not done
    answers.set()
    await fails(asyncio.CancelledError, putting)
    assert await drain(queue) == [b"0"]
