"""What the commands for events do, and for what a client has registered for.

Single pushes, pops and acknowledgements, of which there are most, need no task: their step's answer is their reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import operator
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.core.waiting import EMPTY, Wait
from apressure.events.engine.answers import Event
from apressure.events.engine.steps import MAX_EVENTS, active_queues
from apressure.events.server.administration import settle_all
from apressure.events.server.arguments import Arguments, Pop, Push, chunks, read_ack, seconds
from apressure.events.server.lanes import Found, PushLane, parts
from apressure.events.server.outcomes import Answer, Outcome, Replies, in_task
from apressure.events.server.queues import Queues, ServedQueue
from apressure.events.server.wire import ErrorReply, Reply
from apressure.exceptions import PressureError, QueueClosedError

logger = logging.getLogger("apressure.events.server")

Calls = Iterable[Arguments]
"""The arguments of the same command for the same queue that came behind a command. Those that an operation does not
answer are tried again."""

C = TypeVar("C")
T = TypeVar("T")


class Interrupted(Exception):
    """A command that waited ends early: its client has gone, or the server stops."""


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """The state of one connection that commands see and change.

    Attributes:
        number: The number of the connection, as CLIENT ID tells it.
        peer: The client's address, for logs.
        authenticated: The client has sent the password, or needs none.
        protocol: The version of RESP.
        name: The name that the client gave itself.
        library: The client's library, as it says.
        consumer: The id under which the client registers as a consumer.
        registered: The queues that it is registered for.
        gone: The connection has ended: nobody reads a reply.
        leaving: Close the connection after the current reply.
        interrupted: Nothing waits any more, since the client has gone or the server stops.
        waiter: The task whose command waits.
    """

    number: int
    peer: str
    authenticated: bool
    protocol: int = 2
    name: bytes = b""
    library: dict[bytes, bytes] = dataclasses.field(default_factory=dict)
    consumer: bytes = dataclasses.field(default_factory=lambda: str(uuid.uuid4()).encode())
    registered: Sequence[ServedQueue] = ()
    gone: bool = False
    leaving: bool = False
    interrupted: bool = False
    waiter: asyncio.Task[object] | None = None

    async def wait(self, begin: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        """Wait for an operation, unless the client goes or the server stops meanwhile.

        Args:
            begin: Begins it. It is cancelled then, and must leave nothing behind.
            arguments: What `begin` is called with.
            options: The same.

        Raises:
            Interrupted: The client has gone, or the server stops.
        """
        task = asyncio.current_task()
        assert task is not None
        if self.interrupted:
            raise Interrupted
        self.waiter = task
        try:
            return await begin(*arguments, **options)
        except asyncio.CancelledError:
            if self.interrupted and task.uncancel() == 0:
                raise Interrupted from None
            raise
        finally:
            self.waiter = None

    def interrupt(self) -> None:
        """End the wait under way, and let no other begin."""
        if not self.interrupted:
            self.interrupted = True
            if self.waiter is not None:
                self.waiter.cancel()


class Operations:
    """These commands.

    Args:
        client: The client of Redis.
        queues: The queues that are in use.
        workers: How many NOBLOCK pushes may be under way.

    Attributes:
        queues: As given.
    """

    def __init__(self, client: Client, queues: Queues, workers: int) -> None:
        self._client = client
        self.queues = queues
        self._workers = workers
        self._background: set[asyncio.Task[None]] = set()

    # Pushing.

    def push(
        self, session: Session, name: bytes, arguments: Arguments, more: Calls, *, front: bool = False,
        delayed: bool = False,
    ) -> Answer:  # fmt: skip
        """Push the single events of several calls in one step; NOBLOCK and a call with several events run alone.

        With `delayed`, they are for later.
        """
        read = functools.partial(Push.read, delayed=delayed, front=front)
        first = read(arguments)
        queue = self.queues[name]
        lane = queue.delays if delayed else queue.pushes[front]
        if first.noblock:
            return in_task(self._push_noblock(queue, lane, first))
        if first.back:
            return in_task(_push_back(queue, first))
        if len(first.events) > 1:
            return in_task(_push_all(lane, first, None if first.nowait else session.wait))
        pushes = [first]
        for push in _readable(read, more):
            if len(push.events) > 1 or push[1:] != first[1:]:
                break
            pushes.append(push)
        job = lane.push([push.events[0] for push in pushes], expected=first.created)
        return Answer(job, functools.partial(self._pushed, session, lane, pushes), len(pushes))

    def _pushed(
        self, session: Session, lane: PushLane, pushes: Sequence[Push], job: Outcome[bytes]
    ) -> Replies | Answer:
        letters = job.result()
        if not letters and pushes[0].nowait:
            return [ErrorReply(push.full(b"")) for push in pushes]
        if not letters:
            return in_task(_push_all(lane, pushes[0], session.wait, full=True))
        known = zip(pushes, letters, strict=False)
        return ["OK" if letter == ord("k") else ErrorReply(push.duplicate(b"d")) for push, letter in known]

    async def _push_noblock(self, queue: ServedQueue, lane: PushLane, push: Push) -> Reply:
        if len(self._background) >= self._workers:
            raise ErrorReply("ERR too busy to process NOBLOCK event")
        if await queue.is_limited():
            return await _push_all(lane, push, None)
        task = background.start(self._push_later(queue, lane, push), "a NOBLOCK push")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return "OK"

    async def _push_later(self, queue: ServedQueue, lane: PushLane, push: Push) -> None:
        try:
            await _push_all(lane, push, operator.call)  # it waits if the queue got a bound meanwhile
        except PressureError as error:
            told = {"queue": queue.steps.name, "events": len(push.events), "reason": str(error)}
            logger.error("a NOBLOCK push failed after its OK", extra=told)  # noqa: TRY400 - the client was told OK

    # Popping and acknowledging.

    def pop(self, session: Session, name: bytes, arguments: Arguments, more: Calls) -> Answer:
        """Pop for several calls in one step, if they want the same; a call that may wait runs alone."""
        first = Pop.read(arguments)
        pops, wanted = [first], first.most or 1
        for pop in _readable(Pop.read, more) if not first.wait else ():
            together = wanted + (pop.most or 1)
            if pop.wait or pop.wait != first.wait or pop.want != first.want or together > MAX_EVENTS:
                break
            pops.append(pop)
            wanted = together
        queue = self.queues[name]
        job = queue.pops.pop(wanted, first.want)
        return Answer(job, functools.partial(self._popped, session, queue, pops), len(pops))

    def _popped(
        self, session: Session, queue: ServedQueue, pops: Sequence[Pop], job: Outcome[Found]
    ) -> Replies | Answer:
        first = pops[0]
        try:
            found = job.result()
        except QueueClosedError:
            if first.wait is not None:
                raise  # nil would make a loop around QRPOP spin
            found = EMPTY
        if isinstance(found, Wait):
            if first.wait:
                return in_task(self._pop_soon(session, queue, first))
            return [_shown(queue, pop, found) for pop in pops]
        if session.gone:
            queue.steps.give_back_soon(found)
            return [None]
        if first.want.lease:
            queue.expiry.ring_in(first.want.lease / 1000)
        # The step may have ended early, at large events: those that got none try again.
        shares = zip(pops, parts(found, [pop.most or 1 for pop in pops]), strict=True)
        return [_shown(queue, pop, share) for pop, share in shares if share]

    async def _pop_soon(self, session: Session, queue: ServedQueue, pop: Pop) -> Reply:
        self.queues.attach(queue)
        found: Found = EMPTY
        try:
            with contextlib.suppress(Interrupted):
                await session.wait(self.queues.listening, queue)
                found = await session.wait(queue.pop_soon, pop.most or 1, pop.want, pop.wait or 0.0)
        finally:
            self.queues.detach(queue)
        if session.gone and isinstance(found, list):
            queue.steps.give_back_soon(found)
        return _shown(queue, pop, found)

    def ack(self, session: Session, name: bytes, arguments: Arguments, more: Calls) -> Answer:  # noqa: ARG002
        """Acknowledge the events of several calls in one step; a call with very many runs alone."""
        queue, (claims, redo) = self.queues[name], read_ack(arguments)
        how, counts = "nack" if redo else "ack", [len(claims)]
        if len(claims) > MAX_EVENTS:
            return in_task(settle_all(queue, claims, how))
        for others in more if not redo else ():  # what goes back later comes first
            further, redo = read_ack(others)
            if redo or len(claims) + len(further) > MAX_EVENTS:
                break
            counts.append(len(further))
            claims += further
        return Answer(queue.settling.settle(claims, how), functools.partial(_acked, counts), len(counts))

    # Consumers.

    async def register(self, session: Session, *names: bytes) -> Reply:
        """QREGISTER [queue ...]: register a client for queues, instead of those before."""
        wanted, before = self.queues.several(names), session.registered  # this checks the names
        # If the client goes meanwhile, `forget` undoes this part.
        session.registered = wanted
        for queue in wanted:
            self.queues.attach(queue)
        for queue in before:
            self.queues.detach(queue)
        await asyncio.gather(
            *(self.queues.listening(queue) for queue in wanted),
            *(queue.register(session.consumer) for queue in wanted),
            *(queue.unregister(session.consumer) for queue in before if queue not in wanted),
        )
        if session.gone:
            await self._forget(session.consumer, wanted)
        return "OK"

    def forget(self, session: Session) -> None:
        """Deregister a client that has gone, at once."""
        queues, session.registered = session.registered, ()
        if not queues:
            return
        for queue in queues:
            self.queues.detach(queue)
        task = background.start(self._forget(session.consumer, queues), "deregistering a client")
        self._client.finish_before_close(task)

    async def _forget(self, consumer: bytes, queues: Sequence[ServedQueue]) -> None:
        try:
            await asyncio.gather(*(queue.unregister(consumer) for queue in queues))
        except PressureError as error:
            logger.warning("a consumer that has gone is still listed for 30 s", extra={"reason": str(error)})

    async def notify(self, session: Session, given: bytes) -> Reply:
        """QNOTIFY timeout"""
        timeout = seconds(given, "timeout")
        queue: ServedQueue | None = None
        with contextlib.suppress(Interrupted):
            queue = await session.wait(self.queues.wait_for_event, session.registered, timeout)
        return None if queue is None else queue.steps.name.encode("utf-8", "surrogateescape")

    # Looking at queues.

    async def status(self, session: Session, *names: bytes) -> Sequence[Reply]:  # noqa: ARG002
        """QSTATUS [queue ...]: name, total, processing and consumers of each."""
        if not names:
            names = tuple(name.encode("utf-8", "surrogateescape") for name in await active_queues(self._client))
        queues = [self.queues[name] for name in names]  # checks the names
        found = await asyncio.gather(*(queue.steps.status() for queue in queues))
        known = zip(names, found, strict=True)
        return [[name, one.waiting + one.claimed, one.claimed, one.consumers] for name, one in known]

    async def info(self, session: Session, *names: bytes) -> Reply:
        """QINFO [queue ...]"""
        rows = [(name, *map(b"%d".__mod__, counts)) for name, *counts in await self.status(session, *names)]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            b"%b  total: %b  processing: %b  consumers: %b"
            % (name.ljust(wide[0]), total.ljust(wide[1]), processing.ljust(wide[2]), consumers)
            for name, total, processing, consumers in rows
        ]

    async def finish(self, timeout: float) -> None:
        """Wait for the NOBLOCK pushes that were answered OK."""
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                logger.error("NOBLOCK pushes were lost when the server stopped", extra={"events": len(late)})


def _readable(read: Callable[[Arguments], C], more: Calls) -> Iterator[C]:
    """Read further calls of a command, up to one that is wrong: that is the first one later."""
    with contextlib.suppress(ErrorReply):
        for arguments in more:
            yield read(arguments)


async def _push_back(queue: ServedQueue, push: Push) -> Reply:
    """Push events that were popped before to the front again, and return the reply."""
    letters = bytearray()
    for chunk in chunks(push.events):
        pushed = await queue.steps.give_back_soon([Event(*pair) for pair in reversed(chunk)])
        if isinstance(pushed, Exception):
            raise pushed
        letters += pushed
    if b"d" in letters:
        raise ErrorReply(push.duplicate(letters))
    return "OK"


async def _push_all(
    lane: PushLane, push: Push, wait: Callable[..., Awaitable[bytes]] | None, *, full: bool = False
) -> Reply:
    """Push all events of one call, in order, and return the reply.

    Args:
        lane: The lane.
        push: The call.
        wait: Waits for pushes that need room, as `Session.wait` does; None gives up instead.
        full: The queue is known to be full.

    Raises:
        ErrorReply: The queue is full, or the wait was interrupted.
    """
    letters = bytearray()
    try:
        for chunk in chunks(push.events):
            pushed = b"" if full else await lane.push(chunk, expected=push.created)
            letters += pushed
            if len(pushed) < len(chunk):
                if wait is None:
                    raise ErrorReply(push.full(letters))
                full = True  # so it waits from now on, which ends when the queue is deleted
                letters += await wait(lane.push, chunk[len(pushed) :], patient=True)
    except Interrupted:
        why = "the server stopped, or the connection ended, while the queue was full"
        raise ErrorReply(f"ERR {why}: {push.added(letters)}") from None
    return ErrorReply(push.duplicate(letters)) if b"d" in letters else "OK"


def _acked(counts: Sequence[int], job: Outcome[bytes]) -> Replies:
    return [letters.count(b"1") for letters in parts(job.result(), counts)]


def _shown(queue: ServedQueue, pop: Pop, found: Found) -> Reply:
    dead = queue.pops.take_dead() if pop.tell and pop.most is not None else 0
    if isinstance(found, Wait):
        if pop.tell:
            due = "" if found.due is None else f" due={found.due}"
            return f"{found.reason}{' created' if found.created else ''}{due}{f' {dead}' if dead else ''}"
        return None if pop.most is None else []
    shown: list[Reply] = [[one.id, one.contents, one.attempts] if pop.tell else [one.id, one.contents] for one in found]
    return shown[0] if pop.most is None else [*shown, *([dead] if dead else ())]
