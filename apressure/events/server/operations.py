"""What the commands for queues do. Each method takes the arguments of its command, and returns the reply."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Sequence
from typing import Any

from apressure import background
from apressure.connection.client import Client
from apressure.events.answers import Event
from apressure.events.server.arguments import Ack, Pop, Push, name_of, seconds
from apressure.events.server.lanes import PushLane
from apressure.events.server.queues import Queues, ServedQueue
from apressure.events.server.session import Interrupted, Session
from apressure.events.server.wire.replies import ErrorReply, Reply
from apressure.events.steps import MAX_EVENTS, active_queues
from apressure.exceptions import PressureError, QueueClosedError

logger = logging.getLogger("apressure.events.server")

Arguments = Sequence[bytes]

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

    async def push_left(self, session: Session, arguments: Arguments) -> Reply:
        return await self._push(session, arguments, front=False)

    async def push_right(self, session: Session, arguments: Arguments) -> Reply:
        return await self._push(session, arguments, front=True)

    async def push_many_left(self, session: Session, calls: Sequence[Arguments]) -> Sequence[Reply]:
        return await self._push_many(session, calls, front=False)

    async def push_many_right(self, session: Session, calls: Sequence[Arguments]) -> Sequence[Reply]:
        return await self._push_many(session, calls, front=True)

    async def _push(self, session: Session, arguments: Arguments, *, front: bool) -> Reply:
        push = Push.read(arguments)
        queue = self._queues[push.queue]
        if push.noblock:
            return await self._push_noblock(queue, push, front)
        return await self._complete(session, queue.pushes[front], push)

    async def _complete(self, session: Session, lane: PushLane, push: Push, letters: bytes = b"") -> Reply:
        """Push what was not looked at yet, and wait for room."""
        while len(letters) < len(push.events):
            chunk = push.events[len(letters) : len(letters) + MAX_EVENTS]
            found = await lane.push(chunk)
            letters += found
            if len(found) < len(chunk):
                if push.nowait:
                    raise ErrorReply(_full(push, letters))
                try:
                    letters += await session.wait(lane.push(chunk[len(found) :], patient=True))
                except Interrupted:
                    raise ErrorReply(f"{_STOPPED} {_added(push, letters)}") from None
        return _pushed(push, letters)

    async def _push_many(self, session: Session, calls: Sequence[Arguments], *, front: bool) -> Sequence[Reply]:
        """Push in shared steps, up to the first call that has to wait, or is NOBLOCK: that one runs alone."""
        pushes: list[Push | Exception] = []
        for arguments in calls:
            try:
                push = Push.read(arguments)
            except ErrorReply as error:
                pushes.append(error)
                continue
            if push.noblock or len(push.events) > MAX_EVENTS:
                break
            pushes.append(push)
        if not pushes:
            return [await _caught(self._push(session, calls[0], front=front))]
        try:
            lane = self._queues[name_of(calls[0][0])].pushes[front]
        except ValueError as error:
            return [error] * len(pushes)
        outcomes = [one if isinstance(one, Exception) else lane.push(one.events) for one in pushes]
        replies: list[Reply] = []
        for push_or_error, outcome in zip(pushes, outcomes, strict=True):
            if isinstance(push_or_error, Exception):
                replies.append(push_or_error)
                continue
            letters = await _caught(outcome)  # type: ignore[arg-type]
            if isinstance(letters, Exception):
                replies.append(letters)
                continue
            if len(letters) < len(push_or_error.events) and push_or_error.nowait:
                replies.append(ErrorReply(_full(push_or_error, letters)))
                continue
            if len(letters) < len(push_or_error.events):
                # The queue is full, and the pushes behind this one have pushed nothing.
                if letters or not replies:
                    replies.append(await _caught(self._complete(session, lane, push_or_error, letters)))
                break
            replies.append(_pushed_or_error(push_or_error, letters))
        return replies

    async def _push_noblock(self, queue: ServedQueue, push: Push, front: bool) -> Reply:
        if len(self._background) >= self._workers:
            raise ErrorReply("ERR too busy to process NOBLOCK event")
        if await queue.is_limited():
            letters = b""
            for chunk in _chunks(push.events):
                found = await queue.pushes[front].push(chunk)
                letters += found
                if len(found) < len(chunk):
                    raise ErrorReply(f"ERR queue full: {_added(push, letters)}")
            return _pushed(push, letters)
        task = background.start(self._push_later(queue, push, front), "a NOBLOCK push")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return "OK"

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
        return _shown(await self._queues[name_of(arguments[0])].steps.peek(newest=True))

    async def peek_right(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        return _shown(await self._queues[name_of(arguments[0])].steps.peek())

    async def pop(self, session: Session, arguments: Arguments) -> Reply:
        pop = Pop.read(arguments)
        queue = self._queues[pop.queue]
        most = pop.count or 1
        try:
            events = await queue.pop(most, pop.lease)
            if not events and pop.wait:
                events = await self._pop_soon(session, queue, most, pop.lease, pop.wait)
        except QueueClosedError:
            if pop.wait is not None:
                raise  # nil would make a loop around QRPOP spin
            events = []
        except Interrupted:
            events = []
        return self._popped(session, queue, events, pop)

    async def _pop_soon(
        self, session: Session, queue: ServedQueue, most: int, lease: float, timeout: float
    ) -> list[Event]:
        self._queues.attach(queue)
        try:
            await session.wait(self._queues.listening(queue))
            return await session.wait(queue.pop_soon(most, lease, timeout))
        finally:
            self._queues.detach(queue)

    async def pop_many(self, session: Session, calls: Sequence[Arguments]) -> Sequence[Reply]:
        """Pop in shared steps, up to the first call that may wait: that one runs alone."""
        pops: list[Pop | Exception] = []
        for arguments in calls:
            try:
                pop = Pop.read(arguments)
            except ErrorReply as error:
                pops.append(error)
                continue
            if pop.wait:
                break
            pops.append(pop)
        if not pops:
            return [await _caught(self.pop(session, calls[0]))]
        try:
            queue = self._queues[name_of(calls[0][0])]
        except ValueError as error:
            return [error] * len(pops)
        wanted = [(pop.count or 1, pop.lease) for pop in pops if isinstance(pop, Pop)]
        found = iter(await queue.pop_each(wanted))
        replies: list[Reply] = []
        for pop_or_error in pops:
            if isinstance(pop_or_error, Exception):
                replies.append(pop_or_error)
                continue
            events = next(found)
            if isinstance(events, QueueClosedError) and pop_or_error.wait is None:
                events = []
            if isinstance(events, Exception):
                replies.append(events)
            else:
                replies.append(self._popped(session, queue, events, pop_or_error))
        return replies

    @staticmethod
    def _popped(session: Session, queue: ServedQueue, events: Sequence[Event], pop: Pop) -> Reply:
        if session.gone and events:
            queue.steps.give_back_soon(events)
        if pop.count is not None:
            return [[event.id, event.contents] for event in events]
        return _shown(events[0]) if events else None

    # Acknowledging.

    async def ack(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        ack = Ack.read(arguments)
        settled = 0
        for chunk in _chunks(ack.ids):
            lane = self._queues[ack.queue].settling
            settled += sum(await lane.settle(chunk, "nack" if ack.redo else "ack"))
        return settled

    async def ack_many(self, session: Session, calls: Sequence[Arguments]) -> Sequence[Reply]:
        """Acknowledge in shared steps, up to the first call with very many ids: that one runs alone."""
        acks = [Ack.read(arguments) for arguments in calls]
        small = list(itertools.takewhile(lambda ack: len(ack.ids) <= MAX_EVENTS, acks))
        if not small:
            return [await _caught(self.ack(session, calls[0]))]
        try:
            lane = self._queues[small[0].queue].settling
        except ValueError as error:
            return [error] * len(small)
        outcomes = [lane.settle(ack.ids, "nack" if ack.redo else "ack") for ack in small]
        settled = [await _caught(outcome) for outcome in outcomes]
        return [one if isinstance(one, Exception) else sum(one) for one in settled]

    async def extend(self, session: Session, arguments: Arguments) -> Reply:  # noqa: ARG002
        name, event, given = arguments
        lease = seconds(given, "seconds")
        queue = self._queues[name_of(name)]
        (done,) = await queue.steps.extend([(event, b"")], lease)
        if done:
            queue.look_in(lease)
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
        found = await asyncio.gather(*(self._queues[name].steps.status() for name in names))
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


def _pushed(push: Push, letters: bytes) -> Reply:
    """Return the reply to a push, or raise its error."""
    at = letters.find(b"d")
    if at < 0:
        return "OK"
    shown = push.events[at][0].decode("utf-8", "surrogateescape")
    error = f"ERR duplicate event {shown}"
    if len(letters) > 1:
        error += f" ({letters.count(b'd')} of {len(letters)} events are in the queue already; the others were added)"
    raise ErrorReply(error)


def _pushed_or_error(push: Push, letters: bytes) -> Reply | ErrorReply:
    try:
        return _pushed(push, letters)
    except ErrorReply as error:
        return error


def _added(push: Push, letters: bytes) -> str:
    return f"{letters.count(b'k')} of {len(push.events)} events were added"


def _full(push: Push, letters: bytes) -> str:
    return f"ERR queue full: the first {len(letters)} of {len(push.events)} events are in the queue"


def _shown(event: Event | None) -> Reply:
    return None if event is None else [event.id, event.contents]


def _chunks(whole: Sequence[Any]) -> list[Sequence[Any]]:
    return [whole[at : at + MAX_EVENTS] for at in range(0, len(whole), MAX_EVENTS)]


async def _caught(outcome: Awaitable[Any]) -> Any:
    """Return an outcome; an error as a value."""
    try:
        return await outcome
    except Exception as error:  # noqa: BLE001 - the client learns of it
        return error
