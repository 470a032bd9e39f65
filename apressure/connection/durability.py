"""A step's answer counts when replicas have received what it wrote (WAIT), or the disk has it (WAITAOF).

The question for that leaves with the step, so it costs no round trip of its own. A step that changed nothing is
answered at once; so is one that failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from apressure.connection.channel import ConnectionLost, OnReply
from apressure.connection.command import Argument, Head
from apressure.connection.replies import NOT_EXECUTED
from apressure.connection.script import answer_of, out_of_step
from apressure.connection.server import AnyChannel
from apressure.connection.settings import Durability
from apressure.exceptions import DurabilityError, ServerError, ServerTooOldError

_IS_REPLICA = "cannot be used with replica instances"


async def check(channel: AnyChannel, durability: Durability | None) -> None:
    """Find out whether the server can do what will be asked of it, before anything is written.

    Raises:
        ServerTooOldError: It lacks WAITAOF.
        ServerError: It has no append-only file, or does not let this user ask.
        ServerUnavailableError: The connection ended.
    """
    if durability is None:
        return
    try:
        if durability.replicas:
            await channel.ask(b"WAIT", 0, 1)
        if durability.fsync:
            await channel.ask(b"WAITAOF", 1, 0, 1)
    except ServerTooOldError as error:
        raise ServerTooOldError(
            "the server lacks WAITAOF: durability with fsync=True needs Redis 7.2 or later, or Valkey", code=error.code
        ) from None
    except ServerError as error:
        if error.code in NOT_EXECUTED or _IS_REPLICA in str(error):
            return  # the steps will be told so, too, and wait for better times
        if "appendonly" not in str(error):
            raise
        raise ServerError(
            "durability with fsync=True needs the server's append-only file, which is off: set appendonly yes",
            code=error.code,
        ) from None


class Confirmation:
    """One command on its way, and the questions whether it is as durable as it has to be.

    Args:
        channel: Where to.
        head: How the command begins.
        command: What comes behind that.
        tag: What its reply begins with.
        changed: Whether an answer says that there is something to confirm.
        durability: What has to be confirmed.
        on_reply: Called exactly once, with the command's reply. Where too little is confirmed, that is with a
            `DurabilityError`, which has the answer in it.
    """

    def __init__(
        self,
        channel: AnyChannel,
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
        if durability.replicas:
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
            reply = ConnectionLost(str(reply))  # the server became a replica: the step may be lost with that
        elif not isinstance(reply, Exception) and isinstance(reply, list) is not (lacking == self._lacking_disk):
            reply = out_of_step(self._channel)
        if isinstance(reply, ConnectionLost):
            self._finish(reply)
        elif lack := str(reply) if isinstance(reply, Exception) else lacking(reply):
            self._finish(
                DurabilityError(
                    f"the server carried out the operation, but {lack}: it may be lost when the server fails, or not",
                    answer=self._answer,
                )
            )
        self._open -= 1
        if not self._open:
            self._finish(self._reply)

    def _lacking_replicas(self, confirmed: int) -> str:
        wanted, seconds = self._durability.replicas, self._durability.timeout
        if confirmed >= wanted:
            return ""
        return f"{confirmed} of {wanted} replicas have confirmed it within {seconds:g} seconds"

    def _lacking_disk(self, confirmed: list[int]) -> str:
        if confirmed[0] >= 1:
            return ""
        return f"it was not on the server's disk within {self._durability.timeout:g} seconds"

    def _finish(self, reply: Any) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply)
