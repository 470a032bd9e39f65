"""What the commands for queues do. Each method takes the arguments of its command, and returns the reply.

Single pushes, pops and acknowledgements, of which there are most, need no task: their step's answer is their reply.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.core.waiting import EMPTY, Wait
from apressure.events.engine.answers import Event
from apressure.events.engine.steps import MAX_EVENTS, active_queues
from apressure.events.server.arguments import LONGEST_ERROR, Ack, Arguments, Pop, Push, name_of, seconds
from apressure.events.server.connection import Answer, Replies, in_task
from apressure.events.server.lanes import Found, PushLane
from apressure.events.server.outcomes import Outcome
from apressure.events.server.queues import Queues, ServedQueue
from apressure.events.server.session import Interrupted, Session
from apressure.events.server.wire.replies import ErrorReply, Reply
from apressure.exceptions import PressureError, QueueClosedError

logger = logging.getLogger("apressure.events.server")

Calls = Iterable[Arguments]
"""The arguments of the same command for the same queue that came behind a command. Those that an operation does not
answer are tried again."""

Failure = tuple[bytes, bytes]
"""The id of an event, and why the attempt failed, or nothing."""

PUSHED: Final = ord("k")

_STOPPED = "ERR the server stopped, or the connection ended, while the queue was full:"


class Operations:
    """The commands for queues.

    Args:
        client: The client of Redis.
        queues: The queues that are in use.
        workers: How many NOBLOCK pushes may be under way.
    """

    def __init__(self, client: Client, queues: Queues, workers: int) -> None:
        self._client = client
        self._queues = queues
        self._workers = workers
        self._background: set[asyncio.Task[None]] = set()

    # Pushing.

    def push(self, session: Session, arguments: Arguments, more: Calls, *, front: bool = False) -> Answer:
        """Push the single events of several calls in one step; NOBLOCK and a call with several events run alone."""
        first = Push.read(arguments)
        queue = self._queues[first.queue]
        if first.noblock:
            return in_task(self._push_noblock(queue, first, front))
        lane = queue.pushes[front]
        if len(first.events) > 1:
            return in_task(self._complete(session, lane, first))
        pushes = [first]
        option = [word.upper() for word in arguments[3:]]
        for others in more:
            if len(others) != 3 + len(option) or [word.upper() for word in others[3:]] != option:
                break
            pushes.append(Push.read(others))
        future = lane.push([push.events[0] for push in pushes], expected=first.created)
        return Answer(future, functools.partial(self._pushed, session, lane, pushes), len(pushes))

    def _pushed(
        self, session: Session, lane: PushLane, pushes: Sequence[Push], future: Outcome[bytes]
    ) -> Replies | Answer:
        letters = future.result()
        if not letters and pushes[0].nowait:
            return [ErrorReply(_full(push, b"")) for push in pushes]
        if not letters:
            return in_task(self._complete(session, lane, pushes[0]))  # the queue is full
        return [
            "OK" if letter == PUSHED else _duplicate(push, b"d") for push, letter in zip(pushes, letters, strict=False)
        ]

    async def _complete(self, session: Session, lane: PushLane, push: Push) -> Replies:
        """Push all events of one call, and wait for room."""
        letters = b""
        while len(letters) < len(push.events):
            chunk = push.events[len(letters) : len(letters) + MAX_EVENTS]
            found = await lane.push(chunk, expected=push.created)
            letters += found
            if len(found) < len(chunk):
                if push.nowait:
                    raise ErrorReply(_full(push, letters))
                try:
                    letters += await session.wait(lane.push(chunk[len(found) :], patient=True))
                except Interrupted:
                    raise ErrorReply(f"{_STOPPED} {_added(push, letters)}") from None
        return [_reply_to(push, letters)]

    async def _push_noblock(self, queue: ServedQueue, push: Push, front: bool) -> Replies:
        if len(self._background) >= self._workers:
            raise ErrorReply("ERR too busy to process NOBLOCK event")
        if await queue.is_limited():
            letters = b""
            for chunk in _chunks(push.events):
                found = await queue.pushes[front].push(chunk)
                letters += found
                if len(found) < len(chunk):
                    raise ErrorReply(f"ERR queue full: {_added(push, letters)}")
            return [_reply_to(push, letters)]
        task = background.start(self._push_later(queue, push, front), "a NOBLOCK push")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return ["OK"]

    async def _push_later(self, queue: ServedQueue, push: Push, front: bool) -> None:
        try:
            for chunk in _chunks(push.events):
                found = await queue.pushes[front].push(chunk)
                if len(found) < len(chunk):  # it got a bound meanwhile
                    await queue.pushes[front].push(chunk[len(found) :], patient=True)
        except PressureError as error:
            logger.error(  # noqa: TRY400 - the client was told OK
                "a NOBLOCK push failed after its OK",
                extra={"queue": push.queue, "events": len(push.events), "reason": str(error)},
            )

    # Looking and popping.

    async def peek_left(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        return await self._peek(arguments, newest=True)

    async def peek_right(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        return await self._peek(arguments, newest=False)

    async def _peek(self, arguments: Arguments, *, newest: bool) -> Reply:
        event = await self._queues[name_of(arguments[0])].steps.peek(newest)
        return None if event is None else _pair(event)

    def pop(self, session: Session, arguments: Arguments, more: Calls) -> Answer:
        """Pop for several calls in one step, if they want the same; a call that may wait runs alone."""
        pops = [Pop.read(arguments)]
        want, wanted = pops[0].want, pops[0].most or 1
        for others in more if not pops[0].wait else ():
            try:
                pop = Pop.read(others)
            except ErrorReply:
                break  # it is the first one later
            together = wanted + (pop.most or 1)
            if pop.wait or pop.wait != pops[0].wait or pop.want != want or together > MAX_EVENTS:
                break
            pops.append(pop)
            wanted = together
        queue = self._queues[pops[0].queue]
        future = queue.pops.pop(wanted, want)
        return Answer(future, functools.partial(self._popped, session, queue, pops), len(pops))

    def _popped(
        self, session: Session, queue: ServedQueue, pops: Sequence[Pop], future: Outcome[Found]
    ) -> Replies | Answer:
        try:
            events = future.result()
        except QueueClosedError:
            if pops[0].wait is not None:
                raise  # nil would make a loop around QRPOP spin
            events = Found()
        if events and session.gone:
            queue.steps.give_back_soon(events)
            return [None]
        if not events:
            if pops[0].wait:
                return in_task(self._pop_soon(session, queue, pops[0]))
            return [_shown(queue, pop, (), events.wait) for pop in pops]
        if pops[0].lease:
            queue.expiry.look_in(pops[0].lease)
        replies, at = [], 0
        for pop in pops:
            mine = events[at : at + (pop.most or 1)]
            if not mine:
                break  # the step may have ended early, at large events: the others try again
            replies.append(_shown(queue, pop, mine))
            at += len(mine)
        return replies

    async def _pop_soon(self, session: Session, queue: ServedQueue, pop: Pop) -> Replies:
        self._queues.attach(queue)
        try:
            await session.wait(self._queues.listening(queue))
            events = await session.wait(queue.pop_soon(pop.most or 1, pop.want, pop.wait or 0.0))
        except Interrupted:
            events = Found()
        finally:
            self._queues.detach(queue)
        if session.gone and events:
            queue.steps.give_back_soon(events)
        return [_shown(queue, pop, events, events.wait)]

    # Acknowledging.

    def ack(self, session: Session, arguments: Arguments, more: Calls) -> Answer:  # noqa: ARG002
        """Acknowledge the events of several calls in one step; a call with very many runs alone."""
        acks = [Ack.read(arguments)]
        redo, ids = acks[0].redo, list(acks[0].ids)
        lane = self._queues[acks[0].queue].settling
        if len(ids) > MAX_EVENTS:
            return in_task(self._ack_chunks(acks[0]))
        for others in more if not redo else ():  # what goes back later comes first
            ack = Ack.read(others)
            if ack.redo or len(ids) + len(ack.ids) > MAX_EVENTS:
                break
            acks.append(ack)
            ids += ack.ids
        future = lane.settle(ids, "nack" if redo else "ack")
        return Answer(future, functools.partial(self._acked, acks), len(acks))

    @staticmethod
    def _acked(acks: Sequence[Ack], future: Outcome[bytes]) -> Replies:
        letters, at, replies = future.result(), 0, []
        for ack in acks:
            replies.append(letters.count(b"1", at, at + len(ack.ids)))
            at += len(ack.ids)
        return replies

    async def _ack_chunks(self, ack: Ack) -> Replies:
        return [await self._settle_all(ack.queue, [(one, b"") for one in ack.ids], "nack" if ack.redo else "ack")]

    async def give_back(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        """QRETURN queue id [id ...]"""
        name, *ids = arguments
        return await self._settle_all(name_of(name), [(one, b"") for one in ids], "unseen")

    async def fail(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        """QFAIL queue id error [id error ...]"""
        name, *rest = arguments
        if len(rest) % 2:
            raise ErrorReply("ERR missing args")
        if (longest := max(map(len, rest[1::2]))) > LONGEST_ERROR:
            raise ErrorReply(f"ERR bad error value: it has {longest} bytes, and the most is {LONGEST_ERROR}")
        return await self._settle_all(name_of(name), list(zip(rest[::2], rest[1::2], strict=True)), "fail")

    async def _settle_all(self, name: str, failures: Sequence[Failure], how: str) -> int:
        lane, done = self._queues[name].settling, 0
        for chunk in reversed(_chunks(failures)):  # what goes back later comes first
            done += (await lane.settle([event for event, _ in chunk], how, [why for _, why in chunk])).count(b"1")
        return done

    async def extend(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        name, event, given = arguments
        lease = seconds(given, "seconds")
        queue = self._queues[name_of(name)]
        (done,) = (await queue.steps.extend([(event, b"")], lease)).outcomes
        if done:
            queue.expiry.look_in(lease)
        return int(done)

    # Consumers.

    async def register_client(self, session: Session, arguments: Arguments) -> Reply:
        """QREGISTER [queue ...]"""
        await self.register(session, list(dict.fromkeys(name_of(one) for one in arguments)))
        return "OK"

    async def register(self, session: Session, names: Sequence[str]) -> None:
        """Register a client for queues, instead of those before."""
        wanted = [self._queues[name] for name in names]  # checks the names
        before = [self._queues[name] for name in session.registered]
        fresh = [queue for queue in wanted if queue not in before]
        gone = [queue for queue in before if queue not in wanted]
        # If the client goes meanwhile, `forget` undoes this part.
        session.registered = names
        for queue in fresh:
            self._queues.attach(queue)
        for queue in gone:
            self._queues.detach(queue)
        await asyncio.gather(
            *(self._queues.listening(queue) for queue in fresh),
            self._queues.register(session.consumer, fresh),
            self._queues.unregister(session.consumer, gone),
        )
        if session.gone:
            await self._queues.unregister(session.consumer, wanted)

    def forget(self, session: Session) -> None:
        """Deregister a client that has gone, at once."""
        names, session.registered = session.registered, ()
        if not names:
            return
        queues = [self._queues[name] for name in names]
        for queue in queues:
            self._queues.detach(queue)
        task = background.start(self._forget(session.consumer, queues), "deregistering a client")
        self._client.finish_before_close(task)

    async def _forget(self, consumer: bytes, queues: Sequence[ServedQueue]) -> None:
        try:
            await self._queues.unregister(consumer, queues)
        except PressureError as error:
            logger.warning("a consumer that has gone is still listed for 30 s", extra={"reason": str(error)})

    async def notify(self, session: Session, arguments: Arguments) -> Reply:
        """QNOTIFY timeout"""
        timeout = seconds(arguments[0], "timeout")
        try:
            found = await session.wait(self._queues.wait_for_event(session.registered, timeout))
        except Interrupted:
            return None
        return None if found is None else found.encode("utf-8", "surrogateescape")

    # Looking at queues.

    async def flush(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        await self._queues[name_of(arguments[0])].steps.flush()
        return "OK"

    async def status(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        found = await self._counts(arguments)
        return [[name.encode("utf-8", "surrogateescape"), *counts] for name, *counts in found]

    async def info(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        rows = [
            (name.encode("utf-8", "surrogateescape"), b"%d" % total, b"%d" % processing, b"%d" % consumers)
            for name, total, processing, consumers in await self._counts(arguments)
        ]
        wide = [max((len(row[at]) for row in rows), default=0) for at in range(4)]
        return [
            b"%b  total: %b  processing: %b  consumers: %b"
            % (name.ljust(wide[0]), total.ljust(wide[1]), processing.ljust(wide[2]), consumers)
            for name, total, processing, consumers in rows
        ]

    async def _counts(self, arguments: Arguments) -> list[tuple[str, int, int, int]]:
        names = [name_of(one) for one in arguments] or await active_queues(self._client)
        queues = [self._queues[name] for name in names]  # checks the names
        found = await asyncio.gather(*(queue.steps.status() for queue in queues))
        return [
            (name, one.waiting + one.claimed, one.claimed, one.consumers)
            for name, one in zip(names, found, strict=True)
        ]

    async def finish(self, timeout: float) -> None:
        """Wait for the NOBLOCK pushes that were answered OK."""
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                logger.error("NOBLOCK pushes were lost when the server stopped", extra={"events": len(late)})


def _reply_to(push: Push, letters: bytes) -> Reply:
    """Return the reply to a push of these events."""
    return _duplicate(push, letters) if b"d" in letters else "OK"


def _duplicate(push: Push, letters: bytes) -> ErrorReply:
    shown = push.events[letters.index(b"d")][0].decode("utf-8", "surrogateescape")
    error = f"ERR duplicate event {shown}"
    if len(letters) > 1:
        error += f" ({letters.count(b'd')} of {len(letters)} events are in the queue already; the others were added)"
    return ErrorReply(error)


def _added(push: Push, letters: bytes) -> str:
    return f"{letters.count(b'k')} of {len(push.events)} events were added"


def _full(push: Push, letters: bytes) -> str:
    return f"ERR queue full: the first {len(letters)} of {len(push.events)} events are in the queue"


def _shown(queue: ServedQueue, pop: Pop, events: Sequence[Event], wait: Wait = EMPTY) -> Reply:
    dead = queue.pops.take_dead() if pop.tell and pop.limit and pop.most is not None else 0
    if pop.tell and not events:
        return f"{wait.reason}{' created' if wait.created else ''}{f' {dead}' if dead else ''}"
    show = _with_attempts if pop.tell else _pair
    if pop.most is not None:
        return [*(show(event) for event in events), *([dead] if dead else ())]
    return show(events[0]) if events else None


def _with_attempts(event: Event) -> Reply:
    return [event.id, event.contents, event.attempts]


def _pair(event: Event) -> Reply:
    return [event.id, event.contents]


def _chunks(whole: Sequence[Any]) -> list[Sequence[Any]]:
    return [whole[at : at + MAX_EVENTS] for at in range(0, len(whole), MAX_EVENTS)]
