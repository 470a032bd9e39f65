"""Items become messages and back, and ids are random."""

from __future__ import annotations

import os
import uuid

import pytest

from apressure.codecs import RawCodec
from apressure.exceptions import DecodeError
from apressure.items import Items, new_id, new_ids


def test_ids_are_random_uuids() -> None:
    ids = [new_id(), *new_ids(1000)]
    assert len(set(ids)) == len(ids)
    for one in ids:
        read = uuid.UUID(one.decode())
        assert (read.version, read.variant, str(read).encode()) == (4, uuid.RFC_4122, one)


def test_each_id_asks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process, or one that a snapshot was made of, must not give the ids that the other one gives."""
    drawn: list[int] = []
    monkeypatch.setattr(os, "urandom", lambda count: drawn.append(count) or bytes(count))
    assert [new_id(), new_id(), *new_ids(2)] == [b"00000000-0000-4000-8000-000000000000"] * 4
    assert drawn == [16, 16, 32]


def test_a_codec_made_of_the_raw_one_may_refuse_a_message() -> None:
    class Signed(RawCodec):
        def decode(self, data: bytes, /) -> bytes:
            raise ValueError(f"no signature: {data!r}")

    with pytest.raises(DecodeError, match="no signature"):
        Items("orders", Signed(), 100).decode(b"x")
    assert Items("orders", RawCodec(), 100).decode(b"x") == b"x"
