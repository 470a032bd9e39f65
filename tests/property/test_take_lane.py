"""Whatever takers do, and whenever they leave: each message is handed out once, or waits in the queue again."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from apressure.core.counts import Counts
from apressure.core.driver import NotSentError
from apressure.core.taking import Take, TakeLane
from apressure.core.waiting import EMPTY, Parked, Wait
from apressure.exceptions import (
    ClientClosedError,
    DurabilityError,
    OutcomeUnknownError,
    PressureError,
    QueueEmptyError,
    ServerError,
)


class Want(NamedTuple):
    lease: int
    expected: bool = False


class Step:
    """A step on its way: it waits in the client, has been carried out, or was withdrawn."""

    def __init__(self, work: Any, on_answer: Any) -> None:
        self.work = work
        self.on_answer = on_answer
        self.executed = False
        self.answer: Any = None

    def execute(self) -> None:
        if not self.executed:
            self.executed, self.answer = True, self.work()


class World:
    """A queue, the connection to it, and those that wait. The test says when something happens."""

    name = "jobs"
    settle_timeout = 1.0

    def __init__(self) -> None:
        self.connection = self
        self.counts = Counts()
        self.queue: deque[int] = deque()
        self.steps: deque[Step] = deque()
        self.parked: list[Parked] = []
        self.lost: list[int] = []
        self.lease_of: dict[int, int] = {}
        self.put_so_far = 0
        self.created = False

    def series(self) -> None:
        """Steps have no numbers here."""

    def take_back(self, step: Step) -> bool:
        if step.executed or step not in self.steps:
            return False
        self.steps.remove(step)
        step.on_answer(NotSentError())
        return True

    def send(self, work: Any, on_answer: Any) -> Step:
        self.steps.append(Step(work, on_answer))
        return self.steps[-1]

    def take(self, most: int, lease: int) -> list[int] | Wait:
        taken = [self.queue.popleft() for _ in range(min(most, len(self.queue)))]
        self.lease_of.update(dict.fromkeys(taken, lease))
        return taken or EMPTY._replace(created=self.created)

    def put_back(self, messages: Sequence[int]) -> int:
        assert list(messages) == sorted(messages)
        self.queue.extendleft(reversed(messages))
        asyncio.get_running_loop().call_soon(self.wake)
        return len(messages)

    def execute(self) -> None:
        """The server carries out the first step that it has not carried out yet."""
        for step in self.steps:
            if not step.executed:
                step.execute()
                return

    def answer(self, how: str = "well") -> None:
        """The client reads an answer."""
        if not self.steps:
            return
        step = self.steps[0]
        takes = step.work.__name__ == "taking"
        if how == "refused" and takes and not step.executed:
            answer: Any = ServerError("refused")
        else:
            step.execute()
            answer = step.answer
        if takes and isinstance(answer, list):
            if how == "unsure":
                answer = OutcomeUnknownError("lost")
                self.lost += step.answer
            elif how == "not durable":
                answer = DurabilityError("no replica")
                answer.answer = step.answer
        self.steps.popleft()
        step.on_answer(answer)

    def put(self, count: int) -> None:
        self.queue.extend(range(self.put_so_far, self.put_so_far + count))
        self.put_so_far += count
        self.wake()

    def wake(self) -> None:
        parked, self.parked = self.parked, []
        for future in parked:
            if not future.done():
                future.set_result(None)
                if future.on_wake is not None:
                    future.on_wake(future)

    # What a lane wants to know of those that wait.

    def note(self) -> list[int]:
        return []

    def park(self, wait: Wait, noted: list[int]) -> Parked:
        future = Parked()
        self.parked.append(future)
        if self.queue:
            asyncio.get_running_loop().call_soon(self.wake)
        return future

    def drop(self, wait: Wait) -> None: ...

    def hand_back(self, role: str) -> None: ...


class Taking(TakeLane[Want, int]):
    _most = 5
    _steps: World

    def _take(self, most: int, want: Want, waits: bool) -> Any:
        def taking() -> Any:
            return self._steps.take(most, want.lease)

        return self._steps.send(taking, self._answered)

    def _messages(self, answer: Any) -> list[int]:
        return answer if isinstance(answer, list) else []

    def _note(self, answer: list[int]) -> None:
        self._steps.counts.received_count += len(answer)

    def _return(self, step: int, messages: Sequence[int]) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._steps.send(lambda: self._steps.put_back(messages), done.set_result)
        return done


def random_action(choice: random.Random) -> tuple[Any, ...]:
    """Something that happens, by its name in `play`."""
    name = choice.choice(
        ("take", "take", "cancel", "cancel", "answer", "answer", "turn", "turn", "turn", "execute", "put", "rare")
    )
    match name:
        case "take":
            return name, choice.randint(1, 4), choice.choice((0, 0, 0, 30)), choice.random() < 0.2
        case "cancel":
            return name, choice.randint(0, 3)
        case "answer":
            return name, choice.choice((*["well"] * 6, "not durable", "refused", "unsure"))
        case "put":
            return name, choice.randint(1, 4)
        case "rare":
            return (choice.choice(("create", "end", "turn")),)
    return (name,)


async def play(actions: Sequence[Any]) -> None:
    world = World()
    world.put(3)
    lane = Taking(world, world)
    takers: list[asyncio.Task[list[int]]] = []
    leases: list[int] = []
    for action, *arguments in actions:
        match action:
            case "take":
                most, lease, now = arguments
                takers.append(asyncio.create_task(lane.run(Take(most, Want(lease)), None, now)))
                leases.append(lease)
                await asyncio.sleep(0)
            case "cancel" if arguments[0] < len(takers):
                takers[-1 - arguments[0]].cancel()
            case "put":
                world.put(*arguments)
            case "answer":
                world.answer(*arguments)
            case "execute":
                world.execute()
            case "create":
                world.created = True
            case "turn":
                await asyncio.sleep(0)
            case "end":
                lane.end(ClientClosedError("ended"))
    await asyncio.sleep(0)
    for _ in range(1000):
        if all(taker.done() for taker in takers) and not world.steps:
            break
        world.answer()
        await asyncio.sleep(0)
        if not world.steps and not world.queue:
            lane.end(ClientClosedError("ended"))  # nothing comes any more
    assert all(taker.done() for taker in takers), "a taker waits for nothing"
    handed: list[int] = []
    for taker, lease in zip(takers, leases, strict=True):
        if not taker.cancelled() and not isinstance(taker.exception(), PressureError):
            handed += taker.result()
            assert {world.lease_of[message] for message in taker.result()} == {lease}
    assert sorted([*handed, *world.queue, *world.lost]) == list(range(world.put_so_far))
    assert lane.waiting == 0
    assert world.counts.received_count >= len(handed)
    assert world.counts.deleted_count == sum(not world.lease_of[message] for message in handed)


def test_each_message_is_handed_out_once_or_waits_again() -> None:
    for seed in range(3000):
        choice = random.Random(seed)
        actions = [random_action(choice) for _ in range(choice.randint(5, 60))]
        try:
            asyncio.run(asyncio.wait_for(play(actions), 60))
        except BaseException as error:
            error.add_note(f"seed {seed}: {actions}")
            raise


async def test_a_cancelled_takers_timeout_does_not_end_its_wait_for_the_outcome() -> None:
    world = World()
    world.put(1)
    lane = Taking(world, world)
    entry = Take(1, Want(0))
    taker = asyncio.create_task(lane.run(entry, 60, False))
    await asyncio.sleep(0)
    world.execute()
    taker.cancel()
    await asyncio.sleep(0)
    lane._expire(entry)  # as its timer would
    await asyncio.sleep(0)
    assert (lane.waiting, taker.done()) == (1, False)
    while world.steps or not taker.done():  # the taking, and the giving back
        world.answer()
        await asyncio.sleep(0)
    assert (taker.cancelled(), lane.waiting, list(world.queue)) == (True, 0, [0])


async def test_a_timeout_that_passes_while_a_step_is_on_its_way_counts_when_it_is_answered() -> None:
    world = World()
    lane = Taking(world, world)
    late, lucky = Take(1, Want(0)), Take(1, Want(0))
    takers = [asyncio.create_task(lane.run(entry, 60, False)) for entry in (late, lucky)]
    await asyncio.sleep(0)
    lane._expire(late)
    world.answer()
    await asyncio.sleep(0)
    assert isinstance(takers[0].exception(), QueueEmptyError)
    world.put(1)
    lane._expire(lucky)
    world.answer()
    assert await takers[1] == [0]
