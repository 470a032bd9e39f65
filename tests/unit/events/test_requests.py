"""Bytes become commands: whatever the pieces, whatever the bytes."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from apressure.events.server.wire import ErrorReply, Limits, ProtocolError, RequestParser, encode, split_words

SMALL = Limits(bulk=64, command=128, arguments=8, inline=64)


def commands(data: bytes, limits: Limits | None = None, sizes: list[int] | None = None) -> list[list[bytes]]:
    """Parse bytes that come in pieces of these sizes, and the rest in one."""
    parser, found, at = RequestParser(limits or Limits()), [], 0
    for size in [*(sizes or []), len(data)]:
        parser.feed(data[at : at + size])
        at += size
        while (command := parser.next_command()) is not None:
            found.append(command)
    return found


def packed(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments)


def refusal(data: bytes, limits: Limits | None = None) -> str:
    with pytest.raises(ProtocolError) as raised:
        commands(data, limits)
    return str(raised.value)


def test_arrays_of_bulk_strings_and_inline_commands_follow_each_other() -> None:
    data = packed(b"QLPEEK", b"foo") + b"PING\r\n" + packed(b"QRPOP", b"a\r\nb\0") + b'  ECHO "a b"\n'
    expected = [[b"QLPEEK", b"foo"], [b"PING"], [b"QRPOP", b"a\r\nb\0"], [b"ECHO", b"a b"]]
    assert commands(data) == expected
    assert commands(data, sizes=[1] * len(data)) == expected


def test_the_usual_way_and_the_other_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [b"x" * 40, b"a\r\nb", b"", b"*1\r\n$4\r\nPING\r\n", b"\r\n", b"$1"]
    rng = random.Random(7)
    data = b"".join(packed(*rng.choices(contents, k=rng.randint(1, 5))) for _ in range(2000)) + b"PING\r\n*0\r\n"
    sizes = [rng.choice((1, 30, 1000, 40_000)) for _ in range(100)]
    expected = commands(data)
    assert len(expected) == 2001
    assert commands(data, sizes=sizes) == expected
    monkeypatch.setattr(RequestParser, "_usual", lambda _: None)
    assert commands(data) == commands(data, sizes=sizes) == expected


def test_empty_commands_are_skipped() -> None:
    assert commands(b"\r\n\n*0\r\n*-1\r\n  \r\nPING\r\n") == [[b"PING"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"a  b\tc", [b"a", b"b", b"c"]),
        (rb'"\x41\n\"\\" x', [b'A\n"\\', b"x"]),
        (rb"'it\'s' '\n'", [b"it's", rb"\n"]),
        (b'"" x', [b"", b"x"]),
        (rb'"\xzz"', [b"xzz"]),
    ],
)
def test_inline_commands_have_the_quotes_of_redis(line: bytes, words: list[bytes]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize("line", [b'"a', b"'a", b'"a"b', rb'"a\"'])
def test_unbalanced_quotes_are_refused(line: bytes) -> None:
    assert "unbalanced quotes" in refusal(line + b"\r\n")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*9\r\n", "the number of arguments is 9, and the limit is 8"),
        (b"*1\r\n$65\r\n", "the length of an argument is 65, and the limit is 64"),
        (packed(b"x" * 64, b"x" * 64, b"x"), "the command is longer than 128 bytes"),
        (b"*1\r\n*1\r\n", "arrays are nested deeper than 1"),
        (b"x" * 65, "an inline command is longer than 64 bytes"),
        (b"x" * 65 + b"\n", "an inline command is longer than 64 bytes"),
        (b"a b c d e f g h i\n", "the number of arguments is 9, and the limit is 8"),
        (b"*x\r\n", "must be a number, not 'x'"),
        (b"*1_0\r\n", "must be a number, not '1_0'"),
        (b"*" + b"1" * 40, "is not a number"),
        (b"*1\r\n$-1\r\n", "the length of an argument must be a number, not '-1'"),
        (b"*1\r\n:1\r\n", "an argument must begin with '$', not ':'"),
        (b"*1\r\n$1\r\nabc", "longer than its length says"),
    ],
)
def test_a_command_that_is_none_or_exceeds_a_limit_is_refused(data: bytes, error: str) -> None:
    assert error in refusal(data, SMALL)


def test_what_precedes_an_error_is_given_first_and_the_error_stays() -> None:
    parser = RequestParser(SMALL)
    parser.feed(b"PING\r\n*x\r\nPING\r\n")
    assert parser.next_command() == [b"PING"]
    for _ in range(2):
        parser.feed(b"PING\r\n")
        with pytest.raises(ProtocolError):
            parser.next_command()
    assert parser.buffered == 0


def test_limits_are_exact() -> None:
    assert commands(packed(b"x" * 64, b"x" * 64), SMALL) == [[b"x" * 64] * 2]
    assert commands(packed(*[b""] * 8), SMALL) == [[b""] * 8]
    assert commands(b"x" * 64 + b"\n", SMALL) == [[b"x" * 64]]


def test_errors_and_texts_stay_on_one_line() -> None:
    assert encode(ErrorReply("ERR a\r\nb")) == b"-ERR a  b\r\n"
    assert encode({b"a": None}, 3) == b"%1\r\n$1\r\na\r\n_\r\n"
    assert encode({b"a": None}) == b"*2\r\n$1\r\na\r\n$-1\r\n"
    with pytest.raises(TypeError):
        encode(1.5)
    with pytest.raises(TypeError):
        encode(True)


def test_a_large_command_in_small_pieces_takes_memory_in_proportion() -> None:
    data = packed(b"QLPUSH", b"q", b"id", b"x" * 8_000_000)
    tracemalloc.start()
    try:
        assert len(commands(data, sizes=[4096] * (len(data) // 4096))[0][3]) == 8_000_000
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
