"""How a program says how many messages may wait, and how many are handed out: over all processes, until changed."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import ClassVar, Final, Protocol, cast

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.administration import Administration
from apressure.core.due import knows_no_keys
from apressure.core.limits import Changes, Limits
from apressure.exceptions import UnsupportedError

MOST: Final = 10**9
"""The most messages of a limit, and the most milliseconds of the time that a rate is counted in."""
LONGEST_HOLD: Final = MOST / 1000
"""Seconds."""
FASTEST: Final = 1000
"""The most messages in a millisecond that a rate may allow."""
MOST_POINTER: Final = 512
"""Characters: the longest JSON pointer."""


_POINTER: Final = re.compile(r"(/([^~/]|~[01])*)+")


def pointer_of(pointer: str) -> None:
    """Check a JSON pointer.

    Raises:
        TypeError, ValueError: It is none.
    """
    if not _POINTER.fullmatch(validation.text(pointer, "pointer")) or len(pointer) > MOST_POINTER:
        raise ValueError(
            f"pointer must be a JSON pointer of up to {MOST_POINTER} characters, such as '/customer/id', not "
            f"{pointer[:100]!r}"
        )


class LimitSteps(Protocol):
    """The step of a driver that changes limits, or the bound."""

    async def limit(self, changes: Changes, expected: bool) -> None:
        """Set `count`, `per` (milliseconds) and `burst` of the rate, `concurrency`, or `held` (milliseconds from now).

        Also `key_most` (0 for any number), `key_fair` and `key_pointer`: see `set_key`. None removes a limit. 0 for
        `held` ends a hold; any other number makes it no shorter than it is. Or only `spent`: how much more messages
        have cost, who says so, and a number, with `:` in between. Each number counts once. Or only `bound`.
        """


class Limiting(Administration):
    """A queue that says how many messages are handed out."""

    _unable_to_limit: ClassVar[str] = ""
    """What this kind of queue is called in the error, if it cannot limit its consumers."""

    _keyless: str = ""
    """Why this queue cannot tell the messages of a key, if it cannot."""

    _spender: tuple[str, Iterator[int]] | None = None
    """What this object is called where it spends: not drawn before, since a process may be forked until then."""

    @with_deadline()
    async def set_bound(self, bound: int, *, deadline: float | None = None) -> None:
        """Change the bound of a queue that exists, for all processes. It lasts until changed.

        Puts that wait because the queue is full go on at once, as far as there is room now. No message is lost by a
        lower bound: those that are there stay, and puts wait until fewer than the bound are left.

        Args:
            bound: The most messages that may wait; 0 for no bound. See `create`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue. One that exists since its first put counts as created then.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            ServerTooOldError: It is on a released okq.
            StorageError: The file system refused.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            TypeError, ValueError: The bound is not a whole number of messages.

        Cancelled, the bound is changed or not; setting it again is safe.

        On this kind:
            AsyncQueue: Consumers hold as many messages in hand as fitted the bound when they began.
            EventQueue, TaskQueue: An okq or a blueque beside us does not know the bound.
            FileQueue: A `FileQueue` with a `bound=` of its own keeps that. Without notifications of files, puts that
                wait go on later.
        """
        validation.whole(bound, "bound", 0, self._max_bound, "messages")
        self.check()
        await self._set_bound(bound)

    @with_deadline()
    async def set_rate(
        self, count: int | None, per: float = 1.0, burst: int | None = None, *, deadline: float | None = None
    ) -> None:
        """Limit how many messages the queue hands out in a time, to all processes together. It lasts until changed.

        Consumers, `serve`, `receive` and `get` wait for the next one, by the server's clock; nothing polls, and no
        attempt is used up. What comes again counts again. A message that was put with a `cost` counts for so many; one
        that costs more than there is left is handed out, and the next ones wait for longer. A limited queue hands out
        no more than its rate allows, so nothing is read ahead beyond that. What has been handed out when the rate is
        set, is not taken back.

        Args:
            count: So many messages; None for no rate.
            per: In so many seconds, in whole milliseconds.
            burst: How many may be handed out at once after a quiet time. Then the rate is kept in the long run, and a
                window of `per` seconds may have up to `burst - 1` more. None: no window has more than `count`, and at
                most a fiftieth of them come at once.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            UnsupportedError: It is a `FileQueue`, which has no server that could count for all processes.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            ServerTooOldError: It is on a released okq.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            TypeError, ValueError: An argument is invalid.

        Cancelled, the rate is changed or not; setting it again is safe. Programs that are not apressure's do not know
        of limits, and take what they want.
        """
        if count is None:
            await self._limit({"count": None, "per": None, "burst": None})
            return
        validation.whole(count, "count", 1, MOST, "messages")
        milliseconds = round(1000 * validation.seconds(per, "per", 0.001, MOST / 1000))
        validation.optional(validation.whole, burst, "burst", 1, MOST, "messages")
        if count > FASTEST * milliseconds:
            raise ValueError(f"a rate can be up to {FASTEST * 1000:,} messages a second, not {count / per:,.0f}")
        await self._limit({"count": count, "per": milliseconds, "burst": burst})

    @with_deadline()
    async def set_concurrency(self, at_most: int | None, *, deadline: float | None = None) -> None:
        """Limit how many messages are in flight at a time, in all processes together. It lasts until changed.

        A message is in flight from when it was received until it is settled; what a dead process had in flight is free
        when its lease ends. Messages that a consumer has read ahead count, too. `get` does not: it acknowledges
        at once.

        Args:
            at_most: How many; None for any number.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            PressureError: As for `set_rate`.
            TypeError, ValueError: It is not a whole number of messages.

        Cancelled, the limit is changed or not; setting it again is safe.

        On this kind:
            TaskQueue: `get`, which takes and completes a task, waits for room, too.
        """
        validation.optional(validation.whole, at_most, "at_most", 1, MOST, "messages")
        await self._limit({"concurrency": at_most})

    @with_deadline()
    async def hold(self, seconds: float, *, deadline: float | None = None) -> None:
        """Have the queue hand out nothing for a while, to no process: an API has answered 429, for example.

        In a handler, `raise Hold(seconds)` does that, and gives its message back without an attempt. A hold never gets
        shorter, so several that come together are one. Consumers give back what they have read ahead: those of this
        object at once, those of other processes when they next renew their leases, as for `pause`.

        Args:
            seconds: How long from now, by the server's clock; 0 ends a hold.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            PressureError: As for `set_rate`.
            TypeError, ValueError: It is no time of at most eleven days.

        Cancelled, the queue is held or not; holding it again is safe.
        """
        milliseconds = round(1000 * validation.seconds(seconds, "seconds", most=LONGEST_HOLD))
        await self._limit({"held": milliseconds})
        if milliseconds:
            self._give_back_unseen()

    @with_deadline()
    async def set_key(
        self, pointer: str | None = None, at_most: int | None = 1, *, fair: bool = True, deadline: float | None = None
    ) -> None:
        """Say how many messages of the same key are handled at a time, in all processes together. It lasts.

        The key is what `put(key=)` says, or what is at `pointer` in the message: a customer, an account, a file. With
        `at_most=1`, the messages of a key are handled one at a time, in order. That includes messages that come again:
        one that is tried again, at once or after a delay, or whose worker died, comes before the others of its key. A
        message without a key waits for no other one.

        A queue to which `put(key=)` has put something handles one of a key at a time, until this says otherwise.

        Args:
            pointer: Where the key is in messages of JSON that were put without one: a JSON pointer (RFC 6901) to a
                text, a number or a truth, such as `"/customer/id"`; `"/partitionkey"` in CloudEvents. The server looks
                when a message is next, so producers need not know. None for nowhere.
            at_most: How many; None for any number.
            fair: Keys take turns: a key with many messages delays another one by no more than one message. False hands
                out what came first. With `at_most=None` and False, keys do not matter any more.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            UnsupportedError: It is an AsyncQueue or a FileQueue, or has an `okq://` address.
            PressureError: As for `set_rate`.
            TypeError, ValueError: An argument is invalid.

        Cancelled, it is changed or not; setting it again is safe. What is in flight when it is set counts where its key
        was known before. Programs that are not apressure's do not know of keys, and take what they want.
        """
        if self._keyless:
            raise knows_no_keys(self.name, self._keyless)
        if pointer is not None:
            pointer_of(pointer)
        validation.optional(validation.whole, at_most, "at_most", 1, MOST, "messages")
        if not isinstance(fair, bool):
            raise TypeError(f"fair must be True or False, not {type(fair).__name__}")
        await self._limit({"key_most": at_most or 0, "key_fair": int(fair), "key_pointer": pointer})

    @with_deadline()
    async def spend(self, cost: int, *, deadline: float | None = None) -> None:
        """Count so much against the rate of the queue, beside what its messages have counted for.

        A message counts for its `cost`, as `put` says, when it is handed out. Where its real cost is known only when it
        was handled, such as the tokens of a language model, say the difference: in a handler,
        `await queue.spend(used - delivery.cost)`. Until the rate allows it, nothing is handed out.

        Args:
            cost: So much; below 0 if the messages have cost less than was counted. A credit counts up to the burst.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            UnsupportedError: It is a `FileQueue`, or has an `okq://` address.
            PressureError: As for `set_rate`.
            TypeError, ValueError: It is not a whole number of up to a billion.

        Cancelled, it is counted or not. Without a rate, nothing is counted. If the reply is lost, the step is sent
        again, and counts once.
        """
        validation.whole(cost, "cost", -MOST, MOST)
        if cost:
            spender, numbers = self._spender = self._spender or (os.urandom(8).hex(), itertools.count(1))
            await self._limit({"spent": f"{cost}:{spender}:{next(numbers)}"})

    async def limits(self, *, deadline: float | None = None) -> Limits:
        """Return the limits of the queue. It raises as `statistics` does."""
        return (await self.statistics(deadline=deadline)).limits

    async def _set_bound(self, bound: int) -> None:
        """Change the bound. A kind whose steps know no limits has its own."""
        await self._limit({"bound": bound})

    async def _limit(self, changes: Changes) -> None:
        if self._unable_to_limit:
            raise UnsupportedError(
                f"{self._unable_to_limit} cannot limit its consumers, since no server counts for all of them: use "
                "another kind of queue, or pause()",
                name=self.name,
            )
        self.check()
        await cast("LimitSteps", self._administration).limit(changes, self._expected)

    def _give_back_unseen(self) -> None:
        """Have the consumers of this object give back what they have read ahead."""
