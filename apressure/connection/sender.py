"""Sends the steps of a queue, numbered where a repeat must be told from a new step. Some are the same for each kind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

from apressure.concurrency.settle import set_result_once
from apressure.connection.client import Client
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Call, Request, Script, Series
from apressure.core.asking import Undo, ask
from apressure.core.browsing import Asked
from apressure.core.counts import Counts
from apressure.core.driver import Connection, OnAnswer, Sending
from apressure.core.errors import closed
from apressure.core.waiting import Wait


@functools.cache
def script(room: str, name: str) -> Script:
    """Return the script of that name in a package, read once."""
    return Script(room, name)


def soon(send: Callable[[OnAnswer], object]) -> asyncio.Future[Any]:
    """Send a step; returns what completes with its answer, which may be an exception."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    send(functools.partial(set_result_once, done))
    return done


class Sender:
    """Sends the steps of one queue.

    Args:
        client: The client whose connection they use.
        keys: The queue's keys.
        name: The queue's name.
        node_keys: Say which node has the queue; None for the KEYS of a script.

    Attributes:
        name, keys: As given.
        script_keys: The KEYS of a script.
        connection: The connection for steps.
        settle_timeout: Seconds for which a cancelled caller waits for the outcome.
        counts: What the queue object has done so far.
    """

    room: ClassVar[str]
    """The package that has the scripts."""

    def __init__(self, client: Client, keys: Any, name: str, node_keys: Iterable[bytes] | None = None) -> None:
        self.name = name
        self.keys = keys
        self.settle_timeout = client.settings.settle_timeout
        self.counts = Counts()
        self._client = client
        self._script = functools.partial(script, self.room)
        self._unnumbered = Series(self._script, keys.for_script, "none")
        self.script_keys = self._unnumbered.keys
        self.connection = client.connection_for(self.script_keys if node_keys is None else node_keys)

    @functools.cached_property
    def _uid(self) -> bytes:
        """The client's identity."""
        return self._client.id.encode(errors="surrogateescape")

    def series(self) -> Series:
        """Return a new series of numbered steps."""
        return Series(self._script, self.keys.for_script)

    async def carry_out(
        self, call: Call, arguments: list[Argument], changed: Callable[[Any], bool] | None = None
    ) -> Any:
        """Carry out a step that is the same for each kind of queue, and return its answer as it came.

        Args:
            call: The script, with its KEYS.
            arguments: Its ARGV.
            changed: Whether an answer must be as durable as `durability=` says; None for never.
        """

        def send(on_answer: OnAnswer) -> Request:
            request = Request(call, arguments, on_answer, True, changed=changed)
            self.connection.send(request)
            return request

        return await ask(self.connection, send, self.settle_timeout)


class StepSender(Sender, ABC):
    """Sends the steps of one queue that any number of clients share. Arguments and attributes are those of `Sender`.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is no valid name.
    """

    _keys: ClassVar[type[Any]]
    """The class of `keys`; made of the queue's name."""

    _soon = staticmethod(soon)

    _not_durable: ClassVar[frozenset[str]]
    """Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""

    def __init__(self, client: Client, name: str, node_keys: Iterable[bytes] | None = None) -> None:
        super().__init__(client, self._keys(name), name, node_keys)
        self._pool: list[Series] = []

    @abstractmethod
    def _read(self, reply: Any, token: bytes) -> Any:
        """Return what a reply means: a value, a wait or an exception."""

    @staticmethod
    @abstractmethod
    def _changed(answer: Any) -> bool:
        """Whether a step changed anything that must be durable, by its answer."""

    async def create(self, bound: int) -> bool:
        """Create the queue, unless it exists. Returns whether it is new."""
        return (await self._run("create", bound))[0] == b"created"  # type: ignore[no-any-return]

    async def close(self, expected: bool = False) -> None:
        """Close the queue; `expected`: it must have been created.

        Raises:
            QueueClosedError: It was closed before.
        """
        if (await self._run("close", flag(expected)))[0] == b"exists":
            raise closed(self.name)

    async def peek(self, newest: bool = False) -> Any:
        """Return the message that is next, or the newest one; None if none waits."""
        answer = await self._run("peek", flag(newest))
        return None if isinstance(answer, Wait) else answer

    async def browse(self, asked: Asked) -> Any:
        """Return a page of what is in a place of the queue."""
        return await self._run("browse", *asked.arguments)

    async def status(self) -> Any:
        """Look at the queue. It changes nothing."""
        return await self._run("status")

    def send_extend(
        self, claims: Iterable[Any], lease: int, on_answer: OnAnswer, connection: Connection | None = None
    ) -> Request:
        """Have claims last at least so many milliseconds: each begins with an id and a token."""
        arguments: list[Argument] = [lease, *(part for claim in claims for part in claim[:2])]
        return self._send(self._unnumbered.call("extend"), arguments, on_answer, connection=connection)

    async def extend(self, claims: Iterable[Any], lease: float) -> Any:
        """Have claims last for at least so many seconds from now; see `send_extend`."""
        return await self._ask(lambda on_answer: self.send_extend(claims, int(lease * 1000), on_answer))

    def _beside(self) -> tuple[bytes, ...]:
        """The keys behind those of every script, for a step that deletes the queue."""
        return (self.keys.schedules, self.keys.dedup)

    async def _run(self, name: str, *arguments: Argument, more: Callable[[], tuple[bytes, ...]] = tuple) -> Any:
        """Run a step that can be repeated as it is. `more` as for `Series.call`: the same for each step of a name."""
        return await self._ask(lambda on_answer: self._send(self._unnumbered.call(name, more), [*arguments], on_answer))

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
        connection: Sending | None = None,
    ) -> Request:
        """Send a step; `on_answer` is called once with its value, a `Wait` or an exception.

        Args:
            call: The script, with its KEYS.
            arguments: Its ARGV.
            on_answer: Receives the answer.
            again: The index of the argument that marks a repeat.
            token: The token of the claims that it makes.
            resend: Send the step again when its reply was lost.
            connection: What sends it, if not the client's connection.
        """
        durable = None if call.script.name in self._not_durable else self._changed
        request = Request(
            call, arguments, lambda reply: on_answer(self._read(reply, token)), resend, again, changed=durable
        )
        (connection or self.connection).send(request)
        return request


flag: Final = (b"0", b"1").__getitem__
"""Return an argument of a script."""
