"""The two lanes of a queue: a client's concurrent puts become one step, and so do its gets."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from apressure.connection.dedup import DedupSeries, PutScript
from apressure.connection.sender import soon
from apressure.connection.waiting.waiter import SLICE
from apressure.connection.wire.script import Request
from apressure.core.dedup_lane import DedupLane, arguments
from apressure.core.due import Due
from apressure.core.putting import Putting, PuttingLane
from apressure.core.taking import TakeLane
from apressure.core.waiting import Parked, Wait
from apressure.items import Progress
from apressure.pressure.engine.steps import Steps
from apressure.pressure.engine.waits import Notice, Waits

KEYLESS: Final = "an AsyncQueue keeps nothing beside a message"
"""Why it cannot tell the messages of a key."""

MAX_MESSAGES: Final = 2000
"""The most messages in one step, so that it does not hold up the server for more than a few milliseconds."""

_LETTERS: Final = "type(answer) == 'number' and string.rep('k', answer)"
PUT_ONCE: Final = PutScript(name="put", record=27, sequence=2, head=6, width=1, put=_LETTERS)
DELAY_ONCE: Final = PUT_ONCE._replace(name="delay", width=2)
"""How messages with a dedup id are put."""


class Put(Putting[Any]):
    """Messages on their way into the queue; in a `DelayLane` pairs, each with when it is due."""

    expected = True


class PutLane(PuttingLane[Put]):
    """The puts of a client's tasks.

    Args:
        steps, waits: As for `Lane`.
        token: The lease token of an exclusive producer; empty without one.
        force: Ignore the bound. Forced puts have a lane of their own, since they do not wait behind others.
    """

    _most = MAX_MESSAGES
    _script = "put"
    _steps: Steps
    _waits: Waits

    def __init__(self, steps: Steps, waits: Waits, token: bytes = b"", force: bool = False) -> None:
        super().__init__(steps, waits)
        self._notice = Notice(steps.name)
        self._token = token
        self._force = force
        self._since: float | None = None  # since when there is room, and the permit is missing

    def _put(self, items: Sequence[Any], expected: bool) -> Request:  # noqa: ARG002
        lost = self._since is not None and asyncio.get_running_loop().time() - self._since >= SLICE
        return self._steps.put(
            self._script, self._series, self._given(items), self._token, self._force, self._answered, lost
        )

    def _given(self, items: Sequence[Any]) -> Iterable[bytes]:
        """Return the last arguments of the script."""
        return items

    def _sizes(self, items: Sequence[Any]) -> Iterable[int]:
        return map(len, items)

    def _park(self, wait: Wait) -> Parked:
        return self._waits.park(wait, self._moment, self._token)

    def _answered(self, answer: Any) -> None:
        if not isinstance(answer, Wait) or answer.reason != "full":
            self._since = None
        else:
            self._window = 16
            if self._since is None:
                self._since = asyncio.get_running_loop().time()
        super()._answered(answer)


class DelayLane(PutLane):
    """The puts of a client's tasks for later."""

    _most = MAX_MESSAGES // 2  # each has two arguments
    _script = "delay"

    def _given(self, items: Sequence[Any]) -> Iterable[bytes]:
        return itertools.chain.from_iterable(items)

    def _sizes(self, items: Sequence[Any]) -> Iterable[int]:
        return [len(message) for message, *_ in items]


class OnceLane(DedupLane[Put], PutLane):
    """The puts of a client's tasks that have a dedup id."""

    _how = PUT_ONCE

    def __init__(self, steps: Steps, waits: Waits, token: bytes = b"", force: bool = False) -> None:
        super().__init__(steps, waits, token, force)
        self._series = DedupSeries(steps, self._how)

    def _given(self, items: Sequence[Any]) -> Iterable[bytes]:
        return arguments(items)

    def _sizes(self, items: Sequence[Any]) -> Iterable[int]:
        return [len(message) for message, *_ in items]


class OnceDelayLane(OnceLane):
    """The same for later."""

    _script = "delay"
    _how = DELAY_ONCE


def lane_for(due: Due) -> tuple[type[PutLane], tuple[Any, ...]]:
    """Return the kind of lane for a put on those terms, and what its items have behind each message."""
    if due.dedup is None:
        return DelayLane, (due.encoded,)
    if due.milliseconds or due.absolute:
        return OnceDelayLane, (due.encoded, due.dedup)
    return OnceLane, (due.dedup,)


class Want(NamedTuple):
    """What a get asks for, beside messages: nothing, and it is at-most-once."""

    lease: int = 0
    expected: bool = True


GET: Final = Want()


class GetLane(TakeLane[Want, bytes]):
    """The gets of a client's tasks: at-most-once."""

    _most = MAX_MESSAGES
    _steps: Steps
    _waits: Waits

    def __init__(self, steps: Steps, waits: Waits) -> None:
        super().__init__(steps, waits)
        self._notice = Notice(steps.name)
        self._series = steps.gets()

    @property
    def _step(self) -> int:
        return 0 if self._series is None else self._series.number

    def _take(self, most: int, want: Want, waits: bool) -> Request:  # noqa: ARG002
        place = self._waits.take_turn() if waits else b""
        return self._steps.get(self._series, most, place, self._answered)

    def _messages(self, answer: Any) -> list[bytes]:
        return answer if isinstance(answer, list) else []

    def _note(self, answer: list[bytes]) -> None:
        self._steps.counts.received_count += len(answer)

    def _return(self, step: int, messages: Sequence[bytes]) -> asyncio.Future[Any]:
        return soon(functools.partial(self._steps.give_back, self._series, step, messages))

    def _fate(self, messages: Sequence[bytes]) -> str:  # noqa: ARG002
        return "they are lost"


async def put_chunk(
    send: Callable[[Put, float | None], Awaitable[None]], chunk: list[bytes], timeout: float | None, progress: Progress
) -> None:
    """Put messages in order, waiting for room; the progress counts what is in the queue, also at a failure."""
    put = Put(chunk)
    try:
        await send(put, timeout)
    finally:
        progress.accepted += put.done
