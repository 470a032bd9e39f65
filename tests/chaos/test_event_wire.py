"""Fuzzing of the wire format: no input crashes the parser, makes it hang, or makes it grow."""

from __future__ import annotations

import random

import hiredis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apressure.events.server.wire import ProtocolError, RequestParser, encode
from tests.chaos.support import often
from tests.unit.events.test_requests import SMALL, commands, packed

INPUTS = often(500, 20)
"""For each test of Hypothesis, which looks for the smallest input, and takes milliseconds for each."""
MANY = often(10_000, 100)
"""For the test that makes its inputs itself: 1,000,000 in the long form."""

fuzz = settings(max_examples=INPUTS, deadline=None, suppress_health_check=list(HealthCheck), database=None)

# The sizes cut the input anywhere; the parser must not care.
arguments = st.lists(st.binary(max_size=20), min_size=1, max_size=8)
pieces = st.lists(st.integers(1, 9), max_size=60)
TOKENS = (
    b"*", b"$", b"\r\n", b"\n", b"\r", b"-", b"0", b"1", b"3", b"9", b"$3\r\nfoo\r\n", b"*2\r\n", b"PING", b" ", b'"',
    b"'", b"\\", b"\\x4", b"\0", b"\xff", b"*1\r\n$4\r\nPING\r\n", b"$64\r\n", b"999999999999",
)  # fmt: skip
noise = st.one_of(st.binary(max_size=80), st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join))


def test_a_million_inputs(rng: random.Random) -> None:
    for _ in range(MANY):
        data = b"".join(rng.choices(TOKENS, k=rng.randrange(12)))
        if rng.random() < 0.5:
            sent = [[rng.randbytes(rng.randrange(12)) for _ in range(rng.randint(1, 4))] for _ in range(3)]
            place = rng.randrange(40)
            whole = b"".join(packed(*one) for one in sent)
            data = whole[:place] + data + whole[place + rng.randrange(3) :]
        sizes = [rng.randint(1, 9) for _ in range(rng.randrange(20))]
        assert _outcome(data, sizes) == _outcome(data, []), data


@fuzz
@given(st.lists(arguments, max_size=5), pieces)
def test_valid_commands_come_out_as_hiredis_reads_them(sent: list[list[bytes]], sizes: list[int]) -> None:
    data = b"".join(packed(*one) for one in sent)
    reader = hiredis.Reader()
    reader.feed(data)
    assert commands(data, sizes=sizes) == sent == [reader.gets() for _ in sent]


@fuzz
@given(noise, pieces)
def test_any_bytes_give_commands_or_one_error_whatever_the_pieces(data: bytes, sizes: list[int]) -> None:
    assert _outcome(data, sizes) == _outcome(data, [])


@fuzz
@given(st.lists(arguments, min_size=1, max_size=4), noise, st.integers(0, 200), pieces)
def test_damaged_commands_never_crash_hang_or_grow(
    sent: list[list[bytes]], damage: bytes, place: int, sizes: list[int]
) -> None:
    data = b"".join(packed(*one) for one in sent)
    place %= len(data)
    assert _outcome(data[:place] + damage + data[place + 1 :], sizes)[0] is not None


@fuzz
@given(st.recursive(st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=20), st.lists, max_leaves=8))
def test_replies_come_out_as_hiredis_reads_them(reply: object) -> None:
    for protocol in (2, 3):
        reader = hiredis.Reader()
        reader.feed(encode(reply, protocol))
        assert reader.gets() == reply


def _outcome(data: bytes, sizes: list[int]) -> tuple[list[list[bytes]], str]:
    """Return the commands, and the error after them. Check on the way that nothing grows beyond its limit."""
    parser, found, at = RequestParser(SMALL), [], 0
    try:
        for size in [*sizes, len(data)]:
            parser.feed(data[at : at + size])
            at += size
            while (command := parser.next_command()) is not None:
                assert 0 < len(command) <= SMALL.arguments
                assert sum(map(len, command)) <= SMALL.command
                found.append(command)
            assert parser.buffered <= SMALL.command + SMALL.inline + 40
    except ProtocolError as error:
        return found, str(error)
    return found, ""
