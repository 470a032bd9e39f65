"""Sends the steps of a queue of events, numbered where a repeat must be told from a new step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from apressure.connection.asking import OnAnswer, Undo, ask
from apressure.connection.client import Client
from apressure.connection.wire.command import Argument
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.request import Request
from apressure.connection.wire.script import Call, Script
from apressure.connection.wire.series import Series
from apressure.events.engine.answers import read
from apressure.events.engine.keys import EventKeys


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.events.engine", name)


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"pushed"] | [b"settled"] | [b"moved"] | [b"changed"]:
            return bool(answer[1].strip(b"0d:"))
        case [b"events"]:
            return bool(answer[1]) or answer[4] > 0
        case [b"created"] | [b"done"] | [b"flushed"]:
            return True
        case _:
            return isinstance(answer, int) and answer > 0


NOT_DURABLE: Final = frozenset({"extend", "heal", "register", "resign", "peek", "status", "dead_letters"})
"""Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""


class Sender:
    """Sends the steps of one queue of events.

    Args:
        client: The client whose connection they use.
        name: The queue's name.

    Attributes:
        name: As given.
        keys: The queue's keys.
        script_keys: The KEYS of a script; they say which node has the queue.
        connection: The connection for steps.
        settle_timeout: Seconds for which a cancelled caller waits for the outcome.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is no valid name.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self.keys = EventKeys(name)
        self.settle_timeout = client.settings.settle_timeout
        self._unnumbered = Series(script, self.keys.for_script, "none")
        self.script_keys = self._unnumbered.keys
        self.connection = client.connection_for(self.script_keys)
        self._client_id = client.id.encode(errors="surrogateescape")
        self._pool: list[Series] = []

    def series(self) -> Series:
        """Return a new series of numbered steps."""
        return Series(script, self.keys.for_script)

    async def _run(self, name: str, *arguments: Argument) -> Any:
        """Run a step that can be repeated as it is."""
        return await self._ask(lambda on_answer: self._send(self._unnumbered.call(name), [*arguments], on_answer))

    async def _numbered(self, name: str, *arguments: Argument) -> Any:
        with self._series() as series:
            return await self._ask(
                lambda on_answer: self._send(series.call(name), [series.next(), b"0", *arguments], on_answer, 1)
            )

    @contextlib.contextmanager
    def _series(self) -> Iterator[Series]:
        """Lend a series; one whose last step failed is not used again, since that step may still arrive."""
        series = self._pool.pop() if self._pool else self.series()
        yield series
        self._pool.append(series)

    async def _ask(self, send: Callable[[OnAnswer], Request], undo: Undo | None = None) -> Any:
        return await ask(self.connection, send, self.settle_timeout, undo)

    def _send(
        self,
        call: Call,
        arguments: list[Argument],
        on_answer: OnAnswer,
        again: int | None = None,
        token: bytes = b"",
        resend: bool = True,
        connection: ReconnectingConnection | None = None,
    ) -> Request:
        """Send a step; `on_answer` is called once with its value, a `Wait` or an exception.

        Args:
            call: The script, with its KEYS.
            arguments: Its ARGV.
            on_answer: Receives the answer.
            again: The index of the argument that marks a repeat.
            token: The token of the claims that it makes.
            resend: Send the step again when its reply was lost.
            connection: Another connection than the client's.
        """
        durable = None if call.script.name in NOT_DURABLE else changed
        request = Request(
            call, arguments, lambda reply: on_answer(read(reply, self.name, token)), resend, again, changed=durable
        )
        (connection or self.connection).send(request)
        return request
