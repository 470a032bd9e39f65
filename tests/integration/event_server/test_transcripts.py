"""Each command and each error, byte for byte, as okq and the specification have them."""

from __future__ import annotations

import pytest
import redis

from tests.integration.event_server.conftest import Served, Wire, packed

NIL = b"$-1\r\n"
SYNTAX = "ERR syntax error"
NO_OPTION = "the last argument is neither NOBLOCK, nor NOWAIT, nor CREATED, nor the contents of an event"
OPTIONS = "ERR syntax error: QRPOP has the options EX, WAIT, COUNT, LIMIT, NOACK, CREATED and TELL, not"
QRPOP = "QRPOP queue [EX seconds] [WAIT seconds] [COUNT number] [LIMIT number] [NOACK] [CREATED] [TELL]"
CLIENT = "ERR unknown subcommand or wrong arguments for CLIENT 'KILL'. There are ID, INFO, GETNAME, SETNAME and SETINFO"


async def test_push_peek_pop_and_acknowledge(wire: Wire) -> None:
    await wire.raw(packed("QLPUSH", "foo", "1", "first"), b"+OK\r\n")
    await wire.raw(packed("qlpush", "foo", "2", "second"), b"+OK\r\n")
    await wire.raw(packed("QRPUSH", "foo", "0", "urgent"), b"+OK\r\n")
    await wire.raw(packed("QLPEEK", "foo"), b"*2\r\n$1\r\n2\r\n$6\r\nsecond\r\n")
    await wire.raw(packed("QRPEEK", "foo"), b"*2\r\n$1\r\n0\r\n$6\r\nurgent\r\n")
    await wire.raw(packed("QRPOP", "foo"), b"*2\r\n$1\r\n0\r\n$6\r\nurgent\r\n")
    await wire.raw(packed("QACK", "foo", "0"), b":1\r\n")
    await wire.raw(packed("QACK", "foo", "0"), b":0\r\n")
    await wire.raw(packed("QRPOP", "foo", "EX", "0"), b"*2\r\n$1\r\n1\r\n$5\r\nfirst\r\n")
    await wire.raw(packed("QACK", "foo", "1"), b":0\r\n")
    await wire.raw(packed("QRPOP", "foo", "ex", "5"), b"*2\r\n$1\r\n2\r\n$6\r\nsecond\r\n")
    await wire.raw(packed("QACK", "foo", "2", "REDO"), b":1\r\n")
    await wire.raw(packed("QACK", "foo", "2", "REDO"), b":0\r\n")
    await wire.raw(packed("QRPOP", "foo"), b"*2\r\n$1\r\n2\r\n$6\r\nsecond\r\n")
    await wire.raw(packed("QFLUSH", "foo"), b"+OK\r\n")
    await wire.raw(packed("QACK", "foo", "2"), b":0\r\n")
    for command in ("QRPOP", "QLPEEK", "QRPEEK"):
        await wire.raw(packed(command, "foo"), NIL)


async def test_inline_commands(wire: Wire) -> None:
    await wire.raw(
        b'QLPUSH foo 1 "two words\\x00"\r\nQRPOP foo EX 0\n', b"+OK\r\n*2\r\n$1\r\n1\r\n$10\r\ntwo words\0\r\n"
    )


async def test_status_and_info(wire: Wire, okq: Served) -> None:
    for number in range(43):
        assert await wire("QLPUSH", "bar", number, b"x") == b"OK"
    assert await wire("QLPUSH", "foo", 1, b"x") == await wire("QLPUSH", "foo", 2, b"x") == b"OK"
    assert await wire("QRPOP", "foo") == [b"1", b"x"]
    for _ in range(3):
        assert await (await okq.connect())("QREGISTER", "foo", "empty") == b"OK"
    assert await wire("QSTATUS", "foo", "bar") == [[b"foo", 2, 1, 3], [b"bar", 43, 0, 0]]
    assert await wire("QSTATUS") == [[b"bar", 43, 0, 0], [b"empty", 0, 0, 3], [b"foo", 2, 1, 3]]
    assert await wire("QINFO", "foo", "bar") == [
        b"foo  total: 2   processing: 1  consumers: 3",
        b"bar  total: 43  processing: 0  consumers: 0",
    ]
    assert await wire("QSTATUS", "none") == [[b"none", 0, 0, 0]]


