"""The reconnecting connection: order, certainty and cleanliness while servers refuse, move and die."""

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
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.script import Request
from apressure.pressure.engine.sending import script
from tests.integration.conftest import eventually, in_time
from tests.unit.fakes import FakeChannel, FakeNode


class Fixture:
    def __init__(self, **options: Any) -> None:
        self.node = FakeNode(**options)
        self.connection = ReconnectingConnection(self.node)
        self.replies: dict[bytes, Any] = {}

    def send(self, what: bytes, resend: bool = True) -> None:
        def on_reply(reply: Any) -> None:
            assert what not in self.replies
            self.replies[what] = reply

        self.connection.send(Request(script("peek").on([b"key"]), [b"0", what], on_reply, resend, again=0))

    async def channel(self, number: int) -> FakeChannel:
        await eventually(lambda: len(self.node.channels) > number)
        return self.node.channels[number]

    async def sent(self, number: int, *what: bytes) -> FakeChannel:
        """The connection of that number, when exactly this has been sent on it."""
        channel = await self.channel(number)
        await eventually(lambda: len(channel.sent) >= len(what))
        assert channel.sent == list(what)
        return channel


@pytest.mark.parametrize("text", ["LOADING wait", "TRYAGAIN wait", "BUSY wait", "NOREPLICAS wait"])
async def test_temporarily_refused_requests_are_sent_again_in_order(text: str) -> None:
    fixture = Fixture()
    for what in (b"1", b"2", b"3"):
        fixture.send(what)
    channel = await fixture.sent(0, b"1", b"2", b"3")
    for _ in range(2):
        channel.refuse(text)
    fixture.send(b"4")  # must not overtake those two
    channel.answer(3)
    channel = await fixture.sent(0, b"1", b"2", b"3", b"1", b"2", b"4")
    for number in (1, 2, 4):
        channel.answer(number)
    assert fixture.replies == {b"1": 1, b"2": 2, b"3": 3, b"4": 4}


async def test_redirected_requests_are_sent_to_the_new_server_in_order() -> None:
    fixture = Fixture()
    fixture.node.written = True
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
    fixture.node.invalidate(Address("elsewhere"))
    fixture.send(b"2", resend=False)
    assert old.sent == [b"1", b"2"]
    fixture.node.invalidate(old.address)
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
        await fixture.connection.ask("SET", "key", "value")
    assert len(fixture.node.channels) == 1
    with pytest.raises(ServerUnavailableError):
        await in_time(fixture.connection.ask("EXISTS", "key", reads=True))
    assert len(fixture.node.channels) > 2


async def test_the_outcome_of_a_request_that_was_not_sent_is_known() -> None:
    fixture = Fixture()
    fixture.node.dead = 2
    fixture.send(b"1", resend=False)
    channel = await fixture.sent(2, b"1")
    channel.answer(1)
    assert fixture.replies == {b"1": 1}


async def test_a_server_that_closes_every_connection_is_given_up() -> None:
    fixture = Fixture(retry_timeout=0.2)
    fixture.node.dead = 1000
    fixture.send(b"1", resend=False)
    await eventually(lambda: fixture.replies)
    assert type(fixture.replies[b"1"]) is ServerUnavailableError
    assert len(fixture.node.channels) < 20


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


async def test_a_lasting_refusal_is_raised_in_the_end() -> None:
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
    fixture.node.delay = 0.1
    await eventually(lambda: fixture.replies)
    assert type(fixture.replies[b"1"]) is OutcomeUnknownError
    assert all(channel.sent == [] for channel in fixture.node.channels[1:])


async def test_closing_waits_for_temporarily_refused_requests() -> None:
    fixture = Fixture()
    fixture.send(b"1")
    channel = await fixture.sent(0, b"1")
    channel.refuse("LOADING wait")
    closing = asyncio.create_task(fixture.connection.aclose(5))
    await fixture.sent(0, b"1", b"1")
    channel.answer(1)
    await in_time(closing)
    assert fixture.replies == {b"1": 1}
    assert not channel.up


@pytest.mark.parametrize("reads", [False, True])
async def test_closing_ends_a_command_that_has_no_reply(reads: bool) -> None:
    fixture = Fixture()
    channel = await fixture.connection.connected()
    asking = asyncio.create_task(fixture.connection.ask("EXISTS", "key", reads=reads))
    fixture.node.channels[0].silent = True
    await asyncio.sleep(0)
    fixture.connection.end()
    assert not channel.up
    with pytest.raises(ClientClosedError):
        await in_time(asking)


async def test_closing_ends_requests_that_wait_to_be_sent_again() -> None:
    fixture = Fixture()
    fixture.send(b"1")
    channel = await fixture.sent(0, b"1")
    channel.refuse("LOADING wait")
    await in_time(fixture.connection.aclose(0))
    assert type(fixture.replies[b"1"]) is ClientClosedError


async def test_closing_ends_connections_that_were_retired_with_replies_on_their_way() -> None:
    fixture = Fixture()
    fixture.node.written = True
    fixture.send(b"1")
    fixture.send(b"2")
    channel = await fixture.sent(0, b"1", b"2")
    channel.refuse("READONLY no")
    assert channel.retired
    assert channel.up
    await in_time(fixture.connection.aclose(0))
    assert not channel.up
    assert set(fixture.replies) == {b"1", b"2"}


async def test_a_task_that_gives_up_connecting_does_not_disturb_others() -> None:
    fixture = Fixture()
    fixture.node.delay = 0.01
    asking = asyncio.create_task(fixture.connection.connected())
    await eventually(lambda: fixture.connection._opening._task is not None)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.sleep(0)
    assert asking.done()
    fixture.send(b"1")  # the attempt that was given up has not noticed yet
    (await fixture.sent(0, b"1")).answer(1)
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
