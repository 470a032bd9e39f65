"""What clients may use: numbers, sizes, times; the password; TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import psutil
import pytest

from apressure.events.server.settings import Tls
from apressure.events.server.wire import Limits
from tests.integration.conftest import PATIENCE
from tests.integration.event_server.conftest import Serve, Served, Wire, packed

CERTIFICATE = Path(__file__).parents[1] / "certificate.pem"


async def test_the_number_of_clients_is_limited(serve: Serve) -> None:
    served: Served = await serve(limits={"connections": 2})
    first, second, third = [await served.connect() for _ in range(3)]
    assert await first("PING") == await second("PING") == b"PONG"
    assert await third.ended() == b"-ERR max number of clients reached\r\n"
    await first.close()
    async with asyncio.timeout(PATIENCE):
        while b"PONG" not in await _ping(served):
            await asyncio.sleep(0.01)


async def _ping(served: Served) -> bytes:
    wire = await served.connect()
    wire.writer.write(b"PING\r\nQUIT\r\n")
    return await wire.ended()


async def test_idle_clients_are_disconnected_and_waiting_ones_are_not(serve: Serve) -> None:
    served: Served = await serve(limits={"idle": 0.5})
    idle, waiting = await served.connect(), await served.connect()
    waiting.send("QRPOP", "foo", "WAIT", 4)
    assert await idle.ended() == b"-ERR idle for 0.5 seconds: connection closed (--idle-timeout)\r\n"
    assert await waiting.reply() is None


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (packed("QLPUSH", "foo", 1, "x" * 1025), "the length of an argument is 1025, and the limit is 1024"),
        (packed("QLPUSH", "foo", *["x" * 1000] * 3), "the command is longer than 2048 bytes"),
        (packed("QACK", "foo", *range(20)), "the number of arguments is 22, and the limit is 16"),
        (b"PING " + b"x" * 300, "an inline command is longer than 256 bytes"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "arrays are nested deeper than 1; a command is an array of bulk strings"),
        (b"GET / HTTP/1.1\r\n\r\n*x\r\n", "the number of arguments must be a number, not 'x'"),
    ],
)
async def test_a_command_beyond_a_limit_ends_the_connection_with_an_error(
    serve: Serve, sent: bytes, error: str
) -> None:
    served: Served = await serve(limits={"wire": Limits(bulk=1024, command=2048, arguments=16, inline=256)})
    wire = await served.connect()
    wire.writer.write(packed("PING") + sent)
    ended = await wire.ended()
    assert ended.startswith(b"+PONG\r\n")
    assert f"-ERR Protocol error: {error}" in ended.decode()


async def test_a_client_that_does_not_read_stops_its_own_commands_only(serve: Serve) -> None:
    served: Served = await serve(limits={"stalled": 1.0})
    slow, other = await served.connect(), await served.connect()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sock: socket.socket = slow.writer.get_extra_info("socket")
    process = psutil.Process()
    before = process.memory_info().rss
    echo = packed("ECHO", b"x" * 100_000)

    async def flood() -> None:
        for _ in range(3000):
            slow.writer.write(echo)
            await slow.writer.drain()

    flooding = asyncio.create_task(flood())
    for _ in range(20):
        assert await other("PING") == b"PONG"
        await asyncio.sleep(0.02)
    assert process.memory_info().rss - before < 64 << 20  # 300 MB were to be sent
    assert sock.fileno() >= 0
    with pytest.raises(ConnectionError):  # it is disconnected in the end
        async with asyncio.timeout(PATIENCE):
            await flooding


async def test_a_reply_that_is_too_large_for_a_slow_reader_ends_the_connection(serve: Serve) -> None:
    served: Served = await serve(limits={"output": 100_000})
    wire = await served.connect()
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.writer.write(packed("ECHO", b"x" * 20_000_000))
    other = await served.connect()
    assert await other("PING") == b"PONG"
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    with pytest.raises((ConnectionError, EOFError)):
        while True:
            await wire.reply()


async def test_a_client_that_pipelines_behind_a_wait_is_disconnected_with_an_error(serve: Serve) -> None:
    served: Served = await serve(limits={"pipeline": 10})
    wire = await served.connect()
    wire.send("QRPOP", "foo", "WAIT", 80)
    for _ in range(100):
        wire.send("PING")
    assert "-ERR more than 10 commands" in (await wire.ended()).decode()


async def test_more_commands_than_the_pipeline_limit_are_carried_out_all_the_same(serve: Serve) -> None:
    served: Served = await serve(limits={"pipeline": 10})
    wire = await served.connect()
    await wire.raw(packed("PING") * 5000, b"+PONG\r\n" * 5000)


async def test_the_password(serve: Serve) -> None:
    served: Served = await serve(password="sécret")
    wire = await served.connect()
    for command in (["QLPUSH", "foo", "1", "x"], ["QSTATUS"], ["CLIENT", "ID"], ["COMMAND"], ["INFO"]):
        assert await wire(*command) == "NOAUTH Authentication required."
    assert (await wire("HELLO", 3)).startswith("NOAUTH")
    assert await wire("PING") == b"PONG"
    for wrong in (["wrong"], ["other", "sécret"], ["default", ""], ["default", "wrong"]):
        assert await wire("AUTH", *wrong) == "WRONGPASS invalid username-password pair or user is disabled."
    assert await wire("QSTATUS") == "NOAUTH Authentication required."
    # What follows AUTH in a pipeline has the limits of an authenticated client.
    wire.send("AUTH", "sécret")
    wire.send("QLPUSH", "foo", "1", b"x" * 100_000)
    assert [await wire.reply(), await wire.reply()] == [b"OK", b"OK"]
    assert await wire("RESET") == b"RESET"
    assert await wire("QSTATUS") == "NOAUTH Authentication required."
    hello = await served.connect()
    assert (await hello("HELLO", 3, "AUTH", "default", "sécret"))[b"proto"] == 3
    assert await hello("QRPOP", "foo", "EX", 0) == [b"1", b"x" * 100_000]


async def test_before_auth_a_client_may_send_little(serve: Serve) -> None:
    wire = await (await serve(password="secret")).connect()
    wire.writer.write(b"*2\r\n$4\r\nAUTH\r\n$17000\r\n")
    assert "the length of an argument is 17000, and the limit is 16384" in (await wire.ended()).decode()


async def test_commands_that_were_sent_before_the_end_of_input_are_carried_out(okq: Served, wire: Wire) -> None:
    other = await okq.connect()
    other.writer.write(b"".join(packed("QLPUSH", "foo", n, "x") for n in range(200)))
    other.writer.write_eof()
    assert await other.ended() == b"+OK\r\n" * 200
    assert len(await wire("QRPOP", "foo", "COUNT", 300, "EX", 0)) == 200


async def test_tls(serve: Serve) -> None:
    served: Served = await serve(tls=Tls(CERTIFICATE))
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False
    wire = await served.connect(context)
    assert await wire("QLPUSH", "foo", 1, b"x" * 300_000) == b"OK"
    assert await wire("QRPOP", "foo", "EX", 0) == [b"1", b"x" * 300_000]
    assert await wire("QREGISTER", "foo") == b"OK"
    plain = await served.connect()
    plain.send("PING")
    assert b"PONG" not in await plain.ended()


@pytest.mark.parametrize("files", [("none.pem", None), (str(CERTIFICATE), Path(__file__))])
async def test_a_wrong_certificate_is_refused(serve: Serve, files: tuple[str, Path | None]) -> None:
    with pytest.raises(ValueError, match="the certificate, key or client CA cannot be used"):
        await serve(tls=Tls(Path(files[0]), files[1]))


async def test_hundreds_of_idle_connections_cost_little(okq: Served) -> None:
    process = psutil.Process()
    await okq.connect()
    before = process.memory_info().rss
    wires = [await okq.connect() for _ in range(400)]
    assert [await one("QREGISTER", "foo") for one in wires[:50]] == [b"OK"] * 50
    assert await wires[-1]("QSTATUS", "foo") == [[b"foo", 0, 0, 50]]
    assert process.memory_info().rss - before < 400 * 100_000  # both ends; the benchmark measures the server's
