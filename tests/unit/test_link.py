"""The link: order, certainty and cleanliness while servers refuse, move and die."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import (
    Client,
    ClientClosedError,
    OutcomeUnknownError,
    ReadOnlyError,
    ServerError,
    ServerUnavailableError,
)
from apressure.connection.addresses import Address
from apressure.connection.channel import ConnectionLost, OnReply
from apressure.connection.command import Head
from apressure.connection.discovery import Fixed
from apressure.connection.link import Link
from apressure.connection.replies import error_from_reply
from apressure.connection.request import Request
from apressure.connection.server import Place, Server
from apressure.connection.settings import resolve
from apressure.queue.steps import script
from tests.integration.conftest import eventually, in_time


class FakeChannel:
    """A connection on which the test answers."""

    def __init__(self) -> None:
        self.up = True
        self.address = Address("a test")
        self.calls: list[tuple[list[Any], OnReply]] = []
        self.answered = 0
        self.retired = False

    def call(self, command: list[Any], on_reply: OnReply, head: Head) -> None:
        assert self.up
        self.calls.append((command, on_reply))

    async def ask(self, *command: bytes | str | int) -> Any:
        self.abort("it died")
        raise ServerUnavailableError("it died")

    @property
    def sent(self) -> list[bytes]:
        """What each request was."""
        return [command[-2] for command, _ in self.calls]

    def reply(self, value: Any) -> None:
        command, on_reply = self.calls[self.answered]
        self.answered += 1
        on_reply(value if isinstance(value, Exception) else [command[-1], value])

    def refuse(self, text: str) -> None:
        self.reply(error_from_reply(text))

    def abort(self, reason: str) -> None:
        self.up = False
        while self.answered < len(self.calls):
            self.reply(ConnectionLost(reason))

    def retire(self) -> None:
        self.retired = True


class FakePlace(Place):
    def __init__(self, **options: Any) -> None:
        settings = resolve({"retry_timeout": 5, **options}, {})  # type: ignore[typeddict-item]
        super().__init__(Server(settings), Fixed(settings.address), None)
        self.channels: list[FakeChannel] = []
        self.error: Exception | None = None
        self.delay = 0.0
        self.dead = 0
        """How many of the next connections have ended when they are there."""

    async def connect(self, on_lost: Any, response_timeout: float | None = None) -> Any:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        self.channels.append(FakeChannel())
        if self.dead:
            self.dead -= 1
            self.channels[-1].up = False
        return self.channels[-1]


class Fixture:
    def __init__(self, **options: Any) -> None:
        self.place = FakePlace(**options)
        self.link = Link(self.place)
        self.replies: dict[bytes, Any] = {}

    def send(self, what: bytes, resend: bool = True) -> None:
        def on_reply(reply: Any) -> None:
            assert what not in self.replies
            self.replies[what] = reply

        self.link.send(Request(script("peek").on([b"key"]), [b"0", what], on_reply, resend, again=0))

    async def channel(self, number: int) -> FakeChannel:
        await eventually(lambda: len(self.place.channels) > number)
        return self.place.channels[number]

    async def sent(self, number: int, *what: bytes) -> FakeChannel:
        """The connection of that number, when exactly this has been sent on it."""
        channel = await self.channel(number)
        await eventually(lambda: len(channel.sent) >= len(what))
        assert channel.sent == list(what)
        return channel


@pytest.mark.parametrize("text", ["LOADING wait", "TRYAGAIN wait", "BUSY wait", "NOREPLICAS wait"])
async def test_what_was_refused_for_a_moment_is_sent_again_in_order(text: str) -> None:
    fixture = Fixture()
    for what in (b"1", b"2", b"3"):
        fixture.send(what)
    channel = await fixture.sent(0, b"1", b"2", b"3")
    for _ in range(2):
        channel.refuse(text)
    fixture.send(b"4")  # must not overtake those two
    channel.reply(3)
    channel = await fixture.sent(0, b"1", b"2", b"3", b"1", b"2", b"4")
    for number in (1, 2, 4):
        channel.reply(number)
    assert fixture.replies == {b"1": 1, b"2": 2, b"3": 3, b"4": 4}


async def test_what_belongs_elsewhere_is_sent_there_in_order() -> None:
    fixture = Fixture()
    fixture.place.written()
    for what in (b"1", b"2", b"3"):
        fixture.send(what)
    channel = await fixture.sent(0, b"1", b"2", b"3")
    channel.refuse("READONLY You can't write against a read only replica.")
    fixture.send(b"4")
    assert channel.retired
    channel.refuse("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
    channel.abort("it died")  # with the third step
    channel = await fixture.sent(1, b"1", b"2", b"3", b"4")
    assert [command[-3] for command, _ in channel.calls] == [b"0", b"0", b"1", b"0"]  # only the third is a repeat


async def test_a_step_that_must_not_be_repeated_does_not_take_a_connection_that_may_be_dead() -> None:
    """A waiter's connection to the same server was lost: that of a frozen one, whose connections all look alive."""
    fixture = Fixture()
    fixture.send(b"1")
    old = await fixture.sent(0, b"1")
    fixture.place.doubt(Address("elsewhere"))
    fixture.send(b"2", resend=False)
    assert old.sent == [b"1", b"2"]
    fixture.place.doubt(old.address)
    fixture.send(b"3")
    assert old.sent == [b"1", b"2", b"3"]
    fixture.send(b"4", resend=False)
    assert old.retired
    new = await fixture.sent(1, b"4")
    fixture.send(b"5", resend=False)
    assert new.sent == [b"4", b"5"]


