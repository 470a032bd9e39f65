"""Framing: bytes in, messages out, and back."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apressure.cli.streams.framing import (
    Framing,
    FramingError,
    MessageTooLargeError,
    TruncatedInputError,
    decoder,
    encode,
    fits,
)

DELIMITED = [(Framing.LINES, b"\n"), (Framing.NUL, b"\0")]
READ = [framing for framing in Framing if framing is not Framing.JSON]
"""The framings that are read; JSON is only written."""


def decode(framing: Framing, *chunks: bytes, limit: int = 1000) -> list[bytes]:
    decoding = decoder(framing, limit=limit)
    messages = [message for chunk in chunks for message in decoding.feed(chunk)]
    return messages + decoding.finish()


@given(st.binary(max_size=200))
def test_json_is_a_line_that_keeps_every_byte(message: bytes) -> None:
    line = encode(message, Framing.JSON)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii(), "a terminal obeys nothing of it"
    ((key, value),) = json.loads(line).items()
    assert message == (value.encode() if key == "item" else base64.b64decode(value))
    assert (key == "item") is (message.decode(errors="ignore").encode() == message)
    assert fits(message, Framing.JSON)


@pytest.mark.parametrize(("framing", "end"), DELIMITED)
class TestDelimited:
    def test_every_delimiter_ends_a_message(self, framing: Framing, end: bytes) -> None:
        assert decode(framing, b"one" + end + b"two" + end) == [b"one", b"two"]

    def test_the_last_message_may_lack_its_delimiter(self, framing: Framing, end: bytes) -> None:
        assert decode(framing, b"one" + end + b"two") == [b"one", b"two"]

    def test_empty_messages_are_messages(self, framing: Framing, end: bytes) -> None:
        assert decode(framing, end + end + b"x" + end + end) == [b"", b"", b"x", b""]

    def test_no_input_is_no_message(self, framing: Framing, end: bytes) -> None:
        assert decode(framing) == []
        assert decode(framing, b"", b"") == []

    def test_messages_in_pieces(self, framing: Framing, end: bytes) -> None:
        assert decode(framing, b"o", b"n", b"e" + end + b"t", b"wo", end, end + b"3") == [b"one", b"two", b"", b"3"]

    def test_a_message_is_returned_as_soon_as_its_end_came(self, framing: Framing, end: bytes) -> None:
        decoding = decoder(framing)
        assert decoding.feed(b"one") == []
        assert decoding.pending == 3
        assert decoding.feed(end) == [b"one"]
        assert decoding.pending == 0

    def test_the_error_names_the_limit(self, framing: Framing, end: bytes) -> None:
        assert decode(framing, b"12345" + end, limit=5) == [b"12345"]
        with pytest.raises(MessageTooLargeError, match="limit of 5 bytes") as caught:
            decode(framing, b"123456" + end, limit=5)
        assert caught.value.limit == 5

    def test_limit_is_checked_before_the_end_comes(self, framing: Framing, end: bytes) -> None:
        decoding = decoder(framing, limit=5)
        assert decoding.feed(b"123") == []
        with pytest.raises(MessageTooLargeError):
            decoding.feed(b"456")

    def test_messages_before_an_error_come_first(self, framing: Framing, end: bytes) -> None:
        decoding = decoder(framing, limit=3)
        assert decoding.feed(b"1" + end + b"22" + end + b"4444" + end + b"5" + end) == [b"1", b"22"]
        for _ in range(2):
            with pytest.raises(MessageTooLargeError):
                decoding.finish()
            with pytest.raises(MessageTooLargeError):
                decoding.feed(b"5" + end)

    def test_a_message_that_contains_the_delimiter_is_refused(self, framing: Framing, end: bytes) -> None:
        assert not fits(b"a" + end + b"b", framing)
        with pytest.raises(FramingError, match="--length-prefixed"):
            encode(b"a" + end + b"b", framing)
        assert encode(b"a" + end + b"b", framing, strict=False) == b"a" + end + b"b" + end


def test_carriage_return_belongs_to_the_message() -> None:
    assert decode(Framing.LINES, b"one\r\ntwo\r\n") == [b"one\r", b"two\r"]


def test_the_other_delimiter_is_an_ordinary_byte() -> None:
    assert decode(Framing.LINES, b"a\0b\n") == [b"a\0b"]
    assert decode(Framing.NUL, b"a\nb\0") == [b"a\nb"]


class TestLengthPrefixed:
    def test_bytes_on_the_wire(self) -> None:
        assert encode(b"abc", Framing.LENGTH_PREFIXED) == b"\0\0\0\3abc"
        assert encode(b"", Framing.LENGTH_PREFIXED) == b"\0\0\0\0"
        assert encode(b"x" * 258, Framing.LENGTH_PREFIXED)[:4] == b"\0\0\1\2"

    def test_any_bytes(self) -> None:
        stream = b"".join(encode(m, Framing.LENGTH_PREFIXED) for m in (b"\n\0", b"", bytes(range(256))))
        assert decode(Framing.LENGTH_PREFIXED, stream) == [b"\n\0", b"", bytes(range(256))]

    def test_no_input_is_no_message(self) -> None:
        assert decode(Framing.LENGTH_PREFIXED) == []

    def test_truncated_message(self) -> None:
        with pytest.raises(TruncatedInputError, match="middle of a message: 2 of 5 bytes") as caught:
            decode(Framing.LENGTH_PREFIXED, b"\0\0\0\5ab")
        assert (caught.value.expected, caught.value.received) == (5, 2)

    def test_truncated_length(self) -> None:
        with pytest.raises(TruncatedInputError, match="middle of a length: 3 of 4 bytes"):
            decode(Framing.LENGTH_PREFIXED, b"\0\0\0")

    def test_length_without_its_message(self) -> None:
        with pytest.raises(TruncatedInputError, match="0 of 1 bytes"):
            decode(Framing.LENGTH_PREFIXED, b"\0\0\0\1")

    def test_limit_is_checked_before_the_message_comes(self) -> None:
        decoding = decoder(Framing.LENGTH_PREFIXED, limit=1000)
        with pytest.raises(MessageTooLargeError, match="1886547820 bytes is larger than the limit of 1000 bytes"):
            decoding.feed(b"prologue")

    def test_limit_itself_is_allowed(self) -> None:
        assert decode(Framing.LENGTH_PREFIXED, struct.pack(">I", 5) + b"12345", limit=5) == [b"12345"]
        with pytest.raises(MessageTooLargeError):
            decode(Framing.LENGTH_PREFIXED, struct.pack(">I", 6) + b"123456", limit=5)

    def test_messages_before_an_error_come_first(self) -> None:
        decoding = decoder(Framing.LENGTH_PREFIXED, limit=3)
        assert decoding.feed(b"\0\0\0\1a\0\0\0\2bb\0\0\0\4cccc") == [b"a", b"bb"]
        with pytest.raises(MessageTooLargeError):
            decoding.feed(b"")


@given(
    framing=st.sampled_from(READ),
    messages=st.lists(st.binary(max_size=20)),
    data=st.data(),
)
def test_encoded_messages_come_back_however_the_stream_is_cut(
    framing: Framing, messages: list[bytes], data: st.DataObject
) -> None:
    messages = [message for message in messages if fits(message, framing)]
    stream = b"".join(encode(message, framing) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(framing, *chunks) == messages


@given(stream=st.binary(max_size=60), data=st.data())
def test_a_stream_may_be_cut_anywhere(stream: bytes, data: st.DataObject) -> None:
    """Also for input that is wrong: the same messages, and the same kind of error after them."""

    def outcome(framing: Framing, chunks: list[bytes]) -> tuple[list[bytes], type[Exception] | None]:
        decoding = decoder(framing, limit=10)
        messages: list[bytes] = []
        try:
            for chunk in chunks:
                messages += decoding.feed(chunk)
            messages += decoding.finish()
        except FramingError as error:
            return messages, type(error)
        return messages, None

    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for framing in READ:
        assert outcome(framing, chunks) == outcome(framing, [stream])
