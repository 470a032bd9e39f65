"""The waiter: one outstanding command for all waiting tasks, no lost wake-up, no token kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure.connection.waiting.waiter import FOLLOWING, Behind, Waiter, park
from apressure.connection.wire.channel import ConnectionLost
from apressure.connection.wire.replies import error_from_reply
from apressure.connection.wire.script import Request, Script
from apressure.core.waiting import moment
from apressure.exceptions import ConnectionLimitError, ServerError
from tests.unit.fakes import FakeChannel, FakeNode


class Fixture:
    def __init__(self, claims: bool = False, patient: bool = False, **options: Any) -> None:
        self.node = FakeNode(**options)
        self.unwanted = 0
        destination = b"claim" if claims else b"source"
        self.waiter = Waiter(self.node, b"source", destination, on_unwanted=self._unwanted, patient=patient)

    def _unwanted(self) -> None:
        self.unwanted += 1

    def park(self, since: int | None = None, seconds: float | None = None) -> asyncio.Future[None]:
        return park([self.waiter], moment() if since is None else since, seconds)

    async def parked(self) -> asyncio.Future[None]:
        """Park, and send the command."""
        future = self.park()
        await soon()
        return future

    @property
    def channel(self) -> FakeChannel:
        return self.node.channels[-1]


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_wait_opens_the_connection() -> None:
    fixture = Fixture()
    await soon()
    assert fixture.node.channels == []
    assert fixture.waiter.idle


@pytest.mark.parametrize(("claims", "moves"), [(False, "source source RIGHT RIGHT"), (True, "source claim RIGHT LEFT")])
async def test_a_peek_puts_back_what_it_pops_and_a_claim_moves_the_token(claims: bool, moves: str) -> None:
    fixture = Fixture(claims)
    await fixture.parked()
    assert fixture.channel.calls[0][0][:5] == [b"BLMOVE", *moves.encode().split()]


async def test_all_waiting_tasks_share_one_command_and_wake_together() -> None:
    fixture = Fixture()
    parked = [fixture.park() for _ in range(10)]
    await soon()
    assert len(fixture.node.channels) == 1
    assert len(fixture.channel.calls) == 1
    fixture.channel.reply(b"message")
    assert all(future.done() for future in parked)


async def test_the_end_of_a_slice_wakes_too_so_that_the_step_can_look() -> None:
    fixture = Fixture()
    parked = await fixture.parked()
    fixture.channel.reply(None)
    assert parked.result() is None
    assert not fixture.waiter.claimed


async def test_a_wake_up_between_step_and_wait_is_not_lost() -> None:
    fixture = Fixture()
    await fixture.parked()
    since = moment()
    fixture.channel.reply(b"message")
    parked = fixture.park(since)
    assert parked.done()
    assert len(fixture.channel.calls) == 1


async def test_a_command_stays_outstanding_when_its_waiter_goes_and_serves_the_next() -> None:
    fixture = Fixture()
    fixture.park().cancel()
    await soon()
    first = await fixture.parked()
    first.cancel()
    await soon()
    second = fixture.park()
    assert len(fixture.channel.calls) == 1
    fixture.channel.reply(b"message")
    assert second.done()


async def test_a_wait_after_a_wake_up_sends_a_command_on_the_same_connection() -> None:
    fixture = Fixture()
    await fixture.parked()
    fixture.channel.reply(None)
    fixture.park()
    assert len(fixture.node.channels) == 1
    assert len(fixture.channel.calls) == 2


async def test_a_token_that_came_is_used_once() -> None:
    fixture = Fixture(claims=True)
    parked = await fixture.parked()
    fixture.channel.reply(b"1")
    assert parked.done()
    assert fixture.waiter.take_claim()
    assert not fixture.waiter.take_claim()
    assert fixture.unwanted == 0


async def test_a_token_that_no_task_waits_for_is_handed_back() -> None:
    fixture = Fixture(claims=True)
    fixture.park().cancel()
    parked = await fixture.parked()
    parked.cancel()
    await soon()
    fixture.channel.reply(b"1")
    assert fixture.unwanted == 1
    assert not fixture.waiter.claimed


async def test_a_token_whose_waiters_end_before_they_use_it_is_handed_back() -> None:
    fixture = Fixture(claims=True)
    await fixture.parked()
    fixture.channel.reply(b"1")
    assert not fixture.waiter.idle
    fixture.waiter.hand_back()
    fixture.waiter.hand_back()
    assert fixture.unwanted == 1


async def test_a_token_that_is_there_already_is_not_waited_for() -> None:
    fixture = Fixture(claims=True)
    await fixture.parked()
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
async def test_a_failure_that_a_step_will_raise_wakes_without_an_error(reply: Exception) -> None:
    fixture = Fixture()
    parked = await fixture.parked()
    since = moment()
    fixture.channel.reply(reply)
    assert not parked.done()  # not at once: a server in trouble is not asked in a loop
    async with asyncio.timeout(10):
        await parked
    assert fixture.waiter.woken > since


async def test_all_waiting_tasks_raise_a_refusal() -> None:
    fixture = Fixture()
    parked = [fixture.park() for _ in range(3)]
    await soon()
    fixture.channel.reply(error_from_reply("NOPERM no"))
    for future in parked:
        with pytest.raises(ServerError, match="NOPERM"):
            future.result()


async def test_a_wait_that_cannot_connect_raises_the_reason() -> None:
    fixture = Fixture()
    fixture.node.error = ConnectionLimitError("all in use")
    parked = fixture.park()
    with pytest.raises(ConnectionLimitError, match="all in use"):
        await parked
    fixture.node.error = None
    later = fixture.park()
    await soon()
    fixture.channel.reply(None)
    assert later.done()


async def test_a_lost_connection_is_opened_anew_by_the_next_wait() -> None:
    fixture = Fixture()
    parked = await fixture.parked()
    fixture.channel.abort("cable cut")
    await parked
    await fixture.parked()
    assert len(fixture.node.channels) == 2
    assert len(fixture.channel.calls) == 1


async def test_close_gives_the_connection_up() -> None:
    fixture = Fixture()
    fixture.park().cancel()
    await fixture.parked()
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
    assert fixture.node.channels == []


async def test_a_wait_with_an_end_wakes_by_itself() -> None:
    fixture = Fixture()
    async with asyncio.timeout(10):
        await fixture.park(seconds=0.01)
    assert fixture.waiter.idle


class Behinds:
    """Steps behind the waits of a fixture, and what became of them."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self.happened: list[object] = []

    def send(self) -> None:
        call = Script("apressure.pressure.engine", "look").on([])
        request = Request(call, [b"argument"], self.happened.append, resend=False)
        Behind(self._fixture.waiter, lambda: self.happened.append("ended")).send(request)


