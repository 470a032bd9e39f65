"""QRPUSH with BACK takes back what was popped, also to a full or a closed queue."""

from __future__ import annotations

from tests.integration.event_server.conftest import Wire


async def test_what_was_popped_goes_back_to_a_full_and_to_a_closed_queue(wire: Wire) -> None:
    assert await wire("QCREATE", "foo", 1) == 1
    assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
    assert await wire("QRPUSH", "foo", 2, "y", 3, "z", "BACK") == b"OK"
    assert await wire("QRPUSH", "foo", 3, "z", "BACK") == "ERR duplicate event 3"
    assert await wire("QCLOSE", "foo") == 1
    assert await wire("QRPUSH", "foo", 4, "w", "back") == b"OK"
    assert [(await wire("QRPOP", "foo"))[0] for _ in range(4)] == [b"4", b"3", b"2", b"1"]
    assert "nor CREATED, nor the contents" in await wire("QLPUSH", "foo", 5, "x", "BACK")
    await wire("QDELETE", "foo")
