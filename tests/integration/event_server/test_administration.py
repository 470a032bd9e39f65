"""QCREATE, QDELETE, QCLOSE, QPAUSE, QRESUME, QPURGE, QLOOK, QDEAD, QREQUEUE and schedules: what okq does not have."""

from __future__ import annotations

import time

import pytest
import redis

from apressure import EventQueue, QueueEmptyError
from apressure.events.engine.letters import read
from tests.integration.conftest import fails
from tests.integration.event_server.conftest import Wire


async def test_the_life_of_a_queue(wire: Wire) -> None:
    assert await wire("QLOOK", "foo") == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, *[0] * 6]
    assert await wire("QCREATE", "foo", 2) == 1
    assert await wire("QCREATE", "foo", 5) == 0
    assert await wire("QLPUSH", "foo", 1, "x", 2, "y") == b"OK"
    assert await wire("QLPUSH", "foo", 3, "z", "NOWAIT") == "ERR queue full: the first 0 of 1 events are in the queue"
    assert await wire("QRPOP", "foo") == [b"1", b"x"]
    assert [await wire("QPAUSE", "foo"), await wire("QPAUSE", "foo")] == [1, 0]
    assert await wire("QRPOP", "foo") is None
    assert await wire("QLOOK", "foo") == [1, 1, 2, 0, 1, 1, 1, 0, 0, 0, None, *[0] * 6]
    assert await wire("QPURGE", "foo", 10) == 1
    assert [await wire("QRESUME", "foo"), await wire("QRESUME", "foo")] == [1, 0]
    assert await wire("QACK", "foo", 1, "REDO") == 1
    assert [await wire("QCLOSE", "foo"), await wire("QCLOSE", "foo")] == [1, 0]
    assert await wire("QLPUSH", "foo", 4, "z") == "ERR queue closed"
    assert await wire("QLOOK", "foo") == [1, 1, 2, 1, 0, 1, 0, 0, 0, 0, None, *[0] * 6]
    assert await wire("QDELETE", "foo") == b"OK"
    assert await wire("QDELETE", "foo") == "ERR no such queue"
    assert await wire("QPAUSE", "foo") == "ERR no such queue"


async def test_dead_letters(wire: Wire, url: str) -> None:
    async with EventQueue("foo", url=url, max_attempts=1) as queue:
        await queue.put(b"x", id="1")
        await (await queue.receive()).nack("why")
        await fails(QueueEmptyError, queue.receive(timeout=0))
        (letter,) = await wire("QDEAD", "foo", 0, 10)
        assert b"why" in letter
        assert await wire("QDEAD", "foo", 1, 10) == []
        assert await wire("QREQUEUE", "foo", 1, "another") == b"0"
        assert await wire("QREQUEUE", "foo", 1, letter) == b"m"
        assert await wire("QRPOP", "foo") == [b"1", b"x"]
        await queue.delete()


async def test_events_that_fail_too_often(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", 1, "x", 2, "y") == b"OK"
    assert await wire("QRPOP", "foo", "COUNT", 2, "LIMIT", 2) == [[b"1", b"x"], [b"2", b"y"]]
    assert await wire("QFAIL", "foo", 1, "first", 2, "", 3, "nobody has it") == 2
    assert await wire("QRPOP", "foo", "COUNT", 2, "LIMIT", 2, "TELL") == [[b"1", b"x", 2], [b"2", b"y", 2]]
    assert await wire("QFAIL", "foo", 1, "e" * 1001) == "ERR bad error value: it has 1001 bytes, and the most is 1000"
    assert await wire("QFAIL", "foo", 1, "\tsecond") == 1
    assert await wire("QRETURN", "foo", 2) == 1
    assert await wire("QRPOP", "foo", "COUNT", 2, "LIMIT", 2) == [[b"2", b"y"]]
    (letter,) = await wire("QDEAD", "foo", 0, 10)
    assert read(letter, bytes).reason == "second"
    assert await wire("QACK", "foo", 2) == 1
    assert await wire("QREQUEUE", "foo", 1) == b"m"
    for limit in (1, 2, 0):  # calls that share a step, and those that cannot
        wire.send("QRPOP", "foo", "LIMIT", limit, "TELL")
    assert [await wire.reply() for _ in range(3)] == [[b"1", b"x", 1], b"empty", b"empty"]
    await wire("QDELETE", "foo")


_NO_REGISTRATION = "ERR a registration has the letter c, w or p, a name and a record that are not long"
_QWORKERS = (
    "ERR syntax error: QWORKERS queue [BEAT name letter record milliseconds | LEAVE name | ASK worker DRAIN|STACK]"
)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("QCREATE foo", "ERR missing args"),
        ("QCREATE foo -1", 'ERR bad bound value: "-1" is not a whole number between 0 and 1000000000000'),
        ("QCREATE foo x", 'ERR bad bound value: "x" is not a whole number between 0 and 1000000000000'),
        ("QPURGE foo 0", 'ERR bad count value: "0" is not a whole number between 1 and 2000'),
        ("QDEAD foo x 1", 'ERR bad passed value: "x" is not a whole number between 0 and 1000000000000'),
        ("QREQUEUE foo 2001", 'ERR bad count value: "2001" is not a whole number between 1 and 2000'),
        ("QSCHEDULES foo SIZE", 'ERR syntax error: QSCHEDULES has the option COUNT, not "SIZE"'),
        ("QSCHEDULE foo", "ERR missing args"),
        ("QSCHEDULE foo \x07 a b", "ERR a schedule's name must have 1 to 200 printable characters, not '\\x07'"),
        ("QSCHEDULE foo a  b contents", "ERR an occasion needs the record before, and the record after that"),
        ("QWORKERS foo BEAT one/1 x {} 1000", _NO_REGISTRATION),
        (f"QWORKERS foo BEAT one/1 w {'x' * 4097} 1000", _NO_REGISTRATION),
        ("QWORKERS foo BEAT  w {} 1000", _NO_REGISTRATION),
        (f"QWORKERS foo BEAT {'x' * 256} w {{}} 1000", _NO_REGISTRATION),
        (
            "QWORKERS foo BEAT one/1 w {} 60001",
            'ERR bad milliseconds value: "60001" is not a whole number between 1 and 60000',
        ),
        ("QWORKERS foo ASK one SING", _QWORKERS),
        ("QWORKERS foo BEAT one/1", _QWORKERS),
        ("QWORKERS foo LIST", _QWORKERS),
        ("QCLOSE a}b", "ERR a queue's name must not contain '}', which ends the name in its keys"),
    ],
)
async def test_errors(wire: Wire, command: str, error: str) -> None:
    assert await wire(*command.split(" ")) == error
    assert await wire("PING") == b"PONG"


