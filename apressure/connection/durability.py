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
from apressure.connection.wire.channel import Channel, ConnectionLost, OnReply
from apressure.connection.wire.command import Argument, Head
from apressure.connection.wire.replies import NOT_EXECUTED
from apressure.connection.wire.script import answer_of, out_of_step
from apressure.exceptions import DurabilityError, PermissionDeniedError, ServerError, ServerTooOldError

_IS_REPLICA = "cannot be used with replica instances"


async def check(channel: Channel, node: Node) -> None:
    """Check that the server can do what `durability=` asks for, before anything is written.

    Raises:
        ServerTooOldError: The server lacks WAITAOF.
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
    try:
        answer: Any = await channel.ask(b"INFO", b"replication")
    except PermissionDeniedError:
        if not node.count(channel.address, 0):
            raise
        return
    found = re.search(rb"connected_slaves:(\d+)", answer)
    if not node.count(channel.address, int(found[1]) if found else 0):
        raise ServerError(
            f"durability='all' would confirm nothing: the server at {channel.address.text} has no replica; nothing was "
            "written. Connect its replicas first, or leave out durability="
        )


class Confirmation:
    """One pending command, and the commands that wait until it is durable.

    Args:
        channel: Where to send it.
        head: How the command begins.
        command: The rest of it.
        tag: What its reply begins with.
        changed: Returns whether an answer means that there is something to confirm.
        durability: What must be confirmed.
        on_reply: Called exactly once, with the command's reply. If too little was confirmed, that is a
            `DurabilityError`, which contains the answer.
    """

    def __init__(
        self,
        channel: Channel,
        head: Head,
        command: list[Argument],
        tag: bytes,
        changed: Callable[[Any], bool],
        durability: Durability,
        on_reply: OnReply,
    ) -> None:
        self._channel = channel
        self._tag = tag
        self._changed = changed
        self._durability = durability
        self._on_reply: OnReply | None = on_reply
        self._reply: Any = None
        self._answer: Any = None
        milliseconds = max(1, int(durability.timeout * 1000))
        questions: list[tuple[list[Argument], Callable[[Any], str]]] = []
        if durability.replicas == "all":  # not counted: the server was loading, or a replica
            questions.append(([b"WAIT", 0, 1], lambda _: "the replicas have not been counted yet"))
        elif durability.replicas:
            questions.append(([b"WAIT", durability.replicas, milliseconds], self._lacking_replicas))
        if durability.fsync:
            questions.append(([b"WAITAOF", 1, 0, milliseconds], self._lacking_disk))
        self._open = len(questions)
        channel.call(command, self._answered, head)
        for question, lacking in questions:
            channel.call(question, functools.partial(self._confirmed, lacking))

    def _answered(self, reply: Any) -> None:
        answer = answer_of(reply, self._tag, self._channel)
        if not isinstance(answer, Exception) and self._changed(answer):
            self._reply, self._answer = reply, answer
        else:
            self._finish(reply)

    def _confirmed(self, lacking: Callable[[Any], str], reply: Any) -> None:
        if isinstance(reply, ServerError) and (reply.code == "UNBLOCKED" or _IS_REPLICA in str(reply)):
            reply = ConnectionLost(str(reply))  # the server became a replica, and may lose the step
        elif not isinstance(reply, Exception) and isinstance(reply, list) is not (lacking == self._lacking_disk):
            reply = out_of_step(self._channel)
        if isinstance(reply, ConnectionLost):
            self._finish(reply)
        elif lack := str(reply) if isinstance(reply, Exception) else lacking(reply):
            self._finish(
                DurabilityError(
                    f"the server carried out the operation, but {lack}: it may be lost when the server fails. "
                    "Check the replicas and the disk before you repeat it",
                    answer=self._answer,
                )
            )
        self._open -= 1
        if not self._open:
            self._finish(self._reply)

    def _lacking_replicas(self, confirmed: int) -> str:
        wanted, seconds = self._durability.replicas, self._durability.timeout
        if wanted == "all" or confirmed >= wanted:
            return ""
        return f"{confirmed} of {wanted} replicas have confirmed it within {seconds:g} seconds"

    def _lacking_disk(self, confirmed: list[int]) -> str:
        if confirmed[0] >= 1:
            return ""
        return f"it was not on the server's disk within {self._durability.timeout:g} seconds"

    def _finish(self, reply: Any) -> None:
        if self._durability.replicas == "all":
            self._channel.retire()  # the next connection counts the replicas
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply)
