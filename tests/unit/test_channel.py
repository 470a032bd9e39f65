"""The channel, fed with bytes: replies in order, garbage, lost connections, and the watch over replies."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio.connection

from apressure import AsyncQueue, ServerError, ServerUnavailableError
from apressure.connection.addresses import Address
from apressure.connection.wire import channel as channels
from apressure.connection.wire import connecting
from apressure.connection.wire.channel import ConnectionLost, RESPChannel
from tests.unit.fakes import listening


class FakeTransport(asyncio.Transport):
    """Keeps the bytes that were written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self.full = 0
        """After how many more pieces the channel is to pause; 0 for never."""
        self.channel: RESPChannel | None = None

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        if self.full:
            self.full -= 1
            if not self.full and self.channel is not None:
                self.channel.pause_writing()

    def abort(self) -> None:
        self.aborted = True


class Fixture:
    """A channel between a test and nothing."""

    def __init__(self, response_timeout: float = 60.0) -> None:
        self.transport = FakeTransport()
        self.lost = 0
        self.channel = RESPChannel(self.transport, Address("a test"), response_timeout)
        self.channel.on_end.append(self._on_end)
        self.transport.channel = self.channel
        self.replies: list[Any] = []

    def _on_end(self) -> None:
        self.lost += 1

    def call(self, *command: bytes | str | int) -> None:
        self.channel.call(command, self.replies.append)


async def test_a_command_is_written_as_redis_reads_it() -> None:
    fixture = Fixture()
    fixture.call(b"LPUSH", "k\u00fc", 5, b"\r\n")
    assert fixture.transport.written == [b"*4\r\n$5\r\nLPUSH\r\n$3\r\nk\xc3\xbc\r\n$1\r\n5\r\n$2\r\n\r\n\r\n"]


async def test_replies_go_to_their_callers_in_order() -> None:
    fixture = Fixture()
    for _ in range(5):
        fixture.call("PING")
    fixture.channel.data_received(b"+one\r\n:2\r\n$5\r\nthree\r\n*2\r\n$1\r\n4\r\n$-1\r\n$-1\r\n")
    assert fixture.replies == [b"one", 2, b"three", [b"4", None], None]


async def test_replies_may_come_in_any_pieces() -> None:
    fixture = Fixture()
    fixture.call("A")
    fixture.call("B")
    for byte in b"$5\r\nthree\r\n*1\r\n:7\r\n":
        fixture.channel.data_received(bytes([byte]))
    assert fixture.replies == [b"three", [7]]


async def test_an_error_reply_is_one_answer_among_others() -> None:
    fixture = Fixture()
    for _ in range(3):
        fixture.call("A")
    fixture.channel.data_received(b"+a\r\n-WRONGTYPE not a list\r\n+b\r\n")
    assert fixture.replies[0::2] == [b"a", b"b"]
    assert isinstance(fixture.replies[1], ServerError)
    assert fixture.channel.up


async def test_an_answer_may_send_the_next_command() -> None:
    fixture = Fixture()

    def again(reply: Any) -> None:
        fixture.replies.append(reply)
        fixture.call("B")

    fixture.channel.call(["A"], again)
    fixture.channel.data_received(b"+a\r\n")
    fixture.channel.data_received(b"+b\r\n")
    assert fixture.replies == [b"a", b"b"]


async def test_an_answer_may_end_the_channel_with_more_replies_behind() -> None:
    fixture = Fixture()
    fixture.channel.call(["A"], lambda _: fixture.channel.abort("enough"))
    fixture.call("B")
    fixture.channel.data_received(b"+a\r\n+b\r\n")
    assert [type(reply) for reply in fixture.replies] == [ConnectionLost]
    assert fixture.lost == 1


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x01\x02", b"$x\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"*1\r\n!\r\n"],
)
async def test_garbage_ends_the_connection_with_a_clear_error(garbage: bytes) -> None:
    fixture = Fixture()
    fixture.call("A")
    fixture.call("B")
    fixture.channel.data_received(garbage)
    assert [str(reply) for reply in fixture.replies] == ["the server does not speak the Redis protocol"] * 2
    assert fixture.transport.aborted
    assert not fixture.channel.up


