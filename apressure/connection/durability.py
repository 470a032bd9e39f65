"""`durability=`: a step succeeds when replicas have received what it wrote (WAIT), or the disk has it (WAITAOF).

WAIT and WAITAOF are sent with the step, so they cost no round trip of their own. A step that changed nothing, or that
failed, is answered at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from apressure.connection.server import Node
from apressure.connection.settings import Durability
from apressure.connection.wire.channel import Channel, ConnectionLost
from apressure.connection.wire.command import Argument
from apressure.connection.wire.replies import NOT_EXECUTED
from apressure.connection.wire.script import out_of_step
from apressure.exceptions import DurabilityError, PermissionDeniedError, ServerError, ServerTooOldError

_IS_REPLICA = "cannot be used with replica instances"


async def check(channel: Channel, node: Node) -> None:
    """Check that the server can do what `durability=` asks for, before anything is written.

    Raises:
        ServerTooOldError: The server lacks WAITAOF, or WAIT.
        ServerError: It has no append-only file, or no replica where all must confirm, or this user may not ask.
        ServerUnavailableError: The connection ended.
    """
    durability = node.settings.durability
    if durability is None:
        return
    try:
        if durability.replicas:
            await channel.ask(b"WAIT", 0, 1)
        if durability.fsync:
            await channel.ask(b"WAITAOF", 1, 0, 1)
        if durability.replicas == "all" and node.takes_writes:
            await _count(channel, node)
    except ServerTooOldError as error:
        if "WAITAOF" not in str(error):
            raise
        raise ServerTooOldError(
            "the server lacks WAITAOF: durability with fsync=True needs Redis 7.2 or later, or Valkey", code=error.code
        ) from None
    except ServerError as error:
        if error.code in NOT_EXECUTED or _IS_REPLICA in str(error):
            return  # temporary: the steps get the same answer, and are sent again
        if "appendonly" not in str(error):
            raise
        raise ServerError(
            "durability with fsync=True needs the server's append-only file, which is off. Set appendonly yes",
            code=error.code,
        ) from None


async def _count(channel: Channel, node: Node) -> None:
    """Count the replicas: those that are connected, or that Sentinels know."""
    answer, refused = b"", None
    try:
        answer = await channel.ask(b"INFO", b"replication")
    except PermissionDeniedError as error:
        refused = error
    found = re.search(rb"connected_slaves:(\d+)", answer)
    if not node.count(channel.address, int(found[1]) if found else 0):
        raise refused or ServerError(
            f"durability='all' would confirm nothing: the server at {channel.address.text} has no replica; nothing was "
            "written. Connect its replicas first, or leave out durability="
        )


class Confirmation:
    """The commands that follow one command, and wait until what it wrote is durable.

    Args:
        channel: Where the command was sent.
        changed: Returns whether an answer means that there is something to confirm.
        durability: What must be confirmed.
        on_answer: Called exactly once, with the command's answer. If too little was confirmed, that is a
            `DurabilityError`, which contains the answer.
    """

    def __init__(
        self, channel: Channel, changed: Callable[[Any], bool], durability: Durability, on_answer: Callable[[Any], None]
    ) -> None:
        self._channel = channel
        self._changed = changed
        self._durability = durability
        self._on_answer: Callable[[Any], None] | None = on_answer
        self._answer: Any = None
        self._open = 0

    def send(self) -> None:
        """Send them. The command has just been sent."""
        replicas, milliseconds = self._durability.replicas, max(1, int(self._durability.timeout * 1000))
        if replicas == "all":  # not counted: the server was loading, or a replica
            self._send(int, b"WAIT", 0, 1)
        elif replicas:
            self._send(int, b"WAIT", replicas, milliseconds)
        if self._durability.fsync:
            self._send(list, b"WAITAOF", 1, 0, milliseconds)

    def _send(self, kind: type, *question: Argument) -> None:
        self._open += 1
        self._channel.call(question, functools.partial(self._confirmed, kind))

    def answered(self, answer: Any) -> None:
        """The command has been answered."""
        if not isinstance(answer, Exception) and self._changed(answer):
            self._answer = answer
        else:
            self._finish(answer)

    def _confirmed(self, kind: type, reply: Any) -> None:
        if isinstance(reply, ServerError) and (reply.code == "UNBLOCKED" or _IS_REPLICA in str(reply)):
            reply = ConnectionLost(str(reply))  # the server became a replica, and may lose the step
        elif not isinstance(reply, (Exception, kind)):
            reply = out_of_step(self._channel)
        if isinstance(reply, ConnectionLost):
            self._finish(reply)
        elif lack := str(reply) if isinstance(reply, Exception) else self._lack(reply):
            what = f"the server carried out the operation, but {lack}: it may be lost when the server fails"
            advice = "Check the replicas and the disk before you repeat it"
            self._finish(DurabilityError(f"{what}. {advice}", answer=self._answer))
        self._open -= 1
        if not self._open:
            self._finish(self._answer)

    def _lack(self, confirmed: int | list[int]) -> str:
        """Return what was not confirmed in time; empty if everything was."""
        wanted, seconds = self._durability.replicas, self._durability.timeout
        if isinstance(confirmed, list):
            return "" if confirmed[0] >= 1 else f"it was not on the server's disk within {seconds:g} seconds"
        if wanted == "all":
            return "the replicas have not been counted yet"
        if confirmed >= wanted:
            return ""
        return f"{confirmed} of {wanted} replicas have confirmed it within {seconds:g} seconds"

    def _finish(self, answer: Any) -> None:
        if self._durability.replicas == "all":
            self._channel.retire()  # the next connection counts the replicas
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)
