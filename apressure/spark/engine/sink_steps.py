"""The steps of a sink: tasks stage parts on the server, and a commit puts them into the queue.

A write is what commits its parts together: a query's batch, or one `df.write`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from apressure.exceptions import QueueClosedError, QueueError
from apressure.spark.engine.steps import MAX_MESSAGES, BatchLostError, NoRoom, QueueSteps, RoleBusy

Plan = dict[str, list[tuple[str, int, int]]]
"""For each queue the token, messages and bytes of each of its parts."""


class SinkSteps(QueueSteps):
    """The steps of one queue that Spark writes to."""

    def plan_write(self, write: str, batch: int, plan: Plan) -> Plan | None:
        """Decide which parts of several queues a write consists of. The first call decides; later ones return its plan.

        Args:
            write: The write.
            batch: The number of the query's batch.
            plan: The parts that this attempt has staged.

        Returns:
            The parts of the write; None if the whole write is in the queues. If an earlier attempt was without a plan,
            all of its parts are for this queue, and `choose_parts` knows them.

        Raises:
            QueueDoesNotExistError: This queue, which keeps the plan, does not exist.
            QueueError: An earlier batch of the query is not complete.
        """
        answer = self._run("plan_write", (self.keys.sinks,), write, batch, json.dumps(plan))
        if answer[0] == b"done":
            return None
        if answer[0] == b"alone":
            return {self.name: []}
        return {
            queue: [(token, messages, size) for token, messages, size in parts]
            for queue, parts in json.loads(answer[1]).items()
        }

    def has_plan(self, write: str) -> bool:
        """Whether an earlier batch, or an attempt, of the write had a plan: its query had a `queueColumn`."""
        return bool(self.server.ask(b"HGET", self.keys.sinks, f"{write}:plan"))

    def complete_plan(self, write: str, batch: int) -> None:
        """Remember that a write to several queues is complete: its commit may be repeated."""
        self.server.ask(b"HSET", self.keys.sinks, f"{write}:plan", f"{batch} ")

    def choose_parts(self, write: str, batch: int, ttl: int, parts: Sequence[tuple[str, int, int]]) -> str | None:
        """Decide which parts a write consists of. The first call decides; later ones return what it decided.

        Args:
            write: The write.
            batch: The number of the query's batch.
            ttl: Milliseconds after which the parts expire; 0 for never.
            parts: Token, messages and bytes of each part.

        Returns:
            The first part that is not in the queue yet; None if the whole write is in the queue.

        Raises:
            BatchLostError: A part is gone.
            QueueClosedError, QueueDoesNotExistError: As the names say.
            QueueError: An earlier batch of the query is not complete.
        """
        keys = (self.keys.sinks, self.keys.todo(write), *(self.keys.part(write, token) for token, _, _ in parts))
        words = (f"{token} {messages} {size}" for token, messages, size in parts)
        answer = self._run("choose_parts", keys, write, batch, ttl, *words)
        return None if answer[0] == b"done" else answer[1].decode()

    def put_part(self, write: str, batch: int, part: str, remember: bool, claimed: bool = False) -> Any:
        """Move messages of a part into the queue, as many as one step may, and as there is room for.

        Args:
            write: The write.
            batch: The number of the query's batch.
            part: The part, as `choose_parts` and this return it.
            remember: Remember that the batch is complete: its commit may be repeated.
            claimed: Whether the producer role was claimed for this step.

        Returns:
            The next part, '' after the last one; or `RoleBusy`, or `NoRoom`.

        Raises:
            BatchLostError: The part is gone.
            QueueClosedError, QueueDoesNotExistError: As the names say.
        """
        token = part.partition(" ")[0]
        keys = (self.keys.sinks, self.keys.todo(write), self.keys.part(write, token))
        answer = self._run("put_part", keys, self._uid, int(claimed), write, batch, part, MAX_MESSAGES, int(remember))
        return answer if isinstance(answer, (RoleBusy, NoRoom)) else answer[2].decode()

    def discard(self, write: str, token: str) -> None:
        """Delete a part, unless the commit of a stream has chosen it: then it does not expire."""
        if self.server.ask(b"PTTL", self.keys.part(write, token)) > 0:
            self.server.ask(b"UNLINK", self.keys.part(write, token))

    def extend(self, write: str, ttl: int, tokens: Sequence[str]) -> None:
        """Have the parts that are not in the queue yet expire `ttl` milliseconds from now."""
        keys = (self.keys.todo(write), *(self.keys.part(write, token) for token in tokens))
        self.server.together(*((b"PEXPIRE", key, ttl) for key in keys))

    def _read(self, answer: Any) -> Any:
        match answer[0] if isinstance(answer, list) else None:
            case b"other":
                raise QueueError(
                    f"batch {answer[1]} of this query has not been written to the queue {self.name!r} completely: two "
                    "queries use one checkpoint, or the checkpoint was set back. Give each query its own checkpoint",
                    name=self.name,
                )
            case b"full" | b"room":
                return NoRoom(answer[0] == b"room")
            case b"gone":
                raise BatchLostError(
                    f"what a task wrote for the queue {self.name!r} is not on the server any more: the job took longer "
                    "than stagingTtl, or it was deleted. Run the job again, with a longer stagingTtl",
                    name=self.name,
                )
            case b"closed":
                raise QueueClosedError(f"the queue {self.name!r} is closed: nothing can be written", name=self.name)
        return super()._read(answer)