async def test_a_reply_without_a_command_ends_the_connection() -> None:
    fixture = Fixture()
    fixture.channel.data_received(b"+surprise\r\n")
    assert not fixture.channel.up
    assert fixture.lost == 1


async def test_a_lost_connection_is_an_answer_to_everything_once() -> None:
    fixture = Fixture()
    fixture.call("A")
    fixture.call("B")
    fixture.channel.data_received(b"+a\r\n")
    fixture.channel.connection_lost(OSError("cable cut"))
    fixture.channel.connection_lost(None)
    fixture.channel.abort("again")
    assert fixture.replies[0] == b"a"
    assert isinstance(fixture.replies[1], ConnectionLost)
    assert "cable cut" in str(fixture.replies[1])
    assert (len(fixture.replies), fixture.lost) == (2, 1)


async def test_a_call_on_a_lost_connection_is_answered_but_not_at_once() -> None:
    fixture = Fixture()
    fixture.channel.abort("gone")
    fixture.call("A")
    assert fixture.replies == []
    await asyncio.sleep(0)
    assert isinstance(fixture.replies[0], ConnectionLost)
    assert fixture.transport.written == []


async def test_ask_raises_an_error_reply() -> None:
    fixture = Fixture()
    asking = asyncio.gather(*(fixture.channel.ask("GET", "k") for _ in range(3)), return_exceptions=True)
    await asyncio.sleep(0)
    fixture.channel.data_received(b"$1\r\nv\r\n-ERR no\r\n")
    fixture.channel.abort("gone")
    value, refused, lost = await asking
    assert value == b"v"
    assert isinstance(refused, ServerError)
    assert isinstance(lost, ServerUnavailableError)


