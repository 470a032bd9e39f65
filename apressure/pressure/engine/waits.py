"""What an operation waits for when a step answers "not now", and what the log says of a wait for a role.

`connection/waiting/waiter.py` does the waiting.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from apressure.connection.server import Node
from apressure.connection.waiting.rounds import OVERDUE, Look, Rounds
from apressure.connection.waiting.waiter import LONG_SLICE, SLICE, Waiter, park
from apressure.core import waiting
from apressure.core.waiting import ROLE_OF, Hasten, Parked, Reason, Wait
from apressure.exceptions import ROLES, PressureError, Role
from apressure.pressure.engine.keys import Keys

logger = logging.getLogger("apressure")

PATIENCE = 1.0
"""Seconds of waiting before the first log message: roles usually change hands quickly."""

_LONGEST = 10**11
"""Milliseconds: the longest lease that is logged. A date cannot be further away than the year 9999."""

T = TypeVar("T")

_MANY: Final = 8
"""How many looks a queue object keeps for the next wait: one for each reason, and some for leases."""

LOOKED_AT: Final = frozenset[Reason](("full", "room", "empty", "watch", "turn", "limited", "open"))
"""The reasons for which `lua/look.lua` says when it is time to try again."""


class Notice:
    """Logs waits for a role: once for each holder, however many operations wait and try again.

    Args:
        name: The queue's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        self._told: tuple[Role, str | None] | None = None

    def waits(self, wait: Wait, parked: asyncio.Future[None]) -> None:
        """Log soon that an operation waits, if it is for a role, unless its future completes before."""
        if (role := ROLE_OF.get(wait.reason)) is None:
            self.ended()
            return
        loop, holder, lease = asyncio.get_running_loop(), wait.holder, wait.lease
        if self._since is None:
            self._since = loop.time()
        if self._told == (role, holder):
            return
        expires = None if lease is None else datetime.now(UTC) + timedelta(milliseconds=min(lease, _LONGEST))
        patience = max(0.0, self._since + PATIENCE - loop.time())
        timer = loop.call_later(patience, self._tell, role, holder, expires)
        parked.add_done_callback(lambda _: timer.cancel())

    def ended(self) -> None:
        """Note that no operation waits for a role any more."""
        self._since = self._told = None

    def _tell(self, role: Role, holder: str | None, expires: datetime | None) -> None:
        if self._told == (role, holder):
            return
        self._told = (role, holder)
        if expires is None:
            until = " without a lease; if that client has died, `apressure doctor` frees the role"
        else:
            seconds = max(0.0, (expires - datetime.now(UTC)).total_seconds())
            until = f" until {expires.astimezone():%H:%M:%S} ({seconds:.0f} s), and longer if it renews its lease"
        tell(self._name, role, holder, expires, until)


def tell(name: str, role: Role, holder: str | None, expires: datetime | None = None, until: str = "") -> None:
    """Log at INFO that an operation waits for a role, which client holds it, and `until` when, if that is known."""
    logger.info(
        "waiting for the %s role of the queue %r: %s holds it%s",
        role, name, "another client" if holder is None else repr(holder), until,
        extra={"event": "role_awaited", "queue": name, "role": role, "holder": holder, "expires": expires},
    )  # fmt: skip


