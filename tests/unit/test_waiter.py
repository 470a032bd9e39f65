"""The waiter: one outstanding command for all who wait, no wake-up lost, no token kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure.connection.addresses import Address
from apressure.connection.channel import ConnectionLost, OnReply
from apressure.connection.discovery import Fixed
from apressure.connection.replies import error_from_reply
from apressure.connection.server import Place, Server
from apressure.connection.settings import resolve
from apressure.connection.waiter import Waiter, park
from apressure.exceptions import ConnectionLimitError, PressureError, ServerError


class FakeChannel:
    """A connection on which the test answers."""

    def __init__(self, address: Address) -> None:
        self.up = True
        self.address = address
        self.calls: list[tuple[list[Any], OnReply]] = []
        self.answered = 0

    def call(self, command: list[Any], on_reply: OnReply) -> None:
        self.calls.append((command, on_reply))

    def reply(self, value: Any) -> None:
        _, on_reply = self.calls[self.answered]
        self.answered += 1
        on_reply(value)

    def abort(self, reason: str) -> None:
        self.up = False
        while self.answered < len(self.calls):
            self.reply(ConnectionLost(reason))

    def retire(self) -> None:
        self.up = False


class FakePlace(Place):
    """Hands out such connections, or an error."""

    def __init__(self) -> None:
        settings = resolve({}, {})
        super().__init__(Server(settings), Fixed(settings.address), None)
        self.channels: list[FakeChannel] = []
        self.error: PressureError | None = None

    async def connect(self, on_lost: Any, response_timeout: float | None = None) -> FakeChannel:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.channels.append(FakeChannel(self.settings.address))
        return self.channels[-1]


class Fixture:
    def __init__(self, claims: bool = False) -> None:
        self.server = FakePlace()
        self.unwanted = 0
        self.waiter = Waiter(self.server, b"source", b"claim" if claims else b"source", on_unwanted=self._unwanted)

    def _unwanted(self) -> None:
        self.unwanted += 1

    def park(self, generation: int | None = None, seconds: float | None = None) -> asyncio.Future[None]:
        noted = self.waiter.generation if generation is None else generation
        return park([self.waiter], [noted], seconds)

    @property
    def channel(self) -> FakeChannel:
        return self.server.channels[-1]


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nothing_is_connected_before_somebody_waits() -> None:
    fixture = Fixture()
    await soon()
    assert fixture.server.channels == []
    assert fixture.waiter.idle


async def test_a_peek_puts_back_what_it_pops() -> None:
    fixture = Fixture()
    fixture.park()
    await soon()
    assert fixture.channel.calls[0][0][:5] == [b"BLMOVE", b"source", b"source", b"RIGHT", b"RIGHT"]


async def test_a_claim_moves_the_token_to_the_claims() -> None:
    fixture = Fixture(claims=True)
    fixture.park()
    await soon()
    assert fixture.channel.calls[0][0][:5] == [b"BLMOVE", b"source", b"claim", b"RIGHT", b"LEFT"]


async def test_all_who_wait_share_one_command_and_wake_together() -> None:
    fixture = Fixture()
    parked = [fixture.park() for _ in range(10)]
    await soon()
    assert len(fixture.server.channels) == 1
    assert len(fixture.channel.calls) == 1
    fixture.channel.reply(b"message")
    assert all(future.done() for future in parked)


async def test_the_end_of_a_slice_wakes_too_so_that_the_step_can_look() -> None:
    fixture = Fixture()
    parked = fixture.park()
    await soon()
    fixture.channel.reply(None)
    assert parked.result() is None
    assert not fixture.waiter.claimed


async def test_a_wake_up_between_step_and_wait_is_not_lost() -> None:
    fixture = Fixture()
    fixture.park()
    await soon()
    noted = fixture.waiter.generation
    fixture.channel.reply(b"message")
    parked = fixture.park(generation=noted)
    assert parked.done()
    assert len(fixture.channel.calls) == 1


async def test_a_command_stays_outstanding_when_its_waiter_goes_and_serves_the_next() -> None:
    fixture = Fixture()
    fixture.park().cancel()
    await soon()
    first = fixture.park()
    await soon()
    first.cancel()
    await soon()
    second = fixture.park()
    assert len(fixture.channel.calls) == 1
    fixture.channel.reply(b"message")
    assert second.done()


async def test_who_waits_after_a_wake_up_sends_a_command_again_on_the_same_connection() -> None:
    fixture = Fixture()
    fixture.park()
    await soon()
    fixture.channel.reply(None)
    fixture.park()
    assert len(fixture.server.channels) == 1
    assert len(fixture.channel.calls) == 2


async def test_a_token_that_came_is_used_once() -> None:
    fixture = Fixture(claims=True)
    parked = fixture.park()
    await soon()
    fixture.channel.reply(b"1")
    assert parked.done()
    assert fixture.waiter.take_claim()
    assert not fixture.waiter.take_claim()
    assert fixture.unwanted == 0


async def test_a_token_that_came_for_nobody_is_handed_back() -> None:
    fixture = Fixture(claims=True)
    fixture.park().cancel()
    parked = fixture.park()
    await soon()
    parked.cancel()
    await soon()
    fixture.channel.reply(b"1")
    assert fixture.unwanted == 1
    assert not fixture.waiter.claimed


async def test_a_token_whose_waiters_end_before_they_use_it_is_handed_back() -> None:
    fixture = Fixture(claims=True)
    fixture.park()
    await soon()
    fixture.channel.reply(b"1")
    assert not fixture.waiter.idle
    fixture.waiter.hand_back()
    fixture.waiter.hand_back()
    assert fixture.unwanted == 1


async def test_a_token_that_is_there_already_is_not_waited_for() -> None:
    fixture = Fixture(claims=True)
    fixture.park()
    await soon()
    fixture.channel.reply(b"1")
    assert fixture.park().done()


@pytest.mark.parametrize(
    "reply",
    [
        ConnectionLost("cable cut"),
        error_from_reply("OOM command not allowed"),
        error_from_reply("UNBLOCKED force unblock from blocking operation"),
    ],
    ids=["lost", "oom", "unblocked"],
)
async def test_what_a_step_can_look_into_wakes_without_an_error(reply: Exception) -> None:
    fixture = Fixture()
    parked = fixture.park()
    await soon()
    fixture.channel.reply(reply)
    assert not parked.done()  # not at once: a server in trouble is not asked in a loop
    async with asyncio.timeout(10):
        await parked
    assert fixture.waiter.generation == 1


async def test_a_refusal_is_raised_to_all_who_wait() -> None:
    fixture = Fixture()
    parked = [fixture.park() for _ in range(3)]
    await soon()
    fixture.channel.reply(error_from_reply("NOPERM no"))
    for future in parked:
        with pytest.raises(ServerError, match="NOPERM"):
            future.result()


async def test_who_cannot_be_connected_gets_the_reason() -> None:
    fixture = Fixture()
    fixture.server.error = ConnectionLimitError("all in use")
    parked = fixture.park()
    with pytest.raises(ConnectionLimitError, match="all in use"):
        await parked
    fixture.server.error = None
    later = fixture.park()
    await soon()
    fixture.channel.reply(None)
    assert later.done()


async def test_a_lost_connection_is_opened_anew_by_the_next_wait() -> None:
    fixture = Fixture()
    parked = fixture.park()
    await soon()
    fixture.channel.abort("cable cut")
    await parked
    fixture.park()
    await soon()
    assert len(fixture.server.channels) == 2
    assert len(fixture.channel.calls) == 1


async def test_close_gives_the_connection_up() -> None:
    fixture = Fixture()
    fixture.park().cancel()
    fixture.park()
    await soon()
    assert fixture.waiter.connected
    channel = fixture.channel
    fixture.waiter.close()
    assert not channel.up
    assert not fixture.waiter.connected


async def test_close_while_connecting_leaves_no_connection() -> None:
    fixture = Fixture()
    fixture.park()
    fixture.waiter.close()
    await soon()
    assert fixture.server.channels == []


async def test_a_wait_with_an_end_wakes_by_itself() -> None:
    fixture = Fixture()
    async with asyncio.timeout(10):
        await fixture.park(seconds=0.01)
    assert fixture.waiter.idle
