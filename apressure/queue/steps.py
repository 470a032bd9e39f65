"""One function for each step of the protocol: it orders the script's arguments and reads its answer.

A step never waits for the queue. It answers with a value, with a `Wait` where it cannot go on, or with an exception.
Each step of this module has a script of the same name in `lua/`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apressure.connection.client import Client
from apressure.connection.command import Argument
from apressure.connection.request import Request
from apressure.connection.script import Call, Script
from apressure.connection.settle import resolve, settled
from apressure.exceptions import (
    ROLES,
    DurabilityError,
    LeaseLostError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    Role,
    ServerError,
)
from apressure.queue.dead import DeadLetters
from apressure.queue.keys import Keys
from apressure.queue.ledger import Range
from apressure.queue.waits import Wait

OnAnswer = Callable[[Any], None]

EMPTY = Wait("empty")
FULL = Wait("full")


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.queue", name)


def _changed(answer: Any) -> bool:
    """Whether a step did what it was to do, so that it is worth a confirmation."""
    return answer > 0 if isinstance(answer, int) else answer[:1] in ([b"ok"], [b"messages"])


def _acknowledged(answer: Any) -> bool:
    """The same for a step that acknowledges on its way."""
    return answer[:1] in ([b"ok"], [b"empty"], [b"closed"])


_DURABLE = dict.fromkeys(("put", "get", "receive", "settle", "requeue", "create", "close", "bury"), _changed)
"""The steps that have to be as durable as the client's `durability=` says. (Leases live as long as their client.)"""


class Series:
    """The numbers of a series of steps of which at most one is unanswered at a time.

    The server keeps the last one's result under the series' own key, so that a repeat is answered, not carried out.

    Args:
        keys: The queue's keys.
        name: What the series' own key ends with; `"none"` for steps that need no number.
    """

    def __init__(self, keys: Keys, name: str) -> None:
        self.keys = keys.for_script(name)
        self.number = 0
        self._calls: dict[str, Call] = {}

    def call(self, name: str, more: Callable[[], tuple[bytes, ...]] = tuple) -> Call:
        """Return the call of a script with this series' keys and, always the same ones, more keys behind them."""
        if name not in self._calls:
            self._calls[name] = script(name).on((*self.keys, *more()))
        return self._calls[name]

    def next(self) -> int:
        """Return the number of the step that is about to be sent."""
        self.number += 1
        return self.number


