"""The lanes of a queue of events: a client's concurrent pushes become one step, and so do its pops and its settling."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from apressure.connection.dedup import DedupSeries, PutScript
from apressure.connection.waiting.waiter import SLICE, Behind, Waiter
from apressure.connection.wire.channel import ConnectionLost
from apressure.connection.wire.script import Request
from apressure.core.dedup_lane import DedupLane, arguments
from apressure.core.driver import OnAnswer
from apressure.core.putting import Putting, PuttingLane
from apressure.core.settling import Settler
from apressure.core.taking import TakeLane
from apressure.core.waiting import Parked, Wait
from apressure.events.engine.answers import Event, duplicate
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits

PUT_ONCE: Final = PutScript(
    name="delay", record=26, sequence=1, head=3, width=3, put="answer[1] == 'pushed' and answer[2]",
    unfinished="return redis.call('HEXISTS', KEYS[3], id) == 1 or redis.call('HEXISTS', KEYS[20], id) == 1",
    waiting="""\
  if redis.call('HEXISTS', KEYS[20], id) == 1 then return true end
  if redis.call('EXISTS', KEYS[1] .. ':lock:' .. id) == 1 then return false end
  local indexed = redis.call('ZCARD', KEYS[7]) == redis.call('LLEN', KEYS[2])
  if indexed then return not redis.call('ZSCORE', KEYS[7], id) end
  return not redis.call('LPOS', KEYS[2], id)
""",
)  # fmt: skip
"""How events with a dedup id are put; those that are not done have contents in `:items` or `:later`.

An event is in flight while its id is in `:claimed`, which may be long, and with okq while it has a lock.
"""

Pair = tuple[bytes, bytes]
"""An event's id and its contents."""


class Push(Putting[Any]):
    """Events on their way into the queue: pairs, or triples with when each is due."""


class PushLane(PuttingLane[Push]):
    """The puts of a client's tasks.

    Args:
        steps, waits: As for `Lane`.
        send: Sends a step that puts events, such as `EventSteps.send_push` and `send_delay`.
    """

    _most = MAX_EVENTS
    _steps: EventSteps
    _waits: EventWaits

    def __init__(self, steps: EventSteps, waits: EventWaits, send: Callable[..., Request]) -> None:
        super().__init__(steps, waits)
        self._send_events = send

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        self._waits.take_room()
        return self._send_events(self._series, items, expected, self._answered)

    def _count(self, answer: Any) -> int:
        return len(answer)

    def _refusal(self, entry: Push, answer: Any, begin: int, end: int) -> Exception | None:
        return duplicate(self._steps.name, entry.items[0][0]) if b"d" in answer[begin:end] else None


class AskLane(PushLane):
    """The requests of a client's tasks: each has `Pressing` terms, which count from when the step is sent."""

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return super()._put([(*event, terms.encoded) for *event, terms in items], expected)


class OnceLane(DedupLane[Push], PushLane):
    """The puts of a client's tasks that have a dedup id."""

    def __init__(self, steps: EventSteps, waits: EventWaits, send: Callable[..., Request]) -> None:
        super().__init__(steps, waits, send)
        self._series = DedupSeries(steps, PUT_ONCE)

    def _put(self, items: Sequence[Any], expected: bool) -> Request:
        return super()._put([arguments(items)], expected)

    def _refusal(self, entry: Push, answer: Any, begin: int, end: int) -> Exception | None:
        if answer.letters[begin:end] == b"e":
            return duplicate(self._steps.name, entry.items[0][0])
        return super()._refusal(entry, answer, begin, end)


class PopLane(TakeLane[Want, Event]):
    """The pops of a client's tasks."""

    _most = MAX_EVENTS
    _steps: EventSteps
    _waits: EventWaits

    def __init__(self, steps: EventSteps, waits: EventWaits) -> None:
        super().__init__(steps, waits)
        self._following = steps.series()  # of steps that stand behind a wait
        self._behind: object = None  # such a step

    def _take(self, most: int, want: Want, waits: bool) -> Request:
        place = self._waits.take_turn() if waits else b""
        return self._steps.send_pop(self._series, most, want, place, self._answered)

    def _park(self, wait: Wait) -> Parked:
        parked, waiter, first = super()._park(wait), self._waits.leading(wait), self._first
        # Without a lease, a client that has died would take an event with it. It is reckoned from now on.
        if waiter is not None and self._behind is None and first.want.lease > 2000 * SLICE and not parked.done():
            self._follow(waiter, first.most, first.want)
        return parked

    def _follow(self, waiter: Waiter, most: int, want: Want) -> None:
        """Send a step behind the wait, so that the event that ends it takes no second round trip.

        It takes events only while this client watches the queue.
        """
        begun = False

        def on_end() -> None:
            nonlocal begun
            if self._entries and not self._busy and self._first.want == want:
                begun = True
                self._waits.take_turn()
                self._begin(want, most)

        def on_answer(answer: Any) -> None:
            if isinstance(answer, ConnectionLost) and not begun:
                # Both may have been answered, the wait and the step, and this client hears of neither.
                on_end()
                if begun:
                    self._unpark()
            if self._steps.repeat(request, answer, begun):
                if begun:
                    self._request = request
                return
            self._behind = None
            if begun:
                self._answered(answer)
            elif events := self._messages(answer):
                # The lane had sent another step before the wait ended: what that takes came later.
                self._note(answer)
                if rest := self._hand_out(events, want):
                    self.give_back(rest, self._order(want))

        behind = self._behind = Behind(waiter, on_end)
        request = self._steps.send_pop(self._following, most, want, self._waits.place, on_answer, behind)

    def _fate(self, messages: Sequence[Event]) -> str:
        return super()._fate(messages) if messages[0].token else "they are lost"


Change = tuple[str, Sequence[bytes]]
"""What happens to a delivery, and the claim on it, as for `EventSteps.send_settle`. Each item makes one: a class would
cost as much as the rest of its acknowledgement.
"""


class EventSettler(Settler[Change, bool]):
    """Settles deliveries, one step at a time. The outcome says whether the event was still claimed.

    Args:
        steps: The queue's steps.
        keep_errors: Keep the errors of events that go back.
        max_attempts: How often an event is delivered at most; None for no limit.

    Attributes:
        keep_errors: As given, where there may be dead letters.
        max_attempts: As given.
    """

    _most = MAX_EVENTS
    _at_a_time = 1
    steps: EventSteps

    def __init__(self, steps: EventSteps, keep_errors: bool, max_attempts: int | None) -> None:
        super().__init__(steps)
        self.keep_errors = keep_errors and max_attempts is not None
        self.max_attempts = max_attempts
        self._series = steps.series()

    def _settle(self, changes: Sequence[Change], on_answer: OnAnswer) -> None:
        self.steps.send_settle(self._series, changes[0][0], [claim for _, claim in changes], False, on_answer)

    def _next(self) -> int:
        hows = [change[0] for change, _, _ in itertools.islice(self._waiting, MAX_EVENTS)]
        if hows.count(hows[0]) == len(hows):
            return len(hows)
        return next(number for number, how in enumerate(hows) if how != hows[0])

    def _outcomes(self, changes: Sequence[Change], answer: bytes) -> list[bool]:
        # A late answer to a repeat has no letters: its step was done, and nothing is known.
        return list(map(b"1"[0].__eq__, answer)) or [True] * len(changes)

    def _settled(self, changes: Sequence[Change], outcomes: Sequence[bool]) -> int:
        return sum(outcomes) if changes[0][0] in ("ack", "reply") else 0