async def test_status_without_queues(wire: Wire) -> None:
    await wire.raw(packed("QSTATUS") + packed("QINFO"), b"*0\r\n*0\r\n")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("nosuch", 'ERR unknown command "nosuch"'),
        ('no"such a', 'ERR unknown command "no"such"'),
        ("QLPUSH foo id", "ERR missing args"),
        ("QRPUSH foo", "ERR missing args"),
        ("QLPEEK", "ERR missing args"),
        ("QRPEEK", "ERR missing args"),
        ("QRPOP", "ERR missing args"),
        ("QACK foo", "ERR missing args"),
        ("QEXTEND foo id", "ERR missing args"),
        ("QRETURN foo", "ERR missing args"),
        ("QFAIL foo id", "ERR missing args"),
        ("QFAIL foo id why id", "ERR missing args"),
        ("QRPOP foo LIMIT x", 'ERR bad limit value: "x" is not a whole number between 0 and 1000000000000'),
        ("QNOTIFY", "ERR missing args"),
        ("QFLUSH", "ERR missing args"),
        ("ECHO", "ERR missing args"),
        ("QLPEEK foo bar", "ERR too many args: QLPEEK queue"),
        ("QLPUSH foo id contents NO", f"{SYNTAX}: {NO_OPTION}"),
        ("QRPOP foo EX", "ERR syntax error: EX needs a value"),
        ("QRPOP foo PX 3", f'{OPTIONS} "PX"'),
        ("QRPOP foo EX 3 PX", f'{OPTIONS} "PX"'),
        ("QRPOP foo EX 3 4", f'{OPTIONS} "4"'),
        ("QRPOP foo EX NOACK", 'ERR bad expires value: "NOACK" is not a number of seconds between 0 and 315360000'),
        ("QRPOP foo EX 1 WAIT 0 COUNT 1 LIMIT 1 NOACK CREATED TELL x", f"ERR too many args: {QRPOP}"),
        ("QRPOP foo COUNT 0", 'ERR bad count value: "0" is not a whole number between 1 and 1000'),
        ("QNOTIFY x", 'ERR bad timeout value: "x" is not a number of seconds between 0 and 315360000'),
        ("QEXTEND foo id inf", 'ERR bad seconds value: "inf" is not a number of seconds between 0 and 315360000'),
        ("QREGISTER a}b", "ERR a queue's name must not contain '}', which ends the name in its keys"),
        ("SELECT 1", "ERR DB index is out of range: there is only database 0"),
        ("CLIENT KILL", CLIENT),
        ("CLIENT SETNAME a\x01b", "ERR Client names cannot contain spaces, newlines or special characters."),
        ("COMMAND NONE", "ERR unknown subcommand 'NONE' of COMMAND. There are COUNT, DOCS and INFO"),
        ("HELLO 4", "NOPROTO unsupported protocol version: this server speaks 2 and 3"),
        ("HELLO 3 NONE", "ERR Syntax error in HELLO option 'NONE'"),
        ("AUTH x", "ERR AUTH was sent, but this server has no password. Leave it out, or set one"),
    ],
)  # fmt: skip
async def test_errors(wire: Wire, command: str, error: str) -> None:
    expected = error.replace('no"such', 'no\\"such')
    assert await wire(*command.split(" ")) == expected
    assert await wire("PING") == b"PONG"


@pytest.mark.parametrize("value", ["abc", "-1", "nan", "1e99", "1_0", ""])
async def test_bad_expires(wire: Wire, value: str) -> None:
    assert (await wire("QRPOP", "foo", "EX", value)).startswith(f'ERR bad expires value: "{value}" is not')


async def test_duplicates(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "1") == b"OK"
    await wire.raw(packed("QLPUSH", "foo", "a", "2"), b"-ERR duplicate event a\r\n")
    assert await wire("QRPOP", "foo") == [b"a", b"1"]
    assert await wire("QRPUSH", "foo", "a", "2") == "ERR duplicate event a"
    assert await wire("QACK", "foo", "a") == 1
    assert await wire("QLPUSH", "foo", "a", "3") == b"OK"
    assert await wire("QLPUSH", "foo", "b", "1", "a", "2", "c", "3") == (
        "ERR duplicate event a (1 of 3 events are in the queue already; the others were added)"
    )
    assert await wire("QRPOP", "foo", "COUNT", 5) == [[b"a", b"3"], [b"b", b"1"], [b"c", b"3"]]