class Steps:
    """The steps of one queue.

    Args:
        client: Whose connection they use.
        keys: The queue's keys.
        name: The queue's name, for errors.
    """

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        self._client = client
        self._keys = keys
        self._uid = client.id.encode(errors="surrogateescape")
        self.name = name
        self._unnumbered = Series(keys, "none")
        self.link = client.link_for(self._unnumbered.keys)

    def series(self) -> Series:
        """Return a fresh series of numbered steps."""
        return Series(self._keys, secrets.token_hex(8))

    def put(
        self, series: Series, messages: Iterable[bytes], held: bytes, token: bytes, force: bool, on_answer: OnAnswer
    ) -> None:
        """Put messages as far as there is room (specification: Put). Answers with how many."""
        arguments: list[Argument] = [self._uid, series.next(), b"0", held, token, b"1" if force else b"0", *messages]
        self._send(series.call("put"), arguments, on_answer, resend=True, again=2, role="producer", held=held)

    def gets(self) -> Series | None:
        """Return the series for gets that a server which takes over has to know of; None where none has to."""
        return None if self._client.settings.durability is None else self.series()

    def get(self, series: Series | None, held: bytes, max_items: int, on_answer: OnAnswer) -> None:
        """Get up to max_items messages (specification: Get). Answers with a list of them. Never sent twice."""
        call = (series or self._unnumbered).call("get")
        arguments: list[Argument] = [self._uid, held, max_items, b"" if series is None else series.next()]
        self._send(call, arguments, on_answer, resend=False, role="consumer", held=held)

    def give_back(self, gets: Series | None, number: int, messages: Sequence[bytes], on_answer: OnAnswer) -> None:
        """Undo the get of that number in its series; messages oldest first. Answers with how many."""
        series = self.series()
        call = series.call("give_back", lambda: (gets or self._unnumbered).keys[-1:])
        arguments: list[Argument] = [series.next(), b"0", b"" if gets is None else number, *messages]
        self._send(call, arguments, on_answer, resend=True, again=1, whole=True)

    def receive(
        self,
        series: Series,
        token: bytes,
        fresh: bool,
        held: bytes,
        max_items: int,
        lease: int,
        number: int,
        dead: DeadLetters | None,
        acks: Sequence[Range],
        on_answer: OnAnswer,
    ) -> None:
        """Move messages in flight, acknowledging others. Answers with [portions, attempts, number of dead letters].

        With `dead`, messages that reach the limit are moved to the dead-letter queue. An answer without messages says
        that there may be more behind them.
        """
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive", tuple if dead is None else dead.for_script)
        arguments: list[Argument] = [
            self._uid, token, b"1" if fresh else b"0", held, max_items, lease, number, limit, series.next(), b"0",
            *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        changed = _acknowledged if acks else None
        self._send(call, arguments, on_answer, resend=True, again=9, role="consumer", held=held, changed=changed)

    def settle(
        self,
        series: Series,
        token: bytes,
        lease: int,
        leave: bool,
        unseen: int,
        acks: Sequence[Range],
        nacks: Sequence[int],
        on_answer: OnAnswer,
    ) -> None:
        """Acknowledge and give back deliveries. Answers with how many were settled.

        The lease is renewed, or ended by `leave`: then all that is in flight goes back. What has the number `unseen` or
        a higher one was never handed out, so that its delivery does not count as an attempt; 0: everything was.
        """
        arguments: list[Argument] = [
            token, lease, b"1" if leave else b"0", series.next(), b"0", unseen, 3 * len(acks),
            *itertools.chain.from_iterable(acks), *nacks,
        ]  # fmt: skip
        whole = bool(nacks) or leave
        self._send(series.call("settle"), arguments, on_answer, resend=True, again=4, role="consumer", whole=whole)

    def leave(self, series: Series, token: bytes, lease: int, leave: bool, on_answer: OnAnswer) -> None:
        """Renew an exclusive producer's lease, or end it."""
        arguments: list[Argument] = [token, lease, b"1" if leave else b"0", series.next(), b"0"]
        self._send(series.call("leave"), arguments, on_answer, resend=True, again=4, role="producer")

    def unclaim(self, role: Role) -> None:
        """Give back a role's token that was claimed for nobody."""
        self._send(self._unnumbered.call("unclaim"), [role], lambda _: None, resend=True)

    async def create(self, bound: int) -> None:
        """Create the queue (specification: Create)."""
        series, collisions = self.series(), self._keys.collisions()
        answer = await self._run(
            series.call("create", self._keys.collisions), [bound, series.next(), b"0"], resend=True, again=2
        )
        if answer == 1:
            return
        if answer[0] == b"exists":
            raise QueueAlreadyExistsError(f"the queue {self.name!r} exists already", name=self.name)
        other = collisions[answer[1] - 1].removesuffix(b":bound").decode(errors="replace")
        raise QueueAlreadyExistsError(
            f"the queue {self.name!r} would share a key with the existing queue at {other!r}: choose another name",
            name=self.name,
        )

    async def occupy(self, role: Role, held: bytes, token: bytes, lease: int) -> int | Wait:
        """Take a role under a lease. Cancelled in between, the lease is ended again."""

        def undo(answer: Any) -> asyncio.Future[Any] | None:
            if answer != 1:
                return None
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            finish = functools.partial(resolve, done)
            if role == "producer":
                self.leave(self.series(), token, lease, True, finish)
            else:
                self.settle(self.series(), token, lease, True, 1, (), (), finish)
            return done

        series = self.series()
        arguments: list[Argument] = [self._uid, role, held, token, lease, series.next(), b"0"]
        return await self._run_step(  # type: ignore[no-any-return]
            series.call("occupy"), arguments, resend=True, again=6, role=role, held=held, undo=undo
        )

    async def close(self, held: bytes, token: bytes) -> int | Wait:
        """Close the queue (specification: Close)."""
        series = self.series()
        arguments: list[Argument] = [self._uid, series.next(), b"0", held, token]
        return await self._run_step(series.call("close"), arguments, resend=True, again=2, role="producer", held=held)  # type: ignore[no-any-return]

    async def doom(self) -> None:
        """End the queue's existence and wake everybody (specification: Delete, the first half)."""
        series = self.series()
        await self._run_step(series.call("doom"), [series.next(), b"0"], resend=True, again=1)

    async def bury(self, held_producer: bytes, held_consumer: bytes) -> int | Wait:
        """Remove all keys once both roles are free (specification: Delete, the second half)."""
        arguments: list[Argument] = [held_producer, held_consumer]
        try:
            answer = await self._run(self._unnumbered.call("bury"), arguments, resend=True)
        except PressureError:
            for role, held in zip(ROLES, (held_producer, held_consumer), strict=True):
                if held == b"1":
                    self.unclaim(role)
            raise
        if isinstance(answer, list) and answer[0] == b"recreated":
            return 1
        answer = self._read(answer, None)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def requeue(
        self, series: Series, source: Keys, held_producer: bytes, held_consumer: bytes, max_items: int
    ) -> list[int] | Wait:
        """Move dead letters from their queue to this one. Answers with [number moved, number left], or a `Wait`.

        A wait for the consumer role is one for the dead-letter queue's. Raised errors leave a claim on that role as it
        is: the caller gives it back.
        """
        arguments: list[Argument] = [self._uid, series.next(), b"0", held_producer, held_consumer, max_items]
        call = series.call("requeue", source.as_second)
        return await self._run_step(  # type: ignore[no-any-return]
            call, arguments, resend=True, again=2, role="producer", held=held_producer
        )

    async def inspect(self) -> list[Any]:
        """A snapshot of everything that statistics show."""
        return await self._run_step(self._unnumbered.call("inspect"), [], resend=True)  # type: ignore[no-any-return]

    async def examine(self) -> list[Any]:
        """The raw facts about the queue, or about what there is of it."""
        call = self._unnumbered.call("examine", self._keys.collisions)
        return await self._run_step(call, [], resend=True)  # type: ignore[no-any-return]

    async def repair(self, marks: Sequence[bytes], everything: bool, holder: bytes | None) -> list[Any]:
        """Mend what a look has found. Answers with what was done, each [kind, role, text, number].

        Args:
            marks: Those of the look.
            everything: False for what never needs a human.
            holder: The client whose roles are to be given back, since it is dead; None for nobody.
        """
        call = self._unnumbered.call("repair", self._keys.collisions)
        own = self._uid if self._uid != holder else self._uid + b":repair"
        arguments: list[Argument] = [
            own, *marks, b"1" if everything else b"0", b"0" if holder is None else b"1", holder or b"",
        ]  # fmt: skip
        return await self._run_step(call, arguments, resend=True)  # type: ignore[no-any-return]

    async def peek(self, index: int) -> bytes | Wait:
        """Look at the message at an index of the list: -1 is the next one, 0 the newest."""
        return await self._run_step(self._unnumbered.call("peek"), [index], resend=True)  # type: ignore[no-any-return]

    async def exists(self) -> bool:
        """Look whether the queue exists (specification: Exists)."""
        return bool(await self.link.ask(b"EXISTS", self._keys.bound, reads=True))

    def _send(
        self,
        call: Call,
        arguments: list[Argument],
        on_answer: OnAnswer,
        resend: bool,
        again: int | None = None,
        role: Role | None = None,
        held: bytes = b"0",
        whole: bool = False,
        changed: Callable[[Any], bool] | None = None,
    ) -> None:
        def on_reply(reply: Any) -> None:
            if held == b"1" and role is not None and isinstance(reply, Exception):
                self.unclaim(role)  # the step was refused before it could use the token that was claimed for it
            on_answer(reply if isinstance(reply, int) else self._read(reply, role))

        changed = changed or _DURABLE.get(call.script.name)
        self.link.send(Request(call, arguments, on_reply, resend, again, whole, changed))

    async def _run_step(self, call: Call, arguments: list[Argument], **how: Any) -> Any:
        role, held = how.pop("role", None), how.pop("held", b"0")
        try:
            answer = self._read(await self._run(call, arguments, **how), role)
        except PressureError:
            if held == b"1":
                self.unclaim(role)  # the step was refused before it could use the token that was claimed for it
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _run(
        self,
        call: Call,
        arguments: list[Argument],
        resend: bool,
        again: int | None = None,
        undo: Callable[[Any], asyncio.Future[Any] | None] | None = None,
    ) -> Any:
        """Send a step and wait for its reply; a cancellation waits for it too, and undoes what it did."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        cancelled = False

        def on_reply(value: Any) -> None:
            undone = undo(value) if cancelled and undo is not None else None
            if undone is None:
                resolve(reply, value)
            else:
                undone.add_done_callback(lambda _: resolve(reply, value))

        changed = _DURABLE.get(call.script.name)
        self.link.send(Request(call, arguments, on_reply, resend, again, changed=changed))
        try:
            await asyncio.wait(
                (reply,)
            )  # not `await reply`: a cancellation would cancel the future, and lose the reply
        except asyncio.CancelledError:
            cancelled = True
            undone = undo(reply.result()) if reply.done() and undo is not None else None
            await settled(undone or reply, self._client.settings.settle_timeout)
            raise
        value = reply.result()
        if isinstance(value, Exception):
            raise value
        return value

    def _read(self, answer: Any, role: Role | None) -> Any:
        """Turn a script's answer into a value, a Wait or an exception."""
        if isinstance(answer, DurabilityError):
            answer.answer = self._read(answer.answer, role)
        if not isinstance(answer, list) or not isinstance(answer[0], bytes):
            return answer
        match answer[0]:
            case b"ok":
                return answer[1] if len(answer) == 2 else answer[1:]
            case b"messages":
                return answer[1] if len(answer) == 2 else list(itertools.chain.from_iterable(answer[1:]))
            case b"empty" | b"full":
                return EMPTY if answer[0] == b"empty" else FULL
            case b"busy":
                holder = answer[2].decode(errors="replace") or None
                return Wait(answer[1].decode(), holder, answer[3] if answer[3] >= 0 else None)
            case b"missing":
                message = f"the queue {self.name!r} does not exist"
                return QueueDoesNotExistError(message, name=self.name)
            case b"closed":
                return QueueClosedError(f"the queue {self.name!r} is closed", name=self.name)
            case b"lost":
                message = f"the lease on the {role} role of the queue {self.name!r} ran out and was taken away"
                return LeaseLostError(message, name=self.name, role=role or "consumer")
            case b"corrupt":
                return ServerError(
                    f"the queue {self.name!r} is damaged: {answer[1].decode(errors='replace')}; "
                    "nothing was written: set the key right, or delete it if it is a statistic"
                )
            case b"dead":
                return ServerError(
                    f"a message of the queue {self.name!r} was delivered too often, and cannot be moved to the "
                    f"dead-letter queue: {answer[1].decode(errors='replace')}; nothing was moved or received: repair "
                    "that queue, or choose another with dead_letters="
                )
            case _:
                return answer
