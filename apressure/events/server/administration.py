"""The commands that need nothing but a queue: each function takes the queue, and the arguments behind its name.

Several of them, such as a queue's bound, its end, pauses, limits and dead letters, only servers of ours have.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from apressure.concurrency.settle import raised
from apressure.connection.schedules import encoded
from apressure.connection.sender import soon
from apressure.connection.workers import ServerRegistry
from apressure.core.limits import Limits
from apressure.core.occasions import checked_name
from apressure.core.registration import Wish
from apressure.core.registrations import KEPT_ASKED
from apressure.core.workers import MAX_SIZE, Letter
from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.server.arguments import chunks, claims_of, due_time, errors_of, limits_of, number, quoted, seconds
from apressure.events.server.queues import ServedQueue
from apressure.events.server.wire import ErrorReply, Reply
from apressure.exceptions import QueueClosedError, ServerError

MAX_BOUND: Final = 10**12
_MOST_LETTERS: Final = 1000
_LETTERS: Final = (Letter.CANNOT, Letter.WORKS, Letter.PUTS)
_LONGEST_NAME: Final = 255
_WISHES: Final[dict[bytes, Wish]] = {b"DRAIN": "drain", b"STACK": "stack"}


async def peek(queue: ServedQueue, *, newest: bool) -> Reply:
    """QLPEEK queue, QRPEEK queue"""
    event = await queue.steps.peek(newest)
    return None if event is None else [event.id, event.contents]


async def flush(queue: ServedQueue) -> Reply:
    """QFLUSH queue"""
    await queue.steps.flush()
    return "OK"


# What was popped.


async def settle_all(queue: ServedQueue, claims: Sequence[Sequence[bytes]], how: str) -> int:
    """Settle any number of events, and return how many were settled."""
    done = 0
    for chunk in reversed(chunks(claims)):  # what goes back later comes first
        done += (await queue.settling.settle(chunk, how)).count(b"1")
    return done


async def give_back(queue: ServedQueue, *ids: bytes) -> Reply:
    """QRETURN queue id [id ...]"""
    return await settle_all(queue, claims_of(ids), "unseen")


async def fail(queue: ServedQueue, *rest: bytes) -> Reply:
    """QFAIL queue id error [id error ...]"""
    return await settle_all(queue, errors_of(rest), "fail")


async def fail_for_later(queue: ServedQueue, when: bytes, *rest: bytes) -> Reply:
    """QLATER queue when id error [id error ...]"""
    due = due_time(when)
    done = await settle_all(queue, [(*claim, due) for claim in errors_of(rest)], "later")
    queue.expiry.look_when(due)
    return done


async def extend(queue: ServedQueue, event: bytes, given: bytes) -> Reply:
    """QEXTEND queue id seconds"""
    lease = seconds(given, "seconds")
    (done,) = (await queue.steps.extend([(event, b"")], lease)).outcomes
    if done:
        queue.expiry.ring_in(lease)
    return int(done)


# The queue as a whole.


async def create(queue: ServedQueue, bound: bytes) -> Reply:
    """QCREATE queue bound"""
    return int(await queue.steps.create(number(bound, "bound", MAX_BOUND, least=0)))


async def delete(queue: ServedQueue) -> Reply:
    """QDELETE queue"""
    try:
        created = (await queue.steps.status()).created
    except ServerError:
        created = True  # it is damaged: deleting it is how to mend it
    await queue.steps.delete()
    if created:
        queue.note_end()
    return "OK"


async def close(queue: ServedQueue, *options: bytes) -> Reply:
    """QCLOSE queue [CREATED]"""
    if [one.upper() for one in options] not in ([], [b"CREATED"]):
        raise ErrorReply(f"ERR syntax error: QCLOSE has the option CREATED, not {quoted(options[0])}")
    try:
        await queue.steps.close(bool(options))
    except QueueClosedError:
        return 0
    queue.note_end()
    return 1


async def pause(queue: ServedQueue, *, on: bool) -> Reply:
    """QPAUSE queue, QRESUME queue"""
    return int(await queue.steps.pause(on))


async def limit(queue: ServedQueue, *rest: bytes) -> Reply:
    """QLIMIT queue name value [name value ...]"""
    await queue.steps.limit(limits_of(rest))
    return "OK"


async def purge(queue: ServedQueue, count: bytes) -> Reply:
    """QPURGE queue count"""
    return await queue.steps.purge(number(count, "count", MAX_EVENTS))


async def promote(queue: ServedQueue, count: bytes, *ids: bytes) -> Reply:
    """QPROMOTE queue count [id ...]"""
    return await queue.steps.promote(number(count, "count", MAX_EVENTS), ids)


async def look(queue: ServedQueue) -> Reply:
    """QLOOK queue"""
    status = await queue.steps.status()
    return [
        int(status.exists), int(status.created), status.bound, int(status.closed), int(status.paused > 0),
        status.waiting, status.claimed, status.consumers, status.dead, status.delayed, status.next_due,
        status.expired, *_numbers_of(status.limits),
    ]  # fmt: skip


def _numbers_of(limits: Limits) -> tuple[int, ...]:
    """Return limits as `read_limits` reads them."""
    rate = limits.rate
    counted = (0, 0, 0) if rate is None else (rate.count, round(rate.per * 1000), rate.burst or 0)
    return (round(limits.held_for * 1000), *counted, limits.concurrency or 0)


async def dead(queue: ServedQueue, passed: bytes, count: bytes) -> Reply:
    """QDEAD queue passed count"""
    begin, most = number(passed, "passed", MAX_BOUND, least=0), number(count, "count", _MOST_LETTERS)
    return await queue.steps.dead_letters(begin, most)


async def requeue(queue: ServedQueue, count: bytes, *letters: bytes) -> Reply:
    """QREQUEUE queue count [letter ...]"""
    return await queue.steps.requeue(number(count, "count", MAX_EVENTS), letters)


async def discard(queue: ServedQueue, *letters: bytes) -> Reply:
    """QDISCARD queue letter [letter ...]"""
    return await queue.steps.discard(letters)


# Schedules. Clients compute their times; see `apressure.core.schedules`.


async def schedules(queue: ServedQueue, *options: bytes) -> Reply:
    """QSCHEDULES queue [COUNT]"""
    store = queue.steps.schedules()
    if options:
        if options[0].upper() != b"COUNT":
            raise ErrorReply(f"ERR syntax error: QSCHEDULES has the option COUNT, not {quoted(options[0])}")
        return (await store.beside()).schedules
    now, records = await store.read()
    return [now, *itertools.chain.from_iterable((encoded(name), record) for name, record in records.items())]


async def schedule(queue: ServedQueue, given: bytes, was: bytes, becomes: bytes, *contents: bytes) -> Reply:
    """QSCHEDULE queue name was becomes [contents]"""
    store = queue.steps.schedules()
    try:
        name = checked_name(given.decode())
    except ValueError as error:  # not UTF-8, or another invalid name
        raise ErrorReply(f"ERR {error}") from None
    if not contents:
        return int(await store.write(name, was or None, becomes or None))
    if not was or not becomes:
        raise ErrorReply("ERR an occasion needs the record before, and the record after that")
    return (await store.put(name, was, becomes, contents[0])).encode()


# Those that work on the queue, and producers that wait for room.


async def workers(queue: ServedQueue, *rest: bytes) -> Reply:
    """QWORKERS queue [BEAT name letter record milliseconds | LEAVE name | ASK worker DRAIN|STACK]"""
    registry = ServerRegistry(queue.steps)
    match rest[:1], rest[1:]:
        case (), ():
            _, _, now, *registered = await queue.steps.schedules().kept()
            pairs = zip(registered[::2], registered[1::2], strict=True)
            return [now, *itertools.chain.from_iterable(pair for pair in pairs if pair[0])]
        case (verb,), (name, letter, record, given) if verb.upper() == b"BEAT":
            lasts = number(given, "milliseconds", KEPT_ASKED) / 1000
            if letter not in _LETTERS or not 0 < len(name) <= _LONGEST_NAME or len(record) > MAX_SIZE:
                raise ErrorReply("ERR a registration has the letter c, w or p, a name and a record that are not long")
            return int(raised(await soon(lambda on_answer: registry.beat(name, letter, record, lasts, on_answer))))
        case (verb,), (name,) if verb.upper() == b"LEAVE":
            raised(await soon(lambda on_answer: registry.leave(name, on_answer)))
            return "OK"
        case (verb,), (worker, what) if verb.upper() == b"ASK" and what.upper() in _WISHES:
            return await registry.ask(worker, _WISHES[what.upper()])
    raise ErrorReply(
        "ERR syntax error: QWORKERS queue [BEAT name letter record milliseconds | LEAVE name | ASK worker DRAIN|STACK]"
    )