class Waits(waiting.ServerWaits):
    """The waiters of one queue: at most nine, each with a connection that its first wait opens.

    Of the clients that wait for messages, one watches the queue, and the others wait in line, so that a put wakes one.

    Args:
        node: The node of the server that has the queue.
        keys: The queue's keys.
        hand_back: Called with a role whose token was claimed, and is not needed any more.
        resign: As for `ServerWaits`.
        rounds: Look at the queue for those that wait. None, and each of them tries its step again after a slice.

    Attributes:
        blocked: For how long operations waited here.
        in_line: After `close`: the server may still wait for this client to watch, or give it a turn.
    """

    def __init__(
        self, node: Node, keys: Keys, hand_back: Callable[[Role], None], resign: Callable[[bytes, bool], None],
        rounds: Rounds | None = None,
    ) -> None:  # fmt: skip
        super().__init__(node.server, resign)
        patient = rounds is not None
        seconds = LONG_SLICE if patient else SLICE

        def waiter(
            source: bytes, destination: bytes | None, on_unwanted: Callable[[], None] | None = None, spare: bool = False
        ) -> Waiter:
            return Waiter(node, source, destination, seconds, on_unwanted, patient, spare=spare)

        closed = Waiter(node, keys.closed, keys.closed, LONG_SLICE, patient=patient)
        not_full, resumed = waiter(keys.not_full, keys.not_full), waiter(keys.resumed, keys.resumed)
        room, sooner = waiter(keys.room, keys.room, spare=True), waiter(keys.sooner, keys.sooner, spare=True)
        self.news = sooner
        messages = self.messages = waiter(keys.messages, keys.messages, lambda: self.leave(False))
        turns = self.turns = waiter(keys.line()[0], None, lambda: self.leave(True))
        self.in_line = False
        self._claims: dict[Role, Waiter] = {
            role: Waiter(node, keys.free(role), keys.claim(role), on_unwanted=functools.partial(hand_back, role))
            for role in ROLES
        }
        self._looks: dict[tuple[Reason, bytes], Look] = {}
        self._rounds = rounds
        self._looked_at = keys.for_look()
        self._waiters: dict[Reason, tuple[Waiter, ...]] = {
            "full": (not_full, closed),
            "few": (closed,),  # the permit is there, for a single message: only time helps
            "room": (room, closed),
            "empty": (messages, closed, sooner),
            "watch": (messages, closed, sooner),
            "turn": (turns, closed),
            "draining": (turns, sooner),
            "limited": (sooner, closed),
            "paused": (resumed,),
            "open": (closed,),
            "producer": (self._claims["producer"],),
            "consumer": (self._claims["consumer"],),
            "share": (self._claims["consumer"], turns),
        }
        self._all = (closed, messages, turns, not_full, resumed, *self._claims.values(), sooner, room)

    def take_turn(self) -> bytes:
        """A step for messages is about to be sent: it sees to it that others get their turn. Returns the place."""
        self.turns.claimed = False
        self.watching = False
        return self.place

    def park(self, wait: Wait, since: int, token: bytes = b"") -> Parked:
        """Return a future that completes when it is time to try the step again. Cancel it to stop waiting.

        Its exception says that the server cannot be reached.

        Args:
            wait: What the step has answered.
            since: The `moment` before the step was sent.
            token: The token of the lease that the step works under; empty if it has none.
        """
        if (refused := self._refused()) is not None:
            return refused
        seconds = None if wait.lease is None else wait.lease / 1000 + 0.001
        if patient := self._rounds is not None and wait.reason in LOOKED_AT:
            self._rounds.add(self)
            seconds = None
        elif wait.reason in ("open", "draining", "paused"):  # its waiter has long slices, and FLUSHALL wakes no waiter
            seconds = SLICE if seconds is None else min(seconds, SLICE)
        if wait.due is not None:
            due = wait.due / 1000 + 0.001
            seconds = due if seconds is None else min(seconds, due)
        future = park(self._waiters_for(wait), since, seconds)
        return self._admitted(wait.reason, future, self._look(wait.reason, token) if patient else None)

    def looks(self) -> Sequence[Look]:
        """Return what those that are parked want to know of the queue."""
        return list({look: None for future, look in self._parked.items() if look is not None and not future.done()})

    def _look(self, reason: Reason, token: bytes) -> Look:
        look = self._looks.get((reason, token))
        if look is None:
            if len(self._looks) > _MANY:
                self._looks.clear()  # of leases that have ended
            on_answer = functools.partial(self._looked, reason)
            look = Look(self._looked_at, (reason, token, self.place), on_answer)
            self._looks[reason, token] = look
        look.often = reason in ("turn", "watch", "limited")  # until the first look knows whether others wait in line
        return look

    def _looked(self, reason: Reason, look: Look, answer: int) -> None:
        if answer > 0:
            asyncio.get_running_loop().call_later(answer / 1000 + 0.001, self._try_again, look)
            return
        if answer == OVERDUE:
            self._waiters[reason][0].overdue()
        self._try_again(look)

    def _try_again(self, look: Look) -> None:
        for future, theirs in list(self._parked.items()):
            if theirs is look and not future.done():
                future.set_result(None)

    def take_claim(self, role: Role) -> bytes:
        """Return `b"1"` if the role's token has been claimed for the step that is about to be sent."""
        waiter = self._claims[role]  # here and below: most have nothing, and each operation asks
        return b"1" if waiter.claimed and waiter.take_claim() else b"0"

    def hand_back(self, role: Role) -> None:
        """Give back what came for operations which have ended: the role's token, and the turn for messages."""
        if (waiter := self._claims[role]).claimed:
            waiter.hand_back()
        if role == "consumer":
            self.turns.hand_back()
            self.leave(False)

    def until(
        self, step: Callable[[], Awaitable[T | Wait]], timeout: float | None, name: str,
        hasten: Hasten | None = None, notice: Notice | None = None, token: Callable[[], bytes] = bytes,
    ) -> Coroutine[Any, Any, T]:  # fmt: skip
        """As for every kind of queue.

        Args:
            step: Sends the step, and answers with a value or a `Wait`.
            timeout: Seconds after which the error of what blocked is raised; 0 for a single try.
            name: The queue's name, for that error.
            hasten: Called with each wait that has not ended already.
            notice: Logs waits for a role; None for one of this operation's own.
            token: Returns the token of the lease that the step works under; empty if it has none.
        """
        said = notice or Notice(name)

        def park(wait: Wait, since: int) -> Parked:
            parked = self.park(wait, since, token())
            said.waits(wait, parked)
            return parked

        return self._until(step, timeout, name, park, hasten)

    def _stopped(self, wait: Wait) -> None:
        if wait.reason not in ("full", "few", "room", "open"):
            self.hand_back(ROLE_OF.get(wait.reason, "consumer"))

    def close(self, error: PressureError) -> list[Role]:
        """Release the connections; operations that park from now on get the error.

        Returns:
            The roles whose token the server may still move to the claims, for a connection that is no more.
        """
        if self._rounds is not None:
            self._rounds.discard(self)
        outstanding = self._close(error)
        self.in_line = self.turns in outstanding or self.watching
        return [role for role, waiter in self._claims.items() if waiter in outstanding]
