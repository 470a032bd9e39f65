"""What released okqs and their clients do, and what of it differs from the specification or from us."""

from __future__ import annotations

import pytest
import redis

from tests.integration.event_server.conftest import Served, Wire, packed

TEN_YEARS = 315_360_000
BAD_LENGTH = "ERR a queue's name must have 1 to 4095 bytes, not {}"


# What released clients send


@pytest.mark.parametrize(
    "options",
    [
        "EX 0 NOACK",  # the Go client's ConsumerUnsafe, and the PHP client
        "NOACK",  # earlier versions of both
        "EX 30 NOACK",  # the PHP client
        "30 NOACK",  # its first version
        "noack",
        "NOACK COUNT 1 WAIT 0",
    ],
)
async def test_noack_acknowledges_at_once(wire: Wire, db: redis.Redis, options: str) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    popped = await wire("QRPOP", "foo", *options.split())
    assert popped in ([b"a", b"x"], [[b"a", b"x"]])
    assert await wire("QSTATUS", "foo") == [[b"foo", 0, 0, 0]]
    assert await wire("QACK", "foo", "a") == 0
    assert not db.keys("queue:*")


async def test_noack_with_a_wait(okq: Served, wire: Wire) -> None:
    wire.send("QRPOP", "foo", "EX", 30, "WAIT", 80, "COUNT", 2, "NOACK")
    assert await (await okq.connect())("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire.reply() == [[b"a", b"x"]]
    assert await wire("QSTATUS", "foo") == [[b"foo", 0, 0, 0]]


async def test_pipelined_pops_with_and_without_noack(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "1", "b", "2", "c", "3") == b"OK"
    pops = packed("QRPOP", "foo", "NOACK") + packed("QRPOP", "foo") + packed("QRPOP", "foo", "EX", 0, "NOACK")
    answers = (b"*2\r\n$1\r\n%b\r\n$1\r\n%d\r\n" % (event, n) for n, event in enumerate((b"a", b"b", b"c"), 1))
    await wire.raw(pops, b"".join(answers))
    assert await wire("QSTATUS", "foo") == [[b"foo", 1, 1, 0]]
    assert [await wire("QACK", "foo", event) for event in "abc"] == [0, 1, 0]


async def test_seconds_without_ex_are_ignored(wire: Wire, db: redis.Redis) -> None:
    """The first PHP client sends them so, and has 30 seconds at an okq, whatever it has asked for."""
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QRPOP", "foo", 5) == [b"a", b"x"]
    assert 5_000 < db.pttl("queue:{foo}:lock:a") <= 30_000
    assert await wire("QACK", "foo", "a") == 1


async def test_the_unsafe_consumer_of_the_go_client(okq: Served, wire: Wire, db: redis.Redis) -> None:
    """Its commands, in its order. An error reply would end it."""
    consumer = await okq.connect()
    assert await consumer("QREGISTER", "foo", "bar") == b"OK"
    got = []
    for event in ("a", "b", "c"):
        consumer.send("QNOTIFY", 27)
        assert await wire("QLPUSH", "bar", event, "x", "NOBLOCK") == b"OK"
        assert await consumer.reply() == b"bar"
        got.append(await consumer("QRPOP", "bar", "EX", "0", "NOACK"))
    assert got == [[b"a", b"x"], [b"b", b"x"], [b"c", b"x"]]
    assert not db.keys("queue:{bar}:items")


# What differs from okq


@pytest.mark.parametrize(
    "command",
    [
        ("QLPUSH", None, "a", "x"), ("QRPUSH", None, "a", "x", "NOBLOCK"), ("QLPEEK", None), ("QRPEEK", None),
        ("QRPOP", None), ("QRPOP", None, "WAIT", 0), ("QACK", None, "a"), ("QEXTEND", None, "a", 1),
        ("QREGISTER", "foo", None), ("QFLUSH", None), ("QSTATUS", "foo", None), ("QINFO", None),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
async def test_names_that_are_empty_or_too_long_are_refused(
    wire: Wire, db: redis.Redis, command: tuple[str | int | None, ...]
) -> None:
    def with_name(name: str) -> list[str | int]:
        return [name if word is None else word for word in command]

    assert await wire(*with_name("")) == BAD_LENGTH.format(0)
    assert await wire(*with_name("x" * 4096)) == BAD_LENGTH.format(4096)
    assert await wire(*with_name("é" * 2048)) == BAD_LENGTH.format(4096)  # bytes, not characters
    assert not db.keys("queue:*")
    longest = await wire(*with_name("x" * 4095))
    assert not str(longest).startswith("ERR")
    assert await wire("QREGISTER") == b"OK"


async def test_ex_above_ten_years_is_refused(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    error = f'ERR bad expires value: "{TEN_YEARS + 1}" is not a number of seconds between 0 and {TEN_YEARS}'
    assert await wire("QRPOP", "foo", "EX", TEN_YEARS + 1) == error
    assert await wire("QSTATUS", "foo") == [[b"foo", 1, 0, 0]]
    assert await wire("QRPOP", "foo", "EX", TEN_YEARS) == [b"a", b"x"]
    assert db.pttl("queue:{foo}:lock:a") > (TEN_YEARS - 1000) * 1000
    assert await wire("QACK", "foo", "a") == 1


def end_lease(db: redis.Redis, event: str, at: int) -> None:
    """Have the time of a claim be over, without waiting for that."""
    db.delete(f"queue:{{foo}}:lock:{event}")
    assert db.zadd("apressure:queue:{foo}:expiry", {event: at}) == 0


async def test_single_claims_that_end_between_two_looks_keep_their_order(wire: Wire, db: redis.Redis) -> None:
    """The one that ended first is the next one, no matter which was popped first."""
    assert await wire("QLPUSH", "foo", "a", "1", "b", "2", "c", "3", "d", "4") == b"OK"
    assert [(await wire("QRPOP", "foo", "EX", 600))[0] for _ in range(3)] == [b"a", b"b", b"c"]
    for at, event in enumerate("acb"):
        end_lease(db, event, at)
    assert [event for event, _ in await wire("QRPOP", "foo", "COUNT", 9, "EX", 0)] == [b"a", b"c", b"b", b"d"]


async def test_a_single_claim_that_ends_later_comes_before_those_that_ended_earlier(
    wire: Wire, db: redis.Redis
) -> None:
    """Each goes back, first in line, when its own time is over."""
    assert await wire("QLPUSH", "foo", "a", "1", "b", "2", "c", "3") == b"OK"
    assert [(await wire("QRPOP", "foo", "EX", 600))[0] for _ in range(2)] == [b"a", b"b"]
    for left, event in ((1, "a"), (0, "b")):
        end_lease(db, event, 0)
        assert await wire("QACK", "foo", "none") == 0  # each command puts back what has ended
        assert await wire("QSTATUS", "foo") == [[b"foo", 3, left, 0]]
    assert [event for event, _ in await wire("QRPOP", "foo", "COUNT", 9, "EX", 0)] == [b"b", b"a", b"c"]


async def test_redo_before_another_word_is_an_id(wire: Wire) -> None:
    """An okq puts the event back, and ignores the word behind REDO. Here all words are ids, up to a last REDO."""
    assert await wire("QLPUSH", "foo", "id", "1", "x", "2", "REDO", "3", "y", "4") == b"OK"
    assert len(await wire("QRPOP", "foo", "COUNT", 4)) == 4
    assert await wire("QACK", "foo", "id", "REDO", "x") == 3
    assert await wire("QSTATUS", "foo") == [[b"foo", 1, 1, 0]]
    assert await wire("QACK", "foo", "y", "REDO") == 1
    assert await wire("QRPOP", "foo", "EX", 0) == [b"y", b"4"]
