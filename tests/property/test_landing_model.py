"""How the holder of the consumer role may wait for messages: what a model, and real servers, say of it."""

from __future__ import annotations

import os
import time

import pytest
from redis import Redis, UnixDomainSocketConnection
from redis.exceptions import ResponseError

from apressure.embedded import EmbeddedServer
from tests.chaos.support import LONG
from tests.property.landing_model import Design, search
from tests.servers import admin, blocked_clients

SHORT = {"peek": Design(), "step-behind-the-peek": Design(wait="behind")}
LONGER = {"landing-with-strings-forever": Design(wait="landing", fenced=True, own=True)}
DESIGNS = {**SHORT, **(LONGER if LONG else {})}


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_the_design_holds_in_every_state(design: Design) -> None:
    result = search(design)
    assert not result.broken, str(result)
    # A model that forgets what can happen would pass as well.
    assert result.states > 50_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("design", "broken"),
    [
        pytest.param(Design(wait="landing"), "where the plain client does not look", id="landing"),
        pytest.param(
            Design(wait="landing", ends_waits=True),
            "where the plain client does not look",
            id="landing-and-client-kill",
        ),
        pytest.param(Design(wait="landing", fenced=True), "before message 1", id="one-landing-list-with-a-string"),
        pytest.param(
            Design(wait="landing", fenced=True, own=True, fences_last=False),
            "where the plain client does not look",
            id="a-landing-list-for-each-lease",
        ),
        pytest.param(Design(wait="behind", leases_are_checked=False), "before message 1", id="a-step-without-check"),
    ],
)
def test_a_bad_design_is_found_out(design: Design, broken: str) -> None:
    result = search(design)
    print(result)
    assert broken in result.broken


class Raw:
    """A connection that sends commands without waiting for their replies."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._connection = UnixDomainSocketConnection(path=os.fspath(server.socket_path), socket_timeout=90)

    def send(self, *commands: tuple[str | int, ...]) -> None:
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def reply(self) -> object:
        return self._connection.read_response()

    def close(self) -> None:
        self._connection.disconnect()


LANDING = ("BLMOVE", "list", "landing", "RIGHT", "LEFT", 0)
PEEK = ("BLMOVE", "list", "list", "RIGHT", "RIGHT", 0)
POP = ("EVAL", "return redis.call('RPOP', KEYS[1])", 1, "list")


def _until_blocked(server: EmbeddedServer, count: int) -> None:
    """Return when so many clients wait in a blocking command."""
    deadline = time.monotonic() + 90
    while blocked_clients(server) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _block(server: EmbeddedServer, raw: Raw, *commands: tuple[str | int, ...]) -> None:
    """Send commands, and return when the first of them blocks."""
    before = blocked_clients(server)
    raw.send(*commands)
    _until_blocked(server, before + 1)


@pytest.fixture
def look(server: EmbeddedServer, url: str) -> Redis:
    """A client with an empty database."""
    client = admin(server)
    client.delete("list", "landing")
    return client


@pytest.mark.leaves_keys
def test_an_outstanding_landing_takes_the_message_from_a_plain_client(server: EmbeddedServer, look: Redis) -> None:
    stale, plain = Raw(server), Raw(server)
    _block(server, stale, LANDING)
    _block(server, plain, ("BRPOP", "list", 0))
    look.lpush("list", "message")
    assert stale.reply() == b"message"
    assert blocked_clients(server) == 1  # the plain client
    assert look.lrange("landing", 0, -1) == [b"message"]


@pytest.mark.leaves_keys
def test_a_string_in_the_place_of_the_landing_list_makes_the_wait_fail(server: EmbeddedServer, look: Redis) -> None:
    stale, plain = Raw(server), Raw(server)
    _block(server, stale, LANDING)
    _block(server, plain, ("BRPOP", "list", 0))
    look.set("landing", "closed")
    look.lpush("list", "message")
    with pytest.raises(ResponseError, match="wrong kind of value"):
        stale.reply()
    assert plain.reply() == [b"list", b"message"]


@pytest.mark.leaves_keys
def test_a_command_behind_a_wait_runs_when_the_wait_ends(server: EmbeddedServer, look: Redis) -> None:
    waiter = Raw(server)
    _block(server, waiter, PEEK, POP)
    look.lpush("list", "message")
    assert (waiter.reply(), waiter.reply()) == (b"message", b"message")


@pytest.mark.leaves_keys
def test_a_command_behind_a_wait_does_not_run_for_a_connection_that_has_ended(
    server: EmbeddedServer, look: Redis
) -> None:
    waiter = Raw(server)
    _block(server, waiter, PEEK, POP)
    waiter.close()
    _until_blocked(server, 0)
    look.lpush("list", "message")
    assert look.llen("list") == 1
