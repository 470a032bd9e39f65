"""Dead letters tell why: the last error, the attempts and the time are kept. `requeue` chooses by id."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Backoff, Failure, QueueEmptyError, ScriptingRefusedError, ServerError, pipe, serve
from apressure.dead_letters import UNKNOWN, DeadLetter
from apressure.pressure.engine.requeueing import Chosen
from apressure.testing.proxy import Proxy
from tests import processes
from tests.integration.conftest import Opener, in_time
from tests.integration.dead_letters.test_dead_letters import lose_one
from tests.reference import ReferenceQueue, connect

REASONS = "apressure:__pressure__:jobs:dead:reasons"


class PaymentError(Exception):
    pass


@pytest.fixture
async def queue(open_queue: Opener) -> AsyncIterator[AsyncQueue[Any]]:
    queue = await open_queue(max_attempts=2)
    yield queue
    dead = await open_queue("jobs:dead", create=False)
    if await dead.exists():
        await dead.delete()


async def kill(queue: AsyncQueue[Any], error: BaseException | str | None, times: int = 2) -> None:
    """Receive the next message so often, and give it back with an error."""
    for _ in range(times):
        await (await in_time(queue.receive(timeout=0))).nack(error)


async def bury(queue: AsyncQueue[Any]) -> None:
    """Have what was delivered too often moved, where nothing else waits."""
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


async def dead_letter(queue: AsyncQueue[Any], raw: bytes, error: BaseException | str | None = None) -> None:
    await queue.put(raw)
    await kill(queue, error)
    await bury(queue)


async def test_a_dead_letter_shows_its_last_error(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    before = time.time()
    await queue.put(b"poison")
    await kill(queue, KeyError("first"), 1)
    await kill(queue, PaymentError("card declined"), 1)
    assert await queue.dead_letters() == []
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.item, letter.attempts) == (b"poison", b"poison", 2)
    assert letter.error == Failure("tests.integration.dead_letters.test_reasons.PaymentError", "card declined", 2)
    assert letter.reason == "tests.integration.dead_letters.test_reasons.PaymentError: card declined"
    assert letter.when is not None
    assert before - 1 < letter.when < time.time() + 1
    assert 0 < db.ttl(REASONS) <= 30 * 86400
    assert db.hlen(REASONS) == 1


async def test_a_foreign_client_sees_the_message_alone(queue: AsyncQueue[Any], url: str) -> None:
    await dead_letter(queue, b"poison", ValueError("x"))
    with connect(url) as plain:
        assert ReferenceQueue(plain, "jobs:dead").get(1) == b"poison"
    assert await queue.dead_letters() == []
    # What it left behind is no reason of a later message with another content.
    await dead_letter(queue, b"other")
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.error, letter.attempts) == (b"other", None, 2)


async def test_a_reason_that_was_left_behind_is_not_that_of_a_later_message(queue: AsyncQueue[Any], url: str) -> None:
    await dead_letter(queue, b"poison", ValueError("old"))
    with connect(url) as plain:
        assert ReferenceQueue(plain, "jobs:dead").get(1) == b"poison"
    await dead_letter(queue, b"poison", ValueError("new"))
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "new", 2)


async def test_without_an_error_the_consumer_died_or_gave_it_back(queue: AsyncQueue[Any]) -> None:
    await dead_letter(queue, b"poison")
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error, letter.reason) == (2, None, UNKNOWN)


async def test_an_earlier_error_says_at_which_attempt_it_was(queue: AsyncQueue[Any]) -> None:
    await queue.put(b"poison")
    await kill(queue, ValueError("early"), 1)
    await kill(queue, None, 1)
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "early", 1)
    assert letter.reason == f"ValueError: early (attempt 1; later ones: {UNKNOWN})"


async def test_an_error_is_forgotten_when_the_message_is_acknowledged(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    for _ in range(2):
        await queue.put(b"x")
        await kill(queue, ValueError("old"), 1)
        assert db.hlen(REASONS) == 1
        await (await queue.receive()).ack()
        assert not db.exists(REASONS)
    await queue.put(b"x")
    await kill(queue, ValueError("old"), 1)
    async with queue.consumer() as consumer:  # its acknowledgement travels with what the loop asks for next
        await anext(consumer)
        await queue.put(b"y")
        await anext(consumer)
    assert not db.exists(REASONS)


async def test_the_body_of_a_consumer_that_raises(queue: AsyncQueue[Any]) -> None:
    await queue.put_many([b"poison", b"1", b"2"])
    for _ in range(2):
        with pytest.raises(PaymentError):
            async with queue.consumer(prefetch=3) as consumer:
                assert await anext(consumer) == b"poison"
                raise PaymentError("declined")
    async with queue.consumer() as consumer:
        assert [await anext(consumer), await anext(consumer)] == [b"1", b"2"]  # in order still
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("tests.integration.dead_letters.test_reasons.PaymentError", "declined", 2)


async def test_a_cancelled_body_is_no_error(queue: AsyncQueue[Any]) -> None:
    await queue.put(b"x")
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            async with queue.consumer() as consumer:
                await anext(consumer)
                raise asyncio.CancelledError
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error) == (2, None)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
async def test_a_handler_of_serve_that_raises(queue: AsyncQueue[Any], shared: bool, batch: int | None) -> None:
    await queue.put_many([b"good", b"poison", b"better"])
    await queue.close()

    async def handler(item: Any) -> None:
        if b"poison" in (item if batch else [item]):
            raise PaymentError("declined")

    done = await in_time(serve(handler, queue, retry=Backoff(0), shared=shared, batch=batch))
    assert done.failed >= 2
    letters = await queue.dead_letters()
    (letter,) = [each for each in letters if each.raw == b"poison"]
    assert letter.error == Failure("tests.integration.dead_letters.test_reasons.PaymentError", "declined", 2)


async def test_a_service_that_is_stopped_before_the_retry_keeps_the_error(queue: AsyncQueue[Any]) -> None:
    await queue.put(b"poison")
    stop = asyncio.Event()

    async def handler(item: bytes) -> None:
        stop.set()
        raise ValueError(item)

    for _ in range(2):
        stop.clear()
        service = asyncio.create_task(serve(handler, queue, retry=Backoff(3, jitter=False)))
        await in_time(stop.wait())
        await asyncio.sleep(0.05)
        service.cancel()
        await asyncio.wait((service,))
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "b'poison'", 2)


@pytest.mark.parametrize("exactly_once", [True, False])
async def test_a_transform_of_pipe_that_raises(
    queue: AsyncQueue[Any], open_queue: Opener, db: redis.Redis, exactly_once: bool
) -> None:
    out = await open_queue("out")
    await queue.put_many([b"good", b"poison", b"flaky"])
    await queue.close()
    flaky = [PaymentError("flaky")]

    async def transform(item: bytes) -> bytes:
        if item == b"poison":
            raise PaymentError("declined")
        if item == b"flaky" and flaky:
            raise flaky.pop()
        return item

    await in_time(pipe(queue, transform, out, retry=Backoff(0), exactly_once=exactly_once or None))
    assert sorted(await out.get_many(5)) == [b"flaky", b"good"]
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("tests.integration.dead_letters.test_reasons.PaymentError", "declined", 2)
    assert db.hlen(REASONS) == 1  # the error of the other one is forgotten


KILLED = """
    import asyncio, os, signal
    from apressure import AsyncQueue

    async def main():
        queue = AsyncQueue("jobs", url={url!r}, max_attempts=2)
        async with queue.consumer(lease=0.3, shared={shared}) as consumer:
            print(await anext(consumer), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
"""


@pytest.mark.parametrize("shared", [False, True])
async def test_a_consumer_that_was_killed_leaves_no_error(queue: AsyncQueue[Any], url: str, shared: bool) -> None:
    await queue.put(b"poison")
    await kill(queue, ValueError("early"), 1)
    code = textwrap.dedent(KILLED.format(url=url, shared=shared))
    run = await asyncio.to_thread(
        processes.run, [sys.executable, "-c", code], capture_output=True, timeout=90, check=False
    )
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, b"b'poison'\n")

    async def buried() -> bool:
        async with queue.consumer(shared=shared) as consumer:
            asking = asyncio.ensure_future(anext(consumer))
            await asyncio.wait((asking,), timeout=0.2)
            asking.cancel()
            await asyncio.wait((asking,))
        return bool(await queue.dead_letters())

    async with asyncio.timeout(90):
        while not await buried():
            await asyncio.sleep(0.1)
    (letter,) = await queue.dead_letters()
    assert letter.attempts == 2
    assert letter.error == Failure("ValueError", "early", 1)


async def test_members_keep_each_others_errors_apart(queue: AsyncQueue[Any], open_queue: Opener) -> None:
    other = await open_queue(create=False, max_attempts=2)
    await queue.put_many([b"a", b"b"])
    async with queue.consumer("manual", shared=True, prefetch=1) as one:
        first = await in_time(anext(one))
        async with other.consumer("manual", shared=True, prefetch=1) as two:
            second = await in_time(anext(two))
            second.note_error("left behind")
        await first.nack(ValueError("given back"))
    assert {first.raw, second.raw} == {b"a", b"b"}
    async with queue.consumer("manual", shared=True, prefetch=1) as one:
        for _ in range(2):
            again = await in_time(anext(one))
            assert again.attempts == 2
            again.note_error("later") if again.raw == first.raw else None
            await again.nack()
        await queue.put(b"c")
        assert (await in_time(anext(one))).raw == b"c"  # the others are dead
    letters = {letter.raw: letter.error for letter in await queue.dead_letters()}
    assert letters == {first.raw: Failure("", "later", 2), second.raw: Failure("", "left behind", 1)}


class NastyError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("a\nb\x1b[31mc\x00d\t\u202ee"), "a b [31mc d e"),
        (ValueError("é" * 1000), "é" * 98 + "…"),
        (ValueError("x" * 10_000_000), "x" * 197 + "…"),
        (ValueError("\udcff:1:2:3"), ":1:2:3"),
        (ValueError(b"\x00\xff"), "b'\\x00\\xff'"),
        (ValueError(), ""),
        (NastyError(), "(its message cannot be shown)"),
        ("1:2:3", "1:2:3"),
    ],
)
async def test_hostile_texts(queue: AsyncQueue[Any], error: Exception | str, shown: str) -> None:
    await dead_letter(queue, b"x", error)
    (letter,) = await queue.dead_letters()
    assert letter.error is not None
    assert letter.error.message == shown


async def test_another_program_may_write_anything(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    await dead_letter(queue, b"x", ValueError("x"))
    (field,) = db.hkeys(REASONS)
    for junk in (b"junk", b"\n\n", b"1:2:3", b"1:1:1:a\xff\x1b[0m\tb\x07", b"\xff" * 100_000):
        db.hset(REASONS, field, junk)
        (letter,) = await queue.dead_letters()
        assert letter.raw == b"x"
        assert letter.reason.isprintable()
    db.delete(REASONS)
    db.lpush(REASONS, b"not a hash")
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error, letter.when, letter.reason) == (None, None, None, "unknown")
    await dead_letter(queue, b"y", ValueError("y"))
    assert [each.raw for each in await queue.dead_letters()] == [b"x", b"y"]
    assert await queue.requeue(ids=[letter.id]) == 1
    assert await queue.requeue() == 1
    assert db.lrange(REASONS, 0, -1) == [b"not a hash"]


async def test_errors_are_not_kept_where_the_program_says_so(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=2, keep_errors=False)
    await dead_letter(queue, b"x", ValueError("secret"))
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error) == (2, None)
    assert not any(b"secret" in value for value in db.hvals(REASONS))
    await (await open_queue("jobs:dead", create=False)).delete()
    assert not db.exists(REASONS)


async def test_the_limit_is_that_of_the_oldest(queue: AsyncQueue[Any]) -> None:
    assert await queue.dead_letters() == []
    await queue.put_many([b"%d" % i for i in range(5)])
    for i in range(5):
        await kill(queue, ValueError(i))
    await bury(queue)
    letters = await queue.dead_letters(3)
    assert [(each.raw, each.error) for each in letters] == [
        (b"%d" % i, Failure("ValueError", str(i), 2)) for i in range(3)
    ]
    assert len(await queue.dead_letters(limit=None)) == 5
    with pytest.raises(ValueError, match="limit"):
        await queue.dead_letters(0)


async def test_many_pages(queue: AsyncQueue[Any], open_queue: Opener, db: redis.Redis) -> None:
    dead = await open_queue("jobs:dead")
    payloads = [b"%d" % i + b"x" * (i % 7) * 3000 for i in range(1500)]
    await dead.put_many(payloads)
    letters = await queue.dead_letters(limit=None)
    assert [each.raw for each in letters] == payloads
    assert len({each.id for each in letters}) == 1500
    chosen = letters[::-50]
    assert await queue.requeue(ids=[each.id for each in chosen]) == 30
    assert await queue.get_many(1000) == [each.raw for each in reversed(chosen)]
    assert await dead.qsize() == 1470


async def test_there_are_not_too_many_reasons(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    db.hset(REASONS, mapping={f"d{i}": f"{i + 1000}:1:0:" for i in range(5000)})
    await dead_letter(queue, b"x", ValueError("x"))
    assert db.hlen(REASONS) <= 5000
    assert not db.hexists(REASONS, "d0")
    assert db.hexists(REASONS, "d4999")
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "x", 2)


async def test_dead_letters_with_the_same_content(queue: AsyncQueue[Any], url: str) -> None:
    for i in range(4):
        await dead_letter(queue, b"twin", ValueError(i))
    letters = await queue.dead_letters()
    assert [each.error.message for each in letters if each.error] == ["0", "1", "2", "3"]
    assert len({each.id for each in letters}) == 4
    with connect(url) as plain:  # it takes the oldest
        assert ReferenceQueue(plain, "jobs:dead").get(1) == b"twin"
    assert await queue.dead_letters() == letters[1:]
    assert await queue.requeue(ids=[letters[2].id]) == 1
    assert await queue.dead_letters() == [letters[1], letters[3]]
    again = await queue.requeue(ids=[letters[2].id, letters[3].id])
    assert (again, again.not_found) == (1, (letters[2].id,))
    assert await queue.dead_letters() == [letters[1]]
    assert await queue.requeue() == 1
    assert await queue.qsize() == 3


async def test_a_letter_that_was_moved_is_not_taken_for_its_twin(queue: AsyncQueue[Any]) -> None:
    for number in range(2):
        await dead_letter(queue, b"twin", ValueError(number))
    first, second = await queue.dead_letters()
    assert await queue.requeue(ids=[first]) == 1
    assert (await queue.requeue(ids=[first])).not_found == (first.id,)
    assert (await queue.discard([first])).not_found == (first.id,)
    assert await queue.dead_letters() == [second]
    assert await queue.discard([second]) == 1
    assert await queue.get_many(5) == [b"twin"]


async def test_equal_letters_without_a_reason_share_an_id(queue: AsyncQueue[Any], open_queue: Opener) -> None:
    dead = await open_queue("jobs:dead")
    await dead.put_many([b"twin", b"other", b"twin"])
    letters = await queue.dead_letters()
    assert [each.raw for each in letters] == [b"twin", b"other", b"twin"]
    assert letters[0].id == letters[2].id
    assert await queue.requeue(ids=[letters[0].id]) == 2
    assert await dead.get_many(5) == [b"other"]


async def test_of_equal_letters_far_apart_one_has_the_reason(queue: AsyncQueue[Any], open_queue: Opener) -> None:
    dead = await open_queue("jobs:dead")
    await dead.put_many([b"twin", *(b"%d" % number for number in range(5))])
    await queue.add_dead_letters([DeadLetter("x", b"twin", 3, Failure("E", "why", 3), 2e9, bytes)])
    letters, cursor = [], None
    while True:
        page = await queue.find_dead_letters(cursor=cursor, look=2)
        letters += [letter for letter in page.letters if letter.raw == b"twin"]
        if (cursor := page.cursor) is None:
            break
    assert [letter.when for letter in letters] == [None, 2e9]
    assert [letter for letter in await queue.dead_letters() if letter.raw == b"twin"] == letters


async def test_chosen_letters_start_anew(queue: AsyncQueue[Any], open_queue: Opener) -> None:
    for raw in (b"a", b"b", b"c"):
        await dead_letter(queue, raw, ValueError(raw))
    ids = [each.id for each in await queue.dead_letters()]
    moved = await queue.requeue(ids=[ids[2], "nonsense", ids[0], ids[2]])
    assert moved == 2
    assert moved.not_found == ("nonsense",)
    assert [each.raw for each in await queue.dead_letters()] == [b"b"]
    for raw in (b"a", b"c"):  # the oldest first
        delivery = await queue.receive()
        assert (delivery.raw, delivery.attempts) == (raw, 1)
        await delivery.ack()
    dead = await open_queue("jobs:dead", create=False)
    statistics = await dead.statistics()
    assert (statistics.produced_messages, statistics.consumed_messages) == (3, 2)
    none = await queue.requeue(ids=[])
    assert (none, none.not_found) == (0, ())
    for ids_ in ("abc", 5, [b"abc"]):
        with pytest.raises(TypeError, match="id"):
            await queue.requeue(ids=ids_)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either max_items= or ids="):
        await queue.requeue(5, ids=["a"])


async def test_chosen_letters_wait_for_room(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1, bound=2)
    dead = await open_queue("jobs:dead")
    await dead.put_many([b"%d" % i for i in range(6)])
    ids = [each.id for each in await queue.dead_letters()]
    moving = asyncio.create_task(queue.requeue(ids=[*ids, "gone"]))
    got = []
    while len(got) < 6:
        got += await in_time(queue.get_many(2))
    assert got == [b"%d" % i for i in range(6)]
    moved = await in_time(moving)
    assert (moved, moved.not_found) == (6, ("gone",))


async def test_a_letter_that_somebody_takes_meanwhile_is_not_found(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1, bound=1)
    dead = await open_queue("jobs:dead")
    await dead.put_many([b"0", b"1", b"2"])
    ids = [each.id for each in await queue.dead_letters()]
    moving = asyncio.create_task(queue.requeue(ids=ids))

    async def moved_first() -> bool:
        return await dead.qsize() == 2

    while not await moved_first():
        await asyncio.sleep(0.01)
    assert await dead.get() == b"1"
    assert await in_time(queue.get()) == b"0"
    assert await in_time(queue.get()) == b"2"
    moved = await in_time(moving)
    assert (moved, moved.not_found) == (2, (ids[1],))


async def moved(chosen: Chosen) -> int:
    while chosen.more:
        await chosen.go_on(None)
    return chosen.moved


async def test_requeueing_by_id_when_replies_are_lost(open_queue: Opener, db: redis.Redis, url: str) -> None:
    home, dead = await open_queue(), await open_queue("jobs:dead")
    await dead.put_many([b"0", b"a", b"twin", b"b", b"twin"])
    assert await home.requeue(ids=[(await home.dead_letters())[0].id]) == 1  # teaches the server the script
    assert await home.get() == b"0"
    first, second, third, _ = await home.dead_letters()

    def left(number: int) -> Callable[[], bool]:
        return lambda: db.llen("__pressure__:jobs:dead") == number

    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url) as queue:
        assert await queue.dead_letters() == await home.dead_letters()
        engine = queue._engine.scripted("test")
        with engine.beside(None) as other:
            chosen = Chosen(engine.steps, other, [first, third], [first.id, third.id])
            await lose_one(line, moved(chosen), left(2))
            assert (chosen.moved, chosen.not_found) == (2, [])
            assert await home.get_many(5) == [b"a", b"b"]
            chosen = Chosen(engine.steps, other, [second, first, second], [first.id, second.id])
            await lose_one(line, moved(chosen), left(1))
            assert (chosen.moved, chosen.not_found) == (2, [first.id])
    assert await home.get_many(5) == [b"twin", b"twin"]


async def test_an_error_is_noted_once_when_the_reply_is_lost(queue: AsyncQueue[Any], db: redis.Redis, url: str) -> None:
    await queue.put(b"x")
    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url, max_attempts=2) as far:
        delivery = await far.receive()
        await lose_one(line, delivery.nack(ValueError(1)), lambda: db.exists(REASONS))
        delivery = await far.receive()
        assert delivery.attempts == 2
        await lose_one(line, delivery.nack(ValueError(2)), lambda: db.llen("__pressure__:jobs"))
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "2", 2)


async def test_purge_and_delete_of_the_dead_letter_queue_clear_the_reasons(
    queue: AsyncQueue[Any], open_queue: Opener, db: redis.Redis
) -> None:
    dead = await open_queue("jobs:dead", create=False)
    await dead_letter(queue, b"x", ValueError("x"))
    await dead_letter(queue, b"x", ValueError("y"))
    assert await dead.purge() == 2
    assert not db.exists(REASONS)
    await dead_letter(queue, b"x", ValueError("x"))
    assert db.exists(REASONS)
    await dead.delete()
    assert not db.exists(REASONS)


async def test_two_queues_share_a_dead_letter_queue(open_queue: Opener) -> None:
    queues = [await open_queue(name, max_attempts=2, dead_letters="failed") for name in ("a", "b")]
    for queue in queues:
        await queue.put(b"x")
        await kill(queue, ValueError(queue.name), 1)
    for queue in queues:
        await kill(queue, None, 1)
        await bury(queue)
    for queue in queues:
        letters = await queue.dead_letters()
        assert [each.error.message for each in letters if each.error] == ["a", "b"]
    assert await queues[0].dead_letters(source="nothing") == []
    await (await open_queue("failed", create=False)).delete()


async def test_without_scripts_there_are_none(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    with pytest.raises(ScriptingRefusedError, match="dead_letters"):
        await queue.dead_letters()
    with pytest.raises(ScriptingRefusedError, match="requeue"):
        await queue.requeue(ids=["a"])


async def test_a_full_server_still_keeps_them(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    await queue.put(b"x")
    before = db.config_get("maxmemory")["maxmemory"]
    db.config_set("maxmemory", 1)
    try:
        await kill(queue, ValueError("x"))
        await bury(queue)
        (letter,) = await queue.dead_letters()
        assert letter.error == Failure("ValueError", "x", 2)
        assert await queue.requeue(ids=[letter.id]) == 1
    finally:
        db.config_set("maxmemory", before)
    assert await queue.get() == b"x"


async def test_a_damaged_dead_letter_queue_with_an_expired_lease_keeps_its_reasons(
    queue: AsyncQueue[Any], db: redis.Redis
) -> None:
    await dead_letter(queue, b"poison", ValueError("x"))
    db.set("__pressure__:jobs:dead:stats:consumed_bytes", "many")
    db.hset("apressure:__pressure__:jobs:dead:consumer_lease", mapping={"token": "dead", "deadline": 1, "duration": 1})
    db.delete("__pressure__:jobs:dead:consumer_free")
    with pytest.raises(ServerError, match="consumed_bytes is not an integer"):
        await queue.requeue(timeout=0)
    assert not db.exists("apressure:__pressure__:jobs:dead:consumer_lease")  # the role went back all the same
    db.set("__pressure__:jobs:dead:stats:consumed_bytes", 0)
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("ValueError", "x", 2)
    assert await queue.requeue(timeout=0) == 1


@pytest.mark.parametrize("shared", [False, True])
async def test_errors_are_forgotten_also_while_another_step_settles(
    queue: AsyncQueue[Any], db: redis.Redis, shared: bool
) -> None:
    await queue.put_many([b"a", b"b"])
    for delivery in reversed(await queue.receive_many(2)):
        await delivery.nack(ValueError("first"))
    assert db.hlen(REASONS) == 2
    async with queue.consumer("manual", shared=shared, prefetch=1) as consumer:
        first, second = await in_time(anext(consumer)), await in_time(anext(consumer))
        lease = first._lease
        first.ack_soon()
        lease.settling.send()
        second.ack_soon()
        assert lease.settling.answer is not None
        await queue.put(b"c")
        third = await in_time(anext(consumer))
        await third.ack()
        assert lease.state.unsettled.kept_errors is None
    assert not db.exists(REASONS)
    assert (await queue.statistics()).consumed_messages == 3


async def test_a_step_does_not_search_a_long_list_for_long(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    """The server does nothing else meanwhile."""
    dead = AsyncQueue("jobs:dead", client=queue.client)
    await dead.create()
    await dead.put_many([b"%d" % i for i in range(40_000)])
    letters = await queue.dead_letters(limit=40_000)
    steps: list[int] = []

    class Counted(Chosen):
        def _note(self, count: int, left: int) -> None:
            steps.append(count)
            super()._note(count, left)

    here, there = queue._engine.scripted("test").steps, dead._engine.scripted("test").steps
    assert await moved(Counted(here, there, letters[-100:], [])) == 100
    assert sum(steps) == 100
    assert 1 <= max(steps) < 50  # the newest are the last that a search finds
    steps.clear()
    assert await moved(Counted(here, there, letters[:100], [])) == 100
    assert steps == [100]

    await dead.purge()
    twins = [b"%d" % i for i in range(1000)]
    await dead.put_many([*twins, *twins])
    fields = {b"d" + hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode(): b"1:1:0:\n2:1:0:" for raw in twins}
    db.hset(REASONS, mapping=fields)
    assert len((await there.dead_letters(0, 1000))[0]) == 500
    letters = await queue.dead_letters(limit=2000)
    assert [letter.raw for letter in letters] == [*twins, *twins]
    assert [letter.when for letter in letters] == [0.001] * 1000 + [0.002] * 1000