async def test_schedules_in_its_words(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QCREATE", "foo", 1) == 1
    assert (await wire("QSCHEDULES", "foo"))[1:] == []
    assert await wire("QSCHEDULES", "foo", "COUNT") == 0
    assert await wire("QSCHEDULE", "foo", "tick", "", "first") == 1
    assert await wire("QSCHEDULE", "foo", "tick", "", "first") == 1  # a reply was lost
    assert await wire("QSCHEDULE", "foo", "tick", "", "other") == 0
    assert await wire("QSCHEDULE", "foo", "tick", "first", "second", "contents") == b"put"
    assert await wire("QSCHEDULE", "foo", "tick", "first", "second", "contents") == b"put"  # and was not done again
    assert await wire("QSCHEDULE", "foo", "tick", "first", "third", "contents") == b"changed"
    assert await wire("QSCHEDULE", "foo", "tick", "second", "third", "contents") == b"full"
    now, *records = await wire("QSCHEDULES", "foo")
    assert abs(now / 1000 - time.time()) < 60
    assert records == [b"tick", b"second"]
    assert db.hgetall("apressure:queue:{foo}:schedules") == {b"tick": b"second"}
    assert (await wire("QRPOP", "foo"))[1] == b"contents"
    assert await wire("QRPOP", "foo") is None
    assert await wire("QCLOSE", "foo") == 1
    assert await wire("QSCHEDULE", "foo", "tick", "second", "third", "contents") == b"closed"
    assert await wire("QSCHEDULE", "foo", "tick", "second", "") == 1
    assert await wire("QSCHEDULES", "foo", "COUNT") == 0
    assert await wire("QDELETE", "foo") == b"OK"


async def test_workers_in_its_words(wire: Wire, db: redis.Redis) -> None:
    assert (await wire("QWORKERS", "foo"))[1:] == []
    assert await wire("QWORKERS", "foo", "BEAT", "one/1", "w", "{}", 60000) == 0
    now, name, value = await wire("QWORKERS", "foo")
    assert abs(now / 1000 - time.time()) < 60
    ends, written, letter, record = value.split()
    assert (name, int(ends) - int(written), letter, record) == (b"one/1", 60000, b"w", b"{}")
    assert db.hget("apressure:queue:{foo}:workers", "one/1") == value
    assert await wire("QWORKERS", "foo", "ASK", "other", "DRAIN") == 0
    assert await wire("qworkers", "foo", "ask", "one", "drain") == 1
    assert await wire("QWORKERS", "foo", "ASK", "one", "STACK") == 1
    assert await wire("QWORKERS", "foo", "BEAT", "one/1", "w", "{}", 60000) == 3
    assert await wire("QWORKERS", "foo", "LEAVE", "one/1") == b"OK"
    assert (await wire("QWORKERS", "foo"))[1:] == []


async def test_a_queue_that_was_flushed_and_is_deleted_leaves_no_schedules(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QCREATE", "foo", 0) == 1
    db.hset("apressure:queue:{foo}:schedules", "tick", "a record")
    assert await wire("QFLUSH", "foo") == b"OK"
    assert db.hlen("apressure:queue:{foo}:schedules") == 1
    assert await wire("QDELETE", "foo") == b"OK"
    assert db.exists("apressure:queue:{foo}:schedules") == 0
