"""How connections end, where the server is a process on uvloop, whose transports and handles are not asyncio's."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.integration.commands import PATIENCE
from tests.integration.event_server.conftest import packed
from tests.integration.event_server.test_command import ended, serving

LIMITS = ("--max-pipeline", "10", "--max-connections", "20", "--max-bulk-size", "200000", "--max-output-size", "500000")


@pytest.fixture
def port(url: str) -> Iterator[int]:
    """The port of a server. It ends in an orderly way, and its log has no error."""
    pytest.importorskip("uvloop", reason="uvloop (not installed: pip install 'apressure[server]')")
    with serving("--redis-addr", url, "--listen-addr", "127.0.0.1:0", *LIMITS) as (process, ready):
        yield ready["port"]
        assert not [line for line in ended(process) if line["level"] in ("error", "critical")]


def told(port: int, sent: bytes, *, half_close: bool = True) -> bytes:
    """Send bytes, and return everything that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(sent)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        found = b""
        while data := client.recv(1 << 16):
            found += data
    return found


@pytest.mark.leaves_keys("apressure:*")
def test_what_was_sent_before_the_end_is_answered(port: int) -> None:
    assert told(port, packed("PING") * 5000) == b"+PONG\r\n" * 5000
    pushes = b"".join(packed("QLPUSH", "foo", n, "x\r\ny") for n in range(300))
    assert told(port, pushes + packed("QUIT") + packed("PING"), half_close=False) == b"+OK\r\n" * 301
    pops = b"".join(packed("QRPOP", "foo", "EX", 0) + packed("ECHO", "a") for _ in range(301))
    expected = b"".join(b"*2\r\n$%d\r\n%d\r\n$4\r\nx\r\ny\r\n$1\r\na\r\n" % (len(str(n)), n) for n in range(300))
    assert told(port, pops) == expected + b"$-1\r\n$1\r\na\r\n"


def test_errors_of_the_protocol_end_the_connection(port: int) -> None:
    for sent, error in (
        (packed("PING") + b"*x\r\n" + packed("PING"), b"must be a number"),
        (packed("ECHO", "x" * 200_001), b"the limit is 200000"),
        (packed("QRPOP", "foo", "WAIT", 60) + packed("PING") * 50, b"more than 10 commands"),
    ):
        assert error in told(port, sent, half_close=False)


def test_clients_that_go_or_do_not_read_disturb_nobody(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(0.5)
        with pytest.raises((TimeoutError, ConnectionError)):
            while True:
                slow.sendall(packed("ECHO", "x" * 190_000))
        for number in range(50):
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                client.sendall(packed("QRPOP", "foo", "WAIT", 60) if number % 2 else packed("QSTATUS") * 8)
        assert told(port, packed("PING")) == b"+PONG\r\n"
