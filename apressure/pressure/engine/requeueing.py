"""Reads dead letters, and moves them back to the queue that they came from."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final, Protocol

from apressure import dead_letters
from apressure.concurrency.settle import note_accepted
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter, Requeued
from apressure.exceptions import PressureError, QueueDoesNotExistError
from apressure.pressure.engine.access import Access
from apressure.pressure.engine.batching import MAX_MESSAGES
from apressure.pressure.engine.steps import Steps

_PAGE: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
_MOST_CHOSEN: Final = 500
"""Dead letters that are chosen in one step: the server looks for each one in the whole list."""

_REASON: Final = re.compile(rb"([0-9]{1,15}):([0-9]{1,9}):([0-9]{1,9}):(.*)", re.DOTALL)


async def letters(steps: Steps, limit: int | None, decode: Callable[[bytes], Any]) -> AsyncIterator[DeadLetter[Any]]:
    """Read dead letters, the oldest first; none where there is no such queue.

    Args:
        steps: The steps of the dead-letter queue.
        limit: How many at most; None for all.
        decode: Decodes a message.
    """
    passed = 0
    seen: set[str] = set()
    while limit is None or passed < limit:
        try:
            page = await steps.dead_letters(passed, _PAGE if limit is None else min(_PAGE, limit - passed))
        except QueueDoesNotExistError:
            return
        for raw, reason in zip(*page, strict=True):
            letter = _letter(raw, reason, decode)
            if letter.when is not None and letter.id in seen:
                letter = _letter(raw, b"", decode)  # another one with this content, whose reason is lost
            seen.add(letter.id)
            yield letter
        passed += len(page[0])
        if not page[0]:
            return


def _letter(raw: bytes, reason: bytes, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    """Return a dead letter. Its id is a digest of the message and, if it is known, the time when it was moved."""
    name = hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:16]
    matched = _REASON.fullmatch(reason)
    if matched is None:
        return DeadLetter(name, raw, None, None, None, decode)
    time, attempts, attempt = map(int, matched.groups()[:3])
    error = dead_letters.decode(matched[4], attempt) if attempt else None
    return DeadLetter(f"{name}-{time:x}", raw, attempts, error, time / 1000, decode)


class Choice(Protocol):
    """Which dead letters the next step moves."""

    def next_step(self) -> tuple[int, list[bytes]]:
        """Return how many to move at most, and the chosen ones as the step takes them, or none."""

    def moved(self, count: int, left: int) -> bool:
        """Note what a step has moved, and how many dead letters are left. Returns whether this was all."""


class Oldest:
    """The oldest ones."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._moved = 0

    def next_step(self) -> tuple[int, list[bytes]]:
        most = self._most
        return MAX_MESSAGES if most is None else min(MAX_MESSAGES, most - self._moved), []

    def moved(self, count: int, left: int) -> bool:
        # Messages that become dead letters meanwhile are left out: a message could go round for ever.
        rest = count + left
        self._most = rest if self._most is None else min(self._most, self._moved + rest)
        self._moved += count
        return self._moved >= self._most


class Chosen:
    """Some that were chosen.

    Attributes:
        gone: The ids of those that somebody has taken away before they could be moved.
    """

    def __init__(self, chosen: list[DeadLetter[Any]]) -> None:
        self._left = chosen
        self._step = 0
        self.gone: list[str] = []

    def next_step(self) -> tuple[int, list[bytes]]:
        arguments: list[bytes] = []
        size = self._step = 0
        for letter in self._left[:_MOST_CHOSEN]:
            size += len(letter.raw)
            if self._step and size > _CHUNK_BYTES:
                break
            self._step += 1
            time = letter.id.partition("-")[2]
            arguments += (letter.raw, b"%d" % int(time, 16) if time else b"")
        return self._step, arguments

    def moved(self, count: int, left: int) -> bool:  # noqa: ARG002
        if not count:
            self.gone.append(self._left[0].id)
        del self._left[: max(1, count)]
        return not self._left


async def move_chosen(queue: Access, other: Access, ids: Collection[str], timeout: float | None) -> Requeued:
    """Move the dead letters that have these ids, also if several with the same content share one."""
    missing, chosen = set(ids), []
    unique = all("-" in each for each in ids)
    if missing:
        async for letter in letters(other.steps, None, bytes):
            if letter.id in ids:
                chosen.append(letter)
                missing.discard(letter.id)
                if unique and not missing:
                    break
    choice = Chosen(chosen)
    moved = await move(queue, other, choice, timeout) if chosen else 0
    missing.update(choice.gone)
    return Requeued(moved, [each for each in ids if each in missing])


async def move(queue: Access, other: Access, choice: Choice, timeout: float | None) -> int:
    """Move dead letters, waiting for room and for both roles. Returns how many were moved."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    series = queue.steps.series()
    moved = 0
    waiting = queue  # or the other: each of the two queues waits for what is its own

    async def attempt() -> list[int] | Wait | None:
        most, chosen = choice.next_step()
        producer, consumer = queue.waits.take_claim("producer"), other.waits.take_claim("consumer")
        try:
            answer = await queue.steps.requeue(series, other.steps.keys, producer, consumer, most, chosen)
        except PressureError:
            if consumer == b"1":
                other.steps.unclaim("consumer")
            raise
        if isinstance(answer, Wait) and waiting is not (other if answer.reason == "consumer" else queue):
            return None
        return answer

    try:
        while True:
            remaining = None if deadline is None else max(0.0, deadline - loop.time())
            answer = await waiting.waits.until(attempt, remaining, waiting.steps.name)
            if answer is None:
                waiting = queue if waiting is other else other
                continue
            count, left = answer
            moved += count
            if choice.moved(count, left):
                return moved
    except asyncio.CancelledError:
        note_accepted(moved)
        raise
    except PressureError as error:
        error.accepted = moved
        if moved:
            error.add_note(f"{moved} dead letters were moved before")
        raise
