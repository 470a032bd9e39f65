"""A lease: what a client has in hand under it, what it has acknowledged of that, and why the rest goes back.

Numbers come in order, and most are acknowledged in order: so acknowledgements travel as ranges, and one more costs no
more than to let a number grow.
"""

from __future__ import annotations

import asyncio
import bisect
import copy
import itertools
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from apressure import dead_letters
from apressure.connection.wire.command import Argument
from apressure.core.due import Due
from apressure.core.leases.clock import Term
from apressure.exceptions import DurabilityError
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.steps import Range

Received = tuple[int, bytes, int]
"""A message in flight: its number under the lease, its bytes, and how often it has been delivered."""


def firsts(ranges: Iterable[Range]) -> set[int]:
    """What tells ranges from each other, also when one grows: their first numbers."""
    return {first for first, _, _ in ranges}


def count_of(ranges: Iterable[Range]) -> int:
    """How many messages these are."""
    return sum(last - first + 1 for first, last, _ in ranges)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order. Those that touch or overlap are one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


class RangeHand:
    """The messages in flight under one lease, and the acknowledgements that have gathered since the last step left.

    Args:
        dead: Where messages go that were delivered too often; None to keep no errors.

    Attributes:
        dead: As given.
        on_first: Called with the first acknowledgement of a run: the others leave with it.
    """

    on_first: Callable[[], None]

    def __init__(self, dead: DeadLetters | None) -> None:
        self.dead = dead
        self._errors: dict[int, bytes] = {}  # why deliveries failed, until the step leaves that gives them back
        self._released: set[int] = set()  # those that go back as if they had not been delivered
        self._replies: dict[int, bytes] = {}  # to requests that are acknowledged, until a step has sent them
        self._dues: dict[int, Due] = {}  # when those are due that go back for later, as long
        self._redelivered: set[int] = set()  # deliveries that may have an error on the server
        self._sizes: dict[int, int] = {}  # of what is not settled, and of the run
        self._ranges: list[Range] = []
        self._first = 0
        self._next = 0  # the number that the run of acknowledgements would go on with; 0 where there is none

    def __bool__(self) -> bool:
        """Something is in flight that nobody has settled."""
        self._end_run()
        return bool(self._sizes)

    def __contains__(self, number: int) -> bool:
        self._end_run()
        return number in self._sizes

    @property
    def outstanding(self) -> int:
        """How many messages are in flight, with those whose acknowledgements have not left. Changes nothing."""
        return len(self._sizes)

    @property
    def acked(self) -> bool:
        """There are acknowledgements to be sent."""
        return bool(self._next or self._ranges)

    @property
    def progress(self) -> Hashable:
        """Another value after each acknowledgement, also before it leaves. Changes nothing: another thread asks."""
        return len(self._sizes), self._next, bool(self._ranges)

    @property
    def acks(self) -> list[Range]:
        """The acknowledgements that are to be sent."""
        self._end_run()
        return self._ranges

    def ranges(self) -> list[tuple[int, int]]:
        """The numbers of the messages in flight without those that are to be acknowledged, as ranges: first, last."""
        self._end_run()
        return merged(zip(self._sizes, self._sizes, strict=True))

    def receive(self, numbers: range, sizes: Iterable[int], attempts: Sequence[int]) -> None:
        """Messages have come, with the number of the attempt of each unless it is the first of them all."""
        self._sizes.update(zip(numbers, sizes, strict=True))
        if attempts and self.dead is not None:
            self._redelivered.update(number for number, attempt in zip(numbers, attempts, strict=False) if attempt > 1)

    def ack(self, number: int) -> None:
        """Acknowledge a message with the next step that leaves, at the latest in the next turn of the event loop."""
        if number == self._next:
            self._next = number + 1
            return
        self._end_run()
        self._first, self._next = number, number + 1
        self.on_first()

    def run(self, first: int, last: int) -> Range:
        """Return the range of these messages, which another step acknowledges; `settled` says when it has."""
        return first, last, sum([self._sizes.get(number, 0) for number in range(first, last + 1)])

    def settled(self, numbers: Iterable[int]) -> None:
        """Another step than a lease's own has acknowledged these messages."""
        for number in numbers:
            self._sizes.pop(number, None)
            self._forget(number)

    def give_back(self, number: int) -> None:
        """A message goes back to the queue."""
        self._end_run()
        self._sizes.pop(number, None)

    def take(self) -> list[Range]:
        """Return the acknowledgements for a step to carry. Sent again, they are the same ranges."""
        acks, self._ranges = self.acks, []
        return acks

    def take_back(self, acks: Iterable[Range]) -> None:
        """The step was refused: its acknowledgements go with another one."""
        self._ranges = [*acks, *self.acks]

    def clear(self) -> None:
        """Nothing of it is this client's any more."""
        self._next = 0
        self._ranges.clear()
        self._sizes.clear()
        self._errors.clear()
        self._replies.clear()
        self._dues.clear()
        self._released.clear()
        self._redelivered.clear()

    def note_error(self, number: int, error: BaseException | str) -> None:
        """Keep the error of a delivery that will go back."""
        text = dead_letters.encode(error)
        if self.dead is not None and self.dead.keep_errors:
            self._errors[number] = text

    def note_reply(self, number: int, request_id: str, reply: bytes) -> None:
        """Send a reply with the acknowledgement of a delivery."""
        self._replies[number] = b"=%d:%b %b" % (number, request_id.encode(), reply)

    def note_due(self, number: int, due: Due) -> None:
        """A delivery will go back for later."""
        self._dues[number] = due

    def note_release(self, number: int) -> None:
        """A delivery will go back as if it had not been delivered."""
        self._released.add(number)

    @property
    def kept_errors(self) -> DeadLetters | None:
        """Where errors are to be forgotten, if any message in flight may have one on the server."""
        return self.dead if self._redelivered else None

    def failed_before(self, ranges: Iterable[Range]) -> bool:
        """Whether any of these messages may have an error on the server."""
        redelivered = self._redelivered
        return bool(redelivered) and any(first <= number <= last for first, last, _ in ranges for number in redelivered)

    def replies_to(self, acks: Iterable[Range]) -> Sequence[Argument]:
        """Return the replies that go with these acknowledgements, as a step takes them."""
        if not self._replies:
            return ()
        return [self._replies[number] for number in self._replied(acks)]

    def forget_replies(self, acks: Iterable[Range]) -> None:
        """A step has sent the replies that go with these acknowledgements. Until then, each step sends them again."""
        for number in self._replied(acks) if self._replies else ():
            del self._replies[number]

    def _replied(self, acks: Iterable[Range]) -> list[int]:
        ranges = merged(ack[:2] for ack in acks)
        firsts = [first for first, _ in ranges]
        return [n for n in self._replies if (place := bisect.bisect(firsts, n)) and n <= ranges[place - 1][1]]

    def take_errors(
        self, acks: Iterable[Range], nacks: Sequence[int], leave: bool = False
    ) -> tuple[Sequence[Argument], DeadLetters | None]:
        """Return `nacks` and `dead` as the step takes them that settles these deliveries.

        With `leave`, it settles all others, too.
        """
        if not (self._errors or self._redelivered or self._dues or self._released):
            return nacks, None
        acks = list(acks)
        reasons = self.failed_before(acks)
        for numbers in (self._errors, self._redelivered):
            for number in [n for n in numbers for first, last, _ in acks if first <= n <= last]:
                self._forget(number)
        arguments: list[Argument] = []
        for number in dict.fromkeys((*nacks, *sorted(self._errors))) if leave else nacks:
            error, due, mark = self._errors.get(number), self._dues.pop(number, None), b""
            if number in self._released:
                self._released.discard(number)
                mark = b"-"
            if error is None and due is None and not mark:
                arguments.append(number)
            else:
                when = b"" if due is None else b">" + due.encoded
                arguments.append(b"%d%b%b%b" % (number, mark, when, b"" if error is None else b":" + error))
            reasons |= error is not None
            self._forget(number)
        return arguments, self.dead if reasons else None

    def _forget(self, number: int) -> None:
        self._errors.pop(number, None)
        self._redelivered.discard(number)

    def _end_run(self) -> None:
        if self._next:
            sizes = self._sizes
            size = sum(map(sizes.pop, range(self._first, self._next), itertools.repeat(0)))
            self._ranges.append((self._first, self._next - 1, size))
            self._next = 0