async def test_a_question_that_only_reads_is_asked_again_for_as_long_as_retries_go_on() -> None:
    fixture = Fixture(retry_timeout=0.1)
    with pytest.raises(ServerUnavailableError):
        await fixture.link.ask("SET", "key", "value")
    assert len(fixture.place.channels) == 1
    with pytest.raises(ServerUnavailableError):
        await in_time(fixture.link.ask("EXISTS", "key", reads=True))
    assert len(fixture.place.channels) > 2


async def test_what_never_left_is_not_in_doubt() -> None:
    fixture = Fixture()
    fixture.place.dead = 2
    fixture.send(b"1", resend=False)
    channel = await fixture.sent(2, b"1")
    channel.reply(1)
    assert fixture.replies == {b"1": 1}


async def test_a_server_that_hangs_up_at_once_is_not_tried_for_ever() -> None:
    fixture = Fixture(retry_timeout=0.2)
    fixture.place.dead = 1000
    fixture.send(b"1", resend=False)
    await eventually(lambda: fixture.replies)
    assert type(fixture.replies[b"1"]) is ServerUnavailableError
    assert len(fixture.place.channels) < 20


@pytest.mark.parametrize("text", ["WRONGTYPE no", "NOPERM no", "MISCONF no", "READONLY no"])
async def test_an_error_of_the_repeat_says_nothing_of_the_first_try(text: str) -> None:
    fixture = Fixture()
    fixture.send(b"1")
    (await fixture.sent(0, b"1")).abort("it died")
    (await fixture.sent(1, b"1")).refuse(text)
    assert type(fixture.replies[b"1"]) is OutcomeUnknownError
    assert "no" in str(fixture.replies[b"1"])


async def test_an_error_of_the_first_try_is_certain() -> None:
    fixture = Fixture()
    fixture.send(b"1")
    (await fixture.sent(0, b"1")).refuse("READONLY no")
    assert type(fixture.replies[b"1"]) is ReadOnlyError


async def test_a_refusal_that_does_not_pass_comes_out_in_the_end() -> None:
    fixture = Fixture(retry_timeout=0.05)
    fixture.send(b"1")
    fixture.send(b"2", resend=False)
    channel = await fixture.channel(0)
    answered = 0
    while len(fixture.replies) < 2:
        await eventually(lambda: channel.answered < len(channel.calls))
        channel.refuse("LOADING not yet")
        answered += 1
    assert answered > 2
    for reply in fixture.replies.values():
        assert isinstance(reply, ServerError)
        assert reply.code == "LOADING"


async def test_a_repeat_that_would_come_too_late_is_not_sent() -> None:
    """The server keeps the record that makes a repeat safe for a limited time."""
    fixture = Fixture(retry_timeout=0.05)
    fixture.send(b"1")
    (await fixture.sent(0, b"1")).abort("it died")
    fixture.place.delay = 0.1
    await eventually(lambda: fixture.replies)
    assert type(fixture.replies[b"1"]) is OutcomeUnknownError
    assert all(channel.sent == [] for channel in fixture.place.channels[1:])


async def test_closing_waits_for_what_was_refused_for_a_moment() -> None:
    fixture = Fixture()
    fixture.send(b"1")
    channel = await fixture.sent(0, b"1")
    channel.refuse("LOADING wait")
    closing = asyncio.create_task(fixture.link.aclose(5))
    await fixture.sent(0, b"1", b"1")
    channel.reply(1)
    await in_time(closing)
    assert fixture.replies == {b"1": 1}
    assert not channel.up


async def test_closing_ends_what_waits_to_be_sent_again() -> None:
    fixture = Fixture()
    fixture.send(b"1")
    channel = await fixture.sent(0, b"1")
    channel.refuse("LOADING wait")
    await in_time(fixture.link.aclose(0))
    assert type(fixture.replies[b"1"]) is ClientClosedError


async def test_closing_ends_connections_that_were_retired_with_replies_on_their_way() -> None:
    fixture = Fixture()
    fixture.place.written()
    fixture.send(b"1")
    fixture.send(b"2")
    channel = await fixture.sent(0, b"1", b"2")
    channel.refuse("READONLY no")
    assert channel.retired
    assert channel.up
    await in_time(fixture.link.aclose(0))
    assert not channel.up
    assert set(fixture.replies) == {b"1", b"2"}


async def test_somebody_who_gives_up_connecting_does_not_take_others_with_them() -> None:
    fixture = Fixture()
    fixture.place.delay = 0.01
    asking = asyncio.create_task(fixture.link.connected())
    await eventually(lambda: fixture.link._connecting is not None)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.sleep(0)
    assert asking.done()
    fixture.send(b"1")  # the attempt that was given up has not noticed yet
    (await fixture.sent(0, b"1")).reply(1)
    assert fixture.replies == {b"1": 1}


async def test_a_client_that_is_closed_in_a_cancelled_scope_leaves_no_connection(url: str) -> None:
    from anyio import CancelScope

    client = Client(url=url)
    await client.queues()
    assert client.server.connections == 1
    with CancelScope() as scope:
        scope.cancel()
        await client.aclose()
    assert client.server.connections == 0