async def test_a_cancelled_ask_does_not_shift_the_replies_of_others() -> None:
    fixture = Fixture()
    first = asyncio.ensure_future(fixture.channel.ask("A"))
    second = asyncio.ensure_future(fixture.channel.ask("B"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    fixture.channel.data_received(b"+a\r\n+b\r\n")
    assert await second == b"b"


async def test_a_reply_that_does_not_come_ends_the_connection() -> None:
    fixture = Fixture(response_timeout=0.05)
    fixture.call("A")
    async with asyncio.timeout(10):
        while fixture.channel.up:
            await asyncio.sleep(0.01)
    assert str(fixture.replies[0]) == "the server did not answer for 0.05 seconds"


async def test_the_watch_looks_at_the_oldest_reply_and_rests_when_there_is_none() -> None:
    fixture = Fixture(response_timeout=0.2)
    fixture.call("A")
    fixture.channel.data_received(b"+a\r\n")
    async with asyncio.timeout(10):
        while fixture.channel._due.timer is not None:  # it is set to look, until it finds nothing to wait for
            await asyncio.sleep(0.01)
    assert fixture.channel.up
    fixture.call("B")
    fixture.channel.data_received(b"+b\r\n")
    assert fixture.replies == [b"a", b"b"]


def http(_: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


def redis_that_turns_into_a_web_server(data: bytes) -> bytes:
    commands = data.count(b"*")
    return http(data) if b"INFO" in data else b"+OK\r\n" * commands


@pytest.mark.parametrize("answer", [http, redis_that_turns_into_a_web_server])
async def test_a_server_that_is_no_redis_is_a_clear_error(answer: Callable[[bytes], bytes]) -> None:
    async with listening(answer) as url:
        queue = AsyncQueue("jobs", url=url)
        with pytest.raises(ServerUnavailableError, match=r"127\.0\.0\.1|Redis protocol"):
            await queue.create()
        await queue.aclose()


async def test_a_redis_py_that_hides_its_transport_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(redis.asyncio.connection.Connection):
        async def connect(self) -> None:
            self._writer = None

    hidden = Address("a test", Elsewhere, {"host": "127.0.0.1", "port": 1})
    with pytest.raises(ServerError, match=f"cannot use redis-py {re.escape(redis.__version__)}: ") as caught:
        await connecting.connect(hidden, 1.0, 1.0)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (required,) = [one for one in project["dependencies"] if one.startswith("redis")]
    assert f"pip install '{required.replace('[hiredis]', '')}'" in str(caught.value)
    assert all("<9" in one for one in project["optional-dependencies"]["spark"] if one.startswith("redis"))


async def test_commands_of_one_loop_iteration_leave_together_in_order() -> None:
    fixture = Fixture()
    for word in ("A", "B", "C"):
        fixture.call(word)
    assert len(fixture.transport.written) == 1
    fixture.channel.data_received(b"+a\r\n")
    fixture.call("D")
    await asyncio.sleep(0)
    assert [piece.count(b"*1\r\n") for piece in fixture.transport.written] == [1, 3]
    assert b"".join(fixture.transport.written) == b"".join(b"*1\r\n$1\r\n%c\r\n" % letter for letter in b"ABCD")


async def test_a_large_argument_is_written_bit_by_bit_as_the_transport_takes_it() -> None:
    fixture = Fixture()
    large = bytes(range(256)) * 4096  # 1 MB
    fixture.call("A")
    fixture.call("SET", b"key", large)
    fixture.call("B")
    fixture.transport.full = 3
    await asyncio.sleep(0)
    assert len(fixture.transport.written) == 4
    for count in (5, 6):  # the last piece leaves with the commands behind it
        fixture.transport.full = 1
        fixture.channel.resume_writing()
        assert len(fixture.transport.written) == count
    assert max(map(len, fixture.transport.written)) < channels.PIECE + 100
    assert b"".join(fixture.transport.written) == (
        b"*1\r\n$1\r\nA\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1048576\r\n%b\r\n*1\r\n$1\r\nB\r\n" % large
    )
    fixture.channel.data_received(b"+a\r\n+ok\r\n+b\r\n")
    assert fixture.replies == [b"a", b"ok", b"b"]


async def test_a_connection_that_ends_in_the_middle_of_a_large_argument_writes_no_more() -> None:
    fixture = Fixture()
    fixture.call("SET", b"key", b"x" * (1 << 20))
    fixture.transport.full = 1
    await asyncio.sleep(0)
    fixture.channel.abort("cable cut")
    fixture.channel.resume_writing()
    await asyncio.sleep(0)
    assert len(fixture.transport.written) == 1
    assert isinstance(fixture.replies[0], ConnectionLost)


async def test_a_server_that_takes_a_large_argument_slowly_is_alive() -> None:
    fixture = Fixture(response_timeout=1.0)
    fixture.call("SET", b"key", b"x" * (4 << 20))
    for _ in range(12):
        fixture.transport.full = 1
        await asyncio.sleep(0.1)
        fixture.channel.resume_writing()
    assert fixture.channel.up  # after more time than a server may be silent
    async with asyncio.timeout(10):
        while fixture.channel.up:
            await asyncio.sleep(0.01)
    assert "did not answer" in str(fixture.replies[0])


@pytest.mark.parametrize("size", [300_000, 1 << 20, (1 << 20) + 33, 4 << 20])
async def test_replies_around_a_large_one_are_whole(size: int) -> None:
    fixture = Fixture()
    large = b"x" * (1 << 20)
    stream = b"+a\r\n*3\r\n$1048576\r\n%b\r\n$1048576\r\n%b\r\n+d\r\n+c\r\n" % (large, large)
    for _ in range(2):
        fixture.replies.clear()
        for word in ("A", "B", "C"):
            fixture.call(word)
        for begin in range(0, len(stream), size):
            fixture.channel.data_received(stream[begin : begin + size])
        assert fixture.replies == [b"a", [large, large, b"d"], b"c"]


async def test_a_reply_in_pieces_that_end_where_an_element_ends_is_whole() -> None:
    fixture = Fixture()
    fixture.call("A")
    large = b"x" * (1 << 20)
    for piece in (b"*2\r\n$1048576\r\n%b\r\n" % large, b"$1048576\r\n%b\r\n" % large):
        fixture.channel.data_received(piece)
    assert fixture.replies == [[large, large]]


async def test_a_large_command_leaves_at_once_and_behind_the_others() -> None:
    fixture = Fixture()
    fixture.call(b"FIRST")
    fixture.call(b"SECOND")
    assert len(fixture.transport.written) == 1
    fixture.call(b"THIRD", b"x" * channels.MUCH)
    sent = b"".join(fixture.transport.written)
    assert sent.index(b"SECOND") < sent.index(b"THIRD")
    await asyncio.sleep(0)
    assert b"".join(fixture.transport.written) == sent  # and nothing is written twice
