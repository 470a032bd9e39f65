"""Sends the steps of a queue, numbered where a repeat must be told from a new step, and reads their answers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from apressure.concurrency.settle import wait_shielded
from apressure.connection import sender
from apressure.connection.client import Client
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Call, Request
from apressure.core.asking import Undo, ask
from apressure.core.dedup_lane import has_put
from apressure.core.driver import OnAnswer, Sending
from apressure.exceptions import Role
from apressure.pressure.engine.answers import read
from apressure.pressure.engine.keys import Keys

script = functools.partial(sender.script, "apressure.pressure.engine")
"""Return the script of that name, read once."""


def _changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    if isinstance(answer, int):
        return answer > 0
    return answer[:1] in ([b"ok"], [b"messages"]) or (answer[:1] == [b"dedup"] and has_put(answer[1]))


def acknowledged(answer: Any) -> bool:
    """The same for a receive with acknowledgements: it has carried them out, even if it received nothing."""
    return answer[0] in (b"ok", b"empty", b"watch", b"turn", b"draining", b"limited", b"paused", b"closed")


_DURABLE = dict.fromkeys(
    (
        "put", "delay", "get", "receive", "receive_shared", "settle", "settle_shared", "move", "purge", "requeue",
        "bury", "create", "close", "discard", "finish_delete", "pause", "promote", "resume",
    ),
    _changed,
)  # fmt: skip
"""The steps that must be as durable as the client's `durability=` says. (A lease ends with its client anyway.)"""


class Sender(sender.Sender):
    """Sends the steps of one queue. Its attributes are those of `connection.sender.Sender`.

    Args:
        client: The client whose connection they use.
        keys: The queue's keys.
        name: The queue's name, for errors.
    """

    keys: Keys

    room = "apressure.pressure.engine"

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        super().__init__(client, keys, name)
        self._durable = client.settings.durability is not None

    async def wait_for(self, answer: asyncio.Future[Any], request: Request | None = None) -> Any:
        """Wait for an answer; cancelled, take the request back, or wait for the answer for up to `settle_timeout`."""
        if answer.done():
            return answer.result()  # `asyncio.wait` would take two turns of the event loop
        try:
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            await self.learn(answer, request)
            raise
        return answer.result()

    async def learn(self, answer: asyncio.Future[Any], request: Request | None) -> None:
        """Nobody needs the answer any more: take the request back, or wait for the answer, as a cancelled caller."""
        if not self.connection.take_back(request):
            await wait_shielded(answer, self.settle_timeout)

    def unclaim(self, role: Role) -> None:
        """Give back a role's token that was claimed and not used."""
        self._send(self._unnumbered.call("unclaim"), [role], lambda _: None, True)

    async def note_asked(self, request_id: str, milliseconds: int) -> None:
        """Note for how long from now on a program waits for the reply to a request; 0 if it waits no more."""
        await self._ask(self._unnumbered.call("asked"), [request_id.encode(), milliseconds])

    async def still_asked(self, request_id: str) -> bool:
        """Look whether a program may still wait for the reply to a request: False if it is known that none does."""
        return bool(await self._ask(self._unnumbered.call("asked"), [request_id.encode(), b""]))

    def _send(
        self,
        call: Call,
        arguments: list[Argument],
        on_answer: OnAnswer,
        resend: bool,
        again: int | None = None,
        role: Role | None = None,
        claims: Sequence[Role] = (),
        whole: bool = False,
        changed: Callable[[Any], bool] | None = None,
        connection: Sending | None = None,
    ) -> Request:
        """Send a step; `on_answer` is called once with its value, a Wait or an exception.

        Args:
            call: The script, with its KEYS.
            arguments: Its ARGV.
            on_answer: Receives the answer.
            resend: Send the step again when its reply was lost.
            again: The index of the argument that marks a repeat.
            role: The role that the step works in, for errors.
            claims: The roles whose token was claimed for this step. They are given back when the step fails.
            whole: No later step may overtake this one while the server learns its script.
            changed: Whether an answer must be as durable as `durability=` says; None for the usual test.
            connection: What sends it, if not the client's connection.
        """

        def on_reply(reply: Any) -> None:
            if claims and isinstance(reply, Exception):
                for claimed in claims:
                    self.unclaim(claimed)
            on_answer(reply if isinstance(reply, int) else read(reply, self.name, role))

        changed = changed or _DURABLE.get(call.script.name)
        request = Request(call, arguments, on_reply, resend, again, whole, changed)
        (connection or self.connection).send(request)
        return request

    async def _ask(self, call: Call, arguments: list[Argument], *how: Any, undo: Undo | None = None) -> Any:
        """Send a step and wait for its answer; see `ask`. `how`: `again`, `role` and `claims` of `_send`."""

        def send(on_answer: OnAnswer) -> Request:
            return self._send(call, arguments, on_answer, True, *how)

        return await ask(self.connection, send, self.settle_timeout, undo)