async def test_batches(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", *(part for n in range(2500) for part in (f"id{n}", f"contents{n}"))) == b"OK"
    assert (await wire("QRPOP", "foo", "COUNT", 1000))[999] == [b"id999", b"contents999"]
    assert await wire("QACK", "foo", *(f"id{n}" for n in range(1002))) == 1002  # two of them wait
    assert await wire("QRPOP", "foo", "COUNT", 2, "EX", 60) == [
        [b"id1002", b"contents1002"],
        [b"id1003", b"contents1003"],
    ]
    assert await wire("QACK", "foo", "id1002", "id1003", "none", "redo") == 2
    assert await wire("QRPOP", "foo") == [b"id1002", b"contents1002"]
    assert await wire("QSTATUS", "foo") == [[b"foo", 1498, 1, 0]]


async def test_a_count_that_finds_nothing_is_an_empty_array(wire: Wire) -> None:
    await wire.raw(packed("QRPOP", "foo", "COUNT", 3), b"*0\r\n")


async def test_pipelined_redos_are_carried_out_one_after_the_other(wire: Wire) -> None:
    """The last one that went back is the next one, and each says what it has done."""
    assert await wire("QLPUSH", "foo", "a", "1", "b", "2", "c", "3") == b"OK"
    assert len(await wire("QRPOP", "foo", "COUNT", 3)) == 3
    await wire.raw(b"".join(packed("QACK", "foo", one, "REDO") for one in "abca"), b":1\r\n:1\r\n:1\r\n:0\r\n")
    assert [event for event, _ in await wire("QRPOP", "foo", "COUNT", 3)] == [b"c", b"b", b"a"]


async def test_an_event_may_be_called_redo(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "REDO", "x") == b"OK"
    assert await wire("QRPOP", "foo") == [b"REDO", b"x"]
    assert await wire("QACK", "foo", "REDO") == 1


async def test_everything_is_binary_safe(wire: Wire, db: redis.Redis) -> None:
    queue, event, contents = b"q\xff\0\r\n ", b"\0id\r\n\xfe", bytes(range(256)) * 300
    assert await wire("QLPUSH", queue, event, contents) == b"OK"
    assert db.hget(b"queue:{" + queue + b"}:items", event) == contents
    assert await wire("QLPEEK", queue) == [event, contents]
    assert await wire("QSTATUS") == [[queue, 1, 0, 0]]
    assert await wire("QREGISTER", queue) == b"OK"
    assert await wire("QNOTIFY", 10) == queue
    assert await wire("QRPOP", queue) == [event, contents]
    assert await wire("QACK", queue, event) == 1
    assert await wire("QLPUSH", queue, b"", b"") == b"OK"
    assert await wire("QRPOP", queue, "EX", 0) == [b"", b""]


async def test_extend_gives_more_time(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QEXTEND", "foo", "a", 100) == 0
    assert await wire("QRPOP", "foo", "EX", 30) == [b"a", b"x"]
    assert await wire("QEXTEND", "foo", "a", "100.5") == 1
    assert 90_000 < db.pttl("queue:{foo}:lock:a") <= 100_500
    assert await wire("QACK", "foo", "a") == 1


async def test_very_many_events_go_back_in_order(wire: Wire) -> None:
    ids = [str(n).encode() for n in range(3000)]  # more than one step takes
    await wire("QLPUSH", "foo", *(word for event in ids for word in (event, b"x")))
    for _ in range(3):
        await wire("QRPOP", "foo", "COUNT", 1000)
    assert await wire("QACK", "foo", *ids, "REDO") == 3000
    again = [one for _ in range(3) for one in await wire("QRPOP", "foo", "COUNT", 1000, "EX", 0)]
    assert [event for event, _ in again] == ids


async def test_what_is_returned_was_no_attempt(wire: Wire) -> None:
    ids = [str(n).encode() for n in range(3000)]  # more than one step takes
    await wire("QLPUSH", "foo", *(word for event in ids for word in (event, b"x")))
    for _ in range(3):
        await wire("QRPOP", "foo", "COUNT", 1000)
    assert await wire("QRETURN", "foo", "nosuch") == 0
    assert await wire("QRETURN", "foo", *ids) == 3000
    assert await wire("QRETURN", "foo", 1) == 0  # it waits
    again = [one for _ in range(3) for one in await wire("QRPOP", "foo", "COUNT", 1000, "TELL", "EX", 0)]
    assert again == [[event, b"x", 1] for event in ids]


async def test_acknowledges_an_event_that_has_gone_back(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QRPOP", "foo", "EX", 5) == [b"a", b"x"]
    assert await wire("QACK", "foo", "a", "REDO") == 1
    assert await wire("QACK", "foo", "a") == 1
    assert await wire("QRPOP", "foo") is None


async def test_ping_echo_quit_and_reset(wire: Wire) -> None:
    await wire.raw(packed("PING"), b"+PONG\r\n")
    await wire.raw(packed("PING", "hi") + packed("ECHO", "a\nb"), b"$2\r\nhi\r\n$3\r\na\nb\r\n")
    await wire.raw(packed("SELECT", "0"), b"+OK\r\n")
    assert await wire("CLIENT", "SETNAME", "worker-1") == b"OK"
    assert await wire("CLIENT", "GETNAME") == b"worker-1"
    assert await wire("CLIENT", "SETINFO", "LIB-NAME", "mine") == b"OK"
    assert b"name=worker-1 resp=2 queues=0 lib-name=mine" in await wire("CLIENT", "INFO")
    assert await wire("CLIENT", "ID") == 1
    assert await wire("QREGISTER", "foo") == b"OK"
    assert await wire("RESET") == b"RESET"
    assert await wire("CLIENT", "GETNAME") is None
    assert await wire("QSTATUS", "foo") == [[b"foo", 0, 0, 0]]
    await wire.raw(packed("QUIT") + packed("PING"), b"+OK\r\n")
    assert await wire.ended() == b""


async def test_hello_and_resp3(wire: Wire) -> None:
    assert (await wire("HELLO"))[4:6] == [b"proto", 2]
    await wire.raw(packed("QRPOP", "foo"), NIL)
    hello = await wire("HELLO", 3, "AUTH", "default", "any", "SETNAME", "me")
    assert (hello[b"server"], hello[b"proto"], hello[b"role"], hello[b"modules"]) == (b"apressure", 3, b"master", [])
    await wire.raw(packed("QRPOP", "foo"), b"_\r\n")
    assert await wire("CLIENT", "GETNAME") == b"me"
    await wire.raw(packed("RESET") + packed("QRPOP", "foo"), b"+RESET\r\n" + NIL)


async def test_command_and_info_describe_the_server(wire: Wire) -> None:
    names = {one[0] for one in await wire("COMMAND")}
    assert {b"qlpush", b"qrpop", b"qack", b"ping", b"hello", b"reset"} <= names
    assert await wire("COMMAND", "COUNT") == len(names)
    assert await wire("COMMAND", "INFO", "qlpush", "none", "qlpeek") == [
        [b"qlpush", -4, [], 0, 0, 0], None, [b"qlpeek", 2, [], 0, 0, 0],
    ]  # fmt: skip
    assert await wire("COMMAND", "DOCS", "qrpop", "none") == [
        b"qrpop", [b"summary", b"Takes the next event", b"group", b"queue"],
    ]  # fmt: skip
    assert b"loading:0" in await wire("INFO")
    assert b"connected_clients:1\r\n" in await wire("INFO", "clients")


async def test_pipelined_commands_are_answered_in_order(wire: Wire) -> None:
    data, expected = b"", b""
    for number in range(3000):
        kind = number % 5
        data += [
            packed("QLPUSH", "foo", number, "x"), packed("PING"), packed("QLPUSH", "foo", number - 2, "x"),
            packed("QRPOP", "foo", "EX", 0), packed("QLPUSH", "bar", number, "x"),
        ][kind]  # fmt: skip
        expected += [
            b"+OK\r\n", b"+PONG\r\n", b"-ERR duplicate event %d\r\n" % (number - 2),
            b"*2\r\n$%d\r\n%d\r\n$1\r\nx\r\n" % (len(str(number - 3)), number - 3), b"+OK\r\n",
        ][kind]  # fmt: skip
    await wire.raw(data, expected)


async def test_pipelined_commands_of_one_kind_are_answered_one_by_one(wire: Wire) -> None:
    pushes = [packed("QLPUSH", "foo", n % 400, "x") for n in range(500)]
    pushes[200] = packed("QLPUSH", "foo", "a", "b", "NOT")
    answers = [b"+OK\r\n" if n < 400 else b"-ERR duplicate event %d\r\n" % (n - 400) for n in range(500)]
    answers[200] = f"-ERR syntax error: {NO_OPTION}\r\n".encode()
    await wire.raw(b"".join(pushes), b"".join(answers))
    ids = [n for n in range(400) if n != 200]
    pops = [packed("QRPOP", "foo", "EX", 60)] * 400
    got = [b"*2\r\n$%d\r\n%d\r\n$1\r\nx\r\n" % (len(str(n)), n) for n in ids] + [NIL]
    await wire.raw(b"".join(pops), b"".join(got))
    acks = [packed("QACK", "foo", n) for n in (*ids, 0)]
    await wire.raw(b"".join(acks), b":1\r\n" * 399 + b":0\r\n")