class Step(asyncio.Future[Any]):
    """A step on its way under a lease; done when it has been answered, also with an error as its result.

    Args:
        acks: The acknowledgements that travel with it.
        nacks: The numbers of the messages that it gives back.
        unseen: From this number on, they were never handed out; 0 if all were.

    Attributes:
        acks, nacks, unseen: As given.
        awaited: How many callers wait for it.
    """

    awaited = 0

    def __init__(self, acks: Sequence[Range], nacks: Sequence[int] = (), unseen: int = 0) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.acks = acks
        self.nacks = nacks
        self.unseen = unseen


class LeaseState:
    """A lease on the consumer role, and what is in flight under it.

    Args:
        term: How long it lasts.
        kept: Whether it lasts while nothing is in flight; otherwise the role goes back with the last message.
        shared: Whether it is a member's share of the role.
        dead: Where messages go that were delivered too often; None to deliver them for ever.
        on_broken: Called once, with the error, where a step finds that the lease is invalid.

    Attributes:
        token: The lease's name on the server.
        term, kept, shared: As given.
        unsettled: The messages in flight, and why they go back.
        buffer: Those of them that were not handed out yet.
        error: Why the lease is invalid; None while it is valid.
        drained: The consumer has got everything, and the queue is closed.
        unsure: Too few replicas confirmed a step that no caller waited for: the next caller gets this.
        unanswered: The acknowledgements that got no answer, or failed, and that no other step carries.
    """

    def __init__(
        self, term: Term, kept: bool, shared: bool, dead: DeadLetters | None, on_broken: Callable[[Exception], None]
    ) -> None:
        self.token = os.urandom(8).hex().encode()
        self.term = term
        self.kept = kept
        self.shared = shared
        self.unsettled = RangeHand(dead)
        self.buffer: deque[Received] = deque()
        self.error: Exception | None = None
        self.unsure: DurabilityError | None = None
        self.unanswered: set[Range] = set()
        self.drained = False
        self._on_broken = on_broken

    def is_last(self, attempts: int) -> bool:
        """Whether a message that was delivered so often becomes a dead letter when it goes back."""
        return self.unsettled.dead is not None and attempts >= self.unsettled.dead.max_attempts

    def check(self) -> None:
        """Raise the reason where the lease is invalid, or what no caller was told."""
        if self.error is not None:
            self.buffer.clear()
            raise copy.copy(self.error)
        if self.unsure is not None:
            unsure, self.unsure = self.unsure, None
            raise unsure

    def broken(self, error: Exception, acks: Iterable[Range]) -> None:
        """A step with these acknowledgements has failed: the lease is invalid from now on."""
        if self.error is None:
            self.error = error
            self._on_broken(error)
        self.unanswered.update(acks, self.unsettled.acks)
        self.unsettled.clear()  # (The buffer stays: `check` empties it.)