async def test_a_step_behind_a_wait_is_answered_after_it_and_told_of_its_end_before_the_tasks() -> None:
    fixture = Fixture()
    behinds = Behinds(fixture)
    parked = await fixture.parked()
    behinds.send()
    parked.on_wake = behinds.happened.append
    fixture.channel.reply(b"message")
    assert behinds.happened == ["ended", parked]
    fixture.channel.answer(b"taken")
    assert behinds.happened[2:] == [b"taken"]


async def test_a_reply_that_belongs_to_another_step_ends_the_connection() -> None:
    fixture = Fixture()
    behinds = Behinds(fixture)
    await fixture.parked()
    behinds.send()
    fixture.channel.reply(b"message")
    fixture.channel.reply([b"another", b"taken"])
    assert isinstance(behinds.happened[-1], ConnectionLost)
    assert not fixture.channel.up


async def test_a_step_behind_a_wait_that_is_lost_is_lost_and_not_told_of_an_end() -> None:
    fixture = Fixture()
    behinds = Behinds(fixture)
    await fixture.parked()
    behinds.send()
    fixture.channel.abort("it died")
    (happened,) = behinds.happened
    assert isinstance(happened, ConnectionLost)


async def test_the_end_of_a_long_slice_wakes_those_whose_step_has_run_then() -> None:
    fixture = Fixture(patient=True)
    parked = await fixture.parked()
    fixture.channel.reply(None)
    assert not parked.done()
    behinds = Behinds(fixture)
    behinds.send()
    fixture.channel.reply(None)
    assert parked.done()
    assert behinds.happened == ["ended"]


async def test_few_steps_stand_behind_a_wait() -> None:
    fixture = Fixture()
    behinds = Behinds(fixture)
    assert not fixture.waiter.leads
    await fixture.parked()
    for _ in range(FOLLOWING):
        assert fixture.waiter.leads
        behinds.send()
    assert not fixture.waiter.leads
    fixture.channel.reply(b"message")
    await fixture.parked()
    assert fixture.waiter.leads


async def test_no_step_stands_behind_a_wait_where_replicas_must_confirm_it() -> None:
    fixture = Fixture(durability=1)
    await fixture.parked()
    assert not fixture.waiter.leads
